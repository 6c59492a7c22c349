//! Making calls again where other nodes have the bytes, after a node was lost or is silent.

use crate::calling::Caller;
use crate::places::Locations;
use farpool_files::beneath::{self, Waits};
use farpool_files::{Error, ErrorKind, Protection};
use std::sync::Arc;

/// Number of times that a call is made, at most.
const TRIES_MAX: u32 = 4;

impl Caller {
    /// Calls `run` with the locations of the bytes, and again while bytes are lost or cannot be reached and there are
    /// others elsewhere. A retry is safe, because functions have no side effects. `run` is also told whether a silent
    /// node is to be given up soon, because others may be able to do the same.
    pub(crate) fn retry_if_moved<T>(
        &self,
        run: impl Fn(&Locations, bool) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut places = self.places_now();
        let mut is_brief = self.file.protection() != Protection::None;
        // Names of nodes that have lost the bytes, though they answer, as they have started again; and of silent ones.
        let mut without = Vec::new();
        for _ in 1..TRIES_MAX {
            let error = match run(&places, is_brief) {
                Err(error) if matches!(error.kind(), ErrorKind::Lost | ErrorKind::Unreachable) => error,
                other => return other,
            };
            without.extend(error.node().map(str::to_owned));
            let waits = if is_brief { Waits::WhileItIsThere } else { Waits::Long };
            match self.look_again(&places, &error, &without, waits) {
                Ok(found) => places = found,
                // All that have the bytes are silent. They may only be slow.
                Err(_) if error.kind() == ErrorKind::Unreachable && is_brief => is_brief = false,
                Err(error) => return Err(error),
            }
        }
        run(&places, false)
    }

    /// Returns where the bytes are. Looks whether those that had to be computed have been made again.
    pub(crate) fn places_now(&self) -> Arc<Locations> {
        let places = Arc::clone(&self.places.lock());
        if places.is_degraded
            && let Ok(found) = Locations::of(&self.file, self.range.clone(), &[])
            && !found.is_degraded
        {
            return self.go_to(found);
        }
        places
    }

    /// Returns where the bytes are after a call failed with `error`. Waits for the broker as `waits` says.
    ///
    /// Errors: they are nowhere else.
    fn look_again(
        &self,
        places: &Locations,
        error: &Error,
        without: &[String],
        waits: Waits,
    ) -> Result<Arc<Locations>, Error> {
        let found = Locations::of(&self.file, self.range.clone(), without);
        match found {
            Ok(found) if found.is_live() && !(error.kind() == ErrorKind::Lost && found.is_same(places)) => {
                Ok(self.go_to(found))
            }
            // Others were silent before, and may be back.
            Ok(found) if error.kind() == ErrorKind::Unreachable && found.avoids(without) => {
                Ok(self.go_to(found))
            }
            _ if error.kind() == ErrorKind::Unreachable => {
                match beneath::look_for_copies(&self.file, waits) {
                    true => {
                        Locations::of(&self.file, self.range.clone(), without).map(|found| self.go_to(found))
                    }
                    false => Err(error.clone()),
                }
            }
            _ => {
                // The bytes may have moved, or been rebuilt.
                beneath::reopen(&self.file, error)?;
                Locations::of(&self.file, self.range.clone(), &[]).map(|found| self.go_to(found))
            }
        }
    }

    fn go_to(&self, places: Locations) -> Arc<Locations> {
        let places = Arc::new(places);
        *self.places.lock() = Arc::clone(&places);
        self.elsewhere.lock().clear();
        self.idle.lock().clear();
        places
    }
}
