//! Tests of published files and tables with copies on two hosts: whatever node is lost, their bytes stay readable, and
//! each row counts once.

use crate::processes::{Process, until};
use crate::programs::PATIENCE;
use crate::protected_files::Cluster;
use crate::random::Random;
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use farpool::function::{CallOptions, Caller, CallerOptions, Function};
use farpool::operators::{Agg, Query, col};
use farpool::table::{Answer, Compaction, PutOptions, TableLayout};
use farpool::{
    CreateOptions, ErrorKind, FarFile, FarTable, FileClass, IfTaken, NodeStatus, Placement, Pool,
    PoolOptions, Protection, TransportChoice,
};
use farpool_broker::LeaseSettings;
use farpool_wire::Incarnation;
use farpool_wire::control::{DrainNode, StatusReport};
use rustix::process::Signal;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const ROWS: i64 = 400_000;
pub(crate) const TRANSPORTS: [TransportChoice; 2] = [TransportChoice::Tcp, TransportChoice::Shm];
const MIRROR: PutOptions = PutOptions {
    protection: Some(Protection::Mirror),
    replace: true,
    key: None,
    layout: TableLayout::Columns,
    made_by: None,
    threads: 0,
    progress: None,
    compaction: Compaction::Auto,
    partition_by: Vec::new(),
    sort_by: Vec::new(),
};

/// Waits until all published files have their copies. A node may have been silent when they were made.
fn wait_for_copies(pool: &Pool) {
    until(pool, PATIENCE, "all copies", |_| {
        pool.repairs().is_ok_and(|repairs| repairs.endangered_files + repairs.lost_files == 0)
    });
}

/// Publishes a file with a mirror, of bytes that it returns, and waits for its copies.
fn publish(pool: &Pool, name: &str, random: &mut Random) -> Vec<u8> {
    let bytes = random.bytes(5 * MIB + 77);
    let options = CreateOptions { protection: Some(Protection::Mirror), ..CreateOptions::default() };
    let file = pool.create(name, FileClass::Pinned, options).expect("created");
    file.write_at(0, &bytes).expect("written");
    pool.publish(name, IfTaken::Refuse).expect("published");
    wait_for_copies(pool);
    bytes
}

pub(crate) fn check(pool: &Pool, name: &str, bytes: &[u8]) {
    let mut into = vec![0; bytes.len()];
    let read = pool.open(name).and_then(|file| file.read_at(0, &mut into));
    assert_eq!(read.expect("readable"), bytes.len());
    assert!(into == bytes, "{name} has the bytes that were written");
}

pub(crate) fn numbers() -> RecordBatch {
    let values = |of: fn(i64) -> i64| Arc::new((0..ROWS).map(of).collect::<Int64Array>()) as ArrayRef;
    RecordBatch::try_from_iter([("item", values(|row| row)), ("kind", values(|row| row % 7))])
        .expect("a batch")
}

fn put(pool: &Pool, name: &str) -> FarTable {
    let batch = numbers();
    let batches = [Ok::<_, Infallible>(batch.clone())];
    pool.put_table_with(name, batch.schema(), batches, &MIRROR).expect("put");
    wait_for_copies(pool);
    pool.table(name).expect("a table")
}

/// Runs a query that is wrong if a row group is missing or counts twice.
pub(crate) fn sum(table: &FarTable, placement: Placement) -> Answer {
    let query: Query = table.query().expect("known types");
    let sums = [("rows".to_owned(), Agg::Rows), ("sum".to_owned(), Agg::Sum(col("item")))];
    let answer = table.run(&query.group_by([], sums).plan().expect("a plan"), placement).expect("a result");
    let values: String =
        answer.batches[0].columns().iter().map(|column| format!("{:?};", column.slice(0, 1))).collect();
    for value in [ROWS, ROWS * (ROWS - 1) / 2] {
        assert!(values.contains(&value.to_string()), "{value} in {values}; {}", answer.report);
    }
    answer
}

/// Calls a function over a whole file where its bytes are, as a new caller does. Panics if the output is not that for
/// `bytes`.
pub(crate) fn call_over(file: &FarFile, bytes: &[u8]) {
    let caller = file.caller(CallerOptions::default()).expect("a caller");
    check_call(&caller, bytes);
}

/// Calls a function with a caller over a whole file. Panics if the output is not that for `bytes`.
pub(crate) fn check_call(caller: &Caller, bytes: &[u8]) {
    let checksum = Function::resident("checksum").expect("a function");
    let args: Vec<u8> = [0, bytes.len() as u64].into_iter().flat_map(u64::to_le_bytes).collect();
    let options = CallOptions { placement: Placement::Ship, ..CallOptions::default() };
    let called = caller.call(&checksum, &args, options).expect("called");
    assert_eq!(called.output, crc32c::crc32c(bytes).to_le_bytes());
}

#[test]
fn copies_lie_in_different_zones_so_that_the_loss_of_a_whole_zone_loses_nothing() {
    for (transport, lost) in TRANSPORTS.into_iter().flat_map(|transport| [(transport, "z"), (transport, "y")])
    {
        // Copies are made where nodes are heard of, so no node may count as silent because the machine is busy.
        let settings =
            LeaseSettings { lease_ttl_ms: 60_000, node_silence_ms: 60_000, ..LeaseSettings::default() };
        let mut cluster = Cluster::with(0, settings);
        let mut zones = vec!["z", "z", "y", "z"];
        for (number, zone) in zones.iter().enumerate() {
            cluster.start_node_at(&format!("{zone}/rack-{number}/host"));
        }
        let pool = cluster.connect(transport, Some(Protection::Mirror));
        let mut random = Random(11);
        let published = publish(&pool, "view", &mut random);
        put(&pool, "numbers");
        let spilled = pool.create("spill", FileClass::Scratch, CreateOptions::default()).expect("created");
        let bytes = random.bytes(9 * MIB);
        spilled.write_at(0, &bytes).expect("written");
        while let Some(index) = zones.iter().position(|zone| *zone == lost) {
            zones.remove(index);
            cluster.lose_node(index);
        }
        check(&pool, "view", &published);
        sum(&pool.table("numbers").expect("a table"), Placement::Ship);
        let mut into = vec![0; bytes.len()];
        assert_eq!(spilled.read_at(0, &mut into).expect("readable"), bytes.len());
        assert!(into == bytes, "the spilled bytes are those that were written");
    }
}

/// Starts a node on a host of its own.
fn start_node(name: &str, broker: &Process) -> Process {
    let fixed = ["--memory", "128MiB", "--region-size", "4MiB", "--no-reserve", "--broker", &broker.ready];
    Process::start(&[&["node", "--name", name, "--host-label", name][..], &fixed[..]].concat())
}

/// Broker, nodes on hosts of their own, and a session that gives requests five minutes.
fn processes<const NODES: usize>(transport: TransportChoice, ttl: &str) -> (Process, [Process; NODES], Pool) {
    let broker = Process::start(&["broker", "--listen", "127.0.0.1:0", "--ttl", ttl]);
    let nodes = std::array::from_fn(|index| start_node(["one", "two", "three", "four"][index], &broker));
    let options = PoolOptions { transport, request_timeout_ms: 300_000, ..PoolOptions::default() };
    let pool = Pool::connect_with(&broker.ready, options).expect("a session");
    until(&pool, PATIENCE, "all nodes", |status| status.nodes.len() == NODES);
    (broker, nodes, pool)
}

#[test]
fn node_that_stalls_is_not_waited_for_where_another_has_a_copy() {
    for (transport, stalled) in TRANSPORTS.into_iter().flat_map(|transport| [(transport, 0), (transport, 1)])
    {
        let (_broker, nodes, pool) = processes::<2>(transport, "60s");
        let bytes = publish(&pool, "view", &mut Random(13));
        let table = put(&pool, "numbers");
        let view = pool.open("view").expect("published");
        let caller = view.caller(CallerOptions::default()).expect("a caller");
        check_call(&caller, &bytes);
        nodes[stalled].signal(Signal::STOP);
        let begun = Instant::now();
        for placement in Placement::FIXED.into_iter().chain([Placement::Auto]) {
            sum(&table, placement);
        }
        check(&pool, "view", &bytes);
        call_over(&view, &bytes);
        check_call(&caller, &bytes);
        // Anything that had waited for the whole time of a request would have taken 300 s.
        assert!(begun.elapsed() < Duration::from_secs(150), "{transport:?}: {:?}", begun.elapsed());
        nodes[stalled].signal(Signal::CONT);
    }
}

/// The client has not heard of the copies that were made after the first node was lost.
#[test]
fn copies_that_were_made_again_are_found_when_a_second_node_stalls() {
    for transport in TRANSPORTS {
        let (broker, nodes, pool) = processes::<3>(transport, "3s");
        let bytes = publish(&pool, "view", &mut Random(19));
        let table = put(&pool, "numbers");
        let view = pool.open("view").expect("published");
        let caller = view.caller(CallerOptions::default()).expect("a caller");
        let use_all = || {
            for placement in Placement::FIXED {
                sum(&table, placement);
            }
            let mut into = vec![0; bytes.len()];
            assert_eq!(view.read_at(0, &mut into).expect("readable"), bytes.len());
            assert!(into == bytes, "{transport:?}: the view has the bytes that were written");
            check_call(&caller, &bytes);
        };
        let life = |status: &StatusReport| {
            let is_it = |node: &&NodeStatus| &*node.info.name == "one" && node.alive;
            status.nodes.iter().find(is_it).map(|node| node.info.incarnation)
        };
        let before = life(&pool.status().expect("a status"));
        nodes[0].signal(Signal::KILL);
        use_all();
        // The broker knows what the node has lost once it is back.
        let _again = start_node("one", &broker);
        let is_back = |now: Option<Incarnation>| now.is_some() && now != before;
        until(&pool, PATIENCE, "the node is back", |status| is_back(life(status)));
        wait_for_copies(&pool);
        nodes[1].signal(Signal::STOP);
        let begun = Instant::now();
        use_all();
        // Anything that had waited for the whole time of a request would have taken 300 s.
        assert!(begun.elapsed() < Duration::from_secs(150), "{transport:?}: {:?}", begun.elapsed());
        nodes[1].signal(Signal::CONT);
    }
}

#[test]
fn table_is_put_on_other_nodes_while_one_stalls() {
    let parity = PutOptions { protection: Some(Protection::Rs { data: 2, parity: 1 }), ..MIRROR };
    for (transport, stalled) in
        TRANSPORTS.into_iter().flat_map(|transport| (0..4).map(move |at| (transport, at)))
    {
        let (_broker, nodes, pool) = processes::<4>(transport, "60s");
        let options = if stalled % 2 == 0 { &MIRROR } else { &parity };
        put(&pool, "numbers");
        let (puts, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let putting = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let batch = numbers();
                    let batches = [Ok::<_, Infallible>(batch.clone())];
                    pool.put_table_with("numbers", batch.schema(), batches, options).expect("put");
                    puts.fetch_add(1, Ordering::Relaxed);
                }
            });
            let more = |count: usize| {
                let from = puts.load(Ordering::Relaxed);
                while puts.load(Ordering::Relaxed) < from + count && !putting.is_finished() {
                    assert!(begun.elapsed() < PATIENCE, "{transport:?}: a table is put");
                    std::thread::park_timeout(Duration::from_millis(1));
                }
            };
            more(1);
            // The node stalls at any moment of a put.
            nodes[stalled].signal(Signal::STOP);
            more(3);
            is_over.store(true, Ordering::Relaxed);
            putting.join().expect("put");
        });
        // Anything that had waited for the whole time of a request would have taken 300 s.
        assert!(begun.elapsed() < Duration::from_secs(150), "{transport:?}: {:?}", begun.elapsed());
        sum(&pool.table("numbers").expect("a table"), Placement::Ship);
        nodes[stalled].signal(Signal::CONT);
    }
}

#[test]
fn table_is_put_once_the_only_node_goes_on() {
    for transport in TRANSPORTS {
        let (_broker, nodes, pool) = processes::<1>(transport, "60s");
        let single = PutOptions { protection: Some(Protection::None), ..MIRROR };
        std::thread::scope(|scope| {
            let putting = scope.spawn(|| {
                for _ in 0..3 {
                    let batch = numbers();
                    let batches = [Ok::<_, Infallible>(batch.clone())];
                    pool.put_table_with("numbers", batch.schema(), batches, &single).expect("put");
                }
            });
            while !putting.is_finished() {
                nodes[0].signal(Signal::STOP);
                std::thread::park_timeout(Duration::from_secs(2));
                nodes[0].signal(Signal::CONT);
                std::thread::park_timeout(Duration::from_millis(20));
            }
            putting.join().expect("put");
        });
        sum(&pool.table("numbers").expect("a table"), Placement::Ship);
    }
}

/// The short time that a node has where another has a copy must not make an error of slowness.
#[test]
fn copies_that_are_all_slow_are_waited_for() {
    for transport in TRANSPORTS {
        let (_broker, nodes, pool) = processes::<2>(transport, "60s");
        let bytes = publish(&pool, "view", &mut Random(17));
        let table = put(&pool, "numbers");
        let view = pool.open("view").expect("published");
        for placement in Placement::FIXED {
            nodes.iter().for_each(|node| node.signal(Signal::STOP));
            std::thread::scope(|scope| {
                let reading = scope.spawn(|| check(&pool, "view", &bytes));
                let asking = scope.spawn(|| sum(&table, placement));
                let calling = scope.spawn(|| call_over(&view, &bytes));
                std::thread::park_timeout(Duration::from_secs(4));
                nodes.iter().for_each(|node| node.signal(Signal::CONT));
                reading.join().expect("read");
                asking.join().expect("answered");
                calling.join().expect("called");
            });
        }
    }
}

#[test]
fn file_published_with_a_mirror_is_read_whichever_node_is_lost() {
    for (transport, lost) in TRANSPORTS.into_iter().flat_map(|transport| [(transport, 0), (transport, 1)]) {
        let mut cluster = Cluster::new(2);
        let (writer, reader) = (cluster.connect(transport, None), cluster.connect(transport, None));
        let bytes = publish(&writer, "view", &mut Random(7));
        let opened = reader.open("view").expect("published");
        check(&reader, "view", &bytes);
        cluster.lose_node(lost);
        let mut into = vec![0; bytes.len()];
        assert_eq!(opened.read_at(0, &mut into).expect("the other copy"), bytes.len());
        assert!(into == bytes);
        check(&cluster.connect(transport, None), "view", &bytes);
        check(&writer, "view", &bytes);
    }
}

#[test]
fn table_with_a_mirror_is_queried_in_every_placement_whichever_node_is_lost() {
    for (transport, lost) in TRANSPORTS.into_iter().flat_map(|transport| [(transport, 0), (transport, 1)]) {
        let mut cluster = Cluster::new(2);
        let pool = cluster.connect(transport, None);
        let table = put(&pool, "numbers");
        let groups = table.row_groups().len();
        assert!(groups > 2);
        assert_eq!(
            sum(&table, Placement::Ship).report.shipped,
            groups,
            "each group is in one region of a node"
        );
        cluster.lose_node(lost);
        for placement in Placement::FIXED.into_iter().chain([Placement::Auto]) {
            sum(&table, placement);
        }
        // Once a session knows of the loss, every row group is run beside its other copy.
        let other = cluster.connect(transport, None);
        let table = other.table("numbers").expect("a table");
        sum(&table, Placement::Ship);
        assert_eq!(sum(&table, Placement::Ship).report.shipped, groups);
        let rows: usize =
            table.read(None, None).expect("a reader").map(|batch| batch.expect("rows").num_rows()).sum();
        assert_eq!(rows as i64, ROWS);
    }
}

#[test]
fn function_is_called_at_the_other_copy_when_the_node_is_lost() {
    for transport in TRANSPORTS {
        let mut cluster = Cluster::new(2);
        let pool = cluster.connect(transport, None);
        let bytes = publish(&pool, "view", &mut Random(11));
        let view = pool.open("view").expect("published");
        let caller = view.caller(CallerOptions::default()).expect("a caller");
        check_call(&caller, &bytes);
        // Loses the node that served the call.
        let nodes = pool.status().expect("a status").nodes;
        let serves = |node: &&NodeStatus| *node.info.name == *caller.nodes()[0].0;
        let at = nodes.iter().find(serves).expect("known").info.address.to_string();
        cluster.lose_node((0..2).position(|index| cluster.address(index) == at).expect("there"));
        for _ in 0..3 {
            check_call(&caller, &bytes);
        }
        call_over(&view, &bytes);
    }
}

#[test]
fn queries_and_reads_under_way_go_on_when_a_node_is_lost() {
    for transport in TRANSPORTS {
        let mut cluster = Cluster::new(3);
        let pool = cluster.connect(transport, None);
        let bytes = publish(&pool, "view", &mut Random(9));
        let table = put(&pool, "numbers");
        let (is_over, done) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|threads| {
            for placement in Placement::FIXED {
                let (table, is_over, done) = (&table, &is_over, &done);
                threads.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        sum(table, placement);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            threads.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    check(&pool, "view", &bytes);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
            let waits_for = |more: usize| {
                let (from, begun) = (done.load(Ordering::Relaxed), Instant::now());
                while done.load(Ordering::Relaxed) < from + more && begun.elapsed() < Duration::from_secs(120)
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
            };
            waits_for(8);
            cluster.lose_node(1);
            waits_for(16);
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(done.into_inner() >= 24, "operations went on");
    }
}

/// Waits until every published file has its copies, on nodes that stay.
pub(crate) fn all_copied(pool: &Pool) {
    let begun = Instant::now();
    loop {
        let listed = pool.repairs().expect("the broker answers");
        if listed.endangered_files + listed.leaving_files + listed.lost_files == 0 {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "copies are made: {listed:?}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// Loses a node, and waits until what it had was made again elsewhere.
pub(crate) fn lose_and_copy(cluster: &mut Cluster, pool: &Pool, lost: usize) {
    lose_look_and_copy(cluster, pool, lost, || {});
}

/// Like [`lose_and_copy`]. Calls `look` before copies are made.
pub(crate) fn lose_look_and_copy(cluster: &mut Cluster, pool: &Pool, lost: usize, look: impl FnOnce()) {
    let lives = |status: &StatusReport| status.nodes.iter().filter(|node| node.alive).count();
    let before = lives(&pool.status().expect("a status"));
    cluster.lose_node(lost);
    look();
    // Copies on a node count as lost as soon as the node does: no lease lasts as long here.
    until(pool, PATIENCE, "the loss is seen", |status| lives(status) < before);
    all_copied(pool);
}

/// Checks the published file `view` and the table `numbers` in sessions, such as one that has seen a loss and one that
/// has not.
pub(crate) fn check_all(pools: &[&Pool], bytes: &[u8]) {
    for pool in pools {
        check(pool, "view", bytes);
        let table = pool.table("numbers").expect("a table");
        for placement in Placement::FIXED {
            sum(&table, placement);
        }
    }
}

/// Two of four nodes are lost one after the other, which is more than two copies survive by themselves.
#[test]
fn copies_that_are_lost_with_a_node_are_made_again_before_the_next_is_lost() {
    for transport in TRANSPORTS {
        let mut cluster = Cluster::new(4);
        let pool = cluster.connect(transport, None);
        let bytes = publish(&pool, "view", &mut Random(13));
        put(&pool, "numbers");
        all_copied(&pool);
        for lost in [1, 0] {
            lose_and_copy(&mut cluster, &pool, lost);
        }
        check_all(&[&pool, &cluster.connect(transport, None)], &bytes);
    }
}

#[test]
fn drained_node_gives_its_copies_to_others_and_nobody_notices() {
    for transport in TRANSPORTS {
        let cluster = Cluster::new(3);
        let pool = cluster.connect(transport, None);
        let bytes = publish(&pool, "view", &mut Random(17));
        let one_copy = CreateOptions { protection: Some(Protection::None), ..CreateOptions::default() };
        let single = pool.create("single", FileClass::Pinned, one_copy).expect("created");
        single.write_at(0, &bytes).expect("written");
        pool.publish("single", IfTaken::Refuse).expect("published");
        let table = put(&pool, "numbers");
        for number in 1..=3 {
            let node = farpool_wire::Name::new(format!("n{number}")).expect("a name");
            let order = |drain| DrainNode { node: node.clone(), drain, stop: false };
            pool.drain(&order(true)).expect("ordered");
            let begun = Instant::now();
            let named = || {
                let nodes = pool.status().expect("a status").nodes;
                let it = nodes.iter().find(|status| status.info.name == node).expect("known").clone();
                (it.draining, it.counts.named)
            };
            while named() != (true, 0) {
                assert!(begun.elapsed() < PATIENCE, "the node becomes empty: {:?}", pool.repairs());
                check(&pool, "view", &bytes);
                check(&pool, "single", &bytes);
                sum(&table, Placement::Ship);
            }
            pool.drain(&order(false)).expect("ordered");
            all_copied(&pool);
        }
    }
}

#[test]
fn mirror_is_refused_where_the_pool_has_one_host_and_for_files_of_caches() {
    let cluster = Cluster::new(1);
    let pool = cluster.connect(TransportChoice::Auto, None);
    let options = CreateOptions { protection: Some(Protection::Mirror), ..CreateOptions::default() };
    let Err(error) = pool.create("view", FileClass::Pinned, options) else { panic!("created") };
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("needs memory nodes on 2 hosts, and the pool has 1"), "{error}");
    let batch = numbers();
    let put = pool.put_table_with("numbers", batch.schema(), [Ok::<_, Infallible>(batch)], &MIRROR);
    let error = put.expect_err("one host");
    assert!(error.to_string().contains("needs memory nodes on 2 hosts"), "{error}");
    let local = CreateOptions { protection: Some(Protection::Local), ..CreateOptions::default() };
    for (class, options) in [(FileClass::Cache, options), (FileClass::Pinned, local)] {
        let Err(error) = pool.create("other", class, options) else { panic!("created") };
        assert!(error.to_string().contains("is not possible for files of class"), "{error}");
    }
}
