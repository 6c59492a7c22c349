//! Tests of nodes with limits of bandwidth and CPU time, whose clients ask for more.

use crate::on_time::on_time;
use crate::programs::PATIENCE;
use crate::raw_client::*;
use farpool_broker::stores::MemoryStore;
use farpool_broker::{Broker, LeaseSettings};
use farpool_host::clock;
use farpool_node::limits::BURST_NS;
use farpool_node::{Limits, Node, NodeOptions};
use farpool_transport::{Exposure, Identity, ReadOp, Transport, tcp};
use farpool_wire::{ClientId, Name};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn limited_node(limits: Limits) -> OneNode {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let store = Box::new(MemoryStore::default());
    let exposure = Exposure::default();
    // Leases live for 10 minutes, because the tests renew none.
    let settings = LeaseSettings { lease_ttl_ms: 600_000, ..LeaseSettings::default() };
    let broker = Broker::start(loopback, &exposure, settings, store).expect("a broker");
    let mut options =
        NodeOptions::new(Name::new(NODE).expect("a name"), 4 * MIB, broker.address().to_string());
    options.region_bytes = MIB;
    options.limits = limits;
    // The node keeps its memory, however little the other tests of this machine leave free.
    options.pressure.source = None;
    let node = Node::start(options).expect("a node");
    assert!(node.wait_joined(PATIENCE), "the node joins");
    OneNode { node, broker, exposure }
}

/// The test checks only an upper bound, which a slow machine cannot break. The bytes moved in a time are at most those
/// of the limit, plus a burst, plus one operation in each of the node's slots (as many as it has CPUs).
#[test]
fn node_with_a_bandwidth_limit_moves_no_more_than_it_permits() {
    const LIMIT: u64 = 20_000_000;
    const READERS: u64 = 3;
    const EACH: u64 = 3 * MIB;
    let pool = limited_node(Limits { bytes_per_second: Some(LIMIT), cpu_milli: None });
    let readers: Vec<_> = (1..=READERS as u8)
        .map(|reader| {
            let mut link = pool.link(Transport::Tcp);
            let grants = pool.session().lease_patiently(&pool, &mut *link, 1);
            (reader, link, grants)
        })
        .collect();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for (reader, mut link, grants) in readers {
            scope.spawn(move || {
                let bytes = [reader; 4096];
                write(&mut *link, &grants[0], 0, &bytes).expect("a write");
                let mut moved = bytes.len() as u64;
                for length in [4096, 100_000, MIB as usize].into_iter().cycle() {
                    let found = read(&mut *link, &grants[0], 0, length).expect("a read");
                    assert_eq!(found[..4096], bytes);
                    moved += length as u64;
                    if moved >= EACH {
                        break;
                    }
                }
            });
        }
    });
    let slots = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let at_once = LIMIT * BURST_NS / 1_000_000_000 + slots * MIB;
    let due = Duration::from_secs_f64((READERS * EACH - at_once.min(READERS * EACH)) as f64 / LIMIT as f64);
    assert!(begun.elapsed() >= due, "{:?} for what takes {due:?}", begun.elapsed());
}

#[test]
fn node_with_limits_serves_over_tcp_and_offers_no_shared_memory() {
    let pool = limited_node(Limits { bytes_per_second: None, cpu_milli: Some(100) });
    assert_eq!(pool.node.info().shm_socket.to_string(), "");
    let mut link = pool.link(Transport::Tcp);
    let grants = pool.session().lease(&pool, &mut *link, 1).expect("a lease");
    for round in 0..20 {
        let bytes = [round; 100_000];
        write(&mut *link, &grants[0], 0, &bytes).expect("a write");
        assert_eq!(read(&mut *link, &grants[0], 0, bytes.len()).expect("a read"), bytes);
    }
}

/// One client has four connections with 32 pages (of 8 KiB) asked for on each, without a pause. Seven others have one
/// page each. All share the node's limit, so the result does not depend on the number of CPUs. The test ends after a
/// number of pages, not after a time.
#[test]
fn node_with_a_limit_serves_seven_clients_at_depth_1_as_well_as_one_at_depth_128() {
    // Time from one page to the next of each client, at first for a limit of 10 MB/s. If this machine is late,
    // `on_time` retries with a longer time, which is a lower limit.
    on_time(Duration::from_micros(6_500), serve_eight_clients);
}

/// Checks that a node serves each of eight clients a page every `turn`, although one of them asks for more.
fn serve_eight_clients(turn: Duration) {
    const PAGES: u64 = 2_400;
    const PAGE: usize = 8 << 10;
    let bytes_per_second = (8.0 * PAGE as f64 / turn.as_secs_f64()) as u64;
    let pool = limited_node(Limits { bytes_per_second: Some(bytes_per_second), cpu_milli: None });
    let info = pool.node.info().clone();
    let link = |client: u64| {
        let expected = Identity::Node(info.node);
        tcp::connect_for(ClientId(client), &Exposure::default(), &info.address, &expected, soon())
            .expect("tcp")
    };
    let session = pool.session();
    let grant = session.lease(&pool, &mut *link(0), 1).expect("a lease").remove(0);
    let (served, is_over) = ([const { AtomicU64::new(0) }; 8], AtomicBool::new(false));
    let total = || served.iter().map(|served| served.load(Ordering::Relaxed)).sum::<u64>();
    let connections = [0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7];
    std::thread::scope(|scope| {
        for client in connections {
            let (grant, served, is_over, total) = (&grant, &served[client], &is_over, &total);
            let mut link = link(client as u64 + 1);
            let pages = if client == 0 { 32 } else { 1 };
            scope.spawn(move || {
                let mut bytes = vec![1; PAGE * pages];
                while !is_over.load(Ordering::Relaxed) {
                    let ops = bytes.chunks_exact_mut(PAGE);
                    let mut ops: Vec<ReadOp<'_>> =
                        ops.map(|into| ReadOp { span: span(grant, 0, PAGE), into }).collect();
                    link.read(&mut ops, clock::now().plus_ms(60_000)).expect("a read");
                    served.fetch_add(pages as u64, Ordering::Relaxed);
                    is_over.fetch_or(total() >= PAGES, Ordering::Relaxed);
                }
                assert!(bytes.iter().all(|byte| *byte == 0));
            });
        }
    });
    let equal = total() / 8;
    for (client, served) in served.iter().enumerate().skip(1) {
        let served = served.load(Ordering::Relaxed);
        assert!(served * 10 >= equal * 8, "client {client} got {served} of {equal}");
    }
}

/// Clients have asked for what takes a quarter of an hour at this limit. The node must not wait that long when it
/// stops.
#[test]
fn node_with_limits_stops_although_clients_wait_for_them() {
    let pool = limited_node(Limits { bytes_per_second: Some(1_000_000), cpu_milli: None });
    let mut links: Vec<_> = (0..4).map(|_| pool.link(Transport::Tcp)).collect();
    let grants = pool.session().lease(&pool, &mut *links[0], 1).expect("a lease");
    let (begun, waiting) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for link in &mut links {
            let (grants, begun) = (&grants, begun.clone());
            scope.spawn(move || {
                begun.send(()).expect("somebody waits");
                // Reads again and again, until the node is gone.
                while read(&mut **link, &grants[0], 0, MIB as usize).is_ok() {}
            });
        }
        for _ in 0..4 {
            waiting.recv().expect("a reader");
        }
        drop(pool);
    });
}
