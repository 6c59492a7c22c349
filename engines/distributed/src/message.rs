//! Encoded scan, to be sent to another process.
//!
//! The idea: a scan is sent as the program that memory nodes would get, with the columns of its output. The receiver
//! checks all of it. The row groups must exist, and the table must be the one for which the query was planned.
//!
//! Pure: no I/O.

use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::{Result, plan_datafusion_err, plan_err};
use datafusion_proto::protobuf;
use farpool::operators::limits::{COLUMNS_MAX, PROGRAM_BYTES_MAX};
use farpool::{FarTable, TraceId};
use farpool::{Placement, UnknownPlacement};
use prost::Message;
use std::sync::Arc;

/// Version of the encoding. Other versions are refused.
pub(crate) const VERSION: u32 = 3;
/// Longest name of a far table in bytes.
const NAME_BYTES_MAX: usize = 255;
/// Row groups of a scan, at most.
const GROUPS_MAX: usize = 1 << 20;
/// Files of a scan, at most.
const FILES_MAX: usize = 1 << 20;
/// Partitions of a scan, at most.
const PARTITIONS_MAX: u32 = 4_096;

/// Scan to be encoded.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scan {
    pub(crate) table: String,
    pub(crate) identity: Identity,
    pub(crate) opened: Opened,
    pub(crate) program: Vec<u8>,
    pub(crate) schema: SchemaRef,
    pub(crate) groups: Vec<usize>,
    pub(crate) partitions: usize,
    pub(crate) placement: Option<Placement>,
    /// Trace id of the query; [`TraceId::NONE`] if the sender does not tell it.
    pub(crate) trace: TraceId,
}

/// Snapshot that the query was planned for, and the files of it that are scanned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Opened {
    /// Number of the snapshot; 0 for a table without snapshots.
    pub(crate) snapshot: u64,
    /// Numbers of the files, in order. `None`: all.
    pub(crate) files: Option<Vec<u32>>,
}

impl Opened {
    /// Returns what an open table has.
    pub(crate) fn of(table: &FarTable) -> Opened {
        let files = table.files_opened().numbers.as_ref().map(|numbers| numbers.to_vec());
        Opened { snapshot: table.snapshot().unwrap_or(0), files }
    }
}

/// Properties that distinguish a table from an earlier or later one of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) rows: u64,
    pub(crate) row_groups: u64,
    pub(crate) bytes: u64,
    /// Digest of the table's columns and of the checksums of all its buffers.
    pub(crate) digest: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ScanMessage {
    #[prost(uint32, tag = "1")]
    version: u32,
    #[prost(string, tag = "2")]
    table: String,
    #[prost(fixed64, tag = "3")]
    rows: u64,
    #[prost(fixed64, tag = "4")]
    row_groups: u64,
    #[prost(fixed64, tag = "5")]
    bytes: u64,
    #[prost(fixed64, tag = "6")]
    digest: u64,
    #[prost(bytes = "vec", tag = "7")]
    program: Vec<u8>,
    #[prost(message, optional, tag = "8")]
    schema: Option<protobuf::Schema>,
    #[prost(uint64, repeated, tag = "9")]
    groups: Vec<u64>,
    #[prost(uint32, tag = "10")]
    partitions: u32,
    #[prost(string, tag = "11")]
    placement: String,
    #[prost(fixed64, tag = "12")]
    trace: u64,
    #[prost(uint64, tag = "13")]
    snapshot: u64,
    /// True if only the files of these numbers are scanned.
    #[prost(bool, tag = "14")]
    has_files: bool,
    #[prost(uint32, repeated, tag = "15")]
    files: Vec<u32>,
}

/// Fields that all versions begin with.
#[derive(Clone, PartialEq, prost::Message)]
struct Head {
    #[prost(uint32, tag = "1")]
    version: u32,
}

impl Identity {
    /// Returns the identity of an open table. Contacts no node.
    pub(crate) fn of(table: &FarTable) -> Identity {
        let mut digest = Digest::default();
        for field in table.schema().fields() {
            digest.add(field.name().as_bytes());
            digest.add(field.data_type().to_string().as_bytes());
            digest.add(&[u8::from(field.is_nullable())]);
        }
        for group in table.row_groups() {
            digest.add(&group.offset.to_le_bytes());
            digest.add(&group.rows.to_le_bytes());
            for buffer in group.columns.iter().flat_map(|column| &column.buffers) {
                digest.add(&buffer.bytes.to_le_bytes());
                digest.add(&buffer.crc.to_le_bytes());
            }
        }
        Identity {
            rows: table.rows(),
            row_groups: table.row_groups().len() as u64,
            bytes: table.bytes(),
            digest: digest.0,
        }
    }
}

/// Digest by FNV-1a. It tells tables apart, but does not protect against deliberate collisions.
struct Digest(u64);

impl Default for Digest {
    fn default() -> Digest {
        Digest(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    fn add(&mut self, bytes: &[u8]) {
        for byte in (bytes.len() as u32).to_le_bytes().iter().chain(bytes) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

impl Scan {
    /// Appends the encoded scan to `out`.
    pub(crate) fn put(&self, out: &mut Vec<u8>) -> Result<()> {
        let message = ScanMessage {
            version: VERSION,
            table: self.table.clone(),
            rows: self.identity.rows,
            row_groups: self.identity.row_groups,
            bytes: self.identity.bytes,
            digest: self.identity.digest,
            program: self.program.clone(),
            schema: Some(self.schema.as_ref().try_into()?),
            groups: self.groups.iter().map(|group| *group as u64).collect(),
            partitions: self.partitions as u32,
            placement: self.placement.map_or(String::new(), |placement| placement.name().to_owned()),
            trace: self.trace.0,
            snapshot: self.opened.snapshot,
            has_files: self.opened.files.is_some(),
            files: self.opened.files.clone().unwrap_or_default(),
        };
        message.encode(out).map_err(|error| plan_datafusion_err!("far table {}: {error}", self.table))
    }

    /// Decodes a scan from untrusted bytes.
    ///
    /// Errors: another version, bytes that are no scan, and anything beyond its limit. Each error says which.
    pub(crate) fn take(bytes: &[u8]) -> Result<Scan> {
        let no_scan = |why: &dyn std::fmt::Display| plan_datafusion_err!("a scan that was received: {why}");
        let head = Head::decode(bytes).map_err(|error| no_scan(&error))?;
        if head.version != VERSION {
            return plan_err!(
                "version mismatch: this side speaks version {VERSION} of farpool-distributed, the other side {}; run \
                 the same farpool-sql on both",
                head.version
            );
        }
        let message = ScanMessage::decode(bytes).map_err(|error| no_scan(&error))?;
        let ScanMessage { table, program, groups, partitions, snapshot, has_files, files, .. } = message;
        let said = farpool::shown(&table);
        if table.is_empty() || table.len() > NAME_BYTES_MAX || table.chars().any(char::is_control) {
            return plan_err!(
                "a scan of a table with a name of {} bytes: 1 to {NAME_BYTES_MAX} are permitted, without control characters",
                table.len()
            );
        }
        if program.len() > PROGRAM_BYTES_MAX {
            return plan_err!(
                "far table {said}: a program of {} bytes: at most {PROGRAM_BYTES_MAX} are permitted",
                program.len()
            );
        }
        if groups.len() > GROUPS_MAX {
            return plan_err!(
                "far table {said}: {} row groups: at most {GROUPS_MAX} are permitted",
                groups.len()
            );
        }
        if !groups.is_sorted_by(|one, next| one < next) {
            return plan_err!("far table {said}: its row groups are not in ascending order");
        }
        if files.len() > FILES_MAX || !files.is_sorted_by(|one, next| one < next) {
            return plan_err!(
                "far table {said}: {} files: at most {FILES_MAX} are permitted, in ascending order",
                files.len()
            );
        }
        if !(1..=PARTITIONS_MAX).contains(&partitions) {
            return plan_err!("far table {said}: {partitions} streams: 1 to {PARTITIONS_MAX} are permitted");
        }
        let schema = message.schema.ok_or_else(|| no_scan(&"its columns are missing"))?;
        if schema.columns.len() > COLUMNS_MAX {
            return plan_err!(
                "far table {said}: {} columns: at most {COLUMNS_MAX} are permitted",
                schema.columns.len()
            );
        }
        let schema: Schema = (&schema).try_into()?;
        let placement = match message.placement.as_str() {
            "" => None,
            name => Some(name.parse().map_err(|unknown: UnknownPlacement| no_scan(&unknown))?),
        };
        Ok(Scan {
            identity: Identity {
                rows: message.rows,
                row_groups: message.row_groups,
                bytes: message.bytes,
                digest: message.digest,
            },
            opened: Opened { snapshot, files: has_files.then_some(files) },
            table,
            program,
            schema: Arc::new(schema),
            groups: groups.into_iter().map(|group| group as usize).collect(),
            partitions: partitions as usize,
            placement,
            trace: TraceId(message.trace),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::datatypes::{DataType, Field};

    fn scan() -> Scan {
        let fields =
            vec![Field::new("item", DataType::Int64, true), Field::new("shop", DataType::Utf8, false)];
        Scan {
            table: "sales".to_owned(),
            identity: Identity { rows: 7, row_groups: 3, bytes: 4_096, digest: 99 },
            opened: Opened { snapshot: 5, files: Some(vec![1, 4]) },
            program: vec![1, 2, 3],
            schema: Arc::new(Schema::new(fields)),
            groups: vec![0, 2],
            partitions: 2,
            placement: Some(Placement::Ship),
            trace: TraceId(77),
        }
    }

    fn bytes(scan: &Scan) -> Vec<u8> {
        let mut bytes = Vec::new();
        scan.put(&mut bytes).expect("encoded");
        bytes
    }

    fn why(bytes: &[u8]) -> String {
        Scan::take(bytes).expect_err("refused").strip_backtrace()
    }

    #[test]
    fn a_scan_comes_back_as_it_was_sent() {
        for placement in [None, Some(Placement::Auto), Some(Placement::Split)] {
            for files in [None, Some(Vec::new()), Some(vec![3])] {
                let opened = Opened { snapshot: 9, files };
                let sent = Scan { placement, opened, ..scan() };
                assert_eq!(Scan::take(&bytes(&sent)).expect("taken"), sent);
            }
        }
    }

    #[test]
    fn another_version_is_refused_by_name() {
        let mut other = bytes(&scan());
        // The version is the first field: its tag, then its value.
        assert_eq!(other[..2], [8, 3]);
        other[1] = 1;
        let why = why(&other);
        assert!(why.contains("this side speaks version 3 of farpool-distributed, the other side 1"), "{why}");
    }

    #[test]
    fn what_is_beyond_its_limit_is_refused_by_name() {
        let cases = [
            (Scan { table: String::new(), ..scan() }, "a name of 0 bytes"),
            (Scan { table: "x".repeat(256), ..scan() }, "a name of 256 bytes"),
            (Scan { table: "a\nb".to_owned(), ..scan() }, "control characters"),
            (Scan { program: vec![0; PROGRAM_BYTES_MAX + 1], ..scan() }, "a program of 65537 bytes"),
            (Scan { groups: vec![2, 2], ..scan() }, "ascending"),
            (
                Scan { opened: Opened { snapshot: 5, files: Some(vec![2, 1]) }, ..scan() },
                "2 files: at most 1048576 are permitted, in ascending order",
            ),
            (Scan { partitions: 0, ..scan() }, "0 streams"),
            (Scan { partitions: 4_097, ..scan() }, "4097 streams"),
        ];
        for (scan, part) in cases {
            let why = why(&bytes(&scan));
            assert!(why.contains(part), "{why} lacks {part}");
        }
    }

    #[test]
    fn bytes_that_are_truncated_or_changed_are_no_panic() {
        let whole = bytes(&scan());
        for end in 0..whole.len() {
            let _ = Scan::take(&whole[..end]);
        }
        for at in 0..whole.len() {
            for flip in [1, 0x80, 0xff] {
                let mut changed = whole.clone();
                changed[at] ^= flip;
                let _ = Scan::take(&changed);
            }
        }
    }
}
