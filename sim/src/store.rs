//! The broker's disk: what is on it survives the broker, and not everything that is written gets there.
//!
//! The idea: the disk is an object of the world; a store is one broker's way to it. Whoever opens it takes it
//! from whoever had it open before, as the lock of a real one's file does: two brokers may be alive over one
//! disk, but only the newer one writes.
//!
//! Faults: no space (nothing is kept), an error after which nobody knows whether the records are there, the
//! process dying before the records are there or right behind.

use crate::electorate;
use crate::faults::Chore;
use crate::kernel::{rest, world};
use crate::names::places;
use farpool_broker::stores::{Store, StoreError};
use farpool_lease::broker::{Durable, Record};
use farpool_lock::{Mutex, MutexGuard};
use farpool_wire::mutant;
use std::sync::Arc;

/// What befalls the next commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mishap {
    /// An error, and nothing is kept.
    Fails,
    /// An error, though everything is kept.
    FailsTooLate,
    /// The broker dies before anything is kept.
    DiesBefore,
    /// The broker dies when all is kept, before it can answer.
    DiesBehind,
}

#[derive(Debug, Default)]
struct Content {
    durable: Durable,
    /// Who has it open: counts openings.
    opening: u64,
    is_full: bool,
    mishap: Option<Mishap>,
}

/// The disk of the world.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk(Arc<Mutex<Content>>);

impl Disk {
    fn content(&self) -> MutexGuard<'_, Content> {
        self.0.lock()
    }

    /// A way to it, which ends all others.
    pub(crate) fn open(&self) -> SimStore {
        let mut content = self.content();
        content.opening += 1;
        SimStore { disk: self.clone(), opening: content.opening }
    }

    /// How often it was opened: only the store opened last can write.
    pub(crate) fn openings(&self) -> u64 {
        self.content().opening
    }

    pub(crate) fn set_full(&self, is_full: bool) {
        self.content().is_full = is_full;
    }

    pub(crate) fn plan(&self, mishap: Option<Mishap>) {
        self.content().mishap = mishap;
    }

    /// What a restart would find.
    pub(crate) fn with_durable<T>(&self, look: impl FnOnce(&Durable) -> T) -> T {
        look(&self.content().durable)
    }
}

/// One broker's way to the disk.
#[derive(Debug)]
pub(crate) struct SimStore {
    disk: Disk,
    opening: u64,
}

impl SimStore {
    /// Which opening this is.
    pub(crate) fn opening(&self) -> u64 {
        self.opening
    }

    fn failed(what: &str) -> StoreError {
        world(|world| {
            // One that stands gives up its lead by itself.
            if let Some(process) = world.running_process().filter(|_| !world.plan.stands) {
                let soon = world.random.range(100_000_000, 3_000_000_000);
                world.chore_in(soon, Chore::RestartFailedBroker(process));
            }
        });
        StoreError(what.to_owned())
    }

    /// The process ends here. If that is on its way already, this does not return.
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

    fn commit(&mut self, records: &[Record]) -> Result<(), StoreError> {
        // A disk takes its time.
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
            for record in records {
                content.durable.apply(record.clone());
            }
            let after = places(&content.durable);
            drop(content);
            world(|world| {
                world.oracle.names_changed(&before, &after);
                records.iter().for_each(|record| world.recorded(record));
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
