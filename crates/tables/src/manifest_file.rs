//! Files of a manifest: the root and its pages, plain or encrypted.
//!
//! The idea: each file of an encrypted manifest has a salt of its own, so its own key, like each file with rows. What
//! is encrypted is bound to its place: a root to the columns and sums that stand before it unencrypted, with the number
//! of its snapshot, and a page to its table and part. The entry of a page names the page's salt and sums. So no file
//! can stand in for another, and none can be changed.

use crate::footer::{Form, Trailer};
use crate::manifest::{Entries, PageRef, Root, Salt, Totals};
use crate::opened_files::no_table;
use farpool_encryption::{KEY_BYTES, TableCipher, TableKey};
use farpool_files::{Error, ErrorKind};
use farpool_wire::codec::{Cursor, Field};
use farpool_wire::control::PartAt;
use farpool_wire::{TableId, WireError};

/// Returns the bytes of a root. `lock` is the key of an encrypted table, and a salt that was drawn for this file.
pub(crate) fn encode_root(root: &Root, lock: Option<(&TableKey, Salt)>) -> Vec<u8> {
    let (mut head, mut entries) = (Vec::new(), Vec::new());
    root.put_head(&mut head);
    root.entries.put(&root.bounded_columns(), &mut entries);
    let data = root_data(&head);
    encode(lock, &head, entries, &data)
}

/// Returns the bytes of a page that becomes a part of the table of `root`; see [`encode_root`].
pub(crate) fn encode_page(
    root: &Root,
    at: PartAt,
    entries: &Entries,
    lock: Option<(&TableKey, Salt)>,
) -> Vec<u8> {
    let mut body = Vec::new();
    entries.put(&root.bounded_columns(), &mut body);
    encode(lock, &[], body, &page_data(root.table, at))
}

/// Returns a root with its totals, and whether it is encrypted, and there is no key: then the root has no entries.
/// `bytes` are those before the trailer.
///
/// Errors: [`ErrorKind::Invalid`] if the key is wrong, or the file is no root; [`ErrorKind::Refused`] if it was changed
/// since it was encrypted.
pub(crate) fn decode_root(
    trailer: Trailer,
    bytes: &[u8],
    key: Option<&TableKey>,
) -> Result<(Root, Totals, bool), Error> {
    let body = Body::of(trailer, bytes, key, None)?;
    let mut from = Cursor::new(&body.bytes);
    let (mut root, totals) = Root::take_head(&mut from).map_err(invalid)?;
    let head = body.bytes[..body.bytes.len() - from.left()].to_vec();
    let encrypted = from.rest().to_vec();
    let Some(plain) = body.decrypt(encrypted, &root_data(&head))? else {
        return Ok((root, totals, true));
    };
    let mut from = Cursor::new(&plain);
    root.entries = Entries::take(&root.bounded_columns(), &mut from).map_err(invalid)?;
    from.finish().map_err(invalid)?;
    match root.entries.totals() == totals {
        true => Ok((root, totals, false)),
        false => Err(no_table("the sums of its manifest are wrong".to_owned())),
    }
}

/// Returns the entries of a page, which has to be the one that `page` names; see [`decode_root`].
///
/// Errors: those of [`decode_root`], or that a key is needed.
pub(crate) fn decode_page(
    root: &Root,
    page: &PageRef,
    trailer: Trailer,
    bytes: &[u8],
    key: Option<&TableKey>,
) -> Result<Entries, Error> {
    let mut body = Body::of(trailer, bytes, key, Some(&page.salt))?;
    let encrypted = std::mem::take(&mut body.bytes);
    let plain = body.decrypt(encrypted, &page_data(root.table, page.at))?.ok_or_else(needs_key)?;
    let mut from = Cursor::new(&plain);
    let entries = Entries::take(&root.bounded_columns(), &mut from).and_then(|entries| {
        from.finish()?;
        Ok(entries)
    });
    let entries = entries.map_err(invalid)?;
    match (entries.height(), entries.totals()) == (page.height, page.totals) {
        true => Ok(entries),
        false => Err(no_table("a page of it is not the one that the page above names".to_owned())),
    }
}

/// Returns the error of an encrypted table that is opened without its key.
pub(crate) fn needs_key() -> Error {
    Error::new(ErrorKind::Invalid, "the table is encrypted, and no key was given to open it")
}

fn invalid(error: WireError) -> Error {
    no_table(format!("its manifest is invalid: {error}"))
}

fn root_data(head: &[u8]) -> Vec<u8> {
    [b"root", head].concat()
}

/// Returns what binds a page to its place.
fn page_data(table: TableId, at: PartAt) -> Vec<u8> {
    let mut data = b"page".to_vec();
    table.put(&mut data);
    at.put(&mut data);
    data
}

/// Returns the bytes of a file: `head`, and `body`, which is encrypted and bound to `data` if there is a key.
fn encode(lock: Option<(&TableKey, Salt)>, head: &[u8], mut body: Vec<u8>, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some((key, salt)) = lock {
        let (key, check) = key.of_table(&salt);
        TableCipher::new(&key, salt).encrypt_statistics(data, &mut body);
        salt.put(&mut bytes);
        check.put(&mut bytes);
    }
    bytes.extend_from_slice(head);
    bytes.append(&mut body);
    let footer_crc = crc32c::crc32c(&bytes);
    let form = if lock.is_some() { Form::EncryptedManifest } else { Form::Manifest };
    Trailer { footer_offset: 0, footer_bytes: bytes.len() as u32, footer_crc, form }.put(&mut bytes);
    bytes
}

/// Body of a file, behind its salt and its check.
struct Body {
    bytes: Vec<u8>,
    cipher: Option<TableCipher>,
    is_encrypted: bool,
}

impl Body {
    /// Takes salt and check of the body of an encrypted table, and compares them with the key and the expected salt.
    fn of(
        trailer: Trailer,
        bytes: &[u8],
        key: Option<&TableKey>,
        expected: Option<&Salt>,
    ) -> Result<Body, Error> {
        if !trailer.form.is_manifest() {
            return Err(no_table("it has no manifest".to_owned()));
        }
        if !trailer.form.is_encrypted() {
            return match key {
                Some(_) => {
                    let message = "a key was given, but the table is not encrypted";
                    Err(Error::new(ErrorKind::Invalid, message))
                }
                None => Ok(Body { bytes: bytes.to_vec(), cipher: None, is_encrypted: false }),
            };
        }
        let mut from = Cursor::new(bytes);
        let salt = Salt::take(&mut from).map_err(invalid)?;
        let check = <[u8; KEY_BYTES]>::take(&mut from).map_err(invalid)?;
        if expected.is_some_and(|expected| *expected != salt) {
            return Err(Error::new(ErrorKind::Refused, "a page of the manifest was exchanged"));
        }
        let cipher = match key.map(|key| key.of_table(&salt)) {
            Some((_, other)) if other != check => {
                let message = "the key is wrong: the table was encrypted with another one";
                return Err(Error::new(ErrorKind::Invalid, message));
            }
            Some((key, _)) => Some(TableCipher::new(&key, salt)),
            None => None,
        };
        Ok(Body { bytes: from.rest().to_vec(), cipher, is_encrypted: true })
    }

    /// Decrypts bytes that are bound to `data`. `None` if the table is encrypted and there is no key.
    fn decrypt(&self, mut bytes: Vec<u8>, data: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        if !self.is_encrypted {
            return Ok(Some(bytes));
        }
        let Some(cipher) = &self.cipher else { return Ok(None) };
        let changed = |_| Error::new(ErrorKind::Refused, "the manifest was changed since it was encrypted");
        cipher.decrypt_statistics(data, &mut bytes).map_err(changed)?;
        Ok(Some(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrangement::Arrangement;
    use crate::layout::TableLayout;
    use crate::manifest::DataFile;
    use crate::schema_mapping::FieldIds;
    use arrow_schema::{DataType, Field as ArrowField, Schema};
    use farpool_encryption::SALT_BYTES;
    use farpool_wire::CommitId;
    use std::sync::Arc;

    const LOCK: Salt = [1; SALT_BYTES];

    fn key() -> TableKey {
        TableKey::new([5; 16])
    }

    fn root(snapshot: u64, entries: Entries) -> Root {
        Root {
            table: TableId(11),
            snapshot,
            schema: Arc::new(Schema::new(vec![ArrowField::new("id", DataType::Int64, false)])),
            field_ids: FieldIds::of_new_table(1),
            layout: TableLayout::Columns,
            bounded: vec![0],
            arrangement: Arrangement::default(),
            entries,
        }
    }

    fn files(commit: u64) -> Entries {
        let file = |index| DataFile {
            at: PartAt { commit: CommitId(commit), index },
            added: commit,
            rows: 10,
            bytes: 1_000,
            groups: 4,
            columns: 0,
            left_out: vec![2],
            salt: [index as u8; SALT_BYTES],
            bounds: vec![None],
        };
        Entries::Files((0..3).map(file).collect())
    }

    /// Takes a file apart as a reader does whose checksums are all right: whoever changes a file can make them so.
    fn parted(bytes: &[u8]) -> (Trailer, Vec<u8>) {
        let (body, trailer) = bytes.split_at(bytes.len() - Trailer::BYTES);
        let trailer = Trailer::take(trailer.try_into().expect("its length"), bytes.len() as u64);
        (trailer.expect("a trailer"), body.to_vec())
    }

    #[test]
    fn encrypted_root_of_which_any_byte_was_changed_is_refused() {
        let written = root(12, files(3));
        let (trailer, bytes) = parted(&encode_root(&written, Some((&key(), LOCK))));
        let (read, _, is_locked) = decode_root(trailer, &bytes, Some(&key())).expect("as it was written");
        assert!(read == written && !is_locked);
        for place in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[place] ^= 1 << bit;
                let read = decode_root(trailer, &changed, Some(&key()));
                assert!(
                    read.is_err(),
                    "bit {bit} of byte {place} was changed: {:?}",
                    read.map(|read| read.0)
                );
            }
        }
        for length in 0..bytes.len() {
            assert!(decode_root(trailer, &bytes[..length], Some(&key())).is_err(), "{length} bytes are left");
        }
        // Entries of one snapshot do not decrypt behind the head of another, even with the salt of this one.
        let (_, other) = parted(&encode_root(&root(13, files(3)), Some((&key(), LOCK))));
        let mut head = Vec::new();
        written.put_head(&mut head);
        let behind = KEY_BYTES + SALT_BYTES + head.len();
        let mixed = [&bytes[..behind], &other[behind..]].concat();
        let error = decode_root(trailer, &mixed, Some(&key())).expect_err("of two snapshots");
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    }

    #[test]
    fn encrypted_page_that_was_changed_or_stands_in_for_another_is_refused() {
        let of = root(12, Entries::Files(Vec::new()));
        let at = |index| PartAt { commit: CommitId(3), index };
        let page = |index, salt, entries: &Entries| {
            let (height, totals) = (entries.height(), entries.totals());
            PageRef { at: at(index), added: 3, salt, height, totals }
        };
        let entries = files(3);
        let named = page(7, LOCK, &entries);
        let (trailer, bytes) = parted(&encode_page(&of, at(7), &entries, Some((&key(), LOCK))));
        let read =
            |of: &Root, named: &PageRef, bytes: &[u8]| decode_page(of, named, trailer, bytes, Some(&key()));
        assert_eq!(read(&of, &named, &bytes).expect("as it was written"), entries);
        for place in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[place] ^= 0x10;
            assert!(read(&of, &named, &changed).is_err(), "byte {place} was changed");
        }
        let refused = |read: Result<Entries, Error>, why: &str| {
            let error = read.expect_err(why);
            assert!(error.kind() == ErrorKind::Refused, "{why}: {error}");
        };
        // The same salt twice is what only somebody without the key would write.
        refused(read(&of, &page(8, LOCK, &entries), &bytes), "at the place of another part");
        refused(read(&Root { table: TableId(12), ..of.clone() }, &named, &bytes), "in another table");
        refused(read(&of, &page(7, [2; SALT_BYTES], &entries), &bytes), "an older page of this part");
        let fewer = Totals { rows: 29, ..entries.totals() };
        let error = read(&of, &PageRef { totals: fewer, ..named.clone() }, &bytes).expect_err("other sums");
        assert!(error.to_string().contains("not the one that the page above names"), "{error}");
        // A plain page has no salt, so one that replaces an encrypted page is opened with a key that does not fit.
        let (plain, bytes) = parted(&encode_page(&of, at(7), &entries, None));
        let error = decode_page(&of, &named, plain, &bytes, Some(&key())).expect_err("a plain page");
        assert!(error.to_string().contains("not encrypted"), "{error}");
    }
}
