//! History of each published name: its values, and when they changed.
//!
//! The idea: the broker's disk decides. Whenever a record reaches that disk, the book compares the bytes in the nodes'
//! memory with the known contents, and notes which one the name has from then on. A client that opens a name must find
//! a value that the name had at some moment of the opening. A client that got the answer that a name was published or
//! dropped must find this in the book (invariant I5 of `spec/lease.md`).

use crate::holds::Opening;
use crate::kernel::{MachineId, World};
use crate::parties::{NodeLife, TakenReport};
use crate::store::Disk;
use farpool_erasure::StripeCode;
use farpool_lease::broker::{Durable, NamedFile, StateChange};
use farpool_wire::control::{NamedRegion, NamedRun, PARTS, SnapshotAt, Stripe};
use farpool_wire::limits::WINDOW_PAGE_BYTES;
use farpool_wire::{Epoch, Incarnation, NodeId, RegionIndex};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Region of one life of a node, at one epoch.
pub(crate) type Place = (Incarnation, RegionIndex, Epoch);

/// Value of a published name at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Value {
    /// There is no such name.
    Nothing,
    /// The name's bytes are the content of this number in the [`NameBook`].
    Content(u64),
    /// A node that held some of its bytes was gone when the name was published, so its content is unknown.
    Unknown,
}

/// Contents that clients gave to files which they published, and the history of each name.
#[derive(Debug, Default)]
pub(crate) struct NameBook {
    /// Values of each name with the times at which they began, in ns, in order.
    names: BTreeMap<String, Vec<(u64, Value)>>,
    /// Contents by number.
    contents: Vec<Arc<Vec<u8>>>,
    /// Numbers of the contents of each length in bytes.
    by_length: BTreeMap<usize, Vec<u64>>,
}

impl NameBook {
    /// Adds the content of a file that is about to be published. Returns the content's number.
    pub(crate) fn add_content(&mut self, bytes: Vec<u8>) -> u64 {
        let number = self.contents.len() as u64;
        self.by_length.entry(bytes.len()).or_default().push(number);
        self.contents.push(Arc::new(bytes));
        number
    }

    pub(crate) fn content(&self, number: u64) -> Arc<Vec<u8>> {
        Arc::clone(&self.contents[number as usize])
    }

    /// Returns those of these values that are contents of this length. If one of the values is [`Value::Unknown`],
    /// returns all known contents of this length.
    pub(crate) fn contents(&self, values: &BTreeSet<Value>, length: usize) -> Vec<Arc<Vec<u8>>> {
        if values.contains(&Value::Unknown) {
            let all = self.by_length.get(&length).into_iter().flatten();
            return all.map(|number| self.content(*number)).collect();
        }
        let known = values.iter().filter_map(|value| match value {
            Value::Content(number) => Some(self.content(*number)),
            _ => None,
        });
        known.filter(|content| content.len() == length).collect()
    }

    fn changed(&mut self, name: &str, now: u64, value: Value) {
        self.names.entry(name.to_owned()).or_default().push((now, value));
    }

    /// Returns every value that the name has had since the time `from`, in ns, including the one it had at that time.
    pub(crate) fn since(&self, name: &str, from: u64) -> BTreeSet<Value> {
        let Some(history) = self.names.get(name) else { return BTreeSet::from([Value::Nothing]) };
        let later = history.iter().filter(|(at, _)| *at >= from).map(|(_, value)| *value);
        let before =
            history.iter().rev().find(|(at, _)| *at < from).map_or(Value::Nothing, |(_, value)| *value);
        later.chain([before]).collect()
    }

    /// Returns every name that was ever published, dropped ones too.
    pub(crate) fn all(&self) -> Vec<String> {
        self.names.keys().cloned().collect()
    }
}

impl World {
    /// Adds the effect of a record, which this leader has just written to the disk, to the history of the names that it
    /// changes, and to that of snapshots. `before` is the file that the name was before.
    pub(crate) fn recorded(&mut self, by: Opening, record: &StateChange, before: Option<&NamedFile>) {
        let (now, moment) = (self.now(), self.moment());
        match self.parties.snapshots.recorded(now, record, before) {
            Err(twice) => self.oracle.violated("I11", twice),
            Ok(turn) => self.oracle.snapshots_turn(by, turn, moment),
        }
        match record {
            StateChange::Name(name, named) => {
                self.oracle.checks += 1;
                if let Some(why) = self.lies_together(named) {
                    self.oracle.violated("I7", format!("{name:?}: {why}"));
                }
                if let Some(region) = before.and_then(|before| self.replaced_in_vain(before, named)) {
                    let what = format!("{name:?}: a copy took the place of one that is good, at {region:?}");
                    self.oracle.violated("copied twice", what);
                }
                let value = self.value_of(named);
                self.parties.names.changed(name, now, value);
            }
            StateChange::DropName(name) => self.parties.names.changed(name, now, Value::Nothing),
            _ => {}
        }
    }

    /// Returns the number and the machine of the node that has a region, if it has it still.
    fn node_with(&self, region: &NamedRegion) -> Option<(usize, MachineId)> {
        let is_its = |life: &NodeLife| {
            life.incarnation == region.incarnation
                && life.service.memory().view(region.region.0).epoch == region.epoch
        };
        let mut nodes = self.parties.nodes.iter().enumerate();
        let (node, place) = nodes.find(|(_, place)| place.life.as_ref().is_some_and(is_its))?;
        Some((node, place.machine))
    }

    /// Returns what is wrong if one host has two copies of a run, or two runs of a stripe. Copies that a node does not
    /// have any more may be listed until others have taken their place. The broker cannot know the host of a node that
    /// has not come to it yet.
    fn lies_together(&mut self, named: &NamedFile) -> Option<String> {
        let places = &named.places;
        let writer = self.running_process();
        let broker = self.parties.brokers.iter().find(|life| Some(life.process) == writer);
        let is_met = |node: NodeId| broker.is_none_or(|broker| broker.met.contains(&node));
        let machine_of = |region: &NamedRegion| {
            let (_, machine) = self.node_with(region).filter(|_| is_met(region.node))?;
            Some(machine)
        };
        let of_runs = places.runs.iter().map(|run| vec![run]);
        let of_stripes = places
            .stripes
            .iter()
            .map(|stripe| stripe.shards().filter_map(|run| places.runs.get(run)).collect());
        of_runs.chain(of_stripes).find_map(|runs| {
            let copies = runs.into_iter().flat_map(|run| places.copies(run)).map(|(region, _)| region);
            let hosts: Vec<MachineId> = copies.filter_map(machine_of).collect();
            let different: BTreeSet<MachineId> = hosts.iter().copied().collect();
            (different.len() < hosts.len())
                .then(|| format!("machines {hosts:?} have what should be on different hosts"))
        })
    }

    /// Returns a region with a copy that is listed no more because another was made, although the running broker knew
    /// that it was good: two nodes have copied one run.
    fn replaced_in_vain(&mut self, before: &NamedFile, after: &NamedFile) -> Option<NamedRegion> {
        if before.file != after.file {
            return None;
        }
        let writer = self.running_process()?;
        let now = self.clock_of(writer);
        let broker = self.parties.brokers.iter().find(|life| life.process == writer)?;
        // Well within the silence after which the broker gives a node up.
        let silence_ms = u64::from(self.plan.settings.node_silence_ms) / 2;
        let is_known_good = |region: &NamedRegion, others: &[NamedRegion]| {
            let Some((node, machine)) = self.node_with(region) else { return false };
            let is_fresh = |report: &TakenReport| {
                report.incarnation == region.incarnation
                    && !report.is_draining
                    && now.ms_since(report.at) <= silence_ms
            };
            broker.reports.get(&region.node).is_some_and(is_fresh)
                && !self.parties.drained.contains(&node)
                && !self.may_be_emptied(region)
                && others.iter().all(|other| self.node_with(other).is_some_and(|(_, at)| at != machine))
        };
        let mut pairs = before.places.runs.iter().zip(after.places.runs.iter());
        pairs.find_map(|(before_run, after_run)| {
            let had: Vec<NamedRegion> =
                before.places.copies(before_run).map(|(region, _)| region.clone()).collect();
            let has: Vec<NamedRegion> =
                after.places.copies(after_run).map(|(region, _)| region.clone()).collect();
            let is_repair = has.iter().any(|region| !had.contains(region));
            let mut gone = had.into_iter().filter(|region| !has.contains(region));
            gone.find(|region| is_repair && is_known_good(region, &has))
        })
    }

    /// Reports whether a region is a segment less than half of which belongs to files. Nothing is added to one that is
    /// emptied, so it had no less when its emptying was ordered than it has now.
    fn may_be_emptied(&self, segment: &NamedRegion) -> bool {
        let place = (segment.incarnation, segment.region, segment.epoch);
        let Some(end) = self.oracle.end_of_segment(&place) else { return false };
        let live_bytes = |named: &NamedFile| -> u64 {
            let copies = named
                .places
                .runs
                .iter()
                .flat_map(|run| named.places.copies(run).map(move |copy| (run, copy)));
            let here =
                copies.filter(|(_, (region, _))| (region.incarnation, region.region, region.epoch) == place);
            here.map(|(run, _)| u64::from(run.bytes).next_multiple_of(WINDOW_PAGE_BYTES)).sum()
        };
        let live_bytes: u64 =
            self.parties.disk.with_durable(|durable| durable.names.values().map(live_bytes).sum());
        2 * live_bytes < u64::from(end)
    }

    /// Returns the content that a named file's bytes in the nodes' memory are. Unknown if a node is gone.
    fn value_of(&self, named: &NamedFile) -> Value {
        let Some(bytes) = self.bytes_of(named) else { return Value::Unknown };
        let candidates = self.parties.names.by_length.get(&bytes.len()).into_iter().flatten();
        let mut found = candidates.filter(|number| *self.parties.names.contents[**number as usize] == bytes);
        // Bytes that are no known content also count as unknown: the violation is reported when a client reads them.
        found.next().map_or(Value::Unknown, |number| Value::Content(*number))
    }

    /// Returns the bytes of a named file, read from a copy of each run that lives, or computed. `None` if some can be
    /// neither.
    fn bytes_of(&self, named: &NamedFile) -> Option<Vec<u8>> {
        let stripes = named.places.stripe_of_runs();
        let mut bytes = Vec::new();
        for (index, run) in named.places.data().iter().enumerate() {
            let computed = || {
                let stripe = named.places.stripes.get(stripes[index]? as usize)?;
                self.computed(named, stripe, index, run.bytes as usize)
            };
            bytes.extend(self.bytes_of_run(named, run).or_else(computed)?);
        }
        Some(bytes)
    }

    /// Returns the bytes of a run, read from a copy that lives.
    fn bytes_of_run(&self, named: &NamedFile, run: &NamedRun) -> Option<Vec<u8>> {
        let mut bytes = vec![0; run.bytes as usize];
        let is_read = named.places.copies(run).any(|(region, offset)| {
            let mut lives = self.parties.nodes.iter().filter_map(|place| place.life.as_ref());
            let life = lives.find(|life| life.incarnation == region.incarnation);
            life.is_some_and(|life| life.service.memory().peek(region.region.0, offset, &mut bytes).is_some())
        });
        is_read.then_some(bytes)
    }

    /// Computes a run from others of its stripe that live.
    fn computed(&self, named: &NamedFile, stripe: &Stripe, index: usize, bytes: usize) -> Option<Vec<u8>> {
        let runs: Vec<Option<&NamedRun>> = stripe.shards().map(|run| named.places.runs.get(run)).collect();
        let longest = runs.iter().flatten().map(|run| run.bytes as usize).max()?;
        let mut have: Vec<(usize, Vec<u8>)> = runs
            .into_iter()
            .enumerate()
            .filter_map(|(shard, run)| {
                let mut found = self.bytes_of_run(named, run?)?;
                found.resize(longest, 0);
                Some((shard, found))
            })
            .collect();
        have.truncate(stripe.data.len());
        let wanted = stripe.shards().position(|run| run == index)?;
        let mut computed = vec![0; longest];
        let have = have.iter_mut().map(|(shard, found)| (*shard, &mut found[..]));
        let code = StripeCode::new(stripe.data.len(), stripe.parity.len()).ok()?;
        code.compute(have, wanted, &mut computed).ok()?;
        computed.truncate(bytes);
        Some(computed)
    }

    /// Reports whether a copy of each run of a name's bytes is on a node that is in the same life as when it got it, or
    /// enough others of its stripe are.
    pub(crate) fn is_whole(&self, name: &str, disk: &Disk) -> bool {
        let ended = &self.parties.ended;
        disk.with_durable(|durable| {
            let named = durable.names.iter().find(|(has, _)| &***has == name).map(|(_, named)| named);
            let lives = |region: &NamedRegion| !ended.contains(&region.incarnation);
            named.is_some_and(|named| named.places.first_lost(lives).is_none())
        })
    }

    /// Reports whether all files of a table can be read: its root, its parts and pages.
    pub(crate) fn is_table_whole(&self, name: &str, latest: Option<SnapshotAt>) -> bool {
        let disk = self.parties.disk.clone();
        let parts: Vec<String> = disk.with_durable(|durable| {
            let prefix = latest.map(|at| format!("{PARTS}{:016x}/", at.table.0));
            let names = durable
                .names
                .keys()
                .filter(|name| prefix.as_ref().is_some_and(|prefix| name.starts_with(prefix.as_str())));
            names.map(|name| name.to_string()).collect()
        });
        self.is_whole(name, &disk) && parts.iter().all(|part| self.is_whole(part, &disk))
    }

    /// Returns the regions of a node's life that belong to published names, according to the broker's disk.
    pub(crate) fn named_in(&self, incarnation: Incarnation) -> Vec<(RegionIndex, Epoch)> {
        self.parties.disk.with_durable(|durable| {
            let regions = durable.names.values().flat_map(|named| named.places.regions.iter());
            let here = regions.filter(|region| region.incarnation == incarnation);
            here.map(|region| (region.region, region.epoch)).collect()
        })
    }
}

/// Returns all regions that belong to published names, according to the records on the broker's disk.
pub(crate) fn places(durable: &Durable) -> BTreeSet<Place> {
    let regions = durable.names.values().flat_map(|named| named.places.regions.iter());
    regions.map(|region| (region.incarnation, region.region, region.epoch)).collect()
}
