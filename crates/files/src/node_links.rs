//! The connections of this process to one life of one node, and what is known of that life.

use crate::error::{Error, ErrorKind as Kind, name_and_host};
use crate::options::{PoolOptions, TransportChoice};
use farpool_host::Bell;
use farpool_lock::{Mutex, MutexGuard};
use farpool_transport::shm::{MappedRegion, ShmSpace};
use farpool_transport::{Dial, Dialer, Link, LinkError, Transport};
use farpool_wire::control::NodeInfo;
use farpool_wire::data::Span;
use farpool_wire::{Epoch, Handle, MonoNs, RegionIndex};
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Connections kept for the next caller; more are closed after use.
const IDLE_LINKS_MAX: usize = 16;

/// The connections of this process to one life of one node, and what is known of that life.
pub struct NodeLinks {
    host: Arc<dyn Dialer>,
    /// Who it is, and where.
    pub info: NodeInfo,
    transport: Transport,
    space: Arc<ShmSpace>,
    idle: Mutex<Vec<Box<dyn Link>>>,
    /// Why this life of the node is over for us, once it is.
    lost: OnceLock<Lost>,
    /// Whether it is not to be used again, should it be there after all.
    is_barred: AtomicBool,
    /// Until when our leases there may be used, on our own conservative clock.
    leased_until: AtomicU64,
    /// Whether it did not answer in time when it was last asked.
    is_suspect: AtomicBool,
    /// Whether it is being emptied.
    is_draining: AtomicBool,
}

/// How the end of a life of a node was noticed.
struct Lost {
    why: String,
    since: MonoNs,
}

/// A region this process may use.
pub struct LeasedRegion {
    /// Its number in this session.
    pub(crate) id: u64,
    /// The node that has it.
    pub node: Arc<NodeLinks>,
    /// Its place among those of the node.
    pub region: RegionIndex,
    /// What the right to it is good for.
    pub epoch: Epoch,
    /// The right to it.
    pub handle: Handle,
    /// Whether it is ours for a time (or a name's, readable while the name has it).
    pub(crate) is_leased: bool,
    /// Set when the node took it back.
    pub(crate) is_taken: AtomicBool,
}

/// Whether a broken conversation may be had again from the start.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// It changes nothing at the node, or the same thing twice.
    Harmless,
    /// A late first try could undo what came after it.
    Harmful,
}

/// A conversation with a node that has begun.
pub(crate) struct Conversation {
    pub(crate) link: Box<dyn Link>,
    /// Its connection may have died while nobody used it.
    was_idle: bool,
}

impl NodeLinks {
    /// Decides how to reach a node.
    pub(crate) fn new(
        host: Arc<dyn Dialer>,
        info: NodeInfo,
        options: &PoolOptions,
        this_host: u128,
    ) -> Result<NodeLinks, Error> {
        let is_here = this_host != 0 && info.host_boot == this_host && !info.shm_socket.is_empty();
        let space: Arc<ShmSpace> = Arc::default();
        let mut idle: Vec<Box<dyn Link>> = Vec::new();
        let transport = match options.transport {
            TransportChoice::Tcp => Transport::Tcp,
            TransportChoice::Shm if is_here => Transport::Shm,
            // The same host may still be another container or another user: only trying tells.
            TransportChoice::Auto if is_here => {
                let deadline = host.now().plus_ms(options.request_timeout_ms);
                match host.dial(Dial::Local { socket: &info.shm_socket, space: &space }, deadline) {
                    Ok(link) => {
                        idle.push(link);
                        Transport::Shm
                    }
                    Err(_) => Transport::Tcp,
                }
            }
            TransportChoice::Auto => Transport::Tcp,
            TransportChoice::Shm => {
                let message =
                    format!("node {} is not on this host, so it has no shared memory to map", info.name);
                return Err(Error::new(Kind::Invalid, message));
            }
        };
        Ok(NodeLinks {
            host,
            info,
            transport,
            space,
            idle: Mutex::new(idle),
            lost: OnceLock::new(),
            is_barred: AtomicBool::new(false),
            leased_until: AtomicU64::new(0),
            is_suspect: AtomicBool::new(false),
            is_draining: AtomicBool::new(false),
        })
    }

    /// Whether it is reached through shared memory.
    pub fn is_shared(&self) -> bool {
        self.transport == Transport::Shm
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// What we had at this life of the node is gone in the eyes of this process. The first reason given stays.
    /// If the node is there after all, it is begun anew with: see `Leases::links`.
    pub(crate) fn mark_lost(&self, why: &str) {
        self.lost.get_or_init(|| Lost { why: why.to_owned(), since: self.host.now() });
        self.idle().clear();
    }

    /// Ends the use of this node for good: it cannot be trusted.
    pub(crate) fn bar(&self, why: &str) {
        self.is_barred.store(true, Ordering::Relaxed);
        self.mark_lost(why);
    }

    pub(crate) fn is_barred(&self) -> bool {
        self.is_barred.load(Ordering::Relaxed)
    }

    pub(crate) fn is_suspect(&self) -> bool {
        self.is_suspect.load(Ordering::Relaxed)
    }

    pub(crate) fn set_suspect(&self, suspect: bool) {
        self.is_suspect.store(suspect, Ordering::Relaxed);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Relaxed)
    }

    /// Notes whether the node is being emptied. Whether that is new.
    pub(crate) fn set_draining(&self, draining: bool) -> bool {
        !self.is_draining.swap(draining, Ordering::Relaxed) && draining
    }

    pub(crate) fn check_alive(&self) -> Result<(), Error> {
        match self.lost.get() {
            Some(lost) => {
                let seconds = self.host.now().ms_since(lost.since) as f64 / 1e3;
                Err(Error::lost(&self.info, &format!("{}, noticed {seconds:.1} s ago", lost.why)))
            }
            None => Ok(()),
        }
    }

    pub(crate) fn leased_until(&self) -> MonoNs {
        MonoNs(self.leased_until.load(Ordering::Acquire))
    }

    /// A lease asked for at `asked` is good for `ttl_ms` from when the node heard of it, which was later: so
    /// counting from `asked` is safe, less 1 % for clocks that differ in rate.
    pub(crate) fn extend_lease(&self, asked: MonoNs, ttl_ms: u32) {
        let until = asked.plus_ms(u64::from(ttl_ms) * 99 / 100);
        self.leased_until.fetch_max(until.0, Ordering::AcqRel);
    }

    /// Our leases there are over.
    pub(crate) fn end_lease(&self) {
        self.leased_until.store(0, Ordering::Release);
    }

    /// The memory of a range, if this process has it mapped.
    pub(crate) fn mapped(&self, span: &Span) -> Option<Arc<MappedRegion>> {
        if self.is_shared() { self.space.get(span) } else { None }
    }

    /// Unmaps a region that is not ours any more.
    pub(crate) fn forget(&self, region: RegionIndex) {
        self.space.forget(region);
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Box<dyn Link>>> {
        self.idle.lock()
    }

    /// Connects. A node that is just ending may take a connection and drop it: asked again, it refuses.
    fn connect(&self, deadline: MonoNs) -> Result<Box<dyn Link>, LinkError> {
        const TRIES: u32 = 3;
        let mut tries = 1;
        loop {
            match self.connect_once(deadline) {
                Err(LinkError::Cut(cause))
                    if tries < TRIES && cause.kind() != ErrorKind::ConnectionRefused =>
                {
                    tries += 1;
                    self.host.wait(&Bell::default(), 0, self.host.now().plus_ms(1));
                }
                other => return other,
            }
        }
    }

    fn connect_once(&self, deadline: MonoNs) -> Result<Box<dyn Link>, LinkError> {
        self.host.dial(
            match self.transport {
                Transport::Shm => Dial::Local { socket: &self.info.shm_socket, space: &self.space },
                _ => Dial::Node { address: &self.info.address, node: self.info.node },
            },
            deadline,
        )
    }

    /// Has a conversation over a link of its own. A node whose address refuses connections is lost; one that
    /// does not answer in time is only out of reach, until its lease time says otherwise.
    pub fn converse<T>(
        &self,
        deadline: MonoNs,
        repeat: Repeat,
        mut talk: impl FnMut(&mut dyn Link) -> Result<T, LinkError>,
    ) -> Result<T, Error> {
        let mut conversation = self.begin(deadline)?;
        let result = talk(&mut *conversation.link);
        self.end(conversation, result, deadline, repeat, talk)
    }

    /// Begins one: [`Self::end`] must end it.
    pub(crate) fn begin(&self, deadline: MonoNs) -> Result<Conversation, Error> {
        self.check_alive()?;
        let idle = self.idle().pop();
        let was_idle = idle.is_some();
        let link = match idle {
            Some(link) => link,
            None => self.connect(deadline).map_err(|error| self.unreachable(error))?,
        };
        Ok(Conversation { link, was_idle })
    }

    /// Ends a conversation that went so far as `result` says. If it broke off, whether the node is still there is
    /// found out, and if it may be, it is had again over a new link.
    pub(crate) fn end<T>(
        &self,
        conversation: Conversation,
        mut result: Result<T, LinkError>,
        deadline: MonoNs,
        repeat: Repeat,
        mut talk: impl FnMut(&mut dyn Link) -> Result<T, LinkError>,
    ) -> Result<T, Error> {
        let Conversation { mut link, was_idle } = conversation;
        if let Err(LinkError::Cut(_)) = result {
            // Either the idle connection had died quietly, or the node has: connecting anew tells.
            link = self.connect(deadline).map_err(|error| self.unreachable(error))?;
            if was_idle && repeat == Repeat::Harmless {
                result = talk(&mut *link);
            }
        }
        if result.as_ref().err().is_none_or(LinkError::link_survives) {
            let mut idle = self.idle();
            if idle.len() < IDLE_LINKS_MAX && !link.is_worn() && !self.is_lost() {
                idle.push(link);
            }
        }
        result.map_err(|error| self.error(&error))
    }

    /// A link that nobody else will use.
    pub fn dial_own(&self, deadline: MonoNs) -> Result<Box<dyn Link>, Error> {
        self.check_alive()?;
        self.connect(deadline).map_err(|error| self.unreachable(error))
    }

    /// What went wrong on a link to this node, as an error.
    pub fn link_error(&self, error: &LinkError) -> Error {
        self.error(error)
    }

    fn error(&self, error: &LinkError) -> Error {
        Error::of_link(&format!("node {}", name_and_host(&self.info)), error).at_node(&self.info.name)
    }

    fn unreachable(&self, error: LinkError) -> Error {
        // Nobody listens there any more. Other failures (no descriptors left, a full listener) are not its end.
        if let LinkError::Cut(cause) = &error
            && cause.kind() == ErrorKind::ConnectionRefused
        {
            self.mark_lost("it does not accept connections any more");
            if let Err(lost) = self.check_alive() {
                return lost;
            }
        }
        self.error(&error)
    }
}

impl LeasedRegion {
    /// Whether it may be used without asking: as `Session::check_lease`, but for the renewing.
    pub(crate) fn is_ours(&self, now: MonoNs) -> bool {
        self.check_usable().is_ok() && (!self.is_leased || now < self.node.leased_until())
    }

    /// Refuses what is asked of a region that is lost or was taken back.
    pub fn check_usable(&self) -> Result<(), Error> {
        self.node.check_alive()?;
        if self.is_taken.load(Ordering::Acquire) {
            return Err(Error::lost(&self.node.info, "the lease expired before it was renewed"));
        }
        Ok(())
    }
}
