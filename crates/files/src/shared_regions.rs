//! Small files that will be published share regions until then. When one is sealed, nodes copy its bytes into
//! segments, which published files share.

use crate::error::{Error, ErrorKind};
use crate::file::FileInner;
use crate::leases::{FULL_TRIES, Waits};
use crate::node_batches::copy_bytes;
use crate::node_links::LeasedRegion;
use crate::plan::{Allocation, CopyId, Segment};
use farpool_wire::{Code, Name};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

type Place = Allocation<Arc<LeasedRegion>>;
/// Place by its region's number in this session, and its offset there.
type PlaceKey = (u64, u64);

fn key(place: &Place) -> PlaceKey {
    (place.region.id, place.offset)
}

fn is_shared(place: &Place, shared: &BTreeSet<u64>) -> bool {
    place.region.is_leased && shared.contains(&place.region.id)
}

impl FileInner {
    /// Has nodes copy what lies in regions that files share into segments. The caller makes sure that nobody writes
    /// the file. What was copied stays so after an error, and the rest can be copied later.
    pub(crate) fn seal_shared(&self, waits: Waits) -> Result<(), Error> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.copy_shared(waits) {
                Err(error) if error.kind() == ErrorKind::Exhausted && tries < FULL_TRIES => {
                    self.session.base.pause(20 << tries)?;
                }
                copied => return copied,
            }
        }
    }

    fn copy_shared(&self, waits: Waits) -> Result<(), Error> {
        let shared = self.shared_places();
        if shared.is_empty() {
            return Ok(());
        }
        let mut copies: BTreeMap<PlaceKey, Place> = BTreeMap::new();
        let sealed = self.session.leases.seal_ranges(&shared, waits, |place, copy, checksum| {
            let at = (copy.region.node.info.incarnation, copy.region.region, copy.offset as u32);
            self.copied.lock().insert(at, (copy.bytes, checksum));
            copies.insert(key(place), copy);
        });
        let left = self.state().map.replace_places(|place| copies.get(&key(place)).cloned());
        self.session.leases.give_back(left);
        sealed
    }

    /// Returns the places in regions that files share, up to the end of the file.
    fn shared_places(&self) -> Vec<Place> {
        let shared = self.session.leases.shared_by_files();
        let state = self.state();
        let length = state.map.length();
        let mut places = Vec::new();
        for (file, copies) in state.map.extents().filter(|(file, _)| file.start < length) {
            let bytes = (length.min(file.end) - file.start) as u32;
            let copies = copies.iter().map(|copy| &copy.allocation);
            let shared = copies.filter(|place| is_shared(place, &shared));
            places.extend(shared.map(|place| Allocation { bytes, ..place.clone() }));
        }
        places
    }

    /// Copies what lies in regions that files share into regions of this file, which can be sealed as a whole, or be
    /// shards.
    pub(crate) fn leave_shared(&self) -> Result<(), Error> {
        let extents: Vec<Vec<Place>> = {
            let state = self.state();
            state
                .map
                .extents()
                .map(|(_, copies)| copies.iter().map(|copy| copy.allocation.clone()).collect())
                .collect()
        };
        let leases = &self.session.leases;
        let shared = leases.shared_by_files();
        let mut moved: BTreeMap<PlaceKey, Place> = BTreeMap::new();
        for places in extents {
            for place in places.iter().filter(|place| is_shared(place, &shared)) {
                let others = places.iter().filter(|other| key(other) != key(place));
                let beside: Vec<Name> =
                    others.map(|other| other.region.node.info.host_label.clone()).collect();
                let fresh = leases.allocate(self.group, place.bytes, &beside, self.patience)?;
                let segment = |place: &Place| Segment {
                    copy: CopyId::default(),
                    region: Arc::clone(&place.region),
                    offset: place.offset,
                    file: 0..place.bytes.into(),
                };
                if let Err(error) = copy_bytes(&self.session, &segment(place), &segment(&fresh)) {
                    leases.give_back(vec![fresh]);
                    return Err(error);
                }
                moved.insert(key(place), fresh);
            }
        }
        let left = self.state().map.replace_places(|place| moved.get(&key(place)).cloned());
        leases.give_back(left);
        Ok(())
    }

    /// Reports whether an error says that a node copies nothing into segments: it or the broker knows none, the node is
    /// drained, or too many ranges there are pending.
    pub(crate) fn has_no_segments_there(error: &Error) -> bool {
        error.refusal().is_some_and(|refusal| {
            matches!(refusal.code, Code::Unsupported | Code::Draining | Code::LimitReached)
        })
    }
}
