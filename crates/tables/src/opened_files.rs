//! Files of a table as they are opened: their trailers, and the footers or manifests that these locate.
//!
//! The idea: the footers of many files are small, and each of them is a request to a node. So they are asked for
//! together, from all nodes at once.

use crate::GROUP_ALIGN;
use crate::encryption::TableDecryption;
use crate::footer::{Footer, RowGroup, Trailer, WrongKey};
use crate::schema_mapping::FileColumns;
use arrow_schema::SchemaRef;
use farpool_encryption::TableKey;
use farpool_files::beneath::{Session, open_parts, queue_of, session_of};
use farpool_files::{Error, ErrorKind, FarFile, ReadRange};
use farpool_wire::TableId;
use farpool_wire::control::PartAt;
use farpool_wire::limits::OPENED_PARTS_MAX;
use std::sync::Arc;

/// Bytes that are read from several files at once, at most, unless one read is larger.
const TOGETHER_BYTES_MAX: usize = 16 << 20;

/// Trailer of a file of a table, and the footer or manifest that it locates.
pub(crate) type End = (Trailer, Vec<u8>);

/// Range of a file: the offset of its first byte, and how many.
type Wanted<'f> = (&'f FarFile, u64, usize);

/// Reads a range of each of several files, from all of their nodes at once.
fn read_each(session: &Arc<Session>, wanted: &[Wanted<'_>]) -> Result<Vec<Vec<u8>>, Error> {
    if let [(file, offset, bytes)] = wanted {
        let mut into = vec![0; *bytes];
        file.read_batch(&mut [ReadRange { offset: *offset, into: &mut into }])?;
        return Ok(vec![into]);
    }
    let mut queue = queue_of(session);
    let mut read = vec![Vec::new(); wanted.len()];
    let (mut left, mut under_way) = (wanted.iter().zip(0u64..), 0);
    loop {
        while under_way < TOGETHER_BYTES_MAX
            && let Some(((file, offset, bytes), tag)) = left.next()
        {
            under_way += *bytes;
            queue.read(tag, file, *offset, vec![0; *bytes]);
        }
        let Some(done) = queue.wait() else { return Ok(read) };
        done.result?;
        under_way -= done.bytes.len();
        if let Some(into) = read.get_mut(done.tag as usize) {
            *into = done.bytes;
        }
    }
}

/// Returns where the bytes begin that are read first of a file: those behind the last row group, if they are no more
/// than 64 KiB.
fn tail_start(length: u64) -> u64 {
    let behind_groups = length.saturating_sub(1) / GROUP_ALIGN as u64 * GROUP_ALIGN as u64;
    behind_groups.min(length.saturating_sub(Trailer::BYTES as u64))
}

/// Reads the ends of files of a table, in two rounds of reads at most.
pub(crate) fn read_ends(session: &Arc<Session>, files: &[FarFile]) -> Result<Vec<End>, Error> {
    let tail = |file| {
        let length = FarFile::length(file);
        let start = tail_start(length);
        (file, start, (length - start) as usize)
    };
    let tails = read_each(session, &files.iter().map(tail).collect::<Vec<_>>())?;
    let mut ends = Vec::with_capacity(files.len());
    for (file, tail) in files.iter().zip(tails) {
        let length = file.length();
        let Some((before, trailer)) = tail.split_last_chunk::<{ Trailer::BYTES }>() else {
            return Err(no_table(format!("it has {length} bytes; a trailer has {}", Trailer::BYTES)));
        };
        let trailer = Trailer::take(trailer, length).map_err(no_table)?;
        let start = before.len().checked_sub(trailer.footer_bytes as usize);
        ends.push((file, trailer, start.map(|start| before[start..].to_vec())));
    }
    let longer = ends.iter().filter(|(.., bytes)| bytes.is_none());
    let longer =
        longer.map(|(file, trailer, _)| (*file, trailer.footer_offset, trailer.footer_bytes as usize));
    let mut longer = read_each(session, &longer.collect::<Vec<_>>())?.into_iter();
    let whole = |(_, trailer, bytes): (&FarFile, Trailer, Option<Vec<u8>>)| {
        let bytes = bytes.or_else(|| longer.next()).unwrap_or_default();
        match crc32c::crc32c(&bytes) == trailer.footer_crc {
            true => Ok((trailer, bytes)),
            false => Err(no_table("the checksum of its footer does not match".to_owned())),
        }
    };
    ends.into_iter().map(whole).collect()
}

/// Reads the end of a file of a table.
pub(crate) fn read_end(file: &FarFile) -> Result<End, Error> {
    let mut ends = read_ends(session_of(file), std::slice::from_ref(file))?;
    ends.pop().ok_or_else(|| no_table("it has no end".to_owned()))
}

/// Opens files with rows of a table, 1,024 at a time, and reads their footers. Returns their columns as well.
pub(crate) fn open_files(
    session: &Arc<Session>,
    table: TableId,
    parts: &[PartAt],
    key: Option<&TableKey>,
) -> Result<Vec<(SchemaRef, OpenedFile)>, Error> {
    let mut opened = Vec::with_capacity(parts.len());
    for parts in parts.chunks(OPENED_PARTS_MAX) {
        let files = open_parts(session, table, parts)?;
        let ends = read_ends(session, &files)?;
        for (file, (trailer, bytes)) in files.into_iter().zip(ends) {
            opened.push(opened_file(file, trailer, &bytes, key)?);
        }
    }
    Ok(opened)
}

/// File with rows, its row groups, and its key if it is encrypted and was opened with the key of the table.
pub(crate) struct OpenedFile {
    pub(crate) file: FarFile,
    /// Row groups, with the columns of the table.
    pub(crate) groups: Vec<RowGroup>,
    pub(crate) columns: Arc<FileColumns>,
    /// Row groups that the table does not have, by number, in order.
    pub(crate) left_out: Vec<u32>,
    pub(crate) is_encrypted: bool,
    pub(crate) decryption: Option<TableDecryption>,
}

/// Reads the footer of a file with rows. Returns its columns as well.
pub(crate) fn open_file(file: FarFile, key: Option<&TableKey>) -> Result<(SchemaRef, OpenedFile), Error> {
    let (trailer, bytes) = read_end(&file)?;
    opened_file(file, trailer, &bytes, key)
}

/// Decodes the footer of a file with rows. Returns its columns as well.
pub(crate) fn opened_file(
    file: FarFile,
    trailer: Trailer,
    bytes: &[u8],
    key: Option<&TableKey>,
) -> Result<(SchemaRef, OpenedFile), Error> {
    if trailer.form.is_manifest() {
        return Err(no_table("it is a part of one".to_owned()));
    }
    let take = if trailer.form.is_encrypted() { Footer::take_encrypted } else { Footer::take };
    let footer = take(bytes, trailer.footer_offset);
    let mut footer = footer.map_err(|error| no_table(format!("its footer is invalid: {error}")))?;
    let decryption = key.map(|key| decrypted(&mut footer, key)).transpose()?;
    let Footer { schema, groups, encryption } = footer;
    let (is_encrypted, left_out) = (encryption.is_some(), Vec::new());
    let columns = Arc::new(FileColumns::same(&schema));
    Ok((schema, OpenedFile { file, groups, columns, left_out, is_encrypted, decryption }))
}

/// Decrypts the statistics of a footer with the owner's key.
fn decrypted(footer: &mut Footer, key: &TableKey) -> Result<TableDecryption, Error> {
    let error = |kind, why: &str| Error::new(kind, why.to_owned());
    let salt = footer.encryption.as_ref().map(|encryption| encryption.salt);
    let decrypted = footer.decrypt(key).map_err(|wrong| match wrong {
        WrongKey::Other => {
            error(ErrorKind::Invalid, "the key is wrong: the table was encrypted with another one")
        }
        WrongKey::Changed => error(ErrorKind::Refused, "its footer was changed since it was encrypted"),
    })?;
    let not_encrypted = || error(ErrorKind::Invalid, "a key was given, but the table is not encrypted");
    let ((cipher, key), salt) = decrypted.zip(salt).ok_or_else(not_encrypted)?;
    Ok(TableDecryption { key, salt, cipher })
}

pub(crate) fn no_table(why: String) -> Error {
    Error::new(ErrorKind::Invalid, format!("the file is not a far table: {why}"))
}
