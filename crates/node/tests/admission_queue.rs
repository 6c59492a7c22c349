//! The admission queue of a node with real threads, and the token buckets that enforce its limits.

use farpool_host::Machine;
use farpool_node::limits::{BURST_NS, Bucket};
use farpool_node::{AdmissionQueue, Limits};
use farpool_transport::{Admission, Peer};
use farpool_wire::{ClientId, MonoNs};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

fn admission_queue(slots: usize, limits: Limits) -> Arc<AdmissionQueue> {
    AdmissionQueue::new(Arc::new(Machine), slots, &limits)
}

fn peer(client: u64, connection: u64) -> Peer {
    Peer { connection, client: ClientId(client), ..Peer::default() }
}

/// Runs the threads of clients, given as (client number, connections), each entering and leaving the queue as fast as
/// it can, until one client has done `morsels` morsels. Returns the number of morsels of each client.
fn go_through(
    admission_queue: &Arc<AdmissionQueue>,
    slots: u64,
    clients: &[(u64, usize)],
    morsels: u64,
) -> Vec<u64> {
    let inside = AtomicU64::new(0);
    // The queue lets in one thread per slot, and one per client that owes nothing. Each connection without a client
    // number is a client of its own.
    let most = slots
        + clients
            .iter()
            .map(|(name, connections)| if *name == 0 { *connections as u64 } else { 1 })
            .sum::<u64>();
    let is_over = AtomicBool::new(false);
    let begin = Barrier::new(clients.iter().map(|(_, connections)| connections).sum());
    let done: Vec<AtomicU64> = clients.iter().map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for ((client, connections), done) in clients.iter().zip(&done) {
            for connection in 1..=*connections as u64 {
                let (inside, is_over, begin) = (&inside, &is_over, &begin);
                let mut admission = admission_queue.admission(&peer(*client, client * 1_000 + connection));
                scope.spawn(move || {
                    begin.wait();
                    while !is_over.load(Ordering::Relaxed) {
                        admission.enter();
                        let others = inside.fetch_add(1, Ordering::SeqCst);
                        assert!(others < most, "{others} others inside");
                        std::hint::black_box((0..200).sum::<u64>());
                        inside.fetch_sub(1, Ordering::SeqCst);
                        if done.fetch_add(1, Ordering::Relaxed) >= morsels {
                            is_over.store(true, Ordering::Relaxed);
                        }
                        admission.leave(64 << 10);
                    }
                });
            }
        }
    });
    assert_eq!(inside.load(Ordering::SeqCst), 0);
    done.iter().map(|done| done.load(Ordering::Relaxed)).collect()
}

/// If a wake-up were lost, this test would hang.
#[test]
fn turnstile_many_threads_go_through_and_hardly_more_at_once_than_there_are_slots() {
    for slots in [1, 2, 3] {
        let admission_queue = admission_queue(slots, Limits::default());
        go_through(&admission_queue, slots as u64, &[(1, 4), (2, 1), (3, 3), (0, 3)], 5_000);
    }
}

/// A node that stops lifts its limits. Threads that wait because of them must be let in then.
#[test]
fn turnstile_with_limits_lets_all_through_once_they_are_lifted() {
    let admission_queue =
        admission_queue(2, Limits { bytes_per_second: Some(1_000_000), cpu_milli: Some(10) });
    let mut first = admission_queue.admission(&peer(1, 1));
    first.enter();
    // 1 GB at 1 MB per second: nobody else may enter for a thousand seconds.
    first.leave(1_000_000_000);
    std::thread::scope(|scope| {
        for connection in 2..8 {
            let mut admission = admission_queue.admission(&peer(connection % 3, connection));
            scope.spawn(move || {
                admission.enter();
                admission.leave(1);
            });
        }
        while !first.is_wanted() {
            std::thread::yield_now();
        }
        admission_queue.lift_limits();
    });
}

#[test]
fn turnstile_with_limits_keeps_threads_moving_by_its_own_clock() {
    let limits = Limits { bytes_per_second: Some(1_000_000_000), cpu_milli: None };
    go_through(&admission_queue(2, limits), 2, &[(1, 3), (2, 1), (0, 2)], 500);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// A bucket never gives more than its rate times the elapsed time, plus a burst and the last morsel. A caller that
    /// waits for `wait_ns` may begin.
    #[test]
    fn bucket_gives_no_more_than_its_rate_and_a_burst(
        per_second in 1u64..10_000_000_000,
        steps in proptest::collection::vec((0u64..20_000_000, 0u64..2_000_000), 1..200),
    ) {
        let begun = 1_000_000_000u64;
        let mut now = begun;
        let mut bucket = Bucket::new(per_second, MonoNs(now));
        let (mut spent, mut last) = (0u128, 0u64);
        for (pause, tokens) in steps {
            now += pause;
            let wait = bucket.wait_ns(MonoNs(now));
            if wait > 0 && wait < u64::MAX / 4 {
                prop_assert!(bucket.wait_ns(MonoNs(now)) == wait, "looking changes nothing");
                now += wait;
                prop_assert_eq!(bucket.wait_ns(MonoNs(now)), 0);
            }
            bucket.take(tokens);
            spent += u128::from(tokens);
            last = last.max(tokens);
            let brought_in = u128::from(now - begun + BURST_NS) * u128::from(per_second) / 1_000_000_000;
            prop_assert!(spent <= brought_in + u128::from(last) + 1, "{spent} of {brought_in}");
        }
    }
}

#[test]
fn limits_outside_what_is_permitted_are_refused_with_what_is() {
    let check = |bytes_per_second, cpu_milli| Limits { bytes_per_second, cpu_milli }.check();
    assert_eq!(check(None, None), Ok(()));
    assert_eq!(check(Some(1_000_000), Some(10)), Ok(()));
    let slow = check(Some(999_999), None).expect_err("too slow");
    assert!(slow.contains("999999") && slow.contains("1000000 to 1000000000000"), "{slow}");
    assert!(check(Some(2_000_000_000_000), None).is_err());
    let little = check(None, Some(9)).expect_err("too little");
    assert!(little.contains("0.009") && little.contains("0.01 to "), "{little}");
    assert!(check(None, Some(u32::MAX)).is_err());
}
