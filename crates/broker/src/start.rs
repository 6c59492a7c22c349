//! A broker with a listener: alone, or as one of several.

use crate::election::{Electorate, Standby};
use crate::service::BrokerService;
use crate::stores::Store;
use farpool_host::{Host, HostEvent, Machine};
use farpool_lease::BrokerSettings;
use farpool_transport::tcp::{self, Listening};
use farpool_transport::{Exposure, Identity};
use farpool_wire::Term;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Running broker. Dropping it stops it. Its promises stay in its store.
pub struct Broker {
    address: SocketAddr,
    role: Role,
    _listening: Listening,
}

/// Role of the broker: the only one, or one of several that elect a leader.
enum Role {
    Alone(Arc<BrokerService>),
    Stands { standby: Arc<Standby>, stopped: HostEvent, standing: Option<JoinHandle<()>> },
}

impl Broker {
    /// Begins a new term with the records of the store, and listens on `address` (port 0: a free one). `exposure` says who
    /// can connect.
    pub fn start(
        address: SocketAddr,
        exposure: &Exposure,
        settings: impl Into<BrokerSettings>,
        store: Box<dyn Store>,
    ) -> io::Result<Broker> {
        check_identity(exposure)?;
        // A broker opens no connections, so any host will do.
        let service = Arc::new(BrokerService::open(Arc::new(Machine), settings, store)?);
        let listening = tcp::listen(address, exposure, Arc::<BrokerService>::clone(&service))?;
        Ok(Broker::over(address, listening, Role::Alone(service)))
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
                host.log(&format!("farpool broker: became leader in term {}", service.term()));
            };
            stands.stand(settings, &*electorate, &end, told);
        })?;
        let role = Role::Stands { standby, stopped, standing: Some(standing) };
        Ok(Broker::over(address, listening, role))
    }

    fn over(asked: SocketAddr, listening: Listening, role: Role) -> Broker {
        let address = listening.local_address().unwrap_or(asked);
        Broker { address, role, _listening: listening }
    }

    /// Returns the address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the term of the broker. `None` while another one leads.
    pub fn term(&self) -> Option<Term> {
        match &self.role {
            Role::Alone(service) => Some(service.term()),
            Role::Stands { standby, .. } => standby.term(),
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // Gives up leadership at once, so that nobody waits for it to time out.
        if let Role::Stands { stopped, standing, .. } = &mut self.role {
            stopped.signal();
            standing.take().map(JoinHandle::join);
        }
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
