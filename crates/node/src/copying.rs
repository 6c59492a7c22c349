//! Copies of published files that this node makes, as the broker orders.
//!
//! The idea: one thread copies, and the thread that reports to the broker asks for orders and reports what was copied,
//! each over the connection of its reports, so that all that the broker hears of a region is in order. A report is
//! repeated until the broker has decided about it: also when the connection ends, or another broker leads.

use crate::admit::admit;
use crate::copy_order::Step;
use crate::memory::{Inside, Memory, Sharing};
use crate::service::{NodeService, fresh_handle};
use farpool_host::Event;
use farpool_lease::node::RANGE_SHARE;
use farpool_region::GATE_BYTES_MAX;
use farpool_transport::{Dial, Dialer, Intent, Link, LinkError, ReadOp};
use farpool_wire::control::*;
use farpool_wire::data::Span;
use farpool_wire::{Code, Epoch, Handle, List, MonoNs, NodeId, Refusal, RegionIndex, Reply, mutant};
use std::collections::{BTreeMap, BTreeSet};

/// Timeout of connecting to another node, and of each read from it, in ms.
const PATIENCE_MS: u64 = 5_000;
/// Shortest pause in ms for the sake of the limit of bytes per second. Shorter ones are added up.
const PAUSE_MS_MIN: u64 = 10;
/// Pause in ms after which the thread that copies looks for an order if it has missed the event.
const LOOK_MS: u64 = 1_000;

impl<M: Memory> NodeService<M> {
    /// Takes the broker's answer to the request that the order asks for. Returns an error if the connection, or this
    /// broker, is of no use any more.
    pub(crate) fn take_answer(&self, answer: Result<Reply, LinkError>) -> Result<(), LinkError> {
        match answer {
            Ok(Reply::NextRepair(given)) => {
                if let Some(order) = given.order.into_vec().pop() {
                    self.copy_order.give(order);
                }
                Ok(())
            }
            Ok(Reply::EndRepair(ended)) => {
                self.copies_known();
                if ended.runs > 0 {
                    // The next order comes at once.
                    self.changed();
                }
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(LinkError::Refused { refusal, .. }) if is_decision(&refusal) => {
                self.copies_known();
                Ok(())
            }
            // A broker that has just started asks for the report later. One of an earlier version gives no orders.
            Err(LinkError::Refused { refusal, .. })
                if matches!(refusal.code, Code::NotReported | Code::Unsupported) =>
            {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Leaves the copies to the broker's next ruling, which adopts or frees their region.
    fn copies_known(&self) {
        let step = std::mem::take(&mut *self.copy_order.step.lock());
        if let Step::Copied(report) = step {
            self.leases().copies_known(report.region, report.epoch);
        }
    }

    /// Carries out an order. The report names no runs if nothing could be copied; the broker then orders something
    /// else.
    fn make_copies(&self, dialer: &dyn Dialer, order: &RepairOrder, bytes_per_second: u64) -> EndRepair {
        let end = order.signed.runs.iter().map(|run| u64::from(run.offset) + u64::from(run.bytes)).max();
        let end = end.filter(|end| *end <= self.arena.region_bytes() / RANGE_SHARE);
        let copied = match end.filter(|_| self.leases().has_segments()) {
            Some(end) => match self.fill_segment(dialer, order, end as u32, bytes_per_second) {
                // Too many ranges are pending, so the copies get a region of their own.
                Err(refusal) if refusal.code == Code::LimitReached => {
                    self.fill_region(dialer, order, bytes_per_second)
                }
                filled => filled,
            },
            None => self.fill_region(dialer, order, bytes_per_second),
        };
        let copied = copied.unwrap_or_else(|refusal| {
            let message = format!("copies of file {} cannot be made here: {refusal}", order.signed.file);
            self.host.log(&Event::warn("copies_not_made", message));
            None
        });
        let order = order.signed.clone();
        match copied {
            Some((Grant { region, epoch, handle }, copied)) => {
                // There are no more than runs in the order.
                EndRepair { order, copied: List::new(copied).unwrap_or_default(), region, epoch, handle }
            }
            None => EndRepair {
                order,
                copied: List::default(),
                region: RegionIndex(0),
                epoch: Epoch(0),
                handle: Handle::default(),
            },
        }
    }

    /// Copies the runs of an order to a free region, and makes it immutable. Returns the right to read it and the
    /// indices of the runs that it has. `None` if none could be copied. On every other way out the region is freed.
    fn fill_region(
        &self,
        dialer: &dyn Dialer,
        order: &RepairOrder,
        bytes_per_second: u64,
    ) -> Result<Option<(Grant, Vec<u32>)>, Refusal> {
        // Both are drawn first, so that nothing fails in between.
        let (own, sealed) = (fresh_handle(&*self.host)?, fresh_handle(&*self.host)?);
        let mut actions = Vec::new();
        let (at, claimed) = {
            let mut leases = self.leases();
            let at = leases.begin_copying(&order.tenant, own, &mut actions)?;
            // Opening needs no decision to be carried out.
            let _ = self.carry_out(&actions);
            // Claimed before the lock is released: afterwards it might be taken back, and wiped.
            let claimed = self.claim_moving(&[Grant { region: at.region, epoch: at.epoch, handle: own }]);
            (at, claimed)
        };
        let sharing = if self.chores.lock().sharing_wanted { Sharing::Mappable } else { Sharing::Any };
        let opened = self.open_granted(&actions, sharing);
        self.end_moving(&claimed);
        let into = Span { region: at.region, bytes: 0, offset: 0, epoch: at.epoch, handle: own };
        let copied = opened.and_then(|()| self.copy_runs(dialer, order, &into, bytes_per_second));
        match copied {
            Ok(copied) if !copied.is_empty() => {
                self.seal_copies(&at, sealed).map(|grant| Some((grant, copied)))
            }
            other => {
                self.abandon_copying(&at);
                other.map(|_| None)
            }
        }
    }

    /// Copies the runs of an order, which take so many bytes, into a segment. Returns what [`Self::fill_region`] does.
    fn fill_segment(
        &self,
        dialer: &dyn Dialer,
        order: &RepairOrder,
        bytes: u32,
        bytes_per_second: u64,
    ) -> Result<Option<(Grant, Vec<u32>)>, Refusal> {
        let region_bytes = self.arena.region_bytes();
        let mut handles = self.handles_for(bytes.into(), 1)?;
        let next = || handles.pop().unwrap_or_default();
        let places = self.open_segments(|leases, actions| {
            leases
                .begin_filling_copies(&order.tenant, bytes, region_bytes, next, actions)
                .map(|place| vec![place])
        })?;
        let Some(place) = places.into_iter().next() else { return Ok(None) };
        self.wait_moved(place.at.region);
        let RegionAt { region, epoch } = place.at;
        let into = Span { region, bytes: 0, offset: place.offset.into(), epoch, handle: place.own };
        let copied = self.copy_runs(dialer, order, &into, bytes_per_second);
        let mut leases = self.leases();
        let ended = match copied {
            Ok(copied) if !copied.is_empty() => {
                leases.end_filling_copies(&place).map(|grant| Some((grant, copied)))
            }
            other => other.map(|_| None),
        };
        if !matches!(ended, Ok(Some(_))) {
            leases.abandon_filling(std::slice::from_ref(&place));
        }
        ended
    }

    fn abandon_copying(&self, at: &RegionAt) {
        let mut actions = Vec::new();
        let mut leases = self.leases();
        leases.abandon_copying(at, &mut actions);
        // Closing and wiping cannot fail.
        let _ = self.carry_out(&actions);
    }

    /// Copies the runs of an order to the region that `into` names. Returns the indices of those that could be copied.
    fn copy_runs(
        &self,
        dialer: &dyn Dialer,
        order: &RepairOrder,
        into: &Span,
        bytes_per_second: u64,
    ) -> Result<Vec<u32>, Refusal> {
        let mut source = Source::new(dialer, order, bytes_per_second);
        let mut copied = Vec::new();
        for (index, run) in order.signed.runs.iter().enumerate() {
            let computed = order.computed.iter().find(|computed| computed.run as usize == index);
            if let Some(computed) = computed {
                if self.compute_run(&mut source, computed, run, into)? {
                    copied.push(index as u32);
                }
            } else if self.copy_run(&mut source, index, run, into)? || mutant!(HalfCopyReported) {
                copied.push(index as u32);
            }
        }
        Ok(copied)
    }

    /// Copies a run from the first source that has it as it should be. Returns false if none has.
    fn copy_run(
        &self,
        source: &mut Source<'_>,
        index: usize,
        run: &RepairRun,
        into: &Span,
    ) -> Result<bool, Refusal> {
        let order = source.order;
        for copy in order.sources.get(index).iter().flat_map(|sources| sources.iter()) {
            let Some(region) = order.regions.get(copy.region as usize) else { continue };
            if source.failed.contains(&region.node) {
                continue;
            }
            match self.copy_from(source, region, copy.offset, run, into)? {
                Ok(checksum) if run.checksum == 0 || run.checksum == checksum => return Ok(true),
                Ok(checksum) => {
                    let message = format!(
                        "the copy of run {} of file {} in region {} of node {} is damaged: its checksum is \
                         {checksum:08x} and should be {:08x}",
                        run.run, order.signed.file, region.region, region.node, run.checksum
                    );
                    self.host.log(&Event::error("copy_damaged", message));
                }
                Err(error) => {
                    let message = format!(
                        "run {} of file {} cannot be read from node {}: {error}",
                        run.run, order.signed.file, region.node
                    );
                    self.host.log(&Event::warn("copy_not_read", message));
                    // A node that refuses one run may have others. One that does not answer is not waited for again.
                    if !matches!(error, LinkError::Refused { .. }) {
                        source.failed.insert(region.node);
                    }
                }
            }
        }
        Ok(false)
    }

    /// Copies a run from one source. Returns its checksum.
    fn copy_from(
        &self,
        source: &mut Source<'_>,
        region: &NamedRegion,
        offset: u32,
        run: &RepairRun,
        into: &Span,
    ) -> Result<Result<u32, LinkError>, Refusal> {
        let mut piece = vec![0; GATE_BYTES_MAX.min(run.bytes as usize)];
        let (mut done, mut checksum) = (0, 0);
        while done < run.bytes {
            let bytes = (run.bytes - done).min(piece.len() as u32);
            let read = &mut piece[..bytes as usize];
            if let Err(error) = source.read(region, u64::from(offset) + u64::from(done), read) {
                return Ok(Err(error));
            }
            checksum = crc32c::crc32c_append(checksum, read);
            self.put_piece(source, into, u64::from(run.offset) + u64::from(done), read)?;
            done += bytes;
        }
        Ok(Ok(checksum))
    }

    /// Writes bytes of a run to the region that `into` names, and waits as the limit of bytes per second demands.
    ///
    /// Errors: the node is being emptied or stopped, or the region was taken back.
    pub(crate) fn put_piece(
        &self,
        source: &mut Source<'_>,
        into: &Span,
        offset: u64,
        piece: &[u8],
    ) -> Result<(), Refusal> {
        if self.chores.lock().stop || self.leases().is_draining() {
            return Err(Refusal::new(Code::Draining, 0));
        }
        let at = Span { offset: into.offset + offset, bytes: piece.len() as u32, ..*into };
        let entered = self.arena.enter(at.region)?;
        admit(&at, Intent::Write, &entered.fence())?;
        entered.copy_in(at.offset, piece)?;
        drop(entered);
        // Clients' work goes on beside this.
        source.due_ms += piece.len() as u64 * 1_000 / source.bytes_per_second.max(1);
        let due = source.begun.plus_ms(source.due_ms);
        if self.host.now().plus_ms(PAUSE_MS_MIN) < due {
            self.host.wait(&self.stopped, 0, due);
        }
        Ok(())
    }

    /// Makes a region that has its copies immutable, and opens it to readers.
    fn seal_copies(&self, at: &RegionAt, handle: Handle) -> Result<Grant, Refusal> {
        let mut actions = Vec::new();
        let (grant, claimed) = {
            let mut leases = self.leases();
            let grant = leases.end_copying(at, handle, &mut actions)?;
            // Closing cannot fail.
            let _ = self.carry_out(&actions);
            let claimed = self.claim_moving(std::slice::from_ref(&grant));
            (grant, claimed)
        };
        let opened = self.open_sealed(&grant);
        self.end_moving(&claimed);
        if opened.is_err() {
            // Nobody knows of the region, so the broker's next ruling frees it.
            self.leases().copies_known(grant.region, grant.epoch);
        }
        opened.map(|()| grant)
    }
}

/// Reports whether a refusal of `EndRepair` is a decision of the broker's rules: the copies are not listed, and will
/// not be.
fn is_decision(refusal: &Refusal) -> bool {
    use Code::{LimitReached, NameTaken, NoSuchRegion, StaleEpoch, TicketForged};
    [LimitReached, NameTaken, NoSuchRegion, StaleEpoch, TicketForged].contains(&refusal.code)
}

/// Nodes that the runs of an order are read from.
pub(crate) struct Source<'a> {
    dialer: &'a dyn Dialer,
    pub(crate) order: &'a RepairOrder,
    links: BTreeMap<NodeId, Box<dyn Link>>,
    /// Nodes that have not answered.
    pub(crate) failed: BTreeSet<NodeId>,
    bytes_per_second: u64,
    begun: MonoNs,
    /// Time that the bytes so far should have taken, in ms.
    due_ms: u64,
}

impl<'a> Source<'a> {
    fn new(dialer: &'a dyn Dialer, order: &'a RepairOrder, bytes_per_second: u64) -> Source<'a> {
        let (links, failed) = (BTreeMap::new(), BTreeSet::new());
        Source { dialer, order, links, failed, bytes_per_second, begun: dialer.now(), due_ms: 0 }
    }

    /// Reads bytes of a region.
    pub(crate) fn read(
        &mut self,
        region: &NamedRegion,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), LinkError> {
        let deadline = self.dialer.now().plus_ms(PATIENCE_MS);
        let mut link = match self.links.remove(&region.node) {
            Some(link) => link,
            None => self.dial(region.node, deadline)?,
        };
        let NamedRegion { region: index, epoch, handle, .. } = *region;
        let span = Span { region: index, bytes: into.len() as u32, offset, epoch, handle };
        let read = link.read(&mut [ReadOp { span, into }], deadline);
        if read.as_ref().err().is_none_or(LinkError::link_survives) {
            self.links.insert(region.node, link);
        }
        read
    }

    fn dial(&self, node: NodeId, deadline: MonoNs) -> Result<Box<dyn Link>, LinkError> {
        let info = self.order.nodes.iter().find(|info| info.node == node);
        let gone = || LinkError::Refused { index: 0, refusal: Refusal::new(Code::NoNodes, node.0) };
        let info = info.ok_or_else(gone)?;
        self.dialer.dial(Dial::Node { address: &info.address, node }, deadline)
    }
}

/// Makes copies of published files as the broker orders, at this many bytes per second at most. Runs until the node
/// stops.
pub fn keep_copies<M: Memory>(node: &NodeService<M>, dialer: &dyn Dialer, bytes_per_second: u64) {
    loop {
        let heard = node.copy_order.ordered.heard();
        if node.chores.lock().stop {
            return;
        }
        let order = {
            let mut step = node.copy_order.step.lock();
            match std::mem::take(&mut *step) {
                Step::Ordered(order) => {
                    *step = Step::Copying;
                    Some(order)
                }
                other => {
                    *step = other;
                    None
                }
            }
        };
        let Some(order) = order else {
            node.host.wait(&node.copy_order.ordered, heard, node.host.now().plus_ms(LOOK_MS));
            continue;
        };
        let report = node.make_copies(dialer, &order, bytes_per_second);
        let is_made = !report.copied.is_empty();
        *node.copy_order.step.lock() = Step::Copied(Box::new(report));
        if is_made {
            node.changed();
        }
    }
}
