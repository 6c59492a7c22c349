//! When a leader is given up though its lease lives: after a change of etcd's own leader.
//!
//! The idea: etcd's new leader lets all leases begin anew, and one second longer. So a machine that dies with both
//! leaders on it would leave the pool without a leader for twice as long as one that dies alone. Every answer of etcd
//! says which term of Raft it is of, and a leader that lives writes that term into its key as soon as it hears of it.
//! Whoever stands by, and sees an older one there for long enough, takes the key away, if nobody has written it
//! meanwhile.

use farpool_broker::stores::StoreError;
use std::time::{Duration, Instant};

/// What the leader's key says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    /// What the leader is called, for people who look.
    pub(crate) name: String,
    /// The term of Raft of which the leader has heard.
    pub(crate) raft_term: i64,
}

impl Shown {
    pub(crate) fn encode(&self) -> Vec<u8> {
        format!("{}\n{}", self.name, self.raft_term).into_bytes()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Shown, StoreError> {
        let text = std::str::from_utf8(bytes).ok();
        let parts = text.and_then(|text| text.split_once('\n'));
        let shown = parts
            .and_then(|(name, term)| Some(Shown { name: name.to_owned(), raft_term: term.parse().ok()? }));
        shown
            .ok_or_else(|| StoreError("the leader's key in etcd is damaged: no term of Raft is in it".into()))
    }
}

/// A leader that has not heard of a term of Raft, as far as one that stands by has seen.
#[derive(Debug, Default)]
pub(crate) struct Suspicion {
    seen: Option<(Sight, Instant)>,
}

/// What was seen at a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sight {
    /// The revision at which the key was written last.
    pub(crate) written: i64,
    /// The term of Raft that it shows.
    pub(crate) shown: i64,
    /// The term of Raft of the answer.
    pub(crate) raft_term: i64,
}

impl Suspicion {
    /// Whether the leader is given up, having shown nothing of a new term for `patience` since that was first seen.
    pub(crate) fn look(&mut self, sight: Sight, now: Instant, patience: Duration) -> bool {
        // A member that was cut off may know of an older term than the leader: that is no cause.
        if sight.shown >= sight.raft_term {
            self.seen = None;
            return false;
        }
        match self.seen {
            Some((before, since)) if before == sight => now.saturating_duration_since(since) >= patience,
            _ => {
                self.seen = Some((sight, now));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(1);

    fn sight(written: i64, shown: i64, raft_term: i64) -> Sight {
        Sight { written, shown, raft_term }
    }

    #[test]
    fn leader_is_given_up_once_it_was_seen_in_an_old_term_for_as_long_as_is_waited() {
        let (mut suspicion, begun) = (Suspicion::default(), Instant::now());
        assert!(!suspicion.look(sight(5, 1, 2), begun, PATIENCE));
        assert!(!suspicion.look(sight(5, 1, 2), begun + PATIENCE / 2, PATIENCE));
        assert!(suspicion.look(sight(5, 1, 2), begun + PATIENCE, PATIENCE));
    }

    #[test]
    fn leader_that_shows_the_term_or_writes_or_a_newer_term_still_begins_the_wait_anew() {
        let begun = Instant::now();
        for meanwhile in [sight(6, 2, 2), sight(6, 1, 2), sight(5, 1, 3)] {
            let mut suspicion = Suspicion::default();
            assert!(!suspicion.look(sight(5, 1, 2), begun, PATIENCE));
            assert!(!suspicion.look(meanwhile, begun + PATIENCE, PATIENCE), "{meanwhile:?}");
            assert!(!suspicion.look(sight(5, 1, 2), begun + PATIENCE * 2, PATIENCE), "{meanwhile:?}");
        }
    }

    #[test]
    fn what_a_key_shows_is_read_back_or_refused() {
        let shown = Shown { name: "10.0.0.1:7700".to_owned(), raft_term: 12 };
        assert_eq!(Shown::decode(&shown.encode()).expect("it is ours"), shown);
        for damaged in [&b"10.0.0.1:7700"[..], b"a\nb", b"\xff\n1", b""] {
            assert!(Shown::decode(damaged).is_err(), "{damaged:?}");
        }
    }
}
