//! Lookups: what semi-joins of scans look up in, brought by clients part by part.
//!
//! The idea: a lookup is bytes until all of them are here, and is made into a table once, for all scans that name it.
//! It ends with the connection that brought it, or when nobody has used it for a while; a scan that is open keeps the
//! table until it ends. Memory is taken from a budget before it is used: what a lookup may come to with its first part,
//! more, if it needs that, before its table is made, and from then on what the table takes. So nobody's lookups take
//! memory without bound, and making one, which takes a while and may go wrong, is in nobody's way.

use crate::NearData;
use arrow_buffer::{Buffer, MutableBuffer};
use farpool_lock::Mutex;
use farpool_node::{Key, Memory, fresh_handle};
use farpool_operators::Lookup;
use farpool_operators::run::LookupTable;
use farpool_transport::Peer;
use farpool_wire::control::*;
use farpool_wire::limits::LOOKUP_BYTES_MAX;
use farpool_wire::{Code, Handle, MonoNs, Refusal, Reply, WireError};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that the lookups of a node may come to, and those of one client.
const BUDGET_BYTES: u64 = 512 << 20;
const CLIENT_BYTES: u64 = 256 << 20;
/// What keys count as until they are made, for each byte that they travel in: most come to less.
const KEYS_FACTOR: u64 = 8;
/// What any lookup counts as, at least: whoever brings many small ones comes to an end as well.
const BYTES_MIN: u64 = 64 << 10;
/// A lookup that no scan has used, and of which nothing has come, for this long is over.
const IDLE_MS: u64 = 60_000;

/// The lookups of a node.
#[derive(Default)]
pub(crate) struct LookupTables {
    /// By their names.
    open: Mutex<BTreeMap<u128, Arc<Brought>>>,
    taken: Arc<Mutex<Taken>>,
}

/// What is taken of the budget.
#[derive(Default)]
struct Taken {
    bytes: u64,
    /// Of each client that has taken any.
    of_client: BTreeMap<Key, u64>,
}

/// One lookup.
struct Brought {
    connection: u64,
    kind: LookupKind,
    bytes: u32,
    state: Mutex<State>,
    /// When it was last asked for.
    used: Mutex<MonoNs>,
    /// Behind what it is for: given back when that is gone.
    charge: Arc<Charge>,
}

enum State {
    Coming(MutableBuffer),
    /// All of it is here, and its table is not.
    Making,
    Whole(Arc<LookupTable>),
    /// Its bytes were none, or one part of them was wrong.
    Bad,
}

/// A share of the budget, given back when it goes: when nobody knows the lookup, and no scan uses it.
pub(crate) struct Charge {
    taken: Arc<Mutex<Taken>>,
    client: Key,
    /// Changed with the lock of `taken` held.
    bytes: AtomicU64,
}

impl Charge {
    /// Has it be so many bytes. More of them than there is room for are refused, and change nothing.
    fn set(&self, bytes: u64) -> Result<(), Refusal> {
        let mut taken = self.taken.lock();
        let before = self.bytes.load(Ordering::Relaxed);
        let own = taken.of_client.get(&self.client).copied().unwrap_or(0) - before + bytes;
        let all = taken.bytes - before + bytes;
        if bytes > before && own > CLIENT_BYTES {
            return Err(Refusal::new(Code::LimitReached, CLIENT_BYTES));
        }
        if bytes > before && all > BUDGET_BYTES {
            return Err(Refusal::new(Code::LimitReached, BUDGET_BYTES));
        }
        match own {
            0 => taken.of_client.remove(&self.client),
            own => taken.of_client.insert(self.client.clone(), own),
        };
        taken.bytes = all;
        self.bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Has it be at least so many.
    fn reach(&self, bytes: u64) -> Result<(), Refusal> {
        if bytes > self.bytes.load(Ordering::Relaxed) { self.set(bytes) } else { Ok(()) }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        // Less is never refused.
        let _ = self.set(0);
    }
}

impl Brought {
    /// Makes a table of its bytes, of which so many had come before the last part. What that takes beyond its charge is
    /// charged before, and what it does not take given back behind it.
    fn make(&self, bytes: Buffer, seed: u64, before: usize) -> Result<LookupTable, Refusal> {
        let mut refused = None;
        let room = |found: u64| {
            self.charge.reach(found).map_err(|refusal| {
                refused = Some(refusal);
                WireError::TooMany { what: "bytes of lookups", found, max: refusal.detail }
            })
        };
        // What bytes do wrong ends their lookup, not the node.
        let kind = of_wire(self.kind);
        let made = catch_unwind(AssertUnwindSafe(|| LookupTable::from_bytes_within(kind, bytes, seed, room)));
        match made {
            Ok(Ok(made)) => {
                self.charge.set(BYTES_MIN.max(made.held_bytes() as u64))?;
                Ok(made)
            }
            Ok(Err(_)) | Err(_) => Err(refused.unwrap_or(Refusal::new(Code::BadLookup, before as u64))),
        }
    }
}

impl LookupTables {
    /// Takes so much of the budget.
    fn charge(&self, client: Key, bytes: u64) -> Result<Charge, Refusal> {
        let charge = Charge { taken: Arc::clone(&self.taken), client, bytes: AtomicU64::new(0) };
        charge.set(bytes).map(|()| charge)
    }

    /// Ends those that nobody uses.
    pub(crate) fn tidy(&self, now: MonoNs) {
        let is_over = |_: &u128, brought: &mut Arc<Brought>| {
            let mut used = brought.used.lock();
            // A scan has the other one.
            if Arc::strong_count(&brought.charge) > 1 {
                *used = now;
            }
            now >= used.plus_ms(IDLE_MS)
        };
        let over: Vec<_> = self.open.lock().extract_if(.., is_over).collect();
        // Without the lock: what they hold takes a while to go.
        drop(over);
    }

    /// Ends the lookups of a connection. Scans that are open keep theirs.
    pub(crate) fn end(&self, connection: u64) {
        let over: Vec<_> =
            self.open.lock().extract_if(.., |_, brought| brought.connection == connection).collect();
        // Without the lock: what they hold takes a while to go.
        drop(over);
    }
}

impl<M: Memory> NearData<M> {
    /// Takes the next part of a lookup. The last one makes it.
    pub(crate) fn put_lookup(&self, peer: &Peer, asked: PutLookup) -> Result<Reply, Refusal> {
        let PutLookup { lookup, kind, bytes, part } = asked;
        let bad = |come: usize| Refusal::new(Code::BadLookup, come as u64);
        if bytes as usize > LOOKUP_BYTES_MAX {
            return Err(Refusal::new(Code::LimitReached, LOOKUP_BYTES_MAX as u64));
        }
        let now = self.host.now();
        self.lookups.tidy(now);
        let (id, brought) = if lookup.0 == 0 {
            let id = fresh_handle(&*self.host)?;
            let factor = if kind == LookupKind::Keys { KEYS_FACTOR } else { 1 };
            let charge = BYTES_MIN.max(u64::from(bytes) * factor);
            let charge = Arc::new(self.lookups.charge(Key::of(peer), charge)?);
            // All of it at once: what grows is up to twice as large as what is in it.
            let state = Mutex::new(State::Coming(MutableBuffer::with_capacity(bytes as usize)));
            let (connection, used) = (peer.connection, Mutex::new(now));
            (id, Arc::new(Brought { connection, kind, bytes, charge, state, used }))
        } else {
            let known = self.lookups.open.lock().get(&lookup.0).cloned();
            (lookup, known.filter(|known| known.connection == peer.connection).ok_or(bad(0))?)
        };
        *brought.used.lock() = now;
        let (before, all) = {
            let mut state = brought.state.lock();
            let buffer = match &mut *state {
                State::Coming(buffer) => buffer,
                State::Making | State::Whole(_) => return Err(bad(brought.bytes as usize)),
                State::Bad => return Err(bad(0)),
            };
            let before = buffer.len();
            let come = before + part.len();
            let is_same = brought.kind == kind && brought.bytes == bytes;
            // A part of nothing gets nowhere, but to a lookup of no bytes.
            if !is_same || come > bytes as usize || (part.is_empty() && bytes > 0) {
                *state = State::Bad;
                drop(state);
                self.forget_lookup(id);
                return Err(bad(before));
            }
            buffer.extend_from_slice(&part);
            let all = (come == bytes as usize).then(|| std::mem::replace(buffer, MutableBuffer::new(0)));
            if all.is_some() {
                *state = State::Making;
            }
            (before, all)
        };
        if let Some(all) = all {
            // Without the lock, which scans that name it wait for.
            let made =
                fresh_handle(&*self.host).and_then(|seed| brought.make(all.into(), seed.0 as u64, before));
            let (state, refused) = match made {
                Ok(table) => (State::Whole(Arc::new(table)), None),
                Err(refusal) => (State::Bad, Some(refusal)),
            };
            *brought.state.lock() = state;
            if let Some(refusal) = refused {
                self.forget_lookup(id);
                return Err(refusal);
            }
        }
        let come = before + part.len();
        if lookup.0 == 0 {
            self.lookups.open.lock().insert(id.0, brought);
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
        let now = self.host.now();
        let known: Vec<Option<Arc<Brought>>> = {
            let open = self.lookups.open.lock();
            asked.iter().map(|id| open.get(&id.0).cloned()).collect()
        };
        let of = |(number, brought): (usize, Option<Arc<Brought>>)| {
            let brought = brought.ok_or(none(number))?;
            *brought.used.lock() = now;
            match &*brought.state.lock() {
                State::Whole(table) => Ok((Arc::clone(table), Arc::clone(&brought.charge))),
                State::Coming(_) | State::Making | State::Bad => Err(none(number)),
            }
        };
        known.into_iter().enumerate().map(of).collect()
    }

    pub(crate) fn drop_lookup(&self, id: Handle) -> Result<Reply, Refusal> {
        self.forget_lookup(id);
        Ok(Reply::DropLookup(Done {}))
    }

    fn forget_lookup(&self, id: Handle) {
        let over = self.lookups.open.lock().remove(&id.0);
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

#[cfg(test)]
mod tests;
