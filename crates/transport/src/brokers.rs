//! The brokers of a pool: whom to ask, and whom next.

use crate::{Dial, Dialer, Link, LinkError};
use farpool_host::Host;
use farpool_wire::{Code, MonoNs};
use std::fmt;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Brokers that stand in for each other, at most.
pub const BROKERS_MAX: usize = 16;
/// Where there are others to ask, one that does not answer is waited for no longer than this: at first, and at most. It
/// doubles with each round in vain, so that a leader that is only slow is heard in the end.
const ATTEMPT_MS: (u64, u64) = (500, 4_000);

/// `host:port` of each broker, of which one leads at a time.
///
/// The idea: whoever asks keeps to the one that answered last. One that does not answer, or says that it does not lead,
/// makes it go on to the next; what it asks may be asked twice.
#[derive(Debug)]
pub struct Brokers {
    addresses: Vec<String>,
    /// Which is asked at present.
    now: AtomicUsize,
    /// How many were waited for in vain since one answered.
    in_vain: AtomicUsize,
}

impl Brokers {
    /// Reads `host:port,host:port`. An error says what is permitted.
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

    /// All of them.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.addresses.len()
    }

    /// Connects to the one that is asked at present; goes on to the next if that fails.
    pub fn dial(&self, dialer: &dyn Dialer, deadline: MonoNs) -> Result<Box<dyn Link>, LinkError> {
        let now = self.now.load(Ordering::Relaxed);
        let address = &self.addresses[now % self.addresses.len()];
        let dialled = dialer.dial(Dial::Broker { address }, self.until(dialer, deadline));
        if let Err(error) = &dialled {
            self.leave(now, error);
        }
        dialled
    }

    /// Until when to wait for one of them.
    pub fn until(&self, host: &dyn Host, deadline: MonoNs) -> MonoNs {
        if self.addresses.len() == 1 {
            return deadline;
        }
        let rounds = self.in_vain.load(Ordering::Relaxed) / self.addresses.len();
        let (least, most) = ATTEMPT_MS;
        deadline.min(host.now().plus_ms(most.min(least << rounds.min(16))))
    }

    /// What an answer, or none, says of who is asked next. Whether its connection is of no more use.
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
            LinkError::Cut(error) => error.kind() == ErrorKind::TimedOut,
            _ => false,
        };
        if timed_out {
            self.in_vain.fetch_add(1, Ordering::Relaxed);
        }
        // If another thread has gone on already, that is far enough.
        let next = (one + 1) % self.addresses.len();
        let _ = self.now.compare_exchange(one, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Whether a broker sent the asker to the others.
pub fn is_not_leader(error: &LinkError) -> bool {
    matches!(error, LinkError::Refused { refusal, .. } if refusal.code == Code::NotLeader)
}

impl fmt::Display for Brokers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.addresses.join(","))
    }
}
