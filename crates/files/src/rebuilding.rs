//! Rebuilding of published files whose bytes were lost with a node.
//!
//! The idea: several threads may need the same lost file. One of them rebuilds it; the others wait on the mutex of its
//! name and then find it rebuilt.
//!
//! Locks: the three lists have a lock each, held for one access and never together. The mutex of a name
//! ([`Rebuilding::turn`]) is held while the file is rebuilt, however long that takes. A thread that waits for it holds
//! no other lock of the session.

use crate::error::Error;
use crate::recipe::Recipe;
use farpool_host::HostMutex;
use farpool_lock::Mutex;
use farpool_wire::{FileId, Name};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Function that publishes the file of a name again.
pub(crate) type Rebuild = dyn Fn(&str) -> Result<(), Error> + Send + Sync;

/// Function that rebuilds all files whose names begin with `prefix`.
struct Rebuilder {
    prefix: String,
    rebuild: Arc<Rebuild>,
}

/// Function that publishes a file by its recipe, in place of the lost one whose id it gets.
pub(crate) type Make = dyn Fn(&str, FileId, &Recipe) -> Result<(), Error> + Send + Sync;

/// Functions that rebuild lost files, and a mutex for each name that was rebuilt.
#[derive(Default)]
pub(crate) struct Rebuilding {
    rebuilders: Mutex<Vec<Rebuilder>>,
    /// Functions that make files by recipes, by the kind of the recipe.
    makers: Mutex<BTreeMap<String, Arc<Make>>>,
    turns: Mutex<BTreeMap<Name, Arc<HostMutex<()>>>>,
}

impl Rebuilding {
    /// Registers the function that rebuilds files whose names begin with `prefix`.
    pub(crate) fn add(&self, prefix: &str, rebuild: Arc<Rebuild>) {
        self.rebuilders.lock().push(Rebuilder { prefix: prefix.to_owned(), rebuild });
    }

    /// Returns the function that rebuilds the file `name`. If two prefixes match, the one registered last wins.
    pub(crate) fn known(&self, name: &Name) -> Option<Arc<Rebuild>> {
        let rebuilders = self.rebuilders.lock();
        let known = rebuilders.iter().rev().find(|known| name.starts_with(&*known.prefix))?;
        Some(Arc::clone(&known.rebuild))
    }

    /// Registers the function that makes files by recipes of a kind.
    pub(crate) fn add_maker(&self, kind: &str, make: Arc<Make>) {
        self.makers.lock().insert(kind.to_owned(), make);
    }

    /// Returns the function that makes files by recipes of a kind.
    pub(crate) fn maker(&self, kind: &str) -> Option<Arc<Make>> {
        self.makers.lock().get(kind).cloned()
    }

    /// Returns the mutex under which the file `name` is rebuilt.
    pub(crate) fn turn(&self, name: &Name) -> Arc<HostMutex<()>> {
        Arc::clone(self.turns.lock().entry(name.clone()).or_default())
    }
}
