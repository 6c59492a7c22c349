//! Control messages about published files. [`crate::control`] re-exports them.

use crate::codec::{Bytes, Cursor, Field, List, Name, Text, WireError, wire_struct};
use crate::ids::*;
use crate::limits::*;
use crate::nodes::NodeInfo;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

impl Handle {
    /// Combines the handle with a hash of the name. A second time undoes that.
    fn bind(&mut self, name: &Name) {
        let mut first = [0; 16];
        first.copy_from_slice(&Sha256::digest(name.as_bytes())[..16]);
        self.0 ^= u128::from_le_bytes(first);
    }
}

wire_struct! {
    /// Extent of a published file: a run of its bytes in one region.
    ///
    /// Its handle is bound to the name of the file: [`NamedExtent::bind`] combines it with a hash of the name. The node
    /// knows the handle only as it was before that. So extents that are stored under a wrong name give no right to the
    /// bytes, and the node refuses to read them.
    NamedExtent {
        /// Node that holds the bytes.
        node: NodeId,
        /// Life of the node: number of one run of its process.
        incarnation: Incarnation,
        /// Region of the node.
        region: RegionIndex,
        /// Epoch of the sealed region.
        epoch: Epoch,
        /// Read handle of the region, bound to the name.
        handle: Handle,
        /// First byte in the region.
        region_offset: u64,
        /// Bytes of the run.
        bytes: u64,
    }
}

impl NamedExtent {
    /// Binds the handle to the name of the file. If it is bound to that name already, undoes that.
    pub fn bind(&mut self, name: &Name) {
        self.handle.bind(name);
    }
}

wire_struct! {
    /// Region that has bytes of a published file.
    ///
    /// Its handle is bound to the name of the file: [`NamedRegion::bind`] combines it with a hash of the name. The node
    /// knows the handle only as it was before that. So regions that are stored under a wrong name give no right to the
    /// bytes, and the node refuses to read them.
    NamedRegion {
        /// Node of the region.
        node: NodeId,
        /// Life of the node: number of one run of its process.
        incarnation: Incarnation,
        /// Index of the region.
        region: RegionIndex,
        /// Epoch of the sealed region.
        epoch: Epoch,
        /// Read handle of the region, bound to the name.
        handle: Handle,
    }
}

impl NamedRegion {
    /// Binds the handle to the name of the file. If it is bound to that name already, undoes that.
    pub fn bind(&mut self, name: &Name) {
        self.handle.bind(name);
    }
}

wire_struct! {
    /// Copy of a run of a published file.
    RunCopy {
        /// Index in the list of regions of the file.
        region: u32,
        /// First byte in the region.
        offset: u32,
    }
}

wire_struct! {
    /// Run of a published file: bytes that lie together, in one region or in one region for each copy. The runs of a
    /// file never change; only the places of their copies do.
    NamedRun {
        /// Bytes of the run.
        bytes: u32,
        /// CRC32C of these bytes; 0: not known.
        checksum: u32,
        /// Copies of the run, which have the same bytes. They lie in different failure domains (host labels).
        copies: List<RunCopy, RUN_COPIES_MAX>,
    }
}

wire_struct! {
    /// Runs of a published file that protect each other: its shards. As many of them as have bytes of the file give all
    /// others, by the code of crate `erasure`. A shard that is shorter than the longest counts as followed by zeros.
    Stripe {
        /// Indices of the runs that have bytes of the file, in the order of the code.
        data: List<u32, STRIPE_DATA_MAX>,
        /// Indices of the runs that have parity, in the order of the code. Each is as long as the longest of the data.
        parity: List<u32, STRIPE_PARITY_MAX>,
    }
}

impl Stripe {
    /// Returns the indices of all runs of the stripe, in the order of the code: data first.
    pub fn shards(&self) -> impl Iterator<Item = usize> {
        self.data.iter().chain(self.parity.iter()).map(|run| *run as usize)
    }
}

wire_struct! {
    /// Places of the bytes of a published file.
    #[derive(Default)]
    Places {
        /// Regions of the file, each once.
        regions: List<NamedRegion, NAMED_REGIONS_MAX>,
        /// Runs of the file, in file order. Those with parity, which are no bytes of the file, come last.
        runs: List<NamedRun, NAMED_EXTENTS_MAX>,
        /// Stripes of the file, which have each run once. None if its runs are protected by copies, or not at all.
        stripes: List<Stripe, STRIPES_MAX>,
    }
}

impl Places {
    /// Returns the places of a file with one copy of each extent.
    ///
    /// Errors: an extent has or ends at an offset of 4 GiB or more, or there are too many regions or runs.
    pub fn of_extents(extents: &[NamedExtent]) -> Result<Places, WireError> {
        let mut adding = PlacesBuilder::default();
        for extent in extents {
            let NamedExtent { node, incarnation, region, epoch, handle, region_offset, bytes } = *extent;
            adding
                .push(bytes, [(NamedRegion { node, incarnation, region, epoch, handle }, region_offset)])?;
        }
        adding.finish()
    }

    /// Returns the extents of a file with one copy of each run, as versions before [`VERSION_COPIES`] have them.
    ///
    /// Errors: a run has another number of copies, or there are stripes.
    pub fn extents(&self) -> Result<Vec<NamedExtent>, WireError> {
        if !self.stripes.is_empty() {
            return Err(WireError::Value { what: "the number of stripes", found: self.stripes.len() as u64 });
        }
        let mut extents = Vec::new();
        for run in self.data() {
            let mut copies = self.copies(run);
            let (Some((region, offset)), None) = (copies.next(), copies.next()) else {
                return Err(WireError::Value {
                    what: "the number of copies",
                    found: run.copies.len() as u64,
                });
            };
            let NamedRegion { node, incarnation, region, epoch, handle } = *region;
            for begin in (0..u64::from(run.bytes)).step_by(NAMED_EXTENT_BYTES_MAX as usize) {
                let bytes = (u64::from(run.bytes) - begin).min(NAMED_EXTENT_BYTES_MAX);
                let region_offset = offset + begin;
                extents.push(NamedExtent { node, incarnation, region, epoch, handle, region_offset, bytes });
            }
        }
        Ok(extents)
    }

    /// Returns these places with only the first copy of each run, and without parity.
    pub fn first_copies(&self) -> Places {
        let mut adding = PlacesBuilder::default();
        for run in self.data() {
            let first = self.copies(run).next().map(|(region, offset)| (region.clone(), offset));
            // Parts of valid places are within all limits.
            let _ = adding.push(run.bytes.into(), first);
        }
        adding.finish().unwrap_or_default()
    }

    /// Binds all handles to the name of the file. If they are bound to that name already, undoes that.
    pub fn bind(&mut self, name: &Name) {
        self.regions.iter_mut().for_each(|region| region.bind(name));
    }

    /// Returns the length of the file in bytes.
    pub fn bytes(&self) -> u64 {
        self.data().iter().map(|run| u64::from(run.bytes)).sum()
    }

    /// Returns the runs that have bytes of the file, in file order.
    pub fn data(&self) -> &[NamedRun] {
        let parity: usize = self.stripes.iter().map(|stripe| stripe.parity.len()).sum();
        &self.runs[..self.runs.len().saturating_sub(parity)]
    }

    /// Returns the index of the stripe of each run. `None` for a run that is in none.
    pub fn stripe_of_runs(&self) -> Vec<Option<u32>> {
        let mut stripes = vec![None; self.runs.len()];
        for (index, stripe) in self.stripes.iter().enumerate() {
            for shard in stripe.shards() {
                if let Some(of) = stripes.get_mut(shard) {
                    *of = Some(index as u32);
                }
            }
        }
        stripes
    }

    /// Returns the first run that has no copy in a region for which `is_good` is true, and that cannot be computed from
    /// others of its stripe that have one. `None` if the whole file can be read from such regions.
    pub fn first_lost(&self, is_good: impl Fn(&NamedRegion) -> bool) -> Option<&NamedRun> {
        let good: Vec<bool> = self.regions.iter().map(is_good).collect();
        let are_all_good = !good.contains(&false);
        let has_one = |run: &NamedRun| match are_all_good {
            true => !run.copies.is_empty(),
            false => run.copies.iter().any(|copy| good.get(copy.region as usize) == Some(&true)),
        };
        if self.stripes.is_empty() {
            return self.runs.iter().find(|run| !has_one(run));
        }
        let is_missing = |run: &usize| self.runs.get(*run).is_none_or(|run| !has_one(run));
        self.stripes.iter().find_map(|stripe| {
            let is_lost = stripe.shards().filter(is_missing).count() > stripe.parity.len();
            let mut data = stripe.data.iter().map(|run| *run as usize);
            data.find(|run| is_lost && is_missing(run)).and_then(|run| self.runs.get(run))
        })
    }

    /// Reports whether the stripes are as they should be: there are none, or each run is in one, those with parity come
    /// last, and have the length that [`Stripe`] says.
    pub fn has_sound_stripes(&self) -> bool {
        let data_runs = self.data().len();
        let mut seen = vec![false; self.runs.len()];
        let is_sound = |stripe: &Stripe| {
            let bytes = |run: &u32| self.runs.get(*run as usize).map_or(0, |run| run.bytes);
            let longest = stripe.data.iter().map(bytes).max().unwrap_or(0);
            let is_first = |run: usize| seen.get_mut(run).is_some_and(|seen| !std::mem::replace(seen, true));
            !stripe.data.is_empty()
                && !stripe.parity.is_empty()
                && stripe.data.iter().all(|run| (*run as usize) < data_runs)
                && stripe.parity.iter().all(|run| *run as usize >= data_runs && bytes(run) == longest)
                && stripe.shards().all(is_first)
        };
        self.stripes.is_empty() || self.stripes.iter().all(is_sound) && seen.into_iter().all(|seen| seen)
    }

    /// Returns the copies of a run that have a region: a peer may name others.
    pub fn copies<'a>(&'a self, run: &'a NamedRun) -> impl Iterator<Item = (&'a NamedRegion, u64)> {
        run.copies
            .iter()
            .filter_map(|copy| Some((self.regions.get(copy.region as usize)?, u64::from(copy.offset))))
    }

    /// Returns these places without the regions for which `keeps` is false, and without the copies in them. The runs
    /// stay the same; a run may be left without copies.
    pub fn only(&self, keeps: impl Fn(&NamedRegion) -> bool) -> Places {
        self.with_copies(|_, run| {
            let kept = self.copies(run).filter(|(region, _)| keeps(region));
            kept.map(|(region, offset)| (region.clone(), offset)).collect()
        })
        // Parts of valid places are within all limits.
        .unwrap_or_default()
    }

    /// Returns the same runs with other copies: those that `copies` returns for each run and its index.
    ///
    /// Errors: there are too many copies or regions.
    pub fn with_copies(
        &self,
        copies: impl Fn(usize, &NamedRun) -> Vec<(NamedRegion, u64)>,
    ) -> Result<Places, WireError> {
        let mut adding = PlacesBuilder::default();
        for (index, run) in self.runs.iter().enumerate() {
            let copies = adding.copies(copies(index, run))?;
            adding.runs.push(NamedRun { copies, ..run.clone() });
        }
        Ok(Places { stripes: self.stripes.clone(), ..adding.finish()? })
    }
}

/// Converts bytes or an offset of a region.
fn small(found: u64) -> Result<u32, WireError> {
    let max = u64::from(u32::MAX);
    u32::try_from(found).map_err(|_| WireError::TooMany { what: "bytes of a region", found, max })
}

/// Builder of [`Places`], from front to back. Runs that follow each other in all their regions become one.
#[derive(Debug, Default)]
pub struct PlacesBuilder {
    regions: Vec<NamedRegion>,
    indices: BTreeMap<(NodeId, Incarnation, RegionIndex, Epoch), u32>,
    runs: Vec<NamedRun>,
}

impl PlacesBuilder {
    /// Adds a run, also if it follows the one before in its region.
    ///
    /// Errors: as those of [`Self::push`].
    pub fn push_apart(
        &mut self,
        bytes: u64,
        copies: impl IntoIterator<Item = (NamedRegion, u64)>,
    ) -> Result<(), WireError> {
        let (bytes, copies) = (small(bytes)?, self.copies(copies)?);
        self.runs.push(NamedRun { bytes, checksum: 0, copies });
        Ok(())
    }

    /// Adds a run with its copies: the region of each, and the offset there.
    ///
    /// Errors: the run or an offset has 4 GiB or more, or there are too many copies.
    pub fn push(
        &mut self,
        bytes: u64,
        copies: impl IntoIterator<Item = (NamedRegion, u64)>,
    ) -> Result<(), WireError> {
        let bytes = small(bytes)?;
        let copies = self.copies(copies)?;
        if let Some(last) = self.runs.last_mut()
            && let Some(both) = last.bytes.checked_add(bytes)
            && last.copies.len() == copies.len()
            && !copies.is_empty()
            && last.copies.iter().zip(copies.iter()).all(|(before, next)| {
                before.region == next.region && before.offset.checked_add(last.bytes) == Some(next.offset)
            })
        {
            last.bytes = both;
            return Ok(());
        }
        self.runs.push(NamedRun { bytes, checksum: 0, copies });
        Ok(())
    }

    /// Notes the regions of copies, and returns the copies as a run has them.
    fn copies(
        &mut self,
        copies: impl IntoIterator<Item = (NamedRegion, u64)>,
    ) -> Result<List<RunCopy, RUN_COPIES_MAX>, WireError> {
        let mut at = Vec::with_capacity(RUN_COPIES_MAX);
        for (region, offset) in copies {
            let key = (region.node, region.incarnation, region.region, region.epoch);
            let index = *self.indices.entry(key).or_insert(self.regions.len() as u32);
            match self.regions.get(index as usize) {
                None => self.regions.push(region),
                Some(known) if *known == region => {}
                Some(_) => {
                    return Err(WireError::Value { what: "another handle of a region", found: index.into() });
                }
            }
            at.push(RunCopy { region: index, offset: small(offset)? });
        }
        List::new(at)
    }

    /// Returns the places.
    ///
    /// Errors: there are too many regions or runs.
    pub fn finish(self) -> Result<Places, WireError> {
        let stripes = List::default();
        Ok(Places { regions: List::new(self.regions)?, runs: List::new(self.runs)?, stripes })
    }
}

/// File that a published file may replace under its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaces {
    /// None: the name must be free.
    Nothing,
    /// Whatever has the name; it may be free.
    Anything,
    /// This one, which must still have the name. Of several that replace a file at once, only one does.
    Only(FileId),
}

impl Replaces {
    /// Id that no file has, which stands for any file.
    const ANYTHING: u64 = u64::MAX;

    /// Reports whether a file of this id may be replaced.
    pub fn permits(self, file: FileId) -> bool {
        match self {
            Replaces::Nothing => false,
            Replaces::Anything => true,
            Replaces::Only(only) => only == file,
        }
    }
}

impl Field for Replaces {
    const BYTES_MIN: usize = 8;
    fn put(&self, out: &mut Vec<u8>) {
        FileId(match self {
            Replaces::Nothing => 0,
            Replaces::Anything => Replaces::ANYTHING,
            Replaces::Only(file) => file.0,
        })
        .put(out);
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, WireError> {
        Ok(match FileId::take(from)? {
            FileId(0) => Replaces::Nothing,
            FileId(Replaces::ANYTHING) => Replaces::Anything,
            file => Replaces::Only(file),
        })
    }
}

wire_struct! {
    /// Request to give sealed regions (immutable ones) to a name, in one transaction of the catalog.
    PublishPlaces {
        /// Session that sealed the regions.
        session: SessionId,
        /// Secret of the session.
        secret: Secret,
        /// Name of the file.
        name: Name,
        /// Class of the file.
        class: FileClass,
        /// File of this name that may be replaced.
        replaces: Replaces,
        /// Copies that each run should have, 1 to [`RUN_COPIES_MAX`]; 1 if there are stripes. Runs may have fewer when
        /// the file is published.
        copies_wanted: u8,
        /// Recipe by which the file can be made again; empty: none. The broker does not look into it.
        recipe: Bytes<RECIPE_BYTES_MAX>,
        /// Places of the file.
        places: Places,
    }
}

wire_struct! {
    /// Request for the recipe of a file. If the file is lost, the session is to make it again, unless another one is
    /// at it.
    ClaimRebuild {
        /// Session that asks.
        session: SessionId,
        /// Secret of the session.
        secret: Secret,
        /// Name of the file.
        name: Name,
        /// True if the session gives up what it claimed before, and does not claim it again.
        is_over: bool,
    }
}

wire_struct! {
    /// Answer to `ClaimRebuild`.
    RebuildClaimed {
        /// Id of the file.
        file: FileId,
        /// True if the file is lost and the session is to make it again, until it ends, gives up or has published it.
        is_given: bool,
        /// Recipe of the file; empty: it has none.
        recipe: Bytes<RECIPE_BYTES_MAX>,
    }
}

wire_struct! {
    /// Answer to `OpenPlaces`: the places of a published file.
    PlacesOpened {
        /// Id of the file.
        file: FileId,
        /// Class of the file.
        class: FileClass,
        /// Copies that each run should have.
        copies_wanted: u8,
        /// Places of the file, without copies that are known to be lost. A run that has none left can be computed from
        /// its stripe.
        places: Places,
        /// Nodes that the regions name.
        nodes: List<NodeInfo, NODES_MAX>,
    }
}

wire_struct! {
    /// Request like `PublishPlaces`, of versions before [`VERSION_COPIES`]. There is one copy of each extent.
    Publish {
        /// Session that sealed the extents.
        session: SessionId,
        /// Secret of the session.
        secret: Secret,
        /// Name of the file.
        name: Name,
        /// Class of the file.
        class: FileClass,
        /// True to replace a file that has this name.
        replace: bool,
        /// File that a client moves to other nodes, as versions before [`VERSION_COPIES`] do to empty a node. Nodes do
        /// that by themselves now, so the broker refuses all but 0.
        moved: FileId,
        /// Extents of the file, in file order.
        extents: List<NamedExtent, NAMED_EXTENTS_MAX>,
    }
}

wire_struct! {
    /// Answer to `PublishPlaces` and to `Publish`: the name owns the bytes.
    Published {
        /// Id of the file.
        file: FileId,
    }
}

wire_struct! {
    /// Name of a published file that a request is about.
    ByName {
        /// Name of the file.
        name: Name,
    }
}

wire_struct! {
    /// Answer to `OpenName`, which versions before [`VERSION_COPIES`] ask: one copy of each extent of a published file.
    Opened {
        /// Id of the file.
        file: FileId,
        /// Class of the file.
        class: FileClass,
        /// Extents of the file, in file order.
        extents: List<NamedExtent, NAMED_EXTENTS_MAX>,
        /// Nodes that the extents name.
        nodes: List<NodeInfo, NODES_MAX>,
    }
}

wire_struct! {
    /// Request to give a published file another name.
    Rename {
        /// Name that the file has.
        from: Name,
        /// New name, which nobody may have.
        to: Name,
    }
}

wire_struct! {
    /// Request for a page of names, in order.
    ListNames {
        /// Beginning that the names must have; empty: any.
        prefix: Text,
        /// Name after which the page begins; empty: at the first name.
        after: Text,
    }
}

wire_struct! {
    /// Published file in a listing.
    NameInfo {
        /// Name of the file.
        name: Name,
        /// Id of the file.
        file: FileId,
        /// Class of the file.
        class: FileClass,
        /// Length of the file, in bytes.
        bytes: u64,
        /// True if a node that held bytes of the file is gone.
        lost: bool,
        /// Tenant that owns the file.
        tenant: Name,
    }
}

wire_struct! {
    /// Answer to `ListNames`: a page of names.
    Names {
        /// Files of the page, in the order of their names.
        names: List<NameInfo, NAMES_PAGE_MAX>,
        /// True if more names follow.
        more: bool,
    }
}
