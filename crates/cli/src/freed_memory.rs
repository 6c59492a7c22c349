//! Keeping freed memory for the next use of it.
//!
//! glibc returns the end of its heaps to the system as soon as 128 KiB of it are free, and large blocks at once. A node
//! that runs programs, and a benchmark that takes results, free and want again some MiB for every row group: each time
//! a page fault for every 4 KiB, and zeroing by the kernel, took half of their time. Both thresholds rise by themselves
//! when a large block is freed (mallopt(3), "dynamic mmap threshold"), so one is.

/// The largest that counts, with its header: 32 MiB on 64-bit systems. None of it is touched.
const BLOCK_BYTES: usize = (32 << 20) - (64 << 10);

/// Has the allocator keep up to 64 MiB at the end of each of its heaps. Without effect on allocators that are no glibc.
pub(crate) fn keep() {
    let block: Vec<u8> = Vec::with_capacity(BLOCK_BYTES);
    drop(std::hint::black_box(block));
}
