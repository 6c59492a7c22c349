//! Tickets: promises of a node's regions to a session, made by the broker. They are signed, so that a client cannot
//! make its own, and timed, so that the regions of a forgotten one become free.
//!
//! The node makes the signing key for one life (one run of its process) and tells it to the broker. So a ticket proves
//! that the broker granted it for this life of the node. A ticket's time is that of the broker's clock, which the node
//! knows from rulings, the answers to its reports. The node takes the time in a ruling as that at which it sent its
//! report. Its view of the clock is therefore ahead by at most the journey of the report, and a ticket may be refused
//! that much too early.
//!
//! Orders to make copies of published files are signed with the same key. So a broker accepts the report of an order
//! that an earlier leader gave.

use farpool_wire::Name;
use farpool_wire::codec::Field;
use farpool_wire::control::{SignedRepair, Ticket};
use farpool_wire::ids::{Secret, SessionId};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// Key that signs the tickets for one life (run of the process) of a node.
pub type TicketKey = [u8; 32];

fn keyed(key: &[u8; 32], message: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(message);
    mac
}

/// Message that ends with its signature.
pub trait Signed: Field {
    /// Text in front of the signed bytes, so that no message passes for one of another kind.
    const KIND: &'static [u8];

    /// Returns the signature.
    fn mac(&self) -> &[u8; 32];

    /// Sets the signature.
    fn set_mac(&mut self, mac: [u8; 32]);
}

impl Signed for Ticket {
    // Tickets are as the first version of the protocol has them.
    const KIND: &'static [u8] = b"";

    fn mac(&self) -> &[u8; 32] {
        &self.mac
    }

    fn set_mac(&mut self, mac: [u8; 32]) {
        self.mac = mac;
    }
}

impl Signed for SignedRepair {
    const KIND: &'static [u8] = b"repair";

    fn mac(&self) -> &[u8; 32] {
        &self.mac
    }

    fn set_mac(&mut self, mac: [u8; 32]) {
        self.mac = mac;
    }
}

fn signed_bytes<T: Signed>(message: &T) -> Vec<u8> {
    let mut bytes = T::KIND.to_vec();
    message.put(&mut bytes);
    bytes.truncate(bytes.len() - size_of::<[u8; 32]>());
    bytes
}

/// Signs a ticket or an order.
pub fn sign<T: Signed>(message: &mut T, key: &TicketKey) {
    message.set_mac(keyed(key, &signed_bytes(message)).finalize().into_bytes().into());
}

/// Reports whether the signature is right, and compares in constant time.
pub fn is_genuine<T: Signed>(message: &T, key: &TicketKey) -> bool {
    keyed(key, &signed_bytes(message)).verify_slice(message.mac()).is_ok()
}

/// Returns the digest of a session's secret, which a node keeps in place of the secret.
pub fn secret_digest(secret: Secret) -> u128 {
    let digest = Sha256::digest(secret.0.to_le_bytes());
    let mut first = [0; 16];
    first.copy_from_slice(&digest[..16]);
    u128::from_le_bytes(first)
}

/// Returns the secret of a tenant's session. It is derived from the broker's own key, so a restarted broker can
/// compute it without having stored any session. It proves nothing for another tenant.
pub fn session_secret(broker_key: &[u8; 32], session: SessionId, tenant: &Name) -> Secret {
    let mut message = session.0.to_le_bytes().to_vec();
    message.extend_from_slice(tenant.as_bytes());
    let full = keyed(broker_key, &message).finalize().into_bytes();
    let mut first = [0; 16];
    first.copy_from_slice(&full[..16]);
    Secret(u128::from_le_bytes(first))
}

/// Returns the id of the node with this name.
pub fn node_id(name: &str) -> farpool_wire::NodeId {
    let digest = Sha256::digest(name.as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    farpool_wire::NodeId(u64::from_le_bytes(first))
}
