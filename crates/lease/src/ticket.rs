//! Tickets: signed so that a client cannot write its own, timed so that forgotten ones free their bytes.
//!
//! The key is made by the node for one life and told to the broker, so a ticket proves both that the broker
//! granted it and that this life of the node is meant. Its time is the broker's clock, which the node knows
//! from rulings, late by at most their travel time. That lateness costs nothing: expiry only lets the broker
//! promise the bytes anew, and the node refuses what it does not have.

use farpool_wire::Name;
use farpool_wire::codec::Field;
use farpool_wire::control::Ticket;
use farpool_wire::ids::{Secret, SessionId};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// Key of one node's life.
pub type TicketKey = [u8; 32];

fn keyed(key: &[u8; 32], message: &[u8]) -> Hmac<Sha256> {
    // HMAC takes keys of any length, so a key of 32 bytes cannot be refused.
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

/// Fills in the signature.
pub fn sign(ticket: &mut Ticket, key: &TicketKey) {
    ticket.mac = keyed(key, &signed_bytes(ticket)).finalize().into_bytes().into();
}

/// Whether the signature fits, compared in constant time.
pub fn is_genuine(ticket: &Ticket, key: &TicketKey) -> bool {
    keyed(key, &signed_bytes(ticket)).verify_slice(&ticket.mac).is_ok()
}

/// What a node keeps of a session's secret.
pub fn secret_digest(secret: Secret) -> u128 {
    let digest = Sha256::digest(secret.0.to_le_bytes());
    let mut first = [0; 16];
    first.copy_from_slice(&digest[..16]);
    u128::from_le_bytes(first)
}

/// The secret of a tenant's session, derived from the broker's own key, so that a restarted broker knows it
/// again without having stored any session. To another tenant it proves nothing.
pub fn session_secret(broker_key: &[u8; 32], session: SessionId, tenant: &Name) -> Secret {
    let mut message = session.0.to_le_bytes().to_vec();
    message.extend_from_slice(tenant.as_bytes());
    let full = keyed(broker_key, &message).finalize().into_bytes();
    let mut first = [0; 16];
    first.copy_from_slice(&full[..16]);
    Secret(u128::from_le_bytes(first))
}

/// The id of the node of this name.
pub fn node_id(name: &str) -> farpool_wire::NodeId {
    let digest = Sha256::digest(name.as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    farpool_wire::NodeId(u64::from_le_bytes(first))
}
