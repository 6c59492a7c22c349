//! Sandbox processes: started, handed their lanes, watched, and ended.
//!
//! The idea: every caller's functions run in a process of its own, which can be killed without anybody else noticing.
//! One is kept in reserve, so that a new one costs no more than a message. Whoever watches holds a second handle on
//! each lane: if the process dies while a function runs, its caller is told why, on the very connection that it waits
//! on. One thread looks at what lanes do, some hundred times in a second while there are any, and not at all otherwise.
//!
//! There are so many processes at a time, and callers queue for them. Whoever is first in the queue has a process ended
//! that has nothing to do: one whose caller has left, or else the one whose caller has not called for the longest time.
//! That caller's next call finds its connection closed, and begins anew.

use crate::confinement::{Confinement, confine};
use crate::options::{SandboxOptions, members, tenant_folder, tenants};
use crate::setup::{LaneSetup, LaneWindow, Start};
use crate::status::{Doing, LANES_MAX, REVOKED_NS, Status};
use farpool_host::{clock, waiting};
use farpool_lock::{Condvar, Mutex};
use farpool_transport::{HandedOver, Lane, Successor};
use farpool_wire::control::{Called, FunctionFault, Outcome};
use farpool_wire::frame::Header;
use farpool_wire::{Code, List, MonoNs, Opcode, Payload, Refusal, Reply};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::Timespec;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How often lanes are looked at while there are any.
const LOOK_MS: u64 = 10;
/// One that seems overdue is looked at again after this long.
const LOOK_AGAIN_MS: u64 = 1;
/// A process without lanes is ended after this long.
const IDLE_MS: u64 = 10_000;
/// The time without a call after which a process with lanes is ended for a caller that waits for one, in milliseconds.
/// Callers that take turns faster than that wait for each other, and do not end each other's processes all the time.
const UNUSED_MS: u64 = 100;
/// The same for a process with a lane on which there was no call yet: its caller may have to wait for a CPU.
const NEW_LANE_MS: u64 = 2_000;
/// The time between two looks for such a process, in milliseconds.
const QUEUE_LOOK_MS: u64 = 20;
/// The number of callers that may wait at a time. Each keeps a connection and its thread.
const QUEUE_MAX: usize = 512;
/// The time within which a process that was started says so. The kernel makes and removes namespaces one after the
/// other, and on a machine with busy CPUs one of them was seen to take 43 s. Callers do not wait for it longer than for
/// their turn.
const START_PATIENCE: Duration = Duration::from_secs(300);
/// The time within which one that is to end has ended.
const END_PATIENCE_SECONDS: i64 = 10;
/// A caller that does not take the news of a death within this time does not get it.
const NEWS_MS: u64 = 1_000;

/// See the module. Dropping it ends all of them.
pub struct Sandboxes {
    shared: Arc<Shared>,
    watcher: Option<JoinHandle<()>>,
}

struct Shared {
    options: SandboxOptions,
    processes: Mutex<Processes>,
    /// A process has been started, or was tried to be, or has ended; or it is another caller's turn.
    changed: Condvar,
    /// A byte wakes the watcher.
    wake: UnixStream,
}

#[derive(Default)]
struct Processes {
    assigned: Vec<Assigned>,
    spare: Option<Process>,
    /// One has been started and has not said so yet.
    is_starting: bool,
    /// Somebody waits for one.
    is_wanted: bool,
    /// Why none could be started when it was tried last.
    failed: Option<String>,
    /// The turns of callers that wait for a process, in order.
    queue: VecDeque<u64>,
    /// The turn of whoever comes next.
    next_turn: u64,
    is_over: bool,
}

impl Processes {
    /// Returns the process of an owner.
    fn of(&self, owner: &Owner) -> Option<&Arc<Process>> {
        let is_theirs = |one: &&Assigned| one.owner == *owner && one.process.is_there();
        self.assigned.iter().find(is_theirs).map(|one| &one.process)
    }

    /// Ends a process that has nothing to do, if there is one and none is about to end anyway: one without lanes first,
    /// then the one that has waited longest.
    fn end_unused(&self, now: MonoNs) {
        if self.assigned.iter().any(|one| !one.process.is_there()) {
            return;
        }
        let unused = self.assigned.iter().filter_map(|one| Some((one.process.unused(now)?, &one.process)));
        if let Some((_, process)) = unused.min_by_key(|(unused, _)| *unused) {
            process.end();
        }
    }
}

/// Whose functions a process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// A process runs those of one caller only.
    pub caller: String,
    /// Compiled code is kept for a tenant, all of whose callers may run what code they like anyway.
    pub tenant: String,
}

/// A call that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// The name of its function, as far as it is known.
    pub function: String,
    /// Whose it is: see [`Owner::caller`].
    pub caller: String,
    /// When it began.
    pub since: MonoNs,
}

/// A process, and whose it is.
#[derive(Clone)]
struct Assigned {
    owner: Owner,
    process: Arc<Process>,
}

/// A sandbox process, which is two for the system: the one that was started waits for another, which runs functions.
struct Process {
    control: UnixStream,
    /// The process that waits.
    handle: OwnedFd,
    status: Status,
    state: Mutex<State>,
}

struct State {
    child: Child,
    /// By their slots; none while one is being handed over.
    lanes: Vec<Slot>,
    /// The lane for whose sake it was killed, and the time that this was permitted to run.
    killed_for: Option<(usize, u32)>,
    /// A call that was overdue when it was looked at last.
    overdue: Option<(usize, u64)>,
    /// The time since which it has had no lanes.
    idle_since: MonoNs,
    /// The time at which the last call on one of its lanes was seen.
    called_at: MonoNs,
    /// The last request of each lane for which a function has run, by its slot.
    requests: [Option<u64>; LANES_MAX],
    /// Set once it was told to end.
    is_ending: bool,
    /// Set once it is not watched any more: it has ended, or it had nothing to do.
    is_gone: bool,
}

enum Slot {
    Free,
    Reserved,
    Open(HandedOver),
}

impl Sandboxes {
    /// Begins to watch. No process is there before the first lane; from then on one is kept in reserve.
    ///
    /// An error if there is a control group that no process can be put into, or if the folder for compiled code cannot
    /// be used.
    pub fn start(options: SandboxOptions) -> io::Result<Sandboxes> {
        for group in &options.groups {
            members(group)?;
        }
        if let Some(cache) = &options.cache {
            let named = |error: io::Error| {
                io::Error::new(
                    error.kind(),
                    format!("{} can keep no compiled code: {error}", cache.display()),
                )
            };
            tenants(cache).map_err(named)?;
        }
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let processes = Mutex::new(Processes::default());
        let shared = Arc::new(Shared { options, processes, changed: Condvar::new(), wake });
        let watched = Arc::clone(&shared);
        let watcher =
            std::thread::Builder::new().name("farpool-watch".into()).spawn(move || watched.watch(&woken))?;
        Ok(Sandboxes { shared, watcher: Some(watcher) })
    }

    /// The most bytes of a function's heap.
    pub fn heap_bytes(&self) -> u64 {
        self.shared.options.heap_bytes
    }

    /// A lane of this owner over this window, for a connection to be handed over to. Waits for a process if all are in
    /// use.
    ///
    /// Refused: `SandboxesBusy` if none became free in time, `LimitReached` if the owner has too many lanes,
    /// `NoSandbox` if no process can be started.
    pub fn lane(&self, owner: &Owner, window: LaneWindow) -> Result<Box<dyn Successor>, Refusal> {
        let shared = &self.shared;
        let (process, slot) = shared.reserve(owner)?;
        Ok(Box::new(Reserved { shared: Arc::clone(shared), process, slot, window: Some(window) }))
    }

    /// Returns the calls that have not ended.
    pub fn running(&self) -> Vec<Running> {
        let assigned = self.shared.processes.lock().assigned.clone();
        let calls = |one: &Assigned| -> Vec<Running> {
            let call = |slot| {
                let (function, since) = one.process.status.call(slot)?;
                Some(Running { function, caller: one.owner.caller.clone(), since })
            };
            let state = one.process.state.lock();
            // Callers that were told of the process's end have no lanes any more.
            (0..LANES_MAX)
                .filter(|slot| matches!(state.lanes[*slot], Slot::Open(_)))
                .filter_map(call)
                .collect()
        };
        assigned.iter().flat_map(calls).collect()
    }
}

impl SandboxOptions {
    /// Starts a process, and ends it again. Returns what namespaces it had. Takes as long as the system takes to start
    /// one: [`START_PATIENCE`] at the most.
    pub fn confinement(&self) -> io::Result<Confinement> {
        Process::spawn(self)?.confine()
    }
}

impl Drop for Sandboxes {
    fn drop(&mut self) {
        self.shared.processes.lock().is_over = true;
        self.shared.changed.notify_all();
        self.shared.wake();
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}

/// A place for a lane whose connection has not come yet.
struct Reserved {
    shared: Arc<Shared>,
    process: Arc<Process>,
    slot: usize,
    window: Option<LaneWindow>,
}

impl Successor for Reserved {
    fn take(mut self: Box<Self>, connection: HandedOver) -> io::Result<()> {
        let Some(window) = self.window.take() else { return Err(io::ErrorKind::InvalidInput.into()) };
        let kept = connection.try_clone()?;
        let setup = LaneSetup { slot: self.slot as u32, connection, window };
        let process = Arc::clone(&self.process);
        // Held while it is sent, so that two lanes do not mix.
        let mut state = process.state.lock();
        if state.is_gone {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        process.status.begin(self.slot);
        state.called_at = clock::now();
        state.lanes[self.slot] = Slot::Open(kept);
        setup.send(&process.control)?;
        drop(state);
        self.shared.wake();
        Ok(())
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut state = self.process.state.lock();
        if matches!(state.lanes[self.slot], Slot::Reserved) {
            state.lanes[self.slot] = Slot::Free;
        }
    }
}

impl Process {
    /// Starts one that is nobody's yet. It ends with the thread that starts it.
    fn spawn(options: &SandboxOptions) -> io::Result<Process> {
        let (control, theirs) = UnixStream::pair()?;
        let child = Command::new(&options.program)
            .arg(options.niceness.to_string())
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()?;
        let lanes = (0..LANES_MAX).map(|_| Slot::Free).collect();
        let now = clock::now();
        let state = State {
            child,
            lanes,
            killed_for: None,
            overdue: None,
            idle_since: now,
            called_at: now,
            requests: [None; LANES_MAX],
            is_ending: false,
            is_gone: false,
        };
        let handle = pidfd_open(Pid::from_child(&state.child), PidfdFlags::empty())?;
        let process = Process { control, handle, status: Status::new()?, state: Mutex::new(state) };
        let id = process.state.lock().child.id();
        // Before there is anything in it that is not ours.
        options.groups.iter().try_for_each(|group| members(group)?.write_all(id.to_string().as_bytes()))?;
        Ok(process)
    }

    /// Waits until it has started. Returns what namespaces it has.
    fn confine(&self) -> io::Result<Confinement> {
        let id = self.state.lock().child.id();
        self.control.set_read_timeout(Some(START_PATIENCE))?;
        confine(&self.control, id).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                io::Error::other(format!("it has not started within {} s", START_PATIENCE.as_secs()))
            }
            io::ErrorKind::UnexpectedEof => io::Error::other("it ended before it had started"),
            _ => error,
        })
    }

    fn reserve(&self) -> Result<usize, Refusal> {
        let mut state = self.state.lock();
        let free = state.lanes.iter().position(|slot| matches!(slot, Slot::Free));
        let slot = free.ok_or(Refusal::new(Code::LimitReached, LANES_MAX as u64))?;
        state.lanes[slot] = Slot::Reserved;
        Ok(slot)
    }

    /// Tells it to end, which [`Self::wait`] waits for.
    fn kill(&self) {
        // An error means that it has ended by itself.
        let _ = self.control.shutdown(Shutdown::Both);
    }

    /// Waits until nothing of it runs any more. Returns the signal that ended it, or 0.
    fn wait(&self) -> u64 {
        if !self.has_ended_within(Some(&Timespec { tv_sec: END_PATIENCE_SECONDS, tv_nsec: 0 })) {
            // The other one ends with it.
            let _ = self.state.lock().child.kill();
            self.has_ended_within(None);
        }
        let status = self.state.lock().child.wait().ok();
        status.and_then(|status| status.signal().or(status.code())).unwrap_or(0) as u64
    }

    /// Waits until it has ended, at most for so long. It is not locked meanwhile: the kernel was seen to take 43 s.
    fn has_ended_within(&self, patience: Option<&Timespec>) -> bool {
        loop {
            match poll(&mut [PollFd::new(&self.handle, PollFlags::IN)], patience) {
                Err(Errno::INTR) => {}
                other => return other.is_ok_and(|ready| ready > 0),
            }
        }
    }

    /// Returns whether lanes can still be had of it.
    fn is_there(&self) -> bool {
        let state = self.state.lock();
        !state.is_gone && !state.is_ending
    }

    /// Returns whether it has lanes and since when it has had nothing to do, or nothing if it has something to do or
    /// had until a moment ago.
    fn unused(&self, now: MonoNs) -> Option<(bool, MonoNs)> {
        let state = self.state.lock();
        let (mut has_lanes, mut patience_ms) = (false, UNUSED_MS);
        for (slot, lane) in state.lanes.iter().enumerate() {
            match (lane, self.status.doing(slot)) {
                (Slot::Free, _) | (Slot::Open(_), Doing::Ended) => {}
                (Slot::Open(_), Doing::Waiting) => {
                    has_lanes = true;
                    if self.status.last_request(slot).is_none() {
                        patience_ms = NEW_LANE_MS;
                    }
                }
                _ => return None,
            }
        }
        match has_lanes {
            false => Some((false, state.idle_since)),
            true => (now > state.called_at.plus_ms(patience_ms)).then_some((true, state.called_at)),
        }
    }

    /// Ends it for the sake of another caller.
    fn end(&self) {
        self.state.lock().is_ending = true;
        self.kill();
    }

    /// Looks at its lanes: frees those that have ended, and kills it if one is overdue. Whether it is to be kept.
    fn look(&self, now: MonoNs) -> bool {
        let mut state = self.state.lock();
        let mut overdue = None;
        for slot in 0..LANES_MAX {
            if !matches!(state.lanes[slot], Slot::Open(_)) {
                continue;
            }
            let (request, doing) = (self.status.last_request(slot), self.status.doing(slot));
            let is_another = std::mem::replace(&mut state.requests[slot], request) != request;
            if is_another || matches!(doing, Doing::Busy | Doing::Running { .. }) {
                state.called_at = now;
            }
            match doing {
                Doing::Ended => state.lanes[slot] = Slot::Free,
                Doing::Running { request_id, until_ns, deadline_ms, .. }
                    if now > MonoNs(until_ns) && overdue.is_none() =>
                {
                    // Words may have been read while they changed: only what is seen twice counts.
                    if state.overdue == Some((slot, request_id)) && state.killed_for.is_none() {
                        state.killed_for = Some((slot, deadline_ms));
                        self.kill();
                    }
                    overdue = Some((slot, request_id));
                }
                _ => {}
            }
        }
        state.overdue = overdue;
        let is_idle = state.lanes.iter().all(|slot| matches!(slot, Slot::Free));
        if !is_idle {
            state.idle_since = now;
        }
        !is_idle || now < state.idle_since.plus_ms(IDLE_MS)
    }

    /// How long it need not be looked at.
    fn pause_ms(&self) -> u64 {
        let state = self.state.lock();
        match state.lanes.iter().any(|slot| !matches!(slot, Slot::Free)) {
            true if state.overdue.is_some() => LOOK_AGAIN_MS,
            true => LOOK_MS,
            false => IDLE_MS / 4,
        }
    }

    /// Waits until nothing of it runs any more, and tells those whose functions were running how these ended.
    fn bury(&self, ended: Outcome) {
        self.state.lock().is_gone = true;
        self.kill();
        let signal = self.wait();
        let mut state = self.state.lock();
        let (killed_for, is_ending) = (state.killed_for, state.is_ending);
        for (slot, lane) in state.lanes.iter_mut().enumerate() {
            let Slot::Open(connection) = std::mem::replace(lane, Slot::Free) else { continue };
            let Doing::Running { request_id, opcode, until_ns, .. } = self.status.doing(slot) else {
                continue;
            };
            if is_ending && killed_for.is_none() {
                // It was called at the last moment. The caller calls again when its connection ends.
                continue;
            }
            let (outcome, detail) = match killed_for {
                // Nothing is wrong with what was compiled: its caller sees the connection end, and learns from the next
                // that the bytes are gone.
                Some((of, _))
                    if of == slot && until_ns == REVOKED_NS && opcode == Opcode::PutFunction as u16 =>
                {
                    continue;
                }
                Some((of, _)) if of == slot && until_ns == REVOKED_NS => (Outcome::Revoked, 0),
                Some((of, deadline_ms)) if of == slot => (Outcome::Deadline, u64::from(deadline_ms)),
                // Ended for another's sake: its caller sees the connection end, and calls again.
                Some(_) => continue,
                None if ended == Outcome::Died => (ended, signal),
                None => (ended, 0),
            };
            // Whoever does not hear it sees the connection end.
            let _ = tell(connection, request_id, opcode, outcome, detail);
        }
    }
}

/// Answers in place of a process that is gone.
fn tell(connection: HandedOver, id: u64, opcode: u16, outcome: Outcome, detail: u64) -> io::Result<()> {
    let called = Called {
        outcome,
        detail,
        ran_ns: 0,
        output_bytes: 0,
        frames: List::default(),
        output: Payload::default(),
    };
    let Ok(opcode) = Opcode::from_wire(opcode) else { return Ok(()) };
    let answer = match opcode {
        Opcode::CallFunction => Ok(Reply::CallFunction(called)),
        Opcode::Supply => Ok(Reply::Supply(called)),
        Opcode::PutFunction => Err(Refusal::new(Code::BadFunction, FunctionFault::NotReady as u64)),
        _ => return Ok(()),
    };
    let header = Header { body_crc: None, ..Header::request(opcode, id, &[]) };
    Lane::over(connection.resume()?).reply(&header, answer, clock::now().plus_ms(NEWS_MS))
}

impl Shared {
    fn wake(&self) {
        // Full of bytes, it wakes as well.
        let _ = (&self.wake).write(&[0]);
    }

    /// Reserves a place for a lane: in the owner's process, or in the one in reserve once it is the owner's turn and
    /// there may be another process.
    fn reserve(&self, owner: &Owner) -> Result<(Arc<Process>, usize), Refusal> {
        let mut processes = self.processes.lock();
        if let Some(process) = processes.of(owner) {
            return Ok((Arc::clone(process), process.reserve()?));
        }
        let busy = Refusal::new(Code::SandboxesBusy, self.options.processes_max as u64);
        if processes.queue.len() >= QUEUE_MAX {
            return Err(busy);
        }
        let turn = processes.next_turn;
        processes.next_turn += 1;
        processes.queue.push_back(turn);
        let give_up = clock::now().plus_ms(self.options.queue_ms);
        let mut has_asked = false;
        let reserved = loop {
            // Another connection of the owner's may have been first.
            if let Some(process) = processes.of(owner) {
                break process.reserve().map(|slot| (Arc::clone(process), slot));
            }
            if processes.is_over {
                break self.none_started("it is being stopped");
            }
            let (is_full, is_first) = (
                processes.assigned.len() >= self.options.processes_max,
                processes.queue.front() == Some(&turn),
            );
            let now = clock::now();
            let mut pause_ms = (give_up.0.saturating_sub(now.0) / 1_000_000).max(QUEUE_LOOK_MS);
            if is_first && !is_full {
                if let Some(process) = processes.spare.take() {
                    // The one in reserve may have ended meanwhile.
                    has_asked = false;
                    if process.begin(&owner.tenant, &self.options).is_ok() {
                        let process = Arc::new(process);
                        processes.assigned.push(Assigned { owner: owner.clone(), process });
                    }
                    continue;
                }
                // The watcher starts them all: they end with the thread that did.
                if !has_asked {
                    (processes.is_wanted, processes.failed, has_asked) = (true, None, true);
                    self.wake();
                } else if let Some(why) = processes.failed.take() {
                    break self.none_started(&why);
                } else if now >= give_up {
                    let why = format!("none has started within {} ms", self.options.queue_ms);
                    break self.none_started(&why);
                }
            } else if now >= give_up {
                break Err(busy);
            } else if is_first {
                processes.end_unused(now);
                pause_ms = QUEUE_LOOK_MS;
            }
            processes = self.changed.wait_timeout(processes, Duration::from_millis(pause_ms));
        };
        processes.queue.retain(|other| *other != turn);
        drop(processes);
        self.changed.notify_all();
        self.wake();
        reserved
    }

    /// Says why no process can be had.
    fn none_started<T>(&self, why: &str) -> Result<T, Refusal> {
        eprintln!("farpool: starting {}: {why}", self.options.program.display());
        Err(Refusal::new(Code::NoSandbox, 0))
    }

    /// Starts one to be kept in reserve. Another thread waits for it, so that this one goes on watching.
    fn make(self: &Arc<Self>) {
        let begun = Process::spawn(&self.options).and_then(|process| {
            self.processes.lock().is_starting = true;
            let shared = Arc::clone(self);
            let started = move || shared.made(process.confine().map(|_| process));
            std::thread::Builder::new().name("farpool-start".into()).spawn(started)
        });
        if let Err(error) = begun {
            self.made(Err(error));
        }
    }

    /// Keeps one in reserve that has started, or why there is none.
    fn made(&self, made: io::Result<Process>) {
        let mut processes = self.processes.lock();
        (processes.is_wanted, processes.is_starting) = (false, false);
        match made {
            Ok(process) => processes.spare = Some(process),
            Err(error) => processes.failed = Some(error.to_string()),
        }
        self.changed.notify_all();
    }

    /// Watches until it is over.
    fn watch(self: &Arc<Self>, woken: &UnixStream) {
        let _ = woken.set_nonblocking(true);
        let mut ending: Vec<JoinHandle<()>> = Vec::new();
        loop {
            let (assigned, needs_one, is_over): (Vec<Arc<Process>>, _, _) = {
                let processes = self.processes.lock();
                let is_used = processes.is_wanted || !processes.assigned.is_empty();
                let all = processes.assigned.iter().map(|one| Arc::clone(&one.process));
                let assigned: Vec<_> = all.filter(|process| !process.state.lock().is_gone).collect();
                let needs_one = processes.spare.is_none() && !processes.is_starting && is_used;
                (assigned, needs_one, processes.is_over)
            };
            if is_over {
                break;
            }
            if needs_one {
                self.make();
            }
            let mut polled = vec![PollFd::new(woken, PollFlags::IN)];
            polled.extend(assigned.iter().map(|process| PollFd::new(&process.control, PollFlags::IN)));
            let pause_ms = assigned.iter().map(|process| process.pause_ms()).min().unwrap_or(IDLE_MS);
            let pause =
                Timespec { tv_sec: (pause_ms / 1000) as i64, tv_nsec: (pause_ms % 1000 * 1_000_000) as i64 };
            // Without processes there is nothing to come back for.
            let _ = poll(&mut polled, if assigned.is_empty() { None } else { Some(&pause) });
            let mut bytes = [0; 64];
            while matches!(rustix::io::read(woken, &mut bytes), Ok(1..)) {}
            let ended: Vec<bool> = polled[1..].iter().map(|one| !one.revents().is_empty()).collect();
            drop(polled);
            let now = clock::now();
            for (process, has_ended) in assigned.iter().zip(ended) {
                if has_ended || !process.look(now) {
                    ending.extend(self.bury(process));
                }
            }
            ending.retain(|thread| !thread.is_finished());
        }
        for thread in ending {
            let _ = thread.join();
        }
        let Processes { assigned, spare, .. } = std::mem::take(&mut *self.processes.lock());
        // The memory of windows goes with the node: a file that was moved has it elsewhere.
        assigned.iter().for_each(|one| one.process.bury(Outcome::Revoked));
        spare.iter().for_each(|process| process.bury(Outcome::Revoked));
    }

    /// Buries a process in a thread of its own, so that others are watched meanwhile. It counts until it has ended.
    /// Returns the thread.
    fn bury(self: &Arc<Self>, process: &Arc<Process>) -> Option<JoinHandle<()>> {
        // Nobody gets a lane of it any more.
        process.state.lock().is_gone = true;
        let (shared, buried) = (Arc::clone(self), Arc::clone(process));
        let bury = move || shared.end(&buried);
        let thread = std::thread::Builder::new().name("farpool-end".into()).spawn(bury);
        if thread.is_err() {
            self.end(process);
        }
        thread.ok()
    }

    fn end(&self, process: &Arc<Process>) {
        process.bury(Outcome::Died);
        self.processes.lock().assigned.retain(|other| !Arc::ptr_eq(&other.process, process));
        self.changed.notify_all();
        self.wake();
    }
}

impl Process {
    /// Tells it how to live.
    fn begin(&self, tenant: &str, options: &SandboxOptions) -> io::Result<()> {
        // Without its folder it compiles anew.
        let cache = options.cache.as_deref().and_then(|folder| tenant_folder(folder, tenant).ok());
        let status = self.status.file().try_clone_to_owned()?;
        let (heap_bytes, keys, waiting) = (options.heap_bytes, options.keys.clone(), waiting::chosen());
        Start { heap_bytes, waiting, keys, status, cache }.send(&self.control)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        self.wait();
    }
}
