//! The memory that a session may take.
//!
//! The idea: `RepartitionExec` of DataFusion 55 can wait for itself once it writes what it hands on into temporary
//! files (apache/datafusion#24883, mended behind 55.2): a query in little memory then never ends. So it never has to.
//! What it is handing on counts like everything else, and is refused by nobody; its gate bounds it, as long as all its
//! readers read.
//!
//! `NestedLoopJoinExec` of DataFusion 55.2 leaves wrong rows once it writes its build side into temporary files
//! (apache/datafusion#22641, #24676, #24745, mended behind 55.2). What would make it do so is an error that it does not
//! take for one of memory: the query ends with it.

use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::{
    FairSpillPool, MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};
use std::fmt;

/// How consumers that are never refused begin.
const NEVER_REFUSED: &str = "RepartitionExec";
/// How consumers begin that would spill, and are refused for good.
const NEVER_SPILLED: &str = "NestedLoopJoinLoad";

/// A [`FairSpillPool`] that never makes a repartitioning or a nested-loop join spill.
#[derive(Debug)]
pub(crate) struct SessionPool {
    pool: FairSpillPool,
}

impl SessionPool {
    /// Of so many bytes.
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
                    "a join without equal keys keeps its smaller side in memory, which it does not fit into: {why}"
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
