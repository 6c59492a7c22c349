//! A queue of operations: many under way at once, from one thread that has other things to do meanwhile.
//!
//! The idea: what is asked for is gathered for a moment, and goes to each node as one request for many ranges;
//! several such requests are under way on one connection, and answers are taken in the order they come. How many
//! operations are under way is for the caller to say, by how many it submits before it takes one back. Whatever
//! is not plain (several nodes, a node that fails) is done the way [`FarFile::read_batch`] does it, and comes back like
//! the rest.
//!
//! A read that is under way holds off whatever moves or frees its bytes (mending, truncating, deleting), as every
//! read does. Who waits for such a change must not hold one off, so what is not plain is done when no read of this
//! queue is under way.
//!
//! Reads of much go over connections of their own, so that nothing small waits behind one: replies come in the order
//! of requests on each connection, and in none between them. Nobody can tell, for operations that are under way at
//! once may be carried out in any order anyway, and whoever needs one before the other takes the first back first.
//!
//! A read of a sealed file is under way like any other, and does not hold writers off: its pages are opened as they
//! were when it began, and read the long way if a write has come first.
//!
//! Buffers are handed over with the operation and come back with its completion, so that nobody looks at one
//! while it is being filled.

use crate::by_node::span;
use crate::error::Error;
use crate::file::{FarFile, FileInner, Flight, ReadRange, WriteRange};
use crate::node_links::{Conversation, NodeLinks, Repeat};
use crate::pool::Pool;
use crate::read::NodeRead;
use crate::sealed_pages::{SealedRead, Unopened};
use crate::session::Session;
use crate::stats::add;
use farpool_transport::{LinkError, ReadOp};
use farpool_wire::MonoNs;
use farpool_wire::data::Span;
use farpool_wire::limits::IO_BYTES_MAX;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Operations that go into one request.
const GATHER_MAX: usize = 16;
/// Reads of at least so many bytes go over connections of their own. Receiving one takes longer than the round trip
/// of a small one, so whoever waits behind it would notice; what a request costs beside its bytes, nobody notices.
pub(crate) const BULK_BYTES_MIN: usize = 128 << 10;
/// Answers that are taken from the other connections, at most, while one with much has begun to come.
const SMALL_FIRST_MAX: u32 = 16;

/// Which connections a read goes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traffic {
    Small,
    Bulk,
}

impl Traffic {
    fn of(bytes: usize) -> Traffic {
        if bytes < BULK_BYTES_MIN { Traffic::Small } else { Traffic::Bulk }
    }
}

/// An operation that is over.
#[derive(Debug)]
pub struct Completion {
    /// What the caller gave it to know it by.
    pub tag: u64,
    /// The buffer: of a read that succeeded, filled.
    pub bytes: Vec<u8>,
    /// How it went. Errors as of [`FarFile::read_batch`] and [`FarFile::write_batch`].
    pub result: Result<(), Error>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
}

struct Asked {
    tag: u64,
    file: FarFile,
    kind: Kind,
    offset: u64,
    bytes: Vec<u8>,
    /// Why a node that was asked for it is not to be trusted any more.
    accused: Option<Error>,
}

/// A read that a node was asked for.
struct Reading {
    asked: Asked,
    flight: Flight<Arc<FileInner>>,
    /// Where its bytes are, in order.
    spans: Vec<Span>,
    sealed: Option<SealedReading>,
}

/// What more there is to a read of a sealed file.
struct SealedReading {
    read: SealedRead,
    /// Room for its pages, where they are more than was asked for.
    pages: Vec<u8>,
}

/// Reads that a node is to be asked for at once.
struct NodeRequest {
    node: Arc<NodeLinks>,
    traffic: Traffic,
    readings: Vec<Reading>,
    bytes: usize,
}

/// A connection to a node, and what was asked over it, oldest first: until when an answer is waited for, and the reads.
struct Lane {
    node: Arc<NodeLinks>,
    traffic: Traffic,
    conversation: Conversation,
    under_way: VecDeque<(MonoNs, Vec<Reading>)>,
}

/// See the module. Made by [`Pool::queue`]; used by one thread at a time.
///
/// Operations of one queue that are under way at the same time may be carried out in any order. Take back what is
/// under way before truncating, publishing or deleting a file: that waits for it.
pub struct Queue {
    session: Arc<Session>,
    gathered: Vec<Asked>,
    lanes: Vec<Lane>,
    /// What may wait for others, to be done when nothing is under way in the lanes.
    later: Vec<Asked>,
    done: VecDeque<Completion>,
    under_way: usize,
    /// Answers taken from lanes of small traffic since one of bulk was looked for.
    small_taken: u32,
}

impl Pool {
    /// A queue of operations on this pool's files.
    pub fn queue(&self) -> Queue {
        Queue::new(Arc::clone(self.session()))
    }
}

impl Queue {
    pub(crate) fn new(session: Arc<Session>) -> Queue {
        let (gathered, lanes, later, done) = (Vec::new(), Vec::new(), Vec::new(), VecDeque::new());
        Queue { session, gathered, lanes, later, done, under_way: 0, small_taken: 0 }
    }

    /// Operations submitted and not taken back.
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Asks for the bytes of a file from `offset` on, as many as `into` is long; they must lie within the file.
    pub fn read(&mut self, tag: u64, file: &FarFile, offset: u64, into: Vec<u8>) {
        self.submit(Asked { tag, file: file.clone(), kind: Kind::Read, offset, bytes: into, accused: None });
    }

    /// Asks for `from` to be written at `offset`.
    pub fn write(&mut self, tag: u64, file: &FarFile, offset: u64, from: Vec<u8>) {
        self.submit(Asked { tag, file: file.clone(), kind: Kind::Write, offset, bytes: from, accused: None });
    }

    fn submit(&mut self, asked: Asked) {
        self.under_way += 1;
        self.gathered.push(asked);
        if self.gathered.len() >= GATHER_MAX {
            self.flush();
        }
    }

    /// An operation that is over, if there is one now. What may have to wait for others is done when nothing else
    /// is under way, and then takes as long as it takes.
    pub fn poll(&mut self) -> Option<Completion> {
        if self.done.is_empty() {
            if self.session.is_forked() {
                self.leave_to_parent();
            }
            self.flush();
            self.take_ready(Traffic::Small);
            if self.done.is_empty() || self.small_taken >= SMALL_FIRST_MAX {
                self.small_taken = 0;
                self.take_ready(Traffic::Bulk);
            }
            self.catch_up();
        }
        self.next_done()
    }

    /// Takes the oldest answer of every lane that has begun to be answered, and gives up those that never will be.
    fn take_ready(&mut self, traffic: Traffic) {
        for lane in (0..self.lanes.len()).rev() {
            // The last may have gone with one before it.
            let Some(of) = self.lanes.get_mut(lane) else { continue };
            let Some((deadline, _)) = of.under_way.front() else { continue };
            if of.traffic != traffic {
                continue;
            }
            if of.conversation.link.is_ready() {
                self.small_taken += u32::from(traffic == Traffic::Small);
                self.take(lane);
            } else if self.session.host().now() > *deadline {
                self.break_off(lane);
            }
        }
    }

    /// The next operation that is over; nothing if none is under way.
    pub fn wait(&mut self) -> Option<Completion> {
        loop {
            if let Some(done) = self.poll() {
                return Some(done);
            }
            let is_busy = |traffic| move |lane: &Lane| lane.traffic == traffic && !lane.under_way.is_empty();
            // What is small comes soon, whatever becomes of the rest.
            let small = self.lanes.iter().position(is_busy(Traffic::Small));
            let busy = small.or_else(|| self.lanes.iter().position(is_busy(Traffic::Bulk)))?;
            self.take(busy);
            self.catch_up();
        }
    }

    /// Does what was put off, if nothing is under way in the lanes.
    fn catch_up(&mut self) {
        if self.lanes.iter().any(|lane| !lane.under_way.is_empty()) {
            return;
        }
        let mut later = std::mem::take(&mut self.later).into_iter().peekable();
        while let Some(first) = later.next() {
            let mut group = Group::of(&first);
            let mut same = vec![first];
            while let Some(next) = later.next_if(|next| group.takes_in(&same[0], next)) {
                same.push(next);
            }
            match same[0].kind {
                Kind::Write => self.write_now(same),
                Kind::Read => self.read_now(same),
            }
        }
    }

    fn next_done(&mut self) -> Option<Completion> {
        let done = self.done.pop_front()?;
        self.under_way -= 1;
        Some(done)
    }

    /// Sends what was gathered on its way.
    pub fn flush(&mut self) {
        // Nothing is asked of a lost node any more, and its next life has other connections.
        self.lanes.retain(|lane| !lane.under_way.is_empty() || !lane.node.is_lost());
        let mut requests: Vec<NodeRequest> = Vec::new();
        // Nothing new goes ahead of what was put off, or that would wait for ever.
        if !self.later.is_empty() {
            self.later.append(&mut self.gathered);
            return;
        }
        let (reads, writes): (Vec<_>, Vec<_>) =
            self.gathered.drain(..).partition(|asked| asked.kind == Kind::Read);
        self.later.extend(writes);
        for mut asked in reads {
            let whole = &mut [ReadRange { offset: asked.offset, into: &mut asked.bytes }];
            if asked.file.inner.read_direct(whole) {
                self.done.push_back(Completion { tag: asked.tag, bytes: asked.bytes, result: Ok(()) });
                continue;
            }
            let end = asked.offset.saturating_add(asked.bytes.len() as u64);
            let begun = asked.file.inner.begin_node_read(asked.offset..end);
            match begun.map(|read| (read.bytes(), read)) {
                Some((bytes, read)) if bytes <= IO_BYTES_MAX => {
                    let region = Arc::clone(&read.pieces[0].region);
                    let reading = Reading::of(asked, read);
                    let traffic = Traffic::of(bytes);
                    // Each of much by itself, for whichever connection has the least to do.
                    let fits = |request: &&mut NodeRequest| {
                        (request.traffic, traffic) == (Traffic::Small, Traffic::Small)
                            && request.bytes + bytes <= IO_BYTES_MAX
                            && Arc::ptr_eq(&request.node, &region.node)
                    };
                    match requests.iter_mut().find(fits) {
                        Some(request) => {
                            request.readings.push(reading);
                            request.bytes += bytes;
                        }
                        None => {
                            let (node, readings) = (Arc::clone(&region.node), vec![reading]);
                            requests.push(NodeRequest { node, traffic, readings, bytes });
                        }
                    }
                }
                _ => self.later.push(asked),
            }
        }
        requests.into_iter().for_each(|request| self.post(request));
    }

    /// The connection for a request: of those for its traffic the one with the least under way, or one more.
    fn lane(&mut self, node: &Arc<NodeLinks>, traffic: Traffic, deadline: MonoNs) -> Option<usize> {
        let links_max = match traffic {
            Traffic::Small => 1,
            Traffic::Bulk => self.session.options().bulk_links,
        };
        let lanes = || {
            let all = self.lanes.iter().enumerate();
            all.filter(|(_, lane)| lane.traffic == traffic && Arc::ptr_eq(&lane.node, node))
        };
        let least = lanes().min_by_key(|(_, lane)| lane.under_way.len());
        match least {
            Some((lane, of)) if of.under_way.is_empty() || lanes().count() >= links_max => return Some(lane),
            _ => {}
        }
        let least = least.map(|(lane, _)| lane);
        let Ok(conversation) = node.begin(deadline) else { return least };
        self.lanes.push(Lane { node: Arc::clone(node), traffic, conversation, under_way: VecDeque::new() });
        Some(self.lanes.len() - 1)
    }

    /// Asks a node.
    fn post(&mut self, NodeRequest { node, traffic, mut readings, .. }: NodeRequest) {
        let deadline = self.session.request_deadline();
        let Some(lane) = self.lane(&node, traffic, deadline) else { return self.put_off(readings) };
        let posted = self.lanes[lane].conversation.link.post_read(&ops_of(&mut readings), deadline);
        self.lanes[lane].under_way.push_back((deadline, readings));
        if posted.is_err() {
            self.break_off(lane);
        }
    }

    /// Takes the oldest answer of a lane, waiting if need be.
    fn take(&mut self, lane: usize) {
        let deadline = self.session.request_deadline();
        let of = &mut self.lanes[lane];
        let Some((asked_until, mut readings)) = of.under_way.pop_front() else { return };
        match of.conversation.link.take_read(&mut ops_of(&mut readings), deadline) {
            Ok(()) => {
                let counters = self.session.counters();
                for reading in readings {
                    match reading.open() {
                        Ok(asked) => {
                            add(&counters.read_ops, 1);
                            add(&counters.bytes_read, asked.bytes.len() as u64);
                            let Asked { tag, bytes, .. } = asked;
                            self.done.push_back(Completion { tag, bytes, result: Ok(()) });
                        }
                        // Another copy may do, or the next try.
                        Err(asked) => self.later.push(*asked),
                    }
                }
            }
            // Why, and what to do about it, shows when each is asked for by itself.
            Err(LinkError::Refused { .. }) => self.put_off(readings),
            Err(_) => {
                of.under_way.push_front((asked_until, readings));
                return self.break_off(lane);
            }
        }
        let of = &self.lanes[lane];
        if of.under_way.is_empty() && (of.conversation.link.is_worn() || of.node.is_lost()) {
            let lane = self.lanes.swap_remove(lane);
            self.leave(lane);
        }
    }

    /// A lane's connection is of no more use.
    fn break_off(&mut self, lane: usize) {
        let Lane { under_way, .. } = self.lanes.swap_remove(lane);
        under_way.into_iter().for_each(|(_, readings)| self.put_off(readings));
    }

    /// The answers are those of the process that asked. In this one each read is refused for its reason.
    fn leave_to_parent(&mut self) {
        for Lane { conversation, under_way, .. } in std::mem::take(&mut self.lanes) {
            // To end it would be heard by the other side.
            std::mem::forget(conversation);
            under_way.into_iter().for_each(|(_, readings)| self.put_off(readings));
        }
    }

    /// Others may use the connection of a lane over which nothing is under way.
    fn leave(&self, lane: Lane) {
        let deadline = self.session.request_deadline();
        let _ = lane.node.end(lane.conversation, Ok(()), deadline, Repeat::Harmful, |_| Ok(()));
    }

    /// They are not under way any more, and have to be read the long way.
    fn put_off(&mut self, readings: Vec<Reading>) {
        self.later.extend(readings.into_iter().map(|reading| reading.asked));
    }

    /// Reads of one file without the lanes, together. If that fails, which of them failed is found out one by one.
    fn read_now(&mut self, mut same: Vec<Asked>) {
        let is_done = same.len() > 1 && {
            let file = same[0].file.clone();
            let ranges =
                same.iter_mut().map(|Asked { offset, bytes, .. }| ReadRange { offset: *offset, into: bytes });
            file.read_batch(&mut ranges.collect::<Vec<_>>()).is_ok()
        };
        for mut asked in same {
            let range = ReadRange { offset: asked.offset, into: &mut asked.bytes };
            let result = if is_done { Ok(()) } else { asked.file.read_batch(&mut [range]) };
            // What it was read from once more had been given up for this.
            let result = result.map_err(|error| asked.accused.unwrap_or(error));
            self.done.push_back(Completion { tag: asked.tag, bytes: asked.bytes, result });
        }
    }

    /// Writes to one file, together. If that fails, which of them failed is found out one by one.
    fn write_now(&mut self, same: Vec<Asked>) {
        let ranges: Vec<_> =
            same.iter().map(|asked| WriteRange { offset: asked.offset, from: &asked.bytes }).collect();
        let together = same[0].file.write_batch(&ranges);
        for asked in same {
            let result = match &together {
                Ok(()) => Ok(()),
                Err(_) => asked.file.write_at(asked.offset, &asked.bytes),
            };
            self.done.push_back(Completion { tag: asked.tag, bytes: asked.bytes, result });
        }
    }
}

/// Operations that were put off and are carried out together.
struct Group {
    bytes: u64,
    hull: Range<u64>,
}

/// Reads that are put off go together until they are of so many bytes: all of them have the time of one request.
const TOGETHER_BYTES_MAX: u64 = 8 << 20;
/// While a sealed file is read for several, nobody writes between the first and the last byte: they may lie apart by so
/// much for each byte that is read.
const SEALED_HULL_MAX: u64 = 4;

impl Group {
    fn of(first: &Asked) -> Group {
        let range = first.range();
        Group { bytes: range.end - range.start, hull: range }
    }

    /// Whether `next` goes with those that began with `first`; if so, it is counted.
    fn takes_in(&mut self, first: &Asked, next: &Asked) -> bool {
        let range = next.range();
        let bytes = self.bytes + (range.end - range.start);
        let hull = self.hull.start.min(range.start)..self.hull.end.max(range.end);
        let fits = match first.kind {
            Kind::Write => true,
            Kind::Read => {
                let is_apart = hull.end - hull.start > SEALED_HULL_MAX * bytes;
                bytes <= TOGETHER_BYTES_MAX && !(is_apart && first.file.is_sealed())
            }
        };
        let takes = fits && first.kind == next.kind && first.file.same_file(&next.file);
        if takes {
            *self = Group { bytes, hull };
        }
        takes
    }
}

impl Asked {
    fn range(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.bytes.len() as u64)
    }
}

impl Drop for Queue {
    /// Writes that were submitted are carried out; reads are not.
    fn drop(&mut self) {
        for lane in std::mem::take(&mut self.lanes) {
            // Over the others answers are still to come.
            if lane.under_way.is_empty() {
                self.leave(lane);
            }
        }
        let left = std::mem::take(&mut self.later).into_iter().chain(std::mem::take(&mut self.gathered));
        left.filter(|asked| asked.kind == Kind::Write).for_each(|asked| self.write_now(vec![asked]));
    }
}

impl Reading {
    fn of(asked: Asked, read: NodeRead) -> Reading {
        let bytes = read.bytes();
        let NodeRead { flight, pieces, sealed } = read;
        let is_whole = bytes == asked.bytes.len();
        let sealed = sealed
            .map(|read| SealedReading { read, pages: if is_whole { Vec::new() } else { vec![0; bytes] } });
        let pieces = sealed.as_ref().map_or(&pieces, |sealed| &sealed.read.pieces);
        Reading { spans: pieces.iter().map(span).collect(), asked, flight, sealed }
    }

    /// Ends it, now that it has been answered: what was asked for is there, or has to be read the long way.
    fn open(mut self) -> Result<Asked, Box<Asked>> {
        let Some(mut sealed) = self.sealed.take() else { return Ok(self.asked) };
        let Reading { mut asked, flight, .. } = self;
        let is_apart = !sealed.pages.is_empty();
        let room = if is_apart { &mut sealed.pages } else { &mut asked.bytes };
        let opened = asked.file.inner.open_read(&sealed.read, room);
        drop(flight);
        match opened {
            Ok(()) if is_apart => {
                let from = (asked.offset - sealed.read.file().start) as usize;
                let count = asked.bytes.len();
                asked.bytes.copy_from_slice(&sealed.pages[from..from + count]);
                Ok(asked)
            }
            Ok(()) => Ok(asked),
            Err(Unopened::Overtaken) => Err(Box::new(asked)),
            Err(Unopened::Tampered(error)) => Err(Box::new(Asked { accused: Some(error), ..asked })),
        }
    }
}

/// The operations of several reads, each with its part of its buffer.
fn ops_of(readings: &mut [Reading]) -> Vec<ReadOp<'_>> {
    let mut ops = Vec::with_capacity(readings.len());
    for Reading { asked, spans, sealed, .. } in readings {
        let mut rest = match sealed {
            Some(sealed) if !sealed.pages.is_empty() => &mut sealed.pages[..],
            _ => &mut asked.bytes,
        };
        for span in &*spans {
            let (into, behind) = rest.split_at_mut(span.bytes as usize);
            rest = behind;
            ops.push(ReadOp { span: *span, into });
        }
    }
    ops
}
