//! Far tables that scans from elsewhere name, opened once.

use crate::message::Identity;
use datafusion::common::{DataFusionError, Result, plan_err};
use farpool::{FarTable, Pool};
use farpool_lock::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use tokio::runtime::{Handle, RuntimeFlavor};

/// Tables that are kept open, at most.
const OPEN_MAX: usize = 256;

/// The tables of a pool. Clones share what is open.
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

    /// The table of this name, if it is this one. Blocks if it is not open.
    ///
    /// Errors: there is none, or another one than the query was planned for.
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
                "far table {} is not the one that the query was planned for: here it has {}, there it had {}",
                farpool::shown(name),
                words(found),
                words(wanted)
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

/// Plans are decoded where requests are answered: others of that thread go on elsewhere meanwhile, if there are others.
fn blocking<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}
