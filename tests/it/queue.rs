//! Tests of queues (many operations in progress from one thread) and of asynchronous operations, against real nodes:
//! reads return the bytes that were written, whatever happens to a node meanwhile.

use crate::protected_files::Cluster;
use crate::random::Random;
use farpool::{
    AsyncQueue, Completion, CreateOptions, FarFile, FileClass, Pool, Protection, Queue, TransportChoice,
};
use futures_core::Stream;
use futures_io::AsyncRead;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

const FILE_BYTES: usize = 12 << 20;
const TRANSPORTS: [TransportChoice; 2] = [TransportChoice::Tcp, TransportChoice::Shm];

fn filled(pool: &Pool, random: &mut Random) -> (FarFile, Vec<u8>) {
    let file = pool.create("f", FileClass::Scratch, CreateOptions::default()).expect("created");
    let bytes = random.bytes(FILE_BYTES);
    file.write_at(0, &bytes).expect("written");
    (file, bytes)
}

/// Draws a range to read: mostly 16 KiB at most, now and then more than one frame (message on the wire) can hold.
fn range(random: &mut Random) -> (usize, usize) {
    let most = if random.below(20) == 0 { 3 << 20 } else { 16 << 10 };
    let count = 1 + random.below(most) as usize;
    (random.below((FILE_BYTES - count) as u64) as usize, count)
}

fn check(done: Completion, asked: &[(usize, usize)], bytes: &[u8]) {
    let (offset, count) = asked[done.tag as usize];
    done.result.unwrap_or_else(|error| panic!("{count} bytes at {offset}: {error}"));
    assert!(
        done.bytes == bytes[offset..offset + count],
        "{count} bytes at {offset} are as they were written"
    );
}

/// Makes `count` reads, with `depth` of them in progress at a time. Calls `meanwhile` after each with the number of
/// completed reads.
fn read_many(
    queue: &mut Queue,
    file: &FarFile,
    bytes: &[u8],
    count: usize,
    depth: usize,
    random: &mut Random,
    mut meanwhile: impl FnMut(usize),
) {
    let mut asked = Vec::new();
    for taken in 0..count {
        while asked.len() < count && queue.under_way() < depth {
            let (offset, length) = range(random);
            queue.read(asked.len() as u64, file, offset as u64, vec![0xEE; length]);
            asked.push((offset, length));
        }
        let done = if random.below(2) == 0 { queue.poll() } else { None };
        check(done.or_else(|| queue.wait()).expect("some are under way"), &asked, bytes);
        meanwhile(taken);
    }
    assert_eq!(queue.under_way(), 0);
    assert!(queue.wait().is_none(), "nothing is under way any more");
}

#[test]
fn reads_of_a_queue_come_back_with_what_was_written_at_any_depth() {
    let cluster = Cluster::new(3);
    for transport in TRANSPORTS {
        for (protection, encrypted) in [
            (Protection::None, false),
            (Protection::Mirror, false),
            (Protection::None, true),
            (Protection::Mirror, true),
        ] {
            let pool = cluster.connect_encrypted(transport, Some(protection), encrypted);
            let mut random = Random(1);
            let (file, bytes) = filled(&pool, &mut random);
            for depth in [1, 7, 64] {
                let mut queue = pool.queue();
                read_many(&mut queue, &file, &bytes, 300, depth, &mut random, |_| {});
            }
            pool.close();
        }
    }
}

/// The queue is deeper than the limit of requests in flight. Operations beyond the limit wait, and must not overtake
/// earlier ones.
#[test]
fn very_deep_queues_give_every_read_its_own_bytes() {
    let cluster = Cluster::new(1);
    let pool = cluster.connect(TransportChoice::Tcp, Some(Protection::None));
    let (file, bytes) = filled(&pool, &mut Random(6));
    let mut queue = pool.queue();
    let block = |tag: u64| (tag * 2_741 % 2_900) as usize * 4096;
    let mut next = 0;
    for taken in 0..6_000 {
        while next < 6_000 && queue.under_way() < 2_000 + taken % 50 {
            queue.read(next, &file, block(next) as u64, vec![0; 4096]);
            next += 1;
        }
        let done = queue.wait().expect("some are under way");
        done.result.expect("read");
        assert!(done.bytes == bytes[block(done.tag)..][..4096], "read {}", done.tag);
    }
}

/// Writes must complete although new reads are begun without a pause.
#[test]
fn writes_of_a_busy_queue_are_not_put_off_for_ever() {
    let cluster = Cluster::new(1);
    let pool = cluster.connect(TransportChoice::Tcp, Some(Protection::None));
    let (file, _) = filled(&pool, &mut Random(7));
    let mut queue = pool.queue();
    queue.write(u64::MAX, &file, 0, vec![1; 10]);
    for tag in 0..2_000 {
        while queue.under_way() < 32 {
            queue.read(tag, &file, 8192, vec![0; 4096]);
        }
        if queue.wait().expect("some are under way").tag == u64::MAX {
            return;
        }
    }
    panic!("2,000 reads went ahead of a write");
}

#[test]
fn reads_under_way_when_a_node_is_lost_come_back_from_its_mirror() {
    for (transport, encrypted) in
        TRANSPORTS.into_iter().zip([true, false]).chain([(TransportChoice::Tcp, false)])
    {
        let mut cluster = Cluster::new(3);
        let pool = cluster.connect_encrypted(transport, Some(Protection::Mirror), encrypted);
        let mut random = Random(2);
        let (file, bytes) = filled(&pool, &mut random);
        let mut queue = pool.queue();
        read_many(&mut queue, &file, &bytes, 600, 32, &mut random, |taken| {
            if taken == 200 {
                cluster.lose_node(0);
            }
        });
        pool.close();
    }
}

#[test]
fn reads_of_a_file_that_is_deleted_come_back_with_an_error() {
    let cluster = Cluster::new(1);
    let pool = cluster.connect(TransportChoice::Tcp, Some(Protection::None));
    let (file, _) = filled(&pool, &mut Random(3));
    let mut queue = pool.queue();
    (0..40).for_each(|tag| queue.read(tag, &file, tag * 4096, vec![0; 4096]));
    while queue.wait().is_some() {}
    pool.delete("f").expect("deleted");
    (0..40).for_each(|tag| queue.read(tag, &file, tag * 4096, vec![0; 4096]));
    let mut tags: Vec<u64> = Vec::new();
    while let Some(done) = queue.wait() {
        assert!(done.result.is_err());
        tags.push(done.tag);
    }
    tags.sort_unstable();
    assert_eq!(tags, (0..40).collect::<Vec<u64>>());
}

#[test]
fn what_a_queue_has_written_is_there() {
    let cluster = Cluster::new(2);
    for (transport, encrypted) in TRANSPORTS.into_iter().flat_map(|one| [(one, false), (one, true)]) {
        let pool = cluster.connect_encrypted(transport, Some(Protection::Mirror), encrypted);
        let mut random = Random(4);
        let (file, mut bytes) = filled(&pool, &mut random);
        let mut queue = pool.queue();
        // The writes do not overlap, because the order of overlapping writes of a queue is not defined.
        for tag in 0..100 {
            let (at, fresh) = (tag * 100_000, random.bytes(1 + tag % 50_000));
            bytes[at..at + fresh.len()].copy_from_slice(&fresh);
            queue.write(tag as u64, &file, at as u64, fresh);
        }
        while let Some(done) = queue.wait() {
            done.result.expect("written");
        }
        let mut found = vec![0; FILE_BYTES];
        file.read_at(0, &mut found).expect("read");
        assert!(found == bytes);
        pool.close();
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future to its end on this thread: the smallest possible runtime.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn async_file(transport: TransportChoice) -> (Cluster, Pool, AsyncQueue, FarFile, Vec<u8>) {
    let cluster = Cluster::new(2);
    let pool = cluster.connect(transport, Some(Protection::None));
    let (file, bytes) = filled(&pool, &mut Random(5));
    let queue = pool.async_queue().expect("a thread");
    (cluster, pool, queue, file, bytes)
}

#[test]
fn futures_end_with_what_was_written() {
    for transport in TRANSPORTS {
        let (_cluster, _pool, queue, file, bytes) = async_file(transport);
        block_on(async {
            let asked: Vec<_> = (0..200).map(|number| (number * 50_000, 1 + number * 37)).collect();
            let under_way: Vec<_> =
                asked.iter().map(|(at, count)| queue.read(&file, *at as u64, vec![0; *count])).collect();
            for (operation, (at, count)) in under_way.into_iter().zip(asked) {
                let done = operation.await;
                done.result.expect("read");
                assert!(done.bytes == bytes[at..at + count]);
            }
            queue.write(&file, 10, vec![7; 20]).await.result.expect("written");
            assert_eq!(queue.read(&file, 10, vec![0; 20]).await.bytes, [7; 20]);
            assert!(queue.read(&file, FILE_BYTES as u64, vec![0; 1]).await.result.is_err());
        });
    }
}

#[test]
fn stream_and_reader_give_the_whole_file_in_order() {
    let (_cluster, _pool, queue, file, bytes) = async_file(TransportChoice::Tcp);
    let mut buffers = queue.stream(&file, 1_000..FILE_BYTES as u64, 300_000, 5);
    let mut found = Vec::new();
    while let Some(buffer) = block_on(poll_fn(|context| Pin::new(&mut buffers).poll_next(context))) {
        found.extend(buffer.expect("read"));
    }
    assert!(found == bytes[1_000..]);

    let mut reader = queue.reader(&file);
    let (mut found, mut buffer) = (Vec::<u8>::new(), vec![0; 10_007]);
    loop {
        let count = block_on(poll_fn(|context| Pin::new(&mut reader).poll_read(context, &mut buffer)));
        match count.expect("read") {
            0 => break,
            count => found.extend(&buffer[..count]),
        }
    }
    assert!(found == bytes);
}
