//! Lookups: what semi-joins of scans look up in, brought by clients part by part.
//!
//! The idea: a lookup is bytes until all of them are here, and is made into a table once, for all scans that name it. It
//! ends with the connection that brought it; a scan that is open keeps the table until it ends. What each may come to
//! is taken from a budget before its first byte is kept, so that nobody's lookups take memory without bound.

use crate::memory::Memory;
use crate::service::NodeService;
use arrow_buffer::{Buffer, MutableBuffer};
use farpool_operators::Lookup;
use farpool_operators::run::LookupTable;
use farpool_wire::control::*;
use farpool_wire::limits::LOOKUP_BYTES_MAX;
use farpool_wire::{Code, Handle, Refusal, Reply};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that the lookups of a node may come to, and those of one connection.
const BUDGET_BYTES: u64 = 512 << 20;
const CONNECTION_BYTES: u64 = 256 << 20;
/// What keys may come to, for each byte that they travel in: the table of them, and what it is made of meanwhile.
const KEYS_FACTOR: u64 = 8;
/// What any lookup counts as, at least: whoever brings many small ones comes to an end as well.
const BYTES_MIN: u64 = 64 << 10;

/// The lookups of a node.
#[derive(Default)]
pub(crate) struct LookupTables {
    /// By their names.
    open: Mutex<BTreeMap<u128, Arc<Brought>>>,
    taken: Arc<AtomicU64>,
}

/// One lookup.
struct Brought {
    connection: u64,
    kind: LookupKind,
    bytes: u32,
    charge: Arc<Charge>,
    state: Mutex<State>,
}

enum State {
    Coming(MutableBuffer),
    Whole(Arc<LookupTable>),
    /// Its bytes were none, or one part of them was wrong.
    Bad,
}

/// A share of the budget, given back when it goes.
pub(crate) struct Charge {
    taken: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LookupTables {
    /// Takes so much of the budget.
    fn charge(&self, connection: u64, bytes: u64) -> Result<Charge, Refusal> {
        let open = locked(&self.open);
        let own = open.values().filter(|brought| brought.connection == connection);
        let own: u64 = own.map(|brought| brought.charge.bytes).sum();
        if own + bytes > CONNECTION_BYTES {
            return Err(Refusal::new(Code::LimitReached, CONNECTION_BYTES));
        }
        let taken = self.taken.fetch_add(bytes, Ordering::Relaxed);
        let charge = Charge { taken: Arc::clone(&self.taken), bytes };
        // Given back at once if it is too much.
        if taken + bytes > BUDGET_BYTES {
            Err(Refusal::new(Code::LimitReached, BUDGET_BYTES))
        } else {
            Ok(charge)
        }
    }

    /// Ends the lookups of a connection. Scans that are open keep theirs.
    pub(crate) fn end(&self, connection: u64) {
        let over: Vec<_> =
            locked(&self.open).extract_if(.., |_, brought| brought.connection == connection).collect();
        // Without the lock: what they hold takes a while to go.
        drop(over);
    }
}

impl<M: Memory> NodeService<M> {
    /// Takes the next part of a lookup. The last one makes it.
    pub(crate) fn put_lookup(&self, connection: u64, asked: PutLookup) -> Result<Reply, Refusal> {
        let PutLookup { lookup, kind, bytes, part } = asked;
        let bad = |come: usize| Refusal::new(Code::BadLookup, come as u64);
        if bytes as usize > LOOKUP_BYTES_MAX {
            return Err(Refusal::new(Code::LimitReached, LOOKUP_BYTES_MAX as u64));
        }
        let (id, brought) = if lookup.0 == 0 {
            let id = self.fresh_handle()?;
            let factor = if kind == LookupKind::Keys { KEYS_FACTOR } else { 1 };
            let charge = self.lookups.charge(connection, BYTES_MIN.max(u64::from(bytes) * factor))?;
            let state = Mutex::new(State::Coming(MutableBuffer::new(0)));
            (id, Arc::new(Brought { connection, kind, bytes, charge: Arc::new(charge), state }))
        } else {
            let known = locked(&self.lookups.open).get(&lookup.0).cloned();
            (lookup, known.filter(|known| known.connection == connection).ok_or(bad(0))?)
        };
        let come = {
            let mut state = locked(&brought.state);
            let State::Coming(buffer) = &mut *state else { return Err(bad(0)) };
            let come = buffer.len() + part.len();
            let is_same = brought.kind == kind && brought.bytes == bytes;
            // A part of nothing gets nowhere, but to a lookup of no bytes.
            if !is_same || come > bytes as usize || (part.is_empty() && bytes > 0) {
                *state = State::Bad;
                drop(state);
                self.forget_lookup(id);
                return Err(bad(come));
            }
            buffer.extend_from_slice(&part);
            if come == bytes as usize {
                let whole = Buffer::from(std::mem::replace(buffer, MutableBuffer::new(0)));
                *state = State::Bad;
                let made = LookupTable::from_bytes(of_wire(kind), whole, self.fresh_handle()?.0 as u64);
                let Ok(made) = made else {
                    drop(state);
                    self.forget_lookup(id);
                    return Err(bad(come));
                };
                *state = State::Whole(Arc::new(made));
            }
            come
        };
        if lookup.0 == 0 {
            locked(&self.lookups.open).insert(id.0, brought);
        }
        Ok(Reply::PutLookup(LookupPut { lookup: id, bytes: come as u32 }))
    }

    /// What a scan looks up in, by number, and what of the budget that keeps.
    #[allow(clippy::type_complexity)] // two lists of the same order
    pub(crate) fn lookups_of(
        &self,
        asked: &[Handle],
    ) -> Result<(Vec<Arc<LookupTable>>, Vec<Arc<Charge>>), Refusal> {
        let none = |number: usize| Refusal::new(Code::BadLookup, number as u64);
        let known: Vec<Option<Arc<Brought>>> = {
            let open = locked(&self.lookups.open);
            asked.iter().map(|id| open.get(&id.0).cloned()).collect()
        };
        let of = |(number, brought): (usize, Option<Arc<Brought>>)| {
            let brought = brought.ok_or(none(number))?;
            match &*locked(&brought.state) {
                State::Whole(table) => Ok((Arc::clone(table), Arc::clone(&brought.charge))),
                State::Coming(_) | State::Bad => Err(none(number)),
            }
        };
        known.into_iter().enumerate().map(of).collect()
    }

    pub(crate) fn drop_lookup(&self, id: Handle) -> Result<Reply, Refusal> {
        self.forget_lookup(id);
        Ok(Reply::DropLookup(Done {}))
    }

    fn forget_lookup(&self, id: Handle) {
        let over = locked(&self.lookups.open).remove(&id.0);
        // Without the lock: what it holds takes a while to go.
        drop(over);
    }
}

fn of_wire(kind: LookupKind) -> Lookup {
    match kind {
        LookupKind::Bloom => Lookup::Bloom,
        LookupKind::Keys => Lookup::Keys,
    }
}
