//! Encoding of a published file: its fields in the form of the wire, for every store that keeps bytes.

use super::StoreError;
use farpool_lease::broker::{NamedFile, region_key};
use farpool_wire::codec::{Cursor, Field};
use farpool_wire::control::NamedExtent;
use farpool_wire::limits::NAMED_EXTENTS_MAX;
use farpool_wire::{FileClass, FileId, List, Name, WireError};

/// Encodes a file. Fails if it has too many extents.
pub fn encode_file(file: &NamedFile) -> Result<Vec<u8>, StoreError> {
    let extents: List<NamedExtent, NAMED_EXTENTS_MAX> =
        List::new(file.extents.clone()).map_err(|error| StoreError(error.to_string()))?;
    let by_admin = file.extents.iter().map(|extent| file.leased_by_admin.contains(&region_key(extent)));
    let leased_by_admin: List<bool, NAMED_EXTENTS_MAX> =
        List::new(by_admin.collect()).map_err(|error| StoreError(error.to_string()))?;
    let mut bytes = Vec::new();
    file.file.put(&mut bytes);
    file.class.put(&mut bytes);
    file.tenant.put(&mut bytes);
    extents.put(&mut bytes);
    leased_by_admin.put(&mut bytes);
    Ok(bytes)
}

/// Decodes a file. Fails if the bytes are not those of a file.
pub fn decode_file(bytes: &[u8]) -> Result<NamedFile, WireError> {
    let mut from = Cursor::new(bytes);
    let file = FileId::take(&mut from)?;
    let class = FileClass::take(&mut from)?;
    let tenant = Name::take(&mut from)?;
    let extents: List<NamedExtent, NAMED_EXTENTS_MAX> = List::take(&mut from)?;
    let by_admin: List<bool, NAMED_EXTENTS_MAX> = List::take(&mut from)?;
    from.finish()?;
    let leased_by_admin = extents
        .iter()
        .zip(by_admin.iter())
        .filter(|(_, by)| **by)
        .map(|(extent, _)| region_key(extent))
        .collect();
    Ok(NamedFile { file, class, tenant, extents: extents.into_vec(), leased_by_admin })
}
