//! Kernel of a simulated world: its processes, their tasks, and time.
//!
//! The idea: everything that happens is an event at a virtual time, and events at the same time come in random order.
//! A task is a coroutine. Running it is an event like any other: it runs until it pauses, and nothing else happens
//! meanwhile. The world is in a thread-local cell, so a process's [`Host`](crate::host::SimHost) reaches it from
//! anywhere.
//!
//! Killing a process unwinds the stacks of its tasks, newest first, after its host has been marked dead. So all I/O
//! that their destructors try (close messages on links, waits) fails at once and reaches nobody.
//!
//! Invariant: the cell is never borrowed while a task runs or is unwound.

use crate::clock::Clock;
use crate::coroutine::{self, Coroutine, Progress};
use crate::faults::Chore;
use crate::net::{ConnId, Net};
use crate::oracle::Oracle;
use crate::profile::Plan;
use crate::random::Random;
use crate::tally::Tally;
use crate::trace::{Happened, Trace};
use farpool_host::HostEvent;
use farpool_transport::Identity;
use farpool_wire::MonoNs;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// Calls `with` with the world of this thread. Panics if the world is borrowed already.
pub(crate) fn world<T>(with: impl FnOnce(&mut World) -> T) -> T {
    WORLD.with_borrow_mut(|world| with(world.as_mut().expect("a world on this thread")))
}

/// Calls `with` with the world if there is one and it is not borrowed. For destructors, which may run without a
/// world, or while it is borrowed.
pub(crate) fn world_if_free(with: impl FnOnce(&mut World)) {
    WORLD.with(|cell| {
        if let Ok(mut world) = cell.try_borrow_mut()
            && let Some(world) = world.as_mut()
        {
            with(world);
        }
    });
}

pub(crate) fn put_world(world: World) {
    WORLD.set(Some(world));
}

pub(crate) fn take_world() -> Option<World> {
    WORLD.take()
}

/// Number of a process in its world. Numbers are not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ProcessId(pub(crate) u32);

/// Number of a machine: its index in [`World::machines`].
pub(crate) type MachineId = usize;

/// Handle of a task: its slot in the table of tasks, and a serial number, because slots are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskId {
    slot: u32,
    serial: u32,
}

#[derive(Debug)]
pub(crate) struct MachineState {
    pub(crate) clock: Clock,
    /// Time in ms by which its wall clock is ahead of the time of the world, or behind it.
    pub(crate) wall_ahead_ms: i64,
    /// Random number that names the boot, as Linux's `boot_id` does. A crash of the machine changes it.
    pub(crate) boot: u128,
    /// False while the machine is off: nothing on it runs or answers.
    pub(crate) is_up: bool,
    /// True while the machine's local disk refuses every access.
    pub(crate) disk_is_broken: bool,
    /// True while the machine sleeps: nothing runs, but processes and connections are still there when it wakes.
    pub(crate) is_asleep: bool,
}

#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) name: String,
    pub(crate) machine: MachineId,
    pub(crate) is_alive: bool,
    /// Identity in the process's certificate. `None` in a pool without certificates.
    pub(crate) identity: Option<Identity>,
    /// True while it is stopped by a signal: nothing runs, but its connections stay open.
    pub(crate) is_frozen: bool,
    tasks: Vec<TaskId>,
}

/// Conditions that end the pause of a task, as soon as one of them holds.
#[derive(Debug)]
pub(crate) struct Wait {
    /// Deadline on the clock of the task's machine.
    pub(crate) until: MonoNs,
    /// Event of the process, and the count of its signals that the task has seen. The wait ends when there are more.
    pub(crate) event: Option<(HostEvent, u64)>,
    /// Connection. The wait ends when bytes for this process arrive on it.
    pub(crate) conn: Option<ConnId>,
    /// Task. The wait ends when this task has ended.
    pub(crate) task: Option<TaskId>,
}

struct Task {
    serial: u32,
    process: ProcessId,
    coroutine: Option<Coroutine>,
    wait: Option<Wait>,
    /// True if the task is scheduled: a `Run` of it is in the queue, or will be when its stopped process runs again.
    is_called: bool,
    /// Time of the earliest timer of the task in the queue, in ns of the world's time.
    timer_at: u64,
}

#[derive(Debug)]
pub(crate) enum Event {
    Run(TaskId),
    Timer(TaskId),
    /// The next bytes in one direction of a connection are due.
    Deliver(ConnId, usize),
    Chore(Chore),
}

struct Entry {
    at: u64,
    tie: u32,
    serial: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.tie, self.serial).cmp(&(other.at, other.tie, other.serial))
    }
}

/// A whole pool, with its machines and network.
///
/// Three kinds of methods. *Queries*: [`World::now`], [`World::process`], [`World::runs`]. *Changes by chores and by
/// the tasks' hosts*: [`World::start_process`], [`World::spawn`], [`World::thawed`] and the methods of the network;
/// they schedule events and run no task. *Steps*: [`step`] pops the next event, sets the time to that of the event,
/// and handles it to its end: a task runs until it pauses, bytes arrive, a timer wakes a task, or a chore is carried
/// out. [`run_world`](crate::run_world) calls [`step`] in a loop, and after each step shows the oracle the nodes in
/// `touched`. One thread owns the world, and there is no lock. Whoever borrows it with [`world`] must return before a
/// task runs.
pub(crate) struct World {
    now: u64,
    queue: BinaryHeap<Reverse<Entry>>,
    next_serial: u64,
    ties: Random,
    pub(crate) random: Random,
    pub(crate) plan: Plan,
    pub(crate) machines: Vec<MachineState>,
    processes: Vec<Process>,
    tasks: Vec<Task>,
    free_slots: Vec<u32>,
    running: Option<TaskId>,
    pub(crate) net: Net,
    pub(crate) oracle: Oracle,
    pub(crate) trace: Trace,
    pub(crate) tally: Tally,
    pub(crate) parties: crate::parties::Parties,
    /// Processes whose state may have changed since the oracle last looked at it.
    pub(crate) touched: Vec<ProcessId>,
    pub(crate) steps: u64,
    /// True while no copy may be interrupted: a node runs code that catches panics, and ending its process there would
    /// look like one.
    pub(crate) is_uninterrupted: bool,
}

impl World {
    pub(crate) fn new(seed: u64, plan: Plan, trace: Trace) -> World {
        let mut random = Random::new(seed);
        let ties = random.fork(1);
        World {
            // The world's time does not start at 0, which the real code takes for "never".
            now: 1_000_000_000,
            queue: BinaryHeap::new(),
            next_serial: 0,
            ties,
            random,
            machines: Vec::new(),
            processes: Vec::new(),
            tasks: Vec::new(),
            free_slots: Vec::new(),
            running: None,
            net: Net::default(),
            oracle: Oracle::new(&plan),
            trace,
            tally: Tally::default(),
            parties: crate::parties::Parties::default(),
            touched: Vec::new(),
            steps: 0,
            is_uninterrupted: false,
            plan,
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    pub(crate) fn at(&mut self, at: u64, event: Event) {
        let at = at.max(self.now);
        self.next_serial += 1;
        let tie = self.ties.draw() as u32;
        self.queue.push(Reverse(Entry { at, tie, serial: self.next_serial, event }));
    }

    pub(crate) fn chore_in(&mut self, ns: u64, chore: Chore) {
        self.at(self.now.saturating_add(ns), Event::Chore(chore));
    }

    pub(crate) fn pop(&mut self, end: u64) -> Option<Event> {
        if self.queue.peek().is_none_or(|Reverse(first)| first.at > end) {
            self.now = self.now.max(end);
            return None;
        }
        let Reverse(entry) = self.queue.pop()?;
        self.now = entry.at;
        Some(entry.event)
    }

    /// Adds an event to the trace: to the hash that tells two runs apart, and to the last events that a report shows.
    pub(crate) fn note(&mut self, who: ProcessId, what: &'static str, numbers: [u64; 3]) {
        self.note_text(who, what, numbers, None);
    }

    pub(crate) fn note_text(
        &mut self,
        who: ProcessId,
        what: &'static str,
        numbers: [u64; 3],
        text: Option<Box<str>>,
    ) {
        let happened = Happened { at: self.now, who: who.0, what, numbers, text };
        let processes = &self.processes;
        self.trace
            .push(happened, || processes.get(who.0 as usize).map_or_else(String::new, |p| p.name.clone()));
    }

    pub(crate) fn process(&self, id: ProcessId) -> &Process {
        &self.processes[id.0 as usize]
    }

    pub(crate) fn name_of(&self, id: u32) -> &str {
        self.processes.get(id as usize).map_or("world", |process| &process.name)
    }

    pub(crate) fn is_alive(&self, id: ProcessId) -> bool {
        self.process(id).is_alive
    }

    /// Reports whether a process runs: it is alive, and neither it nor its machine is stopped.
    pub(crate) fn runs(&self, id: ProcessId) -> bool {
        let process = self.process(id);
        process.is_alive && !process.is_frozen && !self.machines[process.machine].is_asleep
    }

    pub(crate) fn clock_of(&self, id: ProcessId) -> MonoNs {
        self.machines[self.process(id).machine].clock.at(self.now)
    }

    pub(crate) fn start_process(
        &mut self,
        name: String,
        machine: MachineId,
        identity: Option<Identity>,
    ) -> ProcessId {
        let id = ProcessId(self.processes.len() as u32);
        let identity = identity.filter(|_| self.plan.has_identities);
        let (is_alive, is_frozen, tasks) = (true, false, Vec::new());
        self.processes.push(Process { name, machine, is_alive, identity, is_frozen, tasks });
        id
    }

    pub(crate) fn spawn(&mut self, process: ProcessId, run: Box<dyn FnOnce()>) -> TaskId {
        let coroutine = Some(Coroutine::new(run));
        let task = Task { serial: 0, process, coroutine, wait: None, is_called: false, timer_at: u64::MAX };
        let slot = match self.free_slots.pop() {
            Some(slot) => {
                let place = &mut self.tasks[slot as usize];
                let serial = place.serial + 1;
                *place = Task { serial, ..task };
                slot
            }
            None => {
                self.tasks.push(task);
                self.tasks.len() as u32 - 1
            }
        };
        let id = TaskId { slot, serial: self.tasks[slot as usize].serial };
        self.processes[process.0 as usize].tasks.push(id);
        self.call(id);
        id
    }

    fn task(&mut self, id: TaskId) -> Option<&mut Task> {
        self.tasks.get_mut(id.slot as usize).filter(|task| task.serial == id.serial)
    }

    pub(crate) fn has_ended(&mut self, id: TaskId) -> bool {
        self.task(id).is_none()
    }

    /// Schedules a task to run soon. The small random delay stands for the scheduler of a real machine.
    pub(crate) fn call(&mut self, id: TaskId) {
        let Some(task) = self.task(id) else { return };
        if task.is_called {
            return;
        }
        task.is_called = true;
        let process = task.process;
        if self.runs(process) {
            let soon = self.now + 200 + self.ties.below(self.plan.schedule_ns_max);
            self.at(soon, Event::Run(id));
        }
    }

    /// Reschedules the tasks of a process that runs again after it, or its machine, was stopped.
    pub(crate) fn thawed(&mut self, process: ProcessId) {
        if !self.runs(process) {
            return;
        }
        for id in self.processes[process.0 as usize].tasks.clone() {
            if self.task(id).is_some_and(|task| std::mem::take(&mut task.is_called)) {
                self.call(id);
            }
        }
        self.serve_all(process);
    }

    pub(crate) fn freeze(&mut self, process: ProcessId, frozen: bool) {
        self.processes[process.0 as usize].is_frozen = frozen;
        if !frozen {
            self.thawed(process);
        }
    }

    pub(crate) fn everybody(&mut self) -> Vec<ProcessId> {
        (0..self.processes.len() as u32).map(ProcessId).collect()
    }

    pub(crate) fn alive_on(&self, machine: MachineId) -> Vec<ProcessId> {
        let is_there = |(_, process): &(usize, &Process)| process.machine == machine && process.is_alive;
        let all = self.processes.iter().enumerate().filter(is_there);
        all.map(|(index, _)| ProcessId(index as u32)).collect()
    }

    /// Reschedules all waiting tasks of a machine whose clock has changed, since their deadlines may have come.
    pub(crate) fn clock_changed(&mut self, machine: MachineId) {
        for process in self.alive_on(machine) {
            for id in self.processes[process.0 as usize].tasks.clone() {
                if self.task(id).is_some_and(|task| task.wait.is_some()) {
                    self.call(id);
                }
            }
        }
    }

    /// Handles the timer of a task: schedules the task if its deadline has come on its machine's clock, and sets a new
    /// timer if not.
    fn timer(&mut self, id: TaskId) {
        let now = self.now;
        let Some(task) = self.task(id) else { return };
        if task.timer_at > now {
            return;
        }
        task.timer_at = u64::MAX;
        let (process, until) = (task.process, task.wait.as_ref().map(|wait| wait.until));
        let Some(until) = until else { return };
        self.arm(id, process, until);
    }

    fn arm(&mut self, id: TaskId, process: ProcessId, until: MonoNs) {
        let due = self.machines[self.process(process).machine].clock.when(until);
        if due <= self.now {
            self.call(id);
            return;
        }
        let Some(task) = self.task(id) else { return };
        if due < task.timer_at && due < u64::MAX {
            task.timer_at = due;
            self.at(due, Event::Timer(id));
        }
    }

    fn is_over(&mut self, wait: &Wait) -> bool {
        wait.event.as_ref().is_some_and(|(event, heard)| event.heard() != *heard)
            || wait.task.is_some_and(|task| self.has_ended(task))
    }

    /// Starts a wait of the running task. Returns false if the task must not pause, because the wait is over already.
    fn begin_wait(&mut self, wait: Wait) -> bool {
        let Some(id) = self.running else { return false };
        if self.is_over(&wait) {
            return false;
        }
        let until = wait.until;
        let Some(task) = self.task(id) else { return false };
        let process = task.process;
        task.wait = Some(wait);
        self.arm(id, process, until);
        true
    }

    /// Returns the process of the running task. `None` if no task runs.
    pub(crate) fn running_process(&mut self) -> Option<ProcessId> {
        let id = self.running?;
        self.task(id).map(|task| task.process)
    }

    /// Schedules the tasks of a process whose events have been signalled, or whose awaited tasks have ended.
    fn look_at_bells(&mut self, process: ProcessId) {
        let tasks = std::mem::take(&mut self.processes[process.0 as usize].tasks);
        for id in &tasks {
            let Some(task) = self.task(*id) else { continue };
            if task.is_called {
                continue;
            }
            let Some(wait) = task.wait.take() else { continue };
            let is_over = self.is_over(&wait);
            if let Some(task) = self.task(*id) {
                task.wait = Some(wait);
            }
            if is_over {
                self.call(*id);
            }
        }
        let newer = std::mem::replace(&mut self.processes[process.0 as usize].tasks, tasks);
        self.processes[process.0 as usize].tasks.extend(newer);
    }

    /// Schedules the task that waits for a connection.
    pub(crate) fn wake_reader(&mut self, process: ProcessId, conn: ConnId) {
        let waits = |task: &Task| task.wait.as_ref().is_some_and(|wait| wait.conn == Some(conn));
        let tasks = &self.processes[process.0 as usize].tasks;
        let found = tasks.iter().copied().find(|id| {
            let task = &self.tasks[id.slot as usize];
            task.serial == id.serial && waits(task)
        });
        if let Some(id) = found {
            self.call(id);
        }
    }

    fn forget_task(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get_mut(id.slot as usize).filter(|task| task.serial == id.serial) else {
            return;
        };
        let process = task.process;
        task.coroutine = None;
        task.wait = None;
        task.serial += 1;
        self.free_slots.push(id.slot);
        self.processes[process.0 as usize].tasks.retain(|of| *of != id);
    }
}

/// Pauses the running task until one of the conditions of `wait` holds. Returns at once if the process is dead, or if
/// the caller cannot pause: it is no task, or its stack is being unwound.
pub(crate) fn wait(process: ProcessId, wait: Wait) {
    if !coroutine::may_pause() || std::thread::panicking() {
        return;
    }
    let pauses = world(|world| world.is_alive(process) && world.begin_wait(wait));
    if pauses {
        coroutine::pause();
    }
}

/// Pauses the running task for a duration of the true clock, in ns, while others run.
pub(crate) fn rest(ns: u64) {
    if !coroutine::may_pause() || std::thread::panicking() {
        return;
    }
    let pauses = world(|world| {
        let Some(process) = world.running_process().filter(|process| world.is_alive(*process)) else {
            return false;
        };
        let until = world.machines[world.process(process).machine].clock.at(world.now + ns);
        world.begin_wait(Wait { until, event: None, conn: None, task: None })
    });
    if pauses {
        coroutine::pause();
    }
}

/// Runs a task until it pauses or ends.
fn run(id: TaskId) {
    let taken = world(|world| {
        let task = world.task(id)?;
        let process = task.process;
        if !world.runs(process) {
            // The task stays scheduled: it runs when its stopped process runs again.
            return None;
        }
        let task = world.task(id)?;
        task.is_called = false;
        task.wait = None;
        let coroutine = task.coroutine.take()?;
        world.running = Some(id);
        world.touched.push(process);
        Some((process, coroutine))
    });
    let Some((process, mut coroutine)) = taken else { return };
    let progress = coroutine.resume();
    let ended = world(|world| {
        world.running = None;
        let ended = match progress {
            Progress::Paused => {
                if let Some(task) = world.task(id) {
                    task.coroutine = Some(coroutine);
                    None
                } else {
                    Some(coroutine)
                }
            }
            Progress::Ended => {
                world.forget_task(id);
                Some(coroutine)
            }
            Progress::Panicked(payload) => {
                world.forget_task(id);
                let name = world.process(process).name.clone();
                let said = crate::panics::message(&*payload);
                world.oracle.violated("no-panic", format!("{name} panicked: {said}"));
                Some(coroutine)
            }
        };
        world.look_at_bells(process);
        ended
    });
    if let Some(coroutine) = ended {
        coroutine.end();
    }
}

/// Kills a process: unwinds the stacks of its tasks, newest first. Whatever their destructors send reaches nobody.
pub(crate) fn kill(process: ProcessId) {
    let coroutines = world(|world| {
        if !world.is_alive(process) {
            return Vec::new();
        }
        world.processes[process.0 as usize].is_alive = false;
        let tasks = world.processes[process.0 as usize].tasks.clone();
        let mut coroutines = Vec::new();
        for id in tasks.into_iter().rev() {
            coroutines.extend(world.task(id).and_then(|task| task.coroutine.take()));
            world.forget_task(id);
        }
        coroutines
    });
    for coroutine in coroutines {
        coroutine.end();
    }
}

/// Handles the next event. Returns false if no event is left before the time `end`.
pub(crate) fn step(end: u64) -> bool {
    let Some(event) = world(|world| world.pop(end)) else { return false };
    match event {
        Event::Run(id) => run(id),
        Event::Timer(id) => world(|world| world.timer(id)),
        Event::Deliver(conn, direction) => world(|world| world.deliver(conn, direction)),
        Event::Chore(chore) => crate::faults::carry_out(chore),
    }
    true
}
