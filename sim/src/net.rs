//! The net between the machines: connections as ordered byte streams, and everything that befalls them.
//!
//! The idea: inside a connection bytes arrive in order or not at all, as TCP has it; what goes wrong goes wrong
//! at its edges. A request may be delivered and answered though whoever asked has long hung up and connected
//! anew; one side may have seen the end while the other waits; a direction between two machines may be blocked
//! while the other is not; a peer may accept and never answer.
//!
//! It never reorders, repeats or damages bytes inside a connection: TCP and the frames' checksums exclude that.

use crate::kernel::{Event, MachineId, ProcessId, World};
use farpool_transport::serve::{Conversation, Next};
use farpool_transport::shm::Mapped;
use farpool_transport::{Mappable, Outgoing, Peer, Service};
use farpool_wire::frame::Header;
use farpool_wire::limits::HEADER_BYTES;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A connection, never used again after its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConnId {
    slot: u32,
    serial: u32,
}

/// The end that asked for the connection, and its direction.
pub(crate) const CALLER: usize = 0;
/// The end that answers.
const SERVER: usize = 1;

enum Content {
    Bytes(Vec<u8>, Option<Mapped>),
    /// The sender sends nothing more.
    End,
    /// The sender knows nothing of this connection.
    Reset,
}

struct Segment {
    due: u64,
    content: Content,
}

#[derive(Default)]
struct Direction {
    under_way: VecDeque<Segment>,
    last_due: u64,
    /// Whatever is sent is lost, and no end is told.
    is_dead: bool,
}

struct End {
    process: ProcessId,
    /// Its process still has it.
    is_held: bool,
    has_end: bool,
    is_reset: bool,
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

/// What one machine's bytes suffer on their way to another.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Path {
    /// Nothing passes until then.
    pub(crate) blocked_until: u64,
    /// Slower by this.
    pub(crate) slow_ns: u64,
    /// Until then it is congested: some things are slower by twice this, some by this, most by a little.
    pub(crate) congested_until: u64,
    pub(crate) congested_ns: u64,
}

#[derive(Default)]
pub(crate) struct Net {
    conns: Vec<Option<Conn>>,
    free_slots: Vec<u32>,
    next_serial: u32,
    /// Newest last.
    listeners: BTreeMap<String, Vec<Listener>>,
    /// Which machine an address leads to.
    addresses: BTreeMap<String, MachineId>,
    paths: BTreeMap<(MachineId, MachineId), Path>,
    /// Machines that are still led to the older of two listeners of one address.
    pub(crate) misled: Vec<MachineId>,
}

/// What comes of asking for a connection.
pub(crate) enum Asked {
    /// It stands, so long from now.
    Connected(ConnId, u64),
    /// Nobody listens there: known so long from now.
    Refused(u64),
    /// Nothing comes back.
    Lost,
}

/// One request to answer.
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

    /// Connections that stand, for faults to choose from.
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

    /// The two processes of a connection.
    pub(crate) fn ends_of(&self, id: ConnId) -> Option<(ProcessId, ProcessId)> {
        let conn = self.conns.get(id.slot as usize)?.as_ref().filter(|conn| conn.serial == id.serial)?;
        Some((conn.ends[CALLER].process, conn.ends[SERVER].process))
    }
}

/// How a process ends, as its peers see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Its kernel lives on and hangs up.
    HangsUp,
    /// Its machine goes with it, and nobody hears of it.
    FallsSilent,
}

impl World {
    fn is_reachable(&self, machine: MachineId) -> bool {
        let machine = &self.machines[machine];
        machine.is_up && !machine.is_asleep
    }

    /// How long bytes take from one machine to another.
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

    /// Until when nothing passes; 0 if it does.
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
        // A local socket shows the user only.
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

    /// Sends from one end of a connection.
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
        // What is lost is sent again by and by.
        let sent = if blocked_until > now { blocked_until + self.random.below(200_000_000) } else { now };
        let due = sent + self.journey(from, to, bytes);
        let Some(conn) = self.net.conn(id) else { return };
        let direction = &mut conn.directions[from_end];
        let due = due.max(direction.last_due + 1);
        direction.last_due = due;
        direction.under_way.push_back(Segment { due, content });
        self.at(due, Event::Deliver(id, from_end));
    }

    /// The next bytes of a direction arrive.
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
            // Nobody there, and nobody to say so.
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

    /// Whatever is under way, or will be sent this way, is lost; nobody is told.
    pub(crate) fn lose_direction(&mut self, id: ConnId, from_end: usize) {
        if let Some(conn) = self.net.conn(id) {
            conn.directions[from_end].is_dead = true;
            conn.directions[from_end].under_way.clear();
        }
        self.forget_if_over(id);
    }

    /// One end learns that the connection is over; what was under way to it is lost.
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

    /// Everything sent this way from now on comes later by so much.
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

    /// Answers what has arrived whole, in a task of the serving process.
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
            Next::Bytes(more) => more.pieces().for_each(|piece| bytes.extend(piece)),
            Next::Memory(memory) => match *memory {
                Mappable::Simulated(mapped) => beside = Some(mapped),
                Mappable::Files { .. } => is_over = true,
            },
            // No process is there to go on.
            Next::HandOver(_) | Next::HangUp => is_over = true,
        }
        self.send(id, SERVER, Content::Bytes(bytes, beside));
        if is_over {
            self.hang_up(id, SERVER);
        }
    }

    /// One end is closed by its process.
    pub(crate) fn hang_up(&mut self, id: ConnId, end: usize) {
        let Some(conn) = self.net.conn(id) else { return };
        if std::mem::take(&mut conn.ends[end].is_held) {
            // To one that was reset there is nobody to say it to.
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

    /// Closes the ends of a process that is no more.
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

    /// Bytes for the caller of a connection: how many were copied out, or what is the matter.
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

    /// Memory that came beside bytes already read.
    pub(crate) fn take_beside(&mut self, id: ConnId) -> Option<Mapped> {
        self.net.conn(id)?.ends[CALLER].beside.take()
    }

    /// Bytes from the caller. False if the connection is over.
    pub(crate) fn write(&mut self, id: ConnId, bytes: Vec<u8>) -> bool {
        let Some(conn) = self.net.conn(id) else { return false };
        if conn.ends[CALLER].is_reset {
            return false;
        }
        self.send(id, CALLER, Content::Bytes(bytes, None));
        true
    }
}

/// What a read found.
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

/// Answers everything that waits in a connection.
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
