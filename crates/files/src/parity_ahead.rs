//! Parity that is written while a file is: runs are held in memory until their stripe is full.
//!
//! Stripes that do not get their parity here, as when a host is missing, are left to [`FileInner::add_parity`], which
//! reads their runs back when the file is sealed.

use crate::file::FileInner;
use crate::leases::Patience;
use crate::node_batches::{NodeBatches, failure, may_arrive_late};
use crate::node_links::LeasedRegion;
use crate::plan::{Allocation, FileMap, Segment, Stripe, StripeAhead};
use crate::session_core::PLACES_MAX;
use farpool_erasure::StripeCode;
use farpool_transport::WriteOp;
use farpool_wire::Name;
use farpool_wire::data::Span;
use farpool_wire::host_label::may_be_one_host;
use farpool_wire::limits::NAMED_EXTENTS_MAX;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a stripe that are held in memory, at most. Longer runs are read back.
const HELD_BYTES_MAX: u64 = 128 << 20;
/// Runs of a file in such stripes, at most: each is listed by itself, while parity that is added later is that of all
/// that a file has in a region.
const RUNS_MAX: usize = NAMED_EXTENTS_MAX / 2;

/// Run that waits until its stripe is full.
struct Held {
    range: Range<u64>,
    /// Label of its host.
    label: Name,
}

/// Stripe that is being filled. Its buffers are used again for the next one: fresh memory costs more than computing.
pub(crate) struct OpenStripe {
    held: Vec<Held>,
    /// Bytes of the runs that are held. As many buffers as the stripe will have runs.
    shards: Vec<Vec<u8>>,
    parity: Vec<Vec<u8>>,
    /// Labels of the hosts on which the runs of the stripe before lie. The next one begins elsewhere, so that all hosts
    /// get bytes of the file and not parity alone.
    before: Vec<Name>,
}

impl OpenStripe {
    pub(crate) fn new(data: u8, parity: u8) -> OpenStripe {
        let buffers = |count: u8| vec![Vec::new(); count.into()];
        OpenStripe { held: Vec::new(), shards: buffers(data), parity: buffers(parity), before: Vec::new() }
    }

    /// Returns the labels of hosts on which the next run must not lie.
    pub(crate) fn beside(&self) -> Vec<Name> {
        match self.held.is_empty() {
            true => self.before.clone(),
            false => self.held.iter().map(|held| held.label.clone()).collect(),
        }
    }

    /// Leaves the runs that are held without parity.
    pub(crate) fn give_up(&mut self) {
        self.held.clear();
        self.before.clear();
    }

    /// Adds a run of whole extents to which `bytes` were written, and no more will be. Writes the parity of the stripe
    /// once it is full.
    pub(crate) fn add(&mut self, file: &FileInner, range: Range<u64>, bytes: &[u8]) {
        let all = self.shards.len() + self.parity.len();
        let is_short = (range.end - range.start) * all as u64 <= HELD_BYTES_MAX;
        let shard = self.shards.get_mut(self.held.len()).filter(|_| is_short);
        let (Some(shard), Some(label)) = (shard, file.host_of(range.start)) else { return self.give_up() };
        shard.clear();
        shard.extend_from_slice(bytes);
        self.held.push(Held { range, label });
        if self.held.len() == self.shards.len() {
            self.close(file);
        }
    }

    /// Writes the parity of the runs that are held, though they are fewer than a stripe has. A file without a whole
    /// stripe gets a mirror instead.
    pub(crate) fn end(&mut self, file: &FileInner) {
        if !self.held.is_empty() && !file.state().ahead.is_empty() {
            self.close(file);
        }
    }

    /// Writes the parity of the runs that are held.
    fn close(&mut self, file: &FileInner) {
        let held = std::mem::take(&mut self.held);
        self.before = held.iter().map(|held| held.label.clone()).collect();
        let longest = held.iter().map(|held| held.range.end - held.range.start).max().unwrap_or(0);
        let shards = &mut self.shards[..held.len()];
        shards.iter_mut().chain(&mut self.parity).for_each(|shard| shard.resize(longest as usize, 0));
        let code = StripeCode::new(shards.len(), self.parity.len());
        if code.and_then(|code| code.encode(shards, &mut self.parity)).is_ok() {
            file.add_stripe_ahead(held, &self.parity);
        }
    }
}

/// Reports whether all runs of a stripe lie on different hosts, each in one region, and its parity is there.
fn is_sound(stripe: &StripeAhead<Arc<LeasedRegion>>, map: &FileMap<Arc<LeasedRegion>>) -> bool {
    let mut labels: Vec<&Name> = Vec::new();
    let data: Vec<Vec<Segment<Arc<LeasedRegion>>>> =
        stripe.data.iter().map(|range| map.copies_of(range.clone())).collect();
    for (range, segments) in stripe.data.iter().zip(&data) {
        let Some(first) = segments.first().filter(|first| first.file.start == range.start) else {
            return false;
        };
        let is_next = |segment: &Segment<Arc<LeasedRegion>>| {
            Arc::ptr_eq(&segment.region, &first.region)
                && segment.offset.checked_sub(first.offset) == Some(segment.file.start - range.start)
        };
        if !segments.iter().all(is_next) {
            return false;
        }
        labels.push(&first.region.node.info.host_label);
    }
    for run in &stripe.parity {
        let Some(first) = run.first().filter(|first| first.region.check_usable().is_ok()) else {
            return false;
        };
        labels.push(&first.region.node.info.host_label);
    }
    let is_apart =
        |(index, label): (usize, &&Name)| !labels[..index].iter().any(|other| may_be_one_host(other, label));
    labels.iter().enumerate().all(is_apart)
}

impl FileInner {
    /// Returns the label of the host that a byte is on. `None` if it is nowhere.
    fn host_of(&self, offset: u64) -> Option<Name> {
        let copies = self.state().map.copies_of(offset..offset + 1);
        copies.first().map(|copy| copy.region.node.info.host_label.clone())
    }

    /// Writes the parity of some runs. Does nothing if that fails: it is added when the file is sealed.
    fn add_stripe_ahead(&self, held: Vec<Held>, parity: &[Vec<u8>]) {
        if (self.state().ahead.len() + 1) * (held.len() + parity.len()) > RUNS_MAX {
            return;
        }
        let labels: Vec<Name> = held.iter().map(|held| held.label.clone()).collect();
        // If a node turns out to be silent, another one gets its part.
        let written = (0..PLACES_MAX).find_map(|_| self.write_ahead(labels.clone(), parity));
        if let Some(runs) = written {
            let data = held.into_iter().map(|held| held.range).collect();
            self.state().ahead.push(StripeAhead { data, parity: runs });
        }
    }

    /// Writes runs with parity to hosts other than those with the labels in `beside`. Returns where they are; `None` if
    /// one could not be written.
    fn write_ahead(
        &self,
        mut beside: Vec<Name>,
        parity: &[Vec<u8>],
    ) -> Option<Vec<Vec<Allocation<Arc<LeasedRegion>>>>> {
        let bytes = parity.first().map_or(0, Vec::len) as u64;
        let leases = &self.session.leases;
        let give_back = |runs: Vec<Vec<_>>| leases.give_back(runs.into_iter().flatten().collect());
        let mut runs = Vec::with_capacity(parity.len());
        for _ in parity {
            match leases.allocate_run(self.group, bytes, &beside, Patience::Brief) {
                Ok(run) => {
                    beside.extend(run.first().map(|first| first.region.node.info.host_label.clone()));
                    runs.push(run);
                }
                Err(_) => {
                    give_back(runs);
                    return None;
                }
            }
        }
        let mut by_node = NodeBatches::default();
        for (run, shard) in runs.iter().zip(parity) {
            let mut rest = &shard[..];
            for extent in run {
                let (from, behind) = rest.split_at(rest.len().min(extent.bytes as usize));
                rest = behind;
                let region = &extent.region;
                let span = Span {
                    region: region.region,
                    bytes: from.len() as u32,
                    offset: extent.offset,
                    epoch: region.epoch,
                    handle: region.handle,
                };
                by_node.add(region, WriteOp { span, from });
            }
        }
        let outcomes = by_node.write(&self.session, &|_, _| true);
        let all = || runs.iter().flatten();
        for extent in all() {
            if failure(&outcomes, &extent.region).is_some_and(|error| may_arrive_late(error, &extent.region))
            {
                leases.note_late(&extent.region, extent.offset);
            }
        }
        if all().any(|extent| failure(&outcomes, &extent.region).is_some()) {
            give_back(runs);
            return None;
        }
        Some(runs)
    }

    /// Frees the parity that was written while the file was.
    pub(crate) fn drop_stripes_ahead(&self) {
        let ahead = std::mem::take(&mut self.state().ahead);
        self.session.leases.give_back(ahead.into_iter().flat_map(StripeAhead::into_parity).collect());
    }

    /// Takes the stripes whose parity was written while the file was, and adds their parity to the map, behind the end
    /// of the file. Leaves out those of which something was lost or has moved.
    pub(crate) fn take_stripes_ahead(&self) -> Vec<Stripe> {
        let mut state = self.state();
        let ahead = std::mem::take(&mut state.ahead);
        let (sound, left): (Vec<_>, Vec<_>) =
            ahead.into_iter().partition(|stripe| is_sound(stripe, &state.map));
        let mut stripes = Vec::with_capacity(sound.len());
        let length = state.map.length();
        for StripeAhead { data, parity } in sound {
            // The file may end within its last extent.
            let trimmed = |range: Range<u64>| range.start..range.end.min(length);
            let mut shards: Vec<Range<u64>> = data.into_iter().map(trimmed).collect();
            let bytes = shards.iter().map(|range| range.end - range.start).max().unwrap_or(0);
            let data = shards.len();
            for run in parity {
                let start = state.map.allocated();
                run.into_iter().for_each(|extent| state.map.push(extent.bytes, vec![extent]));
                state.map.wrote_behind(start..start + bytes);
                shards.push(start..start + bytes);
            }
            stripes.push(Stripe { shards, data });
        }
        drop(state);
        self.session.leases.give_back(left.into_iter().flat_map(StripeAhead::into_parity).collect());
        stripes
    }
}
