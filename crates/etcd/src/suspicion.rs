//! Replacing a leader although its lease lives, after etcd has changed its own leader.
//!
//! The idea: think of a night watchman who signs a book on every shift. A new shift has begun, and his signature is
//! missing: something has happened to him, although his contract has not ended. The shift is etcd's Raft term. When
//! etcd elects a new leader of its own, all leases begin again and last one second longer. A machine that dies with
//! both leaders on it would leave the pool without a broker for twice as long as one with the broker alone. Every
//! answer of etcd has its Raft term, and a living broker that leads writes a new term into its key at once. A broker
//! that stands by and sees an older term in the key for long enough deletes the key, unless it was written meanwhile.

use farpool_broker::stores::StoreError;
use std::time::{Duration, Instant};

/// Contents of the leader's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    /// Name of the leader, for people who look.
    pub(crate) name: String,
    /// Latest Raft term that the leader has seen.
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
        shown.ok_or_else(|| StoreError("the leader's key in etcd is damaged: it has no Raft term".into()))
    }
}

/// Observation of a leader that has not written the latest Raft term, and since when.
#[derive(Debug, Default)]
pub(crate) struct Suspicion {
    seen: Option<(Sight, Instant)>,
}

/// Values that one look at the leader's key has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sight {
    /// Revision at which the key was last written.
    pub(crate) written: i64,
    /// Raft term in the key.
    pub(crate) shown: i64,
    /// Raft term of the answer.
    pub(crate) raft_term: i64,
}

impl Suspicion {
    /// Reports whether the leader should be replaced: the same old term has been seen in its key for `patience`.
    pub(crate) fn look(&mut self, sight: Sight, now: Instant, patience: Duration) -> bool {
        // A member that was cut off may know an older term than the leader. That is no reason.
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
