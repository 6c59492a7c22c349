//! Sealed pages: the form in which a donor holds scratch bytes, so that it can neither read nor alter them, nor
//! answer with other or older ones unnoticed.
//!
//! The idea: every page of 4 KiB is sealed by itself with AES-256-GCM, and only the ciphertext travels; it has
//! the page's length, so extents keep their layout. The nonce and the tag of each page stay with the client in
//! a [`PageSeals`]. A page is therefore accepted only if it is the very one that this client sealed last for
//! that place: an older version has another tag, and a donor has no tag to offer at all. The place (which life
//! of which node, region, epoch, page) is authenticated as well, which catches mistakes of our own with the
//! table.
//!
//! Never in this module: I/O, a clock, randomness (the key's bytes are an argument), or allocation for a run.
//!
//! Invariants: no nonce is used twice under a key, whatever the threads do; a run that is not opened whole
//! leaves zeros in the caller's buffer; no page is opened that this client did not seal.
//!
//! Why so, and what it does not protect: docs/decisions/0008-sealed-scratch.md.

use super::EXTENT_BYTES_MIN;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use farpool_wire::limits::REGION_BYTES_MAX;
use farpool_wire::{Epoch, Incarnation, RegionIndex};
use std::fmt;
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use zeroize::Zeroize;

/// Bytes of a page: what is sealed and opened at once. Small enough that reading a page of a database does not
/// fetch much more, large enough that 24 bytes kept for each are 0.6 %.
pub const SEAL_PAGE_BYTES: usize = 4096;
/// Pages that one key seals at most, 4 PiB. Nonces would last for 2^64; what AES-GCM promises does not: to here,
/// ciphertext can be told from noise with a probability below 2^-32.
pub const SEAL_PAGES_PER_KEY_MAX: u64 = 1 << 40;

const PAGE: u64 = SEAL_PAGE_BYTES as u64;
const REGION_PAGES_MAX: u64 = REGION_BYTES_MAX / PAGE;
/// In front of all additional data, so that nothing else sealed under the key is ever taken for a page.
const DOMAIN: [u8; 16] = *b"farpool page 1\0\0";
const TAG_BYTES: usize = 16;

// A page of a file is then a page of a region.
const _: () = assert!(EXTENT_BYTES_MIN.is_multiple_of(PAGE));
const _: () = assert!(size_of::<Option<PageSealed>>() == 24);

/// Where a page lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePlace {
    /// Which life of which node.
    pub incarnation: Incarnation,
    /// Which of its regions.
    pub region: RegionIndex,
    /// Which holding of the region.
    pub epoch: Epoch,
    /// Which page of the region, counted from 0 in units of [`SEAL_PAGE_BYTES`].
    pub page: u32,
}

/// What the client keeps of a page: only with it can the page be opened. Made by sealing alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSealed {
    nonce: NonZeroU64,
    tag: [u8; TAG_BYTES],
}

/// The key of a session's sealed pages, and how many it has sealed. May be used from many threads at once.
///
/// It must not be used in two processes that began as one, by a fork or a restored snapshot: both would go on
/// with the same nonces.
pub struct PageKey {
    key: LessSafeKey,
    pages_sealed: AtomicU64,
}

/// Why pages were not sealed or opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageError {
    /// The bytes are not those that were sealed last for this place.
    Tampered {
        /// The first page of the run of which that is true.
        place: PagePlace,
    },
    /// This client has sealed no page there.
    NeverSealed {
        /// The first page of the run of which that is true.
        place: PagePlace,
    },
    /// A buffer is not as long as the pages of the run.
    WrongLength {
        /// Bytes of the buffer.
        bytes: usize,
        /// Pages of the run.
        pages: usize,
    },
    /// The run ends behind the end of the largest region.
    OutsideRegion {
        /// First page of the run.
        page: u32,
        /// Pages of the run.
        pages: usize,
    },
    /// The key has no nonces left for so many pages: take a new key.
    KeySpent {
        /// Pages it has sealed.
        pages_sealed: u64,
        /// Pages it was to seal.
        pages: usize,
    },
}

impl PagePlace {
    /// The page `index` pages behind this one, in a run that was checked.
    fn behind(self, index: usize) -> PagePlace {
        PagePlace { page: self.page + index as u32, ..self }
    }

    fn additional_data(&self) -> [u8; 40] {
        let mut bytes = [0; 40];
        bytes[..16].copy_from_slice(&DOMAIN);
        bytes[16..24].copy_from_slice(&self.incarnation.0.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.region.0.to_le_bytes());
        bytes[28..36].copy_from_slice(&self.epoch.0.to_le_bytes());
        bytes[36..].copy_from_slice(&self.page.to_le_bytes());
        bytes
    }
}

impl fmt::Display for PagePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PagePlace { incarnation, region, epoch, page } = self;
        write!(f, "page {page} of region {region} at epoch {epoch} of incarnation {incarnation}")
    }
}

impl PageSealed {
    /// The number under which it was sealed; no other page of its key has it.
    pub fn nonce(&self) -> u64 {
        self.nonce.get()
    }

    /// What proves that a page is the one that was sealed.
    pub fn tag(&self) -> &[u8; TAG_BYTES] {
        &self.tag
    }
}

/// The counter as a little-endian number of 96 bits, of which the upper 32 are zero.
fn nonce(counter: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[..8].copy_from_slice(&counter.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

fn check_run(first: PagePlace, pages: usize, bytes: usize) -> Result<(), PageError> {
    if pages.checked_mul(SEAL_PAGE_BYTES) != Some(bytes) {
        return Err(PageError::WrongLength { bytes, pages });
    }
    if u64::from(first.page).saturating_add(pages as u64) > REGION_PAGES_MAX {
        return Err(PageError::OutsideRegion { page: first.page, pages });
    }
    Ok(())
}

impl PageKey {
    /// A key from 32 random bytes that were made for it and are used for nothing else. They are wiped; the
    /// library wipes the key's expanded form when it is dropped.
    pub fn new(secret: &mut [u8; 32]) -> PageKey {
        let key = UnboundKey::new(&AES_256_GCM, secret).expect("an AES-256 key is 32 bytes");
        secret.zeroize();
        PageKey { key: LessSafeKey::new(key), pages_sealed: AtomicU64::new(0) }
    }

    /// Pages it has sealed so far, at most [`SEAL_PAGES_PER_KEY_MAX`].
    pub fn pages_sealed(&self) -> u64 {
        self.pages_sealed.load(Ordering::Relaxed)
    }

    /// Seals the pages of `plain`, which lie at `first` and behind it, into `into`, and notes in `sealed` what
    /// will open them. All three are of the same number of pages.
    ///
    /// Errors: [`PageError::WrongLength`], [`PageError::OutsideRegion`], [`PageError::KeySpent`]; nothing has
    /// been written then.
    pub fn seal(
        &self,
        first: PagePlace,
        plain: &[u8],
        into: &mut [u8],
        sealed: &mut [Option<PageSealed>],
    ) -> Result<(), PageError> {
        check_run(first, sealed.len(), plain.len())?;
        check_run(first, sealed.len(), into.len())?;
        let mut counter = self.reserve(sealed.len())?;
        let pages = plain.chunks_exact(SEAL_PAGE_BYTES).zip(into.chunks_exact_mut(SEAL_PAGE_BYTES));
        for (index, ((plain, into), sealed)) in pages.zip(sealed).enumerate() {
            // Page by page, so that the copy is still in the nearest cache when it is encrypted.
            into.copy_from_slice(plain);
            let place = Aad::from(first.behind(index).additional_data());
            let tag = self
                .key
                .seal_in_place_separate_tag(nonce(counter.get()), place, into)
                .expect("AES-GCM seals up to 64 GiB at once");
            let mut kept = PageSealed { nonce: counter, tag: [0; TAG_BYTES] };
            kept.tag.copy_from_slice(tag.as_ref());
            *sealed = Some(kept);
            counter = counter.saturating_add(1);
        }
        Ok(())
    }

    /// Turns sealed pages, which lie at `first` and behind it, back into what they were, if each is the one
    /// that `sealed` is of.
    ///
    /// Errors: [`PageError::Tampered`], [`PageError::NeverSealed`], [`PageError::WrongLength`],
    /// [`PageError::OutsideRegion`]. Every byte of `in_place` is zero then, also those of pages before the one
    /// that failed.
    pub fn open(
        &self,
        first: PagePlace,
        sealed: &[Option<PageSealed>],
        in_place: &mut [u8],
    ) -> Result<(), PageError> {
        let opened = self.open_each(first, sealed, in_place);
        if opened.is_err() {
            in_place.fill(0);
        }
        opened
    }

    fn open_each(
        &self,
        first: PagePlace,
        sealed: &[Option<PageSealed>],
        in_place: &mut [u8],
    ) -> Result<(), PageError> {
        check_run(first, sealed.len(), in_place.len())?;
        for (index, (page, sealed)) in in_place.chunks_exact_mut(SEAL_PAGE_BYTES).zip(sealed).enumerate() {
            let place = first.behind(index);
            let Some(PageSealed { nonce: counter, tag }) = *sealed else {
                return Err(PageError::NeverSealed { place });
            };
            let data = Aad::from(place.additional_data());
            self.key
                .open_in_place_separate_tag(nonce(counter.get()), data, &tag, page)
                .map_err(|_| PageError::Tampered { place })?;
        }
        Ok(())
    }

    /// Takes so many nonces, of which the first is returned, for good.
    fn reserve(&self, pages: usize) -> Result<NonZeroU64, PageError> {
        let spent = |pages_sealed| PageError::KeySpent { pages_sealed, pages };
        // One atomic step on one number: no order with other memory is needed for it to be unique.
        let before = self
            .pages_sealed
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |sealed| {
                sealed.checked_add(pages as u64).filter(|after| *after <= SEAL_PAGES_PER_KEY_MAX)
            })
            .map_err(spent)?;
        Ok(NonZeroU64::MIN.saturating_add(before))
    }
}

impl fmt::Debug for PageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageKey").field("pages_sealed", &self.pages_sealed()).finish_non_exhaustive()
    }
}

impl fmt::Display for PageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PageError::Tampered { place } => write!(f, "{place} is not as it was sealed"),
            PageError::NeverSealed { place } => write!(f, "{place} was never sealed"),
            PageError::WrongLength { bytes, pages } => {
                write!(f, "a buffer of {bytes} bytes for {pages} pages of {SEAL_PAGE_BYTES} bytes")
            }
            PageError::OutsideRegion { page, pages } => {
                write!(f, "{pages} pages from page {page} on; a region has at most {REGION_PAGES_MAX}")
            }
            PageError::KeySpent { pages_sealed, pages } => {
                write!(
                    f,
                    "the key has sealed {pages_sealed} pages and was to seal {pages} more; \
                     {SEAL_PAGES_PER_KEY_MAX} is the most permitted"
                )
            }
        }
    }
}

impl std::error::Error for PageError {}

/// What opens the pages of one copy of an extent, page by page. Takes memory from the first page stored, 24 bytes
/// for each page of the extent.
#[derive(Clone, Debug)]
pub struct PageSeals {
    pages: usize,
    /// Empty, or one for each page.
    sealed: Vec<Option<PageSealed>>,
}

impl PageSeals {
    /// For an extent of so many bytes, of which no page is sealed. Only its whole pages of [`SEAL_PAGE_BYTES`] can be;
    /// a published file's last extent may end between two, and is never sealed by pages.
    pub fn new(extent_bytes: u32) -> PageSeals {
        PageSeals { pages: extent_bytes as usize / SEAL_PAGE_BYTES, sealed: Vec::new() }
    }

    /// Keeps what opens the pages from `first` on, counted from the extent's start. What was kept of them before
    /// is gone, and with it every older version of these pages.
    ///
    /// Panics if they do not lie in the extent.
    pub fn store(&mut self, first: u32, sealed: &[Option<PageSealed>]) {
        let range = self.range(first, sealed.len());
        if self.sealed.is_empty() {
            self.sealed = vec![None; self.pages];
        }
        self.sealed[range].copy_from_slice(sealed);
    }

    /// Looks up what opens the pages from `first` on; nothing for those never sealed.
    ///
    /// Panics if they do not lie in the extent.
    pub fn load(&self, first: u32, into: &mut [Option<PageSealed>]) {
        let range = self.range(first, into.len());
        if self.sealed.is_empty() {
            into.fill(None);
        } else {
            into.copy_from_slice(&self.sealed[range]);
        }
    }

    /// Bytes of memory it has allocated.
    pub fn memory_bytes(&self) -> usize {
        self.sealed.capacity() * size_of::<Option<PageSealed>>()
    }

    fn range(&self, first: u32, count: usize) -> Range<usize> {
        let first = first as usize;
        let is_inside = first <= self.pages && count <= self.pages - first;
        assert!(is_inside, "{count} pages from page {first} on of an extent of {} pages", self.pages);
        first..first + count
    }
}

/// A range of bytes of a file (or a region), cut where pages begin. The three parts follow one another, and may
/// be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageSplit {
    /// The end of a page, or a part from the middle of one; never a whole one.
    pub head: Range<u64>,
    /// Whole pages.
    pub whole: Range<u64>,
    /// The start of a page; never a whole one.
    pub tail: Range<u64>,
}

impl PageSplit {
    /// Cuts a range. To write it, pages that it covers in part must be read, changed and sealed anew.
    pub fn of(range: Range<u64>) -> PageSplit {
        let Range { start, end } = range;
        let whole_end = end - end % PAGE;
        match start.checked_next_multiple_of(PAGE) {
            Some(whole) if whole <= whole_end => {
                PageSplit { head: start..whole, whole: whole..whole_end, tail: whole_end..end }
            }
            _ => PageSplit { head: start..end, whole: end..end, tail: end..end },
        }
    }
}

/// The smallest range of whole pages that has all of `range` in it: what to fetch, to read or change part of a
/// page. Nothing for an empty range.
pub fn pages_around(range: Range<u64>) -> Range<u64> {
    let start = range.start - range.start % PAGE;
    if range.is_empty() {
        return start..start;
    }
    // The last page of all 2^64 bytes is taken for one byte shorter; no file reaches it.
    start..range.end.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit cannot be reached by sealing, so the counter is set to where it would be.
    #[test]
    fn key_at_its_limit_seals_the_last_page_and_refuses_the_next() {
        let key = PageKey::new(&mut [7; 32]);
        key.pages_sealed.store(SEAL_PAGES_PER_KEY_MAX - 1, Ordering::Relaxed);
        let place =
            PagePlace { incarnation: Incarnation(1), region: RegionIndex(2), epoch: Epoch(3), page: 4 };
        let (plain, mut into) = ([1; 2 * SEAL_PAGE_BYTES], [9; 2 * SEAL_PAGE_BYTES]);
        let mut sealed = [None; 2];
        let spent = PageError::KeySpent { pages_sealed: SEAL_PAGES_PER_KEY_MAX - 1, pages: 2 };
        assert_eq!(key.seal(place, &plain, &mut into, &mut sealed), Err(spent));
        assert!(into == [9; 2 * SEAL_PAGE_BYTES] && sealed == [None; 2], "a refusal writes nothing");
        let (plain, into, sealed) =
            (&plain[..SEAL_PAGE_BYTES], &mut into[..SEAL_PAGE_BYTES], &mut sealed[..1]);
        assert_eq!(key.seal(place, plain, into, sealed), Ok(()));
        assert_eq!(sealed[0].map(|sealed| sealed.nonce()), Some(SEAL_PAGES_PER_KEY_MAX));
        assert_eq!(key.open(place, sealed, into), Ok(()));
        let spent = PageError::KeySpent { pages_sealed: SEAL_PAGES_PER_KEY_MAX, pages: 1 };
        assert_eq!(key.seal(place, plain, into, sealed), Err(spent));
        assert_eq!(into, plain);
    }
}
