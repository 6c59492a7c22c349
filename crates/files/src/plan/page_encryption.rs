//! Encrypted pages: the form in which a donor holds scratch bytes. The donor can neither read nor alter them, nor
//! answer with other or older ones, without being noticed.
//!
//! The idea: each page of 4 KiB is encrypted by itself with AES-256-GCM. Only the ciphertext travels. It is as long as
//! the page, so extents keep their layout. The nonce and the tag of each page stay with the client in [`PageTags`]. A
//! page is accepted only if it is the one that this client encrypted last for that location: an older version has
//! another tag, and the donor supplies no tag at all. The location (incarnation of the node, region, epoch, page) is
//! authenticated too, which catches our own mistakes with the table.
//!
//! Never in this module: I/O, a clock, randomness (the bytes of the key are an argument), or a memory allocation for
//! each run of pages.
//!
//! Invariants: no nonce is used twice under a key, whatever the threads do; if a run cannot be decrypted as a whole,
//! the caller's buffer holds zeros; only pages that this client encrypted are decrypted.
//!
//! The reasons, and what this does not protect against, are in docs/decisions/0008-encrypted-scratch.md.

use super::EXTENT_BYTES_MIN;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use farpool_wire::limits::REGION_BYTES_MAX;
use farpool_wire::{Epoch, Incarnation, RegionIndex};
use std::fmt;
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use zeroize::Zeroize;

/// Bytes of a page, the unit of encryption. Small enough that reading a page of a database does not fetch much more,
/// and large enough that the 24 bytes kept for each page are 0.6 %.
pub const PAGE_BYTES: usize = 4096;
/// Pages that one key may encrypt, 4 PiB in all. There are 2^64 nonces, but the guarantee of AES-GCM ends earlier: up
/// to this limit, ciphertext can be told from noise with a probability below 2^-32.
pub const PAGES_PER_KEY_MAX: u64 = 1 << 40;

const PAGE: u64 = PAGE_BYTES as u64;
const REGION_PAGES_MAX: u64 = REGION_BYTES_MAX / PAGE;
/// Prefix of all additional data, so that nothing else encrypted under the key is ever accepted as a page.
const DOMAIN: [u8; 16] = *b"farpool page 1\0\0";
const TAG_BYTES: usize = 16;

// Extents begin at a page, so a page of a file is a page of a region.
const _: () = assert!(EXTENT_BYTES_MIN.is_multiple_of(PAGE));
const _: () = assert!(size_of::<Option<PageTag>>() == 24);

/// Location of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePlace {
    /// Incarnation of the node.
    pub incarnation: Incarnation,
    /// Region of the node.
    pub region: RegionIndex,
    /// Epoch of the region at which the page was written.
    pub epoch: Epoch,
    /// Index of the page in the region, in units of [`PAGE_BYTES`].
    pub page: u32,
}

/// Nonce and tag of a page, which the client keeps. The page cannot be decrypted without them. Only encrypting makes
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageTag {
    nonce: NonZeroU64,
    tag: [u8; TAG_BYTES],
}

/// Key of a session's encrypted pages, and how many it has encrypted. May be used by many threads at once.
///
/// It must not be used in two processes that were one before, through a fork or a restored snapshot: both would
/// continue with the same nonces.
pub struct PageKey {
    key: LessSafeKey,
    pages_encrypted: AtomicU64,
}

/// Reason why pages were not encrypted or decrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageError {
    /// The bytes are not those that were encrypted last for this location.
    Tampered {
        /// First page of the run for which this holds.
        place: PagePlace,
    },
    /// This client has encrypted no page for this location.
    NeverEncrypted {
        /// First page of the run for which this holds.
        place: PagePlace,
    },
    /// The length of a buffer is not that of the pages of the run.
    WrongLength {
        /// Bytes in the buffer.
        bytes: usize,
        /// Pages in the run.
        pages: usize,
    },
    /// The run ends behind the end of the largest region.
    OutsideRegion {
        /// First page of the run.
        page: u32,
        /// Pages in the run.
        pages: usize,
    },
    /// The key has not enough nonces left. Use a new key.
    KeySpent {
        /// Pages that the key has encrypted.
        pages_encrypted: u64,
        /// Pages that it was asked to encrypt.
        pages: usize,
    },
}

impl PagePlace {
    /// Returns the page that is `index` pages behind this one. The run was checked to fit the region.
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

impl PageTag {
    /// Returns the number that the page's nonce is made of. No other page of the key has it.
    pub fn nonce(&self) -> u64 {
        self.nonce.get()
    }

    /// Returns the tag, which proves that a page is the one that was encrypted.
    pub fn tag(&self) -> &[u8; TAG_BYTES] {
        &self.tag
    }
}

/// Returns the counter as a little-endian number of 96 bits; the upper 32 are zero.
fn nonce(counter: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[..8].copy_from_slice(&counter.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

fn check_run(first: PagePlace, pages: usize, bytes: usize) -> Result<(), PageError> {
    if pages.checked_mul(PAGE_BYTES) != Some(bytes) {
        return Err(PageError::WrongLength { bytes, pages });
    }
    if u64::from(first.page).saturating_add(pages as u64) > REGION_PAGES_MAX {
        return Err(PageError::OutsideRegion { page: first.page, pages });
    }
    Ok(())
}

impl PageKey {
    /// Makes a key from 32 random bytes that are used for nothing else, and wipes them. The library wipes the expanded
    /// key when it is dropped.
    pub fn new(secret: &mut [u8; 32]) -> PageKey {
        let key = UnboundKey::new(&AES_256_GCM, secret).expect("an AES-256 key is 32 bytes");
        secret.zeroize();
        PageKey { key: LessSafeKey::new(key), pages_encrypted: AtomicU64::new(0) }
    }

    /// Returns how many pages were encrypted so far, at most [`PAGES_PER_KEY_MAX`].
    pub fn pages_encrypted(&self) -> u64 {
        self.pages_encrypted.load(Ordering::Relaxed)
    }

    /// Encrypts the pages of `plain`, which lie at `first` and after it, into `into`, and stores their nonces and tags
    /// in `tags`. All three have the same number of pages.
    ///
    /// Errors: [`PageError::WrongLength`], [`PageError::OutsideRegion`], [`PageError::KeySpent`]; nothing was written
    /// then.
    pub fn encrypt(
        &self,
        first: PagePlace,
        plain: &[u8],
        into: &mut [u8],
        tags: &mut [Option<PageTag>],
    ) -> Result<(), PageError> {
        check_run(first, tags.len(), plain.len())?;
        check_run(first, tags.len(), into.len())?;
        let mut counter = self.reserve(tags.len())?;
        let pages = plain.chunks_exact(PAGE_BYTES).zip(into.chunks_exact_mut(PAGE_BYTES));
        for (index, ((plain, into), entry)) in pages.zip(tags).enumerate() {
            // The copy is made page by page, so that it is still in the nearest cache when it is encrypted.
            into.copy_from_slice(plain);
            let place = Aad::from(first.behind(index).additional_data());
            let tag = self
                .key
                .seal_in_place_separate_tag(nonce(counter.get()), place, into)
                .expect("AES-GCM encrypts up to 64 GiB at once");
            let mut kept = PageTag { nonce: counter, tag: [0; TAG_BYTES] };
            kept.tag.copy_from_slice(tag.as_ref());
            *entry = Some(kept);
            counter = counter.saturating_add(1);
        }
        Ok(())
    }

    /// Decrypts pages, which lie at `first` and after it, in place. Each must be the page that its entry of `tags`
    /// was made for.
    ///
    /// Errors: [`PageError::Tampered`], [`PageError::NeverEncrypted`], [`PageError::WrongLength`],
    /// [`PageError::OutsideRegion`]. Every byte of `in_place` is zero then, including pages before the one that failed.
    pub fn decrypt(
        &self,
        first: PagePlace,
        tags: &[Option<PageTag>],
        in_place: &mut [u8],
    ) -> Result<(), PageError> {
        let decrypted = self.decrypt_each(first, tags, in_place);
        if decrypted.is_err() {
            in_place.fill(0);
        }
        decrypted
    }

    fn decrypt_each(
        &self,
        first: PagePlace,
        tags: &[Option<PageTag>],
        in_place: &mut [u8],
    ) -> Result<(), PageError> {
        check_run(first, tags.len(), in_place.len())?;
        for (index, (page, entry)) in in_place.chunks_exact_mut(PAGE_BYTES).zip(tags).enumerate() {
            let place = first.behind(index);
            let Some(PageTag { nonce: counter, tag }) = *entry else {
                return Err(PageError::NeverEncrypted { place });
            };
            let data = Aad::from(place.additional_data());
            self.key
                .open_in_place_separate_tag(nonce(counter.get()), data, &tag, page)
                .map_err(|_| PageError::Tampered { place })?;
        }
        Ok(())
    }

    /// Takes `pages` nonces for good, and returns the first.
    fn reserve(&self, pages: usize) -> Result<NonZeroU64, PageError> {
        let spent = |pages_encrypted| PageError::KeySpent { pages_encrypted, pages };
        // One atomic step on one number. Uniqueness needs no ordering with other memory.
        let before = self
            .pages_encrypted
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |encrypted| {
                encrypted.checked_add(pages as u64).filter(|after| *after <= PAGES_PER_KEY_MAX)
            })
            .map_err(spent)?;
        Ok(NonZeroU64::MIN.saturating_add(before))
    }
}

impl fmt::Debug for PageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageKey").field("pages_encrypted", &self.pages_encrypted()).finish_non_exhaustive()
    }
}

impl fmt::Display for PageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PageError::Tampered { place } => write!(f, "{place} differs from what was encrypted"),
            PageError::NeverEncrypted { place } => write!(f, "{place} was never encrypted"),
            PageError::WrongLength { bytes, pages } => {
                write!(f, "a buffer of {bytes} bytes for {pages} pages of {PAGE_BYTES} bytes")
            }
            PageError::OutsideRegion { page, pages } => {
                write!(f, "{pages} pages from page {page} on; a region has at most {REGION_PAGES_MAX}")
            }
            PageError::KeySpent { pages_encrypted, pages } => {
                write!(
                    f,
                    "the key has encrypted {pages_encrypted} pages and cannot encrypt {pages} more; its limit is \
                     {PAGES_PER_KEY_MAX}"
                )
            }
        }
    }
}

impl std::error::Error for PageError {}

/// Nonces and tags of the pages of one copy of an extent. Takes memory when the first page is stored: 24 bytes for each
/// page of the extent.
#[derive(Clone, Debug)]
pub struct PageTags {
    pages: usize,
    /// Empty, or one entry for each page.
    tags: Vec<Option<PageTag>>,
}

impl PageTags {
    /// Makes an empty table for an extent of `extent_bytes`. Only whole pages of [`PAGE_BYTES`] can be encrypted.
    /// The last extent of a published file may end within a page, but published files are never encrypted by pages.
    pub fn new(extent_bytes: u32) -> PageTags {
        PageTags { pages: extent_bytes as usize / PAGE_BYTES, tags: Vec::new() }
    }

    /// Stores the nonces and tags of the pages from `first` on, counted from the extent's start. Older versions of
    /// these pages can then not be decrypted any more.
    ///
    /// Panics if these pages do not lie in the extent.
    pub fn store(&mut self, first: u32, tags: &[Option<PageTag>]) {
        let range = self.range(first, tags.len());
        if self.tags.is_empty() {
            self.tags = vec![None; self.pages];
        }
        self.tags[range].copy_from_slice(tags);
    }

    /// Loads the nonces and tags of the pages from `first` on. `None` for pages that were never encrypted.
    ///
    /// Panics if these pages do not lie in the extent.
    pub fn load(&self, first: u32, into: &mut [Option<PageTag>]) {
        let range = self.range(first, into.len());
        if self.tags.is_empty() {
            into.fill(None);
        } else {
            into.copy_from_slice(&self.tags[range]);
        }
    }

    /// Returns how many bytes of memory the table has allocated.
    pub fn memory_bytes(&self) -> usize {
        self.tags.capacity() * size_of::<Option<PageTag>>()
    }

    fn range(&self, first: u32, count: usize) -> Range<usize> {
        let first = first as usize;
        let is_inside = first <= self.pages && count <= self.pages - first;
        assert!(is_inside, "{count} pages from page {first} on of an extent of {} pages", self.pages);
        first..first + count
    }
}

/// Range of bytes of a file (or a region), split where pages begin. The three parts follow one another, and may be
/// empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageSplit {
    /// End of a page, or bytes from the middle of one. Never a whole page.
    pub head: Range<u64>,
    /// Whole pages.
    pub whole: Range<u64>,
    /// Start of a page. Never a whole page.
    pub tail: Range<u64>,
}

impl PageSplit {
    /// Splits a range. To write the range, pages that it covers in part must be read, changed and encrypted again.
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

/// Returns the smallest range of whole pages that contains `range`: the bytes to fetch in order to read or change part
/// of a page. Empty for an empty range.
pub fn pages_around(range: Range<u64>) -> Range<u64> {
    let start = range.start - range.start % PAGE;
    if range.is_empty() {
        return start..start;
    }
    // The last page of all 2^64 bytes would end at 2^64; its end is one byte less here. No file reaches it.
    start..range.end.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit cannot be reached by encrypting, so the counter is set close to it.
    #[test]
    fn key_at_its_limit_encrypts_the_last_page_and_refuses_the_next() {
        let key = PageKey::new(&mut [7; 32]);
        key.pages_encrypted.store(PAGES_PER_KEY_MAX - 1, Ordering::Relaxed);
        let place =
            PagePlace { incarnation: Incarnation(1), region: RegionIndex(2), epoch: Epoch(3), page: 4 };
        let (plain, mut into) = ([1; 2 * PAGE_BYTES], [9; 2 * PAGE_BYTES]);
        let mut tags = [None; 2];
        let spent = PageError::KeySpent { pages_encrypted: PAGES_PER_KEY_MAX - 1, pages: 2 };
        assert_eq!(key.encrypt(place, &plain, &mut into, &mut tags), Err(spent));
        assert!(into == [9; 2 * PAGE_BYTES] && tags == [None; 2], "a refusal writes nothing");
        let (plain, into, tags) = (&plain[..PAGE_BYTES], &mut into[..PAGE_BYTES], &mut tags[..1]);
        assert_eq!(key.encrypt(place, plain, into, tags), Ok(()));
        assert_eq!(tags[0].map(|tag| tag.nonce()), Some(PAGES_PER_KEY_MAX));
        assert_eq!(key.decrypt(place, tags, into), Ok(()));
        let spent = PageError::KeySpent { pages_encrypted: PAGES_PER_KEY_MAX, pages: 1 };
        assert_eq!(key.encrypt(place, plain, into, tags), Err(spent));
        assert_eq!(into, plain);
    }
}
