//! The times everybody lives by. The broker's settings rule; nodes and clients are told.

/// Shortest lease: below it a renewal every third of it would not survive one scheduling hiccup.
pub const LEASE_TTL_MS_MIN: u32 = 300;
/// Longest lease: what a crashed client can keep others from.
pub const LEASE_TTL_MS_MAX: u32 = 600_000;
/// Longest grace.
pub const GRACE_MS_MAX: u32 = 600_000;

/// Times of leases, tickets and heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseSettings {
    /// A lease not renewed for this long expires. Default 5 s; 300 ms to 600 s.
    pub lease_ttl_ms: u32,
    /// An expired lease keeps its bytes, unusable until renewed, for this long. Default 2 s; 0 to 600 s.
    pub grace_ms: u32,
    /// A ticket not redeemed for this long is void. Default 10 s.
    pub ticket_ttl_ms: u32,
    /// How often a node reports. Default 250 ms.
    pub heartbeat_ms: u32,
    /// A node not heard of for this long gets no new tickets. Default 1.5 s.
    pub node_silence_ms: u32,
}

impl Default for LeaseSettings {
    fn default() -> Self {
        LeaseSettings {
            lease_ttl_ms: 5_000,
            grace_ms: 2_000,
            ticket_ttl_ms: 10_000,
            heartbeat_ms: 250,
            node_silence_ms: 1_500,
        }
    }
}

impl LeaseSettings {
    /// Every setting that is out of its range, as a sentence each; empty if all is well.
    pub fn mistakes(&self) -> Vec<String> {
        let mut found = Vec::new();
        if !(LEASE_TTL_MS_MIN..=LEASE_TTL_MS_MAX).contains(&self.lease_ttl_ms) {
            found.push(format!(
                "the lease time is {} ms; {LEASE_TTL_MS_MIN} to {LEASE_TTL_MS_MAX} ms are permitted",
                self.lease_ttl_ms
            ));
        }
        if self.grace_ms > GRACE_MS_MAX {
            found.push(format!("the grace is {} ms; 0 to {GRACE_MS_MAX} ms are permitted", self.grace_ms));
        }
        if self.heartbeat_ms == 0 || self.node_silence_ms < 2 * self.heartbeat_ms {
            found.push(format!(
                "a node is silent after {} ms but reports every {} ms; at least twice that is permitted",
                self.node_silence_ms, self.heartbeat_ms
            ));
        }
        found
    }
}
