//! Memory for tables that are looked up all over.

/// Bytes from which on a table gets large pages: the CPU remembers some thousand places of pages.
#[cfg(target_os = "linux")]
const LARGE_BYTES: usize = 8 << 20;

/// So many words that are zero. Where the system has pages of 2 MiB to spare, long tables lie in those: a look at a
/// page of 4 KiB costs two more, at where it lies, in a virtual machine each of them several.
pub fn zeroed(words: usize) -> Vec<u64> {
    let words = vec![0; words];
    #[cfg(target_os = "linux")]
    if size_of_val(words.as_slice()) >= LARGE_BYTES {
        advise(&words);
    }
    words
}

/// Asks for large pages where nothing has been touched yet. That it is refused changes nothing but the speed.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn advise(words: &[u64]) {
    const PAGE_BYTES: usize = 4096;
    let start = words.as_ptr().cast::<u8>();
    let before = start.align_offset(PAGE_BYTES);
    let bytes = size_of_val(words).saturating_sub(before) / PAGE_BYTES * PAGE_BYTES;
    // SAFETY: the pages are this vector's alone, and which size they have changes nothing of what they hold.
    let _ = unsafe {
        rustix::mm::madvise(
            start.wrapping_add(before).cast_mut().cast(),
            bytes,
            rustix::mm::Advice::LinuxHugepage,
        )
    };
}
