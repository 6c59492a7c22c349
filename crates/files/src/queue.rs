//! Queue of operations: one thread has many under way at once and does other things meanwhile.
//!
//! The idea: think of a post office. It does not send one van for each letter. Letters are collected for a moment,
//! sorted by town, and each van takes many. Here operations are gathered, and each node gets one request for many
//! ranges. Several requests are under way on one connection.
//!
//! - Idle: `poll` or `wait` sends what was gathered, however little it is.
//! - Busy: a request leaves when 16 operations are gathered. The caller limits how many operations are under way, by
//!   how many it submits before it takes one back.
//! - Bad case: a read that needs several nodes, a node that fails, and every write are done as [`FarFile::read_batch`]
//!   or [`FarFile::write_batch`] does it. Their results come back like all others.
//!
//! A read under way holds off changes that move or free its bytes (repair, truncate, delete), as every read does. A
//! thread that waits for such a change must not hold off another one. Operations of the bad case may have to wait for a
//! change, so they are put off until no read of this queue is under way.
//!
//! Large reads use connections of their own, so no small read waits behind one. Replies are in order within a
//! connection, and in no order between connections. That is allowed, because operations under way at the same time may
//! be carried out in any order. A caller that needs one before the other takes the first back first.
//!
//! A read of an encrypted file does not hold off writers. Its pages are decrypted as they were when it began. If a
//! write came first, the read is done again as in the bad case.
//!
//! A buffer is handed over with its operation and comes back with the completion, so nobody sees a buffer that is being
//! filled.

use crate::encrypted_pages::{DecryptError, EncryptedRead};
use crate::error::Error;
use crate::file::{FarFile, FileInner, RangeLock, ReadRange, WriteRange};
use crate::node_batches::span;
use crate::node_links::{Conversation, NodeLinks, Repeat};
use crate::pool::Pool;
use crate::read::NodeRead;
use crate::session::Session;
use crate::session_core::TransferPatience;
use farpool_transport::{LinkError, ReadOp};
use farpool_wire::data::Span;
use farpool_wire::limits::IO_BYTES_MAX;
use farpool_wire::{MonoNs, Opcode};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Operations that are gathered into one request, at most.
const GATHER_MAX: usize = 16;
/// Smallest read, in bytes, that uses a connection for large reads. Receiving one takes longer than the round trip of a
/// small read, so a small one behind it would be delayed. For a large read the cost of a request of its own does not
/// matter.
pub(crate) const BULK_BYTES_MIN: usize = 128 << 10;
/// Most replies that are taken from connections for small reads before a connection for large reads that has begun to
/// answer gets its turn.
const SMALL_FIRST_MAX: u32 = 16;

/// Kind of the connection that a read uses.
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

/// Operation that has ended.
#[derive(Debug)]
pub struct Completion {
    /// Number that the caller gave to the operation.
    pub tag: u64,
    /// Buffer of the operation. After a read that succeeded it is filled.
    pub bytes: Vec<u8>,
    /// Result. Errors are those of [`FarFile::read_batch`] and [`FarFile::write_batch`].
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
    /// Error of a node that answered this read with wrong bytes and is not used any more.
    accused: Option<Error>,
}

/// Read that a node was asked for.
struct Reading {
    asked: Asked,
    lock: RangeLock<Arc<FileInner>>,
    /// Ranges of regions that hold the bytes, in order.
    spans: Vec<Span>,
    encrypted: Option<EncryptedReading>,
    patience: TransferPatience,
}

/// Additional state of a read of an encrypted file.
struct EncryptedReading {
    read: EncryptedRead,
    /// Buffer for its pages. Empty if the pages fit the caller's buffer exactly.
    pages: Vec<u8>,
}

/// Reads that are sent to a node as one request.
struct NodeRequest {
    node: Arc<NodeLinks>,
    traffic: Traffic,
    readings: Vec<Reading>,
    bytes: usize,
}

/// Request that a node has not answered.
struct UnderWay {
    sent: MonoNs,
    /// Time limit of the answer, after the one before it.
    timeout_ms: u64,
    readings: Vec<Reading>,
}

/// Connection to a node, and its unanswered requests, oldest first.
struct NodeConnection {
    node: Arc<NodeLinks>,
    traffic: Traffic,
    conversation: Conversation,
    under_way: VecDeque<UnderWay>,
    /// Time of the last answer.
    heard: MonoNs,
}

/// Queue of operations on the files of one pool. Made by [`Pool::queue`]; used by one thread at a time.
///
/// Operations of one queue that are under way at the same time may be carried out in any order. Truncating, publishing
/// or deleting a file waits for its operations, so take them back first.
pub struct Queue {
    session: Arc<Session>,
    gathered: Vec<Asked>,
    connections: Vec<NodeConnection>,
    /// Operations that may have to wait for others. They are carried out when no request is under way.
    later: Vec<Asked>,
    done: VecDeque<Completion>,
    under_way: usize,
    /// Number of replies taken from connections for small reads since the last turn of those for large reads.
    small_taken: u32,
}

impl Pool {
    /// Returns a queue of operations on this pool's files.
    pub fn queue(&self) -> Queue {
        Queue::new(Arc::clone(self.session()))
    }
}

impl Queue {
    pub(crate) fn new(session: Arc<Session>) -> Queue {
        let (gathered, connections, later, done) = (Vec::new(), Vec::new(), Vec::new(), VecDeque::new());
        Queue { session, gathered, connections, later, done, under_way: 0, small_taken: 0 }
    }

    /// Returns how many operations were submitted and whose completions were not taken yet.
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Submits a read of `into.len()` bytes at `offset`. They must lie within the file.
    pub fn read(&mut self, tag: u64, file: &FarFile, offset: u64, into: Vec<u8>) {
        self.submit(Asked { tag, file: file.clone(), kind: Kind::Read, offset, bytes: into, accused: None });
    }

    /// Submits a write of `from` at `offset`.
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

    /// Returns an operation that has ended. `None` if there is none now. Usually this does not wait. But if no request
    /// is under way, operations that were put off are carried out here, however long they take.
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

    /// Takes the oldest answer of every connection that has begun to answer, and breaks off those whose deadline is
    /// over.
    fn take_ready(&mut self, traffic: Traffic) {
        for connection in (0..self.connections.len()).rev() {
            // The last connection may have been removed together with another one.
            let Some(of) = self.connections.get_mut(connection) else { continue };
            let Some(UnderWay { sent, timeout_ms, .. }) = of.under_way.front() else { continue };
            let deadline = of.heard.max(*sent).plus_ms(*timeout_ms);
            if of.traffic != traffic {
                continue;
            }
            if of.conversation.link.is_ready() {
                self.small_taken += u32::from(traffic == Traffic::Small);
                self.take(connection);
            } else if self.session.host().now() > deadline {
                // Copies elsewhere are preferred until it answers again.
                of.node.suspect();
                self.break_off(connection);
            }
        }
    }

    /// Waits for the next operation that ends. `None` if none is under way.
    pub fn wait(&mut self) -> Option<Completion> {
        loop {
            if let Some(done) = self.poll() {
                return Some(done);
            }
            let is_busy = |traffic| {
                move |connection: &NodeConnection| {
                    connection.traffic == traffic && !connection.under_way.is_empty()
                }
            };
            // A small read is answered soon, even if large ones are slow.
            let small = self.connections.iter().position(is_busy(Traffic::Small));
            let busy = small.or_else(|| self.connections.iter().position(is_busy(Traffic::Bulk)))?;
            self.take(busy);
            self.catch_up();
        }
    }

    /// Carries out the operations that were put off, if no request is under way.
    fn catch_up(&mut self) {
        if self.connections.iter().any(|connection| !connection.under_way.is_empty()) {
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

    /// Sends the gathered operations.
    pub fn flush(&mut self) {
        // A lost node is not asked again. Once it has restarted, it gets new connections.
        self.connections.retain(|connection| !connection.under_way.is_empty() || !connection.node.is_lost());
        let mut requests: Vec<NodeRequest> = Vec::new();
        // New operations queue behind those that were put off, which would otherwise wait for ever.
        if !self.later.is_empty() {
            self.later.append(&mut self.gathered);
            return;
        }
        let (reads, writes): (Vec<_>, Vec<_>) =
            self.gathered.drain(..).partition(|asked| asked.kind == Kind::Read);
        self.later.extend(writes);
        for mut asked in reads {
            let whole = &mut [ReadRange { offset: asked.offset, into: &mut asked.bytes }];
            if asked.file.inner.read_mapped(whole) {
                self.done.push_back(Completion { tag: asked.tag, bytes: asked.bytes, result: Ok(()) });
                continue;
            }
            let end = asked.offset.saturating_add(asked.bytes.len() as u64);
            let begun = asked.file.inner.begin_node_read(asked.offset..end);
            match begun.map(|read| (read.bytes(), read)) {
                Some((bytes, read)) if bytes <= IO_BYTES_MAX => {
                    let region = Arc::clone(&read.segments[0].region);
                    let reading = Reading::of(asked, read);
                    let traffic = Traffic::of(bytes);
                    // Each large read is a request of its own, so the connection with the least work can take it.
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

    /// Returns the connection for a request. Of those for its kind of traffic this is the one with the fewest requests,
    /// or a new one.
    fn connection(&mut self, node: &Arc<NodeLinks>, traffic: Traffic, deadline: MonoNs) -> Option<usize> {
        let links_max = match traffic {
            Traffic::Small => 1,
            Traffic::Bulk => self.session.options().bulk_links,
        };
        let connections = || {
            let all = self.connections.iter().enumerate();
            all.filter(|(_, connection)| connection.traffic == traffic && Arc::ptr_eq(&connection.node, node))
        };
        let least = connections().min_by_key(|(_, connection)| connection.under_way.len());
        match least {
            Some((connection, of)) if of.under_way.is_empty() || connections().count() >= links_max => {
                return Some(connection);
            }
            _ => {}
        }
        let least = least.map(|(connection, _)| connection);
        let Ok(conversation) = node.begin(deadline) else { return least };
        self.connections.push(NodeConnection {
            node: Arc::clone(node),
            traffic,
            conversation,
            under_way: VecDeque::new(),
            heard: MonoNs(0),
        });
        Some(self.connections.len() - 1)
    }

    /// Sends a request to a node.
    fn post(&mut self, NodeRequest { node, traffic, mut readings, bytes }: NodeRequest) {
        let is_brief = readings.iter().all(|reading| reading.patience == TransferPatience::Brief);
        let patience = if is_brief { TransferPatience::Brief } else { TransferPatience::Full };
        let timeout_ms = self.session.base.transfer_timeout_ms(patience, bytes as u64);
        let deadline = self.session.deadline(timeout_ms);
        let Some(connection) = self.connection(&node, traffic, deadline) else {
            return self.put_off(readings);
        };
        let sent = self.session.host().now();
        let posted =
            self.connections[connection].conversation.link.post_read(&ops_of(&mut readings), deadline);
        self.connections[connection].under_way.push_back(UnderWay { sent, timeout_ms, readings });
        if posted.is_err() {
            self.break_off(connection);
        }
    }

    /// Takes the oldest answer of a connection. Waits for it if necessary.
    fn take(&mut self, connection: usize) {
        let of = &mut self.connections[connection];
        let Some(UnderWay { sent, timeout_ms, mut readings }) = of.under_way.pop_front() else { return };
        let deadline = self.session.deadline(timeout_ms);
        match of.conversation.link.take_read(&mut ops_of(&mut readings), deadline) {
            Ok(()) => {
                of.heard = self.session.host().now();
                self.session.note_time(&*of.conversation.link, Opcode::Read, sent);
                let counters = self.session.counters();
                for reading in readings {
                    match reading.decrypt() {
                        Ok(asked) => {
                            counters.count_read(1, asked.bytes.len() as u64);
                            let Asked { tag, bytes, .. } = asked;
                            self.done.push_back(Completion { tag, bytes, result: Ok(()) });
                        }
                        // Another copy may have the bytes, or the next try may succeed.
                        Err(asked) => self.later.push(*asked),
                    }
                }
            }
            // Each read is done by itself later, which shows the reason and handles it.
            Err(LinkError::Refused { .. }) => self.put_off(readings),
            Err(error) => {
                if matches!(error, LinkError::TimedOut) {
                    of.node.suspect();
                }
                of.under_way.push_front(UnderWay { sent, timeout_ms, readings });
                return self.break_off(connection);
            }
        }
        let of = &self.connections[connection];
        if of.under_way.is_empty() && (of.conversation.link.is_worn() || of.node.is_lost()) {
            let connection = self.connections.swap_remove(connection);
            self.leave(connection);
        }
    }

    /// Drops a connection that cannot be used any more. Its reads are put off.
    fn break_off(&mut self, connection: usize) {
        let NodeConnection { under_way, .. } = self.connections.swap_remove(connection);
        under_way.into_iter().for_each(|request| self.put_off(request.readings));
    }

    /// Gives up all connections in a forked process, because the answers belong to the parent process. The reads
    /// that were under way are put off, and the slow way then refuses each with that reason.
    fn leave_to_parent(&mut self) {
        for NodeConnection { conversation, under_way, .. } in std::mem::take(&mut self.connections) {
            // Closing it would end the conversation of the parent process.
            std::mem::forget(conversation);
            under_way.into_iter().for_each(|request| self.put_off(request.readings));
        }
    }

    /// Makes a connection on which no request is under way available to others.
    fn leave(&self, connection: NodeConnection) {
        let deadline = self.session.request_deadline();
        let _ = connection.node.end(connection.conversation, Ok(()), deadline, Repeat::Harmful, |_| Ok(()));
    }

    /// Puts reads off, to be done the slow way.
    fn put_off(&mut self, readings: Vec<Reading>) {
        self.later.extend(readings.into_iter().map(|reading| reading.asked));
    }

    /// Reads ranges of one file together. If that fails, reads each by itself to find out which ones fail.
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
            // A node answered this read with wrong bytes before, and was barred. If no copy answers now, that is the
            // reason.
            let result = result.map_err(|error| asked.accused.unwrap_or(error));
            self.done.push_back(Completion { tag: asked.tag, bytes: asked.bytes, result });
        }
    }

    /// Writes ranges of one file together. If that fails, writes each by itself to find out which ones fail.
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

/// Bytes of reads that are carried out together, at most. All of them share the deadline of one request.
const TOGETHER_BYTES_MAX: u64 = 8 << 20;
/// Largest distance from the first to the last byte of reads of one encrypted file that are carried out together, as a
/// multiple of the bytes read. It is limited because nobody can write anywhere between them meanwhile.
const ENCRYPTED_HULL_MAX: u64 = 4;

impl Group {
    fn of(first: &Asked) -> Group {
        let range = first.range();
        Group { bytes: range.end - range.start, hull: range }
    }

    /// Adds `next` to the group that begins with `first`, if it fits. Returns true if it does.
    fn takes_in(&mut self, first: &Asked, next: &Asked) -> bool {
        let range = next.range();
        let bytes = self.bytes + (range.end - range.start);
        let hull = self.hull.start.min(range.start)..self.hull.end.max(range.end);
        let fits = match first.kind {
            Kind::Write => true,
            Kind::Read => {
                let is_apart = hull.end - hull.start > ENCRYPTED_HULL_MAX * bytes;
                bytes <= TOGETHER_BYTES_MAX && !(is_apart && first.file.is_encrypted())
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
    /// Carries out the writes that were submitted, and drops the reads.
    fn drop(&mut self) {
        for connection in std::mem::take(&mut self.connections) {
            // Connections with requests under way are closed, because answers are still to come on them.
            if connection.under_way.is_empty() {
                self.leave(connection);
            }
        }
        let left = std::mem::take(&mut self.later).into_iter().chain(std::mem::take(&mut self.gathered));
        left.filter(|asked| asked.kind == Kind::Write).for_each(|asked| self.write_now(vec![asked]));
    }
}

impl Reading {
    fn of(asked: Asked, read: NodeRead) -> Reading {
        let bytes = read.bytes();
        let NodeRead { lock, segments, encrypted, patience } = read;
        let is_whole = bytes == asked.bytes.len();
        let encrypted = encrypted
            .map(|read| EncryptedReading { read, pages: if is_whole { Vec::new() } else { vec![0; bytes] } });
        let segments = encrypted.as_ref().map_or(&segments, |encrypted| &encrypted.read.segments);
        Reading { spans: segments.iter().map(span).collect(), asked, lock, encrypted, patience }
    }

    /// Ends a read that was answered. Returns the operation with its bytes, or as an error one that must be done the
    /// slow way.
    fn decrypt(mut self) -> Result<Asked, Box<Asked>> {
        let Some(mut encrypted) = self.encrypted.take() else { return Ok(self.asked) };
        let Reading { mut asked, lock, .. } = self;
        let is_apart = !encrypted.pages.is_empty();
        let room = if is_apart { &mut encrypted.pages } else { &mut asked.bytes };
        let decrypted = asked.file.inner.decrypt_read(&encrypted.read, room);
        drop(lock);
        match decrypted {
            Ok(()) if is_apart => {
                let from = (asked.offset - encrypted.read.file().start) as usize;
                let count = asked.bytes.len();
                asked.bytes.copy_from_slice(&encrypted.pages[from..from + count]);
                Ok(asked)
            }
            Ok(()) => Ok(asked),
            Err(DecryptError::Overtaken) => Err(Box::new(asked)),
            Err(DecryptError::Tampered(error)) => Err(Box::new(Asked { accused: Some(error), ..asked })),
        }
    }
}

/// Returns the operations of several reads, each with its part of its buffer.
fn ops_of(readings: &mut [Reading]) -> Vec<ReadOp<'_>> {
    let mut ops = Vec::with_capacity(readings.len());
    for Reading { asked, spans, encrypted, .. } in readings {
        let mut rest = match encrypted {
            Some(encrypted) if !encrypted.pages.is_empty() => &mut encrypted.pages[..],
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
