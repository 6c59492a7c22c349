//! Locks of the standard library that ignore poisoning.
//!
//! The idea: a lock of `std` is an error for ever once a thread has panicked while holding it. Farpool has no use for
//! that: data that must stay whole is changed in one step, and a panic is reported where it happens. So the next
//! thread that locks simply goes on.
//!
//! Waiting is left to `std`, which spins shortly and then lets the kernel park the thread. `parking_lot` yields to
//! the scheduler first, which costs milliseconds where every CPU is busy (decision 0006).
//!
//! Never in this crate: anything of the pool.
#![forbid(unsafe_code)]
#![expect(clippy::disallowed_types, reason = "this crate wraps the disallowed locks")]

use std::sync::{PoisonError, TryLockError, TryLockResult};
use std::time::Duration;

pub use std::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// [`std::sync::Mutex`] without poisoning.
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Returns a lock around a value.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(std::sync::Mutex::new(value))
    }

    /// Waits until nobody else holds the lock, and takes it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock; `None` if somebody holds it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        taken(self.0.try_lock())
    }

    /// Returns the value without locking: `&mut self` shows that nobody else can reach it.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the value and ends the lock.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// [`std::sync::RwLock`] without poisoning.
#[derive(Debug, Default)]
pub struct RwLock<T>(std::sync::RwLock<T>);

impl<T> RwLock<T> {
    /// Returns a lock around a value.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock(std::sync::RwLock::new(value))
    }

    /// Waits until nobody writes, and takes the lock for reading.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody reads or writes, and takes the lock for writing.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock for reading; `None` if somebody writes.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        taken(self.0.try_read())
    }

    /// Takes the lock for writing; `None` if somebody reads or writes.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        taken(self.0.try_write())
    }
}

fn taken<G>(tried: TryLockResult<G>) -> Option<G> {
    match tried {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// [`std::sync::Condvar`] without poisoning. Waits with a timeout return the guard in any case.
#[derive(Debug, Default)]
pub struct Condvar(std::sync::Condvar);

impl Condvar {
    /// Returns a variable that nobody waits for.
    pub const fn new() -> Condvar {
        Condvar(std::sync::Condvar::new())
    }

    /// Wakes every waiting thread.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Waits until woken. May return early.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until woken, for `time` at most. May return early.
    pub fn wait_timeout<'a, T>(&self, guard: MutexGuard<'a, T>, time: Duration) -> MutexGuard<'a, T> {
        self.0.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits until the condition is false.
    pub fn wait_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        self.0.wait_while(guard, condition).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the condition is false, for `time` at most.
    pub fn wait_timeout_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        time: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        self.0.wait_timeout_while(guard, time, condition).unwrap_or_else(PoisonError::into_inner).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_that_a_thread_panicked_with_is_taken_with_what_it_left() {
        let (mutex, shared) = (Mutex::new(0), RwLock::default());
        std::thread::scope(|threads| {
            let panics = threads.spawn(|| {
                let (mut value, mut other) = (mutex.lock(), shared.write());
                (*value, *other) = (1, 2);
                panic!("as a test wants");
            });
            panics.join().unwrap_err();
        });
        assert_eq!(mutex.try_lock().as_deref(), Some(&1));
        assert_eq!(shared.try_write().as_deref(), Some(&2));
        assert_eq!(shared.try_read().as_deref(), Some(&2));
        let held = mutex.lock();
        assert!(mutex.try_lock().is_none());
        drop(Condvar::new().wait_timeout_while(held, Duration::ZERO, |_| true));
        assert_eq!((*shared.read(), mutex.into_inner()), (2, 1));
    }
}
