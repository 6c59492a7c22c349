//! Requests that wait until a name has another file.
//!
//! The idea: a request that waits is an entry under each of its names. The entry has the file that its session knows,
//! and a signal that wakes its connection. Whoever commits records looks under the names of the records alone, so a
//! request costs nothing while its names stay as they are. A connection that is woken asks what the names have now,
//! like any other.
//!
//! Lock: one, taken inside that of the broker or alone, and held for no call of anybody else.

use farpool_lease::broker::StateChange;
use farpool_lock::Mutex;
use farpool_transport::delay::Waker;
use farpool_wire::control::AwaitNames;
use farpool_wire::{Code, FileId, Name, Refusal, SessionId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most requests that wait at a time. Each keeps a connection, of which there are `CONNECTIONS_MAX` at a listener. A
/// tenant has at most half of what the others leave, so that it cannot use up all.
pub(crate) const WAITS_MAX: usize = 512;
/// Most of them that belong to one session.
pub(crate) const WAITS_OF_SESSION_MAX: usize = 16;

/// Requests that wait. Clones have the same ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waits(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    requests: BTreeMap<u64, Request>,
    /// Requests that wait for each name, and the file that it has as far as they know.
    by_name: BTreeMap<Name, BTreeMap<u64, FileId>>,
    /// True if no request waits any more, because the broker does not answer any.
    is_over: bool,
}

#[derive(Debug)]
struct Request {
    tenant: Name,
    session: SessionId,
    names: Vec<Name>,
    waker: Waker,
}

/// Request that waits. It does not once this is dropped.
pub(crate) struct Wait {
    waits: Arc<Mutex<Waiting>>,
    number: u64,
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.waits.lock().remove(self.number);
    }
}

impl Waits {
    /// Has a request wait. `None` if no request waits any more.
    ///
    /// Errors: [`Code::LimitReached`] if too many wait.
    pub(crate) fn add(
        &self,
        tenant: &Name,
        asked: &AwaitNames,
        waker: &Waker,
    ) -> Result<Option<Wait>, Refusal> {
        let mut waiting = self.0.lock();
        let of_session = waiting.requests.values().filter(|request| request.session == asked.session).count();
        let own = waiting.requests.values().filter(|request| request.tenant == *tenant).count();
        let of_others = waiting.requests.len() - own;
        let limits = [(of_session, WAITS_OF_SESSION_MAX), (own, (WAITS_MAX - of_others) / 2)];
        if let Some((_, max)) = limits.into_iter().find(|(count, max)| count >= max) {
            return Err(Refusal::new(Code::LimitReached, max as u64));
        }
        if waiting.is_over {
            return Ok(None);
        }
        let number = waiting.next;
        waiting.next += 1;
        let names = asked.known.iter().map(|known| known.name.clone()).collect();
        for known in asked.known.iter() {
            waiting.by_name.entry(known.name.clone()).or_default().insert(number, known.file);
        }
        let request = Request { tenant: tenant.clone(), session: asked.session, names, waker: waker.clone() };
        waiting.requests.insert(number, request);
        Ok(Some(Wait { waits: Arc::clone(&self.0), number }))
    }

    /// Returns the signals of the requests that wait for names whose files these records change.
    pub(crate) fn changed_by(&self, records: &[StateChange]) -> Vec<Waker> {
        let waiting = self.0.lock();
        if waiting.requests.is_empty() {
            return Vec::new();
        }
        let mut woken: BTreeMap<u64, Waker> = BTreeMap::new();
        for record in records {
            let (name, file) = match record {
                StateChange::Name(name, file) => (name, file.file),
                StateChange::DropName(name) => (name, FileId(0)),
                _ => continue,
            };
            let known = waiting.by_name.get(name).into_iter().flatten();
            for (number, _) in known.filter(|(_, known)| **known != file) {
                if let Some(request) = waiting.requests.get(number) {
                    woken.insert(*number, request.waker.clone());
                }
            }
        }
        woken.into_values().collect()
    }

    /// Returns the signals of all requests that wait.
    pub(crate) fn all(&self) -> Vec<Waker> {
        self.0.lock().requests.values().map(|request| request.waker.clone()).collect()
    }

    /// Wakes all requests that wait, and lets none wait any more.
    pub(crate) fn end(&self) {
        self.0.lock().is_over = true;
        self.all().iter().for_each(Waker::wake);
    }

    /// Returns how many requests wait.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().requests.len()
    }
}

impl Waiting {
    fn remove(&mut self, number: u64) {
        let Some(request) = self.requests.remove(&number) else { return };
        for name in request.names {
            if let Some(known) = self.by_name.get_mut(&name) {
                known.remove(&number);
                if known.is_empty() {
                    self.by_name.remove(&name);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farpool_lease::broker::NamedFile;
    use farpool_wire::control::{KnownName, Places};
    use farpool_wire::{FileClass, List, Secret};

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    fn asked(session: u64, known: &[(&str, u64)]) -> AwaitNames {
        let known = known.iter().map(|(of, file)| KnownName { name: name(of), file: FileId(*file) });
        let known = List::new(known.collect()).expect("few");
        AwaitNames { session: SessionId(session), secret: Secret(0), known, wait_ms: 1 }
    }

    fn named(of: &str, file: u64) -> StateChange {
        let file = NamedFile {
            file: FileId(file),
            class: FileClass::Pinned,
            tenant: name("red"),
            copies_wanted: 1,
            recipe: Default::default(),
            places: Places::default(),
            root_of: None,
        };
        StateChange::Name(name(of), file)
    }

    #[test]
    fn only_requests_that_wait_for_a_name_with_another_file_are_woken() {
        let (waits, wakers) = (Waits::default(), [0; 4].map(|_| Waker::new().expect("a signal")));
        let known: [&[(&str, u64)]; 4] = [&[("a", 1)], &[("a", 2)], &[("b", 1), ("a", 1)], &[("b", 0)]];
        let mut kept: Vec<Option<Wait>> = (0..)
            .zip(known.iter().zip(&wakers))
            .map(|(session, (known, waker))| {
                waits.add(&name("red"), &asked(session, known), waker).expect("few")
            })
            .collect();
        let woken = |records: &[StateChange]| {
            let woken = waits.changed_by(records);
            woken.iter().for_each(Waker::wake);
            let which: Vec<usize> = (0..4).filter(|index| wakers[*index].is_woken()).collect();
            (woken.len(), which)
        };
        assert_eq!(woken(&[named("c", 9), named("a", 1), StateChange::DropName(name("c"))]), (1, vec![1]));
        assert_eq!(woken(&[named("a", 2)]), (2, vec![0, 1, 2]), "the first and the third one know file 1");
        kept[2] = None;
        assert_eq!(woken(&[StateChange::DropName(name("b"))]), (0, vec![0, 1, 2]));
        assert_eq!(woken(&[named("b", 7), named("b", 8)]), (1, vec![0, 1, 2, 3]), "each is woken once");
        assert_eq!(waits.count(), 3);
        drop(kept);
        assert_eq!(waits.count(), 0);
        assert!(waits.0.lock().by_name.is_empty(), "nothing is left of requests that do not wait");
    }

    #[test]
    fn requests_of_a_session_and_of_a_tenant_are_limited_and_none_waits_after_the_end() {
        let (waits, waker) = (Waits::default(), Waker::new().expect("a signal"));
        let limit = |max: usize| Some(Refusal::new(Code::LimitReached, max as u64));
        let add = |tenant: &str, session, of| waits.add(&name(tenant), &asked(session, &[(of, 1)]), &waker);
        let mut kept = Vec::new();
        for number in 0..WAITS_MAX as u64 / 2 {
            let session = number / WAITS_OF_SESSION_MAX as u64;
            kept.push(add("red", session, "a").expect("not too many"));
            if number == WAITS_OF_SESSION_MAX as u64 - 1 {
                assert_eq!(add("red", session, "b").err(), limit(WAITS_OF_SESSION_MAX));
            }
        }
        assert_eq!(add("red", u64::MAX, "a").err(), limit(WAITS_MAX / 2));
        let of_blue = (0..).map_while(|session| add("blue", 1_000 + session, "a").ok());
        let of_blue: Vec<_> = of_blue.collect();
        assert_eq!(of_blue.len(), WAITS_MAX / 4, "another tenant gets half of what is left");
        kept.truncate(10);
        assert!(add("red", u64::MAX, "a").expect("room again").is_some());
        assert!(!waker.is_woken());
        waits.end();
        assert!(waker.is_woken(), "those that wait are woken at the end");
        assert!(add("red", u64::MAX, "a").expect("no error").is_none());
    }
}
