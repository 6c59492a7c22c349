//! Far tables that a worker keeps open for the scans that it receives.

use crate::message::Identity;
use datafusion::common::{DataFusionError, Result, plan_err};
use farpool::{FarTable, Pool};
use farpool_lock::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use tokio::runtime::{Handle, RuntimeFlavor};

/// Tables kept open, at most.
const OPEN_MAX: usize = 256;

/// Far tables of a pool by name. Clones share those that are open.
#[derive(Clone)]
pub(crate) struct Tables {
    pool: Pool,
    open: Arc<Mutex<HashMap<String, (Identity, FarTable)>>>,
}

impl fmt::Debug for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tables").finish_non_exhaustive()
    }
}

impl Tables {
    pub(crate) fn new(pool: Pool) -> Tables {
        Tables { pool, open: Arc::default() }
    }

    /// Returns the table of this name and identity. Blocks the thread while it opens the table, if it is not open.
    ///
    /// Errors: there is no table of this name, or it is not the one that the query was planned for.
    pub(crate) fn table(&self, name: &str, wanted: Identity) -> Result<FarTable> {
        let known = self.open.lock().get(name).cloned();
        if let Some((identity, table)) = known
            && identity == wanted
        {
            return Ok(table);
        }
        let opened = blocking(|| self.pool.table(name));
        let table = opened.map_err(|error| DataFusionError::External(Box::new(error)))?;
        let found = Identity::of(&table);
        if found != wanted {
            return plan_err!(
                "far table {} was replaced after the query was planned: it had {}, now it has {}; plan the query again",
                farpool::shown(name),
                words(wanted),
                words(found)
            );
        }
        let mut open = self.open.lock();
        if open.len() >= OPEN_MAX {
            open.clear();
        }
        open.insert(name.to_owned(), (found, table.clone()));
        Ok(table)
    }
}

fn words(of: Identity) -> String {
    let Identity { rows, row_groups, bytes, digest } = of;
    format!("{rows} rows in {row_groups} row groups, {bytes} bytes, digest {digest:016x}")
}

/// Runs work that blocks the thread. Plans are decoded on a thread that also answers requests; on a multi-threaded
/// runtime, other tasks of that thread move to another one meanwhile.
fn blocking<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}
