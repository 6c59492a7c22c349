//! Disk of the broker. Its contents survive the broker, and not everything that is written gets there.
//!
//! The idea: the disk is an object of the world, and a store is the access of one broker to it. Opening the disk ends
//! the access of the broker that had it open before, as the lock on a real store's file does. Two brokers may be
//! alive over one disk, but only the newer one can write.
//!
//! Faults: no space (nothing is kept); an error after which it is unknown whether the records were written; the
//! process dies right before or right after the records are written.

use crate::electorate;
use crate::faults::Chore;
use crate::kernel::{rest, world};
use crate::names::places;
use farpool_broker::stores::{Store, StoreError};
use farpool_lease::broker::{Durable, StateChange};
use farpool_lock::{Mutex, MutexGuard};
use farpool_wire::mutant;
use std::sync::Arc;

/// Fault that the next commit to the disk will have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mishap {
    /// An error, and nothing is written.
    Fails,
    /// An error, although everything is written.
    FailsTooLate,
    /// The broker dies before anything is written.
    DiesBefore,
    /// The broker dies when all is written, before it can answer.
    DiesBehind,
}

#[derive(Debug, Default)]
struct Content {
    durable: Durable,
    /// Number of times that the disk was opened. Only the store of the last opening may write.
    opening: u64,
    is_full: bool,
    mishap: Option<Mishap>,
}

/// Disk of the world.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk(Arc<Mutex<Content>>);

impl Disk {
    fn content(&self) -> MutexGuard<'_, Content> {
        self.0.lock()
    }

    /// Opens the disk. All stores that were opened earlier lose their access.
    pub(crate) fn open(&self) -> SimStore {
        let mut content = self.content();
        content.opening += 1;
        SimStore { disk: self.clone(), opening: content.opening }
    }

    /// Returns how often the disk was opened. Only the store opened last can write.
    pub(crate) fn openings(&self) -> u64 {
        self.content().opening
    }

    pub(crate) fn set_full(&self, is_full: bool) {
        self.content().is_full = is_full;
    }

    pub(crate) fn plan(&self, mishap: Option<Mishap>) {
        self.content().mishap = mishap;
    }

    /// Calls `look` with what a restarted broker would find.
    pub(crate) fn with_durable<T>(&self, look: impl FnOnce(&Durable) -> T) -> T {
        look(&self.content().durable)
    }
}

/// Access of one broker to the disk.
#[derive(Debug)]
pub(crate) struct SimStore {
    disk: Disk,
    opening: u64,
}

impl SimStore {
    /// Returns the number of the opening of the disk that this store made.
    pub(crate) fn opening(&self) -> u64 {
        self.opening
    }

    fn failed(what: &str) -> StoreError {
        world(|world| {
            // A broker that takes part in an election gives up its lead by itself, so only others are restarted.
            if let Some(process) = world.running_process().filter(|_| !world.plan.stands) {
                let soon = world.random.range(100_000_000, 3_000_000_000);
                world.chore_in(soon, Chore::RestartFailedBroker(process));
            }
        });
        StoreError(what.to_owned())
    }

    /// Ends the process of the running task. Schedules it for now, and waits in vain until it happens; returns only if
    /// the process is being ended already.
    fn die() {
        world(|world| {
            if let Some(process) = world.running_process() {
                world.chore_in(0, Chore::Kill(process));
            }
        });
        rest(1 << 50);
    }
}

impl Store for SimStore {
    fn load(&self) -> Result<Durable, StoreError> {
        Ok(self.disk.content().durable.clone())
    }

    fn confirm(&mut self) -> Result<(), StoreError> {
        if let Some(process) = world(|world| world.running_process().filter(|_| world.plan.stands)) {
            electorate::ask(process)?;
        }
        match self.disk.openings() == self.opening {
            true => Ok(()),
            false => Err(StoreError("another broker has opened the store".to_owned())),
        }
    }

    fn commit(&mut self, records: &[StateChange]) -> Result<(), StoreError> {
        // A commit takes a while, as on a real disk.
        let takes = world(|world| world.random.skewed(20_000, world.plan.commit_ns_max));
        rest(takes);
        if let Some(process) = world(|world| world.running_process().filter(|_| world.plan.stands)) {
            electorate::ask(process)?;
        }
        let (opening, is_full, mishap) = {
            let mut content = self.disk.content();
            (content.opening, content.is_full, content.mishap.take())
        };
        if opening != self.opening && !mutant!(LeadNotCompared) {
            return Err(SimStore::failed("another broker has opened the store"));
        }
        if is_full {
            world(|world| world.tally.fault("commit on a full disk"));
            return Err(SimStore::failed("no space left on the disk"));
        }
        let apply = || {
            let mut content = self.disk.content();
            let before = places(&content.durable);
            let mut files_before = Vec::new();
            for record in records {
                files_before.push(match record {
                    StateChange::Name(name, _) | StateChange::DropName(name) => {
                        content.durable.names.get(name).cloned()
                    }
                    _ => None,
                });
                content.durable.apply(record.clone());
            }
            let after = places(&content.durable);
            drop(content);
            world(|world| {
                world.oracle.names_changed(&before, &after);
                let changes = records.iter().zip(files_before);
                changes.for_each(|(record, before)| world.recorded(opening, record, before.as_ref()));
            });
        };
        match mishap {
            None => {
                apply();
                Ok(())
            }
            Some(Mishap::Fails) => {
                world(|world| world.tally.fault("commit failed"));
                Err(SimStore::failed("the disk failed"))
            }
            Some(Mishap::FailsTooLate) => {
                world(|world| world.tally.fault("commit failed too late"));
                apply();
                Err(SimStore::failed("the disk failed to flush"))
            }
            Some(Mishap::DiesBefore) => {
                world(|world| world.tally.fault("broker died before a commit"));
                SimStore::die();
                Err(StoreError("the process has ended".to_owned()))
            }
            Some(Mishap::DiesBehind) => {
                world(|world| world.tally.fault("broker died behind a commit"));
                apply();
                SimStore::die();
                Err(StoreError("the process has ended".to_owned()))
            }
        }
    }
}
