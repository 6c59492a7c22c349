//! Published files with copies: which of them the broker takes, shows and lets go.

mod pool;
mod recipes;
mod stripes;

use farpool_lease::{BrokerLeases, LeaseSettings, NodeLeases, tenant};
use farpool_wire::control::*;
use farpool_wire::limits::REGION_BYTES_MIN;
use farpool_wire::*;
use pool::{KEY, LIFE, NODES, Pool, START, at, lost, name};

#[test]
fn copies_of_a_run_on_one_host_are_refused() {
    let mut pool = Pool::new();
    assert_eq!(pool.publish(&[&[at(2, 0), at(3, 0)]]), Err(Code::CopiesTogether));
    assert_eq!(pool.publish(&[&[at(1, 0), at(1, 1)]]), Err(Code::CopiesTogether));
    assert!(pool.publish(&[&[at(1, 0), at(2, 0)], &[at(3, 0)]]).is_ok());
    assert_eq!(pool.shown(), Ok(vec![vec![1, 2], vec![3]]));
}

#[test]
fn of_two_that_replace_the_same_file_one_does() {
    let mut pool = Pool::new();
    let first = pool.publish(&[&[at(1, 0)]]).expect("published");
    let mut replacing = |region, replaces| pool.publish_region(region, replaces, &[]);
    let second = replacing(1, Replaces::Only(first)).expect("it has the name");
    assert_eq!(replacing(1, Replaces::Only(first)), Ok(second), "a lost answer is given again");
    assert_eq!(replacing(2, Replaces::Only(first)), Err(Code::NameTaken));
    assert_eq!(replacing(2, Replaces::Nothing), Err(Code::NameTaken));
    replacing(2, Replaces::Only(second)).expect("it has the name");
    replacing(3, Replaces::Anything).expect("whatever has the name");
}

#[test]
fn file_that_replaces_a_dropped_one_is_refused() {
    let mut pool = Pool::new();
    let refused = pool.publish_region(0, Replaces::Only(FileId(7)), &[]);
    assert_eq!(refused, Err(Code::NoSuchName));
}

/// A file of 32 TiB in one region made the broker build an answer of gigabytes.
#[test]
fn runs_that_take_more_than_their_region_are_refused() {
    let mut pool = Pool::new();
    let again = |offset| (at(1, 0).0, offset);
    let overlapping = [&[again(0)][..], &[again(8)], &[again(16)]];
    assert_eq!(pool.publish(&overlapping), Err(Code::OutOfBounds));
    assert_eq!(pool.publish(&[&[again(REGION_BYTES_MIN)]]), Err(Code::OutOfBounds));
    assert!(pool.publish(&[&[again(0)], &[again(REGION_BYTES_MIN / 2)]]).is_ok());
}

#[test]
fn file_is_lost_only_when_all_copies_of_a_run_are() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(1, 0), at(2, 0)], &[at(1, 1), at(3, 0)]]).expect("published");
    let later = START.plus_ms(60_000);
    pool.offer(later, 1, Incarnation(8));
    assert_eq!(pool.shown(), Ok(vec![vec![2], vec![3]]), "a copy that is lost is not shown");
    pool.offer(later, 3, Incarnation(8));
    assert_eq!(pool.shown(), Err(Code::FileLost));
}

#[test]
fn copy_of_a_lost_node_is_ordered_from_a_node_on_another_host_than_the_copy_that_is_left() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(1, 0), at(2, 0)], &[at(1, 1), at(3, 0)]]).expect("published");
    assert_eq!(pool.listed(START), (0, 0, 0));
    assert_eq!((1..=NODES).find_map(|node| pool.next(START, node)), None, "nothing is missing");
    pool.report_all_but(lost(), 2);
    assert_eq!(pool.listed(lost()), (1, 0, 0));
    assert_eq!(pool.next(lost(), 1), None, "it has the copy that is left");
    let order = pool.next(lost(), 3).expect("node 3 is on the host of the lost node");
    assert_eq!(order.signed.runs.iter().map(|run| run.run).collect::<Vec<_>>(), [0]);
    // The node that reads gets the handle as the node that has the bytes knows it.
    let mut source = at(1, 0).0;
    source.bind(&name("view"));
    assert_eq!(order.regions.to_vec(), [source]);
    assert_eq!(pool.end(lost(), &order), Ok(1));
    assert_eq!(pool.end(lost(), &order), Ok(1), "a lost answer is given again");
    assert_eq!(pool.shown(), Ok(vec![vec![1, 3], vec![1, 3]]));
    assert_eq!(pool.listed(lost()), (0, 0, 0));
    // The lost node comes back, and has to free what it kept.
    let owned = OwnedRegion { region: RegionIndex(0), epoch: Epoch(2), owner: RegionOwner::Name(FileId(1)) };
    let mut inventory = NodeLeases::new(NodeId(2), LIFE, KEY, 4).inventory(Traffic::default(), 0);
    inventory.owned = List::new(vec![owned]).expect("one");
    let ruling = pool.broker.inventory(lost(), 2, inventory).expect("known");
    assert_eq!(ruling.drop.iter().map(|at| at.region).collect::<Vec<_>>(), [RegionIndex(0)]);
}

#[test]
fn copy_is_ordered_from_the_node_that_lies_farthest_among_those_that_are_free() {
    let mut pool = Pool::on(&["z/1", "z/2", "y/3"]);
    pool.publish(&[&[at(1, 0)]]).expect("published");
    assert_eq!(pool.next(START, 2), None, "another zone has a free node");
    assert!(pool.next(START, 3).is_some());
    // It could not make the copy, so nearer nodes may.
    let order = pool.next(START, 3).expect("ordered");
    let (region, epoch, handle) = (RegionIndex(7), Epoch(2), Handle(6));
    let report = EndRepair { order: order.signed, copied: List::default(), region, epoch, handle };
    assert_eq!(pool.broker.end_repair(START, 3, &report, &mut Vec::new()), Ok(RepairEnded { runs: 0 }));
    assert!(pool.next(START, 2).is_some());

    let mut pool = Pool::on(&["z/1", "z/2", "y/3"]);
    pool.publish(&[&[at(1, 0)]]).expect("published");
    pool.drain(3);
    assert!(pool.next(START, 2).is_some(), "no other zone takes copies");
}

#[test]
fn copies_in_a_domain_and_on_a_host_of_it_are_refused_as_they_may_be_on_one_host() {
    let mut pool = Pool::on(&["z", "z/2", "y/2"]);
    assert_eq!(pool.publish(&[&[at(1, 0), at(2, 0)]]), Err(Code::CopiesTogether));
    assert!(pool.publish(&[&[at(2, 0), at(3, 0)]]).is_ok());
}

/// The broker may have been stopped itself, and comes to old words of a node that died meanwhile.
#[test]
fn report_of_a_node_that_has_been_silent_waits_for_the_next_word_of_it() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(1, 0), at(2, 0)]]).expect("published");
    pool.drain(2);
    let order = pool.next(START, 3).expect("ordered");
    pool.fill(START, 3);
    (1..=2).for_each(|node| pool.report(lost(), node));
    let (region, epoch, handle) = (RegionIndex(7), Epoch(2), Handle(6));
    let copied = List::new(vec![0]).expect("one");
    let report = EndRepair { order: order.signed.clone(), copied, region, epoch, handle };
    let ended = pool.broker.end_repair(lost(), 3, &report, &mut Vec::new());
    assert_eq!(ended.map_err(|refusal| refusal.code), Err(Code::NotReported));
    assert_eq!(pool.shown(), Ok(vec![vec![1, 2]]));
    assert_eq!(pool.end(lost(), &order), Ok(1));
    assert_eq!(pool.shown(), Ok(vec![vec![1, 3]]));
}

#[test]
fn copy_that_could_not_be_published_is_made_later() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(2, 0)]]).expect("published");
    assert_eq!(pool.listed(START), (1, 0, 0));
    assert_eq!(pool.next(START, 3), None, "it is on the host of node 2");
    let order = pool.next(START, 1).expect("ordered");
    assert_eq!(pool.end(START, &order), Ok(1));
    assert_eq!(pool.shown(), Ok(vec![vec![2, 1]]));
}

#[test]
fn drained_node_is_read_from_and_keeps_its_place_until_another_has_the_bytes() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(1, 0), at(2, 0)]]).expect("published");
    pool.drain(2);
    assert_eq!(pool.listed(START), (0, 1, 0));
    assert_eq!((pool.next(START, 1), pool.next(START, 2)), (None, None));
    let order = pool.next(START, 3).expect("ordered");
    assert_eq!(order.sources[0].len(), 2, "both copies can be read");
    assert_eq!(pool.shown(), Ok(vec![vec![1, 2]]));
    assert_eq!(pool.end(START, &order), Ok(1));
    assert_eq!(pool.shown(), Ok(vec![vec![1, 3]]));
}

#[test]
fn drained_copy_is_dropped_where_no_host_can_have_another_and_made_again_when_one_can() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(1, 0), at(2, 0)]]).expect("published");
    pool.drain(1);
    assert_eq!(pool.next(START, 3), None, "hosts of nodes 2 and 3 are the same");
    assert_eq!(pool.shown(), Ok(vec![vec![2]]));
    assert_eq!(pool.listed(START), (1, 0, 0));
    let order = DrainNode { node: name("n1"), drain: false, stop: false };
    pool.broker.drain(&tenant::local(), &order).expect("known");
    let order = pool.next(START, 1).expect("ordered");
    assert_eq!(pool.end(START, &order), Ok(1));
    assert_eq!(pool.shown(), Ok(vec![vec![2, 1]]));
}

/// The copy that stays must be one that can be read: it may be on a node that has fallen silent.
#[test]
fn drained_copy_is_kept_while_the_other_copy_is_silent() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(1, 0), at(2, 0)]]).expect("published");
    pool.drain(1);
    let silent = START.plus_ms(u64::from(LeaseSettings::default().node_silence_ms) + 1);
    pool.report_all_but(silent, 2);
    assert_eq!(pool.next(silent, 3), None);
    assert_eq!(pool.shown(), Ok(vec![vec![1, 2]]));
}

#[test]
fn copy_of_a_file_that_was_replaced_or_has_got_its_copies_is_not_listed() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(1, 0)], &[at(1, 1)]]).expect("published");
    let order = pool.next(START, 2).expect("ordered");
    assert_eq!(order.signed.runs.len(), 2);
    assert_eq!(pool.next(START, 3), None, "another node makes these copies");
    // A new broker knows of no order, and gives it to another node. Whoever reports first is listed.
    let (settings, durable) = (LeaseSettings::default(), pool.durable.clone());
    pool.broker = BrokerLeases::start(START, settings, durable, [4; 32], &mut Vec::new());
    for node in 1..=NODES {
        pool.offer(START, node, LIFE);
        pool.report(START, node);
    }
    assert_eq!(pool.next(START, 3), None, "nodes of the former broker may still come");
    assert_eq!(pool.end(START, &order), Err(Code::NotReported));
    (1..=NODES).for_each(|node| pool.report(lost(), node));
    let other = pool.next(lost(), 3).expect("ordered");
    assert_eq!((pool.end(lost(), &order), pool.end(lost(), &other)), (Ok(2), Ok(0)));
    assert_eq!(pool.shown(), Ok(vec![vec![1, 2], vec![1, 2]]));

    let mut pool = Pool::new();
    pool.publish(&[&[at(1, 0)]]).expect("published");
    let order = pool.next(START, 2).expect("ordered");
    pool.publish(&[&[at(1, 1)]]).expect("published");
    assert_eq!(pool.end(START, &order), Ok(0));
}

#[test]
fn report_of_an_order_that_nobody_gave_or_of_a_region_in_use_is_refused() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(1, 0)]]).expect("published");
    let order = pool.next(START, 2).expect("ordered");
    let mut forged = order.clone();
    forged.signed.runs[0].run = 1;
    let mut report = EndRepair {
        order: forged.signed,
        copied: List::new(vec![0, 9]).expect("two"),
        region: RegionIndex(u32::MAX),
        epoch: Epoch(2),
        handle: Handle(6),
    };
    let code = |pool: &mut Pool, report: &EndRepair| {
        let ended = pool.broker.end_repair(START, 2, report, &mut Vec::new());
        ended.map(|ended| ended.runs).map_err(|refusal| refusal.code)
    };
    assert_eq!(code(&mut pool, &report), Err(Code::TicketForged));
    report.order = order.signed;
    assert_eq!(code(&mut pool, &report), Err(Code::StaleEpoch));
    report.region = RegionIndex(7);
    assert_eq!(
        code(&mut pool, &report),
        Err(Code::StaleEpoch),
        "the node has not shown that it has filled it"
    );
    let order = pool.next(START.plus_ms(1), 3).expect("ordered");
    report.order = order.signed;
    pool.fill(START, 3);
    let ended = pool.broker.end_repair(START, 3, &report, &mut Vec::new());
    assert_eq!(ended.map(|ended| ended.runs), Ok(1));
    let other = EndRepair { epoch: Epoch(3), ..report };
    let ended = pool.broker.end_repair(START, 3, &other, &mut Vec::new());
    assert_eq!(ended.map_err(|refusal| refusal.code), Err(Code::StaleEpoch));
}

#[test]
fn run_that_could_not_be_copied_is_ordered_again_after_a_while_and_does_not_hold_up_others() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(1, 0)], &[at(1, 1)]]).expect("published");
    let order = pool.next(START, 2).expect("ordered");
    let report = EndRepair {
        order: order.signed,
        copied: List::new(vec![1]).expect("one"),
        region: RegionIndex(7),
        epoch: Epoch(2),
        handle: Handle(6),
    };
    pool.fill(START, 2);
    assert_eq!(pool.broker.end_repair(START, 2, &report, &mut Vec::new()), Ok(RepairEnded { runs: 1 }));
    assert_eq!(pool.next(START, 2), None);
    let later = START.plus_ms(20_000);
    (1..=NODES).for_each(|node| pool.report(later, node));
    let again = pool.next(later, 2).expect("ordered");
    assert_eq!(again.signed.runs.iter().map(|run| run.run).collect::<Vec<_>>(), [0]);
}

/// A node takes back what published files have when its host needs the memory at once.
#[test]
fn copy_that_its_node_has_taken_back_is_lost_and_made_again() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(1, 0), at(2, 0)]]).expect("published");
    pool.taken_back.push((1, RegionIndex(0)));
    pool.report(START, 1);
    assert_eq!(pool.shown(), Ok(vec![vec![2]]));
    assert_eq!(pool.listed(START), (1, 0, 0));
    let order = pool.next(START, 1).expect("the node lives, and has other memory");
    assert_eq!(pool.end(START, &order), Ok(1));
    assert_eq!(pool.shown(), Ok(vec![vec![2, 1]]));
    pool.taken_back.push((2, RegionIndex(0)));
    pool.taken_back.push((1, RegionIndex(7)));
    (1..=2).for_each(|node| pool.report(START, node));
    assert_eq!((pool.shown(), pool.listed(START)), (Err(Code::FileLost), (0, 0, 1)));
}

/// The region may have been granted and published anew since it was taken back.
#[test]
fn region_that_was_taken_back_is_free_for_another_file() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(1, 0), at(2, 0)]]).expect("published");
    pool.taken_back.push((1, RegionIndex(0)));
    pool.report(START, 1);
    pool.taken_back.clear();
    let anew =
        OwnedRegion { region: RegionIndex(0), epoch: Epoch(5), owner: RegionOwner::Sealing(SessionId(9)) };
    let mut inventory = NodeLeases::new(NodeId(1), LIFE, KEY, 4).inventory(Traffic::default(), 0);
    inventory.owned = List::new(vec![anew]).expect("one");
    pool.broker.inventory(START, 1, inventory.clone()).expect("known");
    let (mut region, offset) = at(1, 0);
    region.epoch = Epoch(5);
    let file = pool.publish_as("other", &[&[(region, offset)]]).expect("published");
    let adopted = |pool: &mut Pool| {
        let ruling = pool.broker.inventory(START, 1, inventory.clone()).expect("known");
        (ruling.adopt.iter().map(|adopted| adopted.file).collect::<Vec<_>>(), ruling.drop.len())
    };
    assert_eq!(adopted(&mut pool), (vec![file], 0));
    // A broker that starts again finds the region at both epochs in its store.
    let (settings, durable) = (LeaseSettings::default(), pool.durable.clone());
    pool.broker = BrokerLeases::start(START, settings, durable, [4; 32], &mut Vec::new());
    pool.offer(START, 1, LIFE);
    assert_eq!(adopted(&mut pool), (vec![file], 0));
}

#[test]
fn two_copies_are_never_on_one_host_also_if_both_are_on_nodes_that_are_drained() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(2, 0), at(1, 0)]]).expect("published");
    pool.drain(1);
    pool.drain(2);
    let order = pool.next(START, 3).expect("node 3 is on the host of node 2");
    assert_eq!(pool.end(START, &order), Ok(1));
    assert_eq!(pool.shown(), Ok(vec![vec![1, 3]]));
}

#[test]
fn order_of_a_node_that_is_lost_is_given_to_another() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(1, 0)]]).expect("published");
    pool.next(START, 2).expect("ordered");
    assert_eq!(pool.next(START, 3), None);
    pool.report_all_but(lost(), 2);
    pool.next(lost(), 3).expect("node 2 does nothing any more");
}

#[test]
fn copies_on_a_node_that_is_about_to_end_are_not_listed() {
    let mut pool = Pool::new();
    pool.publish(&[&[at(1, 0)]]).expect("published");
    let order = pool.next(START, 2).expect("ordered");
    pool.drain(2);
    assert_eq!(pool.end(START, &order), Ok(0));
    assert_eq!(pool.shown(), Ok(vec![vec![1]]));
}
