//! Recipes of published files: who is given the task of making a lost one again.

use crate::pool::{KEY, LIFE, Pool, START, name};
use farpool_lease::{LeaseSettings, NodeLeases, tenant};
use farpool_wire::control::*;
use farpool_wire::*;

const RECIPE: [u8; 3] = [1, 2, 3];

fn claim(pool: &mut Pool, now: MonoNs, proof: &SessionProof, is_over: bool) -> RebuildClaimed {
    let SessionProof { session, secret } = proof.clone();
    let claim = ClaimRebuild { session, secret, name: name("view"), is_over };
    pool.broker.claim_rebuild(now, &tenant::local(), &claim).expect("there is such a name")
}

fn open(pool: &mut Pool, now: MonoNs, session: u64) -> SessionProof {
    let open = OpenSession { resume: SessionId(0), secret: Secret(0), label: name("c") };
    let opened = pool.broker.open_session(now, &tenant::local(), &open, SessionId(session)).expect("opened");
    SessionProof { session: opened.session, secret: opened.secret }
}

/// Time at which the first life of node 1 has been silent for long enough to be followed by another.
const LATER: MonoNs = MonoNs(START.0 + 3_000_000_000);

/// Starts node 1 again, without anything of what it had.
fn lose(pool: &mut Pool) {
    let (now, life) = (LATER, Incarnation(LIFE.0 + 1));
    pool.offer(now, 1, life);
    let inventory = NodeLeases::new(NodeId(1), life, KEY, 4).inventory(Traffic::default(), 0);
    pool.broker.inventory(now, 1, inventory).expect("known");
}

#[test]
fn one_session_at_a_time_makes_a_lost_file_again() {
    let mut pool = Pool::new();
    let file = pool.publish_region(0, Replaces::Nothing, &RECIPE).expect("published");
    let (first, second) = (open(&mut pool, LATER, 21), open(&mut pool, LATER, 22));
    let there = claim(&mut pool, LATER, &first, false);
    assert_eq!((there.file, there.is_given, &there.recipe[..]), (file, false, &RECIPE[..]), "it is not lost");

    lose(&mut pool);
    assert!(claim(&mut pool, LATER, &first, false).is_given);
    assert!(claim(&mut pool, LATER, &first, false).is_given, "a lost answer is given again");
    let waits = claim(&mut pool, LATER, &second, false);
    assert_eq!((waits.is_given, &waits.recipe[..]), (false, &RECIPE[..]));
    assert!(!claim(&mut pool, LATER, &second, true).is_given, "it had no task to give up");
    assert!(!claim(&mut pool, LATER, &second, false).is_given, "the first one has it still");

    assert!(!claim(&mut pool, LATER, &first, true).is_given, "it gives up");
    assert!(claim(&mut pool, LATER, &second, false).is_given);
    let LeaseSettings { lease_ttl_ms, grace_ms, .. } = LeaseSettings::default();
    let later = LATER.plus_ms(u64::from(lease_ttl_ms + grace_ms) + 1);
    let third = open(&mut pool, later, 23);
    assert!(claim(&mut pool, later, &third, false).is_given, "the second one is not heard of any more");
}

#[test]
fn file_without_a_recipe_is_the_task_of_one_session_too_which_may_know_how() {
    let mut pool = Pool::new();
    pool.publish_region(0, Replaces::Nothing, &[]).expect("published");
    lose(&mut pool);
    let (first, second) = (open(&mut pool, LATER, 21), open(&mut pool, LATER, 22));
    let claimed = claim(&mut pool, LATER, &first, false);
    assert_eq!((claimed.is_given, claimed.recipe.len()), (true, 0));
    assert!(!claim(&mut pool, LATER, &second, false).is_given);
}

#[test]
fn recipe_is_that_of_the_file_that_has_the_name_and_outlives_the_broker() {
    let mut pool = Pool::new();
    let file = pool.publish_region(0, Replaces::Nothing, &RECIPE).expect("published");
    let of = |pool: &Pool| pool.durable.names[&name("view")].recipe.to_vec();
    assert_eq!(of(&pool), RECIPE);
    assert_eq!(
        pool.publish_region(0, Replaces::Nothing, &[9]),
        Err(Code::NameTaken),
        "another recipe is another request"
    );
    pool.publish_region(1, Replaces::Only(file), &[9]).expect("published");
    assert_eq!(of(&pool), [9]);
    pool.publish_region(2, Replaces::Anything, &[]).expect("published");
    assert_eq!(of(&pool), Vec::<u8>::new());
}
