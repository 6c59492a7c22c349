//! Far tables that a worker keeps open for the scans that it receives.

use crate::message::{Identity, Opened};
use datafusion::common::{DataFusionError, Result, plan_err};
use farpool::{FarTable, Pool};
use farpool_lock::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use tokio::runtime::{Handle, RuntimeFlavor};

/// Tables kept open, at most.
const OPEN_MAX: usize = 256;

/// Table that is open, what it was when it was opened, and the files that are open.
type Known = (Identity, Opened, FarTable);

/// Far tables of a pool by name. Clones share those that are open.
#[derive(Clone)]
pub(crate) struct Tables {
    pool: Pool,
    open: Arc<Mutex<HashMap<String, Known>>>,
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

    /// Returns the table of this name and identity, with these files of this snapshot. Blocks the thread while it opens
    /// the table, if it is not open.
    ///
    /// Errors: there is no table of this name, or it is not the one that the query was planned for.
    pub(crate) fn table(&self, name: &str, wanted: Identity, opened: &Opened) -> Result<FarTable> {
        let known = self.open.lock().get(name).cloned();
        // Two snapshots may have the same rows, and one of them may have ended.
        if let Some((identity, of, table)) = known
            && (identity, &of) == (wanted, opened)
        {
            return Ok(table);
        }
        let found = blocking(|| open(&self.pool, name, opened));
        let table = found.map_err(|error| DataFusionError::External(Box::new(error)))?;
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
        open.insert(name.to_owned(), (found, opened.clone(), table.clone()));
        Ok(table)
    }
}

fn open(pool: &Pool, name: &str, Opened { snapshot, files }: &Opened) -> farpool::Result<FarTable> {
    if *snapshot == 0 {
        return pool.table(name);
    }
    let snapshot = pool.table_snapshot(name, *snapshot, None)?;
    match files {
        None => snapshot.open_all(),
        Some(files) => snapshot.open_some(&snapshot.files()?, files),
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
