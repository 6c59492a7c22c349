//! Shipping: nodes run the program of a query over the row groups that they hold.
//!
//! The idea: the row groups of one node are in shares, like sections of a book given to one reader, and a share is run
//! by one scan. A node runs its shares one after another. The client keeps several requests for results under way, so
//! that the node never waits for the next one.
//!
//! The results of a share count only once all of them have arrived. If a scan breaks off, its results are dropped and
//! other nodes or the client run those row groups, so that no row is counted twice or lost. A share is short if others
//! can take its place, so that the loss of a node costs little, and the node has less time to answer. The one exception
//! is a query with a limit that takes any rows: as soon as enough rows have arrived, all scans are stopped where they
//! are.

mod shares;

pub(crate) use shares::{Share, located, shares};

use crate::encryption::ScanKeys;
use crate::joining::Upload;
use crate::others::Others;
use crate::pacing::{ChunkSeen, Pace};
use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use farpool_encryption::ChunkCipher;
use farpool_files::beneath::{NodeLinks, Repeat, Session};
use farpool_files::{Error, ErrorKind};
use farpool_host::HostEvent;
use farpool_lock::Mutex;
use farpool_operators::packed;
use farpool_transport::recv_buffers::RecvBuffer;
use farpool_transport::{Link, LinkError};
use farpool_wire::control::*;
use farpool_wire::limits::LOOKUP_PART_BYTES_MAX;
use farpool_wire::{Bytes, Handle, MonoNs, Payload, Reply, Request, TraceId, WireError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Requests for chunks of one scan that are under way at once.
const CREDITS: usize = 8;
/// Results of a scan.
#[derive(Debug, Default)]
pub(crate) struct Shipped {
    /// Rows or partial results, each with the number of the row group in the table that it came from.
    pub(crate) batches: Vec<(usize, RecordBatch)>,
    /// Number of row groups that the node has run the program over.
    pub(crate) groups: usize,
    /// Bytes that the node read from its regions.
    pub(crate) read_bytes: u64,
    /// Bytes of encoded batches that arrived.
    pub(crate) chunk_bytes: u64,
    /// Time that the node worked, in ns.
    pub(crate) busy_ns: u64,
    /// Further times of the scan.
    pub(crate) seen: ScanSeen,
}

/// Times of a scan that [`Report`](crate::Report) does not have.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ScanSeen {
    /// Time from the request that opens the scan to its answer, in ns.
    pub(crate) open_ns: u64,
    /// Time from that answer to the last chunk, in ns.
    pub(crate) elapsed_ns: u64,
    /// Part of `elapsed_ns` that the client waited for chunks.
    pub(crate) blocked_ns: u64,
    /// Part of `elapsed_ns` that the node waited for the client or the link.
    pub(crate) waited_ns: u64,
}

/// State of a share, which is row groups of one node that one scan covers.
pub(crate) enum Progress {
    /// Its scan has not been opened.
    Waiting,
    /// Its scan is running: the scan's handle, when it was opened, and its pace.
    Open(Handle, MonoNs, Pace),
    /// Its scan has ended, with results or an error.
    Over(Result<Shipped, Error>),
    /// Its outcome was taken by [`Shipping::take_over`].
    Taken,
}

/// The shares of a query and their states.
///
/// One thread for each node calls `run_at`. The query's own thread fetches meanwhile, looks at scans with
/// `open_scan`, takes row groups out of them with `claim`, and collects each outcome with `take_over` after the
/// threads have ended. `progress` is locked for one look at a state and never while a request is under way; `changed`
/// wakes the query's thread.
pub(crate) struct Shipping {
    program: Vec<u8>,
    /// Trace id of the query that the scans are a part of.
    trace: TraceId,
    keys: ScanKeys,
    /// Keys or filters of the semi-joins, by number.
    uploads: Arc<[Upload]>,
    /// Bytes of keys and filters that were sent to nodes.
    pub(crate) uploaded: AtomicU64,
    pub(crate) shares: Vec<Share>,
    progress: Mutex<Vec<Progress>>,
    /// Event that wakes the query's thread when a state has changed or a chunk has arrived.
    pub(crate) changed: HostEvent,
    /// True while the client fetches row groups itself.
    pub(crate) is_fetching: AtomicBool,
    /// Number of rows that are enough, whichever they are; `None` if the query needs all rows.
    rows_wanted: Option<u64>,
    /// Number of rows that have arrived, of all shares. Counted only if `rows_wanted` is set.
    rows: AtomicU64,
    /// True if no further rows are needed.
    is_stopped: AtomicBool,
}

impl Shipping {
    /// Makes the shares of a program. If `rows_wanted` is set, that many rows are enough, whichever they are.
    pub(crate) fn new(program: Vec<u8>, shares: Vec<Share>, rows_wanted: Option<u64>) -> Shipping {
        let progress = Mutex::new(shares.iter().map(|_| Progress::Waiting).collect());
        let (is_fetching, rows, is_stopped) = Default::default();
        let (keys, uploads, uploaded, changed) = Default::default();
        Shipping {
            program,
            trace: TraceId::NONE,
            keys,
            uploads,
            uploaded,
            shares,
            progress,
            changed,
            is_fetching,
            rows_wanted,
            rows,
            is_stopped,
        }
    }

    /// Sets the query that the scans are a part of, which nodes write to their logs.
    pub(crate) fn with_trace(self, trace: TraceId) -> Shipping {
        Shipping { trace, ..self }
    }

    /// Sets the encryption keys that the scans need.
    pub(crate) fn with_keys(self, keys: ScanKeys) -> Shipping {
        Shipping { keys, ..self }
    }

    /// Sets the keys or filters of the semi-joins, by number.
    pub(crate) fn with_lookups(self, uploads: Arc<[Upload]>) -> Shipping {
        Shipping { uploads, ..self }
    }

    /// Reports whether no share needs to go on.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    /// Stops all shares, because the query has enough rows or has failed. Each share closes its scan when its next
    /// chunk arrives.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
        self.changed.signal();
    }

    /// Closes a scan over another link than its own, on which requests for chunks are under way.
    fn close(&self, session: &Session, share: &Share, scan: Handle) {
        let deadline = session.request_deadline();
        let close = Request::CloseScan(ScanId { scan });
        // If the request is lost, the node ends the idle scan by itself.
        let _ = share.node.converse(deadline, Repeat::Harmful, |link| link.call(&close, deadline));
    }

    /// Counts rows that arrived, and stops all shares if they are enough.
    fn count(&self, rows: u64) {
        let Some(wanted) = self.rows_wanted else { return };
        let before = self.rows.fetch_add(rows, Ordering::Relaxed);
        if before.saturating_add(rows) >= wanted {
            self.stop();
        }
    }

    /// Reports whether the complete shares have enough rows. Rows of a share that broke off were counted by `count`,
    /// but are not used.
    pub(crate) fn is_enough(&self, outcomes: &[Option<Result<Shipped, Error>>]) -> bool {
        let batches = outcomes.iter().flatten().flatten().flat_map(|shipped| &shipped.batches);
        let rows: u64 = batches.map(|(_, batch)| batch.num_rows() as u64).sum();
        self.rows_wanted.is_some_and(|wanted| rows >= wanted)
    }

    /// Runs all shares of one node, one after another. Keys and filters of semi-joins are sent once for all of them.
    pub(crate) fn run_at(&self, session: &Session, node: &Arc<NodeLinks>) {
        let mut lookups = Vec::new();
        // Keys of a join reveal something about the table, so they go only where the table's own key may go.
        let mut gone: Option<Error> = None;
        let put = match self.keys.check_way(session, node) {
            Ok(_) if self.is_stopped() => return,
            Ok(_) => self.put_lookups(session, node, &mut lookups),
            Err(refused) => Err(refused),
        };
        for (index, share) in self.shares.iter().enumerate() {
            if Arc::ptr_eq(&share.node, node) && !self.is_stopped() {
                let shipped = match gone.as_ref().filter(|_| share.others != Others::None) {
                    Some(error) => Err(error.clone()),
                    None => put.clone().and_then(|()| self.run(session, index, share, &lookups)),
                };
                if let Err(error) = &shipped
                    && error.kind() == ErrorKind::Unreachable
                {
                    // Copies elsewhere are preferred until it answers again.
                    node.suspect();
                    gone = Some(error.clone());
                }
                self.set(index, Progress::Over(shipped));
            }
        }
        self.drop_lookups(session, node, &lookups);
    }

    /// Sends the keys and filters of the semi-joins to a node, and adds their handles to `lookups`.
    fn put_lookups(
        &self,
        session: &Session,
        node: &Arc<NodeLinks>,
        lookups: &mut Vec<Handle>,
    ) -> Result<(), Error> {
        if self.uploads.is_empty() {
            return Ok(());
        }
        let of_node = |share: &&Share| Arc::ptr_eq(&share.node, node);
        let others = self.shares.iter().filter(of_node).map(|share| share.others).max();
        let others = others.unwrap_or(Others::None);
        node.converse(others.brief_deadline(session), Repeat::Harmful, |link| {
            for Upload { kind, bytes } in &*self.uploads {
                let mut lookup = Handle(0);
                // Sends one empty part if there are no bytes.
                let rest = bytes.get(1..).unwrap_or_default();
                let ends = (0..=rest.len()).step_by(LOOKUP_PART_BYTES_MAX);
                for start in ends {
                    let end = bytes.len().min(start + LOOKUP_PART_BYTES_MAX);
                    let part = Bytes::new(bytes[start..end].to_vec()).map_err(LinkError::Protocol)?;
                    let put = PutLookup { lookup, kind: *kind, bytes: bytes.len() as u32, part };
                    let put = Request::PutLookup(put);
                    let answer = match others.ask(session, node, link, &put)? {
                        Reply::PutLookup(answer) => answer,
                        other => return Err(unexpected(&other)),
                    };
                    self.uploaded.fetch_add((end - start) as u64, Ordering::Relaxed);
                    if lookup == Handle(0) {
                        lookups.push(answer.lookup);
                    }
                    lookup = answer.lookup;
                }
            }
            Ok(())
        })
    }

    /// Drops the keys and filters at a node. Errors do not matter: the node drops them when their connection ends.
    fn drop_lookups(&self, session: &Session, node: &NodeLinks, lookups: &[Handle]) {
        if lookups.is_empty() || node.is_suspect() {
            return;
        }
        let deadline = session.request_deadline();
        let _ = node.converse(deadline, Repeat::Harmful, |link| {
            for lookup in lookups {
                link.call(&Request::DropLookup(LookupId { lookup: *lookup }), deadline)?;
            }
            Ok(())
        });
    }

    /// Returns the nodes that have shares.
    pub(crate) fn nodes(&self) -> Vec<Arc<NodeLinks>> {
        let mut nodes: Vec<Arc<NodeLinks>> = Vec::new();
        for share in &self.shares {
            if !nodes.iter().any(|node| Arc::ptr_eq(node, &share.node)) {
                nodes.push(Arc::clone(&share.node));
            }
        }
        nodes
    }

    fn set(&self, share: usize, progress: Progress) {
        if let Some(of) = self.progress.lock().get_mut(share) {
            *of = progress;
        }
        self.changed.signal();
    }

    /// Returns the handle, the opening time and the pace of a share's scan while it is running. `None` before and
    /// after.
    pub(crate) fn open_scan(&self, share: usize) -> Option<(Handle, MonoNs, Pace)> {
        match self.progress.lock().get(share) {
            Some(Progress::Open(scan, since, pace)) => Some((*scan, *since, pace.clone())),
            _ => None,
        }
    }

    /// Adds a chunk to the pace of its share, and wakes the query's thread.
    fn note(&self, share: usize, now: MonoNs, chunk: &Chunk) {
        if let Some(Progress::Open(_, begun, pace)) = self.progress.lock().get_mut(share) {
            let is_fetching = self.is_fetching.load(Ordering::Relaxed);
            pace.note(ChunkSeen {
                done: chunk.done,
                elapsed_ns: now.0.saturating_sub(begun.0),
                waited_ns: chunk.waited_ns,
                bytes: chunk.batches.len() as u64,
                is_fetching,
            });
        }
        self.changed.signal();
    }

    /// Reports whether the scan of a share has not been opened yet.
    pub(crate) fn is_waiting(&self, share: usize) -> bool {
        matches!(self.progress.lock().get(share), Some(Progress::Waiting))
    }

    /// Takes the outcome of a share. `None` if the share is not over.
    pub(crate) fn take_over(&self, share: usize) -> Option<Result<Shipped, Error>> {
        let mut progress = self.progress.lock();
        let of = progress.get_mut(share)?;
        match std::mem::replace(of, Progress::Taken) {
            Progress::Over(shipped) => Some(shipped),
            other => {
                *of = other;
                None
            }
        }
    }

    /// Claims row groups from the back of a scan, and returns their numbers in the table. Returns none if the node
    /// has taken all of them or the request fails.
    pub(crate) fn claim(&self, session: &Session, share: usize, scan: Handle, count: u32) -> Vec<usize> {
        let Some(of) = self.shares.get(share) else { return Vec::new() };
        let deadline = of.others.brief_deadline(session);
        let request = Request::ClaimGroups(ClaimGroups { scan, groups: count });
        // If the answer is lost, neither side runs the claimed row groups. The scan's count at its end shows that.
        let answer = of.node.converse(deadline, Repeat::Harmful, |link| link.call(&request, deadline));
        match answer {
            Ok(Reply::ClaimGroups(Claimed { first, count })) => {
                let end = first.saturating_add(count) as usize;
                of.groups.get(first as usize..end).unwrap_or_default().to_vec()
            }
            _ => Vec::new(),
        }
    }

    fn run(
        &self,
        session: &Session,
        index: usize,
        share: &Share,
        lookups: &[Handle],
    ) -> Result<Shipped, Error> {
        for region in &share.regions {
            session.check_lease(region)?;
        }
        let refused = |error: WireError| Error::new(ErrorKind::Invalid, error.to_string());
        let (seals, cipher) =
            self.keys.for_scan(session, &share.node, share.decryption.as_deref(), &share.in_file)?;
        let open = share.request(&self.program, lookups, seals).map_err(refused)?;
        let mut shipped = Shipped::default();
        let connected = share.others.brief_deadline(session);
        let received = share.node.converse(connected, Repeat::Harmful, |link| {
            let asked = session.host().now();
            link.set_trace(self.trace);
            let opened = share.others.ask(session, &share.node, link, &open);
            link.set_trace(TraceId::NONE);
            let scan = match opened? {
                Reply::OpenScan(opened) => opened.scan,
                other => return Err(unexpected(&other)),
            };
            let opened = session.host().now();
            shipped.seen.open_ns = opened.0.saturating_sub(asked.0);
            let pace = Pace::new(share.groups.len());
            self.set(index, Progress::Open(scan, session.host().now(), pace));
            let received = self.receive(session, link, index, scan, cipher.as_ref(), &mut shipped);
            shipped.seen.elapsed_ns = session.host().now().0.saturating_sub(opened.0);
            received
        });
        received.map(|()| shipped)
    }

    /// Receives the chunks of a share's scan, until the last one or until no further rows are needed.
    fn receive(
        &self,
        session: &Session,
        link: &mut dyn Link,
        index: usize,
        scan: Handle,
        cipher: Option<&ChunkCipher>,
        shipped: &mut Shipped,
    ) -> Result<(), LinkError> {
        let groups = &self.shares[index].groups;
        let next = Request::NextChunk(ScanId { scan });
        // Each request has its own deadline: the node answers every step, and a step takes no longer than other
        // requests may.
        let deadline = || self.shares[index].others.deadline(session);
        let (mut asked, mut number) = (0, 0);
        while asked < CREDITS {
            link.post_call(&next, deadline())?;
            asked += 1;
        }
        loop {
            let begun = session.host().now();
            let share = &self.shares[index];
            let awaited = share.others.await_reply(session, &share.node, link);
            let answer = awaited.and_then(|()| link.take_call(&next, deadline()));
            shipped.seen.blocked_ns += session.host().now().0.saturating_sub(begun.0);
            asked -= 1;
            let chunk = match answer {
                Ok(Reply::NextChunk(chunk)) => decrypted(chunk, number, cipher)?,
                Ok(other) => return Err(unexpected(&other)),
                Err(error) => {
                    if error.link_survives() {
                        settle(link, &next, asked, &deadline)?;
                    }
                    return Err(error);
                }
            };
            number += 1;
            let done = chunk.done as usize;
            // Each chunk must bring row groups, results or the end. Otherwise a node could hold the query up for
            // ever.
            let gets_on = done > shipped.groups || !chunk.batches.is_empty() || chunk.is_last;
            if done < shipped.groups || done > groups.len() || !gets_on {
                let found = u64::from(chunk.done);
                return Err(LinkError::Protocol(WireError::Value {
                    what: "row groups done in a scan",
                    found,
                }));
            }
            self.note(index, session.host().now(), &chunk);
            shipped.groups = chunk.done as usize;
            shipped.read_bytes = shipped.read_bytes.saturating_add(chunk.read_bytes);
            shipped.busy_ns = shipped.busy_ns.saturating_add(chunk.busy_ns);
            shipped.seen.waited_ns = shipped.seen.waited_ns.saturating_add(chunk.waited_ns);
            shipped.chunk_bytes += chunk.batches.len() as u64;
            if chunk.is_last {
                settle(link, &next, asked, &deadline)?;
            } else {
                link.post_call(&next, deadline())?;
                asked += 1;
            }
            let landed = bytes::Bytes::from_owner(RecvBuffer::of(chunk.batches.into_vec()));
            let mut rows = 0;
            for (group, batch) in packed::unpack(Buffer::from(landed)).map_err(LinkError::Protocol)? {
                let no_group = WireError::Value { what: "the row group of a batch", found: group.into() };
                let of_table = groups.get(group as usize).ok_or(LinkError::Protocol(no_group))?;
                rows += batch.num_rows() as u64;
                shipped.batches.push((*of_table, batch));
            }
            self.count(rows);
            if chunk.is_last {
                return Ok(());
            }
            if self.is_stopped() {
                self.close(session, &self.shares[index], scan);
                return settle(link, &next, asked, &deadline);
            }
        }
    }
}

fn unexpected(reply: &Reply) -> LinkError {
    LinkError::Protocol(WireError::Opcode { found: reply.opcode() as u16 })
}

/// Decrypts the chunk with this number of its scan, if chunks are encrypted.
fn decrypted(chunk: Chunk, number: u64, cipher: Option<&ChunkCipher>) -> Result<Chunk, LinkError> {
    let Some(cipher) = cipher else { return Ok(chunk) };
    let head = chunk.authenticated_head();
    let mut batches = chunk.batches.into_vec();
    let not_authentic =
        |_| LinkError::Protocol(WireError::Value { what: "an encrypted chunk", found: number });
    cipher.decrypt(number, &head, &mut batches).map_err(not_authentic)?;
    Ok(Chunk { batches: Payload::new(batches).map_err(LinkError::Protocol)?, ..chunk })
}

/// Receives the answers to the requests that are still under way after a scan has ended. They are refusals, or further
/// chunks of a scan that was stopped, and are dropped.
fn settle(
    link: &mut dyn Link,
    next: &Request,
    asked: usize,
    deadline: &dyn Fn() -> MonoNs,
) -> Result<(), LinkError> {
    for _ in 0..asked {
        match link.take_call(next, deadline()) {
            Ok(_) | Err(LinkError::Refused { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::Int64Array;

    fn rows(count: i64) -> Option<Result<Shipped, Error>> {
        let rows = Int64Array::from_iter_values(0..count);
        let batch = RecordBatch::try_from_iter([("n", Arc::new(rows) as _)]).expect("a batch");
        Some(Ok(Shipped { batches: vec![(0, batch)], ..Shipped::default() }))
    }

    #[test]
    fn rows_of_a_share_that_broke_off_are_not_enough_though_they_were_counted() {
        let lost = || Some(Err(Error::new(ErrorKind::Lost, "cut off")));
        let of_limit = |limit| Shipping::new(Vec::new(), Vec::new(), limit);
        let ten = of_limit(Some(10));
        ten.count(5);
        assert!(!ten.is_stopped());
        ten.count(5);
        assert!(ten.is_stopped(), "as many have come");
        assert!(!ten.is_enough(&[rows(5), lost()]) && !ten.is_enough(&[rows(9), None]));
        assert!(ten.is_enough(&[rows(5), rows(5)]) && ten.is_enough(&[rows(12), lost()]));
        assert!(!of_limit(None).is_enough(&[rows(12)]), "all of them are wanted");
        assert!(of_limit(Some(0)).is_enough(&[]));
    }
}
