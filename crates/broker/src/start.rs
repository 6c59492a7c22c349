//! A broker with a listener: alone, or as one of several.

use crate::election::{Electorate, Standby};
use crate::service::BrokerService;
use crate::stores::Store;
use farpool_host::{Event, Host, HostEvent, Machine};
use farpool_lease::BrokerSettings;
use farpool_transport::tcp::{self, Listening};
use farpool_transport::times::{OperationTime, OperationTimes};
use farpool_transport::{Exposure, Identity, Service};
use farpool_wire::Term;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Running broker. Dropping it stops it. The names and the term that it has stored stay in its store.
pub struct Broker {
    address: SocketAddr,
    role: Role,
    stopped: HostEvent,
    /// Thread that stands for election, or, if the broker is alone, looks for nodes that have fallen silent.
    watching: Option<JoinHandle<()>>,
    _listening: Listening,
}

/// Role of the broker: the only one, or one of several that elect a leader.
enum Role {
    Alone(Arc<BrokerService>),
    Stands(Arc<Standby>),
}

impl Broker {
    /// Begins a new term with the records of the store, and listens on `address` (port 0: a free one). `exposure` says
    /// who can connect.
    pub fn start(
        address: SocketAddr,
        exposure: &Exposure,
        settings: impl Into<BrokerSettings>,
        store: Box<dyn Store>,
    ) -> io::Result<Broker> {
        check_identity(exposure)?;
        let settings = settings.into();
        let look_ms = settings.look_ms;
        // The host gives the broker time, random numbers and a log.
        let host: Arc<dyn Host> = Arc::new(Machine);
        let service = Arc::new(BrokerService::open(Arc::clone(&host), settings, store)?);
        let listening = tcp::listen(address, exposure, Arc::<BrokerService>::clone(&service))?;
        let (stopped, watched) = (HostEvent::default(), Arc::clone(&service));
        let end = stopped.clone();
        let watching = std::thread::Builder::new().name("farpool-watches".into()).spawn(move || {
            while end.heard() == 0 {
                watched.look();
                host.wait(&end, 0, host.now().plus_ms(look_ms));
            }
        })?;
        Ok(Broker::over(address, listening, Role::Alone(service), stopped, watching))
    }

    /// Listens on `address` as one of several brokers. It stands for election and leads whenever it has won. While it
    /// does not lead, it refuses requests, and the peers ask the others.
    pub fn stand(
        address: SocketAddr,
        exposure: &Exposure,
        settings: impl Into<BrokerSettings>,
        electorate: Box<dyn Electorate>,
    ) -> io::Result<Broker> {
        check_identity(exposure)?;
        let settings = settings.into();
        if let Some(mistake) = settings.mistakes().into_iter().next() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, mistake));
        }
        let host: Arc<dyn Host> = Arc::new(Machine);
        let (standby, stopped) = (Arc::new(Standby::new(Arc::clone(&host))), HostEvent::default());
        let listening = tcp::listen(address, exposure, Arc::<Standby>::clone(&standby))?;
        let (stands, end) = (Arc::clone(&standby), stopped.clone());
        let standing = std::thread::Builder::new().name("farpool-stands".into()).spawn(move || {
            let told = |service: &Arc<BrokerService>| {
                host.log(&Event::info("leader", format!("this broker leads in term {}", service.term())));
            };
            stands.stand(settings, &*electorate, &end, told);
        })?;
        Ok(Broker::over(address, listening, Role::Stands(standby), stopped, standing))
    }

    fn over(
        asked: SocketAddr,
        listening: Listening,
        role: Role,
        stopped: HostEvent,
        watching: JoinHandle<()>,
    ) -> Broker {
        let address = listening.local_address().unwrap_or(asked);
        Broker { address, role, stopped, watching: Some(watching), _listening: listening }
    }

    /// Returns the address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the service that answers for the pool. `None` while another broker leads.
    pub fn leading(&self) -> Option<Arc<BrokerService>> {
        match &self.role {
            Role::Alone(service) => Some(Arc::clone(service)).filter(|service| !service.has_failed()),
            Role::Stands(standby) => standby.leading(),
        }
    }

    /// Returns the times of the requests that were answered.
    pub fn times(&self) -> Vec<OperationTime> {
        let times = match &self.role {
            Role::Alone(service) => service.times(),
            Role::Stands(standby) => standby.times(),
        };
        times.map(OperationTimes::read).unwrap_or_default()
    }

    /// Returns the term of the broker. `None` while another one leads.
    pub fn term(&self) -> Option<Term> {
        match &self.role {
            Role::Alone(service) => Some(service.term()),
            Role::Stands(standby) => standby.term(),
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // Gives up leadership at once, so that nobody waits for it to time out.
        self.stopped.signal();
        self.watching.take().map(JoinHandle::join);
    }
}

fn check_identity(exposure: &Exposure) -> io::Result<()> {
    match exposure.tls.as_ref().filter(|tls| *tls.identity() != Identity::Broker) {
        Some(tls) => {
            let (found, needed) = (tls.identity(), Identity::Broker);
            let message =
                format!("its certificate belongs to {found}; a broker needs a certificate of {needed}");
            Err(io::Error::new(io::ErrorKind::InvalidInput, message))
        }
        None => Ok(()),
    }
}
