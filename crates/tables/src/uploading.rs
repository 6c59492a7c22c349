//! Keys and filters of semi-joins, which nodes get before they run the scans of a query.

use crate::joining::Upload;
use crate::shipping::{Share, Shipping, deadline, unexpected};
use farpool_files::Error;
use farpool_files::beneath::{NodeLinks, Repeat, Session};
use farpool_transport::LinkError;
use farpool_wire::control::*;
use farpool_wire::limits::LOOKUP_PART_BYTES_MAX;
use farpool_wire::{Bytes, Handle, Reply, Request};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Shipping {
    /// Sends the keys and filters of the semi-joins to a node, and adds their handles to `lookups`.
    pub(crate) fn put_lookups(
        &self,
        session: &Session,
        node: &Arc<NodeLinks>,
        lookups: &mut Vec<Handle>,
    ) -> Result<(), Error> {
        if self.uploads.is_empty() {
            return Ok(());
        }
        let of_node = |share: &&Share| Arc::ptr_eq(&share.node, node);
        let has_others = self.shares.iter().filter(of_node).all(|share| share.has_others);
        let connected = deadline(session, has_others || self.is_protected);
        let deadline = || deadline(session, has_others);
        node.converse(connected, Repeat::Harmful, |link| {
            for Upload { kind, bytes } in &*self.uploads {
                let mut lookup = Handle(0);
                // Sends one empty part if there are no bytes.
                let rest = bytes.get(1..).unwrap_or_default();
                let ends = (0..=rest.len()).step_by(LOOKUP_PART_BYTES_MAX);
                for start in ends {
                    let end = bytes.len().min(start + LOOKUP_PART_BYTES_MAX);
                    let part = Bytes::new(bytes[start..end].to_vec()).map_err(LinkError::Protocol)?;
                    let put = PutLookup { lookup, kind: *kind, bytes: bytes.len() as u32, part };
                    let put = Request::PutLookup(put);
                    let answer = match self.ask(session, node, has_others, link, &put, deadline())? {
                        Reply::PutLookup(answer) => answer,
                        other => return Err(unexpected(&other)),
                    };
                    self.uploaded.fetch_add((end - start) as u64, Ordering::Relaxed);
                    if lookup == Handle(0) {
                        lookups.push(answer.lookup);
                    }
                    lookup = answer.lookup;
                }
            }
            Ok(())
        })
    }

    /// Drops the keys and filters at a node. Errors do not matter: the node drops them when their connection ends.
    pub(crate) fn drop_lookups(&self, session: &Session, node: &NodeLinks, lookups: &[Handle]) {
        if lookups.is_empty() || node.is_suspect() {
            return;
        }
        let deadline = session.request_deadline();
        let _ = node.converse(deadline, Repeat::Harmful, |link| {
            for lookup in lookups {
                link.call(&Request::DropLookup(LookupId { lookup: *lookup }), deadline)?;
            }
            Ok(())
        });
    }
}
