//! Published files in stripes: which of them the broker takes, when they are lost, and how shards are made again.

use super::pool::{LIFE, Pool, START, at, lost, name};
use farpool_lease::{BrokerLeases, LeaseSettings, tenant};
use farpool_wire::control::*;
use farpool_wire::limits::REGION_BYTES_MIN;
use farpool_wire::*;

const HOSTS: [&str; 5] = ["a", "b", "c", "d", "e"];
const RUN_BYTES: u64 = REGION_BYTES_MIN / 2;

/// Places of a file with one stripe of two runs with bytes and one with parity, each with its place.
fn stripe(shards: [Option<(NamedRegion, u64)>; 3]) -> Places {
    let mut adding = PlacesBuilder::default();
    for shard in shards {
        adding.push_apart(RUN_BYTES, shard).expect("fits");
    }
    let stripe =
        Stripe { data: List::new(vec![0, 1]).expect("two"), parity: List::new(vec![2]).expect("one") };
    Places { stripes: List::new(vec![stripe]).expect("one"), ..adding.finish().expect("fits") }
}

fn publish(pool: &mut Pool, places: Places) -> Result<FileId, Code> {
    let (session, secret) = (pool.proof.session, pool.proof.secret);
    let (class, replaces, copies_wanted) = (FileClass::Pinned, Replaces::Anything, 1);
    pool.ask(&PublishPlaces {
        session,
        secret,
        name: name("view"),
        class,
        replaces,
        copies_wanted,
        recipe: Bytes::default(),
        places,
    })
}

fn on_three() -> Pool {
    let mut pool = Pool::on(&HOSTS);
    publish(&mut pool, stripe([at(1, 0), at(2, 0), at(3, 0)].map(Some))).expect("published");
    pool
}

#[test]
fn stripe_is_taken_if_its_runs_lie_on_different_hosts_and_enough_of_them_are_there() {
    let mut pool = Pool::on(&["a", "b", "c", "a", "a/2"]);
    let together = [at(1, 0), at(2, 0), at(4, 0)].map(Some);
    assert_eq!(publish(&mut pool, stripe(together)), Err(Code::CopiesTogether));
    let perhaps_together = [at(5, 0), at(2, 0), at(1, 0)].map(Some);
    assert_eq!(publish(&mut pool, stripe(perhaps_together)), Err(Code::CopiesTogether));
    assert_eq!(publish(&mut pool, stripe([None, None, Some(at(3, 0))])), Err(Code::Malformed));
    assert!(publish(&mut pool, stripe([None, Some(at(2, 0)), Some(at(3, 0))])).is_ok());
    assert_eq!(pool.shown(), Ok(vec![vec![], vec![2], vec![3]]));
}

/// One node of the stripe is lost, and another has not come yet: the file seemed to be lost until it did.
#[test]
fn stripe_is_not_lost_while_nodes_of_a_broker_that_has_just_started_may_come() {
    for (gone, late) in [(1, 2), (2, 1), (1, 3), (3, 1)] {
        let mut pool = on_three();
        let durable = pool.durable.clone();
        pool.broker = BrokerLeases::start(START, LeaseSettings::default(), durable, [4; 32], &mut Vec::new());
        for node in (1..=3).filter(|node| *node != late) {
            let life = if node == gone { Incarnation(8) } else { LIFE };
            pool.offer(START, node, life);
        }
        assert_eq!(pool.shown(), Err(Code::NoNodes), "{gone} is lost, {late} is late");
        pool.offer(START, late, LIFE);
        assert!(pool.shown().is_ok(), "{gone} is lost, {late} is there");
        pool.offer(lost(), late, Incarnation(8));
        assert_eq!(pool.shown(), Err(Code::FileLost));
    }
}

#[test]
fn stripes_that_do_not_fit_the_runs_are_refused() {
    let good = || stripe([at(1, 0), at(2, 0), at(3, 0)].map(Some));
    let wrong: [fn(&mut Places); 6] = [
        |places| places.stripes[0].data = List::default(),
        |places| places.stripes[0].parity = List::default(),
        // The run with parity comes before one with bytes of the file.
        |places| (places.stripes[0].data[1], places.stripes[0].parity[0]) = (2, 1),
        |places| places.stripes[0].data[1] = 0,
        |places| places.stripes[0].parity[0] = 9,
        |places| places.runs[2].bytes -= 1,
    ];
    let mut pool = Pool::on(&HOSTS);
    for (index, spoil) in wrong.into_iter().enumerate() {
        let mut places = good();
        spoil(&mut places);
        assert_eq!(publish(&mut pool, places), Err(Code::Malformed), "{index}");
    }
    let (session, secret) = (pool.proof.session, pool.proof.secret);
    let (class, replaces) = (FileClass::Pinned, Replaces::Anything);
    let places = good();
    let publish = PublishPlaces {
        session,
        secret,
        name: name("view"),
        class,
        replaces,
        copies_wanted: 2,
        recipe: Bytes::default(),
        places,
    };
    assert_eq!(pool.ask(&publish), Err(Code::Malformed), "copies and parity are two protections");
}

#[test]
fn file_in_a_stripe_is_there_while_as_many_of_its_runs_are_as_have_bytes_of_it() {
    let mut pool = on_three();
    let later = START.plus_ms(60_000);
    pool.offer(later, 1, Incarnation(8));
    assert_eq!(pool.shown(), Ok(vec![vec![], vec![2], vec![3]]));
    let opened = pool.broker.open_places(&tenant::local(), &name("view")).expect("opened");
    assert_eq!(opened.places.bytes(), 2 * RUN_BYTES, "parity is no part of the file");
    let names = pool
        .broker
        .list_names(&tenant::local(), &ListNames { prefix: Text::default(), after: Text::default() });
    assert_eq!(
        names.names.iter().map(|file| (file.bytes, file.lost)).collect::<Vec<_>>(),
        [(2 * RUN_BYTES, false)]
    );
    // A client of a version that knows no stripes cannot compute anything.
    let extents = pool.broker.open_extents(&tenant::local(), &name("view"));
    assert_eq!(extents.map_err(|refusal| refusal.code).err(), Some(Code::FileLost));
    pool.offer(later, 3, Incarnation(8));
    assert_eq!(pool.shown(), Err(Code::FileLost));

    let mut pool = on_three();
    pool.offer(later, 3, Incarnation(8));
    let extents = pool.broker.open_extents(&tenant::local(), &name("view")).expect("all bytes are there");
    assert_eq!(extents.extents.iter().map(|extent| extent.bytes).sum::<u64>(), 2 * RUN_BYTES);
}

#[test]
fn lost_run_is_computed_on_a_host_that_has_none_of_its_stripe() {
    for lost_node in 1..=3 {
        let mut pool = on_three();
        pool.report_all_but(lost(), lost_node);
        assert_eq!(pool.listed(lost()), (1, 0, 0));
        let listed = pool.broker.list_repairs(lost(), &tenant::local());
        let shown: Vec<_> =
            listed.first.iter().map(|file| (file.copies, file.copies_wanted, file.needs_host)).collect();
        assert_eq!(shown, [(1, 2, false)]);
        for node in (1..=3).filter(|node| *node != lost_node) {
            assert_eq!(pool.next(lost(), node), None, "node {node} has a run of the stripe");
        }
        let order = pool.next(lost(), 4).expect("ordered");
        assert_eq!(
            order.signed.runs.iter().map(|run| u64::from(run.run)).collect::<Vec<_>>(),
            [lost_node - 1]
        );
        assert_eq!(order.sources.iter().map(|sources| sources.len()).collect::<Vec<_>>(), [0]);
        let [computed] = &order.computed[..] else { panic!("one run is computed") };
        assert_eq!((computed.data, computed.parity, u64::from(computed.shard)), (2, 1, lost_node - 1));
        let sources = computed.sources.iter().map(|source| {
            let region = &order.regions[source.copy.region as usize];
            assert_eq!(u64::from(source.bytes), RUN_BYTES);
            (u64::from(source.shard) + 1, region.node.0)
        });
        let expected: Vec<(u64, u64)> =
            (1..=3).filter(|node| *node != lost_node).map(|node| (node, node)).collect();
        assert_eq!(sources.collect::<Vec<_>>(), expected);
        assert_eq!(pool.next(lost(), 5), None, "another node computes it");
        assert_eq!(pool.end(lost(), &order), Ok(1));
        let nodes = (1..=3).map(|node| vec![if node == lost_node { 4 } else { node }]);
        assert_eq!(pool.shown(), Ok(nodes.collect()));
        assert_eq!(pool.listed(lost()), (0, 0, 0));
    }
}

#[test]
fn two_runs_of_a_stripe_are_never_made_on_one_host() {
    let mut pool = Pool::on(&["a", "b", "c", "d", "d"]);
    publish(&mut pool, stripe([None, Some(at(2, 0)), Some(at(3, 0))])).expect("published");
    pool.drain(2);
    // Run 0 is missing and run 1 is about to leave. Nodes 4 and 5 are on one host.
    let order = pool.next(START, 4).expect("ordered");
    assert_eq!(order.signed.runs.len(), 1);
    let other = pool.next(START, 5).expect("ordered");
    assert_ne!(order.signed.runs[0].run, other.signed.runs[0].run);
    assert_eq!(pool.end(START, &order), Ok(1));
    assert_eq!(pool.end(START, &other), Ok(0), "the host has a run of the stripe since");
    assert_eq!(pool.shown().map(|nodes| nodes[0].clone()), Ok(vec![4]));
}

/// Publishes a file of one run with bytes and two with parity, on nodes 1 to 3.
fn publish_with_two_of_parity(pool: &mut Pool) {
    let mut adding = PlacesBuilder::default();
    (1..=3).for_each(|node| adding.push_apart(RUN_BYTES, [at(node, 0)]).expect("fits"));
    let one = Stripe { data: List::new(vec![0]).expect("one"), parity: List::new(vec![1, 2]).expect("two") };
    let stripes = List::new(vec![one]).expect("one");
    publish(pool, Places { stripes, ..adding.finish().expect("fits") }).expect("published");
}

#[test]
fn host_of_a_silent_node_gets_no_other_run_of_its_stripe_while_the_node_may_come_back() {
    for comes_back_empty in [false, true] {
        let mut pool = Pool::on(&["a", "b", "c", "a", "a"]);
        publish_with_two_of_parity(&mut pool);
        (3..=5).for_each(|node| pool.report(lost(), node));
        assert_eq!(pool.listed(lost()).0, 1);
        if comes_back_empty {
            pool.offer(lost(), 1, Incarnation(8));
        }
        let order = pool.next(lost(), 4).expect("ordered");
        assert_eq!(order.signed.runs.iter().map(|run| run.run).collect::<Vec<_>>(), [0], "the host had it");
        let other = pool.next(lost(), 5);
        assert_eq!(other.is_some(), comes_back_empty, "run 0 may still be on host a");
        // The one that is listed first is there, and the other has no room beside it.
        if let Some(other) = other {
            assert_eq!(pool.end(lost(), &other), Ok(1));
            assert_eq!(pool.end(lost(), &order), Ok(0));
        }
    }
}

#[test]
fn run_on_a_drained_node_is_copied_and_not_computed() {
    let mut pool = on_three();
    pool.drain(2);
    assert_eq!(pool.listed(START), (0, 1, 0));
    let order = pool.next(START, 4).expect("ordered");
    assert_eq!((order.sources[0].len(), order.computed.len()), (1, 0));
    assert_eq!(pool.shown(), Ok(vec![vec![1], vec![2], vec![3]]));
    assert_eq!(pool.end(START, &order), Ok(1));
    assert_eq!(pool.shown(), Ok(vec![vec![1], vec![4], vec![3]]));
}

#[test]
fn drained_run_is_dropped_where_no_host_can_have_it_if_the_others_suffice() {
    let mut pool = Pool::on(&["a", "b", "c"]);
    publish(&mut pool, stripe([at(1, 0), at(2, 0), at(3, 0)].map(Some))).expect("published");
    pool.drain(2);
    assert_eq!(pool.next(START, 1), None);
    assert_eq!(pool.shown(), Ok(vec![vec![1], vec![], vec![3]]));
    let listed = pool.broker.list_repairs(START, &tenant::local());
    assert_eq!(listed.first.iter().map(|file| file.needs_host).collect::<Vec<_>>(), [true]);
    // The next node that is drained has what nobody can do without.
    pool.drain(3);
    assert_eq!(pool.next(START, 1), None);
    assert_eq!(pool.shown(), Ok(vec![vec![1], vec![], vec![3]]));
    let goes_on = DrainNode { node: name("n2"), drain: false, stop: false };
    pool.broker.drain(&tenant::local(), &goes_on).expect("known");
    let order = pool.next(START, 2).expect("ordered");
    assert_eq!(order.computed.len(), 1);
    assert_eq!(pool.end(START, &order), Ok(1));
    assert_eq!(pool.shown(), Ok(vec![vec![1], vec![2], vec![3]]));
}

#[test]
fn file_that_can_lose_no_more_hosts_comes_before_one_that_can() {
    let mut pool = Pool::on(&["a", "b", "c", "d", "e"]);
    let mut adding = PlacesBuilder::default();
    for shard in [Some(at(1, 1)), Some(at(2, 1)), None] {
        adding.push_apart(RUN_BYTES, shard).expect("fits");
    }
    // One run of data and two of parity, of which one is missing: another loss does no harm.
    let one = Stripe { data: List::new(vec![0]).expect("one"), parity: List::new(vec![1, 2]).expect("two") };
    let places = Places { stripes: List::new(vec![one]).expect("one"), ..adding.finish().expect("fits") };
    let (session, secret) = (pool.proof.session, pool.proof.secret);
    let (class, replaces, copies_wanted) = (FileClass::Pinned, Replaces::Anything, 1);
    // Its name comes first in the order of names.
    let safe = PublishPlaces {
        session,
        secret,
        name: name("a"),
        class,
        replaces,
        copies_wanted,
        recipe: Bytes::default(),
        places,
    };
    pool.ask(&safe).expect("published");
    publish(&mut pool, stripe([Some(at(1, 0)), Some(at(2, 0)), None])).expect("published");
    let order = pool.next(START, 4).expect("ordered");
    assert_eq!(order.computed.iter().map(|run| run.data).collect::<Vec<_>>(), [2]);
}
