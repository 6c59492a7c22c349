//! Storm: several tasks of one client write and read the same few files at once, in overlapping ranges.
//!
//! The idea: every eight bytes hold the number of the write that wrote them and their own offset, so every read can be
//! checked against the library's promises. A read never returns bytes that were not written there, nor bytes that a
//! later write had replaced before the read began. When all tasks have ended, the contents are those that some order of
//! the writes leaves, whichever copy is read. Meanwhile the client's other tasks continue, and files are created in
//! memory that deleted files have left.

use super::{note_outcome, violated};
use crate::faults;
use crate::kernel::{ProcessId, rest, world};
use crate::parties::Phase;
use crate::profile::Theme;
use crate::random::Random;
use farpool_files::{CreateOptions, FarFile, Pool, Protection};
use farpool_wire::FileClass;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// Size of a unit in bytes: 4 for the number of its write, 4 for its position.
const UNIT_BYTES: u64 = 8;
/// Alignment of offsets and lengths in bytes, two units. A copy that was interrupted half-way then holds whole units.
const ALIGN_BYTES: u64 = 16;
const FILE_BYTES_MAX: u64 = 1 << 20;

/// One write. Its times are values of [`State::moment`], which counts the storm's operations.
struct Written {
    range: Range<u64>,
    begun: u64,
    /// Moment at which it ended, and whether it succeeded. `None` while it is in progress.
    ended: Option<(u64, bool)>,
}

impl Written {
    fn has_succeeded_before(&self, moment: u64) -> bool {
        self.ended.is_some_and(|(ended, succeeded)| succeeded && ended < moment)
    }

    fn began_behind(&self, other: &Written) -> bool {
        other.ended.is_some_and(|(ended, _)| ended < self.begun)
    }
}

struct Target {
    name: String,
    file: FarFile,
    writes: BTreeMap<u32, Written>,
}

struct State {
    targets: Vec<Target>,
    moment: u64,
    running: u32,
}

/// Storm over a few files of one client. It ends by itself when each task has done 8 to 32 operations, or when the
/// faults are over.
#[derive(Clone)]
pub(super) struct Storm {
    process: ProcessId,
    pool: Pool,
    state: Rc<RefCell<State>>,
}

/// Number of a write, and the range in which only its units lie. Number 0 stands for zeros, which nobody wrote.
type Run = (u32, Range<u64>);

fn next_number() -> u32 {
    world(|world| {
        world.parties.next_unit += 1;
        world.parties.next_unit
    })
}

fn units(number: u32, range: &Range<u64>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
    for unit in range.start / UNIT_BYTES..range.end / UNIT_BYTES {
        bytes.extend_from_slice(&(u64::from(number) << 32 | unit).to_le_bytes());
    }
    bytes
}

/// Splits the bytes at `offset` of a file into runs of the same write. Fails if a unit holds the offset of another
/// place.
fn runs(offset: u64, bytes: &[u8]) -> Result<Vec<Run>, String> {
    let mut runs: Vec<Run> = Vec::new();
    for (index, unit) in bytes.as_chunks::<8>().0.iter().enumerate() {
        let at = offset + index as u64 * UNIT_BYTES;
        let value = u64::from_le_bytes(*unit);
        let number = (value >> 32) as u32;
        if value != 0 && value & 0xffff_ffff != at / UNIT_BYTES {
            return Err(format!("at {at} lies {unit:02x?}, which belongs elsewhere"));
        }
        match runs.last_mut() {
            Some((of, range)) if *of == number => range.end = at + UNIT_BYTES,
            _ => runs.push((number, at..at + UNIT_BYTES)),
        }
    }
    Ok(runs)
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Target {
    /// Checks the bytes that a read has returned. `begun` is the moment at which the read began.
    fn check(&self, begun: u64, runs: &[Run]) -> Result<(), String> {
        for (number, range) in runs {
            let found = self.writes.get(number);
            if *number != 0 && found.is_none() {
                return Err(format!("{range:?} is of write {number}, which was not to this file"));
            }
            let has_replaced = |write: &&Written| {
                let is_later = found.is_none_or(|found| write.began_behind(found));
                overlap(&write.range, range) && write.has_succeeded_before(begun) && is_later
            };
            if let Some(later) = self.writes.values().find(has_replaced) {
                return Err(format!(
                    "{range:?} is of write {number}, which that of {:?} had replaced before the read began",
                    later.range
                ));
            }
        }
        Ok(())
    }

    /// Checks that some order of the writes leaves the file with these runs: the order that the runs and the writes'
    /// times demand has no cycle.
    fn check_order(&self, runs: &[Run]) -> Result<(), String> {
        let mut before: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (number, write) in self.writes.iter().filter(|(_, write)| write.has_succeeded_before(u64::MAX)) {
            let shows = runs.iter().filter(|(of, range)| *of != *number && overlap(&write.range, range));
            let ended_first = self.writes.iter().filter(|(_, other)| write.began_behind(other));
            let later: Vec<u32> = shows.map(|(of, _)| *of).filter(|of| *of != 0).collect();
            for (earlier, _) in ended_first {
                before.entry(*earlier).or_default().push(*number);
            }
            before.entry(*number).or_default().extend(later);
        }
        let mut left: BTreeMap<u32, usize> = self.writes.keys().map(|number| (*number, 0)).collect();
        before.values().flatten().for_each(|later| *left.entry(*later).or_default() += 1);
        let mut free: Vec<u32> = left.iter().filter(|(_, count)| **count == 0).map(|(of, _)| *of).collect();
        let mut done = 0;
        while let Some(number) = free.pop() {
            done += 1;
            for later in before.get(&number).into_iter().flatten() {
                let count = left.entry(*later).or_default();
                *count -= 1;
                if *count == 0 {
                    free.push(*later);
                }
            }
        }
        if done == left.len() { Ok(()) } else { Err(format!("no order of the writes leaves {runs:?}")) }
    }
}

/// Begins a storm over new files. Returns `None` if no file can be created.
pub(super) fn begin(process: ProcessId, pool: &Pool, random: &mut Random) -> Option<Storm> {
    let state = State { targets: Vec::new(), moment: 0, running: 0 };
    let storm = Storm { process, pool: pool.clone(), state: Rc::new(RefCell::new(state)) };
    for _ in 0..random.range(1, 5) {
        let protection = match random.below(8) {
            0 => Protection::None,
            1 => Protection::Local,
            _ => Protection::Mirror,
        };
        let options = CreateOptions {
            protection: Some(protection),
            encrypted: Some(random.one_in(8)),
            ..CreateOptions::default()
        };
        let name = format!("storm/{}", next_number());
        let file =
            note_outcome(process, "create in a storm", pool.create(&name, FileClass::Scratch, options))?;
        storm.state.borrow_mut().targets.push(Target { name, file, writes: BTreeMap::new() });
    }
    let tasks = random.range(3, 8);
    storm.state.borrow_mut().running = tasks as u32;
    for index in 0..tasks {
        let (storm, random) = (storm.clone(), random.fork(index));
        world(|world| world.spawn(process, Box::new(move || storm.blow(random))));
    }
    Some(storm)
}

impl Storm {
    pub(super) fn is_over(&self) -> bool {
        self.state.borrow().running == 0
    }

    /// Runs one task of the storm. The task that ends last checks the contents of all files.
    fn blow(&self, mut random: Random) {
        for _ in 0..random.range(8, 32) {
            if world(|world| world.parties.phase) != Phase::Faulty {
                break;
            }
            if random.one_in(10) {
                world(|world| faults::congest(world, self.process));
            }
            match random.below(20) {
                0..8 => self.write(&mut random),
                8..14 => self.read(&mut random),
                14..19 => self.come_and_go(&mut random),
                _ => rest(random.skewed(10_000, 500_000_000)),
            }
            // Sometimes rests so that the storm lasts as long as a few requests that time out.
            if random.one_in(6) {
                rest(random.below(world(|world| world.plan.request_timeout_ms * 1_000_000)));
            }
        }
        let is_last = self.state.borrow().running == 1;
        if is_last {
            self.look_at_what_is_left(&mut random);
            let targets = std::mem::take(&mut self.state.borrow_mut().targets);
            for target in targets {
                // The task's own handle must be closed before the file can be deleted.
                drop(target.file);
                let _ = self.pool.delete(&target.name);
            }
        }
        self.state.borrow_mut().running -= 1;
    }

    fn pick(&self, random: &mut Random) -> Option<(usize, FarFile)> {
        let state = self.state.borrow();
        let which = random.below(state.targets.len().max(1) as u64) as usize;
        state.targets.get(which).map(|target| (which, target.file.clone()))
    }

    fn moment(&self) -> u64 {
        let mut state = self.state.borrow_mut();
        state.moment += 1;
        state.moment
    }

    /// Draws a range at one of few places, so that the ranges of tasks overlap.
    fn range(random: &mut Random) -> Range<u64> {
        let most = if random.one_in(8) { 100 << 10 } else { 8 << 10 };
        let bytes = random.skewed(ALIGN_BYTES, most) & !(ALIGN_BYTES - 1);
        let step = random.below(3) * (40 << 10);
        let offset = (step + random.below(4 << 10)) & !(ALIGN_BYTES - 1);
        offset..(offset + bytes).min(FILE_BYTES_MAX)
    }

    fn write(&self, random: &mut Random) {
        let Some((which, file)) = self.pick(random) else { return };
        let (number, range) = (next_number(), Storm::range(random));
        let begun = self.moment();
        let written = Written { range: range.clone(), begun, ended: None };
        self.state.borrow_mut().targets[which].writes.insert(number, written);
        let result = file.write_at(range.start, &units(number, &range));
        let succeeded = note_outcome(self.process, "write in a storm", result).is_some();
        let ended = self.moment();
        if let Some(written) = self.state.borrow_mut().targets[which].writes.get_mut(&number) {
            written.ended = Some((ended, succeeded));
        }
    }

    fn read(&self, random: &mut Random) {
        let Some((which, file)) = self.pick(random) else { return };
        let range = Storm::range(random);
        let end = range.end.min(file.length() & !(UNIT_BYTES - 1));
        if range.start < end {
            self.compare(which, &file, range.start..end);
        }
    }

    /// Reads a range of the file `which` and checks it against the writes. Returns its runs; `None` if the read failed.
    fn compare(&self, which: usize, file: &FarFile, range: Range<u64>) -> Option<Vec<Run>> {
        let begun = self.moment();
        let mut bytes = vec![0xEE; (range.end - range.start) as usize];
        let result = file.read_at(range.start, &mut bytes);
        note_outcome(self.process, "read in a storm", result)?;
        world(|world| {
            world.tally.bytes_compared += bytes.len() as u64;
            world.oracle.checks += 1;
        });
        let state = self.state.borrow();
        let target = &state.targets[which];
        let found = runs(range.start, &bytes);
        match found.and_then(|runs| target.check(begun, &runs).map(|()| runs)) {
            Ok(runs) => Some(runs),
            Err(what) => {
                let protection = target.file.protection().to_string();
                violated("I3", format!("{:?} ({protection}): {what}", target.name));
                None
            }
        }
    }

    /// Creates, uses and deletes a file. It gets memory that deleted files have left, and leaves its own to later ones.
    fn come_and_go(&self, random: &mut Random) {
        let name = format!("storm/{}", next_number());
        let protection = *random.pick(&[Protection::None, Protection::Mirror]);
        let options = CreateOptions {
            protection: Some(protection),
            encrypted: Some(false),
            ..CreateOptions::default()
        };
        let created = self.pool.create(&name, FileClass::Scratch, options);
        let Some(file) = note_outcome(self.process, "create in a storm", created) else { return };
        let range = 0..random.skewed(ALIGN_BYTES, 100 << 10) & !(ALIGN_BYTES - 1);
        let bytes = units(next_number(), &range);
        let mut found = vec![0; bytes.len()];
        let result = file.write_at(0, &bytes);
        if note_outcome(self.process, "write in a storm", result).is_some() {
            rest(random.skewed(10_000, world(|world| world.plan.request_timeout_ms * 1_000_000)));
            let result = file.read_at(0, &mut found);
            if note_outcome(self.process, "read in a storm", result).is_some() && found != bytes {
                violated("I3", format!("{name:?}: {}", super::first_difference(&found, &bytes)));
            }
        }
        drop(file);
        let _ = self.pool.delete(&name);
    }

    /// Checks the contents of all files after the last task has ended. Reads files with two copies repeatedly, each
    /// time with another node unreachable, so that every copy is read.
    fn look_at_what_is_left(&self, random: &mut Random) {
        const PART_BYTES: u64 = 64 << 10;
        let count = self.state.borrow().targets.len();
        for which in 0..count {
            let file = self.state.borrow().targets[which].file.clone();
            let end = file.length().min(FILE_BYTES_MAX) & !(UNIT_BYTES - 1);
            let parts = (0..end).step_by(PART_BYTES as usize).map(|at| at..(at + PART_BYTES).min(end));
            let parts: Vec<Range<u64>> = parts.collect();
            let mut left: BTreeMap<u64, Vec<Run>> = BTreeMap::new();
            let hidden = match file.protection() {
                Protection::Mirror => self.nodes_to_hide(random),
                _ => vec![None],
            };
            for node in hidden {
                node.into_iter().for_each(|node| self.hide(node));
                for part in &parts {
                    let Some(found) = self.compare(which, &file, part.clone()) else { continue };
                    if let Some(before) = left.insert(part.start, found.clone())
                        && before != found
                    {
                        let name = &self.state.borrow().targets[which].name;
                        violated("I3", format!("{name:?}: copies differ: {before:?}, {found:?}"));
                    }
                }
            }
            let all: Vec<Run> = left.into_values().flatten().collect();
            let checked = self.state.borrow().targets[which].check_order(&all);
            if let Err(what) = checked {
                let name = &self.state.borrow().targets[which].name;
                violated("I3", format!("{name:?}: {what}"));
            }
        }
    }

    /// Returns the nodes to make unreachable, one after the other: first `None` for no node, then sometimes those that
    /// faults may hit in this world.
    fn nodes_to_hide(&self, random: &mut Random) -> Vec<Option<usize>> {
        let (hosts, theme, is_faulty) = world(|world| {
            let is_faulty = world.plan.fault_every_ns > 0 && world.parties.phase == Phase::Faulty;
            (world.plan.host_of_node.clone(), world.plan.theme, is_faulty)
        });
        let may_fail = |node: &usize| match theme {
            Theme::Everybody => true,
            Theme::OneNode(one) => hosts[*node] == hosts[one],
            Theme::Clients => false,
        };
        let hides = is_faulty && random.one_in(2);
        let hidden = (0..hosts.len()).filter(|node| hides && may_fail(node)).map(Some);
        std::iter::once(None).chain(hidden).collect()
    }

    /// Blocks the path between this client and a node, both ways, for as long as a request may take.
    fn hide(&self, node: usize) {
        world(|world| {
            let here = world.process(self.process).machine;
            let there = world.parties.nodes[node].machine;
            let until = world.now() + world.plan.request_timeout_ms * 1_000_000;
            if here != there {
                world.tally.fault("partition");
                for (from, to) in [(here, there), (there, here)] {
                    let path = world.net.path(from, to);
                    path.blocked_until = path.blocked_until.max(until);
                }
            }
        });
    }
}
