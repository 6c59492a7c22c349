//! Tickets: promises of a node's regions to a session, made by the broker. They are signed, so that a client cannot
//! make its own, and timed, so that the regions of a forgotten one become free.
//!
//! The node makes the signing key for one life (one run of its process) and tells it to the broker. So a ticket proves
//! that the broker granted it for this life of the node. A ticket's time is that of the broker's clock, which the node
//! knows from rulings, the answers to its reports. The node takes the time in a ruling as that at which it sent its
//! report. Its view of the clock is therefore ahead by at most the journey of the report, and a ticket may be refused
//! that much too early.

use farpool_wire::Name;
use farpool_wire::codec::Field;
use farpool_wire::control::Ticket;
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

fn signed_bytes(ticket: &Ticket) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(256);
    ticket.put(&mut bytes);
    bytes.truncate(bytes.len() - ticket.mac.len());
    bytes
}

/// Signs a ticket.
pub fn sign(ticket: &mut Ticket, key: &TicketKey) {
    ticket.mac = keyed(key, &signed_bytes(ticket)).finalize().into_bytes().into();
}

/// Reports whether the signature is right, and compares in constant time.
pub fn is_genuine(ticket: &Ticket, key: &TicketKey) -> bool {
    keyed(key, &signed_bytes(ticket)).verify_slice(&ticket.mac).is_ok()
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
