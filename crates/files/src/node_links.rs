//! Connections of this process to one life of a node, and what is known about that life.

use crate::error::{Error, ErrorKind as Kind, name_and_host};
use crate::options::{PoolOptions, TransportChoice};
use crate::session_core::{BRIEF_MS, LOOK_MS};
use farpool_host::{Event, HostEvent};
use farpool_lock::{Mutex, MutexGuard};
use farpool_transport::shm::{MappedRegion, ShmSpace};
use farpool_transport::{Dial, Dialer, Link, LinkError, Transport};
use farpool_wire::control::NodeInfo;
use farpool_wire::data::Span;
use farpool_wire::{Epoch, Handle, MonoNs, RegionIndex};
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Idle connections that are kept for later requests. Further ones are closed after use.
const IDLE_LINKS_MAX: usize = 16;

/// Connections of this process to one life of a node, and what is known about that life. A node that restarts begins
/// another life.
pub struct NodeLinks {
    host: Arc<dyn Dialer>,
    /// Name, host and addresses of the node.
    pub info: NodeInfo,
    transport: Transport,
    space: Arc<ShmSpace>,
    idle: Mutex<Vec<Box<dyn Link>>>,
    /// How and when this life was found to be over. Empty while it is not.
    lost: OnceLock<Lost>,
    /// True if this life must not be used again, even if the node still answers.
    is_barred: AtomicBool,
    /// Time until which our leases at the node may be used, in ns of the host's clock. Counted so that it never ends
    /// after the node's own time.
    leased_until: AtomicU64,
    /// True if the node did not answer the last request in time.
    is_suspect: AtomicBool,
    /// Number of calls of functions that run there for this session.
    running: AtomicU32,
    /// True if the node is being drained: its leases are to move elsewhere.
    is_draining: AtomicBool,
}

/// Reason and time at which a life of a node was found to be over.
struct Lost {
    why: String,
    since: MonoNs,
}

/// Region that this process may use.
pub struct LeasedRegion {
    /// Number of the region in this session.
    pub(crate) id: u64,
    /// Node that has the region.
    pub node: Arc<NodeLinks>,
    /// Index of the region at its node.
    pub region: RegionIndex,
    /// Epoch for which the handle is valid.
    pub epoch: Epoch,
    /// Secret number that proves the right to use the region.
    pub handle: Handle,
    /// True if the region is leased to this session. False if it belongs to a published name and may be read while the
    /// name has it.
    pub(crate) is_leased: bool,
    /// True once the node has revoked the region.
    pub(crate) is_taken: AtomicBool,
}

impl LeasedRegion {
    /// Number of regions that this session has not leased itself.
    pub(crate) const NO_ID: u64 = u64::MAX;

    /// Reports whether a region of a file that this session has sealed is a segment, which the node has filled.
    pub(crate) fn is_segment(&self) -> bool {
        self.id == LeasedRegion::NO_ID && !self.is_leased
    }
}

/// Call of a function that runs at a node.
pub struct RunningCall<'n>(&'n NodeLinks);

impl Drop for RunningCall<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Permission to send a request again after its connection broke.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// The request changes nothing at the node, or has the same effect if done twice.
    Harmless,
    /// The first request may arrive late and undo what came after it.
    Harmful,
}

/// Request to a node that has begun: the link it uses.
pub(crate) struct Conversation {
    pub(crate) link: Box<dyn Link>,
    /// True if the link was taken from the idle ones. Its connection may have died unnoticed.
    was_idle: bool,
}

impl NodeLinks {
    /// Chooses the transport to a node.
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
            // A node of the same host may be in another container or belong to another user. Only a connection shows if
            // its memory can be mapped.
            TransportChoice::Auto if is_here => {
                let deadline = host.now().plus_ms(options.request_timeout_ms);
                match host.dial(Dial::Local { socket: &info.shm_socket, space: &space }, deadline) {
                    Ok(link) => {
                        idle.push(link);
                        Transport::Shm
                    }
                    Err(error) => {
                        let message = format!(
                            "node {} is on this host, but its memory cannot be mapped ({error}): it is reached over \
                             tcp; pods share it if node and client have the directory of --shm-dir",
                            info.name
                        );
                        host.log(&Event::info("no_shared_memory", message).node(info.name.to_string()));
                        Transport::Tcp
                    }
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
            running: AtomicU32::new(0),
            is_draining: AtomicBool::new(false),
        })
    }

    /// Reports whether the node is reached through shared memory.
    pub fn is_shared(&self) -> bool {
        self.transport == Transport::Shm
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Marks this life as over: everything we had there is gone for this process. The first reason given is kept. If
    /// the node answers after all, `Leases::links` makes new links to it.
    pub(crate) fn mark_lost(&self, why: &str) {
        self.lost.get_or_init(|| Lost { why: why.to_owned(), since: self.host.now() });
        self.idle().clear();
        self.space.clear();
    }

    /// Marks this life as over for good, because the node cannot be trusted.
    pub(crate) fn bar(&self, why: &str) {
        self.is_barred.store(true, Ordering::Relaxed);
        self.mark_lost(why);
    }

    pub(crate) fn is_barred(&self) -> bool {
        self.is_barred.load(Ordering::Relaxed)
    }

    /// Counts a call as running at the node until the returned value is dropped.
    pub fn begin_call(&self) -> RunningCall<'_> {
        self.running.fetch_add(1, Ordering::Relaxed);
        RunningCall(self)
    }

    /// Returns the number of calls of this session that run at the node.
    pub(crate) fn running(&self) -> u32 {
        self.running.load(Ordering::Relaxed)
    }

    /// Reports whether the node did not answer last time. Copies elsewhere are then preferred until it answers again.
    pub fn is_suspect(&self) -> bool {
        self.is_suspect.load(Ordering::Relaxed)
    }

    /// Returns the time limit in ms of a request that other nodes can do as well. A node that was silent last time has
    /// less.
    pub(crate) fn brief_ms(&self) -> u64 {
        if self.is_suspect() { LOOK_MS } else { BRIEF_MS }
    }

    /// Notes that the node did not answer. Renewals find out when it does again.
    pub fn suspect(&self) {
        self.set_suspect(true);
    }

    pub(crate) fn set_suspect(&self, suspect: bool) {
        self.is_suspect.store(suspect, Ordering::Relaxed);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Relaxed)
    }

    /// Notes whether the node is being drained. Returns true if it is and was not before.
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

    /// Extends the lease of the node by `ttl_ms`, counted from `asked`, the time at which it was requested. The node
    /// counts from when the request arrived, which was later, so this is safe. 1 % is subtracted for clocks that differ
    /// in rate.
    pub(crate) fn extend_lease(&self, asked: MonoNs, ttl_ms: u32) {
        let until = asked.plus_ms(u64::from(ttl_ms) * 99 / 100);
        self.leased_until.fetch_max(until.0, Ordering::AcqRel);
    }

    /// Notes that our leases at the node are over.
    pub(crate) fn end_lease(&self) {
        self.leased_until.store(0, Ordering::Release);
    }

    /// Returns the memory of a range. `None` if this process has not mapped it.
    pub(crate) fn mapped(&self, span: &Span) -> Option<Arc<MappedRegion>> {
        if self.is_shared() { self.space.get(span) } else { None }
    }

    /// Unmaps a region that is not leased any more.
    pub(crate) fn forget(&self, region: RegionIndex) {
        self.space.forget(region);
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Box<dyn Link>>> {
        self.idle.lock()
    }

    /// Connects. A node that is shutting down may accept a connection and drop it; the next try then finds it refused.
    fn connect(&self, deadline: MonoNs) -> Result<Box<dyn Link>, LinkError> {
        const TRIES: u32 = 3;
        let mut tries = 1;
        loop {
            match self.connect_once(deadline) {
                Err(LinkError::Disconnected(cause))
                    if tries < TRIES && cause.kind() != ErrorKind::ConnectionRefused =>
                {
                    tries += 1;
                    self.host.wait(&HostEvent::default(), 0, self.host.now().plus_ms(1));
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

    /// Runs `talk` on a link that nobody else uses meanwhile. A node whose address refuses connections is marked lost.
    /// One that does not answer in time is only out of reach, until its lease runs out.
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

    /// Takes or opens a link for a request. The caller must pass it to [`Self::end`].
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

    /// Ends a request whose result so far is `result`, and keeps its link for others. If the connection broke, connects
    /// again, which shows if the node is there. If the link had been idle and `repeat` allows it, runs `talk` again.
    pub(crate) fn end<T>(
        &self,
        conversation: Conversation,
        mut result: Result<T, LinkError>,
        deadline: MonoNs,
        repeat: Repeat,
        mut talk: impl FnMut(&mut dyn Link) -> Result<T, LinkError>,
    ) -> Result<T, Error> {
        let Conversation { mut link, was_idle } = conversation;
        if let Err(LinkError::Disconnected(_)) = result {
            // Either the idle connection had died or the node has. A new connection shows which.
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

    /// Opens a link that only the caller uses.
    pub fn dial_own(&self, deadline: MonoNs) -> Result<Box<dyn Link>, Error> {
        self.check_alive()?;
        self.connect(deadline).map_err(|error| self.unreachable(error))
    }

    /// Turns an error of a link to this node into an [`Error`].
    pub fn link_error(&self, error: &LinkError) -> Error {
        self.error(error)
    }

    fn error(&self, error: &LinkError) -> Error {
        Error::of_link(&format!("node {}", name_and_host(&self.info)), error).at_node(&self.info.name)
    }

    fn unreachable(&self, error: LinkError) -> Error {
        // Nobody listens there any more. Other failures, such as no file descriptors or a full listener, do not mean
        // that.
        if let LinkError::Disconnected(cause) = &error
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
    /// Reports whether the region may be used without a request. It is `Session::check_lease` without the renewal.
    pub(crate) fn is_ours(&self, now: MonoNs) -> bool {
        self.check_usable().is_ok() && (!self.is_leased || now < self.node.leased_until())
    }

    /// Fails if the region's node is lost or has revoked it, or if published bytes are not there any more.
    pub fn check_usable(&self) -> Result<(), Error> {
        self.node.check_alive()?;
        if self.is_taken.load(Ordering::Acquire) {
            return Err(match self.is_leased {
                true => Error::lost(&self.node.info, "the lease expired before it was renewed"),
                false => Error::moved(&self.node.info),
            });
        }
        Ok(())
    }
}
