//! Group table: a hash table whose slots hold a key of one or two words, with the accumulators of the group beside
//! it.
//!
//! Picture a post office with numbered boxes. The hash of a key names the box where the key most likely is. The table
//! takes a block of 256 rows at once and first looks only there, for all rows. In tables beyond the near caches it
//! does so without a branch that depends on what it finds. So memory answers many reads at the same time, and the CPU
//! mispredicts nothing. Only rows whose key was not there are looked at again, and all of those take one step before
//! any takes the next. Boxes (slots) lie in buckets of four, word by word: first the four keys, then their four first
//! accumulators, and so on. So one read brings all keys of a bucket, and small slots share a cache line with them.
//!
//! A new key gets a slot while there is room, and a table that fills up grows. In the bad case the table of a run may
//! hold no more. Then each row with an unknown key gets a *spare* slot, which leaves after the block as a partial
//! group. One of sixteen such rows evicts a group that is held and takes its place. So a frequent key soon has a
//! slot, and keys that occur once evict little. Emptying the whole table when it is full would lose the frequent keys
//! again and again. Counting how often each group is met, to evict the rarest, would cost a write per row.
//! docs/decisions/0016-grouping.md has the measurements and what else was rejected.

mod key;

pub(super) use key::Key;

use crate::run::hash::{fold, mixed};
/// `BLOCK_ROWS` is the number of rows of a block: all that they touch stays in the first-level cache until it is
/// added up. `LANES` is the number of slots of a bucket.
pub(super) use farpool_kernels::{BLOCK_ROWS, LANES};
use farpool_kernels::{COPIES, KeyTable, SecretHasher, Sums, TableShape, find_and_add, zeroed};
use std::hint::black_box;

/// Buckets that a probe visits before it gives up. At half load all but one key in billions lies within 16 buckets.
const PROBES_MAX: usize = 16;
/// Slots of an empty table.
const SLOTS_MIN: usize = 1_024;
/// One of this many rows without a slot evicts a held group and takes its slot.
const EVICT_ONE_IN: usize = 16;
/// Most slots that are visited to find a group to evict.
const VICTIMS_MAX: usize = 64;
/// Tables of up to `SPARSE_BYTES` use one slot in sixteen, those of up to `LOOSE_BYTES` one in four, larger ones one
/// in two.
const SPARSE_BYTES: usize = 256 << 10;
const LOOSE_BYTES: usize = 8 << 20;
/// Most bytes of a table of bounded size that gets more slots than twice its groups, to be faster.
const BOUNDED_BYTES: usize = 1 << 20;
/// Bytes of a table from which on the slots of a block are read once in advance, in the loops that use no kernel.
const NEAR_BYTES: usize = 8 << 20;
/// Most bytes of a table for which sums are added to copies of it in turn. With so few groups, rows of one group would
/// otherwise wait for each other's stores.
const COPIED_BYTES: usize = 16 << 10;
/// Words of padding behind each copy. The CPU compares loads and stores by the low bits of their addresses, so the
/// same slot of two copies must differ in those.
const APART_WORDS: usize = 24;
/// Bytes that the second-level cache holds. Buckets of larger tables are prefetched one block ahead.
const L2_BYTES: usize = 1 << 20;
/// Bytes of a cache line. The first bucket begins on one.
const LINE_BYTES: usize = 64;

/// Place of each row of a block: the position of its slot's first word in the table.
pub(super) type Places = [u32; BLOCK_ROWS];

/// Limits of what a table may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Groups at most.
    pub(super) groups_max: usize,
    /// Bytes of slots at most. Two buckets are permitted even if they take more.
    pub(super) bytes_max: usize,
    /// True in a merge: all keys must be held. The table of a run outputs groups early instead.
    pub(super) holds_all: bool,
}

/// Group table. The word at a place is the first of a slot; the others follow [`LANES`] words apart.
#[derive(Debug)]
pub(super) struct GroupTable<const K: usize> {
    /// Slots of all buckets, and behind them the spare slots of a block.
    words: Vec<u64>,
    /// Words before the first bucket, so that it begins on a cache line.
    before: usize,
    buckets: usize,
    buckets_max: usize,
    /// `width` is the words of a slot. `stride` is the words of a bucket: a power of two, so that some bits of a hash
    /// are the place.
    width: usize,
    stride: usize,
    /// Accumulator words of a new slot.
    initial: Vec<u64>,
    /// Words that keys are XORed with in the table. A masked key of all zeros means a free slot.
    masks: [u64; K],
    multiplier: u64,
    /// Hasher for keys of one word.
    hasher: SecretHasher,
    seed: u64,
    held: usize,
    /// Most groups that may be held.
    held_max: usize,
    room: Room,
    /// Sums that are not yet added to the table: [`COPIES`] copies of its words. All zero after
    /// [`GroupTable::add_copies`].
    copies: Vec<u64>,
    has_copies: bool,
    /// Spare slots in use by the present block.
    spares: usize,
    /// Rows so far that found no slot; every sixteenth evicts a group.
    without_place: usize,
    /// Number of the slot that was visited last for an eviction (a clock hand).
    hand: usize,
}

#[inline(always)]
fn mask<const K: usize, T: Key<K>>(key: T, masks: [u64; K]) -> [u64; K] {
    let mut words = key.words();
    (0..K).for_each(|word| words[word] ^= masks[word]);
    words
}

/// Multiplies each word by a secret number and XORs the two halves of the product.
#[inline(always)]
fn hash<const K: usize>(masked: [u64; K], multiplier: u64) -> u64 {
    let mut hash = 0;
    for word in masked {
        let product = u128::from(hash ^ word) * u128::from(multiplier);
        hash = (product as u64) ^ ((product >> 64) as u64);
    }
    hash
}

/// Reason why a block must be looked up again after the table is rebuilt.
enum Again {
    /// A masked key is all zeros and looks like a free slot.
    Hidden,
    /// A key finds no slot within [`PROBES_MAX`] buckets.
    Crowded,
}

impl<const K: usize> GroupTable<K> {
    /// Makes an empty table for accumulators that begin with the words `initial`.
    pub(super) fn new(initial: Vec<u64>, room: Room, seed: u64) -> GroupTable<K> {
        let mut slots = GroupTable {
            words: Vec::new(),
            before: 0,
            buckets: 0,
            buckets_max: 0,
            width: K + initial.len(),
            stride: (K + initial.len()).next_power_of_two() * LANES,
            initial,
            masks: [0; K],
            multiplier: 0,
            hasher: SecretHasher::new([0; 6]),
            seed,
            held: 0,
            held_max: 0,
            room,
            copies: Vec::new(),
            has_copies: false,
            spares: 0,
            without_place: 0,
            hand: 0,
        };
        slots.reseed();
        slots.bound();
        slots.lay_out((SLOTS_MIN / LANES).min(slots.buckets_max));
        slots
    }

    /// Returns the number of groups that are held.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Computes the limits of groups and buckets from the width of a slot.
    fn bound(&mut self) {
        let slot_bytes = self.stride / LANES * 8;
        // Half of the slots stay free, to keep probes short.
        let fitting = (self.room.bytes_max / slot_bytes).checked_ilog2().map_or(0, |bits| (1 << bits) / 2);
        self.held_max = self.room.groups_max.min(fitting).max(1);
        let mut buckets = (self.held_max * 2).next_power_of_two().div_ceil(LANES).max(2);
        // A table of few groups gets more slots than it needs, which makes it faster.
        while self.used_max(buckets) < self.held_max
            && buckets * 2 * LANES * slot_bytes <= self.room.bytes_max.min(BOUNDED_BYTES)
        {
            buckets *= 2;
        }
        self.buckets_max = buckets;
    }

    /// Returns the number of used slots from which on a table of this many buckets grows.
    fn used_max(&self, buckets: usize) -> usize {
        let slots = buckets * LANES;
        match buckets * self.stride * 8 {
            0..=SPARSE_BYTES => slots / 16,
            bytes if bytes <= LOOSE_BYTES => slots / 4,
            _ => slots / 2,
        }
    }

    fn reseed(&mut self) {
        self.seed = fold(self.seed, !self.seed.rotate_left(11));
        let mut state = self.seed;
        for mask in &mut self.masks {
            state = mixed(state);
            *mask = state;
        }
        self.multiplier = mixed(state) | 1;
        let mut secret = [self.masks[0], 0, self.multiplier, 0, 0, 0];
        for word in [1, 3, 4, 5] {
            state = mixed(state ^ self.multiplier);
            secret[word] = state;
        }
        self.hasher = SecretHasher::new(secret);
    }

    /// Replaces the table by an empty one of this many buckets.
    fn lay_out(&mut self, buckets: usize) {
        let length = (buckets + BLOCK_ROWS / LANES) * self.stride;
        self.words = zeroed(length + LINE_BYTES / 8);
        self.before = match self.words.as_ptr().align_offset(LINE_BYTES) {
            before if before < LINE_BYTES / 8 => before,
            _ => 0,
        };
        self.buckets = buckets;
        self.held = 0;
        self.spares = 0;
        self.hand = 0;
        // Slot 0 holds a stopper and never a group. A masked key of all zeros looks like a free slot, and the product
        // hash sends it to slot 0: there the stopper keeps it from being found. The stopper's own home is another
        // bucket, so no key that is looked up in slot 0 equals it.
        let stopper = |number: &u64| self.home([*number; K]).0 != 0;
        let stopper = (1..).find(stopper).unwrap_or(1);
        let table = &mut self.words[self.before..];
        (0..K).for_each(|word| table[word * LANES] = stopper);
    }

    /// Returns the first bucket that a masked key is looked up in, and the slot in it that is tried first.
    #[inline(always)]
    fn home(&self, masked: [u64; K]) -> (usize, usize) {
        let hash = match K {
            1 => self.hasher.hash(masked[0]),
            _ => hash(masked, self.multiplier),
        };
        ((hash as usize >> self.stride.trailing_zeros()) & (self.buckets - 1), hash as usize % LANES)
    }

    /// Finds or makes the places of up to [`BLOCK_ROWS`] keys. They stay valid until the next call. `ahead` are the
    /// keys that probably come next: kernels prefetch their buckets if the table is too large for the second-level
    /// cache.
    pub(super) fn find<T: Key<K>>(&mut self, keys: &[T], ahead: &[T], places: &mut Places) {
        if self.held > self.used_max(self.buckets) && self.buckets < self.buckets_max {
            self.grow();
        }
        while let Err(again) = self.try_find(keys, ahead, places) {
            // Spare slots so far are for rows of this block, which are all looked up again.
            self.spares = 0;
            match again {
                Again::Hidden => self.rebuild(self.buckets),
                Again::Crowded if self.buckets < self.buckets_max => self.grow(),
                Again::Crowded => self.rebuild(self.buckets),
            }
        }
    }

    /// Finds or makes the slots of keys like [`GroupTable::find`], and adds the values to their only accumulator, a
    /// sum. Returns false, with nothing done, if no kernel does that. [`GroupTable::add_copies`] must be called before
    /// any other use of the table.
    pub(super) fn find_and_add<T: Key<K>>(&mut self, keys: &[T], ahead: &[T], values: &[i64]) -> bool {
        let (Some(short), Some(ahead), true) = (T::short(keys), T::short(ahead), self.hasher.is_aes()) else {
            return false;
        };
        if self.initial != [0] || keys.len() != values.len() {
            return false;
        }
        if self.held > self.used_max(self.buckets) && self.buckets < self.buckets_max {
            self.add_copies();
            self.grow();
        }
        let bytes = self.buckets * self.stride * 8;
        let length = self.buckets * self.stride;
        self.has_copies = bytes <= COPIED_BYTES;
        self.copies.resize(if self.has_copies { COPIES * (length + APART_WORDS) } else { 0 }, 0);
        let (mut places, mut others) = ([0; BLOCK_ROWS], [0; BLOCK_ROWS]);
        let count = find_and_add(
            &mut self.words[self.before..],
            TableShape { buckets: self.buckets, stride: self.stride, hasher: &self.hasher },
            short,
            if bytes > L2_BYTES { ahead } else { &[] },
            Sums { values, copies: &mut self.copies },
            &mut places,
            &mut others,
        );
        if count > 0 {
            self.add_copies();
            let (mut rest, mut rest_places) = ([keys[0]; BLOCK_ROWS], [0; BLOCK_ROWS]);
            let others = &others[..count];
            rest.iter_mut().zip(others).for_each(|(key, row)| *key = keys[usize::from(*row)]);
            self.find(&rest[..count], &[], &mut rest_places);
            let words = self.word_accumulators();
            for (row, place) in others.iter().zip(rest_places) {
                let word = &mut words[place as usize];
                *word = word.wrapping_add(values[usize::from(*row)] as u64);
            }
        }
        true
    }

    /// Adds the sums in the copies to the table and zeroes the copies.
    pub(super) fn add_copies(&mut self) {
        if !std::mem::take(&mut self.has_copies) {
            return;
        }
        let length = self.buckets * self.stride;
        let table = &mut self.words[self.before..][..length];
        for copy in self.copies.chunks_exact_mut(length + APART_WORDS) {
            for (word, copied) in table.iter_mut().zip(copy) {
                *word = word.wrapping_add(std::mem::take(copied));
            }
        }
    }

    fn try_find<T: Key<K>>(&mut self, keys: &[T], ahead: &[T], places: &mut Places) -> Result<(), Again> {
        let mut others = [0u8; BLOCK_ROWS];
        // If nearly all rows are found at once and the table is in a near cache, a branch costs less than going
        // without.
        let bytes = self.buckets * self.stride * 8;
        let count = match bytes <= SPARSE_BYTES {
            _ if let (Some(keys), Some(ahead), true) =
                (T::short(keys), T::short(ahead), self.hasher.is_aes()) =>
            {
                let table =
                    KeyTable::new(&self.words[self.before..], self.buckets, self.stride, &self.hasher);
                let ahead = if bytes > L2_BYTES { ahead } else { &[] };
                farpool_kernels::find(&table, keys, ahead, places, &mut others)
            }
            true => self.look::<T, true>(keys, places, &mut others),
            false => self.look::<T, false>(keys, places, &mut others),
        };
        let mut strangers = [0u8; BLOCK_ROWS];
        let count = self.settle(keys, places, &mut others, count, &mut strangers);
        for row in &strangers[..count] {
            let row = usize::from(*row);
            places[row] = self.place(mask(keys[row], self.masks))? as u32;
        }
        Ok(())
    }

    /// Looks up the rows of `others` in their whole bucket. A key that is not in it, while the bucket has no free
    /// slot, is looked up in the next bucket, and so on. All rows take one step before any takes the next. Writes the
    /// rows whose keys are not held to `strangers` and returns their number.
    fn settle<T: Key<K>>(
        &self,
        keys: &[T],
        places: &mut Places,
        others: &mut [u8; BLOCK_ROWS],
        count: usize,
        strangers: &mut [u8; BLOCK_ROWS],
    ) -> usize {
        let table = &self.words[self.before..];
        let place_mask = (self.buckets - 1) * self.stride;
        let (mut count, mut stranger_count) = (count, 0usize);
        for probe in 0..PROBES_MAX {
            let mut rest = 0usize;
            for number in 0..count.min(BLOCK_ROWS) {
                let row = usize::from(others[number]);
                let masked = mask(keys[row], self.masks);
                let start = places[row] as usize & place_mask;
                let held = &table[start..start + K * LANES];
                let (mut lane, mut is_free) = (LANES, false);
                for at in 0..LANES {
                    let (mut differs, mut bits) = (held[at] ^ masked[0], held[at]);
                    if K == 2 {
                        differs |= held[at + LANES] ^ masked[K - 1];
                        bits |= held[at + LANES];
                    }
                    lane = if differs == 0 { at } else { lane };
                    is_free |= bits == 0;
                }
                // A masked key of all zeros equals a free slot, and slot 0 holds the stopper: neither is a match.
                let is_held = lane < LANES && masked != [0; K] && start + lane > 0;
                places[row] = if is_held { start + lane } else { (start + self.stride) & place_mask } as u32;
                let ends = is_free || probe + 1 == PROBES_MAX;
                strangers[stranger_count & (BLOCK_ROWS - 1)] = row as u8;
                stranger_count += usize::from(!is_held && ends);
                others[rest & (BLOCK_ROWS - 1)] = row as u8;
                rest += usize::from(!is_held && !ends);
            }
            count = rest;
            if count == 0 {
                break;
            }
        }
        stranger_count.min(BLOCK_ROWS)
    }

    /// Looks up each key in the one slot where it most likely is, with a branch for each row if `BRANCHES`. Writes the
    /// rows that did not match to `others` and returns their number.
    fn look<T: Key<K>, const BRANCHES: bool>(
        &self,
        keys: &[T],
        places: &mut Places,
        others: &mut [u8; BLOCK_ROWS],
    ) -> usize {
        let (masks, multiplier) = (self.masks, self.multiplier);
        let place_mask = ((self.buckets - 1) * self.stride) | (LANES - 1);
        let table = &self.words[self.before..];
        let rows = keys.len().min(BLOCK_ROWS);
        let (keys, places) = (&keys[..rows], &mut places[..rows]);
        if self.buckets * self.stride * 8 > NEAR_BYTES {
            // No read depends on another here, so the CPU has as many under way as it can.
            for row in 0..rows {
                places[row] = (hash(mask(keys[row], masks), multiplier) as usize & place_mask) as u32;
            }
            black_box(places.iter().fold(0, |bits, place| bits | table[*place as usize]));
        }
        let mut count = 0usize;
        for row in 0..rows {
            let masked = mask(keys[row], masks);
            let place = hash(masked, multiplier) as usize & place_mask;
            places[row] = place as u32;
            let mut differs = table[place] ^ masked[0];
            if K == 2 {
                differs |= table[place.wrapping_add(LANES)] ^ masked[K - 1];
            }
            if !BRANCHES {
                others[count & (BLOCK_ROWS - 1)] = row as u8;
                count = count.wrapping_add(usize::from(differs != 0));
            } else if differs != 0 {
                others[count & (BLOCK_ROWS - 1)] = row as u8;
                count = count.wrapping_add(1);
            }
        }
        count.min(BLOCK_ROWS)
    }

    /// Returns the place of a masked key that no bucket had: a new slot, or a spare one. An earlier row of the block
    /// may have made it.
    fn place(&mut self, masked: [u64; K]) -> Result<usize, Again> {
        if self.room.holds_all && masked == [0; K] {
            return Err(Again::Hidden);
        }
        // A full table is not searched: the key is not in it. The key that looks like a free slot can never be held.
        if !self.room.holds_all && (self.held >= self.held_max || masked == [0; K]) {
            return Ok(self.spare(masked));
        }
        let (place, is_held) = match self.search(&masked) {
            Some(found) => found,
            None if self.room.holds_all => return Err(Again::Crowded),
            None => return Ok(self.spare(masked)),
        };
        if is_held {
            return Ok(place);
        }
        self.held += 1;
        self.fill(place, masked);
        Ok(place)
    }

    /// Returns the place of a masked key and true, or the free place where it may go and false. `None` if neither is
    /// within [`PROBES_MAX`] buckets.
    #[inline]
    fn search(&self, masked: &[u64; K]) -> Option<(usize, bool)> {
        let table = &self.words[self.before..];
        let stride = self.stride;
        let (mut bucket, lane) = self.home(*masked);
        for _ in 0..PROBES_MAX.min(self.buckets) {
            let start = bucket * stride;
            let keys = &table[start..start + K * LANES];
            let is = |lane: usize, key: &[u64; K]| {
                keys[lane] == key[0] && (K == 1 || keys[(K - 1) * LANES + lane] == key[K - 1])
            };
            let lanes = [lane, (lane + 1) % LANES, (lane + 2) % LANES, (lane + 3) % LANES];
            if let Some(lane) = lanes.into_iter().find(|lane| is(*lane, masked) && start + lane > 0) {
                return Some((start + lane, true));
            }
            if let Some(lane) = lanes.into_iter().find(|lane| is(*lane, &[0; K])) {
                return Some((start + lane, false));
            }
            bucket = (bucket + 1) & (self.buckets - 1);
        }
        None
    }

    /// Returns the free place for a masked key that is not in the table. `None` if none is in reach, or the key looks
    /// like a free slot.
    fn free_place(&self, masked: [u64; K]) -> Option<usize> {
        let (home, lane) = self.home(masked);
        let places = (0..PROBES_MAX.min(self.buckets)).flat_map(|probe| {
            let start = ((home + probe) & (self.buckets - 1)) * self.stride;
            (0..LANES).map(move |step| start + (lane + step) % LANES)
        });
        if masked == [0; K] { None } else { places.into_iter().find(|place| self.key_at(*place) == [0; K]) }
    }

    fn fill(&mut self, place: usize, masked: [u64; K]) {
        let slot = &mut self.words[self.before + place..];
        masked.iter().chain(&self.initial).enumerate().for_each(|(word, value)| slot[word * LANES] = *value);
    }

    /// Returns a spare slot for a row. Each row gets its own, because spare slots are output before the next block.
    fn spare(&mut self, masked: [u64; K]) -> usize {
        let place = self.spare_place(self.spares);
        self.spares += 1;
        self.fill(place, masked);
        place
    }

    fn spare_place(&self, number: usize) -> usize {
        (self.buckets + number / LANES) * self.stride + number % LANES
    }

    /// Returns the accumulator words, to be indexed by places: the word at a place is the slot's first, the others
    /// follow [`LANES`] words apart.
    pub(super) fn word_accumulators(&mut self) -> &mut [u64] {
        &mut self.words[self.before + K * LANES..]
    }

    /// Reports whether one more block could exceed the groups of a table that must hold all.
    pub(super) fn is_full(&self) -> bool {
        self.room.holds_all && self.held + BLOCK_ROWS > self.held_max
    }

    /// Reports whether the table takes no more groups, so that rows of new keys are output as partial groups.
    pub(super) fn is_bounded(&self) -> bool {
        !self.room.holds_all && self.held >= self.held_max
    }

    /// Returns the limit of groups.
    pub(super) fn held_max(&self) -> usize {
        self.held_max
    }

    /// Appends the words of the spare slots to `leaving`, slot by slot. Some of them first change places with a held
    /// group, whose words are appended instead.
    pub(super) fn leave_spares(&mut self, leaving: &mut Vec<u64>) {
        for number in 0..self.spares {
            let place = self.spare_place(number);
            self.without_place = self.without_place.wrapping_add(1);
            if self.without_place.is_multiple_of(EVICT_ONE_IN) {
                self.evict(place);
            }
            self.copy_out(place, leaving);
        }
        self.spares = 0;
    }

    /// Exchanges a spare slot with a group. If the evicted group was in another bucket, its slot is free then, and
    /// probes that end there no longer find keys beyond it. Such a key gets a second group, and both are output as
    /// partial groups, to be merged.
    fn evict(&mut self, spare: usize) {
        let masked = self.key_at(spare);
        let (bucket, lane) = self.home(masked);
        let start = bucket * self.stride;
        let lanes = [lane, (lane + 1) % LANES, (lane + 2) % LANES, (lane + 3) % LANES];
        // Either an earlier row of the block already put this key here, or the key is all zeros and equals the free
        // slots.
        if lanes.iter().any(|lane| self.key_at(start + lane) == masked) {
            return;
        }
        let free = lanes.iter().find(|lane| self.key_at(start + **lane) == [0; K]);
        let place = start + free.copied().unwrap_or(self.without_place / EVICT_ONE_IN % LANES);
        let victim = match free {
            None => Some(place).filter(|place| *place > 0),
            Some(_) => self.next_held(),
        };
        let Some(victim) = victim else { return };
        for word in 0..self.width {
            let table = &mut self.words[self.before + word * LANES..];
            let value = std::mem::take(&mut table[victim]);
            table[place] = std::mem::replace(&mut table[spare], value);
        }
    }

    /// Returns the place of the next group in table order, from where the last call stopped. `None` if the next
    /// [`VICTIMS_MAX`] slots are free.
    fn next_held(&mut self) -> Option<usize> {
        for _ in 0..VICTIMS_MAX {
            self.hand = (self.hand + 1) % (self.buckets * LANES);
            let place = self.hand / LANES * self.stride + self.hand % LANES;
            if place > 0 && self.key_at(place) != [0; K] {
                return Some(place);
            }
        }
        None
    }

    fn key_at(&self, place: usize) -> [u64; K] {
        let slot = &self.words[self.before + place..];
        std::array::from_fn(|word| slot[word * LANES])
    }

    /// Returns the key at a place.
    pub(super) fn key<T: Key<K>>(&self, place: u32) -> T {
        let masked = self.key_at(place as usize);
        T::from_words(std::array::from_fn(|word| masked[word] ^ self.masks[word]))
    }

    fn copy_out(&self, place: usize, to: &mut Vec<u64>) {
        let slot = &self.words[self.before + place..];
        to.extend((0..self.width).map(|word| match self.masks.get(word) {
            Some(mask) => slot[word * LANES] ^ mask,
            None => slot[word * LANES],
        }));
    }

    /// Returns one word of the accumulators at each of these places.
    pub(super) fn accumulators(&self, places: &[u32], word: usize) -> Vec<u64> {
        let table = &self.words[self.before + (K + word) * LANES..];
        places.iter().map(|place| table[*place as usize]).collect()
    }

    /// Returns the places of all groups that are held.
    pub(super) fn places(&self) -> Vec<u32> {
        let stride = self.stride;
        let mut places = Vec::with_capacity(self.held);
        for start in (0..self.buckets * stride).step_by(stride) {
            for lane in start..start + LANES {
                if self.key_at(lane) != [0; K] && lane > 0 {
                    places.push(lane as u32);
                }
            }
        }
        places
    }

    /// Returns all keys that are held, with their places.
    pub(super) fn pairs<T: Key<K>>(&self) -> Vec<(T, u32)> {
        self.places().into_iter().map(|place| (self.key(place), place)).collect()
    }

    fn grow(&mut self) {
        let is_small = self.buckets * self.stride * 8 * 4 <= LOOSE_BYTES;
        let buckets = (self.buckets * if is_small { 4 } else { 2 }).min(self.buckets_max);
        self.rebuild(buckets);
    }

    /// Moves the groups to a table of this many buckets. If the number of buckets grew, the seed stays, and groups
    /// move in the order of memory. Otherwise, and whenever a key finds no slot, a new seed is chosen. Every fourth
    /// try doubles the buckets.
    fn rebuild(&mut self, buckets: usize) {
        let places = self.places();
        let (masks, before, is_grown) = (self.masks, self.before, buckets > self.buckets);
        let old = std::mem::take(&mut self.words);
        let mut buckets = buckets;
        let mut tries = 0;
        'anew: loop {
            if !is_grown || tries > 0 {
                self.reseed();
            }
            tries += 1;
            if tries % 4 == 0 {
                buckets *= 2;
            }
            self.lay_out(buckets);
            for place in &places {
                let from = &old[before + *place as usize..];
                let masked = std::array::from_fn(|word| from[word * LANES] ^ masks[word] ^ self.masks[word]);
                let Some(at) = self.free_place(masked) else { continue 'anew };
                let to = &mut self.words[self.before + at..];
                (0..K).for_each(|word| to[word * LANES] = masked[word]);
                (K..self.width).for_each(|word| to[word * LANES] = from[word * LANES]);
                self.held += 1;
            }
            return;
        }
    }

    /// Takes the groups of another table. `key` converts a key; `widen` writes the new accumulator words of a group
    /// from its old ones.
    pub(super) fn take<const L: usize, S: Key<L>, T: Key<K>>(
        &mut self,
        from: &GroupTable<L>,
        key: impl Fn(S) -> T,
        widen: impl Fn(&[u64], &mut [u64]),
    ) {
        let (mut places, mut old, mut new) = ([0; BLOCK_ROWS], vec![0; from.width - L], self.initial.clone());
        for block in from.places().chunks(BLOCK_ROWS) {
            let keys: Vec<T> = block.iter().map(|place| key(from.key(*place))).collect();
            self.find(&keys, &[], &mut places);
            for (from_place, place) in block.iter().zip(&places) {
                let slot = &from.words[from.before + *from_place as usize + L * LANES..];
                old.iter_mut().enumerate().for_each(|(word, value)| *value = slot[word * LANES]);
                widen(&old, &mut new);
                let slot = &mut self.words[self.before + *place as usize + K * LANES..];
                new.iter().enumerate().for_each(|(word, value)| slot[word * LANES] = *value);
            }
        }
    }

    /// Drops all groups.
    pub(super) fn clear(&mut self) {
        self.reseed();
        self.lay_out((SLOTS_MIN / LANES).min(self.buckets_max));
    }
}

#[cfg(test)]
mod tests;
