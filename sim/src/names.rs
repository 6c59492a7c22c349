//! What each published name stood for, and when.
//!
//! The idea: the disk is the truth. Whenever a record reaches it, the book notes what the name stands for from
//! then on, by looking at the very bytes in the nodes' memory. Whoever opens a name must find something it stood
//! for at some moment of the opening; whoever is told that a name was given or dropped must find that in the book
//! (I5).

use crate::kernel::World;
use crate::store::Disk;
use farpool_lease::broker::{Durable, NamedFile, Record};
use farpool_wire::{Epoch, Incarnation, RegionIndex};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A region of a node's life at an epoch.
pub(crate) type Place = (Incarnation, RegionIndex, Epoch);

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Value {
    /// There is no such name.
    Nothing,
    /// The content of this number.
    Content(u64),
    /// Its node was gone when the name was given, so nobody can say.
    Unknown,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct NameBook {
    /// What a name stood for since when, in order.
    names: BTreeMap<String, Vec<(u64, Value)>>,
    contents: Vec<Arc<Vec<u8>>>,
    by_length: BTreeMap<usize, Vec<u64>>,
}

impl NameBook {
    /// A content that is about to be published.
    pub(crate) fn add_content(&mut self, bytes: Vec<u8>) -> u64 {
        let number = self.contents.len() as u64;
        self.by_length.entry(bytes.len()).or_default().push(number);
        self.contents.push(Arc::new(bytes));
        number
    }

    pub(crate) fn content(&self, number: u64) -> Arc<Vec<u8>> {
        Arc::clone(&self.contents[number as usize])
    }

    /// The contents among these values that are so long.
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

    /// Everything the name has stood for from a time on.
    pub(crate) fn since(&self, name: &str, from: u64) -> BTreeSet<Value> {
        let Some(history) = self.names.get(name) else { return BTreeSet::from([Value::Nothing]) };
        let later = history.iter().filter(|(at, _)| *at >= from).map(|(_, value)| *value);
        let before =
            history.iter().rev().find(|(at, _)| *at < from).map_or(Value::Nothing, |(_, value)| *value);
        later.chain([before]).collect()
    }

    /// Every name that was ever given.
    pub(crate) fn all(&self) -> Vec<String> {
        self.names.keys().cloned().collect()
    }
}

impl World {
    /// Notes what a record on the disk means.
    pub(crate) fn recorded(&mut self, record: &Record) {
        let now = self.now();
        match record {
            Record::Name(name, named) => {
                let value = self.value_of(named);
                self.parties.names.changed(name, now, value);
            }
            Record::DropName(name) => self.parties.names.changed(name, now, Value::Nothing),
            _ => {}
        }
    }

    /// Which content lies where a named file says.
    fn value_of(&self, named: &NamedFile) -> Value {
        let Some(bytes) = self.bytes_of(named) else { return Value::Unknown };
        let candidates = self.parties.names.by_length.get(&bytes.len()).into_iter().flatten();
        let mut found = candidates.filter(|number| *self.parties.names.contents[**number as usize] == bytes);
        // Bytes that are nobody's content are found by whoever reads them.
        found.next().map_or(Value::Unknown, |number| Value::Content(*number))
    }

    fn bytes_of(&self, named: &NamedFile) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for extent in &named.extents {
            let lives = self.parties.nodes.iter().filter_map(|place| place.life.as_ref());
            let life = lives.into_iter().find(|life| life.incarnation == extent.incarnation)?;
            let start = bytes.len();
            bytes.resize(start + extent.bytes as usize, 0);
            life.service.memory().peek(extent.region.0, extent.region_offset, &mut bytes[start..])?;
        }
        Some(bytes)
    }

    /// Whether all nodes that hold a name's bytes live on.
    pub(crate) fn is_whole(&self, name: &str, disk: &Disk) -> bool {
        let ended = &self.parties.ended;
        disk.with_durable(|durable| {
            let named = durable.names.iter().find(|(has, _)| &***has == name).map(|(_, named)| named);
            named.is_some_and(|named| named.extents.iter().all(|extent| !ended.contains(&extent.incarnation)))
        })
    }

    /// What names have in a life of a node, as the disk says.
    pub(crate) fn named_in(&self, incarnation: Incarnation) -> Vec<(RegionIndex, Epoch)> {
        self.parties.disk.with_durable(|durable| {
            let extents = durable.names.values().flat_map(|named| &named.extents);
            let here = extents.filter(|extent| extent.incarnation == incarnation);
            here.map(|extent| (extent.region, extent.epoch)).collect()
        })
    }
}

/// Everything that names have, as a disk says.
pub(crate) fn places(durable: &Durable) -> BTreeSet<Place> {
    let extents = durable.names.values().flat_map(|named| &named.extents);
    extents.map(|extent| (extent.incarnation, extent.region, extent.epoch)).collect()
}
