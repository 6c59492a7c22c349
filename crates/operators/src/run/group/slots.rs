//! A table whose slots hold a key of one or two words and its accumulators beside it.
//!
//! The idea: rows are looked up a block at a time. The first pass reads one word for each row, where its key most
//! likely is, without a branch that depends on it: memory answers many reads at once, and nothing is mispredicted.
//! Only rows that were not there are looked at again. Slots lie in buckets of four, word by word, so that the keys of a
//! bucket are read together and small slots share a cache line with them.
//!
//! A table that may hold no more gives a row a *spare* slot, which leaves behind the block. One of sixteen such rows
//! takes the place of a group that is held: a key that is frequent soon stays, and keys that occur once do not displace
//! it.

use crate::run::hash::{fold, mixed};
/// Rows of a block, what they touch stays in the nearest cache until they are added up; and slots of a bucket.
pub(super) use farpool_kernels::{BLOCK_ROWS, LANES};
use farpool_kernels::{COPIES, Hasher, Shape, Sums, Table, find_and_add, zeroed};
use std::hint::black_box;

/// Buckets that a probe looks at. At half load the keys of one bucket are within 16 in all but one of billions.
const PROBES_MAX: usize = 16;
/// Slots at first.
const SLOTS_MIN: usize = 1_024;
/// Of how many rows without a place one displaces a group.
const DISPLACING: usize = 16;
/// Slots that are looked at for a group to displace.
const VICTIMS_MAX: usize = 64;
/// Bytes of tables of which one slot in sixteen is used, and one in four; of larger ones it is one in two.
const SPARSE_BYTES: usize = 256 << 10;
const LOOSE_BYTES: usize = 8 << 20;
/// Bytes up to which a table that is bounded has more slots than twice its groups.
const BOUNDED_BYTES: usize = 1 << 20;
/// Bytes of tables that are read ahead of the rows that need them.
const NEAR_BYTES: usize = 8 << 20;
/// Bytes of tables of which accumulators have copies: few groups, whose rows would wait for each other.
const COPIED_BYTES: usize = 16 << 10;
/// Words between copies: the CPU tells stores apart by the lowest bits of where they go.
const APART_WORDS: usize = 24;
/// Bytes of tables that the second cache holds; of larger ones, buckets are asked for a block ahead.
const NEAREST_BYTES: usize = 1 << 20;
/// Slots of a cache line begin on one.
const LINE_BYTES: usize = 64;

/// A key of so many words.
pub(super) trait Key<const K: usize>: Copy + Ord {
    /// Its words.
    fn words(self) -> [u64; K];
    /// The way back.
    fn from_words(words: [u64; K]) -> Self;
    /// Keys of a word, as kernels look them up.
    fn short(keys: &[Self]) -> Option<&[i64]>;
}

impl Key<1> for i64 {
    #[inline(always)]
    fn words(self) -> [u64; 1] {
        [self as u64]
    }

    #[inline(always)]
    fn from_words([word]: [u64; 1]) -> i64 {
        word as i64
    }

    #[inline(always)]
    fn short(keys: &[i64]) -> Option<&[i64]> {
        Some(keys)
    }
}

impl Key<2> for u128 {
    #[inline(always)]
    fn words(self) -> [u64; 2] {
        [self as u64, (self >> 64) as u64]
    }

    #[inline(always)]
    fn from_words([low, high]: [u64; 2]) -> u128 {
        u128::from(low) | u128::from(high) << 64
    }

    #[inline(always)]
    fn short(_: &[u128]) -> Option<&[i64]> {
        None
    }
}

/// Where the rows of a block are.
pub(super) type Places = [u32; BLOCK_ROWS];

/// How much a table may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Groups.
    pub(super) groups_max: usize,
    /// Bytes of slots, as far as more than a few are held.
    pub(super) bytes_max: usize,
    /// Whether all keys have to be held, as nothing may leave.
    pub(super) holds_all: bool,
}

/// The table. A word at `place` is the first of a slot's; the others are each [`LANES`] further.
#[derive(Debug)]
pub(super) struct Slots<const K: usize> {
    words: Vec<u64>,
    /// What lies before the first bucket, which begins a cache line.
    before: usize,
    buckets: usize,
    buckets_max: usize,
    /// Words of a slot, and of a bucket: a power of two, so that a place is some bits of a hash.
    width: usize,
    stride: usize,
    /// What the accumulators of a new slot hold.
    initial: Vec<u64>,
    /// Keys are held with these over them: all zero is then the key of a slot that is free.
    masks: [u64; K],
    multiplier: u64,
    /// Of keys of one word.
    hasher: Hasher,
    seed: u64,
    held: usize,
    held_max: usize,
    room: Room,
    /// What was added beside the table: nothing behind [`Slots::add_copies`].
    copies: Vec<u64>,
    has_copies: bool,
    spares: usize,
    without_place: usize,
    hand: usize,
}

#[inline(always)]
fn mask<const K: usize, T: Key<K>>(key: T, masks: [u64; K]) -> [u64; K] {
    let mut words = key.words();
    (0..K).for_each(|word| words[word] ^= masks[word]);
    words
}

/// Each word is multiplied by a number that nobody else knows, and both halves of the product are folded.
#[inline(always)]
fn hash<const K: usize>(masked: [u64; K], multiplier: u64) -> u64 {
    let mut hash = 0;
    for word in masked {
        let product = u128::from(hash ^ word) * u128::from(multiplier);
        hash = (product as u64) ^ ((product >> 64) as u64);
    }
    hash
}

/// Why a block could not be looked up.
enum Again {
    /// A key is as the free slots are.
    Hidden,
    /// A key finds no place within the bound.
    Crowded,
}

impl<const K: usize> Slots<K> {
    /// For accumulators that begin with these words.
    pub(super) fn new(initial: Vec<u64>, room: Room, seed: u64) -> Slots<K> {
        let mut slots = Slots {
            words: Vec::new(),
            before: 0,
            buckets: 0,
            buckets_max: 0,
            width: K + initial.len(),
            stride: (K + initial.len()).next_power_of_two() * LANES,
            initial,
            masks: [0; K],
            multiplier: 0,
            hasher: Hasher::new([0; 6]),
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

    /// Groups that are held.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Sets how much may be held, from the width.
    fn bound(&mut self) {
        let slot_bytes = self.stride / LANES * 8;
        // Half of the slots stay free, so that probes are short.
        let fitting = (self.room.bytes_max / slot_bytes).checked_ilog2().map_or(0, |bits| (1 << bits) / 2);
        self.held_max = self.room.groups_max.min(fitting).max(1);
        let mut buckets = (self.held_max * 2).next_power_of_two().div_ceil(LANES).max(2);
        // A table of few groups may be larger than they need, which is quicker.
        while self.used_max(buckets) < self.held_max
            && buckets * 2 * LANES * slot_bytes <= self.room.bytes_max.min(BOUNDED_BYTES)
        {
            buckets *= 2;
        }
        self.buckets_max = buckets;
    }

    /// Slots that are used before so many buckets become more.
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
        self.hasher = Hasher::new(secret);
    }

    /// An empty table of so many buckets.
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
        // The key that is as free slots are would be found in the first of them. Something else lies there always,
        // which no key that is looked for there is.
        let stopper = |number: &u64| self.home([*number; K]).0 != 0;
        let stopper = (1..).find(stopper).unwrap_or(1);
        let table = &mut self.words[self.before..];
        (0..K).for_each(|word| table[word * LANES] = stopper);
    }

    /// The first bucket of a masked key, and its lane there.
    #[inline(always)]
    fn home(&self, masked: [u64; K]) -> (usize, usize) {
        let hash = match K {
            1 => self.hasher.hash(masked[0]),
            _ => hash(masked, self.multiplier),
        };
        ((hash as usize >> self.stride.trailing_zeros()) & (self.buckets - 1), hash as usize % LANES)
    }

    /// Finds or makes the places of up to [`BLOCK_ROWS`] keys. None moves before the next block.
    /// Those `ahead` are likely to be next.
    pub(super) fn find<T: Key<K>>(&mut self, keys: &[T], ahead: &[T], places: &mut Places) {
        if self.held > self.used_max(self.buckets) && self.buckets < self.buckets_max {
            self.grow();
        }
        while let Err(again) = self.try_find(keys, ahead, places) {
            // What was placed is of rows of this block, and found again.
            self.spares = 0;
            match again {
                Again::Hidden => self.rebuild(self.buckets),
                Again::Crowded if self.buckets < self.buckets_max => self.grow(),
                Again::Crowded => self.rebuild(self.buckets),
            }
        }
    }

    /// Finds or makes the places of keys as [`Slots::find`] does, and adds these values to the only accumulator of
    /// their groups, which is a sum. False if that is nothing for a kernel, and nothing has been done.
    /// [`Slots::add_copies`] has to come before anything else is done with the table.
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
            Shape { buckets: self.buckets, stride: self.stride, hasher: &self.hasher },
            short,
            if bytes > NEAREST_BYTES { ahead } else { &[] },
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
            let words = self.tallies();
            for (row, place) in others.iter().zip(rest_places) {
                let word = &mut words[place as usize];
                *word = word.wrapping_add(values[usize::from(*row)] as u64);
            }
        }
        true
    }

    /// Adds to the table what lies beside it.
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
        // Where nearly all rows are found at once and memory is near, a branch costs less than going without.
        let bytes = self.buckets * self.stride * 8;
        let count = match bytes <= SPARSE_BYTES {
            _ if let (Some(keys), Some(ahead), true) =
                (T::short(keys), T::short(ahead), self.hasher.is_aes()) =>
            {
                let table = Table::new(&self.words[self.before..], self.buckets, self.stride, &self.hasher);
                let ahead = if bytes > NEAREST_BYTES { ahead } else { &[] };
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

    /// Looks for the keys of these rows in all of their bucket, then for those that are in none with a free lane in the
    /// next one, and so on: all rows take a step before any takes another. Says how many are held nowhere.
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
                // The key that is as free slots are, and the first slot, which is nobody's.
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

    /// Looks where each key most likely is, and says how many are not there.
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
            // Reads that nothing else stands between: as many are under way at once as the CPU can have.
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

    /// The place of a masked key, wherever that is: its own, a new one, or a spare one.
    fn place(&mut self, masked: [u64; K]) -> Result<usize, Again> {
        if self.room.holds_all && masked == [0; K] {
            return Err(Again::Hidden);
        }
        // Nothing more is held, so it is nowhere; and what looks as free slots do cannot be.
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

    /// Where a masked key is, or where it may go (false); nothing if there is no place within the bound.
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

    /// Where a masked key may go that is nowhere, or has displaced itself.
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

    /// Each row gets its own, as they leave before the next block.
    fn spare(&mut self, masked: [u64; K]) -> usize {
        let place = self.spare_place(self.spares);
        self.spares += 1;
        self.fill(place, masked);
        place
    }

    fn spare_place(&self, number: usize) -> usize {
        (self.buckets + number / LANES) * self.stride + number % LANES
    }

    /// The accumulators: the word that a place names is the first of its slot's, others are [`LANES`] further each.
    pub(super) fn tallies(&mut self) -> &mut [u64] {
        &mut self.words[self.before + K * LANES..]
    }

    /// Whether a block of rows may be more groups than all that may be held.
    pub(super) fn is_full(&self) -> bool {
        self.room.holds_all && self.held + BLOCK_ROWS > self.held_max
    }

    /// Whether nothing more is held, and what comes has to leave.
    pub(super) fn is_bounded(&self) -> bool {
        !self.room.holds_all && self.held >= self.held_max
    }

    /// How much it may hold, in groups.
    pub(super) fn held_max(&self) -> usize {
        self.held_max
    }

    /// What has to leave behind a block: the words of these slots, one slot behind the other.
    pub(super) fn leave_spares(&mut self, leaving: &mut Vec<u64>) {
        for number in 0..self.spares {
            let place = self.spare_place(number);
            self.without_place = self.without_place.wrapping_add(1);
            if self.without_place.is_multiple_of(DISPLACING) {
                self.displace(place);
            }
            self.copy_out(place, leaving);
        }
        self.spares = 0;
    }

    /// Puts a spare slot in the place of a group, which becomes the spare one. A probe may not find a group any more
    /// behind that, as it ends at a lane that was freed: the group then leaves later, beside another of the same key.
    fn displace(&mut self, spare: usize) {
        let masked = self.key_at(spare);
        let (bucket, lane) = self.home(masked);
        let start = bucket * self.stride;
        let lanes = [lane, (lane + 1) % LANES, (lane + 2) % LANES, (lane + 3) % LANES];
        // A row before it in its block was put there, or it looks as free lanes do.
        if lanes.iter().any(|lane| self.key_at(start + lane) == masked) {
            return;
        }
        let free = lanes.iter().find(|lane| self.key_at(start + **lane) == [0; K]);
        let place = start + free.copied().unwrap_or(self.without_place / DISPLACING % LANES);
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

    /// Groups in turn, as long as one is near.
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

    /// The key that is held at a place.
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

    /// A word of the accumulators at each of these places.
    pub(super) fn accumulators(&self, places: &[u32], word: usize) -> Vec<u64> {
        let table = &self.words[self.before + (K + word) * LANES..];
        places.iter().map(|place| table[*place as usize]).collect()
    }

    /// Where groups are held.
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

    /// The keys that are held, with their places.
    pub(super) fn pairs<T: Key<K>>(&self) -> Vec<(T, u32)> {
        self.places().into_iter().map(|place| (self.key(place), place)).collect()
    }

    fn grow(&mut self) {
        let is_small = self.buckets * self.stride * 8 * 4 <= LOOSE_BYTES;
        let buckets = (self.buckets * if is_small { 4 } else { 2 }).min(self.buckets_max);
        self.rebuild(buckets);
    }

    /// Lays the groups out in so many buckets, under another seed unless there are only more of them: groups then move
    /// in the order in which they lie.
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

    /// Puts the groups of another table in, which had these words before. `widen` makes the accumulators of the old.
    pub(super) fn take<const L: usize, S: Key<L>, T: Key<K>>(
        &mut self,
        from: &Slots<L>,
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

    /// Forgets all groups.
    pub(super) fn clear(&mut self) {
        self.reseed();
        self.lay_out((SLOTS_MIN / LANES).min(self.buckets_max));
    }
}

#[cfg(test)]
mod tests;
