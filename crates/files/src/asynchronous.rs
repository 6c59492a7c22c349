//! Far files for asynchronous engines: futures, and a stream that prefetches.
//!
//! The idea: a thread drives a [`Queue`] for any number of tasks, and wakes each task when its operation has ended. A
//! second thread does the same for large operations. Operations under way at the same time may be carried out in any
//! order. A task that needs an order waits for one before it starts the other. The futures need no particular runtime;
//! any can poll them.

use crate::error::{Error, ErrorKind};
use crate::file::FarFile;
use crate::pool::Pool;
use crate::queue::{BULK_BYTES_MIN, Completion, Queue};
use farpool_lock::Mutex;
use futures_core::Stream;
use futures_io::AsyncRead;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Bytes of a batch that a [`FarReader`] reads at once, and how many batches it prefetches.
const BUFFER_BYTES: usize = 256 << 10;
const BUFFERS_AHEAD: usize = 4;

/// Result of an operation, and the task that waits for it.
#[derive(Debug, Default)]
struct Slot {
    done: Option<Completion>,
    waker: Option<Waker>,
}

struct Job {
    is_read: bool,
    file: FarFile,
    offset: u64,
    bytes: Vec<u8>,
    slot: Arc<Mutex<Slot>>,
}

/// Asynchronous operations on the files of a pool. Clones share two threads, which end with the last clone. One of them
/// serves operations of 128 KiB and more, so that small ones do not wait for these.
#[derive(Clone, Debug)]
pub struct AsyncQueue {
    small: Sender<Job>,
    bulk: Sender<Job>,
}

/// Operation under way. Its output is a [`Completion`]. If this is dropped, the operation is carried out all the same.
#[derive(Debug)]
pub struct Operation {
    slot: Arc<Mutex<Slot>>,
}

impl Operation {
    /// Waits for the operation on this thread. For callers that cannot await, such as a writer behind a synchronous
    /// interface.
    pub fn wait(mut self) -> Completion {
        let waker = Waker::from(Arc::new(Parked(thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            match Pin::new(&mut self).poll(&mut context) {
                Poll::Ready(done) => return done,
                Poll::Pending => thread::park(),
            }
        }
    }
}

/// Thread that waits for an operation.
struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Pool {
    /// Starts two threads for asynchronous operations. Fails if they cannot be started.
    pub fn async_queue(&self) -> Result<AsyncQueue, Error> {
        let session = self.session();
        let start = |name| {
            let (jobs, asked) = channel();
            let queue = Queue::new(Arc::clone(session));
            let driver = session.host().spawn(name, Box::new(move || drive(queue, &asked)));
            // The thread ends by itself when nobody can send jobs, so it is not joined.
            driver
                .map(|_| jobs)
                .map_err(|error| Error::new(ErrorKind::Refused, format!("cannot start a thread: {error}")))
        };
        Ok(AsyncQueue { small: start("farpool-async")?, bulk: start("farpool-bulk")? })
    }
}

impl AsyncQueue {
    /// Reads as [`Queue::read`] does. The completion's tag has no meaning.
    pub fn read(&self, file: &FarFile, offset: u64, into: Vec<u8>) -> Operation {
        self.submit(true, file, offset, into)
    }

    /// Writes as [`Queue::write`] does. The completion's tag has no meaning.
    pub fn write(&self, file: &FarFile, offset: u64, from: Vec<u8>) -> Operation {
        self.submit(false, file, offset, from)
    }

    fn submit(&self, is_read: bool, file: &FarFile, offset: u64, bytes: Vec<u8>) -> Operation {
        let slot = Arc::<Mutex<Slot>>::default();
        let job = Job { is_read, file: file.clone(), offset, bytes, slot: Arc::clone(&slot) };
        let jobs = if job.bytes.len() < BULK_BYTES_MIN { &self.small } else { &self.bulk };
        if let Err(unsent) = jobs.send(job) {
            let error = Error::new(ErrorKind::Closed, "the thread of asynchronous operations has ended");
            slot.lock().done = Some(Completion { tag: 0, bytes: unsent.0.bytes, result: Err(error) });
        }
        Operation { slot }
    }

    /// Streams a range in buffers of `buffer_bytes` bytes (the last may be shorter), and prefetches `ahead` of them.
    /// Both are at least 1. The range must lie within the file.
    pub fn stream(
        &self,
        file: &FarFile,
        range: Range<u64>,
        buffer_bytes: usize,
        ahead: usize,
    ) -> RangeStream {
        RangeStream {
            queue: self.clone(),
            file: file.clone(),
            left: range,
            buffer_bytes: buffer_bytes.max(1),
            ahead: ahead.max(1),
            under_way: VecDeque::new(),
        }
    }

    /// Reads a file from its start to its present end.
    pub fn reader(&self, file: &FarFile) -> FarReader {
        let stream = self.stream(file, 0..file.length(), BUFFER_BYTES, BUFFERS_AHEAD);
        FarReader { stream, buffer: Vec::new(), taken: 0 }
    }
}

/// Results of operations under way. If their thread ends early, all tasks that wait get an error.
#[derive(Default)]
struct Slots(BTreeMap<u64, Arc<Mutex<Slot>>>);

impl Slots {
    fn end(&mut self, done: Completion) {
        if let Some(slot) = self.0.remove(&done.tag) {
            let mut slot = slot.lock();
            slot.done = Some(done);
            if let Some(waker) = slot.waker.take() {
                waker.wake();
            }
        }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        while let Some((&tag, _)) = self.0.first_key_value() {
            let error = Error::new(ErrorKind::Closed, "the thread of asynchronous operations has ended");
            self.end(Completion { tag, bytes: Vec::new(), result: Err(error) });
        }
    }
}

/// Carries out jobs until nobody can send any more.
fn drive(mut queue: Queue, jobs: &Receiver<Job>) {
    let mut slots = Slots::default();
    let mut next_tag = 0;
    loop {
        let first = if queue.under_way() == 0 {
            match jobs.recv() {
                Ok(job) => Some(job),
                Err(_) => return,
            }
        } else {
            None
        };
        for Job { is_read, file, offset, bytes, slot } in first.into_iter().chain(jobs.try_iter()) {
            next_tag += 1;
            slots.0.insert(next_tag, slot);
            match is_read {
                true => queue.read(next_tag, &file, offset, bytes),
                false => queue.write(next_tag, &file, offset, bytes),
            }
        }
        let mut done = queue.wait();
        while let Some(completion) = done {
            slots.end(completion);
            done = queue.poll();
        }
    }
}

impl Future for Operation {
    type Output = Completion;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Completion> {
        let mut slot = self.slot.lock();
        match slot.done.take() {
            Some(done) => Poll::Ready(done),
            None => {
                slot.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Stream over a range of a file. It ends after an error.
pub struct RangeStream {
    queue: AsyncQueue,
    file: FarFile,
    left: Range<u64>,
    buffer_bytes: usize,
    ahead: usize,
    under_way: VecDeque<Operation>,
}

impl Stream for RangeStream {
    type Item = Result<Vec<u8>, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        while self.under_way.len() < self.ahead && !self.left.is_empty() {
            let count = (self.left.end - self.left.start).min(self.buffer_bytes as u64);
            let operation = self.queue.read(&self.file, self.left.start, vec![0; count as usize]);
            self.under_way.push_back(operation);
            self.left.start += count;
        }
        let Some(oldest) = self.under_way.front_mut() else { return Poll::Ready(None) };
        let Poll::Ready(done) = Pin::new(oldest).poll(context) else { return Poll::Pending };
        self.under_way.pop_front();
        if done.result.is_err() {
            self.under_way.clear();
            self.left.start = self.left.end;
        }
        Poll::Ready(Some(done.result.map(|()| done.bytes)))
    }
}

/// Reader of a file that implements [`AsyncRead`].
pub struct FarReader {
    stream: RangeStream,
    buffer: Vec<u8>,
    taken: usize,
}

impl AsyncRead for FarReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if self.taken == self.buffer.len() {
            match Pin::new(&mut self.stream).poll_next(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(Ok(0)),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(io::Error::other(error))),
                Poll::Ready(Some(Ok(buffer))) => (self.buffer, self.taken) = (buffer, 0),
            }
        }
        let left = &self.buffer[self.taken..];
        let count = left.len().min(into.len());
        into[..count].copy_from_slice(&left[..count]);
        self.taken += count;
        Poll::Ready(Ok(count))
    }
}
