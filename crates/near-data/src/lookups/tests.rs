//! Order in which the scans and lookups of a connection end.

use super::LookupTables;
use crate::NearData;
use crate::functions::{FunctionOptions, Functions};
use crate::scans::Scans;
use farpool_host::{Host, Machine, clock};
use farpool_node::Extension;
use farpool_operators::{Program, Type};
use farpool_region::{Arena, ArenaOptions};
use farpool_transport::Peer;
use farpool_wire::control::*;
use farpool_wire::limits::REGION_BYTES_MIN;
use farpool_wire::{Bytes, Handle, List, Reply, Request};
use std::sync::Arc;
use std::time::Duration;

#[test]
fn connection_that_ends_loses_its_scans_before_its_lookups() {
    let options = ArenaOptions::new(REGION_BYTES_MIN, 1);
    let host: Arc<dyn Host> = Arc::new(Machine);
    let node = NearData {
        dialer: farpool_transport::Sockets::dialer(farpool_transport::Exposure::default()),
        host: Arc::clone(&host),
        memory: Arc::new(Arena::new(&options).expect("an arena")),
        scans: Scans::default(),
        lookups: LookupTables::default(),
        functions: Functions::start(FunctionOptions::default(), &host).expect("nothing to start"),
    };
    let peer = Peer { connection: 1, ..Peer::default() };
    let part = Bytes::new(vec![0xff; 32]).expect("short");
    let put = PutLookup { lookup: Handle(0), kind: LookupKind::Bloom, bytes: 32, part };
    node.call(&peer, Request::PutLookup(put)).expect("a lookup");
    let program = Program::check(vec![Type::Int64], vec![]).expect("a program");
    let open = OpenScan {
        program: Bytes::new(program.encode().expect("encoded")).expect("short"),
        lookups: List::default(),
        regions: List::default(),
        groups: List::default(),
        seals: ScanSeals::default(),
    };
    let Ok(Reply::OpenScan(ScanOpened { scan, .. })) = node.call(&peer, Request::OpenScan(open)) else {
        panic!("no scan");
    };
    let is_open = || node.call(&peer, Request::ClaimGroups(ClaimGroups { scan, groups: 0 })).is_ok();
    assert!(is_open());

    let lookups = node.lookups.open.lock();
    std::thread::scope(|threads| {
        threads.spawn(|| node.ended(&peer));
        // The lock on the lookups is held here, so `ended` cannot remove a lookup before the lock is dropped. The scan
        // ends all the same, because scans end first.
        let give_up = clock::now().plus_ms(120_000);
        while is_open() {
            assert!(clock::now() < give_up, "the scan does not end");
            std::thread::park_timeout(Duration::from_millis(1));
        }
        assert_eq!(lookups.len(), 1);
        drop(lookups);
    });
    assert!(node.lookups.open.lock().is_empty());
}
