//! `Allocator`: allocates extents in leased regions, and finds regions that hold none.
//!
//! The idea: an extent is 1 to 16 units of 64 KiB. The number of units is a power of two, and the extent is aligned to
//! its size. A region is therefore a bitmap, and a free place is found by a few shifts. Consecutive extents come from
//! the nodes in turn, so a file is striped as it is written. Regions are grouped by the files that their loss or their
//! sealing (making them immutable) concerns: one group for each class, and one for each file that will be published,
//! because sealing works on whole regions.

use super::{EXTENT_BYTES_MAX, EXTENT_BYTES_MIN};
use farpool_wire::{FileClass, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// Files that the extents of a region may belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// All files of one class.
    Class(FileClass),
    /// One file, by its number in this session.
    File(u64),
}

/// Extent: a run of bytes in one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Allocation<R> {
    /// Region that the extent lies in.
    pub region: R,
    /// Offset of the first byte in the region.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u32,
}

#[derive(Clone, Debug)]
struct RegionUse {
    node: NodeId,
    group: Group,
    /// One bit for each 64 KiB, set while that is in use.
    units: Vec<u64>,
    unit_count: u32,
    used_units: u32,
    /// Units in which a write may still arrive late.
    late: BTreeSet<u32>,
    /// Units of extents that were given back and hold some of these. They are not used again, and stay marked as used.
    given_up_units: u32,
}

/// Use of all leased regions. Regions are identified by `R`.
#[derive(Clone, Debug)]
pub struct Allocator<R> {
    regions: BTreeMap<R, RegionUse>,
    /// Node of the last extent of each group. The next extent goes to the node after it.
    last_node: BTreeMap<Group, NodeId>,
}

impl<R: Copy + Ord> Default for Allocator<R> {
    fn default() -> Self {
        Allocator { regions: BTreeMap::new(), last_node: BTreeMap::new() }
    }
}

impl RegionUse {
    /// Returns the first free run of `count` units, aligned to its size. `count` is a power of two up to 16.
    fn find(&self, count: u32) -> Option<u32> {
        let run = (1u64 << count) - 1;
        for (index, word) in self.units.iter().enumerate() {
            if *word == u64::MAX {
                continue;
            }
            let mut shift = 0;
            while shift < 64 {
                let unit = index as u32 * 64 + shift;
                if unit + count > self.unit_count {
                    return None;
                }
                if word & (run << shift) == 0 {
                    return Some(unit);
                }
                shift += count;
            }
        }
        None
    }

    /// Returns the first free run of any number of units. It is aligned to the largest extent that will be allocated in
    /// it.
    fn find_run(&self, count: u32) -> Option<u32> {
        let step = count.checked_next_power_of_two()?.min(units(EXTENT_BYTES_MAX as u32));
        let is_used = |unit: u32| self.units[unit as usize / 64] & 1 << (unit % 64) != 0;
        let mut unit = 0u32;
        while unit.checked_add(count)? <= self.unit_count {
            match (unit..unit + count).rev().find(|unit| is_used(*unit)) {
                Some(used) => unit = (used + 1).next_multiple_of(step),
                None => return Some(unit),
            }
        }
        None
    }

    fn mark(&mut self, unit: u32, count: u32, used: bool) {
        let mask = ((1u64 << count) - 1) << (unit % 64);
        let word = &mut self.units[unit as usize / 64];
        if used {
            *word |= mask;
            self.used_units += count;
        } else {
            debug_assert_eq!(*word & mask, mask, "an extent is given back once");
            *word &= !mask;
            self.used_units -= count;
        }
    }
}

fn units(bytes: u32) -> u32 {
    debug_assert!(bytes.is_power_of_two());
    debug_assert!((EXTENT_BYTES_MIN..=EXTENT_BYTES_MAX).contains(&u64::from(bytes)));
    bytes / EXTENT_BYTES_MIN as u32
}

impl<R: Copy + Ord> Allocator<R> {
    /// Adds a leased region.
    pub fn add(&mut self, region: R, node: NodeId, group: Group, region_bytes: u64) {
        let unit_count = (region_bytes / EXTENT_BYTES_MIN) as u32;
        let units = vec![0; unit_count.div_ceil(64) as usize];
        self.regions.insert(
            region,
            RegionUse {
                node,
                group,
                units,
                unit_count,
                used_units: 0,
                late: BTreeSet::new(),
                given_up_units: 0,
            },
        );
    }

    /// Notes that a write may still arrive late at this offset of a region. The extent there is not used again after it
    /// is given back. Once the region holds no other extent it is idle, and its lease can be given up: its node then
    /// refuses such a write.
    pub fn note_late(&mut self, region: R, offset: u64) {
        if let Some(usage) = self.regions.get_mut(&region) {
            usage.late.insert((offset / EXTENT_BYTES_MIN) as u32);
        }
    }

    /// Reports whether a write may still arrive late somewhere in a region.
    pub fn has_late(&self, region: R) -> bool {
        self.regions.get(&region).is_some_and(|usage| !usage.late.is_empty())
    }

    /// Removes a region whose lease is over. Returns how many of its bytes were in use, without those that were given
    /// back.
    pub fn remove(&mut self, region: R) -> u64 {
        let in_use = |usage: RegionUse| usage.used_units - usage.given_up_units;
        let used_units = self.regions.remove(&region).map_or(0, in_use);
        u64::from(used_units) * EXTENT_BYTES_MIN
    }

    /// Allocates an extent on the next node, in turn, of those for which `fits` is true. `None` if no region of the
    /// group has room there.
    pub fn allocate(
        &mut self,
        group: Group,
        bytes: u32,
        fits: impl Fn(NodeId) -> bool,
    ) -> Option<Allocation<R>> {
        let count = units(bytes);
        let (region, unit) = self.place(group, count, fits, |usage| usage.find(count))?;
        self.mark_used(region, unit, count);
        Some(Allocation { region, offset: u64::from(unit) * EXTENT_BYTES_MIN, bytes })
    }

    /// Allocates consecutive extents in one region that hold at least `bytes` bytes, on the next node, in turn, of
    /// those for which `fits` is true. `None` if no region of the group has a free run of that length there.
    pub fn allocate_run(
        &mut self,
        group: Group,
        bytes: u64,
        fits: impl Fn(NodeId) -> bool,
    ) -> Option<Vec<Allocation<R>>> {
        let count = u32::try_from(bytes.div_ceil(EXTENT_BYTES_MIN)).ok().filter(|count| *count > 0)?;
        let (region, first) = self.place(group, count, fits, |usage| usage.find_run(count))?;
        let mut allocations = Vec::new();
        let (mut unit, mut left) = (first, count);
        while left > 0 {
            // The largest power of two that is left. The offset so far is a multiple of it, so the extent is aligned.
            let part = (1 << left.ilog2()).min(units(EXTENT_BYTES_MAX as u32));
            self.mark_used(region, unit, part);
            let bytes = part * EXTENT_BYTES_MIN as u32;
            allocations.push(Allocation { region, offset: u64::from(unit) * EXTENT_BYTES_MIN, bytes });
            unit += part;
            left -= part;
        }
        Some(allocations)
    }

    fn mark_used(&mut self, region: R, unit: u32, count: u32) {
        if let Some(usage) = self.regions.get_mut(&region) {
            usage.mark(unit, count, true);
        }
    }

    /// Finds a place for `count` units on the next node, and makes that node the last one used.
    fn place(
        &mut self,
        group: Group,
        count: u32,
        fits: impl Fn(NodeId) -> bool,
        find: impl Fn(&RegionUse) -> Option<u32>,
    ) -> Option<(R, u32)> {
        let last = self.last_node.get(&group).copied();
        // Collects the first region with room of each node, then takes the first node after the one used last.
        let mut places: BTreeMap<NodeId, (R, u32)> = BTreeMap::new();
        for (region, usage) in &self.regions {
            if usage.group == group
                && fits(usage.node)
                && usage.unit_count - usage.used_units >= count
                && !places.contains_key(&usage.node)
                && let Some(unit) = find(usage)
            {
                places.insert(usage.node, (*region, unit));
            }
        }
        let next = last.and_then(|last| {
            places.range((std::ops::Bound::Excluded(last), std::ops::Bound::Unbounded)).next()
        });
        let (node, (region, unit)) =
            next.or_else(|| places.first_key_value()).map(|(node, place)| (*node, *place))?;
        self.last_node.insert(group, node);
        Some((region, unit))
    }

    /// Frees an extent, for later use unless a write may still arrive in it. Does nothing if its region was removed.
    pub fn give_back(&mut self, allocation: Allocation<R>) {
        let (unit, count) = ((allocation.offset / EXTENT_BYTES_MIN) as u32, units(allocation.bytes));
        match self.regions.get_mut(&allocation.region) {
            Some(usage) if usage.late.range(unit..unit + count).next().is_some() => {
                usage.given_up_units += count
            }
            Some(usage) => usage.mark(unit, count, false),
            None => {}
        }
    }

    /// Returns the regions of a group that hold no extent.
    pub fn idle(&self, group: Group) -> Vec<R> {
        let is_idle = |usage: &RegionUse| usage.group == group && usage.used_units == usage.given_up_units;
        self.regions.iter().filter(|(_, usage)| is_idle(usage)).map(|(region, _)| *region).collect()
    }

    /// Returns the bytes of a group's regions, and how many of them are free.
    pub fn held(&self, group: Group) -> (u64, u64) {
        self.regions.values().filter(|usage| usage.group == group).fold((0, 0), |(all, free), usage| {
            let unit_bytes = EXTENT_BYTES_MIN;
            (
                all + u64::from(usage.unit_count) * unit_bytes,
                free + u64::from(usage.unit_count - usage.used_units) * unit_bytes,
            )
        })
    }

    /// Returns every region with its node and group.
    pub fn regions(&self) -> impl Iterator<Item = (R, NodeId, Group)> + '_ {
        self.regions.iter().map(|(region, usage)| (*region, usage.node, usage.group))
    }
}
