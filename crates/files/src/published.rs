//! Published files: sealing them (making their regions immutable) and naming them, finding them after they moved,
//! rebuilding them after a loss, and moving them off a node that is being drained (emptied).

use crate::broker::answer_of;
use crate::error::{Error, ErrorKind};
use crate::file::{FarFile, FileInner, Phase, closed};
use crate::leases::Patience;
use crate::node_batches::{copy_bytes, span};
use crate::node_links::LeasedRegion;
use crate::options::IfTaken;
use crate::plan::{Allocation, CopyId, EXTENT_BYTES_MAX, EXTENT_BYTES_MIN, FileMap, Group, Segment};
use crate::session::Session;
use farpool_wire::control::*;
use farpool_wire::limits::NAMED_EXTENTS_MAX;
use farpool_wire::{Code, FileClass, FileId, List, Name, Request};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

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
    let reply = file.inner.session.broker.ask(&Request::OpenName(ByName { name }));
    match reply.and_then(|reply| answer_of!(reply, OpenName)) {
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
        let mut extents = self.sealed_extents()?;
        extents.iter_mut().for_each(|extent| extent.bind(&name));
        let proof = self.session.leases.proof();
        let publish = Publish {
            session: proof.session,
            secret: proof.secret,
            name,
            class,
            replace: if_taken == IfTaken::Replace,
            moved: FileId(0),
            extents: list(extents)?,
        };
        let published = answer_of!(self.session.broker.ask(&Request::Publish(publish))?, Publish)?;
        let mut state = self.state();
        if matches!(state.phase, Phase::Sealed(_)) {
            state.phase = Phase::Published(published.file);
        }
        Ok(())
    }

    /// Seals the file (makes it immutable) if that is not done yet, and returns its sealed extents. From then on its
    /// bytes do not change, even if publishing fails; publishing may be retried.
    fn sealed_extents(&self) -> Result<Vec<NamedExtent>, Error> {
        loop {
            let holes = {
                let state = self.state();
                match &state.phase {
                    Phase::Sealed(extents) => return Ok(extents.clone()),
                    Phase::Published(_) => {
                        return Err(Error::new(ErrorKind::ReadOnly, "the file is published already"));
                    }
                    Phase::Deleted => return Err(closed()),
                    Phase::Writable | Phase::Sealing => state.map.holes(),
                }
            };
            self.fill_holes(&holes)?;
            let _lock = self.begin_change(0..u64::MAX);
            if self.begin_sealing()? {
                self.session.leases.seal(self.group, |sealed| {
                    let replaced = |region: &Arc<LeasedRegion>| sealed.get(&region.id).cloned();
                    self.state().map.replace_regions(replaced);
                })?;
                return self.end_sealing();
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
        let extents = map.extents().filter(|(file, _)| file.start < map.length()).count();
        if extents > NAMED_EXTENTS_MAX {
            let message = format!(
                "the file cannot be published: it has {extents} extents; at most {NAMED_EXTENTS_MAX} are permitted"
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        if !map.holes().is_empty() {
            return Ok(false);
        }
        state.phase = Phase::Sealing;
        Ok(true)
    }

    fn end_sealing(&self) -> Result<Vec<NamedExtent>, Error> {
        let mut state = self.state();
        let length = state.map.length();
        let mut extents = Vec::new();
        for (file, copies) in state.map.extents().filter(|(file, _)| file.start < length) {
            let lost = |copy: &crate::plan::ExtentCopy<Arc<LeasedRegion>>| {
                let why = "it was lost while the file was sealed";
                Error::lost(&copy.allocation.region.node.info, why)
            };
            match copies {
                [copy, ..] if !copy.allocation.region.is_leased => {
                    extents.push(named(&copy.allocation, length.min(file.end) - file.start));
                }
                [copy, ..] => return Err(lost(copy)),
                [] => return Err(Error::new(ErrorKind::Lost, "some bytes of the file have no copy left")),
            }
        }
        state.phase = Phase::Sealed(extents.clone());
        Ok(extents)
    }

    /// Looks up where the file is now, after its bytes were not found. They may have moved, or a lost file may have
    /// been rebuilt.
    ///
    /// Errors: `gone`, with what was found out, if neither is the case.
    pub(crate) fn reopen(&self, gone: &Error) -> Result<(), Error> {
        let name = self.name();
        let Ok(named) = Name::new(name.clone()) else { return Err(gone.clone()) };
        let (opened, is_rebuilt) =
            self.session.open_or_rebuild(&named).map_err(|error| gone.clone().and(&error))?;
        let map = sealed_map(&self.session, &named, &opened)?;
        self.change(0..u64::MAX, |state| match state.phase {
            // Another file of this name has other bytes, unless a rebuild function vouches that they are the same.
            Phase::Published(file) if file == opened.file || is_rebuilt => {
                state.phase = Phase::Published(opened.file);
                state.map.replace(map);
                Ok(())
            }
            _ => Err(gone.clone()),
        })
    }
}

fn list(extents: Vec<NamedExtent>) -> Result<List<NamedExtent, NAMED_EXTENTS_MAX>, Error> {
    List::new(extents).map_err(|error| {
        Error::new(ErrorKind::Invalid, format!("the file has too many extents to publish: {error}"))
    })
}

fn named(allocation: &Allocation<Arc<LeasedRegion>>, bytes: u64) -> NamedExtent {
    let region = &allocation.region;
    NamedExtent {
        node: region.node.info.node,
        incarnation: region.node.info.incarnation,
        region: region.region,
        epoch: region.epoch,
        handle: region.handle,
        region_offset: allocation.offset,
        bytes,
    }
}

impl Session {
    /// Returns where the bytes of a name are, and whether a rebuild function is known for it. If the bytes are lost and
    /// one is known, rebuilds them first.
    pub(crate) fn open_or_rebuild(self: &Arc<Self>, name: &Name) -> Result<(Opened, bool), Error> {
        let open = || {
            let reply = self.broker.ask(&Request::OpenName(ByName { name: name.clone() }))?;
            answer_of!(reply, OpenName)
        };
        let rebuild = self.rebuilding.known(name);
        // The broker learns of a loss only when the node is back without the bytes. This session may know earlier.
        let is_lost = |opened: &Result<Opened, Error>| match opened {
            Ok(opened) => {
                opened.extents.iter().any(|extent| self.nodes.has_lost(extent.node, extent.incarnation))
            }
            Err(error) => error.refusal().is_some_and(|refusal| refusal.code == Code::FileLost),
        };
        let opened = open();
        let Some(rebuild) = rebuild else { return Ok((opened?, false)) };
        if !is_lost(&opened) {
            return Ok((opened?, true));
        }
        let turn = self.rebuilding.turn(name);
        let _turn = turn.take(&*self.base.host);
        // Another thread may have rebuilt it while this one waited.
        let opened = open();
        if !is_lost(&opened) {
            return Ok((opened?, true));
        }
        rebuild(name).map_err(|error| error.during(format_args!("rebuilding far file {:?}", &**name)))?;
        Ok((open()?, true))
    }

    /// Moves the extents of a published file from one node to others. The name stays. Returns how many bytes were
    /// moved.
    pub(crate) fn move_file(
        self: &Arc<Self>,
        info: &NameInfo,
        from: &NodeInfo,
        number: u64,
        mut moved: impl FnMut(u64),
    ) -> Result<u64, Error> {
        let reply = self.broker.ask(&Request::OpenName(ByName { name: info.name.clone() }))?;
        let opened = answer_of!(reply, OpenName)?;
        let group = Group::File(number);
        let source = sealed_map(self, &info.name, &opened)?;
        // Each moved extent: its index in the file, and its new location.
        let mut allocations: Vec<(usize, Allocation<Arc<LeasedRegion>>)> = Vec::new();
        let mut bytes_moved = 0;
        let sources: Vec<(Range<u64>, Allocation<Arc<LeasedRegion>>)> = source
            .extents()
            .filter_map(|(file, copies)| Some((file, copies.first()?.allocation.clone())))
            .collect();
        for (index, (file, allocation)) in sources.iter().enumerate() {
            if allocation.region.node.info.node != from.node {
                continue;
            }
            let bytes = file.end - file.start;
            let wanted = bytes.next_power_of_two().clamp(EXTENT_BYTES_MIN, EXTENT_BYTES_MAX) as u32;
            let target = self.leases.allocate(group, wanted, &[], Patience::Full)?;
            let at = |allocation: &Allocation<Arc<LeasedRegion>>| Segment {
                copy: CopyId::default(),
                region: Arc::clone(&allocation.region),
                offset: allocation.offset,
                file: file.clone(),
            };
            debug_assert_eq!(span(&at(allocation)).bytes as u64, bytes);
            copy_bytes(self, &at(allocation), &at(&target))?;
            self.repair.keep_pace(bytes)?;
            bytes_moved += bytes;
            moved(bytes);
            allocations.push((index, target));
        }
        if allocations.is_empty() {
            return Ok(0);
        }
        let mut all: BTreeMap<u64, Arc<LeasedRegion>> = BTreeMap::new();
        self.leases.seal(group, |sealed| all.extend(sealed))?;
        let mut extents = opened.extents.to_vec();
        for (index, allocation) in allocations {
            let Some(region) = all.get(&allocation.region.id) else {
                return Err(Error::lost(
                    &allocation.region.node.info,
                    "it was lost while the file was moved",
                ));
            };
            let sealed =
                Allocation { region: Arc::clone(region), offset: allocation.offset, bytes: allocation.bytes };
            extents[index] = named(&sealed, extents[index].bytes);
            extents[index].bind(&info.name);
        }
        let proof = self.leases.proof();
        let publish = Publish {
            session: proof.session,
            secret: proof.secret,
            name: info.name.clone(),
            class: opened.class,
            replace: true,
            moved: opened.file,
            extents: list(extents)?,
        };
        let published =
            self.broker.ask(&Request::Publish(publish)).and_then(|reply| answer_of!(reply, Publish));
        if let Err(error) = published {
            // If the name was dropped meanwhile, nothing needs to be moved. Any other error goes to the caller, for
            // example if the name has another file by now.
            self.leases.release(&all.into_values().collect::<Vec<_>>(), self.base.options.request_timeout_ms);
            return match error.kind() {
                ErrorKind::NotFound => Ok(0),
                _ => Err(error),
            };
        }
        Ok(bytes_moved)
    }
}

/// Builds the map of the published file `name`.
pub(crate) fn sealed_map(
    session: &Session,
    name: &Name,
    opened: &Opened,
) -> Result<FileMap<Arc<LeasedRegion>>, Error> {
    let mut allocations = Vec::with_capacity(opened.extents.len());
    let mut regions: BTreeMap<(u64, u32), Arc<LeasedRegion>> = BTreeMap::new();
    for extent in opened.extents.iter() {
        let mut extent = extent.clone();
        extent.bind(name);
        let Some(info) = opened.nodes.iter().find(|info| info.node == extent.node) else {
            return Err(Error::new(
                ErrorKind::Refused,
                "the broker's answer lists an extent on a node that it does not describe",
            ));
        };
        let node = session.leases.links(info)?;
        let region = regions.entry((extent.node.0, extent.region.0)).or_insert_with(|| {
            Arc::new(LeasedRegion {
                id: u64::MAX,
                node,
                region: extent.region,
                epoch: extent.epoch,
                handle: extent.handle,
                is_leased: false,
                is_taken: AtomicBool::new(false),
            })
        });
        let bytes = u32::try_from(extent.bytes).ok().filter(|bytes| u64::from(*bytes) <= EXTENT_BYTES_MAX);
        let bytes = bytes.ok_or_else(|| {
            let message = format!(
                "the broker's answer lists an extent of {} bytes; at most {EXTENT_BYTES_MAX} are permitted",
                extent.bytes
            );
            Error::new(ErrorKind::Refused, message)
        })?;
        allocations.push(Allocation { region: Arc::clone(region), offset: extent.region_offset, bytes });
    }
    let length = opened.extents.iter().map(|extent| extent.bytes).sum();
    let mut map = FileMap::sealed(allocations);
    map.set_length(length);
    Ok(map)
}
