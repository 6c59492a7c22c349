//! Brokers of a pool, and the choice of the one to ask.

use crate::{Dial, Dialer, Link, LinkError};
use farpool_host::Host;
use farpool_wire::{Code, MonoNs};
use std::fmt;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Limit of the brokers in one list.
pub const BROKERS_MAX: usize = 16;
/// Shortest and longest time in ms to wait for one broker if there are several. The time doubles with each round
/// without a reply, so that a leader that is only slow is reached in the end.
const ATTEMPT_MS: (u64, u64) = (500, 4_000);

/// Addresses (`host:port`) of the brokers of a pool, one of which is the leader at a time.
///
/// A caller keeps asking the broker that answered last. If that one does not answer, or says that it is not the leader,
/// the caller fails over to the next one in the list. A request may therefore be sent twice. While one broker answers,
/// the others are never contacted; if none answers, the callers go round the list with growing timeouts.
#[derive(Debug)]
pub struct Brokers {
    addresses: Vec<String>,
    /// Index of the broker that is asked at present.
    now: AtomicUsize,
    /// Number of attempts that timed out since a broker last answered. The timeout doubles with each round of them.
    in_vain: AtomicUsize,
}

impl Brokers {
    /// Parses `host:port,host:port`. The error says what is permitted.
    pub fn new(text: &str) -> Result<Brokers, String> {
        let addresses: Vec<String> = text.split(',').map(str::to_owned).collect();
        let is_address = |address: &&String| {
            address.rsplit_once(':').is_some_and(|(host, port)| {
                !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
            })
        };
        if addresses.len() > BROKERS_MAX {
            return Err(format!("{} brokers; at most {BROKERS_MAX} are permitted", addresses.len()));
        }
        match addresses.iter().find(|address| !is_address(address)) {
            Some(wrong) => Err(format!("invalid broker address {wrong:?}; use HOST:PORT")),
            None => Ok(Brokers { addresses, now: AtomicUsize::new(0), in_vain: AtomicUsize::new(0) }),
        }
    }

    /// Returns all addresses.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Returns the number of brokers.
    pub fn count(&self) -> usize {
        self.addresses.len()
    }

    /// Connects to the current broker. If that fails, the next broker becomes the current one.
    pub fn dial(&self, dialer: &dyn Dialer, deadline: MonoNs) -> Result<Box<dyn Link>, LinkError> {
        let now = self.now.load(Ordering::Relaxed);
        let address = &self.addresses[now % self.addresses.len()];
        let dialled = dialer.dial(Dial::Broker { address }, self.until(dialer, deadline));
        if let Err(error) = &dialled {
            self.leave(now, error);
        }
        dialled
    }

    /// Returns the deadline for waiting for one broker, at most `deadline`.
    pub fn until(&self, host: &dyn Host, deadline: MonoNs) -> MonoNs {
        if self.addresses.len() == 1 {
            return deadline;
        }
        let rounds = self.in_vain.load(Ordering::Relaxed) / self.addresses.len();
        let (least, most) = ATTEMPT_MS;
        deadline.min(host.now().plus_ms(most.min(least << rounds.min(16))))
    }

    /// Notes the result of a request. Reports whether the connection must be closed; then the next broker has become
    /// the current one.
    pub fn heard<T>(&self, answer: &Result<T, LinkError>) -> bool {
        let Err(error) = answer else {
            self.in_vain.store(0, Ordering::Relaxed);
            return false;
        };
        let is_over = is_not_leader(error) || !error.link_survives();
        if is_over {
            self.leave(self.now.load(Ordering::Relaxed), error);
        }
        is_over
    }

    fn leave(&self, one: usize, why: &LinkError) {
        let timed_out = match why {
            LinkError::TimedOut => true,
            LinkError::Disconnected(error) => error.kind() == ErrorKind::TimedOut,
            _ => false,
        };
        if timed_out {
            self.in_vain.fetch_add(1, Ordering::Relaxed);
        }
        // Another thread may have moved on already. One step is enough then.
        let next = (one + 1) % self.addresses.len();
        let _ = self.now.compare_exchange(one, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Reports whether the broker refused because it is not the leader.
pub fn is_not_leader(error: &LinkError) -> bool {
    matches!(error, LinkError::Refused { refusal, .. } if refusal.code == Code::NotLeader)
}

impl fmt::Display for Brokers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.addresses.join(","))
    }
}
