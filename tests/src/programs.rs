//! Programs that tests run. Every wait for a program has a deadline, and names the program when it passes.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Deadline for steps that take a second or two on an idle machine. On a machine where twenty threads competed for two
/// CPUs, starting a process has taken minutes.
pub const PATIENCE: Duration = Duration::from_secs(600);
/// Interval between two checks whether a program has ended.
const LOOK: Duration = Duration::from_millis(5);

/// Runs `work` on a thread of its own. Returns `None` if it takes longer than `patience`; the thread then goes on
/// alone.
fn within<T: Send + 'static>(patience: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, told) = channel();
    let worker = thread::spawn(move || done.send(work()));
    match told.recv_timeout(patience) {
        Ok(result) => Some(result),
        Err(RecvTimeoutError::Timeout) => None,
        // The thread panicked and has printed its message.
        Err(RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(worker.join().expect_err("no result"))
        }
    }
}

fn kill(id: u32) {
    let pid = i32::try_from(id).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// Runs a program to its end and returns its output. Its standard input is empty.
pub fn output(command: &mut Command) -> Output {
    let what = format!("{command:?}");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap_or_else(|error| panic!("{what}: {error}"));
    output_of(child, &what)
}

/// Waits until a program has ended. Returns what it wrote to the streams that were piped.
pub fn output_of(child: Child, what: &str) -> Output {
    let id = child.id();
    match within(PATIENCE, move || child.wait_with_output()) {
        Some(output) => output.unwrap_or_else(|error| panic!("{what}: {error}")),
        None => {
            kill(id);
            panic!("{what} did not end within {PATIENCE:?}")
        }
    }
}

/// Returns an address that no other program takes while its server is stopped. Every test process has a loopback host
/// of its own, derived from its process id. Ports are counted up in a range from which the system assigns none.
pub fn reserved_address() -> SocketAddr {
    static PORT: AtomicU16 = AtomicU16::new(10_000);
    let [_, first, second, third] = std::process::id().to_be_bytes();
    SocketAddr::from(([127, 64 + first, second, third], PORT.fetch_add(1, Ordering::Relaxed)))
}

/// Waits for the first line of a stream. Returns it without its end; if the stream ends first, returns what there is.
pub fn first_line(stream: impl Read + Send + 'static, what: &str) -> String {
    let read = move || {
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).map(|_| line.trim_end().to_owned())
    };
    match within(PATIENCE, read) {
        Some(line) => line.unwrap_or_else(|error| panic!("a line of {what}: {error}")),
        None => panic!("{what} said no line within {PATIENCE:?}"),
    }
}

/// Waits for a line of a stream that contains `part`. Panics with the other lines if the stream ends first.
pub fn wait_for_line(stream: impl Read + Send + 'static, part: &'static str, what: &str) {
    let read = move || {
        let mut others = Vec::new();
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if line.contains(part) {
                return;
            }
            others.push(line);
        }
        panic!("no line has {part:?} in it: {others:#?}");
    };
    let found = within(PATIENCE, read);
    found.unwrap_or_else(|| panic!("{what} said nothing with {part:?} in it within {PATIENCE:?}"));
}

/// Repeats a check until it succeeds, and returns what it found. Panics with the last failure if it never does.
pub fn eventually<T>(what: &str, mut check: impl FnMut() -> Result<T, String>) -> T {
    let give_up = Instant::now() + PATIENCE;
    loop {
        match check() {
            Ok(found) => return found,
            Err(error) => assert!(Instant::now() < give_up, "not within {PATIENCE:?}: {what}: {error}"),
        }
        thread::park_timeout(LOOK);
    }
}

/// Waits until a program has ended by itself. Kills it after the deadline.
pub fn ended(child: &mut Child, what: &str, patience: Duration) -> ExitStatus {
    let give_up = Instant::now() + patience;
    loop {
        if let Some(status) = child.try_wait().unwrap_or_else(|error| panic!("{what}: {error}")) {
            return status;
        }
        if Instant::now() >= give_up {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{what} did not end within {patience:?}");
        }
        thread::park_timeout(LOOK);
    }
}
