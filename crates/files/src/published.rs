//! Published files: sealing them (making their regions immutable) and naming them, finding them after they moved,
//! and rebuilding them after a loss.

use crate::error::{Error, ErrorKind};
use crate::file::{FarFile, FileInner, FileState, Phase, closed};
use crate::leases::{NodeRequest, Waits};
use crate::node_links::{LeasedRegion, NodeLinks};
use crate::options::{IfTaken, Protection};
use crate::plan::{Allocation, ExtentCopy, FileMap, Stripes};
use crate::rebuilding::Rebuild;
use crate::recipe::Recipe;
use crate::repair::Repairable;
use crate::sealed_map::sealed_map;
use crate::session::Session;
use crate::session_core::{BRIEF_MS, LOOK_MS};
use farpool_wire::control::*;
use farpool_wire::{
    Code, FileClass, FileId, List, MonoNs, Name, NodeId, Refusal, Reply, Request, WireError, mutant,
};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Time in ms in which a node connects to a broker that has just begun to lead, at most. A node that has connected
/// reports at once what it has sealed.
const CONNECT_MS_MAX: u64 = 4_000;

/// State of a name that does not lead to its former file any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Became {
    /// The name belongs to another file now.
    Replaced,
    /// The name was dropped; no file has it.
    Dropped,
}

/// Asks the broker what became of the name of a published file. `None` if it still has that file, or if the broker does
/// not answer.
pub fn became(file: &FarFile) -> Option<Became> {
    let Phase::Published(id) = file.inner.state().phase else { return None };
    let name = Name::new(file.name()).ok()?;
    match file.inner.session.broker.open_places(&name) {
        Ok(opened) => (opened.file != id).then_some(Became::Replaced),
        Err(gone) => {
            gone.refusal().filter(|refusal| refusal.code == Code::NoSuchName).map(|_| Became::Dropped)
        }
    }
}

impl FileInner {
    /// Seals the file (makes its regions immutable) and gives it its name, in one transaction of the broker's catalog.
    /// Any number of clients may then open and read it. It outlives this session.
    pub(crate) fn publish(&self, class: FileClass, if_taken: IfTaken) -> Result<(), Error> {
        let shown = self.name();
        let name =
            Name::new(shown.clone()).map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
        if class != FileClass::Pinned {
            let message = format!("far file {shown:?} is of class {class}; only pinned files are published");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let mut places = self.sealed_with_checksums()?;
        let proof = self.session.leases.proof();
        let published = loop {
            let mut named = places.clone();
            named.bind(&name);
            let publish = PublishPlaces {
                session: proof.session,
                secret: proof.secret,
                name: name.clone(),
                class,
                replaces: match if_taken {
                    IfTaken::Refuse => Replaces::Nothing,
                    IfTaken::Replace => Replaces::Anything,
                    IfTaken::ReplaceOnly(file) => Replaces::Only(file),
                },
                copies_wanted: self.protection().copies() as u8,
                recipe: self.recipe.get().cloned().unwrap_or_default(),
                places: named,
            };
            let waits = RefusalWaits::new(&self.session);
            let may_wait = |refusal: Refusal| {
                let node = self.node_of_copies(NodeId(refusal.detail));
                waits.may_wait(refusal, node, || without_lost(&places, refusal).is_some())
            };
            match self.session.broker.publish(publish, &may_wait) {
                Ok(published) => break published,
                Err(error) => {
                    let left = error.refusal().and_then(|refusal| without_lost(&places, refusal));
                    places = left.ok_or(error)?;
                }
            }
            self.keep_places(&places);
        };
        self.note_published(published.file, &places);
        Ok(())
    }

    /// Seals the file (makes it immutable) if that is not done yet, and returns its places, with the checksums of its
    /// runs.
    pub(crate) fn sealed_with_checksums(&self) -> Result<Places, Error> {
        let mut places = self.sealed_places()?;
        self.take_checksums(&mut places)?;
        Ok(places)
    }

    /// Keeps the places of a sealed file: a retry, as after a lost answer, must ask for the same ones.
    pub(crate) fn keep_places(&self, places: &Places) {
        if let Phase::Sealed(sealed) = &mut self.state().phase {
            *sealed = places.clone();
        }
    }

    /// Notes that the broker has given these places to a name, as file `file`. Gives back what was sealed in vain.
    pub(crate) fn note_published(&self, file: FileId, places: &Places) {
        let mut state = self.state();
        if matches!(state.phase, Phase::Sealed(_)) {
            state.phase = Phase::Published(file);
            self.session.leases.unnamed.fetch_sub(1, Ordering::AcqRel);
        }
        let listed: BTreeSet<_> = places.regions.iter().map(|region| (region.node, region.region)).collect();
        let is_left = |region: &LeasedRegion| !listed.contains(&(region.node.info.node, region.region));
        let copies = state.map.extents().flat_map(|(_, copies)| copies);
        let left = copies.map(|copy| &copy.allocation).filter(|place| is_left(&place.region));
        let (ranges, places): (Vec<_>, Vec<_>) = left.cloned().partition(|place| place.region.is_segment());
        state.map.drop_lost(|region| is_left(region));
        let copies = state.map.extents().flat_map(|(_, copies)| copies);
        let sealed = copies.map(|copy| copy.allocation.clone()).collect();
        drop(state);
        // Nobody else knows of regions that were sealed in vain, so they would stay as long as this session.
        let regions: BTreeMap<u64, Arc<LeasedRegion>> =
            places.into_iter().map(|place| (place.region.id, place.region)).collect();
        let regions: Vec<_> = regions.into_values().collect();
        self.session.leases.release(&regions, self.session.options().request_timeout_ms);
        self.session.leases.give_up_copies(ranges);
        self.session.leases.let_published_go(sealed);
    }

    /// Seals the file (makes it immutable) if that is not done yet, and returns its places. From then on its bytes do
    /// not change, even if publishing fails; publishing may be retried.
    fn sealed_places(&self) -> Result<Places, Error> {
        loop {
            let holes = {
                let state = self.state();
                match &state.phase {
                    Phase::Sealed(places) => return Ok(places.clone()),
                    Phase::Published(_) => {
                        return Err(Error::new(ErrorKind::ReadOnly, "the file is published already"));
                    }
                    Phase::Deleted => return Err(closed()),
                    Phase::Writable | Phase::Sealing => state.map.holes(),
                }
            };
            self.fill_holes(&holes)?;
            self.mirror_if_too_short()?;
            if self.unprotected_bytes() > 0 {
                // A copy that was lost, or for which there was no room, is made before nobody can make it any more.
                self.repair(true);
            }
            let _lock = self.begin_change(0..u64::MAX);
            if self.begin_sealing()? {
                if matches!(self.protection(), Protection::Rs { .. }) {
                    // Shards are runs in regions of the file alone. A file without stripes has a mirror instead.
                    self.leave_shared()?;
                }
                self.add_parity()?;
                let seal = |waits| {
                    let mut shared = self.seal_shared(waits);
                    if shared.as_ref().is_err_and(Self::has_no_segments_there) {
                        shared = self.leave_shared();
                    }
                    let listed = {
                        let state = self.state();
                        let copies = state.map.extents().flat_map(|(_, copies)| copies);
                        copies.map(|copy| copy.allocation.region.id).collect()
                    };
                    let sealed = self.session.leases.seal(self.group, &listed, waits, |sealed| {
                        let replaced = |region: &Arc<LeasedRegion>| sealed.get(&region.id).cloned();
                        self.state().map.replace_regions(replaced);
                    });
                    self.end_sealing().map_err(|error| sealed.and(shared).err().unwrap_or(error))
                };
                // A silent node is given up if the rest of the file suffices without it.
                return match self.has_others_everywhere() {
                    true => seal(Waits::WhileItIsThere).or_else(|_| seal(Waits::Long)),
                    false => seal(Waits::Long),
                };
            }
        }
    }

    /// Ends writing if nothing is left to write. Returns true if the file may be sealed now.
    fn begin_sealing(&self) -> Result<bool, Error> {
        let mut state = self.state();
        match state.phase {
            Phase::Writable => {}
            Phase::Sealing => return Ok(true),
            _ => return Ok(false),
        }
        let map = &state.map;
        if map.is_poisoned() || map.length() == 0 {
            let why = if map.is_poisoned() { "a write to it failed" } else { "it is empty" };
            return Err(Error::new(ErrorKind::Invalid, format!("the file cannot be published: {why}")));
        }
        // Checks the limits before the file can no longer be written.
        places_of(map, None)?;
        if !map.holes().is_empty() {
            return Ok(false);
        }
        state.phase = Phase::Sealing;
        self.session.leases.unnamed.fetch_add(1, Ordering::AcqRel);
        Ok(true)
    }

    /// Returns the links to a node if it has copies of the file.
    pub(crate) fn node_of_copies(&self, node: NodeId) -> Option<Arc<NodeLinks>> {
        let state = self.state();
        let mut copies = state.map.extents().flat_map(|(_, copies)| copies);
        let copy = copies.find(|copy| copy.allocation.region.node.info.node == node);
        copy.map(|copy| Arc::clone(&copy.allocation.region.node))
    }

    /// Reports whether all bytes of the file have several copies, or parity.
    fn has_others_everywhere(&self) -> bool {
        let state = self.state();
        state.stripes.is_some() || state.map.extents().all(|(_, copies)| copies.len() > 1)
    }

    /// Drops copies whose regions could not be sealed, and returns the places of the others.
    fn end_sealing(&self) -> Result<Places, Error> {
        let mut state = self.state();
        let mut map = state.map.clone();
        let length = map.length();
        let is_sealed = |copy: &ExtentCopy<Arc<LeasedRegion>>| !copy.allocation.region.is_leased;
        let has_parity = state.stripes.is_some();
        for (_, copies) in map.extents().filter(|(file, _)| file.start < length && !has_parity) {
            match copies {
                _ if copies.iter().any(is_sealed) => {}
                [copy, ..] => {
                    let why = "it was lost while the file was sealed";
                    return Err(Error::lost(&copy.allocation.region.node.info, why));
                }
                [] => return Err(Error::new(ErrorKind::Lost, "some bytes of the file have no copy left")),
            }
        }
        let copies = map.extents().flat_map(|(_, copies)| copies);
        let left = copies.filter(|copy| !is_sealed(copy)).map(|copy| copy.allocation.clone()).collect();
        map.drop_lost(|region| region.is_leased);
        let places = places_of(&map, state.stripes.as_deref())?;
        if places.first_lost(|_| true).is_some() {
            let message = "too many parts of the file were lost while it was sealed";
            return Err(Error::new(ErrorKind::Lost, message));
        }
        state.map = map;
        state.phase = Phase::Sealed(places.clone());
        drop(state);
        self.session.leases.give_back(left);
        Ok(places)
    }

    /// Asks the nodes for the checksums of the runs, by which copies that are made later are checked. A node that does
    /// not answer, or is of an earlier version, leaves them unknown.
    ///
    /// Errors: the copies of a run differ.
    fn take_checksums(&self, places: &mut Places) -> Result<(), Error> {
        let mut leased = BTreeMap::new();
        for (_, copies) in self.state().map.extents() {
            for copy in copies {
                let region = &copy.allocation.region;
                leased.insert((region.node.info.incarnation, region.region), Arc::clone(region));
            }
        }
        self.note_copied(places)?;
        let mut wanted: BTreeMap<u32, Vec<(usize, RegionRange)>> = BTreeMap::new();
        for (index, run) in places.runs.iter().enumerate().filter(|(_, run)| run.checksum == 0) {
            for copy in run.copies.iter() {
                let range = RegionRange { offset: copy.offset, bytes: run.bytes };
                wanted.entry(copy.region).or_default().push((index, range));
            }
        }
        let (mut asked, mut requests) = (Vec::new(), Vec::new());
        for (region, ranges) in wanted {
            let of = places.regions.get(region as usize);
            let Some(at) = of.and_then(|region| leased.get(&(region.incarnation, region.region))) else {
                continue;
            };
            let (indices, ranges): (Vec<usize>, Vec<RegionRange>) = ranges.into_iter().unzip();
            let bytes = ranges.iter().map(|range| u64::from(range.bytes)).sum();
            let request = Request::Checksums(Checksums {
                region: at.region,
                epoch: at.epoch,
                handle: at.handle,
                ranges: List::new(ranges).map_err(too_many)?,
            });
            requests.push(NodeRequest { node: Arc::clone(&at.node), request, bytes });
            asked.push(indices);
        }
        for (indices, answer) in
            asked.into_iter().zip(self.session.leases.ask_all(&requests, Waits::WhileItIsThere))
        {
            let Ok(Reply::Checksums(taken)) = answer else { continue };
            for (index, checksum) in indices.into_iter().zip(taken.checksums.iter()) {
                note_checksum(places, index, *checksum)?;
            }
        }
        self.keep_places(places);
        Ok(())
    }

    /// Notes the checksums of runs whose copies nodes have made all in segments: they came with the answers.
    ///
    /// Errors: the copies of a run differ.
    fn note_copied(&self, places: &mut Places) -> Result<(), Error> {
        let copied = self.copied.lock();
        for index in 0..places.runs.len() {
            let run = &places.runs[index];
            let checksum = |(region, offset): (&NamedRegion, u64)| {
                let (bytes, checksum) = copied.get(&(region.incarnation, region.region, offset as u32))?;
                (*bytes == run.bytes).then_some(*checksum)
            };
            let checksums: Option<Vec<u32>> = places.copies(run).map(checksum).collect();
            for checksum in checksums.unwrap_or_default() {
                note_checksum(places, index, checksum)?;
            }
        }
        Ok(())
    }

    /// Reports whether all bytes of a published file have as many copies as they should, at nodes that answer.
    pub(crate) fn is_whole(&self, state: &FileState) -> bool {
        let wanted = self.protection().copies();
        state.map.extents().all(|(_, copies)| copies.iter().filter(is_good).count() >= wanted)
    }

    /// Looks up where a published file is now, if some of its copies cannot be read, and takes the answer if nodes have
    /// made some of them again since. A broker that does not answer soon, and other operations of the file, are waited
    /// for only if `waits` says so.
    pub(crate) fn look_for_copies(&self, waits: Waits) -> Looked {
        let good = |map: &FileMap<Arc<LeasedRegion>>| {
            map.extents().map(|(_, copies)| copies.iter().filter(is_good).count()).sum::<usize>()
        };
        let (file, before) = {
            let state = self.state();
            let Phase::Published(file) = state.phase else { return Looked::InVain };
            if self.is_whole(&state) {
                return Looked::InVain;
            }
            (file, good(&state.map))
        };
        let Ok(name) = Name::new(self.name()) else { return Looked::InVain };
        let (opened, until) = match waits {
            Waits::Long => (self.session.broker.open_places(&name), MonoNs(u64::MAX)),
            Waits::WhileItIsThere => {
                let until = self.session.deadline(BRIEF_MS);
                (self.session.broker.open_places_within(&name, BRIEF_MS), until)
            }
        };
        let opened = match opened {
            Ok(opened) if opened.file == file => opened,
            Ok(_) => return Looked::IsGone,
            Err(error) => {
                let is_gone = error.refusal().is_some_and(|refusal| refusal.code == Code::NoSuchName);
                return if is_gone { Looked::IsGone } else { Looked::InVain };
            }
        };
        // Nothing is lost if it fails: what the file has now is kept.
        let Ok((map, stripes)) = sealed_map(&self.session, &name, &opened) else { return Looked::InVain };
        if good(&map) <= before {
            return Looked::InVain;
        }
        let Some(_lock) = self.begin_change_until(0..u64::MAX, until) else { return Looked::InVain };
        let mut state = self.state();
        if state.phase != Phase::Published(file) {
            return Looked::InVain;
        }
        state.map.replace(map);
        state.stripes = stripes;
        Looked::Found
    }

    /// Looks up where the file is now, after its bytes were not found. They may have moved, or a lost file may have
    /// been rebuilt.
    ///
    /// Errors: `gone`, with what was found out, if neither is the case.
    pub(crate) fn reopen(&self, gone: &Error) -> Result<(), Error> {
        let name = self.name();
        let Ok(named) = Name::new(name.clone()) else { return Err(gone.clone()) };
        let (opened, is_rebuilt) = self.session.open_or_rebuild(&named).map_err(|error| {
            let has_none = error.refusal().is_some_and(|refusal| refusal.code == Code::NoSuchName);
            let is_of_snapshot = name.starts_with(PARTS) || name.starts_with(SNAPSHOTS);
            match has_none && is_of_snapshot {
                true => {
                    let hint =
                        "the snapshot of the table that had these bytes has ended, or the table was dropped";
                    gone.clone().and(&Error::new(ErrorKind::Lost, hint))
                }
                false => gone.clone().and(&error),
            }
        })?;
        let (map, stripes) = sealed_map(&self.session, &named, &opened)?;
        self.change(0..u64::MAX, |state| match state.phase {
            // Another file of this name has other bytes, unless a rebuild function vouches that they are the same.
            Phase::Published(file) if file == opened.file || is_rebuilt || mutant!(OtherGenerationTaken) => {
                state.phase = Phase::Published(opened.file);
                state.map.replace(map);
                state.stripes = stripes;
                Ok(())
            }
            Phase::Published(_) => {
                let hint =
                    "another file was published under its name since, perhaps by its recipe: open it again";
                Err(gone.clone().and(&Error::new(ErrorKind::Lost, hint)))
            }
            _ => Err(gone.clone()),
        })
    }
}

/// Notes the checksum of a copy of a run.
///
/// Errors: another copy has another one.
fn note_checksum(places: &mut Places, index: usize, checksum: u32) -> Result<(), Error> {
    let Some(run) = places.runs.get_mut(index) else { return Ok(()) };
    if run.checksum != 0 && run.checksum != checksum {
        let message = format!("the copies of run {index} of the file differ; write the file again");
        return Err(Error::new(ErrorKind::Lost, message));
    }
    run.checksum = checksum;
    Ok(())
}

/// How long a publication waits for the node for which the broker refuses it. A node that is silent, or that the broker
/// does not hear for long, is not waited for where others suffice. The broker may not hear a node that answers here:
/// over shared memory, it may be cut off from all others.
pub(crate) struct RefusalWaits<'a> {
    session: &'a Session,
    /// Time at which the node is asked next whether it is there.
    look: Cell<Option<MonoNs>>,
    /// Last refusal, and the time until which others are preferred to waiting.
    last: Cell<Option<(Refusal, MonoNs)>>,
}

impl<'a> RefusalWaits<'a> {
    pub(crate) fn new(session: &'a Session) -> RefusalWaits<'a> {
        RefusalWaits { session, look: Cell::new(None), last: Cell::new(None) }
    }

    /// Reports whether to wait after a refusal that names this node. `suffices` tells whether the copies elsewhere do.
    pub(crate) fn may_wait(
        &self,
        refusal: Refusal,
        node: Option<Arc<NodeLinks>>,
        suffices: impl FnOnce() -> bool,
    ) -> bool {
        let now = self.session.host().now();
        let patience_ms = if refusal.code == Code::NoNodes { CONNECT_MS_MAX } else { BRIEF_MS };
        let same = self.last.get().filter(|(before, _)| *before == refusal);
        let (_, ends) = same.unwrap_or_else(|| (refusal, self.session.deadline(patience_ms)));
        self.last.set(Some((refusal, ends)));
        let is_suspect = node.as_ref().is_some_and(|node| node.is_suspect());
        let next = self.session.deadline(LOOK_MS);
        let look = self.look.get().unwrap_or(if is_suspect { now } else { next });
        self.look.set(Some(if now < look { look } else { next }));
        if now < look {
            return true;
        }
        !suffices() || now < ends && node.is_none_or(|node| self.session.answers(&node))
    }
}

/// Result of a look for the copies of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looked {
    /// Nodes have made copies again, which the file has now.
    Found,
    /// There are no others, or they could not be looked up now.
    InVain,
    /// The name of the file belongs to another one, or to none.
    IsGone,
}

/// Reports whether a copy can be read, as far as is known.
fn is_good(copy: &&ExtentCopy<Arc<LeasedRegion>>) -> bool {
    let region = &copy.allocation.region;
    !region.node.is_suspect() && region.check_usable().is_ok()
}

/// Returns the places of a file without the copies at the node that a refusal to publish them names. `None` if it names
/// none, or if some bytes have no copy elsewhere.
pub(crate) fn without_lost(places: &Places, refusal: Refusal) -> Option<Places> {
    if !matches!(refusal.code, Code::FileLost | Code::NoNodes | Code::NotReported) {
        return None;
    }
    let left = places.only(|region| region.node.0 != refusal.detail);
    let is_less = left.regions.len() < places.regions.len();
    (is_less && left.first_lost(|_| true).is_none()).then_some(left)
}

/// Returns the places of all bytes of a file up to its length, and of its parity, with handles that are not bound to a
/// name.
///
/// Errors: there are too many.
fn places_of(map: &FileMap<Arc<LeasedRegion>>, stripes: Option<&Stripes>) -> Result<Places, Error> {
    let length = map.length();
    let mut adding = PlacesBuilder::default();
    if let Some(stripes) = stripes {
        return striped_places(map, stripes, adding).map_err(too_many);
    }
    for (file, copies) in map.extents().filter(|(file, _)| file.start < length) {
        let copies = copies.iter().map(|copy| place_of(&copy.allocation));
        adding.push(length.min(file.end) - file.start, copies).map_err(too_many)?;
    }
    adding.finish().map_err(too_many)
}

/// Returns the places of a file whose runs are in stripes: each shard is a run, and those with parity come last.
fn striped_places(
    map: &FileMap<Arc<LeasedRegion>>,
    stripes: &Stripes,
    mut adding: PlacesBuilder,
) -> Result<Places, WireError> {
    let data = stripes.iter().flat_map(|stripe| &stripe.shards[..stripe.data]);
    let parity = stripes.iter().flat_map(|stripe| &stripe.shards[stripe.data..]);
    let mut shards: Vec<&Range<u64>> = data.collect();
    shards.sort_by_key(|shard| shard.start);
    shards.extend(parity);
    let mut indices = BTreeMap::new();
    for (index, shard) in shards.into_iter().enumerate() {
        indices.insert(shard.start, index as u32);
        let first = map.copies_of(shard.start..shard.start + 1);
        adding.push_apart(
            shard.end - shard.start,
            first.iter().map(|copy| place_at(&copy.region, copy.offset)),
        )?;
    }
    let of =
        |shards: &[Range<u64>]| -> Vec<u32> { shards.iter().map(|shard| indices[&shard.start]).collect() };
    let stripes: Result<Vec<_>, WireError> = stripes
        .iter()
        .map(|stripe| {
            let (data, parity) = stripe.shards.split_at(stripe.data);
            Ok(farpool_wire::control::Stripe { data: List::new(of(data))?, parity: List::new(of(parity))? })
        })
        .collect();
    Ok(Places { stripes: List::new(stripes?)?, ..adding.finish()? })
}

fn too_many(error: WireError) -> Error {
    Error::new(ErrorKind::Invalid, format!("the file cannot be published: {error}"))
}

/// Returns the region of an extent, and its offset there.
fn place_of(allocation: &Allocation<Arc<LeasedRegion>>) -> (NamedRegion, u64) {
    place_at(&allocation.region, allocation.offset)
}

fn place_at(region: &LeasedRegion, offset: u64) -> (NamedRegion, u64) {
    let named = NamedRegion {
        node: region.node.info.node,
        incarnation: region.node.info.incarnation,
        region: region.region,
        epoch: region.epoch,
        handle: region.handle,
    };
    (named, offset)
}

impl Session {
    /// Returns where the bytes of a name are, and whether this session has a function that rebuilds it. If the bytes
    /// are lost, they are made again first: by that function or, if there is none, by the recipe of the file.
    pub(crate) fn open_or_rebuild(self: &Arc<Self>, name: &Name) -> Result<(PlacesOpened, bool), Error> {
        let rebuild = self.rebuilding.known(name);
        let opened = self.broker.open_places(name);
        if !self.is_lost(&opened) {
            return Ok((opened?, rebuild.is_some()));
        }
        let turn = self.rebuilding.turn(name);
        let _turn = turn.take(&*self.base.host);
        // Another thread may have made it again while this one waited.
        let opened = self.broker.open_places(name);
        if !self.is_lost(&opened) {
            return Ok((opened?, rebuild.is_some()));
        }
        let has_function = rebuild.is_some();
        self.make_again(name, opened, rebuild).map(|opened| (opened, has_function))
    }

    /// Makes a lost file again, or waits until another session has done that, and returns where its bytes are. `opened`
    /// is what the broker answered, which does not know of each loss at once.
    ///
    /// Errors: there is no function that rebuilds it and no recipe, or this session does not know recipes of its kind.
    fn make_again(
        self: &Arc<Self>,
        name: &Name,
        mut opened: Result<PlacesOpened, Error>,
        rebuild: Option<Arc<Rebuild>>,
    ) -> Result<PlacesOpened, Error> {
        let proof = self.leases.proof();
        // The broker hears of a loss from the node that has started again, within a TTL of its silence.
        let patience = self.deadline(2 * self.leases.ttl_ms());
        loop {
            let claimed = self.broker.claim_rebuild(proof, name, false).ok();
            let is_given = claimed.as_ref().is_some_and(|claimed| claimed.is_given);
            let give_back = || {
                if is_given {
                    // Another session may have what this one lacks.
                    let _ = self.broker.claim_rebuild(proof, name, true);
                }
            };
            // Brokers of earlier versions know no such task, and the broker may not know of the loss.
            let has_no_task = claimed.is_none() || opened.is_ok();
            let made = match (&rebuild, &claimed) {
                (Some(rebuild), _) if is_given || has_no_task => Some(rebuild(name)),
                (Some(_), _) => None,
                (None, Some(claimed)) if !claimed.recipe.is_empty() => {
                    let recipe = Recipe::decode(&claimed.recipe);
                    let maker = recipe.as_ref().ok().and_then(|recipe| self.rebuilding.maker(&recipe.kind));
                    let (Ok(recipe), Some(make)) = (&recipe, maker) else {
                        give_back();
                        let kind = recipe.map(|recipe| recipe.kind).unwrap_or_default();
                        let hint = format!(
                            "it can be made again by its recipe of kind {kind:?}, which this session does not know"
                        );
                        return opened.map_err(|error| error.and(&Error::new(ErrorKind::Lost, hint)));
                    };
                    is_given.then(|| make(name, claimed.file, recipe))
                }
                _ => {
                    give_back();
                    return opened;
                }
            };
            if let Some(made) = made {
                let made = made.inspect_err(|_| give_back());
                made.map_err(|error| error.during(format_args!("making lost far file {:?} again", &**name)))?;
                return self.broker.open_places(name);
            }
            // Another session makes it, or the broker does not know of the loss.
            if opened.is_ok() && self.base.host.now() >= patience {
                return opened;
            }
            self.base.pause(50)?;
            opened = self.broker.open_places(name);
            if !self.is_lost(&opened) {
                return opened;
            }
        }
    }

    /// Reports whether an answer of the broker is about a lost file. The broker learns of a loss only when the node is
    /// back without the bytes; this session may know earlier.
    fn is_lost(&self, opened: &Result<PlacesOpened, Error>) -> bool {
        match opened {
            Ok(PlacesOpened { places, .. }) => {
                let is_there = |region: &NamedRegion| !self.nodes.has_lost(region.node, region.incarnation);
                places.first_lost(is_there).is_some()
            }
            Err(error) => error.refusal().is_some_and(|refusal| refusal.code == Code::FileLost),
        }
    }
}
