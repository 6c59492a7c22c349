//! Shares: the row groups of one node that one scan covers, as the request describes them.

use crate::FarTable;
use crate::encryption::TableDecryption;
use crate::footer::{Encoding, RowGroup};
use crate::others::Others;
use crate::schema_mapping::FileColumns;
use farpool_files::Protection;
use farpool_files::beneath::{InOneRegion, LeasedRegion, NodeLinks, readable_in_one_region};
use farpool_wire::codec::Field;
use farpool_wire::control::*;
use farpool_wire::limits::{FRAME_BODY_BYTES_MAX, SCAN_GROUPS_MAX, SCAN_REGIONS_MAX};
use farpool_wire::{Bytes, Handle, List, Request, WireError};
use std::sync::Arc;

/// Row groups, and bytes of their columns, after which a share is full whose node others can take the place of: so much
/// runs again when the node is lost. Few row groups may be large, and many of these bytes take a node some 100 ms.
const REPLACED_GROUPS: usize = 16;
const REPLACED_BYTES: u64 = 128 << 20;
/// Bytes of a request to open a scan that are kept for all but its row groups.
const OPEN_BYTES_MAX: usize = 256 << 10;

/// Row groups of one node that one scan covers.
pub(crate) struct Share {
    pub(crate) node: Arc<NodeLinks>,
    /// Other nodes with these row groups.
    pub(crate) others: Others,
    /// Regions that hold the row groups.
    pub(super) regions: Vec<Arc<LeasedRegion>>,
    /// Numbers of the row groups in the table.
    pub(crate) groups: Vec<usize>,
    /// Row groups as the request describes them to the node, in the order of `groups`.
    described: Vec<ScanGroup>,
    /// Bytes of `described` in the request.
    bytes: usize,
    /// Bytes of the columns of the row groups that the query reads.
    column_bytes: u64,
    /// Key of the file that has the row groups, if the table is encrypted.
    pub(super) decryption: Option<Arc<TableDecryption>>,
    /// Numbers in that file of the columns that the query reads.
    pub(super) in_file: Vec<u16>,
    /// Number in the table of the row that the node counts as 0, modulo 2^64: if the table is encrypted it counts the
    /// rows of the file, of which some may not be in the table.
    pub(crate) first_row: u64,
}

/// Sorts row groups by the nodes that hold them and are not in `without`. The second result has the row groups that
/// cannot be read from one region, and those whose files do not have the columns as the table has them.
pub(crate) fn shares(
    table: &FarTable,
    groups: impl Iterator<Item = usize>,
    columns: &[usize],
    without: &[Arc<NodeLinks>],
) -> (Vec<Share>, Vec<usize>) {
    let (mut shares, mut rest): (Vec<Share>, Vec<usize>) = (Vec::new(), Vec::new());
    let positions = table.positions();
    for index in groups {
        let found = || {
            let found = located(table, index, columns, without)?;
            let (group, file) = (table.row_groups().get(index)?, table.file_of(index)?);
            let described = columns.iter().map(|column| described(group, &file.columns, *column));
            Some((found, group, file, List::new(described.collect::<Option<_>>()?).ok()?))
        };
        let Some((InOneRegion { region, offset, has_others }, group, file, described)) = found() else {
            rest.push(index);
            continue;
        };
        let others = match has_others {
            true => Others::Known,
            false if table.protection() == Protection::None => Others::None,
            false => Others::Perhaps,
        };
        let column_bytes = group.buffers(columns).map(|buffer| u64::from(buffer.bytes)).sum();
        let in_file = columns.iter().filter_map(|column| file.columns.same_place(*column));
        let in_file: Vec<u16> = in_file.map(|place| place as u16).collect();
        // The key of a scan is that of one file, by whose rows nonces are counted.
        let (mut decryption, mut first_row) = (None, 0);
        if table.is_encrypted() {
            first_row = positions[index].wrapping_sub(table.position_in_file(index));
            decryption = file.decryption.clone();
        }
        let position = positions[index].wrapping_sub(first_row);
        let described = ScanGroup { region: 0, offset, rows: group.rows, position, columns: described };
        let mut encoded = Vec::new();
        described.put(&mut encoded);
        let is_open = |share: &&mut Share| {
            Arc::ptr_eq(&share.node, &region.node)
                && share.others == others
                && share.first_row == first_row
                && share.decryption.as_ref().map(Arc::as_ptr) == decryption.as_ref().map(Arc::as_ptr)
                && may_grow(share.groups.len(), share.column_bytes, others)
                && share.regions.len() < SCAN_REGIONS_MAX
                && share.bytes + encoded.len() <= FRAME_BODY_BYTES_MAX - OPEN_BYTES_MAX
        };
        // The last share of a node is the one that has room.
        match shares.iter_mut().rev().find(is_open) {
            Some(share) => share.add(index, region, described, encoded.len(), column_bytes),
            None => {
                let mut share = Share::at(Arc::clone(&region.node), others);
                (share.decryption, share.in_file, share.first_row) = (decryption, in_file, first_row);
                share.add(index, region, described, encoded.len(), column_bytes);
                shares.push(share);
            }
        }
    }
    (shares, rest)
}

/// Reports whether a share with so many row groups and bytes of columns takes another row group.
fn may_grow(groups: usize, column_bytes: u64, others: Others) -> bool {
    let is_enough = groups >= REPLACED_GROUPS && column_bytes >= REPLACED_BYTES;
    groups < SCAN_GROUPS_MAX && !(others == Others::Known && is_enough)
}

/// Returns the region of a node not in `without` that holds a row group as a whole. `None` if no one region does, or if
/// the file does not have the columns as the table has them.
pub(crate) fn located(
    table: &FarTable,
    index: usize,
    columns: &[usize],
    without: &[Arc<NodeLinks>],
) -> Option<InOneRegion> {
    let (file, group) = (&table.file_of(index)?.file, table.row_groups().get(index)?);
    if !table.has_in_file(index, columns) {
        return None;
    }
    readable_in_one_region(file, group.offset..group.end(), without)
}

fn described(group: &RowGroup, file: &FileColumns, column: usize) -> Option<ScanColumn> {
    let chunk = group.columns.get(column)?;
    let buffer = |at: &crate::BufferAt| ScanBuffer { offset: at.offset, bytes: at.bytes };
    let mut buffers: Vec<ScanBuffer> = chunk.buffers.iter().map(buffer).collect();
    if chunk.encoding == Encoding::Rows {
        let places = file.rows()?;
        let (start, bytes) = (*places.starts.get(file.same_place(column)?)?, places.row_bytes);
        buffers.push(ScanBuffer { offset: start as u32, bytes: bytes as u32 });
    }
    let buffers = List::new(buffers).ok()?;
    Some(ScanColumn { layout: chunk.encoding, null_count: chunk.null_count, buffers })
}

impl Share {
    fn at(node: Arc<NodeLinks>, others: Others) -> Share {
        let (regions, groups, described) = (Vec::new(), Vec::new(), Vec::new());
        let (bytes, column_bytes, decryption, in_file, first_row) = Default::default();
        Share {
            node,
            others,
            regions,
            groups,
            described,
            bytes,
            column_bytes,
            decryption,
            in_file,
            first_row,
        }
    }

    fn add(
        &mut self,
        index: usize,
        region: Arc<LeasedRegion>,
        mut described: ScanGroup,
        bytes: usize,
        column_bytes: u64,
    ) {
        let known = self.regions.iter().position(|known| Arc::ptr_eq(known, &region));
        let place = known.unwrap_or(self.regions.len());
        if known.is_none() {
            self.regions.push(region);
        }
        described.region = place as u32;
        self.groups.push(index);
        self.described.push(described);
        self.bytes += bytes;
        self.column_bytes += column_bytes;
    }

    /// Returns the request that opens the scan.
    pub(super) fn request(
        &self,
        program: &[u8],
        lookups: &[Handle],
        seals: ScanSeals,
    ) -> Result<Request, WireError> {
        let right = |region: &Arc<LeasedRegion>| ScanRegion {
            region: region.region,
            epoch: region.epoch,
            handle: region.handle,
        };
        Ok(Request::OpenScan(OpenScan {
            program: Bytes::new(program.to_vec())?,
            lookups: List::new(lookups.to_vec())?,
            regions: List::new(self.regions.iter().map(right).collect())?,
            groups: List::new(self.described.clone())?,
            seals,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_that_others_can_take_the_place_of_is_short() {
        let (few, many) = (REPLACED_GROUPS - 1, REPLACED_GROUPS);
        assert!(
            may_grow(few, REPLACED_BYTES, Others::Known),
            "its row groups are large, and one of them runs as a whole"
        );
        assert!(may_grow(many, REPLACED_BYTES - 1, Others::Known), "they take a moment");
        assert!(!may_grow(many, REPLACED_BYTES, Others::Known));
        assert!(may_grow(many, REPLACED_BYTES, Others::None), "nobody could run them again");
        assert!(!may_grow(SCAN_GROUPS_MAX, 0, Others::None));
    }
}
