//! Memory files: the descriptors behind shared regions and fence words.
//!
//! The idea is in the seals. A client gets the file of its lease writable, and must not be able to turn it against
//! the node. So the file is sealed `SHRINK`, `GROW` and `SEAL`:
//! * without `SHRINK` a client could truncate it, and the node's next copy would die of SIGBUS. The node gives up
//!   truncating as well, and does not need it: punching returns the pages at once, and the file itself ends with its
//!   last holder.
//! * without `GROW` a client could fill more memory than it leased.
//! * without `SEAL` a client could add `FUTURE_WRITE`, after which punching is refused (EPERM) and the node could not
//!   take its memory back at once (invariant I9). For the same reason the node never sets it on a lease's file.
//!
//! The file of the fence words is the opposite case: only the node writes it, through a mapping made before
//! `FUTURE_WRITE` forbids every other one.
//!
//! A file is never used for a second lease: whoever still maps an old one sees zeros, not the next holder's bytes.

use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Number of bits that the logarithm of the page size is shifted by in the flags, from `linux/memfd.h`.
const SIZE_SHIFT: u32 = 26;

/// Creates a file of this many zero bytes, with no page present, of huge pages of a size or of ordinary ones. `bytes`
/// is a multiple of the page size.
pub(crate) fn create(name: &str, bytes: u64, huge_page_bytes: Option<u64>) -> Result<OwnedFd, Errno> {
    // The size of huge pages stands in the flags as its logarithm.
    let size = |page_bytes: u64| MemfdFlags::from_bits_retain(page_bytes.trailing_zeros() << SIZE_SHIFT);
    let pages = huge_page_bytes.map_or(MemfdFlags::empty(), |bytes| MemfdFlags::HUGETLB | size(bytes));
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | pages;
    let fd = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before 6.3 do not know the flag `NOEXEC_SEAL`; later ones may insist on it.
        Err(Errno::INVAL) => memfd_create(name, flags)?,
        other => other?,
    };
    ftruncate(&fd, bytes)?;
    Ok(fd)
}

/// Makes all pages of a file of ordinary pages present. Missing memory must be an error here, not a signal in the
/// middle of a copy. The pages come from the NUMA node to which a mapping of the file is bound.
pub(crate) fn allocate(fd: &OwnedFd, bytes: u64) -> Result<(), Errno> {
    fallocate(fd, FallocateFlags::empty(), 0, bytes)
}

/// Forbids everybody to change the size and the seals of a file, which clients may write.
pub(crate) fn seal_for_lease(fd: &OwnedFd) -> Result<(), Errno> {
    fcntl_add_seals(fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
}

/// Forbids everybody to write the file, except through mappings that exist.
pub(crate) fn seal_for_readers(fd: &OwnedFd) -> Result<(), Errno> {
    fcntl_add_seals(fd, SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
}

/// Returns all pages of the file to the host, whoever maps them. They read as zeros from here on.
pub(crate) fn punch(fd: BorrowedFd<'_>, bytes: u64) -> Result<(), Errno> {
    fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, bytes)
}

/// Opens the same file once more, without the right to write. It guards against mistakes only: a process of the
/// node's own user can reopen the file for writing through `/proc`, but it could also trace the node.
pub(crate) fn reopen_read_only(fd: &OwnedFd) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}
