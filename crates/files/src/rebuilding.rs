//! How published files are built anew that a node took away: who said how, and whose turn it is.
//!
//! The idea: of several that need a lost file, one builds it while the others wait for the turn; then they find it
//! there.
//!
//! Methods: [`Rebuilding::add`] and [`Rebuilding::known`] are asked by name; [`Rebuilding::turn`] gives what is taken
//! while a file is built. The two locks are held for a look each and never together. The turn of a name is held while
//! its file is built, for as long as that takes, and no other lock of the session is held by whoever waits for it.

use crate::error::Error;
use farpool_host::Turn;
use farpool_lock::Mutex;
use farpool_wire::Name;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Publishes a file of this name again.
pub(crate) type Rebuild = dyn Fn(&str) -> Result<(), Error> + Send + Sync;

/// Builds files anew whose names begin with a prefix.
struct Rebuilder {
    prefix: String,
    rebuild: Arc<Rebuild>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Rebuilding {
    rebuilders: Mutex<Vec<Rebuilder>>,
    turns: Mutex<BTreeMap<Name, Arc<Turn<()>>>>,
}

impl Rebuilding {
    /// Notes how files are built whose names begin with a prefix.
    pub(crate) fn add(&self, prefix: &str, rebuild: Arc<Rebuild>) {
        self.rebuilders.lock().push(Rebuilder { prefix: prefix.to_owned(), rebuild });
    }

    /// Returns how a file of this name is built. Of two prefixes that fit, the one given last counts.
    pub(crate) fn known(&self, name: &Name) -> Option<Arc<Rebuild>> {
        let rebuilders = self.rebuilders.lock();
        let known = rebuilders.iter().rev().find(|known| name.starts_with(&*known.prefix))?;
        Some(Arc::clone(&known.rebuild))
    }

    /// Returns the turn to build a file of this name.
    pub(crate) fn turn(&self, name: &Name) -> Arc<Turn<()>> {
        Arc::clone(self.turns.lock().entry(name.clone()).or_default())
    }
}
