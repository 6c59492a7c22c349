//! Encrypted tables: the key of an opened one, and which keys go to which node.

use crate::error::{Error, ErrorKind};
use crate::node_links::NodeLinks;
use crate::session::Session;
use farpool_sealing::{ChunkSeals, SALT_BYTES, SealKey, TableSeals};
use farpool_transport::Reach;
use farpool_wire::List;
use farpool_wire::control::{ScanKey, ScanOpening, ScanSeals};
use std::sync::Arc;

/// What opens a table that was opened with its owner's key.
pub(super) struct TableSeal {
    pub(super) key: SealKey,
    pub(super) salt: [u8; SALT_BYTES],
    pub(super) seals: TableSeals,
}

/// What the scans of a query have to do with keys.
#[derive(Clone, Default)]
pub(super) struct ScanKeys {
    /// Of an encrypted table, and which of its columns are read.
    pub(super) table: Option<(Arc<TableSeal>, Vec<u16>)>,
    /// Whether chunks are to be sealed.
    pub(super) seal_answers: bool,
}

impl ScanKeys {
    /// The keys for one scan at a node, and what opens its chunks if they are to be sealed.
    ///
    /// Errors: [`ErrorKind::Refused`] if somebody could read them on the way.
    pub(super) fn for_scan(
        &self,
        session: &Session,
        node: &NodeLinks,
    ) -> Result<(ScanSeals, Option<ChunkSeals>), Error> {
        if self.table.is_none() && !self.seal_answers {
            return Ok((ScanSeals::default(), None));
        }
        // The way inside of this machine is shared memory.
        if !node.is_shared() {
            let way = Reach { tls: session.options.tls.clone(), plaintext: session.options.plaintext };
            check_way(way, &node.info.name, &node.info.address)?;
        }
        let too_many = |error: farpool_wire::WireError| Error::new(ErrorKind::Invalid, error.to_string());
        let opening = match &self.table {
            Some((seal, columns)) => vec![ScanOpening {
                key: ScanKey(*seal.key.bytes()),
                salt: seal.salt,
                columns: List::new(columns.clone()).map_err(too_many)?,
            }],
            None => Vec::new(),
        };
        let (mut answers, mut opens) = (Vec::new(), None);
        if self.seal_answers {
            // Of this scan alone: numbers of chunks are nonces.
            let mut random = ScanKey([0; _]);
            let no_random = |error: std::io::Error| Error::new(ErrorKind::Refused, error.to_string());
            session.host.random(&mut random.0).map_err(no_random)?;
            opens = Some(ChunkSeals::new(&SealKey::new(random.0)));
            answers.push(random);
        }
        let opening = List::new(opening).map_err(too_many)?;
        Ok((ScanSeals { opening, answers: List::new(answers).map_err(too_many)? }, opens))
    }
}

/// Keys go to this machine and through TLS. What was permitted in plaintext does not permit this.
fn check_way(way: Reach, name: &str, address: &str) -> Result<(), Error> {
    Reach { plaintext: false, ..way }.resolve(address).map(drop).map_err(|_| {
        let message = format!(
            "no key is sent to node {name} ({address}), as everybody on the way could read it: its row groups are \
             fetched instead; with certificates (`tls`) the query runs there"
        );
        Error::new(ErrorKind::Refused, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_go_to_this_machine_and_nowhere_else_in_plaintext_whatever_was_permitted() {
        let permitted = || Reach { tls: None, plaintext: true };
        assert!(check_way(permitted(), "n1", "127.0.0.1:7701").is_ok());
        assert!(check_way(permitted(), "n1", "[::1]:7701").is_ok());
        let refused = check_way(permitted(), "n1", "192.0.2.7:7701").expect_err("beyond this machine");
        assert_eq!(refused.kind(), ErrorKind::Refused);
        assert!(refused.to_string().contains("n1 (192.0.2.7:7701)"), "{refused}");
    }
}
