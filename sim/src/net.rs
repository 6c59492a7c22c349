//! Network between the machines: connections as ordered byte streams, and their faults.
//!
//! The idea: as with TCP, the bytes of a connection arrive in order or not at all. Trouble happens at its edges. A
//! request may be delivered and answered after its sender has hung up and reconnected. One side may have seen the end
//! while the other still waits. One direction between two machines may be blocked while the other is not. A peer may
//! accept a connection and never answer.
//!
//! It never reorders, repeats or damages bytes inside a connection: TCP and the checksums of frames exclude that.

use crate::kernel::{Event, MachineId, ProcessId, World};
use farpool_transport::serve::{Conversation, Next};
use farpool_transport::shm::Mapped;
use farpool_transport::{Mappable, Outgoing, Peer, Service};
use farpool_wire::frame::Header;
use farpool_wire::limits::HEADER_BYTES;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Handle of a connection: its slot, and a serial number, because slots are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConnId {
    slot: u32,
    serial: u32,
}

/// Index of the client's end of a connection, and of the direction from client to server.
pub(crate) const CALLER: usize = 0;
/// Index of the server's end.
const SERVER: usize = 1;

/// Payload of a [`Segment`].
enum Content {
    /// Bytes, and memory that the sender lets the receiver map (a file descriptor sent with them in reality).
    Bytes(Vec<u8>, Option<Mapped>),
    /// The sender sends no more (TCP FIN).
    End,
    /// The sender does not know this connection (TCP RST).
    Reset,
}

/// Piece of a connection's stream under way, which arrives at the time `due`, in ns of the world's time.
struct Segment {
    due: u64,
    content: Content,
}

#[derive(Default)]
struct Direction {
    under_way: VecDeque<Segment>,
    /// Time at which the last segment sent so far arrives. Later ones arrive after it.
    last_due: u64,
    /// True if everything sent in this direction is lost, without notice to either end.
    is_dead: bool,
}

struct End {
    process: ProcessId,
    /// True until the process of this end closes the connection.
    is_held: bool,
    /// True once the peer has closed its end, and all its bytes have arrived.
    has_end: bool,
    /// True once this end has learnt that the connection is broken.
    is_reset: bool,
    /// Bytes that have arrived. The first `read` of them have been read.
    inbox: Vec<u8>,
    read: usize,
    beside: Option<Mapped>,
}

pub(crate) struct Conn {
    serial: u32,
    ends: [End; 2],
    directions: [Direction; 2],
    service: Arc<dyn Service>,
    conversation: Option<Conversation>,
    is_serving: bool,
    is_local: bool,
}

struct Listener {
    process: ProcessId,
    service: Arc<dyn Service>,
}

/// Faults of the path from one machine to another.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Path {
    /// Time until which nothing passes, in ns of the world's time.
    pub(crate) blocked_until: u64,
    /// Extra delay of every transfer, in ns.
    pub(crate) slow_ns: u64,
    /// End of the congestion, in ns of the world's time. Until then some transfers are delayed by twice
    /// `congested_ns`, some by `congested_ns`, and most by little.
    pub(crate) congested_until: u64,
    pub(crate) congested_ns: u64,
}

#[derive(Default)]
pub(crate) struct Net {
    conns: Vec<Option<Conn>>,
    free_slots: Vec<u32>,
    next_serial: u32,
    /// Processes that listen at each address, newest last.
    listeners: BTreeMap<String, Vec<Listener>>,
    /// Machine of each address.
    addresses: BTreeMap<String, MachineId>,
    paths: BTreeMap<(MachineId, MachineId), Path>,
    /// Machines whose connections to an address reach the oldest process that listens there, not the newest.
    pub(crate) misled: Vec<MachineId>,
}

/// Result of asking for a connection.
pub(crate) enum Asked {
    /// The connection will be established after this many ns.
    Connected(ConnId, u64),
    /// Nobody listens there. The caller learns so after this many ns.
    Refused(u64),
    /// No answer comes.
    Lost,
}

/// Request to be answered by a server.
pub(crate) struct Work {
    pub(crate) conversation: Conversation,
    pub(crate) service: Arc<dyn Service>,
    pub(crate) header: Header,
    pub(crate) body: Vec<u8>,
}

impl Net {
    fn conn(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.conns.get_mut(id.slot as usize)?.as_mut().filter(|conn| conn.serial == id.serial)
    }

    fn ids(&self) -> impl Iterator<Item = ConnId> + '_ {
        self.conns.iter().enumerate().filter_map(|(slot, conn)| {
            conn.as_ref().map(|conn| ConnId { slot: slot as u32, serial: conn.serial })
        })
    }

    pub(crate) fn listen(
        &mut self,
        address: &str,
        machine: MachineId,
        process: ProcessId,
        service: Arc<dyn Service>,
    ) {
        self.addresses.insert(address.to_owned(), machine);
        self.listeners.entry(address.to_owned()).or_default().push(Listener { process, service });
    }

    pub(crate) fn path(&mut self, from: MachineId, to: MachineId) -> &mut Path {
        self.paths.entry((from, to)).or_default()
    }

    pub(crate) fn clear_paths(&mut self) {
        self.paths.clear();
        self.misled.clear();
    }

    /// Returns the connections between machines that both ends hold open, for faults to choose from.
    pub(crate) fn open(&self) -> Vec<ConnId> {
        let is_open = |conn: &&Option<Conn>| {
            conn.as_ref().is_some_and(|conn| conn.ends.iter().all(|end| end.is_held) && !conn.is_local)
        };
        let open = self.conns.iter().enumerate().filter(|(_, conn)| is_open(conn));
        open.filter_map(|(slot, conn)| {
            conn.as_ref().map(|conn| ConnId { slot: slot as u32, serial: conn.serial })
        })
        .collect()
    }

    /// Returns the processes at both ends of a connection.
    pub(crate) fn ends_of(&self, id: ConnId) -> Option<(ProcessId, ProcessId)> {
        let conn = self.conns.get(id.slot as usize)?.as_ref().filter(|conn| conn.serial == id.serial)?;
        Some((conn.ends[CALLER].process, conn.ends[SERVER].process))
    }
}

/// End of a process, as its peers notice it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Its kernel lives on and closes the connections.
    HangsUp,
    /// Its machine ends too, and no peer is notified.
    FallsSilent,
}

impl World {
    fn is_reachable(&self, machine: MachineId) -> bool {
        let machine = &self.machines[machine];
        machine.is_up && !machine.is_asleep
    }

    /// Draws the time in ns that bytes take from one machine to another.
    fn journey(&mut self, from: MachineId, to: MachineId, bytes: usize) -> u64 {
        if from == to {
            return self.random.range(2_000, 20_000);
        }
        let (low, high) = self.plan.latency_ns;
        let path = self.net.paths.get(&(from, to)).copied().unwrap_or_default();
        let is_congested = path.congested_until > self.now();
        let congested_ns = match is_congested {
            true => match self.random.below(16) {
                0 => 2 * path.congested_ns,
                1 | 2 => path.congested_ns,
                _ => self.random.below(path.congested_ns / 16),
            },
            false => 0,
        };
        self.random.range(low, high) + path.slow_ns + congested_ns + bytes as u64 * self.plan.byte_ns
    }

    /// Returns the time until which nothing passes from one machine to another, in ns of the world's time; 0 if the
    /// path was never blocked.
    fn blocked_until(&self, from: MachineId, to: MachineId) -> u64 {
        self.net.paths.get(&(from, to)).map_or(0, |path| path.blocked_until)
    }

    pub(crate) fn ask_for_connection(&mut self, caller: ProcessId, address: &str, is_local: bool) -> Asked {
        let here = self.process(caller).machine;
        let Some(listeners) = self.net.listeners.get(address) else {
            return match self.net.addresses.get(address) {
                Some(there) if !is_local && !self.is_reachable(*there) => Asked::Lost,
                _ => Asked::Refused(self.plan.latency_ns.1),
            };
        };
        let is_misled = self.net.misled.contains(&here);
        let listener = if is_misled { listeners.first() } else { listeners.last() };
        let Some((process, service)) =
            listener.map(|listener| (listener.process, Arc::clone(&listener.service)))
        else {
            let there = self.net.addresses.get(address).copied();
            return match there.filter(|there| !is_local && !self.is_reachable(*there)) {
                Some(_) => Asked::Lost,
                None => Asked::Refused(self.plan.latency_ns.1),
            };
        };
        let there = self.process(process).machine;
        if is_local && here != there {
            return Asked::Refused(1_000);
        }
        let blocked = self.blocked_until(here, there).max(self.blocked_until(there, here));
        if !self.is_reachable(there) || blocked > self.now() {
            return Asked::Lost;
        }
        // A local socket shows no certificate, only the user of the process.
        let identity = self.process(caller).identity.clone().filter(|_| !is_local);
        let round = self.journey(here, there, 0) + self.journey(there, here, 0);
        self.net.next_serial += 1;
        let end = |process| End {
            process,
            is_held: true,
            has_end: false,
            is_reset: false,
            inbox: Vec::new(),
            read: 0,
            beside: None,
        };
        let conn = Conn {
            serial: self.net.next_serial,
            ends: [end(caller), end(process)],
            directions: Default::default(),
            service,
            conversation: Some(Conversation::new(Peer { is_local, identity, ..Peer::default() })),
            is_serving: false,
            is_local,
        };
        let id = |slot| ConnId { slot, serial: conn.serial };
        let id = match self.net.free_slots.pop() {
            Some(slot) => {
                let id = id(slot);
                self.net.conns[slot as usize] = Some(conn);
                id
            }
            None => {
                let id = id(self.net.conns.len() as u32);
                self.net.conns.push(Some(conn));
                id
            }
        };
        self.note(caller, "connects", [u64::from(process.0), id.slot.into(), round / 1000]);
        self.tally.connections += 1;
        Asked::Connected(id, round)
    }

    /// Sends content from one end of a connection. It arrives later, or never.
    fn send(&mut self, id: ConnId, from_end: usize, content: Content) {
        let now = self.now();
        let Some(conn) = self.net.conn(id) else { return };
        if conn.directions[from_end].is_dead {
            return;
        }
        let bytes = if let Content::Bytes(bytes, _) = &content { bytes.len() } else { 0 };
        let (from, to) = (conn.ends[from_end].process, conn.ends[1 - from_end].process);
        let (from, to) = (self.process(from).machine, self.process(to).machine);
        let blocked_until = self.blocked_until(from, to);
        // TCP resends lost bytes some time after the block ends.
        let sent = if blocked_until > now { blocked_until + self.random.below(200_000_000) } else { now };
        let due = sent + self.journey(from, to, bytes);
        let Some(conn) = self.net.conn(id) else { return };
        let direction = &mut conn.directions[from_end];
        let due = due.max(direction.last_due + 1);
        direction.last_due = due;
        direction.under_way.push_back(Segment { due, content });
        self.at(due, Event::Deliver(id, from_end));
    }

    /// Delivers the segment that is due in one direction of a connection, if there is one.
    pub(crate) fn deliver(&mut self, id: ConnId, from_end: usize) {
        let now = self.now();
        let Some(conn) = self.net.conn(id) else { return };
        let direction = &mut conn.directions[from_end];
        if direction.is_dead || direction.under_way.front().is_none_or(|first| first.due > now) {
            return;
        }
        let to = conn.ends[1 - from_end].process;
        let machine = self.process(to).machine;
        if !self.machines[machine].is_up {
            // The machine is off, so nobody answers with a reset either.
            self.lose_direction(id, from_end);
            return;
        }
        if self.machines[machine].is_asleep {
            let Some(conn) = self.net.conn(id) else { return };
            let direction = &mut conn.directions[from_end];
            let later = now + 250_000_000;
            let last = direction.under_way.iter_mut().fold(later, |due, segment| {
                segment.due = segment.due.max(due);
                segment.due + 1
            });
            direction.last_due = direction.last_due.max(last);
            let count = direction.under_way.len() as u64;
            for index in 0..count {
                self.at(later + index, Event::Deliver(id, from_end));
            }
            return;
        }
        let Some(conn) = self.net.conn(id) else { return };
        let Some(segment) = conn.directions[from_end].under_way.pop_front() else { return };
        let end = &mut conn.ends[1 - from_end];
        if !end.is_held {
            let answers = matches!(segment.content, Content::Bytes(..));
            if answers {
                self.send(id, 1 - from_end, Content::Reset);
            }
            self.forget_if_over(id);
            return;
        }
        match segment.content {
            Content::Bytes(bytes, beside) => {
                if end.inbox.is_empty() {
                    end.inbox = bytes;
                } else {
                    end.inbox.extend_from_slice(&bytes);
                }
                if beside.is_some() {
                    end.beside = beside;
                }
            }
            Content::End => end.has_end = true,
            Content::Reset => end.is_reset = true,
        }
        if from_end == CALLER {
            self.serve(id);
        } else {
            self.wake_reader(to, id);
        }
    }

    /// Loses whatever is in flight or sent later in one direction, without notice to either end.
    pub(crate) fn lose_direction(&mut self, id: ConnId, from_end: usize) {
        if let Some(conn) = self.net.conn(id) {
            conn.directions[from_end].is_dead = true;
            conn.directions[from_end].under_way.clear();
        }
        self.forget_if_over(id);
    }

    /// Resets one end of a connection. Bytes in flight to it are lost.
    pub(crate) fn reset_end(&mut self, id: ConnId, end: usize) {
        self.lose_direction(id, 1 - end);
        let Some(conn) = self.net.conn(id) else { return };
        conn.ends[end].is_reset = true;
        let process = conn.ends[end].process;
        if end == SERVER {
            self.serve(id);
        } else {
            self.wake_reader(process, id);
        }
    }

    /// Delays everything sent in one direction from now on.
    pub(crate) fn delay_direction(&mut self, id: ConnId, from_end: usize, by_ns: u64) {
        let now = self.now();
        if let Some(conn) = self.net.conn(id) {
            let direction = &mut conn.directions[from_end];
            direction.last_due = direction.last_due.max(now) + by_ns;
            let first_due = direction.last_due - direction.under_way.len() as u64;
            for (due, segment) in (first_due..).zip(&mut direction.under_way) {
                segment.due = due;
            }
            let again: Vec<u64> = direction.under_way.iter().map(|segment| segment.due).collect();
            for due in again {
                self.at(due, Event::Deliver(id, from_end));
            }
        }
    }

    /// Answers the complete requests that have arrived, in a task of the serving process.
    fn serve(&mut self, id: ConnId) {
        let Some(conn) = self.net.conn(id) else { return };
        let end = &conn.ends[SERVER];
        if end.has_end || end.is_reset {
            if !conn.is_serving {
                self.hang_up(id, SERVER);
            }
            return;
        }
        let process = end.process;
        if conn.is_serving || !conn.has_frame() || !self.runs(process) {
            return;
        }
        let Some(conn) = self.net.conn(id) else { return };
        conn.is_serving = true;
        self.spawn(process, Box::new(move || answer(id)));
    }

    pub(crate) fn serve_all(&mut self, process: ProcessId) {
        let ids: Vec<ConnId> = self.net.ids().collect();
        for id in ids {
            if self.net.conn(id).is_some_and(|conn| conn.ends[SERVER].process == process) {
                self.serve(id);
            }
        }
    }

    fn take_work(&mut self, id: ConnId) -> Option<Work> {
        let conn = self.net.conn(id)?;
        let is_over = conn.ends[SERVER].has_end || conn.ends[SERVER].is_reset;
        let work = if is_over || !conn.has_frame() { None } else { conn.take_frame() };
        if work.is_none() {
            conn.is_serving = false;
            self.serve(id);
        }
        work
    }

    fn answered(&mut self, id: ConnId, conversation: Conversation, out: &Outgoing, next: Next) {
        let Some(conn) = self.net.conn(id) else { return };
        conn.conversation = Some(conversation);
        let mut is_over = false;
        let mut beside = None;
        let mut bytes = out.to_vec();
        match next {
            Next::Continue => {}
            Next::Bytes(more) => more.slices().for_each(|piece| bytes.extend(piece)),
            Next::Memory(memory) => match *memory {
                Mappable::Simulated(mapped) => beside = Some(mapped),
                Mappable::Files { .. } => is_over = true,
            },
            // A simulated node has no process that runs a tenant's functions and to which it could hand the connection.
            Next::HandOver(_) | Next::HangUp => is_over = true,
        }
        self.send(id, SERVER, Content::Bytes(bytes, beside));
        if is_over {
            self.hang_up(id, SERVER);
        }
    }

    /// Closes one end of a connection, for its process.
    pub(crate) fn hang_up(&mut self, id: ConnId, end: usize) {
        let Some(conn) = self.net.conn(id) else { return };
        if std::mem::take(&mut conn.ends[end].is_held) {
            // An end that was reset has no peer to notify.
            let is_heard = conn.ends[end].has_end || !conn.ends[end].is_reset;
            conn.ends[end].inbox = Vec::new();
            if is_heard {
                self.send(id, end, Content::End);
            }
        }
        self.forget_if_over(id);
    }

    fn forget_if_over(&mut self, id: ConnId) {
        let Some(conn) = self.net.conn(id) else { return };
        let nobody = conn.ends.iter().all(|end| !end.is_held);
        let nothing = conn.directions.iter().all(|direction| direction.under_way.is_empty());
        if nobody && nothing && !conn.is_serving {
            self.net.conns[id.slot as usize] = None;
            self.net.free_slots.push(id.slot);
        }
    }

    /// Closes the connections and listeners of a process that has ended.
    pub(crate) fn close_all(&mut self, process: ProcessId, ending: Ending) {
        for listeners in self.net.listeners.values_mut() {
            listeners.retain(|listener| listener.process != process);
        }
        let ids: Vec<ConnId> = self.net.ids().collect();
        for id in ids {
            for end in [CALLER, SERVER] {
                let Some(conn) = self.net.conn(id) else { break };
                if conn.ends[end].process != process {
                    continue;
                }
                if end == SERVER {
                    conn.is_serving = false;
                }
                match ending {
                    Ending::HangsUp => self.hang_up(id, end),
                    Ending::FallsSilent => {
                        conn.ends[end].is_held = false;
                        self.lose_direction(id, end);
                    }
                }
            }
        }
    }

    /// Passes bytes that have arrived at the client end to `copy`, which returns how many it took. Returns the state of
    /// the end if there are none.
    pub(crate) fn read(&mut self, id: ConnId, mut copy: impl FnMut(&[u8]) -> usize) -> Read {
        let Some(conn) = self.net.conn(id) else { return Read::Reset };
        let end = &mut conn.ends[CALLER];
        if end.read < end.inbox.len() {
            end.read += copy(&end.inbox[end.read..]);
            if end.read == end.inbox.len() {
                end.inbox.clear();
                end.read = 0;
            }
            return Read::Some;
        }
        match (end.is_reset, end.has_end) {
            (true, _) => Read::Reset,
            (_, true) => Read::End,
            _ => Read::Nothing,
        }
    }

    pub(crate) fn is_readable(&mut self, id: ConnId) -> bool {
        self.net.conn(id).is_none_or(|conn| {
            let end = &conn.ends[CALLER];
            end.read < end.inbox.len() || end.is_reset || end.has_end
        })
    }

    /// Takes the mapped memory that arrived with bytes that the client end has read. `None` if none came.
    pub(crate) fn take_beside(&mut self, id: ConnId) -> Option<Mapped> {
        self.net.conn(id)?.ends[CALLER].beside.take()
    }

    /// Sends bytes from the client end. Returns false if the connection is over.
    pub(crate) fn write(&mut self, id: ConnId, bytes: Vec<u8>) -> bool {
        let Some(conn) = self.net.conn(id) else { return false };
        if conn.ends[CALLER].is_reset {
            return false;
        }
        self.send(id, CALLER, Content::Bytes(bytes, None));
        true
    }
}

/// Result of a read.
pub(crate) enum Read {
    Some,
    Nothing,
    End,
    Reset,
}

impl Conn {
    fn waiting(&self) -> &[u8] {
        let end = &self.ends[SERVER];
        &end.inbox[end.read..]
    }

    fn has_frame(&self) -> bool {
        let waiting = self.waiting();
        let Some(head) = waiting.first_chunk::<HEADER_BYTES>() else { return false };
        Header::decode(head).is_ok_and(|header| waiting.len() >= HEADER_BYTES + header.body_bytes as usize)
    }

    fn take_frame(&mut self) -> Option<Work> {
        let header = Header::decode(self.waiting().first_chunk::<HEADER_BYTES>()?).ok()?;
        let whole = HEADER_BYTES + header.body_bytes as usize;
        let body = self.waiting().get(HEADER_BYTES..whole)?.to_vec();
        let end = &mut self.ends[SERVER];
        end.read += whole;
        if end.read == end.inbox.len() {
            end.inbox.clear();
            end.read = 0;
        }
        let conversation = self.conversation.take()?;
        Some(Work { conversation, service: Arc::clone(&self.service), header, body })
    }
}

/// Answers all requests that wait in a connection.
fn answer(id: ConnId) {
    use crate::kernel::world;
    let mut out = Outgoing::default();
    while let Some(work) = world(|world| world.take_work(id)) {
        let Work { mut conversation, service, header, body } = work;
        out.clear();
        let next = conversation.answer(&*service, &header, &body, &mut out);
        world(|world| world.answered(id, conversation, &out, next));
    }
}
