//! Choice of the instruction set for the hot loops of joins: partitioning, inserts into tables, and lookups.

use crate::dense_table::DenseTable;
use crate::hash::PartitionHasher;
use crate::one_pass::Scatter;
use crate::portable;
use crate::table::{Found, Hit, View};
use crate::{CacheLine, JoinError, Tuple};

/// Instruction set for the hot loops, which this CPU has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernels(Level);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Kernels {
    /// Plain Rust without vector instructions.
    pub const PORTABLE: Kernels = Kernels(Level::Portable);

    /// Returns all sets that this CPU has, the best one last.
    pub fn all() -> Vec<Kernels> {
        let mut all = vec![Kernels::PORTABLE];
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(crate::x86::has_avx2().then_some(Kernels(Level::Avx2)));
            all.extend(crate::x86::has_avx512().then_some(Kernels(Level::Avx512)));
        }
        all
    }

    /// Returns the best set that this CPU has.
    pub fn best() -> Kernels {
        Kernels::all().pop().unwrap_or(Kernels::PORTABLE)
    }

    /// Returns the name of the instruction set, for reports.
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
        }
    }

    /// Appends tuples to the buffers of their partitions. Writes full buffers out, and asks `refill` for a new block of
    /// a partition.
    pub(crate) fn scatter<'a>(
        self,
        hasher: &PartitionHasher,
        tuples: &[Tuple],
        scatter: &mut Scatter<'a>,
        refill: &mut dyn FnMut(usize) -> Result<&'a mut [CacheLine], JoinError>,
    ) -> Result<(), JoinError> {
        match self.0 {
            Level::Portable => portable::scatter(hasher, tuples, scatter, refill),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => crate::x86::scatter_avx2(hasher, tuples, scatter, refill),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => crate::x86::scatter_avx512(hasher, tuples, scatter, refill),
        }
    }

    /// Makes stores of `scatter` that bypass the caches visible to other threads before any later store.
    pub(crate) fn fence(self) {
        #[cfg(target_arch = "x86_64")]
        if self != Kernels::PORTABLE {
            crate::x86::fence();
        }
    }

    /// Inserts tuples into the buckets of one partition. Free slots hold `marker`. Returns how many were inserted: all,
    /// unless a key occurs twice; then it stops at the second one.
    pub(crate) fn insert(
        self,
        hasher: &PartitionHasher,
        tuples: &[Tuple],
        buckets: &mut [CacheLine],
        marker: i64,
    ) -> usize {
        match self.0 {
            Level::Portable => portable::insert(hasher, tuples, buckets, marker),
            #[cfg(target_arch = "x86_64")]
            _ => crate::x86::insert(hasher, tuples, buckets, marker),
        }
    }

    /// Looks up at most [`BATCH_ROWS`](crate::table::BATCH_ROWS) tuples. Returns the hits (tuples whose keys are in the
    /// table), in the order of the tuples. `ahead` is the next batch, whose buckets are prefetched if the table is
    /// large.
    pub(crate) fn find<'h>(
        self,
        view: &View<'_>,
        tuples: &[Tuple],
        ahead: &[Tuple],
        found: &'h mut Found,
    ) -> &'h [Hit] {
        let count = match self.0 {
            Level::Portable => portable::find(view, tuples, found),
            #[cfg(target_arch = "x86_64")]
            _ => crate::x86::find(view, tuples, ahead, found),
        };
        let _ = ahead;
        &found.hits[..count]
    }

    /// Looks up tuples as [`Kernels::find`] does. Returns two values for each tuple whose key is in the table: the word
    /// that is stored with the key, and the payload of the tuple itself.
    #[inline]
    pub(crate) fn find_pairs<'h>(
        self,
        view: &View<'_>,
        tuples: &[Tuple],
        ahead: &[Tuple],
        found: &'h mut Found,
    ) -> (&'h [i64], &'h [i64]) {
        let count = match self.0 {
            Level::Portable => portable::find_pairs(view, tuples, found),
            #[cfg(target_arch = "x86_64")]
            _ => crate::x86::find_pairs(view, tuples, ahead, found),
        };
        let _ = ahead;
        (&found.builds[..count], &found.probes[..count])
    }

    /// Looks up tuples in a table indexed by rank (a key without the low bits that name its partition). Otherwise like
    /// [`Kernels::find`].
    pub(crate) fn find_direct<'h>(
        self,
        direct: &DenseTable<'_>,
        tuples: &[Tuple],
        ahead: &[Tuple],
        found: &'h mut Found,
    ) -> &'h [Hit] {
        let count = direct.find(tuples, ahead, |at| self.ask(at), found);
        &found.hits[..count]
    }

    /// Looks up tuples in a table indexed by rank (a key without the low bits that name its partition). Otherwise like
    /// [`Kernels::find_pairs`].
    #[inline]
    pub(crate) fn find_direct_pairs<'h>(
        self,
        direct: &DenseTable<'_>,
        tuples: &[Tuple],
        ahead: &[Tuple],
        found: &'h mut Found,
    ) -> (&'h [i64], &'h [i64]) {
        let count = match self.0 {
            Level::Portable => direct.find_pairs(tuples, ahead, |at| self.ask(at), found),
            #[cfg(target_arch = "x86_64")]
            _ => crate::x86::find_direct_pairs(direct, tuples, ahead, found),
        };
        (&found.builds[..count], &found.probes[..count])
    }

    /// Prefetches a cache line, if the CPU has an instruction for it.
    #[inline(always)]
    fn ask(self, at: *const u8) {
        #[cfg(target_arch = "x86_64")]
        crate::x86::ask(at);
        let _ = at;
    }
}
