//! Memory of a window: which node holds which of its bytes.

use farpool_files::beneath::{NodeLinks, Stretch, stretches};
use farpool_files::{Error, ErrorKind, FarFile};
use farpool_wire::control::{LanePart, LanePeer};
use farpool_wire::limits::{LANE_PARTS_MAX, LANE_PEERS_MAX};
use farpool_wire::{List, NodeId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Locations of the bytes of a range of a file.
#[derive(Clone)]
pub(crate) struct Locations {
    /// Number of these locations. No others of this process have it.
    pub(crate) number: u64,
    /// Range of the file, in bytes.
    pub(crate) range: Range<u64>,
    /// Where the bytes are, each with the node that holds them or loads them.
    stretches: Vec<(Stretch, Arc<NodeLinks>)>,
    /// Nodes with the bytes that each holds or loads, the node with most bytes first.
    nodes: Vec<(Arc<NodeLinks>, u64)>,
    /// True if some bytes have to be computed.
    pub(crate) is_degraded: bool,
    /// Nodes whose bytes cannot all be had without them.
    irreplaceable: BTreeSet<NodeId>,
}

impl Locations {
    /// Looks up the locations. The file must be published or sealed. Bytes that have to be computed from parity are
    /// given to the other nodes in turn: functions that run there load them. Nodes named in `without` are left out
    /// where others have the bytes.
    ///
    /// Errors: [`ErrorKind::Invalid`] if the file can still be written; [`ErrorKind::Lost`] if bytes are lost.
    pub(crate) fn of(file: &FarFile, range: Range<u64>, without: &[String]) -> Result<Locations, Error> {
        let Some(found) = stretches(file, &range, without)? else {
            let message = "functions run over published files only; publish the file first";
            return Err(Error::new(ErrorKind::Invalid, message));
        };
        let (mut living, mut irreplaceable) = (BTreeMap::new(), BTreeSet::new());
        for (stretch, region) in found.iter().filter_map(|one| Some((one, one.region.as_ref()?))) {
            let id = region.node.info.node;
            living.entry(id).or_insert_with(|| Arc::clone(&region.node));
            if !stretch.has_others {
                irreplaceable.insert(id);
            }
        }
        let is_degraded = found.iter().any(|stretch| stretch.region.is_none());
        let mut others = living.values().cycle();
        let with_node = |stretch: Stretch| {
            let holder = stretch.region.as_ref().map(|region| &region.node);
            let node = holder.or_else(|| others.next()).cloned();
            node.map(|node| (stretch, node)).ok_or_else(nowhere)
        };
        let stretches = found.into_iter().map(with_node).collect::<Result<Vec<_>, _>>()?;
        let mut nodes: BTreeMap<NodeId, (Arc<NodeLinks>, u64)> = BTreeMap::new();
        for (stretch, node) in &stretches {
            nodes.entry(node.info.node).or_insert_with(|| (Arc::clone(node), 0)).1 +=
                stretch.file.end - stretch.file.start;
        }
        let mut nodes: Vec<_> = nodes.into_values().collect();
        nodes.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Locations { number, range, stretches, nodes, is_degraded, irreplaceable })
    }

    /// Returns the node that holds a byte of the window, or loads it.
    pub(crate) fn node_of(&self, byte: u64) -> Option<&Arc<NodeLinks>> {
        let at = self.range.start.checked_add(byte)?;
        let after = self.stretches.partition_point(|(stretch, _)| stretch.file.start <= at);
        let (stretch, node) = self.stretches.get(after.checked_sub(1)?)?;
        stretch.file.contains(&at).then_some(node)
    }

    /// Returns the nodes with the bytes that each holds or loads, the node with most bytes first.
    pub(crate) fn nodes(&self) -> &[(Arc<NodeLinks>, u64)] {
        &self.nodes
    }

    /// Returns the stretches that a node holds.
    fn held_by(&self, node: &NodeLinks) -> impl Iterator<Item = &Stretch> {
        let id = node.info.node;
        let is_there = move |stretch: &&Stretch| {
            stretch.region.as_ref().is_some_and(|region| region.node.info.node == id)
        };
        self.stretches.iter().map(|(stretch, _)| stretch).filter(is_there)
    }

    /// Reports whether all bytes that a node holds can be had without it.
    pub(crate) fn has_others(&self, node: &NodeLinks) -> bool {
        !self.irreplaceable.contains(&node.info.node)
    }

    /// Reports whether there is a node whose bytes can all be had without it.
    pub(crate) fn has_any_other(&self) -> bool {
        self.irreplaceable.len() < self.nodes.len()
    }

    /// Reports whether all nodes answered when they were last asked, and have not lost the bytes.
    pub(crate) fn is_live(&self) -> bool {
        self.stretches.iter().all(|(stretch, node)| {
            !node.is_suspect() && stretch.region.as_ref().is_none_or(|region| region.check_usable().is_ok())
        })
    }

    /// Reports whether none of these nodes is needed.
    pub(crate) fn avoids(&self, nodes: &[String]) -> bool {
        let is_named = |node: &NodeLinks| nodes.iter().any(|name| **name == *node.info.name);
        !self.nodes.iter().any(|(node, _)| is_named(node))
    }

    /// Reports whether the bytes lie in the same regions.
    pub(crate) fn is_same(&self, other: &Locations) -> bool {
        let regions = |of: &Locations| -> Vec<_> {
            of.stretches.iter().map(|(stretch, _)| stretch.region.as_ref().map(Arc::as_ptr)).collect()
        };
        regions(self) == regions(other)
    }

    /// Returns the other nodes that hold bytes of the window, with the parts that they hold. None if they are more than
    /// one request can name.
    pub(crate) fn peers(&self, of: &NodeLinks) -> List<LanePeer, LANE_PEERS_MAX> {
        let others = self.nodes.iter().filter(|(node, _)| node.info.node != of.info.node);
        let peer = |(node, _): &(Arc<NodeLinks>, u64)| {
            let parts = self.parts(node).ok()?;
            Some(LanePeer { node: node.info.node, address: node.info.address.clone(), parts })
        };
        let peers: Vec<LanePeer> = others.filter_map(peer).collect();
        let fits = self.stretches.len() <= LANE_PARTS_MAX / 2;
        List::new(peers).ok().filter(|_| fits).unwrap_or_default()
    }

    /// Returns the names of these nodes.
    pub(crate) fn names(&self, peers: &[LanePeer]) -> Vec<String> {
        let name = |peer: &LanePeer| {
            let node = self.nodes.iter().find(|(node, _)| node.info.node == peer.node);
            node.map_or(peer.node.to_string(), |(node, _)| node.info.name.to_string())
        };
        peers.iter().map(name).collect()
    }

    /// Returns the parts of the window that a node holds.
    pub(crate) fn parts(&self, node: &NodeLinks) -> Result<List<LanePart, LANE_PARTS_MAX>, Error> {
        let mut parts = Vec::new();
        for stretch in self.held_by(node) {
            let Some(region) = &stretch.region else { continue };
            region.check_usable()?;
            parts.push(LanePart {
                region: region.region,
                epoch: region.epoch,
                handle: region.handle,
                offset: stretch.offset,
                bytes: stretch.file.end - stretch.file.start,
                at: stretch.file.start - self.range.start,
            });
        }
        List::new(parts).map_err(|error| Error::new(ErrorKind::Invalid, format!("the window: {error}")))
    }
}

/// Returns the error for a window of which no node holds bytes.
pub(crate) fn nowhere() -> Error {
    Error::new(ErrorKind::Lost, "no node holds bytes of the window")
}
