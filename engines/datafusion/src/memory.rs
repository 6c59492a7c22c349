//! Memory pool of a session. It works around two bugs of DataFusion 55 with spilling.
//!
//! `RepartitionExec` of DataFusion 55 can deadlock once it spills (apache/datafusion#24883, fixed after 55.2). This
//! pool therefore never refuses that operator memory. The memory is still counted. The operator's own gate bounds it,
//! as long as all readers of its output read.
//!
//! `NestedLoopJoinExec` of DataFusion 55.2 returns wrong rows once it spills its build side (apache/datafusion#22641,
//! #24676, #24745, fixed after 55.2). This pool turns the error that would make it spill into one that it does not
//! recognise, and the query fails.

use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::{
    FairSpillPool, MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};
use std::fmt;

/// Prefix of the names of consumers that always get memory.
const NEVER_REFUSED: &str = "RepartitionExec";
/// Prefix of the names of consumers that fail when memory is short, where they would spill.
const NEVER_SPILLED: &str = "NestedLoopJoinLoad";

/// A [`FairSpillPool`] under which repartitionings and nested-loop joins never spill.
#[derive(Debug)]
pub(crate) struct SessionPool {
    pool: FairSpillPool,
}

impl SessionPool {
    /// Makes a pool with this limit in bytes.
    pub(crate) fn new(bytes: usize) -> SessionPool {
        SessionPool { pool: FairSpillPool::new(bytes) }
    }
}

impl fmt::Display for SessionPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pool.fmt(f)
    }
}

impl MemoryPool for SessionPool {
    fn name(&self) -> &str {
        self.pool.name()
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.pool.register(consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.pool.unregister(consumer);
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.pool.grow(reservation, additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.pool.shrink(reservation, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let consumer = reservation.consumer().name();
        if consumer.starts_with(NEVER_REFUSED) {
            self.pool.grow(reservation, additional);
            return Ok(());
        }
        match self.pool.try_grow(reservation, additional) {
            Err(DataFusionError::ResourcesExhausted(why)) if consumer.starts_with(NEVER_SPILLED) => {
                Err(DataFusionError::Execution(format!(
                    "a join without equality conditions must hold its smaller side in memory, and it does not fit: \
                     {why}"
                )))
            }
            grown => grown,
        }
    }

    fn reserved(&self) -> usize {
        self.pool.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.pool.memory_limit()
    }
}
