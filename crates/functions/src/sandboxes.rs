//! Sandbox processes of a node: how they are started, get call lanes (connections of callers), are watched and ended.
//!
//! The idea: a node is like a hotel with few rooms. Every caller's functions run in a process of their own, which can
//! be killed without anybody else noticing. One process is always started in advance, so a new caller costs one
//! message. A watcher thread looks at all lanes some hundred times a second while there are any, and kills a process in
//! which a call runs past its deadline. The node keeps a second handle of each lane's connection: if a process dies
//! while a function runs, the node tells the caller why, on the connection that the caller waits on.
//!
//! When all rooms are taken, callers queue. For the first one a process is ended that has nothing to do: one without
//! lanes, otherwise the one whose caller has not called for the longest time, which then has to connect again. Threads
//! in the node would be cheaper, but a function that breaks out of its sandbox would then own the node.

use crate::callers::{CallInProgress, EndedCall, EndedCalls, Owner, tell};
use crate::confinement::{Confinement, confine};
use crate::cpu_time::MadeReady;
use crate::options::{SandboxOptions, members, tenant_folder, tenants};
use crate::setup::{LaneSetup, LaneWindow, Start};
use crate::status::{Activity, LANES_MAX, REVOKED_NS, Status};
use farpool_host::{clock, waiting};
use farpool_lock::{Condvar, Mutex};
use farpool_transport::{HandedOver, Successor};
use farpool_wire::control::Outcome;
use farpool_wire::{Code, MonoNs, Opcode, Refusal};
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

/// Interval in ms at which lanes are looked at while there are any.
const LOOK_MS: u64 = 10;
/// Time in ms after which a call that was seen past its deadline is looked at again, before its process is killed.
const LOOK_AGAIN_MS: u64 = 1;
/// Time in ms after which a process without lanes is ended.
const IDLE_MS: u64 = 10_000;
/// Time in ms without a call after which a process with lanes may be ended for another caller. Callers that take
/// turns faster than that wait for each other, instead of ending each other's processes all the time.
const UNUSED_MS: u64 = 100;
/// The same as [`UNUSED_MS`] for a process with a lane that has had no call yet: its caller may wait for a CPU.
const NEW_LANE_MS: u64 = 2_000;
/// Interval in ms at which the first caller in the queue looks for a process to end.
const QUEUE_LOOK_MS: u64 = 20;
/// Largest number of callers that wait at a time. Each occupies a connection and its thread.
const QUEUE_MAX: usize = 512;
/// Longest time from the start of a process to its report that it is ready. The kernel creates and removes namespaces
/// one by one, which took up to 43 s on busy CPUs. Callers give up earlier ([`SandboxOptions::queue_ms`]).
const START_PATIENCE: Duration = Duration::from_secs(300);
/// Longest time in s that a process may take to end before it is killed.
const END_PATIENCE_SECONDS: i64 = 10;

/// The sandbox processes of a node, and the thread that watches them. Dropping it ends all processes.
pub struct Sandboxes {
    shared: Arc<Shared>,
    watcher: Option<JoinHandle<()>>,
}

struct Shared {
    options: SandboxOptions,
    ended: EndedCalls,
    processes: Mutex<Processes>,
    /// Signals that a process has started, failed to start or ended, or that another caller is first in the queue.
    changed: Condvar,
    /// Socket whose other end the watcher polls; a byte wakes it.
    wake: UnixStream,
}

#[derive(Default)]
struct Processes {
    /// Processes that have an owner. [`SandboxOptions::processes_max`] limits their number.
    assigned: Vec<Assigned>,
    /// Process in reserve, which has no owner yet; `None` until it is ready.
    spare: Option<Process>,
    /// True if a process for the reserve was started and is not ready yet.
    is_starting: bool,
    /// True if a caller waits for a process to be started.
    is_wanted: bool,
    /// Reason why the last attempt to start a process failed.
    failed: Option<String>,
    /// Numbers of the callers that wait for a process, first come first served.
    queue: VecDeque<u64>,
    /// Number of the next caller that queues.
    next_turn: u64,
    is_over: bool,
}

impl Processes {
    /// Returns the process of an owner; `None` if the owner has none, or it is ending.
    fn of(&self, owner: &Owner) -> Option<&Arc<Process>> {
        let is_theirs = |one: &&Assigned| one.owner == *owner && one.process.is_there();
        self.assigned.iter().find(is_theirs).map(|one| &one.process)
    }

    /// Ends a process that has nothing to do, unless one is ending already: one without lanes (open connections) if
    /// there is one, otherwise the one whose last call was the longest time ago.
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

#[derive(Clone)]
struct Assigned {
    owner: Owner,
    process: Arc<Process>,
}

/// A sandbox process. For the system it is two: the process that the node starts waits for a second one, which runs
/// the functions.
struct Process {
    control: UnixStream,
    /// Handle of the process that waits.
    handle: OwnedFd,
    status: Status,
    state: Mutex<State>,
}

struct State {
    child: Child,
    /// Lanes by their slots. [`Slot::Reserved`] while the connection of a lane is being handed over.
    lanes: Vec<Slot>,
    /// Slot of the lane because of which the process was killed, and the time in ms that its call was permitted to run.
    killed_for: Option<(usize, u32)>,
    /// Slot and request id of a call that was past its deadline when the lanes were last looked at.
    overdue: Option<(usize, u64)>,
    made_ready: MadeReady,
    /// Time since which the process has had no lanes.
    idle_since: MonoNs,
    /// Time at which a call on one of its lanes was last seen.
    called_at: MonoNs,
    /// Id of the last request for which a function has run or was made ready, by the slot of its lane.
    requests: [Option<u64>; LANES_MAX],
    /// True once the process was asked to end.
    is_ending: bool,
    /// True once the process is no longer watched, because it has ended or is being ended.
    is_gone: bool,
}

enum Slot {
    Free,
    Reserved,
    Open(HandedOver),
}

impl Sandboxes {
    /// Starts the watcher. No process exists before the first lane; from then on one is kept in reserve.
    ///
    /// Errors: a control group does not accept processes, or the folder for compiled code cannot be used.
    pub fn start(options: SandboxOptions) -> io::Result<Sandboxes> {
        Sandboxes::start_telling(options, Box::new(|_| {}))
    }

    /// Does the same as [`Self::start`], and tells `ended` of each call whose process ended before the call did.
    pub fn start_telling(options: SandboxOptions, ended: EndedCalls) -> io::Result<Sandboxes> {
        for group in &options.groups {
            members(group)?;
        }
        if let Some(cache) = &options.cache {
            let named = |error: io::Error| {
                io::Error::new(
                    error.kind(),
                    format!("{} cannot be used as the cache of compiled code: {error}", cache.display()),
                )
            };
            tenants(cache).map_err(named)?;
        }
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let processes = Mutex::new(Processes::default());
        let shared = Arc::new(Shared { options, ended, processes, changed: Condvar::new(), wake });
        let watched = Arc::clone(&shared);
        let watcher =
            std::thread::Builder::new().name("farpool-watch".into()).spawn(move || watched.watch(&woken))?;
        Ok(Sandboxes { shared, watcher: Some(watcher) })
    }

    /// Returns the largest size of a function's heap, in bytes.
    pub fn heap_bytes(&self) -> u64 {
        self.shared.options.heap_bytes
    }

    /// Reserves a call lane of this owner over this window, to which a connection can be handed over. Waits for a
    /// process if all are in use.
    ///
    /// Refused: `SandboxesBusy` if no process became free or ready in time, `LimitReached` if the owner has too many
    /// lanes, `NoSandbox` if no process can be started.
    pub fn lane(&self, owner: &Owner, window: LaneWindow) -> Result<Box<dyn Successor>, Refusal> {
        let shared = &self.shared;
        let (process, slot) = shared.reserve(owner)?;
        Ok(Box::new(Reserved { shared: Arc::clone(shared), process, slot, window: Some(window) }))
    }

    /// Returns the calls that run in sandbox processes.
    pub fn running(&self) -> Vec<CallInProgress> {
        let assigned = self.shared.processes.lock().assigned.clone();
        let calls = |one: &Assigned| -> Vec<CallInProgress> {
            let call = |slot| {
                let (function, since) = one.process.status.call(slot)?;
                Some(CallInProgress { function, caller: one.owner.caller.clone(), since })
            };
            let state = one.process.state.lock();
            // Leaves out slots that are not open: a process that has ended may still show a call there.
            (0..LANES_MAX)
                .filter(|slot| matches!(state.lanes[*slot], Slot::Open(_)))
                .filter_map(call)
                .collect()
        };
        assigned.iter().flat_map(calls).collect()
    }
}

impl SandboxOptions {
    /// Starts a process and ends it again, and returns its confinement. Takes at most [`START_PATIENCE`].
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

/// A reserved slot for a lane whose connection has not arrived yet.
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
        // Holds the lock while sending, so that the messages of two lanes do not mix.
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
    /// Starts a process that has no owner yet. The kernel ends it when the thread that starts it ends.
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
            made_ready: MadeReady::default(),
            idle_since: now,
            called_at: now,
            requests: [None; LANES_MAX],
            is_ending: false,
            is_gone: false,
        };
        let handle = pidfd_open(Pid::from_child(&state.child), PidfdFlags::empty())?;
        let process = Process { control, handle, status: Status::new()?, state: Mutex::new(state) };
        let id = process.state.lock().child.id();
        // Moves the process into its control groups before it runs any code that was sent.
        options.groups.iter().try_for_each(|group| members(group)?.write_all(id.to_string().as_bytes()))?;
        Ok(process)
    }

    /// Waits until the process is ready, and returns its confinement.
    fn confine(&self) -> io::Result<Confinement> {
        let id = self.state.lock().child.id();
        self.control.set_read_timeout(Some(START_PATIENCE))?;
        confine(&self.control, id).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                io::Error::other(format!("it was not ready within {} s", START_PATIENCE.as_secs()))
            }
            io::ErrorKind::UnexpectedEof => io::Error::other("it ended before it was ready"),
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

    /// Asks the process to end, by closing its control socket. [`Self::wait`] waits until it has ended.
    fn kill(&self) {
        // An error means that the process has ended already.
        let _ = self.control.shutdown(Shutdown::Both);
    }

    /// Waits until the process and everything in it has ended. Returns the signal that ended it, or 0.
    fn wait(&self) -> u64 {
        if !self.has_ended_within(Some(&Timespec { tv_sec: END_PATIENCE_SECONDS, tv_nsec: 0 })) {
            // The second process, which runs the functions, ends with this one.
            let _ = self.state.lock().child.kill();
            self.has_ended_within(None);
        }
        let status = self.state.lock().child.wait().ok();
        status.and_then(|status| status.signal().or(status.code())).unwrap_or(0) as u64
    }

    /// Waits at most this long until the process has ended. Holds no lock, because that has taken as long as 43 s.
    fn has_ended_within(&self, patience: Option<&Timespec>) -> bool {
        loop {
            match poll(&mut [PollFd::new(&self.handle, PollFlags::IN)], patience) {
                Err(Errno::INTR) => {}
                other => return other.is_ok_and(|ready| ready > 0),
            }
        }
    }

    /// Reports whether the process accepts new lanes.
    fn is_there(&self) -> bool {
        let state = self.state.lock();
        !state.is_gone && !state.is_ending
    }

    /// Returns true if the process has lanes, and the time since which it has had nothing to do. `None` if it works, or
    /// did so a short time ago ([`UNUSED_MS`], [`NEW_LANE_MS`]).
    fn unused(&self, now: MonoNs) -> Option<(bool, MonoNs)> {
        let state = self.state.lock();
        let (mut has_lanes, mut patience_ms) = (false, UNUSED_MS);
        for (slot, lane) in state.lanes.iter().enumerate() {
            match (lane, self.status.doing(slot)) {
                (Slot::Free, _) | (Slot::Open(_), Activity::Ended) => {}
                (Slot::Open(_), Activity::Waiting) => {
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

    /// Ends the process because another caller waits for one and no more are permitted.
    fn end(&self) {
        self.state.lock().is_ending = true;
        self.kill();
    }

    /// Looks at the lanes of the process: frees those that have ended, and kills the process if a call is past its
    /// deadline. Reports whether the process should be kept.
    fn look(&self, now: MonoNs) -> bool {
        let mut state = self.state.lock();
        let mut overdue = None;
        for slot in 0..LANES_MAX {
            if !matches!(state.lanes[slot], Slot::Open(_)) {
                continue;
            }
            let (request, doing) = (self.status.last_request(slot), self.status.doing(slot));
            let is_another = std::mem::replace(&mut state.requests[slot], request) != request;
            if is_another || matches!(doing, Activity::Busy | Activity::Running { .. }) {
                state.called_at = now;
            }
            let State { child, made_ready, .. } = &mut *state;
            let is_too_costly = made_ready.are_too_costly(slot, doing, child);
            match doing {
                Activity::Ended => state.lanes[slot] = Slot::Free,
                Activity::Running { request_id, until_ns, deadline_ms, .. }
                    if (now > MonoNs(until_ns) || is_too_costly) && overdue.is_none() =>
                {
                    // `doing` may mix the words of two calls, so a call must be seen past its deadline twice.
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

    /// Returns the time in ms until the process must be looked at again.
    fn pause_ms(&self) -> u64 {
        let state = self.state.lock();
        match state.lanes.iter().any(|slot| !matches!(slot, Slot::Free)) {
            true if state.overdue.is_some() => LOOK_AGAIN_MS,
            true => LOOK_MS,
            false => IDLE_MS / 4,
        }
    }

    /// Ends the process, waits until everything in it has ended, and tells callers of running functions how they ended.
    /// Returns these calls, without their caller.
    fn finish_process(&self, ended: Outcome) -> Vec<EndedCall> {
        let mut told = Vec::new();
        self.state.lock().is_gone = true;
        self.kill();
        let signal = self.wait();
        let mut state = self.state.lock();
        let (killed_for, is_ending) = (state.killed_for, state.is_ending);
        for (slot, lane) in state.lanes.iter_mut().enumerate() {
            let Slot::Open(connection) = std::mem::replace(lane, Slot::Free) else { continue };
            let Activity::Running { request_id, opcode, until_ns, .. } = self.status.doing(slot) else {
                continue;
            };
            if is_ending && killed_for.is_none() {
                // This call came after the decision to end the process. Its caller retries when its connection ends.
                continue;
            }
            let (outcome, detail) = match killed_for {
                // The module that was compiled is not at fault. Its caller sees the connection end, and learns from its
                // next request that the window's bytes are gone.
                Some((of, _))
                    if of == slot && until_ns == REVOKED_NS && opcode == Opcode::PutFunction as u16 =>
                {
                    continue;
                }
                Some((of, _)) if of == slot && until_ns == REVOKED_NS => (Outcome::Revoked, 0),
                Some((of, deadline_ms)) if of == slot => (Outcome::Deadline, u64::from(deadline_ms)),
                // The process was ended for another lane. This lane's caller sees its connection end, and retries.
                Some(_) => continue,
                None if ended == Outcome::Died => (ended, signal),
                None => (ended, 0),
            };
            // A caller that does not receive the message sees its connection end.
            let _ = tell(connection, request_id, opcode, outcome, detail);
            let function = self.status.call(slot).map_or_else(String::new, |(function, _)| function);
            let trace = self.status.trace(slot);
            told.push(EndedCall { function, caller: String::new(), outcome, detail, trace });
        }
        told
    }
}

impl Shared {
    fn wake(&self) {
        // If the socket is full, the watcher will wake anyway.
        let _ = (&self.wake).write(&[0]);
    }

    /// Reserves a slot for a lane in the owner's process. An owner without one queues until it gets that in reserve.
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
            // A process may have been taken meanwhile for another connection of the same owner.
            if let Some(process) = processes.of(owner) {
                break process.reserve().map(|slot| (Arc::clone(process), slot));
            }
            if processes.is_over {
                break self.none_started("this program is stopping");
            }
            let (is_full, is_first) = (
                processes.assigned.len() >= self.options.processes_max,
                processes.queue.front() == Some(&turn),
            );
            let now = clock::now();
            let mut pause_ms = (give_up.0.saturating_sub(now.0) / 1_000_000).max(QUEUE_LOOK_MS);
            if is_first && !is_full {
                if let Some(process) = processes.spare.take() {
                    // The process in reserve may have ended meanwhile.
                    has_asked = false;
                    if process.begin(&owner.tenant, &self.options).is_ok() {
                        let process = Arc::new(process);
                        processes.assigned.push(Assigned { owner: owner.clone(), process });
                    }
                    continue;
                }
                // Only the watcher starts processes, because they end with the thread that started them.
                if !has_asked {
                    (processes.is_wanted, processes.failed, has_asked) = (true, None, true);
                    self.wake();
                } else if let Some(why) = processes.failed.take() {
                    break self.none_started(&why);
                } else if now >= give_up {
                    // A process takes long to start on busy CPUs. The next caller may find it ready.
                    break Err(busy);
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

    /// Logs why no process could be started, and refuses the lane.
    fn none_started<T>(&self, why: &str) -> Result<T, Refusal> {
        eprintln!("farpool: cannot start the sandbox {}: {why}", self.options.program.display());
        Err(Refusal::new(Code::NoSandbox, 0))
    }

    /// Starts a process to keep in reserve. Another thread waits until it is ready, so that this one goes on watching.
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

    /// Keeps a process that has started in reserve, or notes why there is none.
    fn made(&self, made: io::Result<Process>) {
        let mut processes = self.processes.lock();
        (processes.is_wanted, processes.is_starting) = (false, false);
        match made {
            Ok(process) => processes.spare = Some(process),
            Err(error) => processes.failed = Some(error.to_string()),
        }
        self.changed.notify_all();
    }

    /// Watches the processes until the node stops.
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
            // Sleeps until it is woken if there are no processes.
            let _ = poll(&mut polled, if assigned.is_empty() { None } else { Some(&pause) });
            let mut bytes = [0; 64];
            while matches!(rustix::io::read(woken, &mut bytes), Ok(1..)) {}
            let ended: Vec<bool> = polled[1..].iter().map(|one| !one.revents().is_empty()).collect();
            drop(polled);
            let now = clock::now();
            for (process, has_ended) in assigned.iter().zip(ended) {
                if has_ended || !process.look(now) {
                    ending.extend(self.finish_process(process));
                }
            }
            ending.retain(|thread| !thread.is_finished());
        }
        for thread in ending {
            let _ = thread.join();
        }
        let Processes { assigned, spare, .. } = std::mem::take(&mut *self.processes.lock());
        // Calls end as revoked: the memory of their windows goes with the node.
        for one in &assigned {
            self.tell_of(&one.owner, one.process.finish_process(Outcome::Revoked));
        }
        spare.iter().for_each(|process| drop(process.finish_process(Outcome::Revoked)));
    }

    /// Ends a process in a thread of its own, so that other processes are still watched, and returns the thread. The
    /// process counts against the limit until it has ended.
    fn finish_process(self: &Arc<Self>, process: &Arc<Process>) -> Option<JoinHandle<()>> {
        // The process gets no new lane from now on.
        process.state.lock().is_gone = true;
        let (shared, buried) = (Arc::clone(self), Arc::clone(process));
        let finish_process = move || shared.end(&buried);
        let thread = std::thread::Builder::new().name("farpool-end".into()).spawn(finish_process);
        if thread.is_err() {
            self.end(process);
        }
        thread.ok()
    }

    /// Tells of calls of this owner that have ended with their process.
    fn tell_of(&self, owner: &Owner, ended: Vec<EndedCall>) {
        let whole = |call: EndedCall| EndedCall { caller: owner.caller.clone(), ..call };
        ended.into_iter().for_each(|call| (self.ended)(&whole(call)));
    }

    fn end(&self, process: &Arc<Process>) {
        let ended = process.finish_process(Outcome::Died);
        let is_it = |one: &Assigned| Arc::ptr_eq(&one.process, process);
        let owner = {
            let mut processes = self.processes.lock();
            let owner = processes.assigned.iter().find(|one| is_it(one)).map(|one| one.owner.clone());
            processes.assigned.retain(|one| !is_it(one));
            owner
        };
        if let Some(owner) = owner {
            self.tell_of(&owner, ended);
        }
        self.changed.notify_all();
        self.wake();
    }
}

impl Process {
    /// Sends the process its settings, which make it a process of this tenant for good.
    fn begin(&self, tenant: &str, options: &SandboxOptions) -> io::Result<()> {
        // A process without a folder compiles every module anew.
        let cache = options.cache.as_deref().and_then(|folder| tenant_folder(folder, tenant).ok());
        let status = self.status.file().try_clone_to_owned()?;
        let SandboxOptions { heap_bytes, ref keys, signed_alone, .. } = *options;
        let (keys, waiting) = (keys.clone(), waiting::chosen());
        Start { heap_bytes, waiting, keys, signed_alone, status, cache }.send(&self.control)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        self.wait();
    }
}
