//! What those who build on a session keep with it: one thing of each type, which is made when it is first asked for and
//! ends with the session.
//!
//! The idea: what runs functions, or what was learnt of links, belongs to a session and is not for a session to know.
//! So it is found by its type.

use farpool_lock::Mutex;
use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// See the module.
#[derive(Default)]
pub(crate) struct Kept(Mutex<BTreeMap<TypeId, Arc<dyn Any + Send + Sync>>>);

impl Kept {
    /// Returns the one of this type.
    pub(crate) fn get<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let mut kept = self.0.lock();
        let one = kept.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(T::default()));
        // It is found by its type, and so of this type.
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
