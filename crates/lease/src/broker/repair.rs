//! Copies of published files that are missing, and the orders by which nodes make them again.
//!
//! The idea: the runs of a published file never change, only the places of their copies do. So the id of the file and
//! the index of a run say which bytes a copy has, whenever a node reports it and to whichever broker. A report is
//! judged by what the file lacks then: a run that has got its copies meanwhile takes no other, and a region of which no
//! run takes a copy is freed. A signature shows that some broker of the pool has given the order, so nothing about
//! orders has to survive a broker.
//!
//! A run in a stripe has one copy. If that is lost, the run is computed from others of the stripe, by the node that
//! gets it. All runs of a stripe lie on different hosts.
//!
//! A node that is being drained is repaired like one that is lost, except that its copies are read from and stay listed
//! until others are. A copy leaves the list in the transaction that lists its successor, and its node learns only
//! afterwards that it should free the region.
//!
//! Nodes ask for orders, one at a time. Files in most danger come first.

use super::nodes::{Node, reporting};
use super::orders::OrderBuilder;
use super::records::region_key;
use super::segment_seen::SegmentSeen;
use super::{BrokerLeases, NamedFile, StateChange, give_up};
use crate::{tenant, ticket};
use farpool_wire::control::*;
use farpool_wire::host_label::{may_be_one_host, shared_domains};
use farpool_wire::ids::*;
use farpool_wire::limits::*;
use farpool_wire::{Code, List, Name, Refusal, mutant};
use std::collections::{BTreeMap, BTreeSet};

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
    /// Its node is being drained, or little is left in its segment. It can be read, but another one should take its
    /// place.
    Leaving,
    /// Its node has started again, has been silent for longer than any lease lasts, or has taken it back.
    Gone,
}

/// Copies that a published file lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Need {
    /// Runs that lack a copy on another host and can still be read, or computed.
    runs: Vec<u32>,
    /// Bytes of these runs.
    bytes: u64,
    /// Fewest copies of a run that can be read. 0: some bytes are lost. For a stripe: how many of its shards can be
    /// read beyond those that are needed, and 1.
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
        let found = self.names_of_files.get(&file_id);
        let found = found.and_then(|name| Some((name.clone(), self.durable.names.get(name)?.clone())));
        if let Some((_, file)) = &found
            && self.owners.get(&place).is_some_and(|owner| owner.is(file, &made))
        {
            // The request is a repetition: the first answer was lost.
            let is_there = |run: &&NamedRun| file.places.copies(run).any(|(has, _)| region_key(has) == place);
            let copied = report.copied.iter().filter_map(|index| runs.get(*index as usize));
            let there =
                copied.filter_map(|run| file.places.runs.get(run.run as usize)).filter(is_there).count();
            if there > 0 {
                return Ok(there as u32);
            }
        }
        let segment = self.segment(&made);
        // Where the copies begin, and how many bytes they may take.
        let (base, bytes_max) = match segment.map(SegmentSeen::own_copies) {
            Some(Some((base, bytes))) => (base, u64::from(bytes)),
            None if node.filled.get(&region) == Some(&epoch) => {
                self.check_free(&made)?;
                (0, node.info.region_bytes)
            }
            // The node may have taken the region back since it made the copies.
            _ => return Err(Refusal::new(Code::StaleEpoch, 0)),
        };
        let is_segment = segment.is_some();
        let info = node.info.clone();
        // Copies on a node that is about to end are worth nothing.
        let found = found.filter(|_| !node.is_draining());
        let mut taken = BTreeMap::new();
        let stripes = found.as_ref().map_or(Vec::new(), |(_, file)| file.places.stripe_of_runs());
        // A second run of a stripe in this region would be lost together with the first.
        let mut in_stripes = BTreeSet::new();
        for index in report.copied.iter() {
            let (Some((_, file)), Some(run)) = (&found, runs.get(*index as usize)) else { continue };
            let at = run.run as usize;
            let Some(has) = file.places.runs.get(at) else { continue };
            let end = u64::from(run.offset) + u64::from(run.bytes);
            if has.bytes == run.bytes
                && end <= bytes_max
                && (mutant!(RunRepairedTwice) || self.takes(now, file, &stripes, at, &info))
                && (mutant!(StripeOnOneHost) || stripes[at].is_none_or(|stripe| in_stripes.insert(stripe)))
            {
                taken.insert(at, u64::from(base) + u64::from(run.offset));
            }
        }
        let Some((name, file)) = found.filter(|_| !taken.is_empty()) else {
            if !is_segment {
                give_up(&mut self.given_up, place, epoch);
            }
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
            let needs_host = self.needs_host(now, file, need);
            first.push((
                need.urgency(),
                need.copies,
                EndangeredFile {
                    name: name.clone(),
                    bytes: need.bytes,
                    copies: need.copies,
                    copies_wanted: file.strength_wanted(),
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
            Some(node) => match self.standing_of(now, node) {
                Standing::Good if self.is_sparse_segment(region) => Standing::Leaving,
                other => other,
            },
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
        let stripes = file.places.stripe_of_runs();
        // Strength of each stripe, as `Need::copies` has it.
        let can_be_read = |run: usize| {
            let run = file.places.runs.get(run);
            run.is_some_and(|run| {
                let is_left = |copy: &RunCopy| {
                    standings.get(copy.region as usize).is_some_and(|standing| *standing != Standing::Gone)
                };
                run.copies.iter().any(is_left)
            })
        };
        let strengths: Vec<usize> = file
            .places
            .stripes
            .iter()
            .map(|stripe| {
                let readable = stripe.shards().filter(|run| can_be_read(*run)).count();
                (readable + 1).saturating_sub(stripe.data.len())
            })
            .collect();
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
            let strength = stripes[index].map_or(readable, |stripe| strengths[stripe as usize]);
            need.has_leaving |= leaving > 0;
            need.copies = need.copies.min(strength as u8);
            need.is_leaving &=
                self.hosts_of(of(Standing::Good).chain(of(Standing::Leaving))) >= file.copies_wanted.into();
            if readable.max(strength) > 0 {
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

    /// Reports whether no node of the pool, however much memory it has, can have what a file lacks.
    fn needs_host(&self, now: MonoNs, file: &NamedFile, need: &Need) -> bool {
        if let Some(label) = &need.label {
            return !self.has_host_beside(now, label);
        }
        if file.places.stripes.is_empty() {
            return false;
        }
        let stripes = file.places.stripe_of_runs();
        let can_help = |node: &Node| {
            let takes = |run: &u32| self.takes(now, file, &stripes, *run as usize, &node.info);
            node.makes_copies && self.standing_of(now, node) == Standing::Good && need.runs.iter().any(takes)
        };
        !self.nodes.values().any(can_help)
    }

    /// Returns the good copies of a run.
    fn good_copies<'f>(
        &self,
        now: MonoNs,
        file: &'f NamedFile,
        run: &'f NamedRun,
    ) -> impl Iterator<Item = &'f NamedRegion> {
        let copies = file.places.copies(run).map(|(region, _)| region);
        copies.filter(move |region| self.standing(now, region) == Standing::Good)
    }

    /// Returns the good copies of a run, and those of the others in its stripe that are good or may be again, because
    /// their node is only silent: no host of theirs may have another.
    fn kept_beside<'f>(
        &self,
        now: MonoNs,
        file: &'f NamedFile,
        stripes: &[Option<u32>],
        index: usize,
    ) -> Vec<&'f NamedRegion> {
        let stripe = stripes.get(index).copied().flatten();
        let runs: Vec<usize> = match stripe.and_then(|stripe| file.places.stripes.get(stripe as usize)) {
            Some(stripe) if !mutant!(StripeOnOneHost) => stripe.shards().collect(),
            _ => vec![index],
        };
        let copies = |run: usize| {
            let copies = file.places.runs.get(run).into_iter().flat_map(|run| file.places.copies(run));
            copies.map(move |(region, _)| (run, region))
        };
        let may_be_good = |(run, region): &(usize, &NamedRegion)| {
            let is_silent = *run != index && self.keeps(region) == Some(true);
            is_silent || self.standing(now, region) == Standing::Good
        };
        runs.into_iter().flat_map(copies).filter(may_be_good).map(|(_, region)| region).collect()
    }

    /// Reports whether a run lacks a copy that a node can have. `stripes` has the stripe of each run.
    fn takes(
        &self,
        now: MonoNs,
        file: &NamedFile,
        stripes: &[Option<u32>],
        index: usize,
        node: &NodeInfo,
    ) -> bool {
        let Some(run) = file.places.runs.get(index) else { return false };
        let is_apart = |region: &&NamedRegion| {
            self.label_of(region).is_some_and(|label| !may_be_one_host(label, &node.host_label))
        };
        self.hosts_of(self.good_copies(now, file, run)) < file.copies_wanted.into()
            && self.kept_beside(now, file, stripes, index).iter().all(is_apart)
    }

    /// Reports whether no node that is free to copy the run now lies farther from its good copies, and from those of
    /// the others in its stripe.
    fn is_farthest(
        &self,
        now: MonoNs,
        file: &NamedFile,
        stripes: &[Option<u32>],
        index: u32,
        node: &Node,
    ) -> bool {
        let good = self.kept_beside(now, file, stripes, index as usize);
        let labels: Vec<&Name> = good.into_iter().filter_map(|region| self.label_of(region)).collect();
        let bytes = file.places.runs.get(index as usize).map_or(0, |run| run.bytes);
        let shared = |node: &Node| {
            let shared = labels.iter().map(|label| shared_domains(label, &node.info.host_label));
            shared.max().unwrap_or(0)
        };
        let is_free = |other: &Node| {
            let id = other.info.node;
            other.makes_copies
                && self.may_grant(now, other)
                && other.unpromised() > 0
                && other.info.region_bytes >= bytes.into()
                && !self.repairs.orders.contains_key(&id)
                && !self.repairs.failed.contains_key(&(id, file.file, index))
        };
        let here = shared(node);
        here == 0 || !self.nodes.values().any(|other| shared(other) < here && is_free(other))
    }

    /// Drops copies at nodes that are being drained, if others are good, or those of a stripe suffice, and no host of
    /// the pool can have a successor, however much memory it has. One copy at a node that stays is better than two of
    /// which one leaves with its node; the file stays in need, and gets its copy when there is a host. Does that for
    /// one file at a time.
    fn drop_leaving(&mut self, now: MonoNs, records: &mut Vec<StateChange>) {
        let found =
            self.repairs.needs.iter().filter(|(_, need)| need.has_leaving).find_map(|(name, need)| {
                let file = self.durable.names.get(name).filter(|file| self.needs_host(now, file, need))?;
                let has_good = |run: &NamedRun| {
                    let mut good = self.good_copies(now, file, run);
                    good.any(|region| self.is_here(now, region))
                };
                let stripes = file.places.stripe_of_runs();
                let suffices = |stripe: &Stripe| {
                    let good = stripe
                        .shards()
                        .filter_map(|run| file.places.runs.get(run))
                        .filter(|run| has_good(run));
                    good.count() >= stripe.data.len()
                };
                let sufficient: Vec<bool> = file.places.stripes.iter().map(suffices).collect();
                let places = file.places.with_copies(|index, run| {
                    let is_spared =
                        stripes[index].map_or_else(|| has_good(run), |stripe| sufficient[stripe as usize]);
                    let stays =
                        |region: &NamedRegion| !is_spared || self.standing(now, region) != Standing::Leaving;
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
        // Files that one more loss would damage come first, then those that two would, then what is left of damaged
        // ones, then complete ones.
        let mut needs: Vec<(&Name, &Need)> =
            self.repairs.needs.iter().filter(|(_, need)| is_helped(need)).collect();
        needs.sort_by_key(|(_, need)| (need.urgency(), need.copies));
        needs.into_iter().find_map(|(name, need)| Some((name.clone(), self.order_of(now, node, name, need)?)))
    }

    /// Returns the order for a node to copy as many runs of a file as one region holds.
    fn order_of(&self, now: MonoNs, node: &Node, name: &Name, need: &Need) -> Option<RepairOrder> {
        let file = self.durable.names.get(name)?;
        let mut adding = OrderBuilder::new(node.info.region_bytes);
        let stripes = file.places.stripe_of_runs();
        let mut in_stripes = BTreeSet::new();
        for &index in &need.runs {
            let Some(run) = file.places.runs.get(index as usize) else { continue };
            let stripe = stripes[index as usize];
            let is_ordered = |order: &Order| order.file == file.file && order.runs.contains(&index);
            if self.repairs.failed.contains_key(&(node.info.node, file.file, index))
                || stripe.is_some_and(|stripe| in_stripes.contains(&stripe))
                || (self.repairs.orders.values().any(is_ordered) && !mutant!(RunRepairedTwice))
                || !self.takes(now, file, &stripes, index as usize, &node.info)
                || !self.is_farthest(now, file, &stripes, index, node)
            {
                continue;
            }
            let is_here = |(region, _): &(&NamedRegion, u64)| self.is_here(now, region);
            let sources: Vec<(&NamedRegion, u64)> = file.places.copies(run).filter(is_here).collect();
            let stripe_of = stripe.and_then(|stripe| file.places.stripes.get(stripe as usize));
            let shards = match (stripe_of, &sources[..]) {
                (Some(stripe), []) => {
                    let of = |(shard, run): (usize, usize)| {
                        let run = file.places.runs.get(run)?;
                        let (region, offset) = file.places.copies(run).find(is_here)?;
                        Some((shard as u8, run.bytes, region, offset))
                    };
                    let readable: Vec<_> = stripe.shards().enumerate().filter_map(of).collect();
                    (readable.len() >= stripe.data.len()).then_some((stripe, readable))
                }
                _ => None,
            };
            // A copy that is gone shows how the bytes were aligned.
            let before = file.places.copies(run).next().map_or(0, |(_, offset)| offset);
            if !adding.add(index, run, before, &sources, shards) {
                break;
            }
            in_stripes.extend(stripe);
        }
        if adding.runs.is_empty() {
            return None;
        }
        let OrderBuilder { runs, mut regions, sources, computed, .. } = adding;
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
            computed: List::new(computed).ok()?,
        })
    }
}
