//! Several brokers, of which one leads.
//!
//! The idea: the store decides which broker leads, whatever the brokers themselves believe. The winner of an election
//! gets a store that accepts writes only until somebody else wins, and begins a new term in it. The term is a number
//! that only grows, and nodes refuse tickets of older terms. Two brokers that both believe to lead can therefore do no
//! harm.
//!
//! Times matter for liveness only. A leader that could not send a heartbeat for so long that another may have won stops
//! answering. Its peers then go on to the next broker.

use crate::service::BrokerService;
use crate::stores::{Store, StoreError};
use farpool_host::{Event, Host, HostEvent};
use farpool_lease::BrokerSettings;
use farpool_lock::Mutex;
use farpool_transport::delay::Delay;
use farpool_transport::times::OperationTimes;
use farpool_transport::{Peer, Service};
use farpool_wire::{Code, MonoNs, Refusal, Reply, Request, Term};
use std::sync::Arc;

/// Pause in ms between two looks for a vacant leadership, on a broker that does not lead.
const LOOK_MS: u64 = 200;
/// Number of heartbeats that a leader sends within the timeout of its leadership.
const SIGNS_OF_LIFE: u64 = 6;
/// Divisor of the timeout: a leader stops answering that part of the timeout early, because clocks do not run alike.
const MARGIN: u64 = 8;

/// Service in which brokers agree on a leader.
pub trait Electorate: Send + Sync {
    /// Takes the leadership if nobody has it. May block for up to the timeout of a leadership.
    fn campaign(&self) -> Result<Option<Victory>, StoreError>;
}

/// Result of an election that was won.
pub struct Victory {
    /// The leadership.
    pub lead: Box<dyn Leadership>,
    /// Store that accepts writes until somebody else wins.
    pub store: Box<dyn Store>,
}

/// Leadership of one broker.
pub trait Leadership: Send {
    /// Returns the timeout in ms after which a leader without a heartbeat is replaced, by the electorate's clock.
    fn lasts_ms(&self) -> u64;
    /// Sends a heartbeat. Returns true if this broker still leads. Fails if that could not be found out.
    fn keep(&mut self) -> Result<bool, StoreError>;
    /// Gives up leadership at once, if the electorate can be reached.
    fn resign(&mut self);
}

/// Service of a broker that leads at times. It refuses all requests while it does not lead.
pub struct Standby {
    host: Arc<dyn Host>,
    leads: Mutex<Option<Leading>>,
    /// Times of the requests that were answered, in all terms.
    times: OperationTimes,
}

struct Leading {
    service: Arc<BrokerService>,
    /// Time from which on the broker answers nothing, unless a heartbeat has moved it.
    until: MonoNs,
}

const NOT_LEADER: Refusal = Refusal { code: Code::NotLeader, detail: 0 };

impl Standby {
    /// Makes a service that does not lead yet.
    pub fn new(host: Arc<dyn Host>) -> Standby {
        Standby { host, leads: Mutex::new(None), times: OperationTimes::default() }
    }

    /// Returns the service, if this broker leads at this moment.
    pub fn leading(&self) -> Option<Arc<BrokerService>> {
        let leads = self.leads.lock();
        let timely = |leading: &&Leading| self.host.now() < leading.until;
        leads.as_ref().filter(timely).map(|leading| Arc::clone(&leading.service))
    }

    /// Returns the term in which this broker leads. `None` if it does not lead.
    pub fn term(&self) -> Option<Term> {
        self.leading().map(|service| service.term())
    }

    fn lead(&self, service: &Arc<BrokerService>, until: MonoNs) {
        *self.leads.lock() = Some(Leading { service: Arc::clone(service), until });
    }

    fn step_down(&self) {
        *self.leads.lock() = None;
    }

    /// Stands for election until `stopped` is signalled, and leads whenever it has won. Calls `told` with the service
    /// of each term that it begins.
    pub fn stand(
        &self,
        settings: impl Into<BrokerSettings>,
        electorate: &dyn Electorate,
        stopped: &HostEvent,
        told: impl Fn(&Arc<BrokerService>),
    ) {
        let settings = settings.into();
        let mut complained = false;
        while stopped.heard() == 0 {
            let asked = self.host.now();
            match electorate.campaign() {
                Ok(None) => complained = false,
                Ok(Some(Victory { lead, store })) => {
                    complained = false;
                    // Lasts as long as the leader before may answer, by clocks that do not run alike.
                    let failover_ms = lead.lasts_ms() + lead.lasts_ms() / MARGIN;
                    let look_ms = lead.lasts_ms() / SIGNS_OF_LIFE;
                    let settings = BrokerSettings { failover_ms, look_ms, ..settings.clone() };
                    match BrokerService::open(Arc::clone(&self.host), settings, store) {
                        Ok(service) => self.lead_on(Arc::new(service), lead, asked, stopped, &told),
                        Err(error) => {
                            let message = format!("this broker won the election, but cannot start: {error}");
                            self.host.log(&Event::error("leader_failed", message));
                            let mut lead = lead;
                            lead.resign();
                        }
                    }
                }
                Err(error) => {
                    if !complained {
                        self.host.log(&Event::warn("electorate_unreachable", format!("{error}; retrying")));
                    }
                    complained = true;
                }
            }
            if stopped.heard() == 0 {
                self.host.wait(stopped, 0, self.host.now().plus_ms(LOOK_MS));
            }
        }
    }

    /// Leads until the leadership is lost or `stopped` is signalled.
    fn lead_on(
        &self,
        service: Arc<BrokerService>,
        mut lead: Box<dyn Leadership>,
        begun: MonoNs,
        stopped: &HostEvent,
        told: &impl Fn(&Arc<BrokerService>),
    ) {
        let lasts_ms = lead.lasts_ms();
        let until = |alive: MonoNs| alive.plus_ms(lasts_ms - lasts_ms / MARGIN);
        let host = &*self.host;
        self.lead(&service, until(begun));
        told(&service);
        let why = loop {
            host.wait(stopped, 0, host.now().plus_ms(lasts_ms / SIGNS_OF_LIFE));
            if stopped.heard() > 0 {
                break None;
            }
            // Whoever is refused seems to be silent, so nothing is concluded from that.
            if self.leading().is_some() {
                service.look();
            }
            if service.has_failed() {
                break Some("its store failed".to_owned());
            }
            let asked = host.now();
            match lead.keep() {
                Ok(true) => {
                    if self.leading().is_none() {
                        service.resume();
                    }
                    self.lead(&service, until(asked));
                }
                Ok(false) => break Some("it lost the leadership".to_owned()),
                // The electorate cannot be reached. If nobody has won meanwhile, the leadership continues once it
                // answers. Until then requests are refused, as soon as the last heartbeat is too old.
                Err(_) if self.leading().is_none() => service.wake_waits(),
                Err(_) => {}
            }
        };
        self.step_down();
        service.end_waits();
        lead.resign();
        if let Some(why) = why {
            let message = format!("this broker leads no longer in term {}: {why}", service.term());
            host.log(&Event::warn("leader_lost", message));
        }
    }
}

impl Service for Standby {
    fn times(&self) -> Option<&OperationTimes> {
        Some(&self.times)
    }

    fn delay(&self, peer: &Peer, request: &Request) -> Result<Option<Delay>, Refusal> {
        self.leading().ok_or(NOT_LEADER)?.delay(peer, request)
    }

    fn call(&self, peer: &Peer, request: Request) -> Result<Reply, Refusal> {
        let service = self.leading().ok_or(NOT_LEADER)?;
        let answer = service.call(peer, request);
        // A request may have waited for so long that another broker leads now, which does not know what this one
        // promises.
        let leads = self.leading().is_some_and(|leading| Arc::ptr_eq(&leading, &service));
        match answer {
            // Another broker has taken over and will answer this request.
            Err(refusal) if refusal.code == Code::StoreFailed => Err(NOT_LEADER),
            answer if leads => answer,
            _ => Err(NOT_LEADER),
        }
    }
}
