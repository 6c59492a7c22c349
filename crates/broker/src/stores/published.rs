//! Encoding of a published file: its fields in the form of the wire, for every store that keeps bytes.

use farpool_lease::broker::NamedFile;
use farpool_wire::codec::{Cursor, Field};
use farpool_wire::control::{NamedExtent, Places, SnapshotAt};
use farpool_wire::limits::NAMED_EXTENTS_MAX;
use farpool_wire::{Bytes, FileClass, FileId, List, Name, WireError};
use std::collections::BTreeMap;

/// Encodes a file.
pub fn encode_file(file: &NamedFile) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.file.put(&mut bytes);
    file.class.put(&mut bytes);
    file.tenant.put(&mut bytes);
    file.copies_wanted.put(&mut bytes);
    file.places.regions.put(&mut bytes);
    file.places.runs.put(&mut bytes);
    // A file without stripes, a recipe and a snapshot is stored as it was before there were any.
    if !file.places.stripes.is_empty() || !file.recipe.is_empty() || file.root_of.is_some() {
        file.places.stripes.put(&mut bytes);
    }
    if !file.recipe.is_empty() || file.root_of.is_some() {
        file.recipe.put(&mut bytes);
    }
    if let Some(at) = file.root_of {
        at.put(&mut bytes);
    }
    bytes
}

/// Decodes a file. Fails if the bytes are not those of a file.
pub fn decode_file(bytes: &[u8]) -> Result<NamedFile, WireError> {
    let mut from = Cursor::new(bytes);
    let file = FileId::take(&mut from)?;
    let class = FileClass::take(&mut from)?;
    let tenant = Name::take(&mut from)?;
    let copies_wanted = u8::take(&mut from)?;
    let (regions, runs) = (List::take(&mut from)?, List::take(&mut from)?);
    let stripes = if from.left() > 0 { List::take(&mut from)? } else { List::default() };
    let recipe = if from.left() > 0 { Bytes::take(&mut from)? } else { Bytes::default() };
    let root_of = if from.left() > 0 { Some(SnapshotAt::take(&mut from)?) } else { None };
    from.finish()?;
    let places = Places { regions, runs, stripes };
    Ok(NamedFile { file, class, tenant, copies_wanted, recipe, places, root_of })
}

/// Decodes a file from a store of the format before this one, which has one copy of each extent.
pub fn decode_extents(bytes: &[u8]) -> Result<NamedFile, WireError> {
    let mut from = Cursor::new(bytes);
    let file = FileId::take(&mut from)?;
    let class = FileClass::take(&mut from)?;
    let tenant = Name::take(&mut from)?;
    let extents: List<NamedExtent, NAMED_EXTENTS_MAX> = List::take(&mut from)?;
    // Which of them the administrator had leased, to move the file there. Nothing depends on that any more.
    let _: List<bool, NAMED_EXTENTS_MAX> = List::take(&mut from)?;
    from.finish()?;
    // Earlier versions did not compare the handles of a region. A node accepts the one that it made, whichever that is.
    let mut handles = BTreeMap::new();
    let mut extents = extents.into_vec();
    for extent in &mut extents {
        let region = (extent.node, extent.incarnation, extent.region, extent.epoch);
        extent.handle = *handles.entry(region).or_insert(extent.handle);
    }
    let places = Places::of_extents(&extents)?;
    let recipe = Bytes::default();
    Ok(NamedFile { file, class, tenant, copies_wanted: 1, recipe, places, root_of: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use farpool_wire::control::{NamedRegion, PlacesBuilder, Stripe};
    use farpool_wire::{Epoch, Handle, Incarnation, NodeId, RegionIndex};

    /// The bytes are those that the format before this one stored.
    #[test]
    fn file_of_the_format_before_is_read_with_extents_that_follow_each_other_as_one_run() {
        let extent = |region: u32, region_offset: u64| NamedExtent {
            node: NodeId(1),
            incarnation: Incarnation(2),
            region: RegionIndex(region),
            epoch: Epoch(3),
            handle: Handle(4),
            region_offset,
            bytes: 1 << 20,
        };
        let extents = vec![extent(0, 0), extent(0, 1 << 20), extent(1, 0), extent(0, 3 << 20)];
        let mut bytes = Vec::new();
        FileId(7).put(&mut bytes);
        FileClass::Pinned.put(&mut bytes);
        Name::new("tenant").expect("a name").put(&mut bytes);
        List::<NamedExtent, NAMED_EXTENTS_MAX>::new(extents).expect("few").put(&mut bytes);
        List::<bool, NAMED_EXTENTS_MAX>::new(vec![false, false, true, false]).expect("few").put(&mut bytes);
        let file = decode_extents(&bytes).expect("of the format before");
        let runs = file.places.runs.iter().map(|run| (run.bytes, run.copies[0].region, run.copies[0].offset));
        assert_eq!(runs.collect::<Vec<_>>(), [(2 << 20, 0, 0), (1 << 20, 1, 0), (1 << 20, 0, 3 << 20)]);
        assert_eq!((file.file, file.copies_wanted, file.places.bytes()), (FileId(7), 1, 4 << 20));
        assert_eq!(decode_file(&encode_file(&file)), Ok(file));
    }

    /// A store of the version before has no list of stripes behind the places.
    #[test]
    fn file_with_stripes_is_read_as_it_was_and_one_without_is_stored_as_before_there_were_any() {
        let region = |node: u64| NamedRegion {
            node: NodeId(node),
            incarnation: Incarnation(2),
            region: RegionIndex(0),
            epoch: Epoch(3),
            handle: Handle(4),
        };
        let mut adding = PlacesBuilder::default();
        for node in 1..=3 {
            adding.push_apart(128, [(region(node), 0)]).expect("fits");
        }
        let stripe =
            Stripe { data: List::new(vec![0, 1]).expect("two"), parity: List::new(vec![2]).expect("one") };
        let places =
            Places { stripes: List::new(vec![stripe]).expect("one"), ..adding.finish().expect("fits") };
        let tenant = Name::new("tenant").expect("a name");
        let recipe = Bytes::new(vec![7; 40]).expect("short");
        let root_of = Some(SnapshotAt { table: farpool_wire::TableId(8), snapshot: 9 });
        let mut file = NamedFile {
            file: FileId(7),
            class: FileClass::Pinned,
            tenant,
            copies_wanted: 1,
            recipe,
            places,
            root_of,
        };
        assert_eq!(decode_file(&encode_file(&file)), Ok(file.clone()));
        file.root_of = None;
        assert_eq!(decode_file(&encode_file(&file)), Ok(file.clone()));
        let mut plain = file;
        let mut wire = Vec::new();
        plain.places.put(&mut wire);
        (plain.places.stripes, plain.recipe) = (List::default(), Bytes::default());
        let stored = encode_file(&plain);
        let both = plain.places.regions.len() * 44 + plain.places.runs.len() * 20 + 8;
        assert!(stored.ends_with(&wire[..both]), "the list of stripes is left out");
        assert_eq!(decode_file(&stored), Ok(plain.clone()));
        plain.recipe = Bytes::new(vec![9]).expect("short");
        assert_eq!(decode_file(&encode_file(&plain)), Ok(plain), "with a recipe alone");
    }
}
