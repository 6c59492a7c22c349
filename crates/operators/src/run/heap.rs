//! What a run asks of the process's allocator.

use std::hint::black_box;
use std::sync::Once;

/// The largest block that glibc's malloc learns from, less room for its own header.
const LEARNT_BYTES: usize = (32 << 20) - (64 << 10);

/// Has freed blocks kept for the next batch instead of given back to the system.
///
/// Each batch that leaves is a few new columns, and frees those of the batch before it. glibc's malloc gives what is
/// free at the end of its heap back at once, from 128 KiB on, and each page of the next batch then costs a fault: a
/// selection of half the rows ran at a fifth of its speed. It raises that limit to twice the largest block that has
/// been freed, so one is, once, whose pages are never touched. Other allocators do not mind.
pub(super) fn keep_freed_blocks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| drop(black_box(Vec::<u8>::with_capacity(LEARNT_BYTES))));
}
