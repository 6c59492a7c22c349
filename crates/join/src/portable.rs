//! Kernels in plain Rust, for CPUs without vector instructions and as a reference for tests.

use crate::hash::{PartitionHasher, bucket};
use crate::memory::tuples_mut;
use crate::one_pass::Scatter;
use crate::table::{Found, Hit, View, follow};
use crate::{CacheLine, JoinError, Tuple};

/// Appends each tuple to the buffer of its partition. Copies a full buffer to the partition's memory, and gets more
/// memory from `refill` if that is used up. Portable version of `Kernels::scatter`.
pub(crate) fn scatter<'a>(
    hasher: &PartitionHasher,
    tuples: &[Tuple],
    scatter: &mut Scatter<'a>,
    refill: &mut dyn FnMut(usize) -> Result<&'a mut [CacheLine], JoinError>,
) -> Result<(), JoinError> {
    let (lines, rows) = (scatter.lines, scatter.lines * 4);
    for tuple in tuples {
        let partition = hasher.partition(tuple.key);
        let buffer = &mut scatter.buffers[partition * lines..(partition + 1) * lines];
        let next = &mut scatter.next[partition];
        tuples_mut(buffer)[*next as usize % rows] = *tuple;
        *next += 1;
        if (*next as usize).is_multiple_of(rows) {
            *next -= rows as u32;
            scatter.counts[partition] += rows as u32;
            scatter.places[partition].next(lines, || refill(partition))?.copy_from_slice(buffer);
        }
    }
    Ok(())
}

/// Inserts tuples into the buckets of one partition, whose free slots hold the key `marker`. Returns how many were
/// inserted: all, or those before the first one whose key is already there. Portable version of `Kernels::insert`.
pub(crate) fn insert(
    hasher: &PartitionHasher,
    tuples: &[Tuple],
    buckets: &mut [CacheLine],
    marker: i64,
) -> usize {
    for (at, tuple) in tuples.iter().enumerate() {
        let mut place = bucket(hasher.hash(tuple.key), buckets.len() as u32);
        loop {
            let line = &mut buckets[place].0;
            match (0..4).find(|lane| line[*lane] == tuple.key || line[*lane] == marker) {
                Some(lane) if line[lane] == marker => {
                    line[lane] = tuple.key;
                    line[lane + 4] = tuple.payload;
                    break;
                }
                Some(_) => return at,
                None => place = follow(place, buckets.len()),
            }
        }
    }
    tuples.len()
}

/// Looks up tuples, and returns how many have a key that is in the table. Writes a hit for each of these to
/// `found.hits`: the word stored with the key, and the index of the tuple. Portable version of `Kernels::find`.
pub(crate) fn find(view: &View<'_>, tuples: &[Tuple], found: &mut Found) -> usize {
    let mut count = 0;
    for (at, tuple) in tuples.iter().enumerate() {
        if let Some(word) = find_one(view, tuple.key) {
            found.hits[count] = Hit { word, at: at as u32 };
            count += 1;
        }
    }
    count
}

/// Looks up tuples, and returns how many have a key that is in the table. Writes the word stored with the key to
/// `found.builds`, and the tuple's own payload to `found.probes`. Portable version of `Kernels::find_pairs`.
pub(crate) fn find_pairs(view: &View<'_>, tuples: &[Tuple], found: &mut Found) -> usize {
    let mut count = 0;
    for tuple in tuples {
        if let Some(word) = find_one(view, tuple.key) {
            (found.builds[count], found.probes[count]) = (word, tuple.payload);
            count += 1;
        }
    }
    count
}

/// Returns the word stored with a key; `None` if the key is not in the table.
pub(crate) fn find_one(view: &View<'_>, key: i64) -> Option<i64> {
    let hash = view.hasher.hash(key);
    let (buckets, marker) = view.buckets_of(hash);
    let mut place = bucket(hash, buckets.len() as u32);
    // The loop ends, because every table has a free slot.
    loop {
        let CacheLine(line) = &buckets[place];
        match (0..4).find(|lane| line[*lane] == key || line[*lane] == marker) {
            Some(lane) if line[lane] == key => return Some(line[lane + 4]),
            Some(_) => return None,
            None => place = follow(place, buckets.len()),
        }
    }
}
