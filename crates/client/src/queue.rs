//! A queue of operations: many under way at once, from one thread that has other things to do meanwhile.
//!
//! The idea: what is asked for is gathered for a moment, and goes to each node as one request for many ranges;
//! several such requests are under way on one connection, and answers are taken in the order they come. How many
//! operations are under way is for the caller to say, by how many it submits before it takes one back. Whatever
//! is not plain (several nodes, a sealed file, a node that fails) is done the way [`FarFile::read_batch`] does it,
//! and comes back like the rest.
//!
//! A read that is under way holds off whatever moves or frees its bytes (mending, truncating, deleting), as every
//! read does. Who waits for such a change must not hold one off, so what is not plain is done when no read of this
//! queue is under way.
//!
//! Buffers are handed over with the operation and come back with its completion, so that nobody looks at one
//! while it is being filled.

use crate::by_node::span;
use crate::error::Error;
use crate::file::{FarFile, FileInner, Flight, ReadRange, WriteRange};
use crate::node_links::{Conversation, LeasedRegion, NodeLinks, Repeat};
use crate::pool::Pool;
use crate::session::Session;
use crate::stats::add;
use farpool_transport::{LinkError, ReadOp};
use farpool_wire::MonoNs;
use farpool_wire::data::Span;
use farpool_wire::limits::IO_BYTES_MAX;
use std::collections::VecDeque;
use std::sync::Arc;

/// Operations that go into one request.
const GATHER_MAX: usize = 16;

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
}

/// A read that a node was asked for.
struct Reading {
    asked: Asked,
    flight: Flight<Arc<FileInner>>,
    /// Where its bytes are, in order.
    spans: Vec<Span>,
}

/// A connection to a node, and what was asked over it, oldest first: until when an answer is waited for, and the reads.
struct Lane {
    node: Arc<NodeLinks>,
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
}

impl Pool {
    /// A queue of operations on this pool's files.
    pub fn queue(&self) -> Queue {
        Queue::new(self.session())
    }
}

impl Queue {
    pub(crate) fn new(session: Arc<Session>) -> Queue {
        let (gathered, lanes, later, done) = (Vec::new(), Vec::new(), Vec::new(), VecDeque::new());
        Queue { session, gathered, lanes, later, done, under_way: 0 }
    }

    /// Operations submitted and not taken back.
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Asks for the bytes of a file from `offset` on, as many as `into` is long; they must lie within the file.
    pub fn read(&mut self, tag: u64, file: &FarFile, offset: u64, into: Vec<u8>) {
        self.submit(Asked { tag, file: file.clone(), kind: Kind::Read, offset, bytes: into });
    }

    /// Asks for `from` to be written at `offset`.
    pub fn write(&mut self, tag: u64, file: &FarFile, offset: u64, from: Vec<u8>) {
        self.submit(Asked { tag, file: file.clone(), kind: Kind::Write, offset, bytes: from });
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
            self.flush();
            for lane in (0..self.lanes.len()).rev() {
                // The last may have gone with one before it.
                let Some(of) = self.lanes.get_mut(lane) else { continue };
                let Some((deadline, _)) = of.under_way.front() else { continue };
                if of.conversation.link.is_ready() {
                    self.take(lane);
                } else if self.session.host.now() > *deadline {
                    self.break_off(lane);
                }
            }
            self.catch_up();
        }
        self.next_done()
    }

    /// The next operation that is over; nothing if none is under way.
    pub fn wait(&mut self) -> Option<Completion> {
        loop {
            if let Some(done) = self.poll() {
                return Some(done);
            }
            let busy = self.lanes.iter().position(|lane| !lane.under_way.is_empty())?;
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
            let mut same = vec![first];
            let is_same = |one: &Asked, other: &Asked| {
                one.kind == Kind::Write && other.kind == Kind::Write && one.file.same_file(&other.file)
            };
            while let Some(next) = later.next_if(|next| is_same(next, &same[0])) {
                same.push(next);
            }
            match same[0].kind {
                Kind::Write => self.write_now(same),
                Kind::Read => same.into_iter().for_each(|asked| self.read_now(asked)),
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
        let mut requests: Vec<(Arc<LeasedRegion>, Vec<Reading>, usize)> = Vec::new();
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
            let bytes = asked.bytes.len();
            let end = asked.offset.saturating_add(bytes as u64);
            match asked.file.inner.begin_plain_read(asked.offset..end) {
                Some((flight, pieces)) if bytes <= IO_BYTES_MAX => {
                    let region = Arc::clone(&pieces[0].region);
                    let reading = Reading { asked, flight, spans: pieces.iter().map(span).collect() };
                    let fits = |(of, _, total): &&mut (Arc<LeasedRegion>, _, usize)| {
                        Arc::ptr_eq(&of.node, &region.node) && *total + bytes <= IO_BYTES_MAX
                    };
                    match requests.iter_mut().find(fits) {
                        Some((_, readings, total)) => {
                            readings.push(reading);
                            *total += bytes;
                        }
                        None => requests.push((region, vec![reading], bytes)),
                    }
                }
                _ => self.later.push(asked),
            }
        }
        for (region, readings, _) in requests {
            self.post(&region.node, readings);
        }
    }

    /// Asks a node.
    fn post(&mut self, node: &Arc<NodeLinks>, mut readings: Vec<Reading>) {
        let deadline = self.session.deadline(self.session.options.request_timeout_ms);
        let lane = match self.lanes.iter().position(|lane| Arc::ptr_eq(&lane.node, node)) {
            Some(lane) => lane,
            None => match node.begin(deadline) {
                Ok(conversation) => {
                    let under_way = VecDeque::new();
                    self.lanes.push(Lane { node: Arc::clone(node), conversation, under_way });
                    self.lanes.len() - 1
                }
                Err(_) => return self.put_off(readings),
            },
        };
        let posted = self.lanes[lane].conversation.link.post_read(&ops_of(&mut readings), deadline);
        self.lanes[lane].under_way.push_back((deadline, readings));
        if posted.is_err() {
            self.break_off(lane);
        }
    }

    /// Takes the oldest answer of a lane, waiting if need be.
    fn take(&mut self, lane: usize) {
        let deadline = self.session.deadline(self.session.options.request_timeout_ms);
        let of = &mut self.lanes[lane];
        let Some((asked_until, mut readings)) = of.under_way.pop_front() else { return };
        match of.conversation.link.take_read(&mut ops_of(&mut readings), deadline) {
            Ok(()) => {
                let counters = &self.session.counters;
                for Reading { asked, flight, .. } in readings {
                    drop(flight);
                    add(&counters.read_ops, 1);
                    add(&counters.bytes_read, asked.bytes.len() as u64);
                    self.done.push_back(Completion { tag: asked.tag, bytes: asked.bytes, result: Ok(()) });
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

    /// Others may use the connection of a lane over which nothing is under way.
    fn leave(&self, lane: Lane) {
        let deadline = self.session.deadline(self.session.options.request_timeout_ms);
        let _ = lane.node.end(lane.conversation, Ok(()), deadline, Repeat::Harmful, |_| Ok(()));
    }

    /// They are not under way any more, and have to be read the long way.
    fn put_off(&mut self, readings: Vec<Reading>) {
        self.later.extend(readings.into_iter().map(|reading| reading.asked));
    }

    /// Reads without the lanes.
    fn read_now(&mut self, mut asked: Asked) {
        let result = asked.file.read_batch(&mut [ReadRange { offset: asked.offset, into: &mut asked.bytes }]);
        self.done.push_back(Completion { tag: asked.tag, bytes: asked.bytes, result });
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

/// The operations of several reads, each with its part of its buffer.
fn ops_of(readings: &mut [Reading]) -> Vec<ReadOp<'_>> {
    let mut ops = Vec::with_capacity(readings.len());
    for reading in readings {
        let mut rest = &mut reading.asked.bytes[..];
        for span in &reading.spans {
            let (into, behind) = rest.split_at_mut(span.bytes as usize);
            rest = behind;
            ops.push(ReadOp { span: *span, into });
        }
    }
    ops
}
