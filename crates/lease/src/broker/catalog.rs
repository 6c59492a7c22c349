//! Names of published files. Each name belongs to one tenant.
//!
//! The idea: only its tenant and the administrator can see a file. Everybody else learns no more than that its
//! name is taken.

use super::records::region_key;
use super::{BrokerLeases, NamedFile, Owner, RegionKey, StateChange, give_up};
use crate::tenant;
use farpool_wire::control::*;
use farpool_wire::ids::{FileId, MonoNs, NodeId};
use farpool_wire::limits::*;
use farpool_wire::{Code, Handle, List, Name, Opcode, Refusal, mutant};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Reports whether a tenant may see a file and change it.
fn may_use(tenant: &Name, file: &NamedFile) -> bool {
    *tenant == file.tenant || tenant::is_admin(tenant)
}

/// Returns the refusal of a name that is in use. It shows the file's id only to those who may see the file.
fn taken(tenant: &Name, has: &NamedFile) -> Refusal {
    Refusal::new(Code::NameTaken, if may_use(tenant, has) { has.file.0 } else { 0 })
}

/// Reports whether each run has a copy in a region for which `is_good` is true.
fn every_run_has_one(places: &Places, is_good: impl Fn(&NamedRegion) -> bool) -> bool {
    let good: Vec<bool> = places.regions.iter().map(is_good).collect();
    let has_one =
        |run: &NamedRun| run.copies.iter().any(|copy| good.get(copy.region as usize) == Some(&true));
    !good.contains(&false) || places.runs.iter().all(has_one)
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
        let has = self.durable.names.get(&publish.name);
        if publish.moved != FileId(0) && has.is_some_and(|has| has.copies_wanted > 1) {
            // The client knows of one copy, and would give up the others.
            return Err(Refusal::new(Code::Unsupported, Opcode::Publish as u64));
        }
        let Publish { session, secret, name, class, replace, moved, .. } = publish.clone();
        let publish =
            PublishPlaces { session, secret, name, class, replace, moved, copies_wanted: 1, places };
        self.publish(now, tenant, &publish, records)
    }

    /// Gives sealed (immutable) regions to a name, in one transaction that frees what the name had before. If the
    /// request says that the file was moved to other regions, the new places replace its old ones; regions that stay
    /// are named in the request once more.
    pub fn publish(
        &mut self,
        now: MonoNs,
        tenant: &Name,
        publish: &PublishPlaces,
        records: &mut Vec<StateChange>,
    ) -> Result<Published, Refusal> {
        self.prove(now, tenant, publish.session, publish.secret)?;
        let has = self.durable.names.get(&publish.name);
        let seen = has.filter(|has| may_use(tenant, has));
        // The request is a repetition: the first answer was lost.
        if let Some(has) = seen
            && has.places == publish.places
            && (publish.moved == FileId(0) || publish.moved == has.file)
        {
            return Ok(Published { file: has.file });
        }
        let moved = match (publish.moved, seen, has) {
            (FileId(0), _, None) => None,
            (FileId(0), Some(_), _) if publish.replace => None,
            (FileId(0), _, Some(has)) => return Err(taken(tenant, has)),
            (moved, Some(has), _) if has.file == moved => Some(has.clone()),
            (_, Some(has), _) => return Err(Refusal::new(Code::NameTaken, has.file.0)),
            (_, None, _) => return Err(Refusal::new(Code::NoSuchName, 0)),
        };
        let fresh = self.check_places(now, publish, moved.as_ref())?;
        let places = publish.places.clone();
        let mut named = match moved {
            Some(file) => NamedFile { places, ..file },
            None => {
                // No file has the id 0: on the wire it says that no file was moved.
                let file = FileId(self.durable.next_file.0.max(1));
                self.persist(StateChange::NextFile(FileId(file.0 + 1)), records);
                NamedFile {
                    file,
                    class: publish.class,
                    tenant: tenant.clone(),
                    copies_wanted: publish.copies_wanted,
                    places,
                    leased_by_admin: BTreeSet::new(),
                }
            }
        };
        let has: BTreeSet<RegionKey> = named.regions().map(|(region, _)| region).collect();
        named.leased_by_admin.retain(|region| has.contains(region));
        if named.tenant != *tenant {
            // Only the administrator may move a file of another tenant.
            named.leased_by_admin.extend(fresh);
        }
        self.disown(&publish.name, &has);
        self.own(&named);
        let file = named.file;
        self.persist(StateChange::Name(publish.name.clone(), named), records);
        Ok(Published { file })
    }

    /// Checks that these places may become a file's: each region is either one that `moved`, the file before it was
    /// moved, has already, or one that nobody has. Returns the regions that nobody has.
    fn check_places(
        &self,
        now: MonoNs,
        publish: &PublishPlaces,
        moved: Option<&NamedFile>,
    ) -> Result<BTreeSet<RegionKey>, Refusal> {
        let malformed = Refusal::new(Code::Malformed, Opcode::PublishPlaces as u64);
        let places = &publish.places;
        if !(1..=RUN_COPIES_MAX).contains(&usize::from(publish.copies_wanted)) {
            return Err(malformed);
        }
        let own: BTreeMap<RegionKey, Handle> = moved
            .iter()
            .flat_map(|file| file.regions())
            .map(|(place, region)| (place, region.handle))
            .collect();
        let mut seen = BTreeSet::new();
        let mut fresh = BTreeSet::new();
        for region in places.regions.iter() {
            // A node not heard of since the broker started may still come back, so this is not a loss.
            let node = self.nodes.get(&region.node).ok_or(Refusal::new(Code::NoNodes, region.node.0))?;
            if node.info.incarnation != region.incarnation {
                return Err(Refusal::new(Code::FileLost, region.node.0));
            }
            if region.region.0 as usize >= NODE_REGIONS_MAX {
                return Err(Refusal::new(Code::NoSuchRegion, NODE_REGIONS_MAX as u64));
            }
            let place = region_key(region);
            if !seen.insert(place) {
                return Err(Refusal::new(Code::StaleEpoch, region.epoch.0));
            }
            // A region that a file owns stays at its epoch until the file gives it up, so any other epoch is wrong.
            if let Some(owner) = self.owners.get(&place) {
                if owner.epoch != region.epoch {
                    return Err(Refusal::new(Code::StaleEpoch, owner.epoch.0));
                }
                match own.get(&place) {
                    Some(handle) if *handle == region.handle => continue,
                    Some(_) => return Err(Refusal::new(Code::WrongHandle, 0)),
                    None => return Err(Refusal::new(Code::NameTaken, owner.file.0)),
                }
            }
            if let Some(epoch) = self.given_up.get(&place)
                && *epoch >= region.epoch
                && !mutant!(GivenUpPublished)
            {
                return Err(Refusal::new(Code::StaleEpoch, epoch.0));
            }
            fresh.insert(place);
            // Only regions that the node has reported as sealed (immutable) to this life of the broker are accepted.
            // The caller may have published the region to an earlier life, which has freed it since.
            match node.sealed.get(&region.region) {
                Some((epoch, session)) if *epoch == region.epoch => {
                    if *session != publish.session {
                        return Err(Refusal::new(Code::WrongSecret, session.0));
                    }
                }
                _ if mutant!(UnreportedPublished) => {}
                _ => return Err(Refusal::new(Code::NotReported, region.node.0)),
            }
        }
        self.check_runs(places, malformed)?;
        if let Some(file) = moved {
            self.check_move(now, file, places)?;
        }
        Ok(fresh)
    }

    /// Checks that a file may be moved to these places: it keeps its length, and no copy is given up that may be the
    /// last one.
    fn check_move(&self, now: MonoNs, file: &NamedFile, places: &Places) -> Result<(), Refusal> {
        if file.places.bytes() != places.bytes() {
            return Err(Refusal::new(Code::OutOfBounds, file.places.bytes()));
        }
        let lives =
            |region: &NamedRegion| self.nodes.get(&region.node).is_some_and(|node| self.is_alive(now, node));
        // A file with one copy gives none up.
        if file.copies_wanted > 1 && !every_run_has_one(places, lives) {
            let silent = places.regions.iter().find(|region| !lives(region));
            return Err(Refusal::new(Code::NoNodes, silent.map_or(0, |region| region.node.0)));
        }
        // The mover was not told of copies at nodes that have not come to this life of the broker yet.
        let unheard = file.places.regions.iter().find(|region| !self.nodes.contains_key(&region.node));
        match unheard.filter(|_| self.awaits_nodes(now)) {
            Some(region) => Err(Refusal::new(Code::NoNodes, region.node.0)),
            None => Ok(()),
        }
    }

    /// Checks the runs of places whose nodes are all known: each lies inside its regions, in different failure domains.
    fn check_runs(&self, places: &Places, malformed: Refusal) -> Result<(), Refusal> {
        // Bytes of each region that the runs take. They are bounded, so that a file is not longer than its memory.
        let mut used = vec![0u64; places.regions.len()];
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
                if labels.contains(&&info.host_label) {
                    return Err(Refusal::new(Code::CopiesTogether, index as u64));
                }
                labels.push(&info.host_label);
            }
            if labels.is_empty() {
                return Err(malformed);
            }
        }
        used.into_iter().all(|used| used > 0).then_some(()).ok_or(malformed)
    }

    /// Returns where the bytes of the file with this name are: its places, without copies that are known to be lost,
    /// and the nodes that have them.
    pub fn open_places(&self, tenant: &Name, name: &Name) -> Result<PlacesOpened, Refusal> {
        let file = self.seen(tenant, name)?;
        let is_here = |region: &NamedRegion| {
            self.nodes.get(&region.node).is_some_and(|node| node.info.incarnation == region.incarnation)
        };
        if !every_run_has_one(&file.places, is_here) {
            return Err(self.loss_of(&file.places, is_here));
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

    /// Returns the refusal to open a file of which a run has no copy in a region for which `is_here` is true.
    fn loss_of(&self, places: &Places, is_here: impl Fn(&NamedRegion) -> bool) -> Refusal {
        let mut runs = places.runs.iter();
        let lost = runs.find(|run| !places.copies(run).any(|(region, _)| is_here(region)));
        let nodes: Vec<NodeId> =
            lost.iter().flat_map(|run| places.copies(run)).map(|(region, _)| region.node).collect();
        // A node not heard of since the broker started may still come back, so this is not a loss.
        match nodes.iter().find(|id| !self.nodes.contains_key(id)) {
            Some(silent) => Refusal::new(Code::NoNodes, silent.0),
            None => Refusal::new(Code::FileLost, nodes.first().copied().unwrap_or_default().0),
        }
    }

    /// Returns where one copy of the file with this name is, for a client of a version that knows no copies.
    pub fn open_extents(&self, tenant: &Name, name: &Name) -> Result<Opened, Refusal> {
        let PlacesOpened { file, class, places, nodes, .. } = self.open_places(tenant, name)?;
        let limit = Refusal::new(Code::LimitReached, NAMED_EXTENTS_MAX as u64);
        let extent_count: u64 =
            places.runs.iter().map(|run| u64::from(run.bytes).div_ceil(NAMED_EXTENT_BYTES_MAX)).sum();
        if extent_count > NAMED_EXTENTS_MAX as u64 {
            return Err(limit);
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
        self.disown(name, &BTreeSet::new());
        self.persist(StateChange::DropName(name.clone()), records);
        Ok(Done {})
    }

    /// Gives a file another name.
    pub fn rename(
        &mut self,
        tenant: &Name,
        rename: &Rename,
        records: &mut Vec<StateChange>,
    ) -> Result<Done, Refusal> {
        let mut file = self.seen(tenant, &rename.from)?.clone();
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
        let from = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut names = Vec::new();
        let mut more = false;
        for (name, file) in self.durable.names.range::<Name, _>((from, Bound::Unbounded)) {
            if !name.starts_with(&*list.prefix) || !may_use(tenant, file) {
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
                bytes: file.places.bytes(),
                lost: self.is_lost(file),
                tenant: file.tenant.clone(),
            });
        }
        Names { names: List::new(names).unwrap_or_default(), more }
    }

    /// Reports whether some bytes of the file are lost: every copy of them was on a node that has started again.
    pub(super) fn is_lost(&self, file: &NamedFile) -> bool {
        let is_kept = |region: &NamedRegion| {
            self.nodes.get(&region.node).is_none_or(|node| node.info.incarnation == region.incarnation)
        };
        !every_run_has_one(&file.places, is_kept)
    }

    /// Reports whether each run of the file has a copy on a node that is heard of.
    pub(super) fn has_copies_alive(&self, now: MonoNs, file: &NamedFile) -> bool {
        let lives = |region: &NamedRegion| {
            let node = self.nodes.get(&region.node);
            node.is_some_and(|node| node.info.incarnation == region.incarnation && self.is_alive(now, node))
        };
        every_run_has_one(&file.places, lives)
    }

    fn seen(&self, tenant: &Name, name: &Name) -> Result<&NamedFile, Refusal> {
        let file = self.durable.names.get(name).filter(|file| may_use(tenant, file));
        file.ok_or(Refusal::new(Code::NoSuchName, 0))
    }

    /// Records the file as the owner of its regions.
    pub(super) fn own(&mut self, file: &NamedFile) {
        for (place, region) in file.regions() {
            let instead_of_admin = file.leased_by_admin.contains(&place).then(|| file.tenant.clone());
            self.owners.insert(place, Owner { epoch: region.epoch, file: file.file, instead_of_admin });
        }
    }

    /// Gives up the regions of a name, so that their nodes are ordered to free them. Leaves out those in `keeps`.
    fn disown(&mut self, name: &Name, keeps: &BTreeSet<RegionKey>) {
        let Some(file) = self.durable.names.get(name) else { return };
        for (place, region) in file.regions().filter(|(place, _)| !keeps.contains(place)) {
            self.owners.remove(&place);
            give_up(&mut self.given_up, place, region.epoch);
        }
    }
}
