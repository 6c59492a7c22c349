//! Building of an order to make copies of runs: which bytes it names, and where they lie in the region of the node.

use super::RegionKey;
use super::records::region_key;
use farpool_wire::List;
use farpool_wire::control::*;
use farpool_wire::ids::NodeId;
use farpool_wire::limits::*;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes to which the place of a copy is aligned as the place that it was read from is. Ranges of files that functions
/// see consist of pages.
const ALIGNMENT: u64 = WINDOW_PAGE_BYTES;

/// Builder of an order: packs runs into one region.
pub(super) struct OrderBuilder {
    region_bytes: u64,
    /// First free byte of the region.
    end: u64,
    pub(super) runs: Vec<RepairRun>,
    pub(super) regions: Vec<NamedRegion>,
    indices: BTreeMap<RegionKey, u32>,
    nodes: BTreeSet<NodeId>,
    pub(super) sources: Vec<List<RunCopy, RUN_COPIES_MAX>>,
    pub(super) computed: Vec<ComputedRun>,
}

/// Shard that can be read: its number, its bytes, and its place.
pub(super) type Shard<'a> = (u8, u32, &'a NamedRegion, u64);

impl OrderBuilder {
    /// Begins an order for a node that has regions of this size.
    pub(super) fn new(region_bytes: u64) -> OrderBuilder {
        OrderBuilder {
            region_bytes,
            end: 0,
            runs: Vec::new(),
            regions: Vec::new(),
            indices: BTreeMap::new(),
            nodes: BTreeSet::new(),
            sources: Vec::new(),
            computed: Vec::new(),
        }
    }

    /// Adds a run with the copies to read it from or the shards to compute it from, if there are any and it fits. A
    /// copy of the run was at the offset `before` of its region. Returns false if the order is full.
    pub(super) fn add(
        &mut self,
        index: u32,
        run: &NamedRun,
        before: u64,
        sources: &[(&NamedRegion, u64)],
        shards: Option<(&Stripe, Vec<Shard<'_>>)>,
    ) -> bool {
        let read = sources.iter().map(|(region, _)| *region);
        let of_shards = shards.iter().flat_map(|(_, shards)| shards).map(|(_, _, region, _)| *region);
        let read: Vec<&NamedRegion> = read.chain(of_shards).collect();
        if read.is_empty() {
            return true;
        }
        let before = sources.first().map_or(before, |(_, offset)| *offset);
        let offset = self.end + (before % ALIGNMENT + ALIGNMENT - self.end % ALIGNMENT) % ALIGNMENT;
        let end = offset + u64::from(run.bytes);
        if end > self.region_bytes {
            // A run that is longer than the region does not hold up the others.
            return self.runs.is_empty();
        }
        let fresh = read.iter().filter(|region| !self.indices.contains_key(&region_key(region))).count();
        let nodes = read.iter().filter(|region| !self.nodes.contains(&region.node)).count();
        if self.runs.len() == REPAIR_RUNS_MAX
            || shards.is_some() && self.computed.len() == REPAIR_COMPUTED_MAX
            || self.regions.len() + fresh > REPAIR_REGIONS_MAX
            || self.nodes.len() + nodes > REPAIR_NODES_MAX
        {
            return false;
        }
        let copies = sources.iter().map(|(region, offset)| self.copy_at(region, *offset)).collect();
        if let Some((stripe, shards)) = shards {
            let source = |(shard, bytes, region, offset): Shard<'_>| ShardSource {
                shard,
                bytes,
                copy: self.copy_at(region, offset),
            };
            let sources = shards.into_iter().map(source).collect();
            let (data, parity) = (stripe.data.len() as u8, stripe.parity.len() as u8);
            let shard = stripe.shards().position(|run| run == index as usize).unwrap_or_default() as u8;
            // A stripe has no more shards than the list may have.
            let sources = List::new(sources).unwrap_or_default();
            self.computed.push(ComputedRun { run: self.runs.len() as u32, data, parity, shard, sources });
        }
        let NamedRun { bytes, checksum, .. } = *run;
        self.runs.push(RepairRun { run: index, bytes, checksum, offset: offset as u32 });
        self.sources.push(List::new(copies).unwrap_or_default());
        self.end = end;
        true
    }

    /// Notes a region that is read from, and returns a place in it.
    fn copy_at(&mut self, region: &NamedRegion, offset: u64) -> RunCopy {
        let next = self.regions.len() as u32;
        let index = *self.indices.entry(region_key(region)).or_insert(next);
        if index == next {
            self.regions.push(region.clone());
            self.nodes.insert(region.node);
        }
        // Offsets in regions are below 4 GiB.
        RunCopy { region: index, offset: offset as u32 }
    }
}
