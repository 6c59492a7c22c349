//! Values that other crates keep with a session: one for each type, made when first requested, and dropped with the
//! session.
//!
//! The idea: crates above keep state for each session, such as costs learnt or processes started. The session need not
//! know what it is, so a value is found by its type.

use farpool_lock::Mutex;
use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Values kept with a session: one for each type that was requested.
#[derive(Default)]
pub(crate) struct Kept(Mutex<BTreeMap<TypeId, Arc<dyn Any + Send + Sync>>>);

impl Kept {
    /// Returns the value of type `T`.
    pub(crate) fn get<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let mut kept = self.0.lock();
        let one = kept.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(T::default()));
        // The entry was found by the id of `T`, so the downcast succeeds.
        Arc::clone(one).downcast().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn what_is_kept_is_made_once_and_is_one_for_each_type() {
        let kept = Kept::default();
        kept.get::<AtomicU32>().store(7, Ordering::Relaxed);
        kept.get::<Mutex<String>>().lock().push('x');
        assert_eq!(kept.get::<AtomicU32>().load(Ordering::Relaxed), 7);
        assert_eq!(*kept.get::<Mutex<String>>().lock(), "x");
    }
}
