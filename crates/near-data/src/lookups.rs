//! Lookups: the build sides of scans' semi-joins, sent by clients in parts.
//!
//! A lookup is plain bytes until all have arrived. Then one table is made of it, for all scans that name it. It ends
//! with the connection that sent it, or when nobody has used it for a while; an open scan keeps the table until it
//! ends. Memory is charged to a budget before it is used: an estimate with the first part, more before the table is
//! made if needed, and finally the size of the table. Nobody's lookups can therefore take unbounded memory. Making a
//! table takes a while and may fail, so no lock is held meanwhile.

use crate::NearData;
use arrow_buffer::{Buffer, MutableBuffer};
use farpool_lock::Mutex;
use farpool_node::{ClientKey, Memory, fresh_handle};
use farpool_operators::JoinLookup;
use farpool_operators::run::LookupTable;
use farpool_transport::Peer;
use farpool_wire::control::*;
use farpool_wire::limits::LOOKUP_BYTES_MAX;
use farpool_wire::{Code, Handle, MonoNs, Refusal, Reply, WireError};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Limits of the bytes charged for all lookups of a node, and for those of one client.
const BUDGET_BYTES: u64 = 512 << 20;
const CLIENT_BYTES: u64 = 256 << 20;
/// Estimate of a table of keys: this many bytes for each byte that was sent. Most take less.
const KEYS_FACTOR: u64 = 8;
/// Least charge of a lookup in bytes, so that many small ones reach the limit as well.
const BYTES_MIN: u64 = 64 << 10;
/// Milliseconds after which a lookup ends if no scan has used it and no part has arrived.
const IDLE_MS: u64 = 60_000;

/// All lookups that clients have sent to a node, and the memory charged for them.
#[derive(Default)]
pub(crate) struct LookupTables {
    /// Lookups by their ids.
    open: Mutex<BTreeMap<u128, Arc<Brought>>>,
    /// Memory charged for all lookups.
    taken: Arc<Mutex<Taken>>,
}

/// Used part of the budget, which is the memory that all lookups of a node may take.
#[derive(Default)]
struct Taken {
    bytes: u64,
    /// Bytes of each client that uses any.
    of_client: BTreeMap<ClientKey, u64>,
}

/// One lookup that a client sends, in parts of its bytes.
struct Brought {
    /// Id of the connection that sends the lookup and with which it ends.
    connection: u64,
    kind: LookupKind,
    /// Number of bytes that the client has announced for all parts.
    bytes: u32,
    state: Mutex<State>,
    /// Time of the last use.
    used: Mutex<MonoNs>,
    /// Memory charged for the lookup. Fields are dropped in order, so the last field is given back after the memory is
    /// freed.
    charge: Arc<Charge>,
}

enum State {
    /// Bytes that have arrived so far.
    Coming(MutableBuffer),
    /// All bytes have arrived, and the table is being made.
    Making,
    /// Table that scans can use.
    Whole(Arc<LookupTable>),
    /// The bytes or a part were invalid.
    Bad,
}

/// Charge on the budget. Dropping it gives it back: when the lookup has ended and no scan uses it.
pub(crate) struct Charge {
    taken: Arc<Mutex<Taken>>,
    client: ClientKey,
    /// Changed with the lock of `taken` held.
    bytes: AtomicU64,
}

impl Charge {
    /// Changes the charge to `bytes`. An increase that exceeds a limit is refused and changes nothing.
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

    /// Raises the charge to at least `bytes`.
    fn reach(&self, bytes: u64) -> Result<(), Refusal> {
        if bytes > self.bytes.load(Ordering::Relaxed) { self.set(bytes) } else { Ok(()) }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        // A decrease is never refused.
        let _ = self.set(0);
    }
}

impl Brought {
    /// Makes the table. `before` is the number of bytes that had arrived before the last part. Additional memory is
    /// charged before it is used, and the surplus is given back afterwards.
    fn make(&self, bytes: Buffer, seed: u64, before: usize) -> Result<LookupTable, Refusal> {
        let mut refused = None;
        let room = |found: u64| {
            self.charge.reach(found).map_err(|refusal| {
                refused = Some(refusal);
                WireError::TooMany { what: "bytes of lookups", found, max: refusal.detail }
            })
        };
        // A panic on invalid bytes ends the lookup, not the node.
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
    /// Charges `bytes` to a client.
    fn charge(&self, client: ClientKey, bytes: u64) -> Result<Charge, Refusal> {
        let charge = Charge { taken: Arc::clone(&self.taken), client, bytes: AtomicU64::new(0) };
        charge.set(bytes).map(|()| charge)
    }

    /// Ends the lookups that nobody has used for [`IDLE_MS`].
    pub(crate) fn tidy(&self, now: MonoNs) {
        let is_over = |_: &u128, brought: &mut Arc<Brought>| {
            let mut used = brought.used.lock();
            // If a scan uses the lookup, it holds the second reference to the charge.
            if Arc::strong_count(&brought.charge) > 1 {
                *used = now;
            }
            now >= used.plus_ms(IDLE_MS)
        };
        let over: Vec<_> = self.open.lock().extract_if(.., is_over).collect();
        // Dropped without the lock, because freeing takes a while.
        drop(over);
    }

    /// Ends the lookups of a connection. Open scans keep theirs.
    pub(crate) fn end(&self, connection: u64) {
        let over: Vec<_> =
            self.open.lock().extract_if(.., |_, brought| brought.connection == connection).collect();
        // Dropped without the lock, because freeing takes a while.
        drop(over);
    }
}

impl<M: Memory> NearData<M> {
    /// Takes the next part of a lookup. The last part makes the table.
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
            let charge = Arc::new(self.lookups.charge(ClientKey::of(peer), charge)?);
            // Allocated at once, because a growing buffer may become twice as large as its contents.
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
            // An empty part is only valid for a lookup of no bytes.
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
            // The table is made without the lock. Scans that name the lookup would wait for the lock meanwhile.
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

    /// Returns the tables that a scan names, in order, and the charges that it keeps.
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
        // Dropped without the lock, because freeing takes a while.
        drop(over);
    }
}

fn of_wire(kind: LookupKind) -> JoinLookup {
    match kind {
        LookupKind::Bloom => JoinLookup::Bloom,
        LookupKind::Keys => JoinLookup::Keys,
    }
}

#[cfg(test)]
mod tests;
