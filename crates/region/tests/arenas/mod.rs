//! Small arenas, and handles that show their epoch, for the tests of this crate.
#![allow(dead_code)]

use farpool_region::{Arena, ArenaOptions};
use farpool_wire::{Epoch, Handle, RegionIndex};
use std::fs::read_to_string;

pub const MIB: u64 = 1 << 20;
pub const R0: RegionIndex = RegionIndex(0);
pub const R1: RegionIndex = RegionIndex(1);

/// Returns an arena of `region_count` regions of 1 MiB.
pub fn small_arena(region_count: u32) -> Arena {
    Arena::new(&ArenaOptions { huge_pages: true, ..ArenaOptions::new(MIB, region_count) }).unwrap()
}

/// Returns a handle whose two halves are both the epoch, so that a torn one shows.
pub fn handle_of(epoch: u64) -> Handle {
    Handle(u128::from(epoch) << 64 | u128::from(epoch))
}

/// Opens a region for whoever shows the handle of this epoch, to read and to write.
pub fn open(arena: &Arena, region: RegionIndex, epoch: u64) {
    arena.open(region, Epoch(epoch), Some(handle_of(epoch)), None).unwrap();
}

/// Opens a region as sealed: for whoever shows the handle of this epoch, only to read.
pub fn open_sealed(arena: &Arena, region: RegionIndex, epoch: u64) {
    arena.open(region, Epoch(epoch), None, Some(handle_of(epoch))).unwrap();
}

pub fn write(arena: &Arena, region: RegionIndex, offset: u64, bytes: &[u8]) {
    arena.enter(region).unwrap().copy_in(offset, bytes).unwrap();
}

pub fn read(arena: &Arena, region: RegionIndex, offset: u64, bytes: usize) -> Vec<u8> {
    let mut into = vec![0xEE; bytes];
    arena.enter(region).unwrap().copy_out(offset, &mut into).unwrap();
    into
}

/// Where the pages of regions are mapped: in the range of the arena, or in files of their own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mapped {
    Range,
    File,
}

/// Returns how many pages of 4 KiB this process has on a NUMA node, in memory that is bound to it.
pub fn pages_bound_to(node: u32, mapped: Mapped) -> u64 {
    let bound = format!(" bind:{node} ");
    let count = format!("N{node}=");
    let pages = |line: &str| {
        let pages = line.split_whitespace().find_map(|word| word.strip_prefix(&count));
        pages.map_or(0, |pages| pages.parse::<u64>().unwrap())
    };
    let maps = read_to_string("/proc/self/numa_maps").unwrap();
    let is_wanted = |line: &&str| {
        line.contains(&bound) && line.contains("memfd:farpool-region") == (mapped == Mapped::File)
    };
    maps.lines().filter(is_wanted).map(pages).sum()
}
