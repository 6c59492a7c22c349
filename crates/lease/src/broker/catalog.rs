//! Names of published files. Each name belongs to one tenant.
//!
//! The idea: only its tenant and the administrator can see a file. Everybody else learns no more than that its
//! name is taken.

use super::records::region_key;
use super::segments::{Ranges, overlaps, ranges_of, taken_bytes};
use super::{BrokerLeases, NamedFile, Owner, RegionKey, StateChange, give_up};
use crate::tenant;
use farpool_wire::control::*;
use farpool_wire::host_label::may_be_one_host;
use farpool_wire::ids::{Epoch, FileId, MonoNs, NodeId, SessionId};
use farpool_wire::limits::*;
use farpool_wire::{Bytes, Code, List, Name, Opcode, Refusal, mutant};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Reports whether a tenant may see a file and change it.
pub(super) fn may_use(tenant: &Name, file: &NamedFile) -> bool {
    *tenant == file.tenant || tenant::is_admin(tenant)
}

/// Checks that a name does not belong to a part or snapshot of a table.
fn check_unreserved(name: &Name) -> Result<(), Refusal> {
    match is_reserved(name) {
        true => Err(Refusal::new(Code::ReservedName, 0)),
        false => Ok(()),
    }
}

/// Reports whether a name belongs to a part or snapshot of a table.
pub(super) fn is_reserved(name: &Name) -> bool {
    name.starts_with(PARTS) || name.starts_with(SNAPSHOTS)
}

/// Returns the refusal of a name that is in use. It shows the file's id only to those who may see the file.
pub(super) fn taken(tenant: &Name, has: &NamedFile) -> Refusal {
    Refusal::new(Code::NameTaken, if may_use(tenant, has) { has.file.0 } else { 0 })
}

impl BrokerLeases {
    /// Gives sealed (immutable) extents to a name, as [`Self::publish`] does, for a client of a version that knows no
    /// copies.
    pub fn publish_extents(
        &mut self,
        now: MonoNs,
        tenant: &Name,
        publish: &Publish,
        records: &mut Vec<StateChange>,
    ) -> Result<Published, Refusal> {
        let places = Places::of_extents(&publish.extents)
            .map_err(|_| Refusal::new(Code::Malformed, Opcode::Publish as u64))?;
        if publish.moved != FileId(0) {
            return Err(Refusal::new(Code::Unsupported, Opcode::Publish as u64));
        }
        let Publish { session, secret, name, class, replace, .. } = publish.clone();
        let replaces = if replace { Replaces::Anything } else { Replaces::Nothing };
        let publish = PublishPlaces {
            session,
            secret,
            name,
            class,
            replaces,
            copies_wanted: 1,
            recipe: Bytes::default(),
            places,
        };
        self.publish(now, tenant, &publish, records)
    }

    /// Gives sealed (immutable) regions to a name, in one transaction that frees what the name had before.
    pub fn publish(
        &mut self,
        now: MonoNs,
        tenant: &Name,
        publish: &PublishPlaces,
        records: &mut Vec<StateChange>,
    ) -> Result<Published, Refusal> {
        self.prove(now, tenant, publish.session, publish.secret)?;
        check_unreserved(&publish.name)?;
        let has = self.durable.names.get(&publish.name);
        // The request is a repetition: the first answer was lost.
        if let Some(has) = has.filter(|has| may_use(tenant, has) && has.recipe == publish.recipe)
            && self.was_published_with(has, publish.copies_wanted, &publish.places)
        {
            return Ok(Published { file: has.file });
        }
        match (has, publish.replaces) {
            (Some(has), replaces) if !replaces.permits(has.file) || !may_use(tenant, has) => {
                return Err(taken(tenant, has));
            }
            // The file that was to be replaced has been dropped.
            (None, Replaces::Only(file)) => return Err(Refusal::new(Code::NoSuchName, file.0)),
            _ => {}
        }
        self.check_places(publish.session, &[(publish.copies_wanted, &publish.places)])?;
        let file = self.next_file(records);
        let named = NamedFile {
            file,
            class: publish.class,
            tenant: tenant.clone(),
            copies_wanted: publish.copies_wanted,
            recipe: publish.recipe.clone(),
            places: publish.places.clone(),
            root_of: None,
        };
        self.replace(&publish.name, named, records);
        Ok(Published { file })
    }

    /// Returns the id of a new file.
    pub(super) fn next_file(&mut self, records: &mut Vec<StateChange>) -> FileId {
        // No file has the id 0, which says on the wire that there is none.
        let file = FileId(self.durable.next_file.0.max(1));
        self.persist(StateChange::NextFile(FileId(file.0 + 1)), records);
        file
    }

    /// Reports whether a file was published with these places. Some copies may lie elsewhere since.
    pub(super) fn was_published_with(&self, file: &NamedFile, copies_wanted: u8, places: &Places) -> bool {
        let runs =
            |places: &Places| places.runs.iter().map(|run| (run.bytes, run.checksum)).collect::<Vec<_>>();
        let is_own = |region: &NamedRegion| {
            self.owners.get(&region_key(region)).is_some_and(|owner| owner.is(file, region))
        };
        let was_own = |region: &NamedRegion| self.given_up.get(&region_key(region)) >= Some(&region.epoch);
        let has_moved = || {
            let ranges = |places| -> BTreeSet<(RegionKey, (u32, u32))> {
                ranges_of(places, is_own).map(|(region, range)| (region_key(region), range)).collect()
            };
            file.copies_wanted == copies_wanted
                && runs(&file.places) == runs(places)
                && file.places.stripes == places.stripes
                && places.regions.iter().any(is_own)
                && places.regions.iter().all(|region| is_own(region) || was_own(region))
                // A segment is the file's own with all its ranges: these may be others, with the same bytes.
                && ranges(places).is_subset(&ranges(&file.places))
        };
        file.places == *places || has_moved()
    }

    /// Gives a name to a file, which may be the file that has it, with other places. What the name had before and does
    /// not have now is given up.
    pub(super) fn replace(&mut self, name: &Name, file: NamedFile, records: &mut Vec<StateChange>) {
        let has: BTreeSet<RegionKey> = file.regions().map(|(region, _)| region).collect();
        self.disown(name, file.file, &has);
        self.own(&file);
        self.persist(StateChange::Name(name.clone(), file), records);
    }

    /// Checks that these places may become those of files, one of them each: nobody has their regions, and they were
    /// sealed by the session. With each comes how many copies are wanted.
    pub(super) fn check_places(&self, session: SessionId, files: &[(u8, &Places)]) -> Result<(), Refusal> {
        let mut taken: BTreeMap<RegionKey, Ranges> = BTreeMap::new();
        files.iter().try_for_each(|(copies, places)| {
            self.check_places_of_file(session, *copies, places)?;
            // Files share no regions but segments, and no ranges.
            let is_taken = |(region, (from, end)): &(&NamedRegion, (u32, u32))| {
                let taken = taken.get(&region_key(region));
                taken
                    .is_some_and(|taken| self.segment(region).is_none() || overlaps(taken, *from, end - from))
            };
            if let Some((region, _)) = ranges_of(places, |_| true).find(is_taken) {
                return Err(Refusal::new(Code::StaleEpoch, region.epoch.0));
            }
            for (region, (from, end)) in ranges_of(places, |_| true) {
                taken.entry(region_key(region)).or_default().insert(from, end);
            }
            Ok(())
        })
    }

    fn check_places_of_file(
        &self,
        session: SessionId,
        copies_wanted: u8,
        places: &Places,
    ) -> Result<(), Refusal> {
        let malformed = Refusal::new(Code::Malformed, Opcode::PublishPlaces as u64);
        let copies_max = if places.stripes.is_empty() { RUN_COPIES_MAX } else { 1 };
        if !(1..=copies_max).contains(&usize::from(copies_wanted)) {
            return Err(malformed);
        }
        let mut seen = BTreeSet::new();
        for (index, region) in places.regions.iter().enumerate() {
            // A node not heard of since the broker started may still come back, so this is not a loss.
            let node = self.nodes.get(&region.node).ok_or(Refusal::new(Code::NoNodes, region.node.0))?;
            if node.info.incarnation != region.incarnation {
                return Err(Refusal::new(Code::FileLost, region.node.0));
            }
            if region.region.0 as usize >= NODE_REGIONS_MAX {
                return Err(Refusal::new(Code::NoSuchRegion, NODE_REGIONS_MAX as u64));
            }
            if !seen.insert(region_key(region)) {
                return Err(Refusal::new(Code::StaleEpoch, region.epoch.0));
            }
            if let Some(segment) = self.segment(region) {
                self.check_pending(session, places, index, segment)?;
                continue;
            }
            // Other files may have ranges of it.
            if self.may_be_segment(region) && !mutant!(UnreportedPublished) {
                return Err(Refusal::new(Code::NotReported, region.node.0));
            }
            self.check_free(region)?;
            // Only regions that the node has reported as sealed (immutable) to this life of the broker are accepted.
            // The caller may have published the region to an earlier life, which has freed it since.
            match node.sealed.get(&region.region) {
                Some((epoch, owner)) if *epoch == region.epoch => {
                    if *owner != session {
                        return Err(Refusal::new(Code::WrongSecret, session.0));
                    }
                }
                _ if mutant!(UnreportedPublished) => {}
                _ => return Err(Refusal::new(Code::NotReported, region.node.0)),
            }
        }
        self.check_runs(places, malformed)
    }

    /// Checks that no file has a region, or had it at this epoch.
    pub(super) fn check_free(&self, region: &NamedRegion) -> Result<(), Refusal> {
        let place = region_key(region);
        // A region that a file owns stays at its epoch until the file gives it up, so any other epoch is wrong.
        if let Some(owner) = self.owners.get(&place) {
            return Err(match owner.epoch == region.epoch {
                true => Refusal::new(Code::NameTaken, owner.file().0),
                false => Refusal::new(Code::StaleEpoch, owner.epoch.0),
            });
        }
        match self.given_up.get(&place) {
            Some(epoch) if *epoch >= region.epoch && !mutant!(GivenUpPublished) => {
                Err(Refusal::new(Code::StaleEpoch, epoch.0))
            }
            _ => Ok(()),
        }
    }

    /// Checks the runs of places whose nodes are all known: each lies inside its regions, in different failure domains.
    /// So do those of a stripe, of which so many must be there that all others can be computed.
    fn check_runs(&self, places: &Places, malformed: Refusal) -> Result<(), Refusal> {
        // Bytes of each region that the runs take. They are bounded, so that a file is not longer than its memory.
        let mut used = vec![0u64; places.regions.len()];
        if !places.has_sound_stripes() || places.data().is_empty() {
            return Err(malformed);
        }
        for stripe in places.stripes.iter() {
            self.check_stripe(places, stripe, malformed)?;
        }
        for (index, run) in places.runs.iter().enumerate() {
            let mut labels: Vec<&Name> = Vec::with_capacity(run.copies.len());
            for copy in run.copies.iter() {
                let region = places.regions.get(copy.region as usize).ok_or(malformed)?;
                let info = &self.nodes.get(&region.node).ok_or(malformed)?.info;
                used[copy.region as usize] += u64::from(run.bytes);
                let end = u64::from(copy.offset) + u64::from(run.bytes);
                if run.bytes == 0 || end.max(used[copy.region as usize]) > info.region_bytes {
                    return Err(Refusal::new(Code::OutOfBounds, info.region_bytes));
                }
                if labels.iter().any(|label| may_be_one_host(label, &info.host_label)) {
                    return Err(Refusal::new(Code::CopiesTogether, index as u64));
                }
                labels.push(&info.host_label);
            }
            if labels.is_empty() && places.stripes.is_empty() {
                return Err(malformed);
            }
        }
        used.into_iter().all(|used| used > 0).then_some(()).ok_or(malformed)
    }

    fn check_stripe(&self, places: &Places, stripe: &Stripe, malformed: Refusal) -> Result<(), Refusal> {
        let mut labels: Vec<&Name> = Vec::with_capacity(STRIPE_SHARDS_MAX);
        for index in stripe.shards() {
            let run = places.runs.get(index).ok_or(malformed)?;
            // A second copy would protect the run better than the others.
            if run.copies.len() > 1 {
                return Err(malformed);
            }
            for (region, _) in places.copies(run) {
                let label = &self.nodes.get(&region.node).ok_or(malformed)?.info.host_label;
                if labels.iter().any(|other| may_be_one_host(other, label)) && !mutant!(StripeOnOneHost) {
                    return Err(Refusal::new(Code::CopiesTogether, index as u64));
                }
                labels.push(label);
            }
        }
        if labels.len() < stripe.data.len() { Err(malformed) } else { Ok(()) }
    }

    /// Returns where the bytes of the file with this name are: its places, without copies that are known to be lost,
    /// and the nodes that have them.
    pub fn open_places(&self, tenant: &Name, name: &Name) -> Result<PlacesOpened, Refusal> {
        let file = self.seen(tenant, name)?;
        let is_here = |region: &NamedRegion| self.keeps(region) == Some(true);
        if file.places.first_lost(is_here).is_some() {
            return Err(self.loss_of(&file.places));
        }
        let places = match file.places.regions.iter().all(is_here) {
            true => file.places.clone(),
            false => file.places.only(is_here),
        };
        let nodes: BTreeSet<NodeId> = places.regions.iter().map(|region| region.node).collect();
        let nodes = nodes.iter().filter_map(|id| Some(self.nodes.get(id)?.info.clone())).collect();
        let nodes = List::new(nodes).map_err(|_| Refusal::new(Code::LimitReached, NODES_MAX as u64))?;
        let NamedFile { file, class, copies_wanted, .. } = *file;
        Ok(PlacesOpened { file, class, copies_wanted, places, nodes })
    }

    /// Returns the recipe of the file with this name; empty if it has none. If the file is lost, gives the session the
    /// task of making it again, unless another session that lives has it. A session may know how without a recipe.
    ///
    /// The task keeps others from doing the same work. What makes two files of one name impossible is that each
    /// publishes in place of the lost file alone.
    pub fn claim_rebuild(
        &mut self,
        now: MonoNs,
        tenant: &Name,
        claim: &ClaimRebuild,
    ) -> Result<RebuildClaimed, Refusal> {
        self.prove(now, tenant, claim.session, claim.secret)?;
        let NamedFile { file, recipe, .. } = self.seen(tenant, &claim.name)?;
        let (file, recipe) = (*file, recipe.clone());
        let has_session =
            |session: &SessionId| self.sessions.get(session).is_some_and(|known| self.is_heard(now, known));
        let is_other = self.rebuilds.get(&file).is_some_and(|has| *has != claim.session && has_session(has));
        let is_lost = self.seen(tenant, &claim.name).is_ok_and(|named| self.is_lost(named));
        let is_given = is_lost && !is_other && !claim.is_over;
        if is_given {
            self.rebuilds.insert(file, claim.session);
        } else if !is_other {
            self.rebuilds.remove(&file);
        }
        Ok(RebuildClaimed { file, is_given, recipe })
    }

    /// Returns the refusal to open a file of which a run cannot be read.
    fn loss_of(&self, places: &Places) -> Refusal {
        // Nodes not heard of since the broker started may still come back with what they have.
        match places.first_lost(|region| self.keeps(region) != Some(false)) {
            Some(lost) => {
                let node = places.copies(lost).next().map(|(region, _)| region.node);
                Refusal::new(Code::FileLost, node.unwrap_or_default().0)
            }
            None => {
                let silent = places.regions.iter().find(|region| self.keeps(region).is_none());
                Refusal::new(Code::NoNodes, silent.map_or(0, |region| region.node.0))
            }
        }
    }

    /// Returns where one copy of the file with this name is, for a client of a version that knows no copies.
    pub fn open_extents(&self, tenant: &Name, name: &Name) -> Result<Opened, Refusal> {
        let PlacesOpened { file, class, places, nodes, .. } = self.open_places(tenant, name)?;
        let limit = Refusal::new(Code::LimitReached, NAMED_EXTENTS_MAX as u64);
        let extent_count: u64 =
            places.data().iter().map(|run| u64::from(run.bytes).div_ceil(NAMED_EXTENT_BYTES_MAX)).sum();
        if extent_count > NAMED_EXTENTS_MAX as u64 {
            return Err(limit);
        }
        // Such a client cannot compute what a stripe has lost.
        if places.data().iter().any(|run| run.copies.is_empty()) {
            return Err(Refusal::new(Code::FileLost, 0));
        }
        let extents = places.first_copies().extents().and_then(List::new).map_err(|_| limit)?;
        Ok(Opened { file, class, extents, nodes })
    }

    /// Forgets a name. Each node that holds bytes of the file learns with its next report that it should free them.
    pub fn drop_name(
        &mut self,
        tenant: &Name,
        name: &Name,
        records: &mut Vec<StateChange>,
    ) -> Result<Done, Refusal> {
        self.seen(tenant, name)?;
        check_unreserved(name)?;
        self.let_name_go(name, records);
        Ok(Done {})
    }

    /// Forgets a name.
    pub(super) fn let_name_go(&mut self, name: &Name, records: &mut Vec<StateChange>) {
        self.disown(name, FileId(0), &BTreeSet::new());
        self.persist(StateChange::DropName(name.clone()), records);
    }

    /// Gives a file another name.
    pub fn rename(
        &mut self,
        tenant: &Name,
        rename: &Rename,
        records: &mut Vec<StateChange>,
    ) -> Result<Done, Refusal> {
        let mut file = self.seen(tenant, &rename.from)?.clone();
        check_unreserved(&rename.from)?;
        check_unreserved(&rename.to)?;
        // Only names of tables have snapshots.
        if file.root_of.is_some() && !rename.to.starts_with(TABLES) {
            return Err(Refusal::new(Code::Malformed, Opcode::RenameName as u64));
        }
        if let Some(has) = self.durable.names.get(&rename.to) {
            return Err(taken(tenant, has));
        }
        file.places.bind(&rename.from);
        file.places.bind(&rename.to);
        self.persist(StateChange::DropName(rename.from.clone()), records);
        self.persist(StateChange::Name(rename.to.clone(), file), records);
        Ok(Done {})
    }

    /// Returns a page of the names that the tenant may see, in order.
    pub fn list_names(&self, tenant: &Name, list: &ListNames) -> Names {
        let after = Name::new(list.after.to_string()).ok();
        let first = Name::new(list.prefix.to_string()).ok();
        let from = match (&after, &first) {
            (Some(after), first) if first.as_ref().is_none_or(|first| after >= first) => {
                Bound::Excluded(after)
            }
            (_, first) => first.as_ref().map_or(Bound::Unbounded, Bound::Included),
        };
        let mut names = Vec::new();
        let mut more = false;
        for (name, file) in self.durable.names.range::<Name, _>((from, Bound::Unbounded)) {
            // Parts and snapshots show only if they are asked for.
            let is_hidden = is_reserved(name) && !list.prefix.starts_with('.');
            if !name.starts_with(&*list.prefix) {
                break;
            }
            if is_hidden || !may_use(tenant, file) {
                continue;
            }
            if names.len() == NAMES_PAGE_MAX {
                more = true;
                break;
            }
            names.push(NameInfo {
                name: name.clone(),
                file: file.file,
                class: file.class,
                bytes: file.places.bytes() + file.root_of.map_or(0, |at| self.tables.bytes(at.table)),
                lost: self.is_lost(file),
                tenant: file.tenant.clone(),
            });
        }
        Names { names: List::new(names).unwrap_or_default(), more }
    }

    /// Reports whether some bytes of the file are lost: every copy of them was on a node that has started again.
    pub(super) fn is_lost(&self, file: &NamedFile) -> bool {
        file.places.first_lost(|region| self.keeps(region) != Some(false)).is_some()
    }

    /// Reports whether each run of the file has a copy on a node that is heard of.
    pub(super) fn has_copies_alive(&self, now: MonoNs, file: &NamedFile) -> bool {
        file.places.first_lost(|region| self.is_here(now, region)).is_none()
    }

    /// Reports whether a node still has a region of a published file. `None` if this life of the broker has not heard
    /// of the node.
    pub(super) fn keeps(&self, region: &NamedRegion) -> Option<bool> {
        let node = self.nodes.get(&region.node)?;
        let is_same = node.info.incarnation == region.incarnation;
        Some(is_same && !self.was_taken_back(region))
    }

    /// Reports whether the node has taken a region back that a published file has.
    pub(super) fn was_taken_back(&self, region: &NamedRegion) -> bool {
        self.taken_back.get(&region_key(region)) >= Some(&region.epoch)
    }

    pub(super) fn seen(&self, tenant: &Name, name: &Name) -> Result<&NamedFile, Refusal> {
        let file = self.durable.names.get(name).filter(|file| may_use(tenant, file));
        file.ok_or(Refusal::new(Code::NoSuchName, 0))
    }

    /// Records the file as the owner of its regions.
    pub(super) fn own(&mut self, file: &NamedFile) {
        let mut bytes = vec![0; file.places.regions.len()];
        for run in file.places.runs.iter() {
            for copy in run.copies.iter() {
                if let Some(bytes) = bytes.get_mut(copy.region as usize) {
                    *bytes += taken_bytes(run);
                }
            }
        }
        for ((place, region), bytes) in file.regions().zip(bytes) {
            // A region that its node has taken back may belong to another file since, at a later epoch.
            let is_later = self.owners.get(&place).is_some_and(|owner| owner.epoch > region.epoch);
            if !is_later && !self.was_taken_back(region) {
                let fresh = || Owner { epoch: region.epoch, files: BTreeMap::new() };
                let owner = self.owners.entry(place).or_insert_with(fresh);
                if owner.epoch < region.epoch {
                    *owner = fresh();
                }
                owner.files.insert(file.file, bytes);
            }
        }
        self.take_ranges(file);
    }

    /// Takes its regions from the file of a name. Nodes are ordered to free those that no other file shares. Leaves out
    /// those in `keeps`, which the file `next` has, if that is the same file.
    fn disown(&mut self, name: &Name, next: FileId, keeps: &BTreeSet<RegionKey>) {
        let Some(file) = self.durable.names.get(name) else { return };
        let is_same = file.file == next;
        let id = file.file;
        let gone = file.regions().filter(|(place, _)| !is_same || !keeps.contains(place));
        let gone: Vec<(RegionKey, Epoch, bool)> =
            gone.map(|(place, region)| (place, region.epoch, self.segment(region).is_some())).collect();
        let is_gone = |region: &NamedRegion| {
            self.may_be_segment(region) && gone.iter().any(|(place, ..)| *place == region_key(region))
        };
        let ranges =
            ranges_of(&file.places, is_gone).map(|(region, range)| (region_key(region), region.epoch, range));
        for (place, epoch, (from, end)) in ranges.collect::<Vec<_>>() {
            self.let_go.entry((place, epoch)).or_default().insert(from, end);
        }
        for (place, epoch, is_segment) in gone {
            self.disown_region(id, place, epoch);
            // A segment goes by a ruling of its own.
            if !is_segment && self.owners.get(&place).is_none_or(|owner| owner.epoch != epoch) {
                give_up(&mut self.given_up, place, epoch);
            }
        }
    }
}
