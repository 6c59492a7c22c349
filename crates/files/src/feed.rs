//! Waiting for changes of published names, so that nobody has to ask for them by time.
//!
//! The idea: a request over a connection of its own is answered by the broker once a name has another file. The names
//! are asked for over the connection of all other requests before that one is opened, and whenever it fails. The
//! connection of all other requests finds the broker that leads. So a change is noticed whatever becomes of brokers
//! meanwhile.

use crate::error::{Error, ErrorKind};
use crate::session::Session;
use farpool_transport::{Link, LinkError};
use farpool_wire::control::*;
use farpool_wire::limits::AWAITED_NAMES_MAX;
use farpool_wire::{Code, FileId, List, MonoNs, Name, Reply, Request, WireError};
use std::sync::Arc;

/// Time in ms for which the broker may delay an answer. A broker that is gone without a word is noticed once this and
/// the time of a request have passed.
const WAIT_MS: u32 = 10_000;
/// Time in ms after which a waiting thread looks whether its session has ended.
const LOOK_MS: u64 = 200;
/// Shortest and longest pause in ms before names are asked for again, if the broker gives no connection to wait over.
/// The pause doubles with each failure.
const PAUSE_MS: (u64, u64) = (50, 1_000);

/// Names whose changes a session waits for. Used by one thread at a time; it has a connection to the broker.
pub struct NameFeed {
    session: Arc<Session>,
    known: Vec<KnownName>,
    link: Option<Box<dyn Link>>,
    /// Request that was sent over the link and is not answered yet, and the time at which its answer is due.
    posted: Option<(Request, MonoNs)>,
    pause_ms: u64,
}

/// Name that has another file than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameChange {
    /// Position of the name in the list that the feed was made with.
    pub index: usize,
    /// File that the name has now; 0: none.
    pub now: NameNow,
}

impl NameFeed {
    /// Makes a feed of names and the files that they have as far as the caller knows; 0: none.
    ///
    /// Errors: [`ErrorKind::Invalid`] if a name is not permitted, or if there are none, or too many.
    pub fn new(session: &Arc<Session>, known: &[(&str, FileId)]) -> Result<NameFeed, Error> {
        if known.is_empty() || known.len() > AWAITED_NAMES_MAX {
            let message = format!(
                "changes of {} names are asked for; 1 to {AWAITED_NAMES_MAX} are permitted",
                known.len()
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let named = |(name, file): &(&str, FileId)| -> Result<KnownName, WireError> {
            Ok(KnownName { name: Name::new(*name)?, file: *file })
        };
        let known: Result<Vec<KnownName>, WireError> = known.iter().map(named).collect();
        let known = known.map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
        let session = Arc::clone(session);
        Ok(NameFeed { session, known, link: None, posted: None, pause_ms: PAUSE_MS.0 })
    }

    /// Waits until names have other files than those that were returned last, for up to `timeout_ms`. Returns these
    /// names; none if the time is over. Of several changes of a name since the last call it tells the last.
    ///
    /// Errors: [`ErrorKind::Closed`] if the session ends; [`ErrorKind::Unreachable`] if no broker can be reached for as
    /// long as the session is patient with brokers; [`ErrorKind::Exhausted`] if too many requests of this session, or
    /// of all, wait; [`ErrorKind::Refused`] if the broker is of a version that knows no such request.
    pub fn next_within(&mut self, timeout_ms: u64) -> Result<Vec<NameChange>, Error> {
        let until = self.session.deadline(timeout_ms);
        loop {
            self.session.check_open()?;
            if self.link.is_none() {
                let changed = self.ask()?;
                if !changed.is_empty() || self.session.host().now() >= until {
                    return Ok(changed);
                }
            }
            match self.await_answer(until) {
                Ok(Some(changed)) if changed.is_empty() => {}
                Ok(Some(changed)) => return Ok(changed),
                Ok(None) => return self.session.check_open().map(|()| Vec::new()),
                Err(error) => {
                    (self.link, self.posted) = (None, None);
                    self.check_worth_another_try(&error)?;
                    let left_ms = until.ms_since(self.session.host().now());
                    self.session.base.pause(self.pause_ms.min(left_ms))?;
                    self.pause_ms = (2 * self.pause_ms).min(PAUSE_MS.1);
                }
            }
        }
    }

    /// Fails if the broker would answer another request in the same way.
    fn check_worth_another_try(&self, error: &LinkError) -> Result<(), Error> {
        match error {
            LinkError::Refused { refusal, .. }
                if !matches!(refusal.code, Code::NotLeader | Code::StoreFailed | Code::Unsupported) =>
            {
                let of = "waiting for changes of names";
                Err(Error::of_link(&self.session.broker.shown(), error).during(of))
            }
            LinkError::Untrusted(_) => Err(Error::of_link(&self.session.broker.shown(), error)),
            _ => Ok(()),
        }
    }

    fn request(&self, wait_ms: u32) -> AwaitNames {
        let SessionProof { session, secret } = self.session.leases.proof().clone();
        // There are no more than a request may have.
        let known = List::new(self.known.clone()).unwrap_or_default();
        AwaitNames { session, secret, known, wait_ms }
    }

    /// Asks for the files that the names have now, over the link of all other requests.
    fn ask(&mut self) -> Result<Vec<NameChange>, Error> {
        let answer = self.session.broker.await_names(self.request(0))?;
        self.note(&answer).map_err(|error| Error::of_link(&self.session.broker.shown(), &error))
    }

    /// Waits for the answer to the request that waits at the broker. Sends the request first if there is none. `None`
    /// if the answer has not come by `until`; it is still to come then.
    fn await_answer(&mut self, until: MonoNs) -> Result<Option<Vec<NameChange>>, LinkError> {
        let host = Arc::clone(self.session.host());
        let mut link = match self.link.take() {
            Some(link) => link,
            None => self.session.broker.dial_beside()?,
        };
        let (request, due) = match self.posted.take() {
            Some(posted) => posted,
            None => {
                let due = self.session.request_deadline().plus_ms(WAIT_MS.into());
                let request = Request::AwaitNames(self.request(WAIT_MS));
                link.post_call(&request, due)?;
                (request, due)
            }
        };
        loop {
            let look = self.session.deadline(LOOK_MS).min(until).min(due);
            if link.begins_by(look)? {
                break;
            }
            let now = host.now();
            if now >= due {
                return Err(LinkError::TimedOut);
            }
            if now >= until || self.session.check_open().is_err() {
                (self.link, self.posted) = (Some(link), Some((request, due)));
                return Ok(None);
            }
        }
        let Reply::AwaitNames(answer) = link.take_call(&request, due)? else {
            return Err(unexpected());
        };
        let changed = self.note(&answer)?;
        // A broker that has changed nothing and did not wait either is not asked at once.
        let is_early = due.ms_since(host.now()) > self.session.options().request_timeout_ms + LOOK_MS;
        if changed.is_empty() && is_early {
            let left_ms = until.ms_since(host.now());
            // It fails if the session ends, which the caller looks for.
            let _ = self.session.base.pause(self.pause_ms.min(left_ms));
            self.pause_ms = (2 * self.pause_ms).min(PAUSE_MS.1);
        } else {
            self.pause_ms = PAUSE_MS.0;
        }
        self.link = Some(link).filter(|link| !link.is_worn());
        Ok(Some(changed))
    }

    /// Takes the files that the names have now. Returns the names that have other ones.
    fn note(&mut self, answer: &NamesAwaited) -> Result<Vec<NameChange>, LinkError> {
        if answer.now.len() != self.known.len() {
            return Err(unexpected());
        }
        let mut changed = Vec::new();
        for (index, (known, now)) in self.known.iter_mut().zip(answer.now.iter()).enumerate() {
            if known.file != now.file {
                known.file = now.file;
                changed.push(NameChange { index, now: *now });
            }
        }
        Ok(changed)
    }
}

fn unexpected() -> LinkError {
    LinkError::Disconnected(std::io::Error::other("the broker's answer is about other names"))
}
