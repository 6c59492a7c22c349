//! Memory of a window: which node holds which of its bytes.

use farpool_files::beneath::{NodeLinks, Stretch, stretches};
use farpool_files::{Error, ErrorKind, FarFile};
use farpool_wire::control::LanePart;
use farpool_wire::limits::LANE_PARTS_MAX;
use farpool_wire::{List, NodeId};
use std::collections::BTreeMap;
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
    stretches: Vec<Stretch>,
}

impl Locations {
    /// Looks up the locations. The file must be published or sealed.
    pub(crate) fn of(file: &FarFile, range: Range<u64>) -> Result<Locations, Error> {
        let Some(stretches) = stretches(file, &range)? else {
            let message = "functions run over published files only; publish the file first";
            return Err(Error::new(ErrorKind::Invalid, message));
        };
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Ok(Locations { number: NEXT.fetch_add(1, Ordering::Relaxed), range, stretches })
    }

    /// Returns the node that holds a byte of the window.
    pub(crate) fn node_of(&self, byte: u64) -> Option<&Arc<NodeLinks>> {
        let at = self.range.start.checked_add(byte)?;
        let after = self.stretches.partition_point(|stretch| stretch.file.start <= at);
        let stretch = self.stretches.get(after.checked_sub(1)?)?;
        stretch.file.contains(&at).then_some(&stretch.region.node)
    }

    /// Returns the nodes with the bytes that each holds, the node with most bytes first.
    pub(crate) fn nodes(&self) -> Vec<(Arc<NodeLinks>, u64)> {
        let mut bytes: BTreeMap<NodeId, (Arc<NodeLinks>, u64)> = BTreeMap::new();
        for stretch in &self.stretches {
            let node = &stretch.region.node;
            bytes.entry(node.info.node).or_insert_with(|| (Arc::clone(node), 0)).1 +=
                stretch.file.end - stretch.file.start;
        }
        let mut nodes: Vec<_> = bytes.into_values().collect();
        nodes.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        nodes
    }

    /// Returns the parts of the window that a node holds.
    pub(crate) fn parts(&self, node: &NodeLinks) -> Result<List<LanePart, LANE_PARTS_MAX>, Error> {
        let mut parts = Vec::new();
        for stretch in self.stretches.iter().filter(|stretch| stretch.region.node.info.node == node.info.node)
        {
            stretch.region.check_usable()?;
            parts.push(LanePart {
                region: stretch.region.region,
                epoch: stretch.region.epoch,
                handle: stretch.region.handle,
                offset: stretch.offset,
                bytes: stretch.file.end - stretch.file.start,
                at: stretch.file.start - self.range.start,
            });
        }
        List::new(parts).map_err(|error| Error::new(ErrorKind::Invalid, format!("the window: {error}")))
    }
}
