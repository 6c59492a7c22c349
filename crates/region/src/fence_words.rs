//! Fence words: one per region, in a memory file that local clients map read-only.
//!
//! The idea: the word that a client compares before and after its own copy is the same word that the node's gate
//! reads, so the two can never disagree. Word = epoch * 2, plus 1 while nobody may use the region (suspended or
//! closed). Each word has its own 64-byte line, so a grant of one region does not disturb the readers of another.
//!
//! The file never holds a secret (handles stay in the node's private memory). It can be written only through the one
//! mapping made here before the file is sealed.

use crate::error::RegionError;
use crate::mapping::Mapping;
use crate::memfd;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes from one region's word to the next: a cache line.
pub(crate) const WORD_STRIDE_BYTES: u64 = 64;

/// Fence words of all regions: their file, and the mapping through which the node changes them.
pub(crate) struct FenceWords {
    fd: OwnedFd,
    mapping: Mapping,
}

impl FenceWords {
    /// Creates the words of this many regions, each closed at epoch 0.
    pub(crate) fn new(region_count: u32) -> Result<FenceWords, RegionError> {
        let bytes = u64::from(region_count) * WORD_STRIDE_BYTES;
        let refused = |errno| RegionError::system("create the file of the fence words", bytes, errno);
        let fd = memfd::create("farpool-words", bytes, None).map_err(refused)?;
        memfd::allocate(&fd, bytes).map_err(refused)?;
        let mapping = Mapping::shared(fd.as_fd(), bytes as usize).map_err(refused)?;
        mapping.whole().populate().map_err(refused)?;
        memfd::seal_for_readers(&fd).map_err(refused)?;
        let words = FenceWords { fd, mapping };
        for index in 0..region_count {
            words.word(index).store(1, Ordering::SeqCst);
        }
        Ok(words)
    }

    /// Returns the word of a region. The caller has checked that the region exists.
    pub(crate) fn word(&self, index: u32) -> &AtomicU64 {
        self.mapping.word(index as usize * WORD_STRIDE_BYTES as usize)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.mapping.bytes() as u64
    }
}
