//! Which instructions the hot loops use.

use crate::direct::Direct;
use crate::hash::Hasher;
use crate::one_pass::Scatter;
use crate::portable;
use crate::table::{Found, Hit, View};
use crate::{JoinError, Line, Tuple};

/// A set of instructions that this CPU has.
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
    /// Plain Rust.
    pub const PORTABLE: Kernels = Kernels(Level::Portable);

    /// All that this CPU has, from the plainest to the best.
    pub fn all() -> Vec<Kernels> {
        let mut all = vec![Kernels::PORTABLE];
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(crate::x86::has_avx2().then_some(Kernels(Level::Avx2)));
            all.extend(crate::x86::has_avx512().then_some(Kernels(Level::Avx512)));
        }
        all
    }

    /// The best of this CPU.
    pub fn best() -> Kernels {
        Kernels::all().pop().unwrap_or(Kernels::PORTABLE)
    }

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
        }
    }

    /// Appends tuples to their partitions.
    pub(crate) fn scatter<'a>(
        self,
        hasher: &Hasher,
        tuples: &[Tuple],
        scatter: &mut Scatter<'a>,
        refill: &mut dyn FnMut(usize) -> Result<&'a mut [Line], JoinError>,
    ) -> Result<(), JoinError> {
        match self.0 {
            Level::Portable => portable::scatter(hasher, tuples, scatter, refill),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => crate::x86::scatter_avx2(hasher, tuples, scatter, refill),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => crate::x86::scatter_avx512(hasher, tuples, scatter, refill),
        }
    }

    /// Makes what was streamed past the caches visible to others, before they are told that it is there.
    pub(crate) fn fence(self) {
        #[cfg(target_arch = "x86_64")]
        if self != Kernels::PORTABLE {
            crate::x86::fence();
        }
    }

    /// Puts tuples into the buckets of one partition, whose free places hold `marker`: how many, which is all of them
    /// unless the next one has the key of one before it.
    pub(crate) fn insert(
        self,
        hasher: &Hasher,
        tuples: &[Tuple],
        buckets: &mut [Line],
        marker: i64,
    ) -> usize {
        match self.0 {
            Level::Portable => portable::insert(hasher, tuples, buckets, marker),
            #[cfg(target_arch = "x86_64")]
            _ => crate::x86::insert(hasher, tuples, buckets, marker),
        }
    }

    /// Looks tuples up: what was found, in their order. There may be no more tuples than `hits`. What is `ahead` is
    /// asked for from memory if the table is large.
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

    /// Looks tuples up: what lies beside the keys that were found, and the payloads of those that found it, in their
    /// order.
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

    /// What [`Kernels::find`] does, in a table by ranks.
    pub(crate) fn find_direct<'h>(
        self,
        direct: &Direct<'_>,
        tuples: &[Tuple],
        ahead: &[Tuple],
        found: &'h mut Found,
    ) -> &'h [Hit] {
        let count = direct.find(tuples, ahead, |at| self.ask(at), found);
        &found.hits[..count]
    }

    /// What [`Kernels::find_pairs`] does, in a table by ranks.
    #[inline]
    pub(crate) fn find_direct_pairs<'h>(
        self,
        direct: &Direct<'_>,
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

    /// Asks for a line from memory, where there is an instruction for it.
    #[inline(always)]
    fn ask(self, at: *const u8) {
        #[cfg(target_arch = "x86_64")]
        crate::x86::ask(at);
        let _ = at;
    }
}
