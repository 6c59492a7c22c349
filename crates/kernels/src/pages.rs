//! Memory for large hash tables that are read at random.

/// Least size in bytes of a table that gets large pages. The CPU caches the address translations of some thousand pages
/// of 4 KiB, so smaller tables gain little.
#[cfg(target_os = "linux")]
const LARGE_BYTES: usize = 8 << 20;

/// Returns this many zero words. Large tables lie in pages of 2 MiB if the system has some to spare. With pages of 4
/// KiB, a random read also misses the cache of translations and reads page tables; in a virtual machine each such
/// miss costs several reads.
pub fn zeroed(words: usize) -> Vec<u64> {
    let words = vec![0; words];
    #[cfg(target_os = "linux")]
    if size_of_val(words.as_slice()) >= LARGE_BYTES {
        advise(&words);
    }
    words
}

/// Asks the system for large pages for this memory, of which no page was touched yet. A refusal changes only the speed.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn advise(words: &[u64]) {
    const PAGE_BYTES: usize = 4096;
    let start = words.as_ptr().cast::<u8>();
    let before = start.align_offset(PAGE_BYTES);
    let bytes = size_of_val(words).saturating_sub(before) / PAGE_BYTES * PAGE_BYTES;
    // SAFETY: the range is rounded to whole pages of this vector, and the size of pages does not change what they hold.
    let _ = unsafe {
        rustix::mm::madvise(
            start.wrapping_add(before).cast_mut().cast(),
            bytes,
            rustix::mm::Advice::LinuxHugepage,
        )
    };
}
