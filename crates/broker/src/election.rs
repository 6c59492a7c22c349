//! Several brokers, of which one leads.
//!
//! The idea: what may be said is decided by the store, not by who believes to lead. Whoever wins an election gets a
//! store that writes only for as long as nobody else has won since, and begins a new term in it; nodes refuse tickets
//! of older terms. So two that both believe to lead can do no harm, and times are for liveness alone: a leader stops
//! answering when it has not heard for so long that another may have won, and whoever asked goes on to the next.

use crate::service::BrokerService;
use crate::stores::{Store, StoreError};
use farpool_host::{Bell, Host};
use farpool_lease::BrokerSettings;
use farpool_lock::Mutex;
use farpool_transport::{Peer, Service};
use farpool_wire::{Code, MonoNs, Refusal, Reply, Request, Term};
use std::sync::Arc;

/// How often one that stands by looks whether nobody leads.
const LOOK_MS: u64 = 200;
/// A leader shows that it lives so many times in the time after which it is given up.
const SIGNS_OF_LIFE: u64 = 6;
/// Of the time after which it is given up, a leader leaves a part of so many unused: clocks do not run alike.
const MARGIN: u64 = 8;

/// Where brokers agree on who leads.
pub trait Electorate: Send + Sync {
    /// Takes the lead, if nobody has it. May block for as long as the lead lasts without a sign of life.
    fn campaign(&self) -> Result<Option<Won>, StoreError>;
}

/// What whoever wins gets.
pub struct Won {
    /// The lead.
    pub lead: Box<dyn Lead>,
    /// Keeps records for as long as nobody else has won since.
    pub store: Box<dyn Store>,
}

/// The lead of one broker.
pub trait Lead: Send {
    /// Milliseconds after which a leader without a sign of life is given up, by the electorate's clock.
    fn lasts_ms(&self) -> u64;
    /// Gives a sign of life. Whether it leads on; an error if that could not be found out.
    fn keep(&mut self) -> Result<bool, StoreError>;
    /// Gives it up at once, if that can be said to anybody.
    fn resign(&mut self);
}

/// Answers for a broker that leads at times, and sends others away while it does not.
pub struct Standby {
    host: Arc<dyn Host>,
    leads: Mutex<Option<Leading>>,
}

struct Leading {
    service: Arc<BrokerService>,
    until: MonoNs,
}

const NOT_LEADER: Refusal = Refusal { code: Code::NotLeader, detail: 0 };

impl Standby {
    /// One that does not lead yet.
    pub fn new(host: Arc<dyn Host>) -> Standby {
        Standby { host, leads: Mutex::new(None) }
    }

    /// What answers at this moment, if this one leads.
    pub fn leading(&self) -> Option<Arc<BrokerService>> {
        let leads = self.leads.lock();
        let timely = |leading: &&Leading| self.host.now() < leading.until;
        leads.as_ref().filter(timely).map(|leading| Arc::clone(&leading.service))
    }

    /// The term that it leads in, if it does.
    pub fn term(&self) -> Option<Term> {
        self.leading().map(|service| service.term())
    }

    fn lead(&self, service: &Arc<BrokerService>, until: MonoNs) {
        *self.leads.lock() = Some(Leading { service: Arc::clone(service), until });
    }

    fn step_down(&self) {
        *self.leads.lock() = None;
    }

    /// Stands for election until `stopped` rings, and leads whenever it has won. `told` hears of each term it begins.
    pub fn stand(
        &self,
        settings: impl Into<BrokerSettings>,
        electorate: &dyn Electorate,
        stopped: &Bell,
        told: impl Fn(&Arc<BrokerService>),
    ) {
        let settings = settings.into();
        let mut complained = false;
        while stopped.heard() == 0 {
            let asked = self.host.now();
            match electorate.campaign() {
                Ok(None) => complained = false,
                Ok(Some(Won { lead, store })) => {
                    complained = false;
                    match BrokerService::open(Arc::clone(&self.host), settings.clone(), store) {
                        Ok(service) => self.lead_on(Arc::new(service), lead, asked, stopped, &told),
                        Err(error) => {
                            self.host.say(&format!("farpool broker: won, but cannot begin: {error}"));
                            let mut lead = lead;
                            lead.resign();
                        }
                    }
                }
                Err(error) => {
                    if !complained {
                        self.host.say(&format!("farpool broker: {error}; trying on"));
                    }
                    complained = true;
                }
            }
            if stopped.heard() == 0 {
                self.host.wait(stopped, 0, self.host.now().plus_ms(LOOK_MS));
            }
        }
    }

    /// Leads until that is over, or until the end.
    fn lead_on(
        &self,
        service: Arc<BrokerService>,
        mut lead: Box<dyn Lead>,
        begun: MonoNs,
        stopped: &Bell,
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
            if service.has_failed() {
                break Some("its store does not take what it says".to_owned());
            }
            let asked = host.now();
            match lead.keep() {
                Ok(true) => self.lead(&service, until(asked)),
                Ok(false) => break Some("its lead was given up".to_owned()),
                // Nobody may have won meanwhile: if so, it leads on when that is found out. Until then it sends others
                // away.
                Err(_) => {}
            }
        };
        self.step_down();
        lead.resign();
        if let Some(why) = why {
            host.say(&format!("farpool broker: no longer leads in term {}: {why}", service.term()));
        }
    }
}

impl Service for Standby {
    fn call(&self, peer: &Peer, request: Request) -> Result<Reply, Refusal> {
        let service = self.leading().ok_or(NOT_LEADER)?;
        match service.call(peer, request) {
            // What it would have promised another will.
            Err(refusal) if refusal.code == Code::StoreFailed => Err(NOT_LEADER),
            answer => answer,
        }
    }
}
