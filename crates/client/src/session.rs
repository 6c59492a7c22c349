//! A session: what this process holds in the pool, and the conversations that keep it.

use crate::error::{Error, ErrorKind};
use crate::node_links::{LeasedRegion, NodeLinks, Repeat};
use crate::options::PoolOptions;
use crate::plan::{Allocator, Cut, EXTENT_BYTES_MAX, Group};
use crate::stats::{Counters, add, subtract};
use farpool_transport::{FrameLink, Link, LinkError, clock, socket::Socket, tcp};
use farpool_wire::control::*;
use farpool_wire::limits::LEASE_REGIONS_MAX;
use farpool_wire::{Code, FileClass, Incarnation, List, Name, NodeId, Reply, Request};
use std::collections::BTreeMap;
use std::net::ToSocketAddrs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Regions are leased ahead by a quarter of what is held, within these bounds: few questions to the broker,
/// little taken in vain.
const AHEAD_BYTES_MIN: u64 = 128 << 20;
const AHEAD_BYTES_MAX: u64 = 1 << 30;
/// Renewals happen three times a lease, but at least this often, so that a lost node is noticed soon.
const RENEW_MS_MAX: u64 = 250;
/// A region that holds nothing for this many renewals goes back.
const IDLE_RENEWALS: u32 = 4;
/// A node may be wiping what was just released: a full pool is asked again this often.
const FULL_TRIES: u32 = 5;

#[derive(Default)]
struct Held {
    allocator: Allocator<u64>,
    regions: BTreeMap<u64, Arc<LeasedRegion>>,
    idle_for: BTreeMap<u64, u32>,
    next_id: u64,
}

pub(crate) struct Session {
    pub(crate) options: PoolOptions,
    broker_address: String,
    broker: Mutex<Option<FrameLink<Socket>>>,
    proof: SessionProof,
    lease_ttl_ms: u32,
    grace_ms: u32,
    this_host: u128,
    nodes: Mutex<BTreeMap<(NodeId, Incarnation), Arc<NodeLinks>>>,
    held: Mutex<Held>,
    /// One thread at a time asks for more.
    growing: Mutex<()>,
    pub(crate) counters: Counters,
    /// Scratch bytes that stay leased however idle they are.
    floor_bytes: AtomicU64,
    is_closed: AtomicBool,
    process: u32,
    stop: Mutex<bool>,
    stopping: Condvar,
}

/// Until there is mutual TLS, nothing leaves this machine unless that was asked for.
pub(crate) fn check_reach(what: &str, address: &str, plaintext: bool) -> Result<(), Error> {
    if plaintext {
        return Ok(());
    }
    let found = address
        .to_socket_addrs()
        .map_err(|error| Error::new(ErrorKind::Unreachable, format!("{what} at {address}: {error}")))?;
    match found.map(|address| address.ip()).find(|ip| !ip.is_loopback()) {
        Some(ip) => Err(Error::new(
            ErrorKind::Refused,
            format!(
                "{what} at {address} is beyond this machine ({ip}), and this version does not encrypt or \
                 authenticate: set the option `plaintext` to connect all the same"
            ),
        )),
        None => Ok(()),
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The answer of the kind that belongs to the question, or a protocol error.
macro_rules! answer_of {
    ($reply:expr, $kind:ident) => {
        match $reply {
            farpool_wire::Reply::$kind(message) => Ok(message),
            other => Err(crate::error::Error::new(
                crate::error::ErrorKind::Refused,
                format!("the answer to {} is of kind {:?}", stringify!($kind), other.opcode()),
            )),
        }
    };
}
pub(crate) use answer_of;

impl Session {
    pub(crate) fn open(broker_address: String, options: PoolOptions) -> Result<Session, Error> {
        options.check()?;
        check_reach("the broker", &broker_address, options.plaintext)?;
        let label = options.label.clone().unwrap_or_else(|| format!("pid {}", std::process::id()));
        let label = Name::new(label).map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
        let mut session = Session {
            options,
            broker_address,
            broker: Mutex::default(),
            proof: SessionProof { session: Default::default(), secret: Default::default() },
            lease_ttl_ms: 0,
            grace_ms: 0,
            this_host: farpool_node::host_boot_id(),
            nodes: Mutex::default(),
            held: Mutex::default(),
            growing: Mutex::default(),
            counters: Counters::default(),
            floor_bytes: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            process: std::process::id(),
            stop: Mutex::default(),
            stopping: Condvar::new(),
        };
        let open = OpenSession { resume: session.proof.session, secret: session.proof.secret, label };
        // A pool that is not there should be said at once, not after the patience for one that restarts.
        let reply = session.ask_once(&Request::OpenSession(open))?;
        let opened = answer_of!(reply, OpenSession)?;
        session.proof = SessionProof { session: opened.session, secret: opened.secret };
        session.lease_ttl_ms = opened.lease_ttl_ms;
        session.grace_ms = opened.grace_ms;
        Ok(session)
    }

    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the pool is closed"));
        }
        // The connections are shared with the parent: either process could get the other's answers.
        if self.process != std::process::id() {
            let message = "this pool was opened by the process this one was forked from: open one here";
            return Err(Error::new(ErrorKind::Forked, message));
        }
        Ok(())
    }

    fn broker_error(&self, error: &LinkError) -> Error {
        Error::of_link(&format!("broker {}", self.broker_address), error)
    }

    fn ask_link(&self, request: &Request) -> Result<Reply, LinkError> {
        add(&self.counters.broker_calls, 1);
        self.ask_over(&mut locked(&self.broker), request, self.options.request_timeout_ms)
    }

    fn ask_over(
        &self,
        broker: &mut Option<FrameLink<Socket>>,
        request: &Request,
        timeout_ms: u64,
    ) -> Result<Reply, LinkError> {
        let deadline = NodeLinks::deadline(timeout_ms);
        let link = match &mut *broker {
            Some(link) => link,
            none => none.insert(tcp::connect(&self.broker_address, deadline)?),
        };
        let result = link.call(request, deadline);
        if result.as_ref().err().is_some_and(|error| !error.link_survives()) {
            *broker = None;
        }
        result
    }

    fn ask_once(&self, request: &Request) -> Result<Reply, Error> {
        self.ask_link(request).map_err(|error| self.broker_error(&error))
    }

    /// Asks the broker, again and again while it cannot be reached, for as long as the patience lasts. Every
    /// question is one that may be asked twice.
    pub(crate) fn ask(&self, request: &Request) -> Result<Reply, Error> {
        self.check_open()?;
        let give_up = clock::now().plus_ms(self.options.broker_patience_ms);
        let mut asked_before = false;
        loop {
            let error = match self.ask_link(request) {
                Ok(reply) => return Ok(reply),
                Err(LinkError::Refused { refusal, .. }) => match (request, refusal.code) {
                    // A broker waits for its nodes to present themselves, and to report what they have sealed.
                    (Request::OpenName(_) | Request::Publish(_), Code::NoNodes | Code::NotReported)
                        if clock::now() < give_up =>
                    {
                        self.pause(10)?;
                        continue;
                    }
                    // Done by the first try, whose answer was lost.
                    (Request::RenameName(_), Code::NoSuchName) if asked_before => {
                        return Ok(Reply::RenameName(Done {}));
                    }
                    (Request::DropName(_), Code::NoSuchName) if asked_before => {
                        return Ok(Reply::DropName(Done {}));
                    }
                    _ => return Err(self.broker_error(&LinkError::Refused { index: 0, refusal })),
                },
                Err(error) => error,
            };
            asked_before = true;
            if clock::now() >= give_up {
                let waited = self.options.broker_patience_ms;
                return Err(self.broker_error(&error).during(format!("gave up after {waited} ms")));
            }
            self.pause(50)?;
        }
    }

    /// Waits, unless the pool is being closed.
    fn pause(&self, ms: u64) -> Result<(), Error> {
        let stop = locked(&self.stop);
        let pause = Duration::from_millis(ms);
        let (stop, _) = self
            .stopping
            .wait_timeout_while(stop, pause, |stop| !*stop)
            .unwrap_or_else(PoisonError::into_inner);
        if *stop { Err(Error::new(ErrorKind::Closed, "the pool is closed")) } else { Ok(()) }
    }

    pub(crate) fn status(&self) -> Result<StatusReport, Error> {
        answer_of!(self.ask(&Request::Status(Done {}))?, Status)
    }

    pub(crate) fn proof(&self) -> SessionProof {
        self.proof.clone()
    }

    /// The links to a life of a node.
    pub(crate) fn links(&self, info: &NodeInfo) -> Result<Arc<NodeLinks>, Error> {
        let mut nodes = locked(&self.nodes);
        if let Some(links) = nodes.get(&(info.node, info.incarnation)) {
            return Ok(Arc::clone(links));
        }
        for (_, former) in nodes.iter().filter(|((node, _), _)| *node == info.node) {
            former.mark_lost("it has restarted");
        }
        let links = Arc::new(NodeLinks::new(info.clone(), &self.options, self.this_host)?);
        nodes.insert((info.node, info.incarnation), Arc::clone(&links));
        Ok(links)
    }

    /// Cuts an extent, leasing more regions if need be.
    pub(crate) fn cut(&self, group: Group, bytes: u32) -> Result<Cut<Arc<LeasedRegion>>, Error> {
        if let Some(cut) = self.cut_from_held(group, bytes) {
            return Ok(cut);
        }
        let _growing = locked(&self.growing);
        loop {
            // Another thread may have leased what both wanted.
            if let Some(cut) = self.cut_from_held(group, bytes) {
                return Ok(cut);
            }
            let (held, _) = locked(&self.held).allocator.held(group);
            let ahead = match group {
                Group::Class(_) => (held / 4).clamp(AHEAD_BYTES_MIN, AHEAD_BYTES_MAX),
                Group::File(_) => 0,
            };
            self.lease_more(group, u64::from(bytes), ahead.max(bytes.into()))?;
        }
    }

    fn cut_from_held(&self, group: Group, bytes: u32) -> Option<Cut<Arc<LeasedRegion>>> {
        let mut held = locked(&self.held);
        loop {
            let cut = held.allocator.cut(group, bytes)?;
            add(&self.counters.used_bytes, bytes.into());
            let region = Arc::clone(held.regions.get(&cut.region)?);
            if region.node.is_lost() {
                // Noticed by another operation a moment ago: nothing new goes there.
                self.forget_region(&mut held, &region);
                continue;
            }
            held.idle_for.remove(&cut.region);
            return Some(Cut { region, offset: cut.offset, bytes: cut.bytes });
        }
    }

    /// Gives extents back to the session.
    pub(crate) fn give_back(&self, cuts: Vec<Cut<Arc<LeasedRegion>>>) {
        let mut held = locked(&self.held);
        for cut in cuts {
            if held.regions.contains_key(&cut.region.id) {
                subtract(&self.counters.used_bytes, cut.bytes.into());
                held.allocator.give_back(Cut { region: cut.region.id, offset: cut.offset, bytes: cut.bytes });
            }
        }
    }

    /// Leases so much that a group holds at least `bytes` not cut yet, or nothing if the pool has not that
    /// much: a write far behind a file's end must not take the pool and then fail.
    pub(crate) fn make_room(&self, group: Group, bytes: u64) -> Result<(), Error> {
        if locked(&self.held).allocator.held(group).1 >= bytes {
            return Ok(());
        }
        let _growing = locked(&self.growing);
        let (_, free) = locked(&self.held).allocator.held(group);
        if free >= bytes { Ok(()) } else { self.lease_more(group, bytes - free, bytes - free) }
    }

    /// Leases so much that a group holds at least `bytes` not cut yet. Of scratch regions, that many stay
    /// leased while the session lives.
    pub(crate) fn reserve(&self, group: Group, bytes: u64) -> Result<(), Error> {
        let _growing = locked(&self.growing);
        loop {
            let (all, free) = locked(&self.held).allocator.held(group);
            if free >= bytes {
                if group == Group::Class(FileClass::Scratch) {
                    self.floor_bytes.fetch_max(all, Ordering::Relaxed);
                }
                return Ok(());
            }
            // A ticket promises a bounded number of regions, so a large reserve takes several.
            let next = (bytes - free).min(LEASE_REGIONS_MAX as u64 * EXTENT_BYTES_MAX);
            self.lease_more(group, next, next)?;
        }
    }

    /// Leases `wanted` bytes or, if the pool has not that many, at least `needed`.
    fn lease_more(&self, group: Group, needed: u64, wanted: u64) -> Result<(), Error> {
        let mut avoid: Vec<Incarnation> = Vec::new();
        let mut bytes = wanted;
        let mut tries = 0;
        loop {
            let error = match self.lease_once(group, bytes, &mut avoid) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Exhausted => error,
                Err(error) => return Err(error),
            };
            let full = error.refusal().filter(|refusal| refusal.code == Code::Exhausted);
            if bytes > needed && full.is_some_and(|refusal| refusal.detail >= needed) {
                bytes = needed;
                continue;
            }
            tries += 1;
            if tries == FULL_TRIES {
                let held = self.counters.read();
                return Err(error.during(format!(
                    "leasing {needed} more bytes (this session holds {}, {} in use{})",
                    held.leased_bytes,
                    held.used_bytes,
                    self.lost_nodes()
                )));
            }
            avoid.clear();
            self.pause(20 << tries)?;
        }
    }

    /// What to say of nodes this session has lost: why there may be less memory than there was.
    fn lost_nodes(&self) -> String {
        let nodes = locked(&self.nodes);
        let lost: Vec<&str> =
            nodes.values().filter(|node| node.is_lost()).map(|node| &*node.info.name).collect();
        if lost.is_empty() { String::new() } else { format!("; it lost {}", lost.join(", ")) }
    }

    /// One round: tickets, then leases at each node. Nodes that fail are added to `avoid`; it is an error if
    /// nothing came of it.
    fn lease_once(&self, group: Group, bytes: u64, avoid: &mut Vec<Incarnation>) -> Result<(), Error> {
        self.check_open()?;
        let class = match group {
            Group::Class(class) => class,
            Group::File(_) => FileClass::Pinned,
        };
        let lost = |links: &&Arc<NodeLinks>| links.is_lost();
        avoid.extend(locked(&self.nodes).values().filter(lost).map(|links| links.info.incarnation));
        let request = RequestTickets {
            session: self.proof.session,
            secret: self.proof.secret,
            bytes,
            class,
            near: self.this_host,
            avoid: List::new(avoid.clone()).unwrap_or_default(),
        };
        let tickets = answer_of!(self.ask(&Request::RequestTickets(request))?, RequestTickets)?;
        let mut failed = None;
        let mut leased = 0;
        for offer in tickets.tickets.iter() {
            match self.redeem(group, offer) {
                Ok(count) => leased += count,
                Err(error) => {
                    avoid.push(offer.node.incarnation);
                    failed = Some(error);
                }
            }
        }
        match failed {
            // Too little is something: the caller asks again for the rest.
            _ if leased > 0 => Ok(()),
            Some(error) => Err(Error::new(ErrorKind::Exhausted, error.to_string())),
            None => Err(Error::new(ErrorKind::Exhausted, "the broker granted nothing")),
        }
    }

    fn redeem(&self, group: Group, offer: &TicketOffer) -> Result<u64, Error> {
        let links = self.links(&offer.node)?;
        // After a pause longer than a lease, what we held there may be gone: learn that before a new lease
        // makes the old ones look alive.
        if links.leased_until().0 > 0 && clock::now() >= links.leased_until() {
            self.renew(&links)?;
        }
        let lease = Request::Lease(Lease { ticket: offer.ticket.clone(), shared: links.is_shared() });
        let asked = clock::now();
        let deadline = NodeLinks::deadline(self.options.request_timeout_ms);
        // If the first try's answer was lost, the second is refused as spent; the regions of the first are
        // this session's all the same and go back when it ends.
        let reply = links.converse(deadline, Repeat::Harmless, |link| link.call(&lease, deadline))?;
        let leased = answer_of!(reply, Lease)?;
        links.extend_lease(asked, leased.lease_ttl_ms);
        let region_bytes = offer.node.region_bytes;
        let mut held = locked(&self.held);
        for grant in leased.grants.iter() {
            let id = held.next_id;
            held.next_id += 1;
            held.allocator.add(id, links.info.node, group, region_bytes);
            held.regions.insert(
                id,
                Arc::new(LeasedRegion {
                    id,
                    node: Arc::clone(&links),
                    region: grant.region,
                    epoch: grant.epoch,
                    handle: grant.handle,
                    is_leased: true,
                    is_taken: AtomicBool::new(false),
                }),
            );
        }
        let bytes = leased.grants.len() as u64 * region_bytes;
        add(&self.counters.leased_bytes, bytes);
        add(&self.counters.leased_bytes_total, bytes);
        Ok(leased.grants.len() as u64)
    }

    /// Makes sure our leases at a node still hold, renewing at once if the time for it was missed.
    pub(crate) fn check_lease(&self, region: &LeasedRegion) -> Result<(), Error> {
        region.check_usable()?;
        if region.is_leased && clock::now() >= region.node.leased_until() {
            self.renew(&region.node)?;
            region.check_usable()?;
        }
        Ok(())
    }

    /// Extends our leases at a node, or learns that they are over.
    pub(crate) fn renew(&self, links: &Arc<NodeLinks>) -> Result<(), Error> {
        self.renew_within(links, self.options.request_timeout_ms)
    }

    fn renew_within(&self, links: &Arc<NodeLinks>, timeout_ms: u64) -> Result<(), Error> {
        let asked = clock::now();
        let deadline = NodeLinks::deadline(timeout_ms);
        let renew = Request::Renew(self.proof.clone());
        // What is leased while we ask is not what the answer is about.
        let below = locked(&self.held).next_id;
        let answer = links.converse(deadline, Repeat::Harmless, |link| {
            // A node that forgot the session has freed its regions: that is an answer, not a failure.
            match link.call(&renew, deadline) {
                Err(LinkError::Refused { refusal, .. }) if refusal.code == Code::UnknownSession => Ok(None),
                other => other.map(Some),
            }
        })?;
        match answer {
            Some(reply) => {
                let renewed = answer_of!(reply, Renew)?;
                links.extend_lease(asked, renewed.lease_ttl_ms);
            }
            None => self.lose_regions_below(links, below),
        }
        Ok(())
    }

    /// The regions held at a node are not ours any more.
    pub(crate) fn lose_regions(&self, links: &Arc<NodeLinks>) {
        self.lose_regions_below(links, u64::MAX);
    }

    fn lose_regions_below(&self, links: &Arc<NodeLinks>, below: u64) {
        let mut held = locked(&self.held);
        let gone: Vec<Arc<LeasedRegion>> = held
            .regions
            .values()
            .filter(|region| Arc::ptr_eq(&region.node, links) && region.id < below)
            .cloned()
            .collect();
        if links.is_lost() && !gone.is_empty() {
            add(&self.counters.nodes_lost, 1);
        }
        for region in gone {
            region.is_taken.store(true, Ordering::Release);
            self.forget_region(&mut held, &region);
        }
    }

    fn forget_region(&self, held: &mut Held, region: &LeasedRegion) {
        subtract(&self.counters.used_bytes, held.allocator.remove(region.id));
        held.regions.remove(&region.id);
        held.idle_for.remove(&region.id);
        region.node.forget(region.region);
        subtract(&self.counters.leased_bytes, region.node.info.region_bytes);
    }

    /// Ends writing to every region of a file's group. The sealed regions by the numbers they had.
    pub(crate) fn seal(&self, group: Group) -> Result<BTreeMap<u64, Arc<LeasedRegion>>, Error> {
        let regions: Vec<Arc<LeasedRegion>> = {
            let held = locked(&self.held);
            let ids = held.allocator.regions().filter(|(_, _, of)| *of == group).map(|(id, _, _)| id);
            ids.filter_map(|id| held.regions.get(&id).cloned()).collect()
        };
        let mut by_node: BTreeMap<(NodeId, Incarnation), Vec<Arc<LeasedRegion>>> = BTreeMap::new();
        for region in regions {
            self.check_lease(&region)?;
            by_node.entry((region.node.info.node, region.node.info.incarnation)).or_default().push(region);
        }
        let mut sealed = BTreeMap::new();
        for regions in by_node.into_values() {
            let Some(links) = regions.first().map(|region| Arc::clone(&region.node)) else { continue };
            let at = regions.iter().map(|region| RegionAt { region: region.region, epoch: region.epoch });
            let request = Request::Seal(Seal {
                session: self.proof.session,
                secret: self.proof.secret,
                regions: List::new(at.collect()).map_err(|error| {
                    Error::new(ErrorKind::Invalid, format!("the file is too large to publish: {error}"))
                })?,
            });
            let deadline = NodeLinks::deadline(self.options.request_timeout_ms);
            let reply = links.converse(deadline, Repeat::Harmful, |link| link.call(&request, deadline))?;
            let grants = answer_of!(reply, Seal)?;
            if grants.regions.len() != regions.len() {
                return Err(Error::new(
                    ErrorKind::Refused,
                    "a node sealed another number of regions than asked",
                ));
            }
            let mut held = locked(&self.held);
            for (before, grant) in regions.into_iter().zip(grants.regions.iter()) {
                self.forget_region(&mut held, &before);
                let after = LeasedRegion {
                    id: before.id,
                    node: Arc::clone(&links),
                    region: grant.region,
                    epoch: grant.epoch,
                    handle: grant.handle,
                    is_leased: false,
                    is_taken: AtomicBool::new(false),
                };
                sealed.insert(before.id, Arc::new(after));
            }
        }
        Ok(sealed)
    }

    /// What the background thread does until the session ends: renew, notice losses, give idle regions back.
    ///
    /// A peer that hangs must not cost us the leases at others: every renewal has a share of the lease's time
    /// only, nodes that answered last time come first, and the broker last.
    pub(crate) fn keep_alive(&self) -> bool {
        let period = (u64::from(self.lease_ttl_ms) / 3).clamp(20, RENEW_MS_MAX);
        if self.pause(period).is_err() {
            return false;
        }
        let mut nodes: Vec<Arc<NodeLinks>> = locked(&self.nodes).values().cloned().collect();
        nodes.sort_by_key(|links| links.is_suspect());
        let share_ms = (u64::from(self.lease_ttl_ms) / 4).min(self.options.request_timeout_ms);
        let suspects_until = clock::now().plus_ms(2 * share_ms);
        for links in nodes {
            let holds = locked(&self.held).regions.values().any(|region| Arc::ptr_eq(&region.node, &links));
            // Also where nothing is held but something may be sealed, on its way to a name.
            let renews = holds || links.leased_until().0 > 0;
            if renews && !links.is_lost() && (!links.is_suspect() || clock::now() < suspects_until) {
                links.set_suspect(self.renew_within(&links, share_ms).is_err());
                // A node that does not answer keeps our bytes until the lease is over on its clock as well.
                let lease_ms = u64::from(self.lease_ttl_ms) + u64::from(self.grace_ms);
                if links.leased_until().0 > 0 && clock::now() > links.leased_until().plus_ms(lease_ms) {
                    links.mark_lost("its lease ran out while it did not answer");
                }
            }
            if links.is_lost() && holds {
                self.lose_regions(&links);
            }
        }
        // The broker only lists us by this. If somebody is asking it something, it hears of us anyway.
        if let Ok(mut broker) = self.broker.try_lock() {
            let _ = self.ask_over(&mut broker, &Request::KeepSession(self.proof.clone()), share_ms);
        }
        self.release_idle(share_ms);
        true
    }

    fn release_idle(&self, timeout_ms: u64) {
        let mut leaving: Vec<Arc<LeasedRegion>> = Vec::new();
        {
            let mut held = locked(&self.held);
            let mut groups: Vec<Group> = held.allocator.regions().map(|(_, _, group)| group).collect();
            groups.sort_unstable();
            groups.dedup();
            for group in groups {
                let is_scratch = group == Group::Class(FileClass::Scratch);
                let floor = if is_scratch { self.floor_bytes.load(Ordering::Relaxed) } else { 0 };
                let (mut all, _) = held.allocator.held(group);
                for id in held.allocator.idle(group) {
                    let Some(region) = held.regions.get(&id).cloned() else { continue };
                    let region_bytes = region.node.info.region_bytes;
                    let idle_for = held.idle_for.entry(id).or_default();
                    *idle_for += 1;
                    if *idle_for > IDLE_RENEWALS && all >= floor + region_bytes {
                        all -= region_bytes;
                        self.forget_region(&mut held, &region);
                        leaving.push(region);
                    }
                }
            }
        }
        self.release(&leaving, timeout_ms);
    }

    /// Tells the nodes of regions that this session does not use any more.
    fn release(&self, regions: &[Arc<LeasedRegion>], timeout_ms: u64) {
        let mut by_node: BTreeMap<(NodeId, Incarnation), (Arc<NodeLinks>, Vec<RegionAt>)> = BTreeMap::new();
        for region in regions {
            let key = (region.node.info.node, region.node.info.incarnation);
            let (_, at) = by_node.entry(key).or_insert_with(|| (Arc::clone(&region.node), Vec::new()));
            at.push(RegionAt { region: region.region, epoch: region.epoch });
        }
        for (links, at) in by_node.into_values() {
            for at in at.chunks(LEASE_REGIONS_MAX) {
                let release = Request::Release(Release {
                    session: self.proof.session,
                    secret: self.proof.secret,
                    whole: false,
                    regions: List::new(at.to_vec()).unwrap_or_default(),
                });
                let deadline = NodeLinks::deadline(timeout_ms);
                // If it does not arrive, the regions stay ours until the session ends.
                let _ = links.converse(deadline, Repeat::Harmless, |link| link.call(&release, deadline));
            }
        }
    }

    /// Gives everything back and ends the session. Nodes that cannot be told free it by themselves.
    pub(crate) fn close(&self) {
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return;
        }
        *locked(&self.stop) = true;
        self.stopping.notify_all();
        let nodes: Vec<Arc<NodeLinks>> = locked(&self.nodes).values().cloned().collect();
        for links in nodes {
            let release = Request::Release(Release {
                session: self.proof.session,
                secret: self.proof.secret,
                whole: true,
                regions: List::default(),
            });
            let deadline = NodeLinks::deadline(self.options.request_timeout_ms);
            let _ = links.converse(deadline, Repeat::Harmless, |link| link.call(&release, deadline));
            links.mark_lost("the pool was closed");
            self.lose_regions(&links);
        }
        let _ = self.ask_link(&Request::CloseSession(self.proof.clone()));
        *locked(&self.broker) = None;
    }

    /// Ends the session in this process without telling anybody: after a fork the connections are another
    /// process's conversations.
    pub(crate) fn abandon(&self) {
        self.is_closed.store(true, Ordering::Release);
    }
}
