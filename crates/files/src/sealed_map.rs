//! Maps of published files, made of what the broker says about them.

use crate::error::{Error, ErrorKind};
use crate::node_links::{LeasedRegion, NodeLinks};
use crate::options::Protection;
use crate::plan::{Allocation, EXTENT_BYTES_MAX, FileMap, Stripe, Stripes};
use crate::session::Session;
use farpool_wire::control::*;
use farpool_wire::{Name, NodeId};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Most bytes of a published file that is opened, with its parity: its map takes some 100 bytes for each MiB.
const SEALED_BYTES_MAX: u64 = 4 << 40;

/// Returns the protection of a published file.
pub(crate) fn protection_of(opened: &PlacesOpened) -> Protection {
    let stripes = opened.places.stripes.iter();
    // Some stripes may have fewer runs with bytes of the file.
    match stripes.max_by_key(|stripe| stripe.data.len()) {
        Some(stripe) => Protection::Rs { data: stripe.data.len() as u8, parity: stripe.parity.len() as u8 },
        None if opened.copies_wanted > 1 => Protection::Mirror,
        None => Protection::None,
    }
}

/// Map of a published file, and its stripes if it has some.
type SealedMap = (FileMap<Arc<LeasedRegion>>, Option<Arc<Stripes>>);

/// Builds the map of the published file `name`, and its stripes if it has some. Leaves out copies at nodes that are
/// lost or cannot be reached.
///
/// Errors: some bytes have no other copy, and cannot be computed.
pub(crate) fn sealed_map(session: &Session, name: &Name, opened: &PlacesOpened) -> Result<SealedMap, Error> {
    let wrong = |what: &str| Error::new(ErrorKind::Refused, format!("the broker's answer lists {what}"));
    let mut places = opened.places.clone();
    places.bind(name);
    // Links to each node, or why there are none.
    let mut nodes: BTreeMap<NodeId, Result<Arc<NodeLinks>, Error>> = BTreeMap::new();
    for info in opened.nodes.iter() {
        let links = session.leases.links(info);
        if let Err(error) = &links
            && !matches!(error.kind(), ErrorKind::Lost | ErrorKind::Unreachable)
        {
            return Err(error.clone());
        }
        nodes.insert(info.node, links);
    }
    let mut regions: Vec<Result<Arc<LeasedRegion>, Error>> = Vec::with_capacity(places.regions.len());
    for region in places.regions.iter() {
        let undescribed = || wrong("a region of a node that it does not describe");
        let links = nodes.get(&region.node).ok_or_else(undescribed)?;
        regions.push(links.clone().map(|node| {
            Arc::new(LeasedRegion {
                id: LeasedRegion::NO_ID,
                node,
                region: region.region,
                epoch: region.epoch,
                handle: region.handle,
                is_leased: false,
                is_taken: AtomicBool::new(false),
            })
        }));
    }
    let all_bytes: u64 = places.runs.iter().map(|run| u64::from(run.bytes)).sum();
    if all_bytes > SEALED_BYTES_MAX {
        return Err(wrong(&format!("{all_bytes} bytes; at most {SEALED_BYTES_MAX} are read")));
    }
    if !places.has_sound_stripes() {
        return Err(wrong("stripes that do not fit the runs"));
    }
    let mut extents: Vec<(u32, Vec<Allocation<Arc<LeasedRegion>>>)> = Vec::new();
    let mut ranges: Vec<Range<u64>> = Vec::with_capacity(places.runs.len());
    // Errors of the runs that no node has.
    let mut lost: BTreeMap<usize, Error> = BTreeMap::new();
    for (index, run) in places.runs.iter().enumerate() {
        let start = ranges.last().map_or(0, |before| before.end);
        ranges.push(start..start + u64::from(run.bytes));
        let mut copies = Vec::with_capacity(run.copies.len());
        let mut missing = None;
        for copy in run.copies.iter() {
            match regions.get(copy.region as usize) {
                Some(Ok(region)) => copies.push((region, u64::from(copy.offset))),
                Some(Err(error)) => missing = Some(error.clone()),
                None => missing = Some(wrong("a run without a region")),
            }
        }
        if copies.is_empty() {
            lost.insert(index, missing.unwrap_or_else(|| wrong("a run without a copy")));
        }
        for begin in (0..u64::from(run.bytes)).step_by(EXTENT_BYTES_MAX as usize) {
            let bytes = (u64::from(run.bytes) - begin).min(EXTENT_BYTES_MAX) as u32;
            let copies = copies.iter().map(|(region, offset)| Allocation {
                region: Arc::clone(region),
                offset: offset + begin,
                bytes,
            });
            extents.push((bytes, copies.collect()));
        }
    }
    for stripe in places.stripes.iter() {
        let are_lost: Vec<usize> = stripe.shards().filter(|shard| lost.contains_key(shard)).collect();
        if are_lost.len() <= stripe.parity.len() {
            are_lost.iter().for_each(|shard| drop(lost.remove(shard)));
        }
    }
    let data = places.data().len();
    if let Some((_, error)) = lost.into_iter().find(|(run, _)| *run < data) {
        return Err(error);
    }
    let of = |stripe: &farpool_wire::control::Stripe| Stripe {
        shards: stripe.shards().filter_map(|shard| ranges.get(shard).cloned()).collect(),
        data: stripe.data.len(),
    };
    let stripes =
        (!places.stripes.is_empty()).then(|| Arc::new(Stripes::new(places.stripes.iter().map(of).collect())));
    let mut map = FileMap::sealed(extents);
    map.end_at(places.bytes());
    Ok((map, stripes))
}
