//! System calls that request memory of a NUMA node, and that ask where memory lies.
//!
//! The idea: a policy that the kernel accepts proves nothing. The kernel accepts nodes that do not exist if one of them
//! does, and takes memory of another node if one is full and only preferred. [`prefer`] and [`bind`] make the request,
//! and [`nodes_of`] asks for the result. Only the result counts.
#![allow(unsafe_code)]

use rustix::io::Errno;
use std::ffi::{c_int, c_long, c_ulong, c_void};
use std::ptr;

/// Mode of `mbind`, from `linux/mempolicy.h`: use this node, or another one if it is full.
const MPOL_PREFERRED: c_int = 1;
/// Mode of `mbind`: use this node only.
const MPOL_BIND: c_int = 2;
/// Number of NUMA nodes that a bit mask for the Linux kernel can name. Linux supports at most 1,024.
pub(crate) const NODES_MAX: u32 = 1_024;
const MASK_BITS: usize = c_ulong::BITS as usize;

/// Requests that pages of a range, when they are first touched, come from `node` as long as it has free ones.
pub fn prefer(range: &[u8], node: u32) -> Result<(), Errno> {
    place(range.as_ptr(), range.len(), MPOL_PREFERRED, node)
}

/// Requests that pages of a range come from `node` only. Of a mapped memory file, the request also holds for pages that
/// the file gets by other means. Once the node has no free page, the kernel ends a process to get some.
pub(crate) fn bind(start: *const u8, bytes: usize, node: u32) -> Result<(), Errno> {
    place(start, bytes, MPOL_BIND, node)
}

fn place(start: *const u8, bytes: usize, mode: c_int, node: u32) -> Result<(), Errno> {
    let mut mask = [0 as c_ulong; NODES_MAX as usize / MASK_BITS];
    let word = mask.get_mut(node as usize / MASK_BITS).ok_or(Errno::INVAL)?;
    *word = 1 << (node as usize % MASK_BITS);
    // SAFETY: `mbind` decides which NUMA node later pages of this range come from. It changes no byte of the range. It
    // reads `NODES_MAX` bits of the mask, because Linux expects the number of bits plus one. The mask has that many
    // bits and outlives the call.
    let result = unsafe {
        libc::syscall(libc::SYS_mbind, start, bytes, mode, mask.as_ptr(), c_ulong::from(NODES_MAX) + 1, 0)
    };
    checked(result)
}

/// Returns the node of each page of a range, or a negative error number for a page that is not present.
pub fn nodes_of(range: &[u8], page_bytes: usize) -> Result<Vec<i32>, Errno> {
    nodes_from(range.as_ptr(), range.len(), page_bytes)
}

/// Does the same as [`nodes_of`] for a range that no Rust reference may point to.
pub(crate) fn nodes_from(start: *const u8, bytes: usize, page_bytes: usize) -> Result<Vec<i32>, Errno> {
    let offsets = (0..bytes).step_by(page_bytes);
    let pages: Vec<*const c_void> = offsets.map(|offset| start.wrapping_add(offset).cast()).collect();
    let mut nodes: Vec<c_int> = vec![-(libc::ENOENT); pages.len()];
    // SAFETY: without target nodes `move_pages` moves nothing. It reads `pages.len()` addresses, which it only looks
    // up, and writes `pages.len()` numbers. Both vectors have that length.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            pages.len() as c_ulong,
            pages.as_ptr(),
            ptr::null::<c_int>(),
            nodes.as_mut_ptr(),
            0,
        )
    };
    checked(result).map(|()| nodes)
}

fn checked(result: c_long) -> Result<(), Errno> {
    if result >= 0 {
        return Ok(());
    }
    let number = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    Err(Errno::from_raw_os_error(number))
}
