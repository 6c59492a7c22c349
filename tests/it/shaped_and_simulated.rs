//! Tests in virtual time. The simulated network does the same for the same seed, and a shaped link (which is slowed
//! down to a latency and bandwidth) takes as long as its shape says.

use crate::raw_client::*;
use farpool_broker::LeaseSettings;
use farpool_transport::shaped::{LinkShape, Shaped};
use farpool_transport::sim::{Faults, SimNet};
use farpool_transport::{Link, LinkError, ReadOp, WriteOp};
use farpool_wire::control::Grant;

/// Runs operations over a simulated network with faults. Returns the result of each, and the virtual time in ns at
/// which it ended.
fn faulty_run(pool: &OneNode, grant: &Grant, seed: u64) -> Vec<(&'static str, u64)> {
    let faults =
        Faults { delay_ns: 1_000..=90_000, lost_per_million: 60_000, disconnects_per_million: 60_000 };
    let net = SimNet::new(seed, Faults::none());
    let mut link = net.connect(pool.node.service()).expect("connected");
    net.set_faults(faults.clone());
    let mut events = Vec::new();
    for step in 0..400u64 {
        let offset = step * 64 % (MIB - 64);
        let deadline = net.now().plus_ms(10);
        let from = [step as u8; 64];
        let mut into = [0; 64];
        let result = if net.draw().is_multiple_of(2) {
            link.write(&[WriteOp { span: span(grant, offset, 64), from: &from }], deadline)
        } else {
            link.read(&mut [ReadOp { span: span(grant, offset, 64), into: &mut into }], deadline)
        };
        let event = match result {
            Ok(()) => "done",
            Err(LinkError::TimedOut) => "timed out",
            Err(LinkError::Disconnected(_)) => "cut",
            Err(other) => panic!("seed {seed}, step {step}: {other:?}"),
        };
        events.push((event, net.now().0));
        if event != "done" {
            net.set_faults(Faults::none());
            link = net.connect(pool.node.service()).expect("connected again");
            net.set_faults(faults.clone());
        }
    }
    events
}

#[test]
fn simulated_net_with_the_same_seed_runs_the_same_and_every_fault_occurs() {
    let pool = one_node(1, LeaseSettings { lease_ttl_ms: 60_000, ..LeaseSettings::default() });
    let mut link = pool.link(farpool_transport::Transport::Sim);
    let grant = pool.session().lease(&pool, &mut *link, 1).expect("a lease").remove(0);
    let first = faulty_run(&pool, &grant, 42);
    assert_eq!(first, faulty_run(&pool, &grant, 42));
    assert_ne!(first, faulty_run(&pool, &grant, 43));
    for event in ["done", "timed out", "cut"] {
        assert!(first.iter().any(|(found, _)| *found == event), "{event} never happened");
    }
}

#[test]
fn shaped_link_takes_latency_and_bytes_over_bandwidth() {
    let pool = one_node(1, LeaseSettings { lease_ttl_ms: 60_000, ..LeaseSettings::default() });
    let net = SimNet::new(5, Faults { delay_ns: 0..=0, lost_per_million: 0, disconnects_per_million: 0 });
    let inner = net.connect(pool.node.service()).expect("connected");
    // The link has a latency of 100 us and a bandwidth of 1 GB/s.
    let shape = LinkShape { latency_ns: 100_000, bytes_per_second: 1_000_000_000 };
    let mut link = Shaped::new(inner, shape, net.clone());
    let grant = pool.session().lease(&pool, &mut link, 1).expect("a lease").remove(0);
    for (bytes, expected_ns) in [(1, 100_001), (1_000, 101_000), (1_000_000, 1_100_000)] {
        let before = net.now().0;
        write(&mut link, &grant, 0, &vec![3; bytes]).expect("a write");
        assert_eq!(net.now().0 - before, expected_ns, "writing {bytes} bytes");
        let before = net.now().0;
        assert_eq!(read(&mut link, &grant, 0, bytes).expect("a read"), vec![3; bytes]);
        assert_eq!(net.now().0 - before, expected_ns, "reading {bytes} bytes");
    }
}
