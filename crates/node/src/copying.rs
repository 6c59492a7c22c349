//! Copies of published files that this node makes, as the broker orders.
//!
//! The idea: one thread copies, and the thread that reports to the broker asks for orders and reports what was copied,
//! each over the connection of its reports, so that all that the broker hears of a region is in order. A report is
//! repeated until the broker has decided about it: also when the connection ends, or another broker leads.

use crate::admit::admit;
use crate::memory::{Inside, Memory};
use crate::service::{NodeService, fresh_handle};
use farpool_host::{Event, HostEvent};
use farpool_lock::Mutex;
use farpool_region::GATE_BYTES_MAX;
use farpool_transport::{Dial, Dialer, Intent, Link, LinkError, ReadOp};
use farpool_wire::control::*;
use farpool_wire::data::Span;
use farpool_wire::{Code, Handle, List, MonoNs, NodeId, Refusal, Reply, Request, mutant};
use std::collections::BTreeMap;

/// Timeout of connecting to another node, and of each read from it, in ms.
const PATIENCE_MS: u64 = 5_000;
/// Pause in ms after which the thread that copies looks for an order if it has missed the event.
const LOOK_MS: u64 = 1_000;

/// What the node does about copies.
#[derive(Debug, Default)]
enum Step {
    /// Nothing. The broker may be asked for an order.
    #[default]
    Idle,
    /// An order waits for the thread that copies.
    Ordered(Box<RepairOrder>),
    /// The thread copies.
    Copying,
    /// Copies were made, and the broker has not decided about them.
    Copied(Box<EndRepair>),
}

/// Order that this node has, and how far it is.
#[derive(Debug, Default)]
pub(crate) struct Copying {
    step: Mutex<Step>,
    ordered: HostEvent,
}

impl Copying {
    /// Returns the request to send to the broker next, if there is one.
    pub(crate) fn next_request(&self, asked: NextRepair) -> Option<Request> {
        match &*self.step.lock() {
            Step::Idle => Some(Request::NextRepair(asked)),
            Step::Copied(report) => Some(Request::EndRepair((**report).clone())),
            Step::Ordered(_) | Step::Copying => None,
        }
    }

    /// Takes an order.
    pub(crate) fn order(&self, order: RepairOrder) {
        *self.step.lock() = Step::Ordered(Box::new(order));
        self.ordered.signal();
    }

    /// Wakes the thread that copies, when the node stops.
    pub(crate) fn wake(&self) {
        self.ordered.signal();
    }
}

impl<M: Memory> NodeService<M> {
    /// Takes the broker's answer to a request of [`Copying::next_request`]. Returns an error if the connection, or this
    /// broker, is of no use any more.
    pub(crate) fn take_answer(&self, answer: Result<Reply, LinkError>) -> Result<(), LinkError> {
        match answer {
            Ok(Reply::NextRepair(given)) => {
                if let Some(order) = given.order.into_vec().pop() {
                    self.copying.order(order);
                }
                Ok(())
            }
            Ok(Reply::EndRepair(_)) => {
                self.copies_known();
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(LinkError::Refused { refusal, .. }) if is_decision(&refusal) => {
                self.copies_known();
                Ok(())
            }
            // A broker of an earlier version gives no orders.
            Err(LinkError::Refused { refusal, .. }) if refusal.code == Code::Unsupported => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Leaves the copies to the broker's next ruling, which adopts or frees their region.
    fn copies_known(&self) {
        let step = std::mem::take(&mut *self.copying.step.lock());
        if let Step::Copied(report) = step {
            self.leases().copies_known(report.region, report.epoch);
            self.changed();
        }
    }

    /// Carries out an order.
    fn make_copies(
        &self,
        dialer: &dyn Dialer,
        order: &RepairOrder,
        bytes_per_second: u64,
    ) -> Result<EndRepair, Refusal> {
        let (handle, mut actions) = (fresh_handle(&*self.host)?, Vec::new());
        let (at, claimed) = {
            let mut leases = self.leases();
            let at = leases.begin_copying(&order.tenant, handle, &mut actions)?;
            self.carry_out(&actions)?;
            // Claimed before the lock is released: afterwards it might be taken back, and wiped.
            let claimed = self.claim_moving(&[Grant { region: at.region, epoch: at.epoch, handle }]);
            (at, claimed)
        };
        let shared = self.chores.lock().sharing_wanted;
        let opened = self.open_granted(&actions, shared);
        self.end_moving(&claimed);
        let into = Span { region: at.region, bytes: 0, offset: 0, epoch: at.epoch, handle };
        let copied = opened.and_then(|()| self.copy_runs(dialer, order, &into, bytes_per_second));
        match copied {
            Ok(copied) if !copied.is_empty() => {
                let Grant { region, epoch, handle } = self.seal_copies(&at)?;
                // There are no more than runs in the order.
                let copied = List::new(copied).unwrap_or_default();
                Ok(EndRepair { order: order.signed.clone(), copied, region, epoch, handle })
            }
            other => {
                let mut actions = Vec::new();
                let mut leases = self.leases();
                leases.abandon_copying(&at, &mut actions);
                self.carry_out(&actions)?;
                // The broker hears that nothing could be copied, and orders something else next.
                let (copied, handle, RegionAt { region, epoch }) = (List::default(), Handle::default(), at);
                other.map(|_| EndRepair { order: order.signed.clone(), copied, region, epoch, handle })
            }
        }
    }

    /// Copies the runs of an order to the region that `into` names. Returns the indices of those that could be copied.
    fn copy_runs(
        &self,
        dialer: &dyn Dialer,
        order: &RepairOrder,
        into: &Span,
        bytes_per_second: u64,
    ) -> Result<Vec<u32>, Refusal> {
        let mut source = Source { dialer, order, links: BTreeMap::new() };
        let mut copied = Vec::new();
        for (index, run) in order.signed.runs.iter().enumerate() {
            if self.chores.lock().stop {
                break;
            }
            if self.copy_run(&mut source, index, run, into)? || mutant!(HalfCopyReported) {
                copied.push(index as u32);
            }
            // Clients' work goes on beside this.
            let pause_ms = u64::from(run.bytes) * 1_000 / bytes_per_second.max(1);
            if pause_ms > 0 {
                self.host.wait(&self.stopped, 0, self.host.now().plus_ms(pause_ms));
            }
        }
        Ok(copied)
    }

    /// Makes a region that has its copies immutable, and opens it to readers.
    fn seal_copies(&self, at: &RegionAt) -> Result<Grant, Refusal> {
        let (handle, mut actions) = (fresh_handle(&*self.host)?, Vec::new());
        let (grant, claimed) = {
            let mut leases = self.leases();
            let grant = leases.end_copying(at, handle, &mut actions)?;
            let closed = self.carry_out(&actions);
            let claimed = self.claim_moving(std::slice::from_ref(&grant));
            closed?;
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

    /// Copies a run from the first source that has it as it should be. Returns false if none has.
    fn copy_run(
        &self,
        source: &mut Source<'_>,
        index: usize,
        run: &RepairRun,
        into: &Span,
    ) -> Result<bool, Refusal> {
        let order = source.order;
        let sources = order.sources.get(index).map(|sources| sources.to_vec()).unwrap_or_default();
        let mut piece = vec![0; GATE_BYTES_MAX];
        for copy in sources {
            let Some(region) = order.regions.get(copy.region as usize) else { continue };
            let (mut done, mut checksum) = (0u32, 0);
            let result = loop {
                let bytes = (run.bytes - done).min(piece.len() as u32);
                if bytes == 0 {
                    break Ok(());
                }
                let read = &mut piece[..bytes as usize];
                if let Err(error) = source.read(region, u64::from(copy.offset) + u64::from(done), read) {
                    break Err(error);
                }
                checksum = crc32c::crc32c_append(checksum, read);
                let at = Span { offset: u64::from(run.offset) + u64::from(done), bytes, ..*into };
                let entered = self.arena.enter(at.region)?;
                admit(&at, Intent::Write, &entered.fence())?;
                entered.copy_in(at.offset, read)?;
                done += bytes;
            };
            match result {
                Ok(()) if run.checksum == 0 || run.checksum == checksum => {
                    return Ok(true);
                }
                Ok(()) => {
                    let message = format!(
                        "the copy of run {} of file {} in region {} of node {} is damaged: its checksum is {checksum:08x} \
                         and should be {:08x}",
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
                }
            }
        }
        Ok(false)
    }
}

/// Reports whether a refusal of `EndRepair` is a decision of the broker's rules: the copies are not listed, and will
/// not be.
fn is_decision(refusal: &Refusal) -> bool {
    use Code::{LimitReached, NameTaken, NoSuchRegion, StaleEpoch, TicketForged};
    [LimitReached, NameTaken, NoSuchRegion, StaleEpoch, TicketForged].contains(&refusal.code)
}

/// Nodes that are read from.
struct Source<'a> {
    dialer: &'a dyn Dialer,
    order: &'a RepairOrder,
    links: BTreeMap<NodeId, Box<dyn Link>>,
}

impl Source<'_> {
    /// Reads bytes of a region.
    fn read(&mut self, region: &NamedRegion, offset: u64, into: &mut [u8]) -> Result<(), LinkError> {
        let deadline = self.dialer.now().plus_ms(PATIENCE_MS);
        let mut link = match self.links.remove(&region.node) {
            Some(link) => link,
            None => self.dial(region.node, deadline)?,
        };
        let NamedRegion { region: index, epoch, handle, .. } = *region;
        let span = Span { region: index, bytes: into.len() as u32, offset, epoch, handle };
        link.read(&mut [ReadOp { span, into }], deadline)?;
        self.links.insert(region.node, link);
        Ok(())
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
        let heard = node.copying.ordered.heard();
        if node.chores.lock().stop {
            return;
        }
        let order = {
            let mut step = node.copying.step.lock();
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
            node.host.wait(&node.copying.ordered, heard, node.host.now().plus_ms(LOOK_MS));
            continue;
        };
        let made = node.make_copies(dialer, &order, bytes_per_second);
        let is_made = made.is_ok();
        let step = match made {
            Ok(report) => Step::Copied(Box::new(report)),
            Err(refusal) => {
                let message = format!("copies of file {} cannot be made here: {refusal}", order.signed.file);
                node.host.log(&Event::warn("copies_not_made", message));
                Step::Idle
            }
        };
        *node.copying.step.lock() = step;
        if is_made {
            node.changed();
        }
    }
}
