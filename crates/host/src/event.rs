//! Events for the operator of a process, and the limit of how often one kind of event is written.

use farpool_wire::{Epoch, MonoNs, RegionIndex, SessionId, TraceId};
use std::collections::BTreeMap;
use std::io::Write;

/// Severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Something failed, and somebody has to act.
    Error,
    /// Something was lost, or will fail if nobody acts.
    Warn,
    /// The state of the process or of its pool changed.
    Info,
    /// A single request was served or refused.
    Debug,
}

/// One line of a log: what happened, for people; and the same in fields, for programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Severity.
    pub level: Level,
    /// Kind of the event: a word that does not change between releases.
    pub kind: &'static str,
    /// Sentence for people. It contains no secret.
    pub message: String,
    /// Name of the node that the event is about.
    pub node: Option<String>,
    /// Name of another thing that the event is about, such as a volume.
    pub subject: Option<String>,
    /// Name of the tenant that the event is about.
    pub tenant: Option<String>,
    /// Session that the event is about.
    pub session: Option<SessionId>,
    /// Region of the lease that the event is about.
    pub lease: Option<RegionIndex>,
    /// Epoch of that lease.
    pub epoch: Option<Epoch>,
    /// Query that the event belongs to.
    pub trace: TraceId,
}

impl Level {
    /// Returns the name of the level, as flags and logs have it.
    pub fn word(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
        }
    }
}

impl Event {
    /// Makes an event without fields.
    pub fn new(level: Level, kind: &'static str, message: impl Into<String>) -> Event {
        Event {
            level,
            kind,
            message: message.into(),
            node: None,
            subject: None,
            tenant: None,
            session: None,
            lease: None,
            epoch: None,
            trace: TraceId::NONE,
        }
    }

    /// Makes an event of level [`Level::Error`].
    pub fn error(kind: &'static str, message: impl Into<String>) -> Event {
        Event::new(Level::Error, kind, message)
    }

    /// Makes an event of level [`Level::Warn`].
    pub fn warn(kind: &'static str, message: impl Into<String>) -> Event {
        Event::new(Level::Warn, kind, message)
    }

    /// Makes an event of level [`Level::Info`].
    pub fn info(kind: &'static str, message: impl Into<String>) -> Event {
        Event::new(Level::Info, kind, message)
    }

    /// Makes an event of level [`Level::Debug`].
    pub fn debug(kind: &'static str, message: impl Into<String>) -> Event {
        Event::new(Level::Debug, kind, message)
    }

    /// Adds the name of the node.
    #[must_use]
    pub fn node(mut self, name: impl Into<String>) -> Event {
        self.node = Some(name.into());
        self
    }

    /// Adds the name of the thing that the event is about, if that is no node. Events about one thing never suppress
    /// those about another.
    #[must_use]
    pub fn about(mut self, subject: impl Into<String>) -> Event {
        self.subject = Some(subject.into());
        self
    }

    /// Adds the name of the tenant.
    #[must_use]
    pub fn tenant(mut self, name: impl Into<String>) -> Event {
        self.tenant = Some(name.into());
        self
    }

    /// Adds the session.
    #[must_use]
    pub fn session(mut self, session: SessionId) -> Event {
        self.session = Some(session);
        self
    }

    /// Adds the region of the lease, and its epoch.
    #[must_use]
    pub fn lease(mut self, region: RegionIndex, epoch: Epoch) -> Event {
        (self.lease, self.epoch) = (Some(region), Some(epoch));
        self
    }

    /// Adds the query.
    #[must_use]
    pub fn trace(mut self, trace: TraceId) -> Event {
        self.trace = trace;
        self
    }

    /// Writes the event to the `tracing` subscriber of this process; without one, to standard error. There it writes
    /// only what is at least a warning. `suppressed` is the number of similar events that were not written.
    pub(crate) fn write(&self, suppressed: u64) {
        let message = farpool_wire::shown(&self.message).to_string();
        if !tracing::dispatcher::has_been_set() {
            if self.level <= Level::Warn {
                // Nobody may read standard error any more, such as that of a mount whose supervisor has ended.
                let _ = writeln!(std::io::stderr(), "farpool: {message}");
            }
            return;
        }
        macro_rules! write_at {
            ($level:ident) => {
                tracing::event!(
                    target: "farpool",
                    tracing::Level::$level,
                    event = self.kind,
                    node = self.node.as_deref(),
                    subject = self.subject.as_deref(),
                    tenant = self.tenant.as_deref(),
                    session = self.session.map(tracing::field::display),
                    lease = self.lease.map(tracing::field::display),
                    epoch = self.epoch.map(tracing::field::display),
                    trace = (self.trace != TraceId::NONE).then(|| tracing::field::display(self.trace)),
                    suppressed = (suppressed > 0).then_some(suppressed),
                    "{message}"
                )
            };
        }
        match self.level {
            Level::Error => write_at!(ERROR),
            Level::Warn => write_at!(WARN),
            Level::Info => write_at!(INFO),
            Level::Debug => write_at!(DEBUG),
        }
    }
}

/// Reports whether events of a level are written by this process.
pub(crate) fn is_written(level: Level) -> bool {
    match level {
        Level::Error | Level::Warn => true,
        Level::Info => tracing::enabled!(target: "farpool", tracing::Level::INFO),
        Level::Debug => tracing::enabled!(target: "farpool", tracing::Level::DEBUG),
    }
}

/// Kind of an event, and the names of the node and of the other thing that it is about.
type EventKey = (&'static str, Option<String>, Option<String>);

/// Limit of the events of one kind about one node and one other thing: 20 within 10 s. Others are counted, and the next
/// event that is written has the count.
#[derive(Debug)]
pub(crate) struct EventLimit {
    seen: BTreeMap<EventKey, Window>,
    /// Number of events of each kind. Kinds are words of the program, so there are not many.
    counts: BTreeMap<(&'static str, Level), u64>,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    begun: MonoNs,
    written: u32,
    suppressed: u64,
}

const WINDOW_NS: u64 = 10_000_000_000;
const WRITTEN_MAX: u32 = 20;
/// Limit of the keys that are remembered. Beyond it, those whose 10 s are over are forgotten, and beyond twice as many
/// all are: whoever invents names hides no event about others.
const KEYS_MAX: usize = 1024;

impl EventLimit {
    /// Makes a limit that has seen nothing.
    pub(crate) const fn new() -> EventLimit {
        EventLimit { seen: BTreeMap::new(), counts: BTreeMap::new() }
    }

    /// Returns how many events of each kind there were, written or not.
    pub(crate) fn counts(&self) -> Vec<(&'static str, Level, u64)> {
        self.counts.iter().map(|((kind, level), count)| (*kind, *level, *count)).collect()
    }

    /// Returns the number of similar events that were suppressed before this one. `None` if this one must not be
    /// written.
    pub(crate) fn admit(&mut self, now: MonoNs, event: &Event) -> Option<u64> {
        *self.counts.entry((event.kind, event.level)).or_default() += 1;
        let is_over = |window: &Window| now.0.saturating_sub(window.begun.0) >= WINDOW_NS;
        if self.seen.len() >= KEYS_MAX {
            self.seen.retain(|_, window| !is_over(window) || window.suppressed > 0);
        }
        if self.seen.len() >= 2 * KEYS_MAX {
            self.seen.clear();
        }
        let key = (event.kind, event.node.clone(), event.subject.clone());
        let fresh = Window { begun: now, written: 0, suppressed: 0 };
        let window = self.seen.entry(key).or_insert(fresh);
        let suppressed = window.suppressed;
        if is_over(window) {
            *window = fresh;
        } else if window.written >= WRITTEN_MAX {
            window.suppressed += 1;
            return None;
        }
        window.written += 1;
        window.suppressed = 0;
        Some(suppressed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn about(node: &str) -> Event {
        Event::info("refused", "x").node(node)
    }

    #[test]
    fn event_after_a_flood_says_how_many_were_not_written() {
        let mut limit = EventLimit::new();
        let written = (0..100).filter(|_| limit.admit(MonoNs(1), &about("n1")).is_some()).count();
        assert_eq!(written, WRITTEN_MAX as usize);
        assert_eq!(limit.admit(MonoNs(1), &about("n2")), Some(0), "another node is another matter");
        assert_eq!(limit.admit(MonoNs(1 + WINDOW_NS), &about("n1")), Some(100 - u64::from(WRITTEN_MAX)));
        assert_eq!(limit.admit(MonoNs(2 + WINDOW_NS), &about("n1")), Some(0));
        assert_eq!(limit.counts(), [("refused", Level::Info, 103)]);
    }

    #[test]
    fn flood_about_one_thing_hides_no_event_about_another() {
        let mut limit = EventLimit::new();
        let volume = |name: &str| Event::warn("volume_warns", "it is full").about(name);
        let written = (0..100).filter(|_| limit.admit(MonoNs(1), &volume("v1")).is_some()).count();
        assert_eq!(written, WRITTEN_MAX as usize);
        assert_eq!(limit.admit(MonoNs(1), &volume("v2")), Some(0));
    }

    proptest! {
        #[test]
        fn every_event_is_written_or_counted(steps in proptest::collection::vec(0..3_000_000_000u64, 0..300)) {
            let (mut limit, mut now, mut told) = (EventLimit::new(), 0, 0);
            for step in &steps {
                now += step;
                told += limit.admit(MonoNs(now), &about("n")).map_or(0, |suppressed| suppressed + 1);
            }
            let last = limit.admit(MonoNs(now + WINDOW_NS), &about("n"));
            prop_assert_eq!(told + last.unwrap_or(0), steps.len() as u64);
        }

        #[test]
        fn memory_is_bounded_whatever_events_are_about(names in proptest::collection::vec("[a-z]{1,9}", 0..20)) {
            let mut limit = EventLimit::new();
            for number in 0..200u64 {
                for name in &names {
                    limit.admit(MonoNs(number), &about(name).about(number.to_string()));
                }
            }
            prop_assert!(limit.seen.len() <= 2 * KEYS_MAX);
        }
    }
}
