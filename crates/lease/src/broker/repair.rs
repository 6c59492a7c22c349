//! Copies of published files that are missing, and the orders by which nodes make them again.
//!
//! The idea: the runs of a published file never change, only the places of their copies do. So the id of the file and
//! the index of a run say which bytes a copy has, whenever a node reports it and to whichever broker. A report is
//! judged by what the file lacks then: a run that has got its copies meanwhile takes no other, and a region of which no
//! run takes a copy is freed. A signature shows that some broker of the pool has given the order, so nothing about
//! orders has to survive a broker.
//!
//! A node that is being drained is repaired like one that is lost, except that its copies are read from and stay listed
//! until others are. A copy leaves the list in the transaction that lists its successor, and its node learns only
//! afterwards that it should free the region.
//!
//! Nodes ask for orders, one at a time. Files in most danger come first.

use super::nodes::{Node, reporting};
use super::records::region_key;
use super::{BrokerLeases, NamedFile, RegionKey, StateChange, give_up};
use crate::{tenant, ticket};
use farpool_wire::control::*;
use farpool_wire::host_label::{may_be_one_host, shared_domains};
use farpool_wire::ids::*;
use farpool_wire::limits::*;
use farpool_wire::{Code, List, Name, Refusal, mutant};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes to which the place of a copy is aligned as the place that it was read from is. Ranges of files that functions
/// see consist of pages.
const ALIGNMENT: u64 = WINDOW_PAGE_BYTES;
/// Time after which a run that a node could not copy is ordered from it again, in ms.
const AGAIN_MS: u64 = 10_000;
/// Time after which an order of no bytes is forgotten, in ms. A node that has not reported by then may hang.
const ORDER_MS: u64 = 60_000;
/// Fewest bytes per ms that nodes copy: 1 MB/s. An order is forgotten later if it has more bytes.
const BYTES_PER_MS_MIN: u64 = 1_000;

/// Worth of a listed copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It counts.
    Good,
    /// Its node is being drained. It can be read, but another one should take its place.
    Leaving,
    /// Its node has started again, has been silent for longer than any lease lasts, or has taken it back.
    Gone,
}

/// Copies that a published file lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Need {
    /// Runs that lack a copy on another host and can still be read.
    runs: Vec<u32>,
    /// Bytes of these runs.
    bytes: u64,
    /// Fewest copies of a run that can be read. 0: some bytes are lost.
    copies: u8,
    /// True if no run lacks anything but successors of copies whose node is being drained.
    is_leaving: bool,
    /// True if copies of these runs lie on nodes that are being drained.
    has_leaving: bool,
    /// Host label of the only good copy of each of these runs, if they have one and it is the same for all. No node
    /// with this label can help.
    label: Option<Name>,
}

impl Need {
    /// Returns the rank of the file among those that are repaired, 0 to 2; 0 comes first.
    fn urgency(&self) -> u8 {
        match (self.is_leaving, self.copies) {
            (true, _) => 2,
            (false, 0) => 1,
            (false, _) => 0,
        }
    }
}

/// Order that a node has.
#[derive(Clone, Debug)]
struct Order {
    incarnation: Incarnation,
    /// Name of the file when the order was given.
    name: Name,
    file: FileId,
    runs: BTreeSet<u32>,
    bytes: u64,
    /// Time at which the order is forgotten.
    until: MonoNs,
}

/// States of nodes on which the needs of files depend.
type NodesSeen = Vec<(NodeId, Incarnation, Option<Standing>)>;

/// Needs of published files, and the orders that nodes have.
#[derive(Clone, Debug, Default)]
pub(super) struct Repairs {
    /// Files that lack something, by name. Up to date with `seen` except for the names in `changed`.
    needs: BTreeMap<Name, Need>,
    seen: Option<NodesSeen>,
    changed: BTreeSet<Name>,
    orders: BTreeMap<NodeId, Order>,
    /// Runs of which a node could not make a copy, or made one that was not needed, and when they are ordered from it
    /// again.
    failed: BTreeMap<(NodeId, FileId, u32), MonoNs>,
}

impl Repairs {
    /// Notes that any file may have changed.
    pub(super) fn note_all(&mut self) {
        self.seen = None;
    }

    /// Notes that the file of a name has changed.
    pub(super) fn note_change(&mut self, name: &Name) {
        self.changed.insert(name.clone());
    }
}

impl BrokerLeases {
    /// Returns the next order for a node that makes copies of published files. An order that it had before is over.
    pub fn next_repair(
        &mut self,
        now: MonoNs,
        connection: u64,
        asked: &NextRepair,
        records: &mut Vec<StateChange>,
    ) -> Result<RepairGiven, Refusal> {
        let node = reporting(self.nodes.get_mut(&asked.node), connection, asked.node, asked.incarnation)?;
        node.makes_copies = true;
        self.repairs.orders.remove(&asked.node);
        if self.awaits_nodes(now) {
            // Copies that seem to be missing may still come.
            return Ok(RepairGiven { order: List::default() });
        }
        self.repairs.failed.retain(|_, until| *until > now);
        self.survey(now);
        self.drop_leaving(now, records);
        let order = self.order_for(now, asked.node);
        if let Some((name, order)) = &order {
            let SignedRepair { incarnation, file, runs, .. } = &order.signed;
            let bytes = runs.iter().map(|run| u64::from(run.bytes)).sum();
            let until = now.plus_ms(ORDER_MS + bytes / BYTES_PER_MS_MIN);
            let runs = runs.iter().map(|run| run.run).collect();
            let given =
                Order { incarnation: *incarnation, name: name.clone(), file: *file, runs, bytes, until };
            self.repairs.orders.insert(asked.node, given);
            for region in order.regions.iter().filter(|_| mutant!(DrainedCopyFreed)) {
                if self.standing(now, region) == Standing::Leaving {
                    self.owners.remove(&region_key(region));
                    give_up(&mut self.given_up, region_key(region), region.epoch);
                }
            }
        }
        let order = order.map(|(_, order)| order);
        Ok(RepairGiven { order: List::new(order.into_iter().collect()).unwrap_or_default() })
    }

    /// Lists copies that a node has made, in one transaction that also drops the copies in whose place they are.
    ///
    /// Refused with `NotReported` while nodes of an earlier life of the broker may come, since what the file lacks is
    /// not known yet, and while the node itself is silent. It asks again.
    pub fn end_repair(
        &mut self,
        now: MonoNs,
        connection: u64,
        report: &EndRepair,
        records: &mut Vec<StateChange>,
    ) -> Result<RepairEnded, Refusal> {
        let SignedRepair { node: id, incarnation, .. } = report.order;
        let node = reporting(self.nodes.get_mut(&id), connection, id, incarnation)?;
        if !ticket::is_genuine(&report.order, &node.ticket_key) {
            return Err(Refusal::new(Code::TicketForged, 0));
        }
        // A node that is silent may have died after it sent this, and its copy would take the place of a good one.
        let is_heard = self.nodes.get(&id).is_some_and(|node| self.is_alive(now, node));
        if self.awaits_nodes(now) || !is_heard {
            return Err(Refusal::new(Code::NotReported, id.0));
        }
        self.repairs.orders.remove(&id);
        let listed = self.list_copies(now, report, records);
        // Runs that were copied in vain, or could not be copied, are not ordered again at once.
        let copied: BTreeSet<u32> = match listed {
            Ok(runs) if runs > 0 => report.copied.iter().copied().collect(),
            _ => BTreeSet::new(),
        };
        for (index, run) in report.order.runs.iter().enumerate() {
            if !copied.contains(&(index as u32)) {
                self.repairs.failed.insert((id, report.order.file, run.run), now.plus_ms(AGAIN_MS));
            }
        }
        listed.map(|runs| RepairEnded { runs })
    }

    /// Lists copies that a node has made. Returns the number of runs that have a copy there.
    fn list_copies(
        &mut self,
        now: MonoNs,
        report: &EndRepair,
        records: &mut Vec<StateChange>,
    ) -> Result<u32, Refusal> {
        let EndRepair { region, epoch, handle, .. } = *report;
        let SignedRepair { node: id, incarnation, file: file_id, ref runs, .. } = report.order;
        let made = NamedRegion { node: id, incarnation, region, epoch, handle };
        let place = region_key(&made);
        let Some(node) = self.nodes.get(&id).filter(|_| !report.copied.is_empty()) else { return Ok(0) };
        let found = self.durable.names.iter().find(|(_, file)| file.file == file_id);
        let found = found.map(|(name, file)| (name.clone(), file.clone()));
        if let Some((_, file)) = &found
            && self.owners.get(&place).is_some_and(|owner| owner.is(file, &made))
        {
            // The request is a repetition: the first answer was lost.
            let is_there = |run: &&NamedRun| file.places.copies(run).any(|(has, _)| region_key(has) == place);
            return Ok(file.places.runs.iter().filter(is_there).count() as u32);
        }
        // The node may have taken the region back since it made the copies.
        if node.filled.get(&region) != Some(&epoch) {
            return Err(Refusal::new(Code::StaleEpoch, 0));
        }
        self.check_free(&made)?;
        let info = node.info.clone();
        // Copies on a node that is about to end are worth nothing.
        let found = found.filter(|_| !node.is_draining());
        let mut taken = BTreeMap::new();
        for index in report.copied.iter() {
            let (Some((_, file)), Some(run)) = (&found, runs.get(*index as usize)) else { continue };
            let Some(has) = file.places.runs.get(run.run as usize) else { continue };
            let end = u64::from(run.offset) + u64::from(run.bytes);
            if has.bytes == run.bytes && end <= info.region_bytes && self.takes(now, file, has, &info) {
                taken.insert(run.run as usize, u64::from(run.offset));
            }
        }
        let Some((name, file)) = found.filter(|_| !taken.is_empty()) else {
            give_up(&mut self.given_up, place, epoch);
            return Ok(0);
        };
        let mut bound = made;
        bound.bind(&name);
        let places = file.places.with_copies(|index, run| {
            let copies = file.places.copies(run).map(|(region, offset)| (region.clone(), offset));
            let Some(offset) = taken.get(&index) else { return copies.collect() };
            // Those on other hosts stay, and of these the ones that count most.
            let is_apart = |(region, _): &(NamedRegion, u64)| {
                !self.label_of(region).is_some_and(|label| may_be_one_host(label, &info.host_label))
            };
            let mut copies: Vec<(NamedRegion, u64)> = copies.filter(is_apart).collect();
            copies.sort_by_key(|(region, _)| match self.standing(now, region) {
                Standing::Good => 0,
                Standing::Leaving => 1,
                Standing::Gone => 2,
            });
            copies.truncate(usize::from(file.copies_wanted).saturating_sub(1));
            copies.push((bound.clone(), *offset));
            copies
        });
        let places = places.map_err(|_| Refusal::new(Code::LimitReached, NAMED_REGIONS_MAX as u64))?;
        self.replace(&name, NamedFile { places, ..file }, records);
        Ok(taken.len() as u32)
    }

    /// Returns what published files lack. A caller who may not look at the whole pool is told of its own files.
    pub fn list_repairs(&mut self, now: MonoNs, tenant: &Name) -> RepairsListed {
        self.survey(now);
        let mut listed = RepairsListed {
            endangered_files: 0,
            endangered_bytes: 0,
            leaving_files: 0,
            leaving_bytes: 0,
            lost_files: 0,
            first: List::default(),
            under_way: List::default(),
        };
        let shows = |of: &Name| tenant::oversees(tenant) || of == tenant;
        let mut first = Vec::new();
        for (name, need) in &self.repairs.needs {
            let Some(file) = self.durable.names.get(name).filter(|file| shows(&file.tenant)) else {
                continue;
            };
            if need.is_leaving {
                listed.leaving_files += 1;
                listed.leaving_bytes += need.bytes;
            } else {
                listed.endangered_files += u64::from(need.copies > 0);
                listed.lost_files += u64::from(need.copies == 0);
                listed.endangered_bytes += need.bytes;
            }
            let needs_host = need.label.as_ref().is_some_and(|label| !self.has_host_beside(now, label));
            first.push((
                need.urgency(),
                need.copies,
                EndangeredFile {
                    name: name.clone(),
                    bytes: need.bytes,
                    copies: need.copies,
                    copies_wanted: file.copies_wanted,
                    needs_host,
                },
            ));
        }
        first.sort_by_key(|(urgency, copies, _)| (*urgency, *copies));
        first.truncate(REPAIRS_LISTED_MAX);
        listed.first = List::new(first.into_iter().map(|(.., file)| file).collect()).unwrap_or_default();
        let under_way = self.repairs.orders.iter().filter_map(|(node, order)| {
            let file = self.durable.names.get(&order.name)?;
            let is_shown = file.file == order.file && shows(&file.tenant);
            is_shown.then(|| RepairUnderWay { node: *node, name: order.name.clone(), bytes: order.bytes })
        });
        listed.under_way = List::new(under_way.take(NODES_MAX).collect()).unwrap_or_default();
        listed
    }

    fn standing(&self, now: MonoNs, region: &NamedRegion) -> Standing {
        match self.nodes.get(&region.node) {
            // A node of an earlier life of the broker may still come.
            None if self.awaits_nodes(now) => Standing::Good,
            None => Standing::Gone,
            Some(node) if node.info.incarnation != region.incarnation => Standing::Gone,
            Some(_) if self.was_taken_back(region) => Standing::Gone,
            Some(node) => self.standing_of(now, node),
        }
    }

    /// Returns what copies at a node are worth.
    fn standing_of(&self, now: MonoNs, node: &Node) -> Standing {
        let silence_ms = self.silence_ms().max(self.settings.lease.node_silence_ms.into());
        match now.ms_since(node.heard) > silence_ms {
            true => Standing::Gone,
            false if node.is_draining() => Standing::Leaving,
            false => Standing::Good,
        }
    }

    /// Brings the needs of all files up to date, and forgets orders that nobody carries out.
    fn survey(&mut self, now: MonoNs) {
        let is_carried_out = |(id, order): &(&NodeId, &Order)| {
            let node = self.nodes.get(id).filter(|node| node.info.incarnation == order.incarnation);
            order.until > now && node.is_some_and(|node| self.is_alive(now, node))
        };
        let orders = self.repairs.orders.iter().filter(is_carried_out);
        self.repairs.orders = orders.map(|(id, order)| (*id, order.clone())).collect();
        let nodes = self.nodes.values();
        let mut seen: NodesSeen = nodes
            .map(|node| (node.info.node, node.info.incarnation, Some(self.standing_of(now, node))))
            .collect();
        if self.awaits_nodes(now) {
            seen.push((NodeId(0), Incarnation(0), None));
        }
        let changed = std::mem::take(&mut self.repairs.changed);
        let names: Vec<Name> = match self.repairs.seen.as_ref() == Some(&seen) {
            true => changed.into_iter().collect(),
            false => {
                self.repairs.needs.clear();
                self.durable.names.keys().cloned().collect()
            }
        };
        self.repairs.seen = Some(seen);
        for name in names {
            match self.durable.names.get(&name).and_then(|file| self.need_of(now, file)) {
                Some(need) => drop(self.repairs.needs.insert(name, need)),
                None => drop(self.repairs.needs.remove(&name)),
            }
        }
    }

    /// Returns what a file lacks. `None` if it lacks nothing.
    fn need_of(&self, now: MonoNs, file: &NamedFile) -> Option<Need> {
        let standings: Vec<Standing> =
            file.places.regions.iter().map(|region| self.standing(now, region)).collect();
        if !standings.iter().any(|standing| *standing != Standing::Good)
            && file.places.runs.iter().all(|run| run.copies.len() >= file.copies_wanted.into())
        {
            return None;
        }
        let (runs, copies) = (Vec::new(), u8::MAX);
        let mut need = Need { runs, bytes: 0, copies, is_leaving: true, has_leaving: false, label: None };
        let mut labels: BTreeSet<Option<&Name>> = BTreeSet::new();
        for (index, run) in file.places.runs.iter().enumerate() {
            let of = |wanted: Standing| {
                let standings = &standings;
                let is_one = move |copy: &&RunCopy| standings.get(copy.region as usize) == Some(&wanted);
                let copies = run.copies.iter().filter(is_one);
                copies.filter_map(|copy| file.places.regions.get(copy.region as usize))
            };
            let good = self.hosts_of(of(Standing::Good));
            if good >= file.copies_wanted.into() {
                continue;
            }
            let leaving = of(Standing::Leaving).count();
            let readable = of(Standing::Good).count() + leaving;
            need.has_leaving |= leaving > 0;
            need.copies = need.copies.min(readable as u8);
            need.is_leaving &=
                self.hosts_of(of(Standing::Good).chain(of(Standing::Leaving))) >= file.copies_wanted.into();
            if readable > 0 {
                need.runs.push(index as u32);
                need.bytes += u64::from(run.bytes);
                labels.insert(of(Standing::Good).next().and_then(|region| self.label_of(region)));
            }
        }
        if let (Some(Some(label)), 1) = (labels.first(), labels.len()) {
            need.label = Some((*label).clone());
        }
        (need.copies < u8::MAX).then_some(need)
    }

    fn label_of(&self, region: &NamedRegion) -> Option<&Name> {
        self.nodes.get(&region.node).map(|node| &node.info.host_label)
    }

    /// Counts the hosts that regions are on. Those of nodes that are not known count one each.
    fn hosts_of<'a>(&self, regions: impl Iterator<Item = &'a NamedRegion>) -> usize {
        let (mut labels, mut unknown) = (BTreeSet::new(), 0);
        for region in regions {
            match self.label_of(region) {
                Some(label) => drop(labels.insert(label)),
                None => unknown += 1,
            }
        }
        labels.len() + unknown
    }

    /// Reports whether a host with another label has a node that makes copies, now or when it goes on.
    fn has_host_beside(&self, now: MonoNs, label: &Name) -> bool {
        let is_one = |node: &Node| node.makes_copies && self.standing_of(now, node) == Standing::Good;
        self.nodes.values().any(|node| is_one(node) && !may_be_one_host(&node.info.host_label, label))
    }

    /// Reports whether a run lacks a copy that a node can have.
    fn takes(&self, now: MonoNs, file: &NamedFile, run: &NamedRun, node: &NodeInfo) -> bool {
        let good = || {
            let copies = file.places.copies(run).map(|(region, _)| region);
            copies.filter(|region| self.standing(now, region) == Standing::Good)
        };
        let is_apart =
            |region| self.label_of(region).is_some_and(|label| !may_be_one_host(label, &node.host_label));
        self.hosts_of(good()) < file.copies_wanted.into() && good().all(is_apart)
    }

    /// Reports whether no node that is free to copy the run now lies farther from its good copies.
    fn is_farthest(&self, now: MonoNs, file: &NamedFile, index: u32, run: &NamedRun, node: &Node) -> bool {
        let copies = file.places.copies(run).map(|(region, _)| region);
        let good = copies.filter(|region| self.standing(now, region) == Standing::Good);
        let labels: Vec<&Name> = good.filter_map(|region| self.label_of(region)).collect();
        let shared = |node: &Node| {
            let shared = labels.iter().map(|label| shared_domains(label, &node.info.host_label));
            shared.max().unwrap_or(0)
        };
        let is_free = |other: &Node| {
            let id = other.info.node;
            other.makes_copies
                && self.may_grant(now, other)
                && other.unpromised() > 0
                && other.info.region_bytes >= run.bytes.into()
                && !self.repairs.orders.contains_key(&id)
                && !self.repairs.failed.contains_key(&(id, file.file, index))
        };
        let here = shared(node);
        here == 0 || !self.nodes.values().any(|other| shared(other) < here && is_free(other))
    }

    /// Drops copies at nodes that are being drained, if others are good and no host of the pool can have a successor,
    /// however much memory it has. One copy at a node that stays is better than two of which one leaves with its node;
    /// the file stays in need, and gets its copy when there is a host. Does that for one file at a time.
    fn drop_leaving(&mut self, now: MonoNs, records: &mut Vec<StateChange>) {
        let is_stuck = |need: &Need| {
            need.has_leaving && need.label.as_ref().is_some_and(|label| !self.has_host_beside(now, label))
        };
        let found = self.repairs.needs.iter().filter(|(_, need)| is_stuck(need)).find_map(|(name, _)| {
            let file = self.durable.names.get(name)?;
            let is_good = |region: &NamedRegion| {
                self.standing(now, region) == Standing::Good && self.is_here(now, region)
            };
            let places = file.places.with_copies(|_, run| {
                let has_good = file.places.copies(run).any(|(region, _)| is_good(region));
                let stays =
                    |region: &NamedRegion| !has_good || self.standing(now, region) != Standing::Leaving;
                let kept = file.places.copies(run).filter(|(region, _)| stays(region));
                kept.map(|(region, offset)| (region.clone(), offset)).collect()
            });
            let places = places.ok().filter(|places| *places != file.places)?;
            Some((name.clone(), NamedFile { places, ..file.clone() }))
        });
        if let Some((name, file)) = found {
            self.replace(&name, file, records);
            self.survey(now);
        }
    }

    /// Reports whether a region can be read: its node is heard of, and has it.
    pub(super) fn is_here(&self, now: MonoNs, region: &NamedRegion) -> bool {
        self.nodes.get(&region.node).is_some_and(|node| self.is_alive(now, node))
            && self.keeps(region) == Some(true)
    }

    /// Returns an order for a node. `None` if no file lacks anything that it can have.
    fn order_for(&self, now: MonoNs, id: NodeId) -> Option<(Name, RepairOrder)> {
        let node = self.nodes.get(&id).filter(|node| self.may_grant(now, node) && node.unpromised() > 0)?;
        let is_helped = |need: &Need| need.label.as_ref() != Some(&node.info.host_label);
        // Files that one more loss would damage come first, then what is left of damaged ones, then complete ones.
        (0..3).find_map(|urgency| {
            let mut needs = self.repairs.needs.iter();
            needs.find_map(|(name, need)| match need.urgency() == urgency && is_helped(need) {
                true => Some((name.clone(), self.order_of(now, node, name, need)?)),
                false => None,
            })
        })
    }

    /// Returns the order for a node to copy as many runs of a file as one region holds.
    fn order_of(&self, now: MonoNs, node: &Node, name: &Name, need: &Need) -> Option<RepairOrder> {
        let file = self.durable.names.get(name)?;
        let mut adding = OrderBuilder::new(node.info.region_bytes);
        for &index in &need.runs {
            let Some(run) = file.places.runs.get(index as usize) else { continue };
            let is_ordered = |order: &Order| order.file == file.file && order.runs.contains(&index);
            if self.repairs.failed.contains_key(&(node.info.node, file.file, index))
                || self.repairs.orders.values().any(is_ordered)
                || !self.takes(now, file, run, &node.info)
                || !self.is_farthest(now, file, index, run, node)
            {
                continue;
            }
            let sources = file.places.copies(run).filter(|(region, _)| self.is_here(now, region));
            if !adding.add(index, run, sources) {
                break;
            }
        }
        if adding.runs.is_empty() {
            return None;
        }
        let OrderBuilder { runs, mut regions, sources, .. } = adding;
        let nodes: BTreeSet<NodeId> = regions.iter().map(|region| region.node).collect();
        let nodes = nodes.iter().filter_map(|id| Some(self.nodes.get(id)?.info.clone())).collect();
        regions.iter_mut().for_each(|region| region.bind(name));
        let mut signed = SignedRepair {
            node: node.info.node,
            incarnation: node.info.incarnation,
            term: self.durable.term,
            file: file.file,
            // The builder keeps all lists within their limits.
            runs: List::new(runs).unwrap_or_default(),
            mac: [0; 32],
        };
        ticket::sign(&mut signed, &node.ticket_key);
        Some(RepairOrder {
            signed,
            tenant: file.tenant.clone(),
            regions: List::new(regions).ok()?,
            sources: List::new(sources).ok()?,
            nodes: List::new(nodes).ok()?,
        })
    }
}

/// Builder of an order: packs runs into one region.
struct OrderBuilder {
    region_bytes: u64,
    /// First free byte of the region.
    end: u64,
    runs: Vec<RepairRun>,
    regions: Vec<NamedRegion>,
    indices: BTreeMap<RegionKey, u32>,
    nodes: BTreeSet<NodeId>,
    sources: Vec<List<RunCopy, RUN_COPIES_MAX>>,
}

impl OrderBuilder {
    fn new(region_bytes: u64) -> OrderBuilder {
        OrderBuilder {
            region_bytes,
            end: 0,
            runs: Vec::new(),
            regions: Vec::new(),
            indices: BTreeMap::new(),
            nodes: BTreeSet::new(),
            sources: Vec::new(),
        }
    }

    /// Adds a run with the copies to read it from, if there are any and it fits. Returns false if the order is full.
    fn add<'a>(
        &mut self,
        index: u32,
        run: &NamedRun,
        sources: impl Iterator<Item = (&'a NamedRegion, u64)>,
    ) -> bool {
        let sources: Vec<(&NamedRegion, u64)> = sources.collect();
        let Some((_, first)) = sources.first() else { return true };
        let offset = self.end + (first % ALIGNMENT + ALIGNMENT - self.end % ALIGNMENT) % ALIGNMENT;
        let end = offset + u64::from(run.bytes);
        if end > self.region_bytes {
            // A run that is longer than the region does not hold up the others.
            return self.runs.is_empty();
        }
        let fresh =
            sources.iter().filter(|(region, _)| !self.indices.contains_key(&region_key(region))).count();
        let nodes = sources.iter().filter(|(region, _)| !self.nodes.contains(&region.node)).count();
        if self.runs.len() == REPAIR_RUNS_MAX
            || self.regions.len() + fresh > REPAIR_REGIONS_MAX
            || self.nodes.len() + nodes > REPAIR_NODES_MAX
        {
            return false;
        }
        let mut copies = Vec::with_capacity(sources.len());
        for (region, offset) in sources {
            let next = self.regions.len() as u32;
            let index = *self.indices.entry(region_key(region)).or_insert(next);
            if index == next {
                self.regions.push(region.clone());
                self.nodes.insert(region.node);
            }
            // Offsets in regions are below 4 GiB.
            copies.push(RunCopy { region: index, offset: offset as u32 });
        }
        let NamedRun { bytes, checksum, .. } = *run;
        self.runs.push(RepairRun { run: index, bytes, checksum, offset: offset as u32 });
        self.sources.push(List::new(copies).unwrap_or_default());
        self.end = end;
        true
    }
}
