//! Setting of the process's allocator.

use std::hint::black_box;
use std::sync::Once;

/// Bytes of the largest block that glibc's malloc adapts its limit to, less room for its own header.
const LEARNT_BYTES: usize = (32 << 20) - (64 << 10);

/// Makes the allocator keep freed blocks for the next batch, instead of returning them to the system.
///
/// Each batch of output consists of a few new columns, and frees those of the batch before it. glibc's malloc
/// returns free memory at the end of its heap to the system from 128 KiB on. Each page of the next batch then costs a
/// page fault: a selection of half the rows ran at a fifth of its speed. glibc raises that limit to twice the largest
/// block that was ever freed. So one large block is freed here once, without touching its pages. Other allocators are
/// not affected.
pub(super) fn keep_freed_blocks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| drop(black_box(Vec::<u8>::with_capacity(LEARNT_BYTES))));
}
