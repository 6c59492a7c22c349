//! Client process. `farpool bench io` sends it the operations in bursts (lists of reads or of writes), over standard
//! input, standard output and a file. `bench/src/io/rivals/program.rs` describes the commands and the layout of the
//! file.

use crate::connection::Connection;
use rustix::time::{ClockId, clock_gettime};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tokio::runtime::Runtime;

const OPERATIONS_MAX: usize = 8192;
const TIMES_AT: u64 = 64 << 10;
const BUFFERS_AT: u64 = 128 << 10;
const BUFFERS_BYTES: usize = 32 << 20;
/// Time limit of a burst (a list of operations). A burst that takes longer has hung.
const PATIENCE: Duration = Duration::from_secs(60);

/// Connects to a server, and runs the commands of standard input until its end.
pub(crate) fn run(runtime: &Runtime, address: &str, bytes: u64, file: &Path) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(file)?;
    let connection = runtime.block_on(Connection::open(address, bytes))?;
    let stopped = Arc::new(AtomicU64::new(0));
    let lines = hear(stopped.clone());
    let mut client = Client { connection, file, stopped, burst: Burst::default() };
    println!("ready");
    for line in lines {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let number = |at: usize| -> io::Result<u64> {
            words.get(at).and_then(|word| word.parse().ok()).ok_or_else(|| not_understood(&line))
        };
        match words.first() {
            Some(&"prepare") => {
                let is_write = words.get(1) == Some(&"write");
                client.prepare(is_write, number(2)? as usize, number(3)? as usize)?;
                println!("ok");
            }
            Some(&"go") => {
                let limits = Limits {
                    number: number(1)?,
                    depth: number(2)?.max(1) as usize,
                    least: number(3)? as usize,
                    ns: number(4)?,
                };
                let BurstTimes { begun, ended, cpu } = runtime.block_on(async {
                    let late = |_| io::Error::new(ErrorKind::TimedOut, "no answer within 60 s");
                    tokio::time::timeout(PATIENCE, client.go(limits)).await.map_err(late)?
                })?;
                let Burst { finished, times, .. } = &client.burst;
                println!("ok {finished} {} {begun} {ended} {cpu}", times.len());
            }
            Some(&"collect") => {
                client.collect()?;
                println!("ok");
            }
            _ => return Err(not_understood(&line)),
        }
    }
    Ok(())
}

fn not_understood(line: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, format!("not understood: {line:?}"))
}

/// Starts a thread that reads standard input, so that the command `stop` is seen during a burst. The thread stores the
/// number of the stopped burst plus 1 in `stopped`. Returns a channel with all other lines.
fn hear(stopped: Arc<AtomicU64>) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if let Some(burst) = line.strip_prefix("stop ").and_then(|burst| burst.parse::<u64>().ok()) {
                stopped.store(burst.saturating_add(1), Ordering::Release);
            } else if sender.send(line).is_err() {
                return;
            }
        }
        stopped.store(u64::MAX, Ordering::Release);
    });
    receiver
}

fn ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Limits of a burst (a list of operations). It is over once `least` operations are done and either `ns` nanoseconds
/// have passed or it was stopped. `depth` operations are outstanding at once.
#[derive(Clone, Copy)]
struct Limits {
    number: u64,
    depth: usize,
    least: usize,
    ns: u64,
}

/// Begin and end of a burst by `CLOCK_MONOTONIC`, and the CPU time of this process in between, all in ns.
struct BurstTimes {
    begun: u64,
    ended: u64,
    cpu: u64,
}

#[derive(Default)]
struct Burst {
    is_write: bool,
    offsets: Vec<u64>,
    block: usize,
    /// Data of each write. `into` has the buffer of each read. It is empty while the read waits for its reply.
    from: Vec<Arc<Vec<u8>>>,
    into: Vec<Vec<u8>>,
    finished: usize,
    times: Vec<u64>,
}

struct Client {
    connection: Connection,
    file: File,
    /// Number below which the numbers of all stopped bursts (lists of operations) are.
    stopped: Arc<AtomicU64>,
    burst: Burst,
}

impl Client {
    fn prepare(&mut self, is_write: bool, block: usize, count: usize) -> io::Result<()> {
        if count > OPERATIONS_MAX || count.checked_mul(block).is_none_or(|bytes| bytes > BUFFERS_BYTES) {
            return Err(io::Error::other(format!("{count} operations of {block} bytes are too many")));
        }
        let burst = &mut self.burst;
        let mut offsets = vec![0; count * 8];
        self.file.read_exact_at(&mut offsets, 0)?;
        let (offsets, _) = offsets.as_chunks::<8>();
        burst.offsets = offsets.iter().map(|offset| u64::from_le_bytes(*offset)).collect();
        (burst.is_write, burst.block, burst.finished) = (is_write, block, 0);
        burst.times.clear();
        // Buffers are reused from burst to burst, so that no page fault is timed.
        let mut buffers = std::mem::take(&mut burst.into);
        buffers.extend(burst.from.drain(..).filter_map(Arc::into_inner));
        buffers.retain(|buffer| buffer.len() == block);
        buffers.resize_with(count, || vec![0; block]);
        for (index, buffer) in buffers.iter_mut().enumerate() {
            self.file.read_exact_at(buffer, BUFFERS_AT + (index * block) as u64)?;
        }
        if is_write {
            burst.from = buffers.into_iter().map(Arc::new).collect();
        } else {
            burst.into = buffers;
        }
        Ok(())
    }

    async fn go(&mut self, limits: Limits) -> io::Result<BurstTimes> {
        let count = self.burst.offsets.len();
        let mut answers = Vec::with_capacity(limits.depth);
        let cpu = ns(ClockId::ProcessCPUTime);
        let begun = ns(ClockId::Monotonic);
        let mut ended = begun;
        while self.burst.finished < count {
            let burst = &mut self.burst;
            let batch = burst.finished..count.min(burst.finished + limits.depth);
            for index in batch.clone() {
                let offset = burst.offsets[index];
                answers.push(if burst.is_write {
                    self.connection.write(offset, burst.from[index].clone()).await?
                } else {
                    self.connection.read(offset, std::mem::take(&mut burst.into[index])).await?
                });
            }
            for (index, answer) in batch.clone().zip(answers.drain(..)) {
                let buffer = answer.get().await?;
                if !burst.is_write {
                    burst.into[index] = buffer;
                }
            }
            burst.finished = batch.end;
            let now = ns(ClockId::Monotonic);
            burst.times.push(now - ended);
            ended = now;
            let is_stopped = self.stopped.load(Ordering::Acquire) > limits.number;
            if burst.finished >= limits.least && (now - begun >= limits.ns || is_stopped) {
                break;
            }
        }
        Ok(BurstTimes { begun, ended, cpu: ns(ClockId::ProcessCPUTime) - cpu })
    }

    fn collect(&mut self) -> io::Result<()> {
        let burst = &self.burst;
        let times: Vec<u8> = burst.times.iter().flat_map(|time| time.to_le_bytes()).collect();
        self.file.write_all_at(&times, TIMES_AT)?;
        // Writes return no bytes.
        for (index, buffer) in burst.into.iter().take(burst.finished).enumerate() {
            self.file.write_all_at(buffer, BUFFERS_AT + (index * burst.block) as u64)?;
        }
        Ok(())
    }
}
