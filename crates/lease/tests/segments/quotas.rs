//! Limits of tenants on what nodes copy into segments.

use super::*;
use crate::schedule::run_one;
use farpool_lease::Quotas;
use farpool_lease::node::RANGE_SHARE;
use farpool_wire::ids::TENANT_ADMIN;
use farpool_wire::limits::{PENDING_RANGES_MAX, REGION_BYTES_MAX};

/// Client of tenant blue.
const BLUE: usize = 2;
/// Ranges of the longest length that a segment has.
const RANGES: u64 = RANGE_SHARE;

/// Has a node copy a range of the longest length out of a region that blue leases there.
fn fill(world: &mut World<'_>, index: usize) -> Result<(), Refusal> {
    let proof = world.clients[BLUE].proof.clone().expect("a session");
    let RegionAt { region, epoch } = world.clients[BLUE].leased[&index].clone();
    let bytes = (REGION_BYTES_MIN / RANGE_SHARE) as u32;
    let seal = SealRanges {
        session: proof.session,
        secret: proof.secret,
        number: world.fresh(),
        ranges: List::new(vec![LeasedRange { region, epoch, offset: 0, bytes }]).expect("one"),
        given_up: List::default(),
    };
    let node = &mut world.nodes[index];
    let (mut actions, mut handles) = (Vec::new(), node.handles);
    let next = || {
        handles += 1;
        Handle(handles)
    };
    let blue = World::tenant(BLUE);
    let begun = node.leases.begin_filling(Some(&blue), &seal, REGION_BYTES_MIN, next, &mut actions);
    node.handles = handles;
    node.carry_out(&actions);
    node.leases.end_filling(Some(&blue), &seal, &begun?, &[7]).map(drop)
}

/// Has a node report to the broker and follow what it answers.
fn report(world: &mut World<'_>, index: usize) {
    let now = world.now();
    world.broker.tick(now);
    let node = &mut world.nodes[index];
    let mut actions = Vec::new();
    let ruling = world.broker.segments(node.connection, &node.leases.segment_report()).expect("joined");
    node.leases.rule_segments(&ruling, &mut actions);
    let inventory = node.leases.inventory(Traffic::default(), 0);
    let ruling = world.broker.inventory(now, node.connection, inventory).expect("joined");
    node.leases.rule(now, &ruling, &mut actions);
    node.carry_out(&actions);
}

#[test]
fn tenant_that_has_used_up_its_quota_gets_no_further_segments() {
    run("segments", 50, &["refused"], |random, tally| {
        let bytes = 6 * REGION_BYTES_MIN;
        let quotas = match random.percent(50) {
            true => Quotas { default_bytes: Some(bytes), ..Quotas::default() },
            false => {
                Quotas { by_tenant: BTreeMap::from([(World::tenant(BLUE), bytes)]), ..Quotas::default() }
            }
        };
        let settings = BrokerSettings { lease: SETTINGS, quotas, ..BrokerSettings::default() };
        let mut world = world(random, tally, settings);
        for index in [0, 1] {
            world.join(index);
            report(&mut world, index);
        }
        while world.clients[BLUE].leased.len() < 2 {
            world.prepare(BLUE);
        }
        let mut filled = 0;
        let mut try_one = |world: &mut World<'_>, index| match fill(world, index) {
            Ok(()) => filled += 1,
            Err(refusal) => {
                assert_eq!(refusal, Refusal::new(Code::OverQuota, 0));
                world.tally.add("refused");
            }
        };
        for index in [0, 1, 0, 1] {
            world.now_ms += 250;
            report(&mut world, index);
        }
        for _ in 0..60 {
            let index = world.random.below(2) as usize;
            match world.random.percent(40) {
                true => report(&mut world, index),
                false => try_one(&mut world, index),
            }
            world.now_ms += world.random.below(40);
        }
        for _ in 0..8 {
            for index in [0, 1] {
                world.now_ms += 250;
                report(&mut world, index);
                (0..RANGES).for_each(|_| try_one(&mut world, index));
            }
        }
        // Two regions are leased, and four are left. A node may not have heard that the other one has used two since.
        assert!((4 * RANGES..=6 * RANGES).contains(&filled), "{filled} ranges");
    });
}

#[test]
fn nodes_are_told_how_many_segments_each_tenant_may_have_opened() {
    let left_of = |quotas: Quotas, held: [&[(&str, u32)]; 2]| {
        let settings = BrokerSettings { lease: SETTINGS, quotas, ..BrokerSettings::default() };
        let told = |random: &mut Random, tally: &mut Tally| {
            let mut world = world(random, tally, settings.clone());
            for (index, held) in held.into_iter().enumerate() {
                world.join(index);
                let mut inventory = world.nodes[index].leases.inventory(Traffic::default(), 0);
                let of =
                    |(tenant, regions): &(&str, u32)| TenantUse { tenant: name(tenant), regions: *regions };
                inventory.tenants = List::new(held.iter().map(of).collect()).expect("few");
                let (now, connection) = (world.now(), world.nodes[index].connection);
                world.broker.inventory(now, connection, inventory).expect("joined");
            }
            world.now_ms += 300;
            world.broker.tick(world.now());
            let report = world.nodes[0].leases.segment_report();
            world.broker.segments(world.nodes[0].connection, &report).expect("joined")
        };
        let (ruling, _) = run_one("segments", 1, &told);
        let limited = ruling.limited.iter().map(|of| (of.tenant.to_string(), of.segments));
        (limited.collect::<Vec<_>>(), ruling.others)
    };
    let regions = |count: u64| count * REGION_BYTES_MIN;
    let by_default = Quotas { default_bytes: Some(regions(9)), ..Quotas::default() };
    let named = |of: &[(&str, u32)]| -> Vec<(String, u32)> {
        of.iter().map(|(tenant, segments)| ((*tenant).to_owned(), *segments)).collect()
    };
    assert_eq!(
        left_of(
            by_default.clone(),
            [&[("blue", 1), ("red", 4), (TENANT_ADMIN, 1)], &[("blue", 2), ("red", 4)]]
        ),
        (named(&[(TENANT_ADMIN, SEGMENTS_UNLIMITED), ("blue", 3), ("red", 1)]), 5),
        "half of what is left, and one while a region is"
    );
    assert_eq!(left_of(by_default, [&[("red", 9)], &[]]), (named(&[("red", 0)]), 5));
    let own = Quotas { by_tenant: BTreeMap::from([(name("red"), regions(5))]), ..Quotas::default() };
    assert_eq!(left_of(own, [&[("blue", 1), ("red", 1)], &[]]), (named(&[("red", 2)]), SEGMENTS_UNLIMITED));
    assert_eq!(left_of(Quotas::default(), [&[("red", 1)], &[]]), (Vec::new(), SEGMENTS_UNLIMITED));
}

#[test]
fn tenant_gets_half_of_the_pending_ranges_that_others_leave() {
    let (mut leases, mut handles) = (NodeLeases::new(NodeId(1), Incarnation(1), KEY, REGIONS), 0);
    for region in 0..REGIONS {
        let _ = leases.scrubbed(RegionIndex(region));
    }
    let ruling = SegmentRuling {
        term: Term(0),
        settled: List::default(),
        dropped: List::default(),
        limited: List::default(),
        others: SEGMENTS_UNLIMITED,
    };
    leases.rule_segments(&ruling, &mut Vec::new());
    let mut most = |tenant: &str| {
        let mut next = || {
            handles += 1;
            Handle(handles)
        };
        let filled = |_: &usize| {
            let mut actions = Vec::new();
            leases.begin_filling_copies(&name(tenant), 1, REGION_BYTES_MAX, &mut next, &mut actions).is_ok()
        };
        (0..PENDING_RANGES_MAX).take_while(filled).count()
    };
    assert_eq!(most("red"), PENDING_RANGES_MAX / 2);
    assert_eq!(most("blue"), PENDING_RANGES_MAX / 4);
}
