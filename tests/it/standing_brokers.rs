//! Tests of several brokers that elect a leader through a real etcd cluster. Brokers are killed, paused and cut off,
//! and so are etcd's members.

#[path = "../../crates/broker/tests/contract/mod.rs"]
mod contract;

use crate::certificates::{Ca, Issued, Wish};
use crate::etcd::{Cluster, Way};
use crate::on_time::on_time;
use crate::processes::{Process, until};
use crate::programs::{PATIENCE, reserved_address};
use contract::{conformance, load};
use farpool::{CreateOptions, FarFile, FileClass, IfTaken, Pool, PoolOptions, Protection};
use farpool_broker::election::{Electorate, Leadership, Victory};
use farpool_broker::stores::Store;
use farpool_etcd::{Etcd, EtcdAddress, EtcdTls};
use farpool_lease::broker::StateChange;
use farpool_wire::Term;
use rustix::process::Signal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// Duration in seconds of a lead that no test outlives, even on a busy machine.
const LASTING_SECONDS: u64 = 3_600;

fn etcd(cluster: &Cluster, lasts_seconds: u64) -> Etcd {
    let address = EtcdAddress::parse(&cluster.url()).expect("of etcd").expect("an address");
    Etcd::new(&address, None, "test").expect("no TLS").lasts_seconds(lasts_seconds)
}

/// Stands for election until it wins, which it does as soon as there is no leader.
fn win(etcd: &Etcd) -> (Box<dyn Leadership>, Box<dyn Store>) {
    let begun = Instant::now();
    loop {
        if let Ok(Some(Victory { lead, store })) = etcd.campaign() {
            return (lead, store);
        }
        assert!(begun.elapsed() < PATIENCE, "the lead is not to be had");
        std::thread::park_timeout(Duration::from_millis(50));
    }
}

#[test]
fn etcd_store_keeps_the_contract_and_the_next_leader_loads_the_same() {
    let cluster = Cluster::start(1);
    let (one, other) = (etcd(&cluster, LASTING_SECONDS), etcd(&cluster, LASTING_SECONDS));
    let (mut lead, mut store) = win(&one);
    let expected = conformance(&mut *store);
    assert!(other.campaign().expect("etcd answers").is_none(), "one leads");
    assert!(lead.keep().expect("etcd answers"));
    lead.resign();
    assert!(!lead.keep().expect("etcd answers"), "a lead that was given up is over");
    let (_lead, store) = win(&other);
    assert_eq!(load(&*store), expected);
}

#[test]
fn damaged_keys_in_etcd_are_refused_with_what_to_do() {
    let cluster = Cluster::start(1);
    let etcd = etcd(&cluster, LASTING_SECONDS);
    let (_lead, mut store) = win(&etcd);
    let named = |text: &str, id| StateChange::Name(contract::name(text), contract::file(id, 2));
    store
        .commit(&[StateChange::Term(Term(1)), StateChange::Key([7; 32]), named("a", 1), named("b", 2)])
        .expect("it leads");
    let expected = load(&*store);
    let key = |record: &str| format!("farpool/{record}");
    let whole = |record: &str| (key(record), cluster.value(&key(record)));
    let records = ["meta/term", "meta/key", "meta/sum", "meta/format", "files/a", "files/b"].map(whole);
    for (damaged, value) in &records {
        let other =
            records.iter().find(|(key, _)| key != damaged && !key.ends_with("format")).expect("another");
        // Each damage of the record: the value of another record, an empty value, half of the value, and no record.
        for damage in [Some(&*other.1), Some(""), Some(&value[..value.len() / 8 * 4]), None] {
            match damage {
                Some(damage) => cluster.put(damaged, damage),
                None => cluster.delete(damaged),
            }
            let error = store.load().expect_err("a damaged key").to_string();
            let is_said = error.contains("damaged") && error.contains("snapshot");
            assert!(is_said || error.contains("has format"), "{damaged}: {error}");
        }
        cluster.put(damaged, value);
        assert_eq!(load(&*store), expected, "{damaged} is whole again");
    }
    cluster.put("farpool/files/c", &records[4].1);
    let error = store.load().expect_err("one key more").to_string();
    assert!(error.contains("is that of \"files/a\""), "{error}");
}

#[test]
fn leader_that_lost_its_lead_writes_nothing_whatever_it_believes() {
    let cluster = Cluster::start(1);
    let (one, other) = (etcd(&cluster, LASTING_SECONDS), etcd(&cluster, LASTING_SECONDS));
    let (mut first, mut store) = win(&one);
    store.commit(&[StateChange::Term(Term(7))]).expect("it leads");
    // The leader's lease lives on, but its key is deleted, and created again by another broker.
    cluster.revoke_lead("farpool");
    let error = store.commit(&[StateChange::Term(Term(8))]).expect_err("nobody leads");
    assert!(error.to_string().contains("this broker lost the leadership"), "{error}");
    let (_lead, mut second) = win(&other);
    second.commit(&[StateChange::Term(Term(9))]).expect("it leads");
    store.commit(&[StateChange::Term(Term(10))]).expect_err("another leads");
    assert_eq!(load(&*second).term, Term(9));
    assert!(!first.keep().expect("etcd answers"), "it hears of it, though its lease lives");
}

#[test]
fn lead_without_a_sign_of_life_goes_to_another() {
    let cluster = Cluster::start(1);
    let (one, other) = (etcd(&cluster, 2), etcd(&cluster, 2));
    let (mut lead, mut store) = win(&one);
    let (_next, _) = win(&other);
    assert!(!lead.keep().expect("etcd answers"));
    store.commit(&[StateChange::Term(Term(3))]).expect_err("another leads");
}

#[test]
fn change_of_etcds_own_leader_prolongs_the_lead_of_one_that_lives_and_of_nobody_else() {
    on_time(Duration::from_secs(6), |lasts| {
        let mut cluster = Cluster::start(3);
        let [one, other] = [(); 2].map(|()| etcd(&cluster, lasts.as_secs()));
        let (mut lead, _store) = win(&one);
        let killed = cluster.kill_leader();
        // No request is answered until etcd has elected another leader among its members.
        let begun = Instant::now();
        while lead.keep().is_err() || other.campaign().is_err() {
            assert!(begun.elapsed() < PATIENCE, "etcd does not answer");
        }
        let begun = Instant::now();
        while begun.elapsed() < lasts {
            assert!(lead.keep().expect("etcd answers"), "it lives");
            assert!(other.campaign().expect("etcd answers").is_none(), "one leads");
            std::thread::park_timeout(Duration::from_millis(200));
        }
        cluster.start_member(killed);
        cluster.await_writes();
        cluster.kill_leader();
        let _next = win(&other);
        assert_eq!(cluster.leases(), 2, "the lease of the one that was given up lives on");
        assert!(!lead.keep().expect("etcd answers"), "another leads");
    });
}

#[test]
fn cluster_that_speaks_tls_is_led_by_whom_it_trusts_and_trusted_only_if_its_authority_is() {
    let ca = Ca::new();
    let cluster = Cluster::start_tls(&ca);
    let address = EtcdAddress::parse(&cluster.url()).expect("of etcd").expect("an address");
    let with = |trusted: &Ca, own: &Ca| {
        let Issued { cert, key } = own.issue(&Wish { names: &["broker.test"], days: (-1, 1) });
        let identity = Some((cert.into_bytes(), key.into_bytes()));
        let tls = EtcdTls { ca: trusted.pem.clone().into_bytes(), identity };
        Etcd::new(&address, Some(&tls), "test").expect("good certificates").lasts_seconds(LASTING_SECONDS)
    };
    let (_lead, mut store) = win(&with(&ca, &ca));
    store.commit(&[StateChange::Term(Term(5))]).expect("it leads");
    assert_eq!(load(&*store).term, Term(5));
    let other = Ca::new();
    for (trusted, own) in [(&other, &ca), (&ca, &other)] {
        let error = with(trusted, own).campaign().err().expect("no trust").to_string();
        assert!(error.contains("etcd at https://"), "{error}");
    }
    let error = Etcd::new(&address, None, "test").err().expect("nobody to trust").to_string();
    assert!(error.contains("etcds:// needs the certificate of the CA"), "{error}");
}

#[test]
fn address_of_a_cluster_is_read_with_or_without_a_prefix_or_refused_by_what_is_wrong_with_it() {
    let of = |text: &str| EtcdAddress::parse(text).expect("of etcd");
    let address = of("etcds://a:1,b:2/pools/red/").expect("an address");
    let members = vec!["a:1".to_owned(), "b:2".to_owned()];
    assert_eq!(address, EtcdAddress { members, prefix: "pools/red".to_owned(), is_tls: true });
    assert_eq!(of("etcd://a:1").expect("an address").prefix, "farpool");
    for (text, wrong) in
        [("etcd://a", "\"a\""), ("etcd://a:1,b:99999", "b:99999"), ("etcd://", "\"\""), ("etcd://:1", ":1")]
    {
        let error = of(text).expect_err("no address");
        assert!(error.contains(wrong) && error.contains("etcd://HOST:PORT"), "{text}: {error}");
    }
    assert!(EtcdAddress::parse("broker.redb").is_none());
}

/// Three brokers, each with a proxy of its own to each of three etcd members, and two nodes.
struct Stage {
    cluster: Cluster,
    brokers: Vec<Standing>,
    url: String,
    _nodes: Vec<Process>,
}

struct Standing {
    process: Option<Process>,
    listen: String,
    ways: Vec<Way>,
}

impl Standing {
    fn start(&mut self) {
        let members: Vec<String> = self.ways.iter().map(|way| way.address.to_string()).collect();
        let store = format!("etcd://{}", members.join(","));
        let args = ["broker", "--listen", &self.listen, "--store", &store, "--ttl", "2s", "--grace", "1s"];
        self.process = Some(Process::start(&[&args[..], &["--failover-timeout", "2s"]].concat()));
    }

    /// Reports whether this broker leads, by connecting to it alone: only the leader opens a session.
    fn leads(&self) -> bool {
        let options =
            PoolOptions { request_timeout_ms: 500, broker_patience_ms: 0, ..PoolOptions::default() };
        Pool::connect_with(&format!("farpool://{}", self.listen), options).is_ok()
    }
}

impl Stage {
    fn new() -> Stage {
        let cluster = Cluster::start(3);
        let ways = || cluster.members().into_iter().map(Way::to).collect();
        let standing = |_| Standing { process: None, listen: reserved_address().to_string(), ways: ways() };
        let mut brokers: Vec<Standing> = (0..3).map(standing).collect();
        brokers.iter_mut().for_each(Standing::start);
        let addresses: Vec<&str> = brokers.iter().map(|broker| broker.listen.as_str()).collect();
        let url = format!("farpool://{}", addresses.join(","));
        let node = |name: &str| {
            let fixed = ["node", "--memory", "64MiB", "--region-size", "1MiB", "--no-reserve"];
            Process::start(&[&fixed[..], &["--name", name, "--host-label", name, "--broker", &url]].concat())
        };
        let nodes = vec![node("n0"), node("n1")];
        Stage { cluster, brokers, url, _nodes: nodes }
    }

    fn connect(&self) -> Pool {
        let options = PoolOptions {
            request_timeout_ms: 5_000,
            broker_patience_ms: PATIENCE.as_millis() as u64,
            protection: Some(Protection::None),
            ..PoolOptions::default()
        };
        Pool::connect_with(&self.url, options).expect("a session")
    }

    /// Returns the index of the broker that leads.
    fn leader(&self) -> usize {
        let begun = Instant::now();
        loop {
            let alive = self.brokers.iter().enumerate().filter(|(_, broker)| broker.process.is_some());
            if let Some((index, _)) = alive.into_iter().find(|(_, broker)| broker.leads()) {
                return index;
            }
            assert!(begun.elapsed() < PATIENCE, "nobody leads");
        }
    }
}

/// Thread that reads and writes a file without a pause until it is told to end. It ends early if an operation fails.
struct Load {
    is_over: Arc<AtomicBool>,
    operations: Arc<AtomicU64>,
    thread: JoinHandle<Result<(), String>>,
}

impl Load {
    fn begin(file: FarFile) -> Load {
        let (is_over, operations) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (over, done) = (Arc::clone(&is_over), Arc::clone(&operations));
        let thread = std::thread::spawn(move || {
            let (mut bytes, mut back) = (vec![0; 8192], vec![0; 8192]);
            for round in 0u64.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                bytes.fill(round as u8);
                let offset = round * 8192 % (2 * MIB);
                file.write_at(offset, &bytes).map_err(|error| format!("write {round}: {error}"))?;
                file.read_at(offset, &mut back).map_err(|error| format!("read {round}: {error}"))?;
                if back != bytes {
                    return Err(format!("wrong bytes in round {round}"));
                }
                done.fetch_add(2, Ordering::Relaxed);
            }
            Ok(())
        });
        Load { is_over, operations, thread }
    }

    fn end(self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("it does not panic").expect("no operation fails");
        self.operations.load(Ordering::Relaxed)
    }
}

/// Checks the operations that need a broker: memory can be leased, and names be published, opened and dropped.
fn check_broker(pool: &Pool, round: usize) {
    let name = format!("file {round}");
    let file = pool.create(&name, FileClass::Pinned, CreateOptions::default()).expect("created");
    file.write_at(0, &vec![round as u8; MIB as usize]).expect("memory is leased");
    pool.publish(&name, IfTaken::Refuse).expect("published");
    let mut back = vec![0; MIB as usize];
    pool.open(&name).expect("found").read_at(0, &mut back).expect("read");
    assert!(back.iter().all(|byte| *byte == round as u8), "round {round}");
    if let Some(before) = round.checked_sub(1) {
        pool.delete(&format!("file {before}")).expect("dropped");
    }
}

#[test]
fn brokers_killed_paused_and_isolated_in_turn_cost_no_data_operation_and_no_name() {
    let mut stage = Stage::new();
    let pool = stage.connect();
    let scratch = pool.create("scratch", FileClass::Scratch, CreateOptions::default()).expect("created");
    scratch.write_at(0, &vec![0; 2 * MIB as usize]).expect("written");
    let load = Load::begin(scratch);
    let mut term = pool.status().expect("a status").term;
    check_broker(&pool, 0);
    for round in 1..7 {
        let leader = stage.leader();
        match round % 3 {
            0 => drop(stage.brokers[leader].process.take().map(Process::kill)),
            1 => stage.brokers[leader].process.as_ref().expect("it runs").signal(Signal::STOP),
            _ => stage.brokers[leader].ways.iter().for_each(Way::isolate),
        }
        check_broker(&pool, round);
        let next = pool.status().expect("a status").term;
        assert!(next > term, "round {round}: another leads, in a term of its own");
        term = next;
        match round % 3 {
            0 => stage.brokers[leader].start(),
            1 => stage.brokers[leader].process.as_ref().expect("it runs").signal(Signal::CONT),
            _ => stage.brokers[leader].ways.iter().for_each(Way::mend),
        }
        // The old leader returns and stands by. It may lead again after the new one has resigned, but never while that
        // leads.
        until(&pool, PATIENCE, "both nodes have come to the new leader", |status| {
            status.nodes.len() == 2 && status.nodes.iter().all(|node| node.alive)
        });
    }
    assert!(load.end() > 100, "data moved all the while");
}

#[test]
fn etcd_members_killed_and_paused_cost_no_data_operation_and_the_pool_goes_on() {
    let mut stage = Stage::new();
    let pool = stage.connect();
    let scratch = pool.create("scratch", FileClass::Scratch, CreateOptions::default()).expect("created");
    scratch.write_at(0, &vec![0; 2 * MIB as usize]).expect("written");
    let load = Load::begin(scratch);
    check_broker(&pool, 0);
    for round in 1..4 {
        let member = round % 3;
        stage.cluster.signal(member, Signal::STOP);
        check_broker(&pool, 2 * round - 1);
        stage.cluster.signal(member, Signal::CONT);
        stage.cluster.await_writes();
        stage.cluster.kill(member);
        check_broker(&pool, 2 * round);
        stage.cluster.start_member(member);
        stage.cluster.await_writes();
    }
    // There is no leader without etcd. Leases that sessions hold go on working.
    (0..3).for_each(|member| stage.cluster.kill(member));
    let before = load.operations.load(Ordering::Relaxed);
    let gone = Instant::now();
    while gone.elapsed() < Duration::from_secs(5) {
        std::thread::park_timeout(Duration::from_millis(100));
    }
    assert!(load.operations.load(Ordering::Relaxed) > before + 100, "leases are renewed at nodes");
    (0..3).for_each(|member| stage.cluster.start_member(member));
    stage.cluster.await_writes();
    check_broker(&pool, 7);
    load.end();
}
