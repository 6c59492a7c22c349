//! Tests of batches and queues on encrypted files, against real nodes. A meddler between client and nodes counts and
//! delays requests and damages answers. Batches need as few requests as those on plain files, and return every page as
//! it was written.

use crate::protected_files::Cluster;
use crate::random::Random;
use farpool::{
    CreateOptions, ErrorKind, FarFile, FileClass, Pool, PoolOptions, Protection, Queue, ReadRange,
    TransportChoice, WriteRange,
};
use farpool_host::{Host, HostLayer};
use farpool_lock::{Condvar, Mutex};
use farpool_transport::{Dial, Dialer, Exposure, Link, LinkError, ReadOp, Sockets, Transport, WriteOp};
use farpool_wire::{MonoNs, Reply, Request};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

pub(crate) const PAGE: usize = 4096;
pub(crate) const MIB: usize = 1 << 20;
const BULK: usize = 128 << 10;
const NEVER: usize = usize::MAX;

/// Meddler between a session and its nodes: it counts requests, delays them, and damages answers.
pub(crate) struct Meddler {
    /// Number of requests to read.
    reads: AtomicU64,
    /// Number of requests to write.
    writes: AtomicU64,
    /// Number of a page within the next answer to a read, in which a bit is then flipped.
    spoiled: AtomicUsize,
    /// True if the meddler sends reads to the node only when the client waits for their answer.
    sends_late: AtomicBool,
    /// Address of the node whose writes get no answer. `None` if all nodes answer.
    silent: Mutex<Option<String>>,
    /// Address of the node to which no write is passed on before another node has got one. `None` if there is no such
    /// node.
    takes_last: Mutex<Option<String>>,
    /// True if answers of [`BULK`] bytes or more are held back.
    holds_bulk: (Mutex<bool>, Condvar),
    /// Number of connections over which such large reads were made.
    bulk_links: AtomicU64,
}

impl Meddler {
    pub(crate) fn new() -> Arc<Meddler> {
        Arc::new(Meddler {
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            spoiled: AtomicUsize::new(NEVER),
            sends_late: AtomicBool::new(false),
            silent: Mutex::default(),
            takes_last: Mutex::default(),
            holds_bulk: Default::default(),
            bulk_links: AtomicU64::new(0),
        })
    }

    /// Returns the number of requests to read, and to write, that are made while `run` runs.
    fn count(&self, run: impl FnOnce()) -> (u64, u64) {
        let read = || (self.reads.load(Ordering::Relaxed), self.writes.load(Ordering::Relaxed));
        let before = read();
        run();
        let after = read();
        (after.0 - before.0, after.1 - before.1)
    }

    pub(crate) fn hold_bulk(&self, holds: bool) {
        *self.holds_bulk.0.lock() = holds;
        self.holds_bulk.1.notify_all();
    }

    pub(crate) fn bulk_links(&self) -> u64 {
        self.bulk_links.load(Ordering::Relaxed)
    }

    /// Reports whether an answer of this many bytes is held back now.
    fn holds(&self, bytes: Option<&usize>) -> bool {
        bytes.is_some_and(|bytes| *bytes >= BULK) && *self.holds_bulk.0.lock()
    }

    fn meddle(&self, ops: &mut [ReadOp<'_>]) {
        let spoiled = self.spoiled.load(Ordering::Relaxed);
        if let Some(page) = ops.iter_mut().flat_map(|op| op.into.chunks_mut(PAGE)).nth(spoiled) {
            page[17] ^= 1;
            self.spoiled.store(NEVER, Ordering::Relaxed);
        }
    }
}

struct Meddled(Arc<Meddler>, Arc<dyn Dialer>);

struct MeddledLink {
    link: Box<dyn Link>,
    to: String,
    meddler: Arc<Meddler>,
    /// Lengths in bytes of the reads that were asked for and not yet taken, oldest first.
    asked: VecDeque<usize>,
    is_bulk: bool,
}

impl HostLayer for Meddled {
    fn inner(&self) -> &dyn Host {
        &*self.1
    }
}

impl Dialer for Meddled {
    fn dial(&self, to: Dial<'_>, deadline: MonoNs) -> Result<Box<dyn Link>, LinkError> {
        let link = self.1.dial(to, deadline)?;
        let to = match to {
            Dial::Broker { address } | Dial::Node { address, .. } => address.to_owned(),
            Dial::Local { socket, .. } => socket.to_owned(),
        };
        Ok(Box::new(MeddledLink {
            link,
            to,
            meddler: Arc::clone(&self.0),
            asked: VecDeque::new(),
            is_bulk: false,
        }))
    }
}

impl Link for MeddledLink {
    fn transport(&self) -> Transport {
        self.link.transport()
    }

    fn call(&mut self, request: &Request, deadline: MonoNs) -> Result<Reply, LinkError> {
        self.link.call(request, deadline)
    }

    fn read(&mut self, ops: &mut [ReadOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        self.post_read(ops, deadline)?;
        self.take_read(ops, deadline)
    }

    fn write(&mut self, ops: &[WriteOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        self.post_write(ops, deadline)?;
        self.take_write(ops, deadline)
    }

    fn post_read(&mut self, ops: &[ReadOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        self.meddler.reads.fetch_add(1, Ordering::Relaxed);
        let bytes = ops.iter().map(|op| op.into.len()).sum();
        self.asked.push_back(bytes);
        if bytes >= BULK && !std::mem::replace(&mut self.is_bulk, true) {
            self.meddler.bulk_links.fetch_add(1, Ordering::Relaxed);
        }
        if self.meddler.sends_late.load(Ordering::Relaxed) {
            Ok(())
        } else {
            self.link.post_read(ops, deadline)
        }
    }

    fn take_read(&mut self, ops: &mut [ReadOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        if self.meddler.holds(self.asked.pop_front().as_ref()) {
            let (holds, changed) = &self.meddler.holds_bulk;
            drop(changed.wait_while(holds.lock(), |holds| *holds));
        }
        if self.meddler.sends_late.load(Ordering::Relaxed) {
            self.link.post_read(ops, deadline)?;
        }
        self.link.take_read(ops, deadline)?;
        self.meddler.meddle(ops);
        Ok(())
    }

    fn is_ready(&mut self) -> bool {
        !self.meddler.holds(self.asked.front()) && self.link.is_ready()
    }

    fn post_write(&mut self, ops: &[WriteOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        self.meddler.writes.fetch_add(1, Ordering::Relaxed);
        if self.meddler.silent.lock().as_ref() == Some(&self.to) {
            return Err(LinkError::TimedOut);
        }
        self.link.post_write(ops, deadline)
    }

    fn post_write_some(&mut self, ops: &[WriteOp<'_>], deadline: MonoNs) -> Result<bool, LinkError> {
        if self.meddler.takes_last.lock().as_ref() == Some(&self.to)
            && self.meddler.writes.load(Ordering::Relaxed) == 0
        {
            return Ok(false);
        }
        self.post_write(ops, deadline).map(|()| true)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.link.descriptor()
    }

    fn take_write(&mut self, ops: &[WriteOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        self.link.take_write(ops, deadline)
    }
}

fn connect(cluster: &Cluster, meddler: &Arc<Meddler>, transport: TransportChoice) -> Pool {
    connect_with(cluster, meddler, PoolOptions { transport, ..PoolOptions::default() })
}

pub(crate) fn connect_with(cluster: &Cluster, meddler: &Arc<Meddler>, options: PoolOptions) -> Pool {
    let host = Arc::new(Meddled(Arc::clone(meddler), Sockets::dialer(Exposure::default())));
    Pool::connect_from(host, &cluster.url(), options).expect("a session")
}

fn create(pool: &Pool, protection: Protection) -> FarFile {
    let options =
        CreateOptions { encrypted: Some(true), protection: Some(protection), ..CreateOptions::default() };
    pool.create("f", FileClass::Scratch, options).expect("created")
}

fn filled(pool: &Pool, protection: Protection, bytes: usize, seed: u64) -> (FarFile, Vec<u8>) {
    let (file, bytes) = (create(pool, protection), Random(seed).bytes(bytes));
    file.write_at(0, &bytes).expect("written");
    (file, bytes)
}

/// Starts a node, and connects through a meddler with a file of 64 pages. Returns them with the file's contents.
fn one_node() -> (Cluster, Arc<Meddler>, Pool, FarFile, Vec<u8>) {
    let (cluster, meddler) = (Cluster::new(1), Meddler::new());
    let pool = connect(&cluster, &meddler, TransportChoice::Tcp);
    let (file, bytes) = filled(&pool, Protection::None, 64 * PAGE, 1);
    (cluster, meddler, pool, file, bytes)
}

/// The ranges of one batch overlap, share pages, and leave holes.
#[test]
fn batches_of_encrypted_files_hold_what_was_written_last() {
    for transport in [TransportChoice::Tcp, TransportChoice::Shm] {
        for protection in [Protection::None, Protection::Mirror, Protection::Local] {
            let cluster = Cluster::new(2);
            let pool = connect(&cluster, &Meddler::new(), transport);
            let (file, mut random, mut model) = (create(&pool, protection), Random(2), Vec::new());
            for _ in 0..150 {
                let area = random.below(2 * MIB as u64);
                let most = [50, 5_000, 40_000][random.below(3) as usize];
                let parts: Vec<(usize, Vec<u8>)> = (0..1 + random.below(12))
                    .map(|_| {
                        let bytes = random.below(most) as usize;
                        ((area + random.below(30_000)) as usize, random.bytes(bytes))
                    })
                    .collect();
                let ranges: Vec<_> =
                    parts.iter().map(|(at, from)| WriteRange { offset: *at as u64, from }).collect();
                file.write_batch(&ranges).expect("written");
                for (at, from) in parts.iter().filter(|(_, from)| !from.is_empty()) {
                    model.resize(model.len().max(at + from.len()), 0);
                    model[*at..at + from.len()].copy_from_slice(from);
                }
                assert_eq!(file.length(), model.len() as u64);
                if model.is_empty() {
                    continue;
                }
                let wanted: Vec<(usize, usize)> = (0..8)
                    .map(|_| {
                        let at = random.below(model.len() as u64) as usize;
                        (at, random.below(20_000).min((model.len() - at) as u64) as usize)
                    })
                    .collect();
                let mut found: Vec<_> = wanted.iter().map(|(_, bytes)| vec![0xEE; *bytes]).collect();
                let parts = wanted.iter().zip(&mut found);
                let mut ranges: Vec<_> =
                    parts.map(|((at, _), into)| ReadRange { offset: *at as u64, into }).collect();
                file.read_batch(&mut ranges).expect("read");
                for ((at, bytes), found) in wanted.iter().zip(&found) {
                    assert!(*found == model[*at..at + bytes], "{bytes} bytes at {at} as written last");
                }
            }
            let mut found = vec![0; model.len()];
            file.read_at(0, &mut found).expect("read");
            assert!(found == model, "{transport:?}, {protection:?}");
            pool.close();
        }
    }
}

/// Regression: pages were transferred one by one. A batch of 64 took 64 round trips, and twice as many if it wrote
/// parts of pages.
#[test]
fn batch_of_an_encrypted_file_is_one_request_to_each_node() {
    let (cluster, meddler) = (Cluster::new(2), Meddler::new());
    let pool = connect(&cluster, &meddler, TransportChoice::Tcp);
    let (file, _) = filled(&pool, Protection::Mirror, 4 * MIB, 3);
    let block = vec![7; PAGE];
    let ranges = |from: &'static [u8], skip: usize| -> Vec<WriteRange<'static>> {
        (0..64).map(|page| WriteRange { offset: (page * 13 * PAGE + skip) as u64, from }).collect()
    };
    let block: &'static [u8] = Box::leak(block.into_boxed_slice());
    let whole = meddler.count(|| file.write_batch(&ranges(block, 0)).expect("written"));
    assert_eq!(whole, (0, 2), "a request to each node of the mirror");
    let part = meddler.count(|| file.write_batch(&ranges(&block[..100], 50)).expect("written"));
    assert!(part.0 <= 2 && part.1 == 2, "what the pages hold is read together: {part:?}");
    let mut buffers = vec![vec![0; 100]; 64];
    let read = meddler.count(|| {
        let ranges = buffers.iter_mut().enumerate();
        let mut ranges: Vec<_> =
            ranges.map(|(page, into)| ReadRange { offset: (page * 13 * PAGE + 50) as u64, into }).collect();
        file.read_batch(&mut ranges).expect("read");
    });
    assert!(read.0 <= 2, "{read:?}");
    assert!(buffers.iter().flatten().all(|byte| *byte == 7));
}

#[test]
fn one_page_of_a_batch_that_is_not_as_it_was_encrypted_is_named() {
    let (_cluster, meddler, _pool, file, _) = one_node();
    meddler.spoiled.store(6, Ordering::Relaxed);
    let mut buffers = vec![vec![0; PAGE]; 32];
    let mut ranges: Vec<_> = buffers
        .iter_mut()
        .enumerate()
        .map(|(index, into)| ReadRange { offset: (index * 2 * PAGE) as u64, into })
        .collect();
    let error = file.read_batch(&mut ranges).expect_err("a page was changed");
    assert_eq!(error.kind(), ErrorKind::Tampered);
    assert!(error.to_string().contains("page 12 of region"), "{error}");
    assert!(error.node().is_some());
    assert!(buffers[6].iter().all(|byte| *byte == 0), "nothing of it is shown");
}

fn read_pages(queue: &mut Queue, file: &FarFile, bytes: &[u8]) -> Vec<(u64, ErrorKind)> {
    (0..32).for_each(|tag| queue.read(tag, file, tag * 2 * PAGE as u64 + 5, vec![0; PAGE - 9]));
    let mut failed = Vec::new();
    while let Some(done) = queue.wait() {
        match done.result {
            Ok(()) => assert!(done.bytes == bytes[done.tag as usize * 2 * PAGE + 5..][..PAGE - 9]),
            Err(error) => failed.push((done.tag, error.kind())),
        }
    }
    failed
}

#[test]
fn one_page_that_is_not_as_it_was_encrypted_fails_one_read_of_a_queue() {
    let (_cluster, meddler, pool, file, bytes) = one_node();
    meddler.spoiled.store(4, Ordering::Relaxed);
    assert_eq!(read_pages(&mut pool.queue(), &file, &bytes), [(4, ErrorKind::Tampered)]);
}

#[test]
fn one_page_that_is_not_as_it_was_encrypted_comes_from_the_mirror() {
    let (cluster, meddler) = (Cluster::new(2), Meddler::new());
    let pool = connect(&cluster, &meddler, TransportChoice::Tcp);
    let (file, bytes) = filled(&pool, Protection::Mirror, 64 * PAGE, 4);
    meddler.spoiled.store(4, Ordering::Relaxed);
    assert_eq!(read_pages(&mut pool.queue(), &file, &bytes), []);
    assert_eq!(meddler.spoiled.load(Ordering::Relaxed), NEVER, "it was changed");
}

#[test]
fn reads_of_a_queue_of_an_encrypted_file_share_requests() {
    let (_cluster, meddler, pool, file, bytes) = one_node();
    let mut queue = pool.queue();
    let (reads, _) = meddler.count(|| assert_eq!(read_pages(&mut queue, &file, &bytes), []));
    assert_eq!(reads, 2, "16 pages each");
}

/// The read stays in progress until this thread takes its answer, so a write that waited for the read would wait for
/// ever.
#[test]
fn read_of_a_queue_that_is_not_taken_back_holds_off_no_write() {
    let (_cluster, meddler, pool, file, bytes) = one_node();
    let mut queue = pool.queue();
    queue.read(1, &file, 0, vec![0; 100]);
    queue.flush();
    file.write_at(50, &[9; 20]).expect("written");
    let mut fresh = bytes[..100].to_vec();
    fresh[50..70].fill(9);
    let done = queue.wait().expect("under way");
    done.result.expect("read");
    assert!(done.bytes == bytes[..100] || done.bytes == fresh, "as it was, or as it is");
    // The write arrives at the node before the read, although the read was begun first. The read then finds a newer
    // page than its client knew, which is no forgery.
    meddler.sends_late.store(true, Ordering::Relaxed);
    queue.read(2, &file, 50, vec![0; 100]);
    queue.flush();
    file.write_at(60, &[8; 20]).expect("written");
    fresh = [&fresh[..], &bytes[100..150]].concat();
    fresh[60..80].fill(8);
    let done = queue.wait().expect("under way");
    done.result.expect("read");
    assert!(done.bytes == fresh[50..150], "as it is now");
}

/// Regression: the copy for the second node was sent only after the first node had received all of its copy.
#[test]
fn write_of_a_mirror_is_sent_to_whichever_node_takes_it() {
    for slow in [0, 1] {
        let (cluster, meddler) = (Cluster::new(2), Meddler::new());
        let pool = connect(&cluster, &meddler, TransportChoice::Tcp);
        *meddler.takes_last.lock() = Some(cluster.address(slow));
        let (file, bytes) = filled(&pool, Protection::Mirror, 64 * PAGE, 6);
        let mut found = vec![0; bytes.len()];
        file.read_at(0, &mut found).expect("read");
        assert!(found == bytes);
        assert_eq!(pool.stats().dropped_copy_bytes, 0, "both have it");
    }
}

/// Regression: the ranges of a batch were written one by one, and the first that failed ended the batch. The ranges
/// before it were written, later ones not even tried.
#[test]
fn batch_of_an_encrypted_file_that_misses_a_node_has_what_the_other_took() {
    let (cluster, meddler) = (Cluster::new(2), Meddler::new());
    let pool = connect(&cluster, &meddler, TransportChoice::Tcp);
    let (file, bytes) = filled(&pool, Protection::None, 8 * MIB, 5);
    *meddler.silent.lock() = Some(cluster.address(1));
    let offsets: Vec<u64> = (0..80).map(|index| index * 25 * PAGE as u64 + 100).collect();
    let ranges: Vec<_> =
        offsets.iter().map(|offset| WriteRange { offset: *offset, from: &[6; 200] }).collect();
    let error = file.write_batch(&ranges).expect_err("a node does not answer");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    let (mut written, mut poisoned) = (0, 0);
    for offset in offsets {
        let mut found = [0; 200];
        match file.read_at(offset, &mut found) {
            Ok(_) => {
                assert_eq!(found, [6; 200]);
                written += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
                poisoned += 1;
            }
        }
        let mut beside = [0; 50];
        file.read_at(offset + 2 * PAGE as u64, &mut beside).expect("another page is as it was");
        assert!(beside == bytes[offset as usize + 2 * PAGE..][..50]);
    }
    assert!(written > 0 && poisoned > 0, "{written} written, {poisoned} unknown");
}
