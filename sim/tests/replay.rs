//! Tests that a seed replays its world.

use farpool_sim::{Profile, run_world};

#[test]
fn world_of_the_same_seed_is_the_same_world() {
    for profile in [Profile::Still, Profile::Calm, Profile::Rough, Profile::Hell] {
        for seed in 1..4 {
            let (first, again) = (run_world(seed, profile), run_world(seed, profile));
            assert_eq!(first.hash, again.hash, "{profile:?} {seed}");
            assert_eq!(first.tally.events, again.tally.events, "{profile:?} {seed}");
        }
    }
}

#[test]
fn worlds_of_different_seeds_differ() {
    let hashes: std::collections::BTreeSet<u64> =
        (1..9).map(|seed| run_world(seed, Profile::Rough).hash).collect();
    assert_eq!(hashes.len(), 8);
}
