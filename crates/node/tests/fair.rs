//! Simulation of fair sharing between the clients of a node. A client asks for morsels: units of work that occupy a
//! slot for a time (the cost, in ns) and are not interrupted.

use farpool_node::fair::{COST_MIN, Member, QUANTUM, Rounds, Ticket, cost};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Behaviour of a client: it keeps `depth` morsels requested, each of cost `cost`, and pauses for `think` ns before it
/// asks for the next one.
#[derive(Clone, Copy, Debug)]
struct Habit {
    depth: usize,
    cost: u64,
    think: u64,
}

/// Figures of one simulated client.
#[derive(Clone, Debug, Default)]
struct Seen {
    morsels: u64,
    cost: u64,
    /// Largest cost that any one other client was served while this client waited and owed nothing.
    others_cost_max: u64,
}

/// Simulates a node with this many slots from time 0 to `until`, in ns of a virtual clock.
fn simulate(slots: usize, habits: &[Habit], until: u64) -> Vec<Seen> {
    let mut rounds = Rounds::default();
    let members: Vec<Member> = habits.iter().map(|_| rounds.join()).collect();
    let mut seen = vec![Seen::default(); habits.len()];
    // Times at which clients ask for their next morsels, and at which running morsels end. A unique number tells apart
    // those at the same time.
    let mut arrivals: BTreeMap<(u64, u64), usize> = BTreeMap::new();
    let mut service: BTreeMap<(u64, u64), (usize, u64)> = BTreeMap::new();
    let mut waiting: BTreeMap<Ticket, usize> = BTreeMap::new();
    // Cost granted to each other client since a client began to wait. `None` for clients that do not wait or that owe.
    let mut since: Vec<Option<Vec<u64>>> = vec![None; habits.len()];
    let mut number = 0;
    for (client, habit) in habits.iter().enumerate() {
        for _ in 0..habit.depth {
            arrivals.insert((0, number), client);
            number += 1;
        }
    }
    loop {
        let next_arrival = arrivals.first_key_value().map(|(at, _)| at.0);
        let next_end = service.first_key_value().map(|(at, _)| at.0);
        let Some(now) = next_arrival.into_iter().chain(next_end).min().filter(|now| *now < until) else {
            return seen;
        };
        if next_end == Some(now) {
            let (_, (client, reserved)) = service.pop_first().expect("just seen");
            rounds.finish(members[client], reserved, habits[client].cost);
            seen[client].morsels += 1;
            seen[client].cost += habits[client].cost;
            arrivals.insert((now + habits[client].think, number), client);
            number += 1;
        } else {
            let (_, client) = arrivals.pop_first().expect("just seen");
            let owes = rounds.deficit(members[client]) < 0;
            assert!(
                waiting.insert(rounds.wait(members[client]), client).is_none(),
                "no ticket is given twice"
            );
            if since[client].is_none() && !owes {
                since[client] = Some(vec![0; habits.len()]);
            }
        }
        while service.len() < slots {
            let Some(grant) = rounds.grant_next() else { break };
            let client = waiting.remove(&grant.ticket).expect("a ticket is granted once");
            service.insert((now + habits[client].cost, number), (client, grant.reserved));
            number += 1;
            for (other, since) in since.iter_mut().enumerate() {
                if let Some(since) = since
                    && other != client
                {
                    since[client] += habits[client].cost;
                    seen[other].others_cost_max = seen[other].others_cost_max.max(since[client]);
                }
            }
            let still_waits = waiting.values().any(|other| *other == client);
            let owes = rounds.deficit(members[client]) < -QUANTUM;
            since[client] = (still_waits && !owes).then(|| vec![0; habits.len()]);
        }
        assert_eq!(rounds.waiting(), waiting.len());
        assert!(waiting.is_empty() || service.len() >= slots, "somebody waits beside a free slot");
        for (member, client) in members.iter().zip(0..) {
            assert!(rounds.deficit(*member) <= QUANTUM, "more to spend than a visit gives");
            let wants = waiting.values().any(|other| *other == client);
            let in_service = service.values().any(|(other, _)| *other == client);
            // A client gets one quantum when it enters the circle, and may keep it until it is visited.
            let may_have = if wants || in_service || !waiting.is_empty() { QUANTUM } else { 0 };
            assert!(rounds.deficit(*member) <= may_have, "something hoarded");
        }
    }
}

fn habit() -> impl Strategy<Value = Habit> {
    let costs = prop_oneof![Just(COST_MIN), 1_000..5_000u64, 10_000..70_000u64, Just(250_000)];
    (1..12usize, costs, prop_oneof![Just(0), 0..100_000u64]).prop_map(|(depth, cost, think)| Habit {
        depth,
        cost,
        think,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// The simulation asserts: no slot is free while somebody waits, every ticket is granted once, balances are
    /// bounded. In addition, no client that owes nothing is passed over for long.
    #[test]
    fn sharing_between_any_clients_conserves_work_and_passes_nobody_over(
        slots in 1..4usize,
        habits in proptest::collection::vec(habit(), 1..10),
    ) {
        let seen = simulate(slots, &habits, 2_000_000);
        let largest = habits.iter().map(|habit| habit.cost).max().unwrap_or_default();
        // A client may begin to wait while morsels of its own still run, one per slot at most. It pays for them by
        // being passed over.
        let own = |habit: &Habit| (slots as u64 * habit.cost).div_ceil(QUANTUM as u64);
        for (seen, habit) in seen.iter().zip(&habits) {
            let visits = 4 + 2 * own(habit);
            let bound = visits * QUANTUM as u64 + slots as u64 * largest;
            prop_assert!(seen.others_cost_max <= bound, "{} > {bound}: {seen:?}", seen.others_cost_max);
        }
    }

    /// Clients that always wait get the same cost each, whatever the cost of their morsels.
    #[test]
    fn sharing_between_backlogged_clients_is_equal_by_cost(
        slots in 1..4usize,
        costs in proptest::collection::vec(prop_oneof![Just(COST_MIN), 1_000..70_000u64], 2..9),
    ) {
        let habits: Vec<Habit> = costs.iter().map(|cost| Habit { depth: 16, cost: *cost, think: 0 }).collect();
        let until = 10_000_000;
        let seen = simulate(slots, &habits, until);
        let equal = seen.iter().map(|seen| seen.cost).sum::<u64>() / habits.len() as u64;
        let largest = costs.iter().max().copied().unwrap_or_default();
        for seen in &seen {
            // Permitted deviation from an equal share: a few quanta, and the morsels that run when the simulation
            // begins and ends.
            let slack = 4 * QUANTUM as u64 + 2 * (slots as u64 + 1) * largest;
            prop_assert!(seen.cost.abs_diff(equal) <= slack, "{} of {equal}, slack {slack}", seen.cost);
        }
    }

    /// Tickets of a client that left are not granted; those of others are.
    #[test]
    fn sharing_goes_on_without_a_client_that_left(waits in proptest::collection::vec(0..4usize, 1..40), gone in 0..4usize) {
        let mut rounds = Rounds::default();
        let members: Vec<Member> = (0..4).map(|_| rounds.join()).collect();
        let mut expected: Vec<Ticket> = Vec::new();
        for client in waits {
            let ticket = rounds.wait(members[client]);
            if client != gone {
                expected.push(ticket);
            }
        }
        rounds.leave(members[gone]);
        let mut granted: Vec<Ticket> = std::iter::from_fn(|| rounds.grant_next()).map(|grant| grant.ticket).collect();
        granted.sort_unstable();
        prop_assert_eq!(granted, expected);
    }
}

/// One client at depth 128 beside seven at depth 1: each of the seven gets at least 0.8 of the smaller of an equal
/// share and what it gets alone, less its waits for the end of a running larger morsel.
#[test]
fn sharing_client_at_depth_128_beside_seven_at_depth_1_takes_no_more_than_its_share() {
    const UNTIL: u64 = 30_000_000;
    for slots in [1, 2, 4] {
        // Morsels (pieces of work) of 8 KiB for all, then 64 KiB for the deep client. The seven do not pause, pause for
        // a round trip (10 us), or pause for 100 us.
        for greedy_cost in [cost(8 << 10, 0), cost(64 << 10, 0)] {
            for think in [0, 10_000, 100_000] {
                let modest = Habit { depth: 1, cost: cost(8 << 10, 0), think };
                let greedy = Habit { depth: 128, cost: greedy_cost, think: 0 };
                let alone = simulate(slots, &[modest], UNTIL)[0].cost;
                let seen = simulate(slots, &[&[greedy][..], &[modest; 7]].concat(), UNTIL);
                let equal = slots as u64 * UNTIL / 8;
                let seven: Vec<f64> =
                    seen[1..].iter().map(|seen| seen.cost as f64 / equal.min(alone) as f64).collect();
                let least = seven.iter().copied().fold(f64::MAX, f64::min);
                // A running morsel is not interrupted, so the seven may have to wait for the end of a larger one.
                let waits = greedy_cost.max(modest.cost) / slots as u64;
                let best = (modest.cost + think) as f64 / (modest.cost + think + waits) as f64;
                assert!(least >= 0.8 * best.min(1.0), "slots {slots} think {think}: {least:.2} of {seven:?}");
            }
        }
    }
}

#[test]
fn cost_is_the_larger_of_bytes_and_cpu_time() {
    assert_eq!(cost(0, 0), COST_MIN);
    assert_eq!(cost(256 << 10, 10_000), 65_536);
    assert_eq!(cost(256 << 10, 200_000), 200_000);
}

/// Both clients owe one second. Each round pays a quantum of 2,048 ns, so it takes about half a million rounds until
/// one may be granted. They must be applied in one step, not one by one.
#[test]
fn sharing_with_a_client_deep_in_debt_finds_the_next_at_once() {
    let mut rounds = Rounds::default();
    let (deep, other) = (rounds.join(), rounds.join());
    for _ in 0..3 {
        rounds.wait(deep);
        rounds.wait(other);
    }
    for member in [deep, other] {
        rounds.finish(member, 0, 1_000_000_000 + u64::from(member == deep));
    }
    let granted: Vec<u64> = std::iter::from_fn(|| rounds.grant_next()).map(|grant| grant.ticket.0).collect();
    assert_eq!(granted.len(), 6);
}
