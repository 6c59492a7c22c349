//! Names of published files. Each name belongs to one tenant.
//!
//! The idea: only its tenant and the administrator can see a file. Everybody else learns no more than that its
//! name is taken.

use super::records::region_key;
use super::{BrokerLeases, NamedFile, Owner, RegionKey, StateChange, give_up};
use crate::tenant;
use farpool_wire::control::*;
use farpool_wire::ids::{Epoch, FileId, MonoNs, NodeId};
use farpool_wire::limits::{NAMED_EXTENTS_MAX, NAMES_PAGE_MAX, NODE_REGIONS_MAX};
use farpool_wire::{Code, Handle, List, Name, Refusal, mutant};
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

impl BrokerLeases {
    /// Gives sealed extents (ranges of immutable regions) to a name, in one transaction that frees what the name had
    /// before. If the request says that the file was moved to other regions, the new extents replace its old ones;
    /// extents that did not move are named in the request once more.
    pub fn publish(
        &mut self,
        now: MonoNs,
        tenant: &Name,
        publish: &Publish,
        records: &mut Vec<StateChange>,
    ) -> Result<Published, Refusal> {
        self.prove(now, tenant, publish.session, publish.secret)?;
        let has = self.durable.names.get(&publish.name);
        let seen = has.filter(|has| may_use(tenant, has));
        // The request is a repetition: the first answer was lost.
        if let Some(has) = seen
            && has.extents == *publish.extents
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
        let fresh = self.check_extents(publish, moved.as_ref())?;
        let mut named = match moved {
            Some(file) => NamedFile { extents: publish.extents.to_vec(), ..file },
            None => {
                // No file has the id 0: on the wire it says that no file was moved.
                let file = FileId(self.durable.next_file.0.max(1));
                self.persist(StateChange::NextFile(FileId(file.0 + 1)), records);
                NamedFile {
                    file,
                    class: publish.class,
                    tenant: tenant.clone(),
                    extents: publish.extents.to_vec(),
                    leased_by_admin: BTreeSet::new(),
                }
            }
        };
        let places: BTreeSet<RegionKey> = named.places().map(|(place, _)| place).collect();
        named.leased_by_admin.retain(|place| places.contains(place));
        if named.tenant != *tenant {
            // Only the administrator may move a file of another tenant.
            named.leased_by_admin.extend(fresh);
        }
        self.disown(&publish.name, &places);
        self.own(&named);
        let file = named.file;
        self.persist(StateChange::Name(publish.name.clone(), named), records);
        Ok(Published { file })
    }

    /// Checks that these extents may become a file's: each is either one that `moved`, the file before it was moved,
    /// has already, or one that nobody has. Returns the regions that nobody has.
    fn check_extents(
        &self,
        publish: &Publish,
        moved: Option<&NamedFile>,
    ) -> Result<BTreeSet<RegionKey>, Refusal> {
        let own: BTreeMap<RegionKey, Handle> = moved
            .iter()
            .flat_map(|file| file.places())
            .map(|(place, extent)| (place, extent.handle))
            .collect();
        let mut epochs: BTreeMap<RegionKey, Epoch> = BTreeMap::new();
        let mut bytes = 0;
        for extent in publish.extents.iter() {
            // A node not heard of since the broker started may still come back, so this is not a loss.
            let node = self.nodes.get(&extent.node).ok_or(Refusal::new(Code::NoNodes, extent.node.0))?;
            if node.info.incarnation != extent.incarnation {
                return Err(Refusal::new(Code::FileLost, extent.node.0));
            }
            let ends_at = extent.region_offset.checked_add(extent.bytes);
            if extent.bytes == 0 || ends_at.is_none_or(|end| end > node.info.region_bytes) {
                return Err(Refusal::new(Code::OutOfBounds, node.info.region_bytes));
            }
            bytes += extent.bytes;
            if extent.region.0 as usize >= NODE_REGIONS_MAX {
                return Err(Refusal::new(Code::NoSuchRegion, NODE_REGIONS_MAX as u64));
            }
            let place = region_key(extent);
            // A region that a file owns stays at its epoch until the file gives it up, so any other epoch is wrong.
            if let Some(owner) = self.owners.get(&place) {
                if owner.epoch != extent.epoch {
                    return Err(Refusal::new(Code::StaleEpoch, owner.epoch.0));
                }
                match own.get(&place) {
                    Some(handle) if *handle == extent.handle => continue,
                    Some(_) => return Err(Refusal::new(Code::WrongHandle, 0)),
                    None => return Err(Refusal::new(Code::NameTaken, owner.file.0)),
                }
            }
            if let Some(epoch) = self.given_up.get(&place)
                && *epoch >= extent.epoch
                && !mutant!(GivenUpPublished)
            {
                return Err(Refusal::new(Code::StaleEpoch, epoch.0));
            }
            if *epochs.entry(place).or_insert(extent.epoch) != extent.epoch {
                return Err(Refusal::new(Code::StaleEpoch, extent.epoch.0));
            }
            // Only regions that the node has reported as sealed (immutable) to this life of the broker are accepted.
            // The caller may have published the region to an earlier life, which has freed it since.
            match node.sealed.get(&extent.region) {
                Some((epoch, session)) if *epoch == extent.epoch => {
                    if *session != publish.session {
                        return Err(Refusal::new(Code::WrongSecret, session.0));
                    }
                }
                _ if mutant!(UnreportedPublished) => {}
                _ => return Err(Refusal::new(Code::NotReported, extent.node.0)),
            }
        }
        // A file that is moved to other regions keeps its length.
        if let Some(file) = moved
            && file.bytes() != bytes
        {
            return Err(Refusal::new(Code::OutOfBounds, file.bytes()));
        }
        Ok(epochs.into_keys().collect())
    }

    /// Returns where the bytes of the file with this name are: its extents, and the nodes that hold them.
    pub fn open_name(&self, tenant: &Name, name: &Name) -> Result<Opened, Refusal> {
        let file = self.seen(tenant, name)?;
        let mut nodes: BTreeMap<NodeId, NodeInfo> = BTreeMap::new();
        for extent in &file.extents {
            // A node not heard of since the broker started may still come back, so this is not a loss.
            let node = self.nodes.get(&extent.node).ok_or(Refusal::new(Code::NoNodes, extent.node.0))?;
            if node.info.incarnation != extent.incarnation {
                return Err(Refusal::new(Code::FileLost, extent.node.0));
            }
            nodes.insert(extent.node, node.info.clone());
        }
        let nodes = List::new(nodes.into_values().collect());
        let extents = List::new(file.extents.clone());
        match (nodes, extents) {
            (Ok(nodes), Ok(extents)) => Ok(Opened { file: file.file, class: file.class, extents, nodes }),
            _ => Err(Refusal::new(Code::LimitReached, NAMED_EXTENTS_MAX as u64)),
        }
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
        for extent in &mut file.extents {
            extent.bind(&rename.from);
            extent.bind(&rename.to);
        }
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
            let lost = file.extents.iter().any(|extent| {
                self.nodes.get(&extent.node).is_some_and(|node| node.info.incarnation != extent.incarnation)
            });
            names.push(NameInfo {
                name: name.clone(),
                file: file.file,
                class: file.class,
                bytes: file.bytes(),
                lost,
                tenant: file.tenant.clone(),
            });
        }
        Names { names: List::new(names).unwrap_or_default(), more }
    }

    fn seen(&self, tenant: &Name, name: &Name) -> Result<&NamedFile, Refusal> {
        let file = self.durable.names.get(name).filter(|file| may_use(tenant, file));
        file.ok_or(Refusal::new(Code::NoSuchName, 0))
    }

    /// Records the file as the owner of its regions.
    pub(super) fn own(&mut self, file: &NamedFile) {
        for (place, extent) in file.places() {
            let instead_of_admin = file.leased_by_admin.contains(&place).then(|| file.tenant.clone());
            self.owners.insert(place, Owner { epoch: extent.epoch, file: file.file, instead_of_admin });
        }
    }

    /// Gives up the regions of a name, so that their nodes are ordered to free them. Leaves out those in `keeps`.
    fn disown(&mut self, name: &Name, keeps: &BTreeSet<RegionKey>) {
        let Some(file) = self.durable.names.get(name) else { return };
        for (place, extent) in file.places().filter(|(place, _)| !keeps.contains(place)) {
            self.owners.remove(&place);
            give_up(&mut self.given_up, place, extent.epoch);
        }
    }
}
