//! Encrypted tables: what encrypts a file that is written, the key of an opened table, and which keys a node receives.

use crate::layout::EncodedGroup;
use farpool_encryption::{
    BufferPlace, ChunkCipher, EncryptionKey, KEY_BYTES, SALT_BYTES, TAG_BYTES, TableCipher, TableKey,
};
use farpool_files::beneath::{NodeLinks, Session, session_of_pool};
use farpool_files::{Error, ErrorKind, Pool};
use farpool_wire::control::{ScanKey, ScanOpening, ScanSeals};
use farpool_wire::{List, mutant};
use std::net::SocketAddr;

/// Encryption of one file of a table: its cipher, its salt, and the value that identifies the key.
pub(crate) struct TableEncryption {
    pub(crate) cipher: TableCipher,
    pub(crate) salt: [u8; SALT_BYTES],
    pub(crate) check: [u8; KEY_BYTES],
}

impl TableEncryption {
    /// Makes the encryption of one file, with a random salt.
    pub(crate) fn of(pool: &Pool, key: &TableKey) -> Result<TableEncryption, Error> {
        let mut salt = [0; SALT_BYTES];
        let no_random = |error: std::io::Error| Error::new(ErrorKind::Refused, error.to_string());
        session_of_pool(pool).host().random(&mut salt).map_err(no_random)?;
        if mutant!(SaltReused) {
            salt = [7; SALT_BYTES];
        }
        let (key, check) = key.of_table(&salt);
        Ok(TableEncryption { cipher: TableCipher::new(&key, salt), salt, check })
    }

    /// Encrypts all buffers of a row group and stores their tags. `position` is the number of its first
    /// row in the file.
    pub(crate) fn encrypt(&self, encoded: &mut EncodedGroup, position: u64) {
        // The columns share one buffer in the row layout, which each column lists.
        let columns = if encoded.group.rows_buffer().is_some() { 1 } else { encoded.group.columns.len() };
        for (column, chunk) in (0u16..).zip(&encoded.group.columns[..columns]) {
            for (buffer, at) in (0u8..).zip(&chunk.buffers) {
                let bytes = &mut encoded.bytes[at.offset as usize..][..at.bytes as usize + TAG_BYTES];
                let (bytes, tag) = bytes.split_at_mut(at.bytes as usize);
                tag.copy_from_slice(&self.cipher.encrypt(BufferPlace { position, column, buffer }, bytes));
            }
        }
    }
}

/// The key of an encrypted table that was opened with it, and what decrypts the buffers.
pub(crate) struct TableDecryption {
    pub(crate) key: EncryptionKey,
    pub(crate) salt: [u8; SALT_BYTES],
    pub(crate) cipher: TableCipher,
}

/// Keys that the scans of a query need.
#[derive(Clone, Default)]
pub(crate) struct ScanKeys {
    /// True if the table is encrypted: each of its files has a key of its own.
    pub(crate) is_encrypted: bool,
    /// True if nodes encrypt the results that they send.
    pub(crate) encrypt_answers: bool,
}

impl ScanKeys {
    /// Checks that nobody on the network can read a key sent to this node.
    ///
    /// Errors: [`ErrorKind::Refused`] if somebody could.
    pub(crate) fn check_way(&self, session: &Session, node: &NodeLinks) -> Result<(), Error> {
        // A shared link is memory of this machine, so its bytes never leave the machine.
        let is_safe = node.is_shared() || session.options().tls.is_some() || is_loopback(&node.info.address);
        match is_safe || (!self.is_encrypted && !self.encrypt_answers) {
            true => Ok(()),
            false => Err(not_sent(&node.info.name, &node.info.address)),
        }
    }

    /// Returns the keys to send with the request that opens one scan at a node, over row groups of one file if the
    /// table is encrypted, and what decrypts the results of that scan if they are encrypted. `columns` are the numbers
    /// in the file of the columns that are read.
    ///
    /// Errors: [`ErrorKind::Refused`] if somebody on the network could read the keys.
    pub(crate) fn for_scan(
        &self,
        session: &Session,
        node: &NodeLinks,
        file: Option<&TableDecryption>,
        columns: &[u16],
    ) -> Result<(ScanSeals, Option<ChunkCipher>), Error> {
        self.check_way(session, node)?;
        let too_many = |error: farpool_wire::WireError| Error::new(ErrorKind::Invalid, error.to_string());
        let opening = match file {
            Some(decryption) => vec![ScanOpening {
                key: ScanKey(*decryption.key.bytes()),
                salt: decryption.salt,
                columns: List::new(columns.to_vec()).map_err(too_many)?,
            }],
            None => Vec::new(),
        };
        let (mut answers, mut cipher) = (Vec::new(), None);
        if self.encrypt_answers {
            // Each scan has a key of its own, because the number of a chunk (one reply with results) is its nonce.
            let mut random = ScanKey([0; _]);
            let no_random = |error: std::io::Error| Error::new(ErrorKind::Refused, error.to_string());
            session.host().random(&mut random.0).map_err(no_random)?;
            cipher = Some(ChunkCipher::new(&EncryptionKey::new(random.0)));
            answers.push(random);
        }
        let opening = List::new(opening).map_err(too_many)?;
        Ok((ScanSeals { opening, answers: List::new(answers).map_err(too_many)? }, cipher))
    }
}

/// Reports whether an address is an IP address of the loopback interface. A host name never is: it may resolve to
/// another address now than when the link was connected.
fn is_loopback(address: &str) -> bool {
    address.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback())
}

fn not_sent(name: &str, address: &str) -> Error {
    let message = format!(
        "no key was sent to node {name} ({address}), because the connection is not encrypted: its row groups were \
         fetched instead; with certificates (`tls`) the query runs there"
    );
    Error::new(ErrorKind::Refused, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_go_to_addresses_of_this_machine_and_nowhere_else_without_tls() {
        assert!(is_loopback("127.0.0.1:7701") && is_loopback("[::1]:7701"));
        for address in
            ["192.0.2.7:7701", "localhost:7701", "127.0.0.1.example:7701", "0.0.0.0:7701", "127.0.0.1"]
        {
            assert!(!is_loopback(address), "{address}");
        }
    }
}
