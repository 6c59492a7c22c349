//! Times of leases, and quotas of tenants. The broker's settings rule; it tells nodes and clients the times.

use farpool_wire::Name;
use farpool_wire::limits::{REGION_BYTES_MIN, TENANT_BYTES_MAX, TENANTS_MAX};
use std::collections::BTreeMap;

/// Shortest lease, in ms. Clients renew three times a lease; if it were shorter, one delay by the scheduler
/// would end it.
pub const LEASE_TTL_MS_MIN: u32 = 300;
/// Longest lease, in ms. It bounds how long a crashed client keeps regions from others.
pub const LEASE_TTL_MS_MAX: u32 = 600_000;
/// Longest grace, in ms: the time for which an expired lease keeps its bytes.
pub const GRACE_MS_MAX: u32 = 600_000;

/// Times of leases, tickets and reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseSettings {
    /// Time without a renewal after which a lease expires, in ms. Default 5 s; 300 ms to 600 s.
    pub lease_ttl_ms: u32,
    /// Time for which an expired lease keeps its bytes, unusable until it is renewed, in ms. Default 2 s; 0 to 600 s.
    pub grace_ms: u32,
    /// Time after which a ticket that was not redeemed is void, in ms. Default 10 s; at least twice the heartbeat.
    pub ticket_ttl_ms: u32,
    /// Interval between two reports of a node, in ms. Default 250 ms.
    pub heartbeat_ms: u32,
    /// Time without a report after which a node gets no new tickets, in ms. Default 1.5 s.
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
    /// Returns a sentence for every setting that is out of its range; empty if all are well.
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
                "a node counts as silent after {} ms but reports every {} ms; use at least two report intervals",
                self.node_silence_ms, self.heartbeat_ms
            ));
        }
        // A node extrapolates the broker's clock between two reports. If its own clock ran ahead meanwhile, tickets
        // that last less than two intervals could be void when they arrive.
        if self.ticket_ttl_ms < 2 * self.heartbeat_ms {
            found.push(format!(
                "a ticket expires after {} ms but nodes learn the broker's time every {} ms; use at least two such \
                 intervals",
                self.ticket_ttl_ms, self.heartbeat_ms
            ));
        }
        found
    }
}

/// Limits on what each tenant may hold: regions leased, sealed (immutable) or owned by published files, and regions
/// promised by tickets that are not redeemed yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quotas {
    /// Quota of each tenant that `by_tenant` does not name, in bytes; `None`: no limit. The administrator has
    /// no limit unless `by_tenant` names it.
    pub default_bytes: Option<u64>,
    /// Quotas of single tenants, in bytes.
    pub by_tenant: BTreeMap<Name, u64>,
}

impl Quotas {
    /// Returns the bytes that this tenant may hold; `None`: no limit.
    pub fn of(&self, tenant: &Name) -> Option<u64> {
        let default_bytes = if crate::tenant::is_admin(tenant) { None } else { self.default_bytes };
        self.by_tenant.get(tenant).copied().or(default_bytes)
    }

    /// Returns a sentence for every quota that is out of range. Empty if none is.
    pub fn mistakes(&self) -> Vec<String> {
        let mut found = Vec::new();
        // A smaller quota would not hold one region of the smallest size. An operator who wants a tenant to hold
        // nothing gives it no certificate.
        let is_small = |bytes: u64| bytes < REGION_BYTES_MIN;
        if let Some(bytes) = self.default_bytes.filter(|bytes| is_small(*bytes)) {
            found
                .push(format!("the default quota is {bytes} B; at least {REGION_BYTES_MIN} B are permitted"));
        }
        for (tenant, bytes) in &self.by_tenant {
            if is_small(*bytes) {
                found.push(format!(
                    "the quota of {tenant} is {bytes} B; at least {REGION_BYTES_MIN} B are permitted"
                ));
            }
            if tenant.len() > TENANT_BYTES_MAX {
                found.push(format!(
                    "the tenant {tenant} has a name of {} bytes; 1 to {TENANT_BYTES_MAX} are permitted",
                    tenant.len()
                ));
            }
        }
        if self.by_tenant.len() > TENANTS_MAX {
            found.push(format!(
                "{} tenants have a quota of their own; at most {TENANTS_MAX} are permitted",
                self.by_tenant.len()
            ));
        }
        found
    }
}

/// Times for which snapshots of tables are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotSettings {
    /// Snapshots of a table that are kept beside the latest one, at most, and those that sessions hold. Default 100.
    pub count_max: u32,
    /// Time after which a snapshot that was replaced ends, unless a session holds it, in ms. Default 10 min.
    pub age_ms_max: u64,
    /// Time after which it ends even if a session holds it, in ms. Default 24 h; at least as long as the age.
    pub hold_ms_max: u64,
}

impl Default for SnapshotSettings {
    fn default() -> Self {
        SnapshotSettings { count_max: 100, age_ms_max: 600_000, hold_ms_max: 86_400_000 }
    }
}

impl SnapshotSettings {
    /// Returns a sentence for every setting that is out of its range; empty if all are well.
    pub fn mistakes(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.hold_ms_max < self.age_ms_max {
            found.push(format!(
                "snapshots are held for up to {} ms but kept for {} ms; hold them at least as long",
                self.hold_ms_max, self.age_ms_max
            ));
        }
        found
    }
}

/// All settings of a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerSettings {
    /// Times of leases, tickets and reports.
    pub lease: LeaseSettings,
    /// Quotas of tenants.
    pub quotas: Quotas,
    /// Times of snapshots.
    pub snapshots: SnapshotSettings,
    /// Time for which the leader before may still answer when another one has begun, in ms. Default 0: there is only
    /// one broker.
    pub failover_ms: u64,
    /// Longest time between two looks of the broker at what has changed with time alone, in ms. Default 500 ms.
    pub look_ms: u64,
}

impl Default for BrokerSettings {
    fn default() -> Self {
        BrokerSettings {
            lease: LeaseSettings::default(),
            quotas: Quotas::default(),
            snapshots: SnapshotSettings::default(),
            failover_ms: 0,
            look_ms: 500,
        }
    }
}

impl BrokerSettings {
    /// Returns a sentence for every setting that is out of range. Empty if none is.
    pub fn mistakes(&self) -> Vec<String> {
        let mut found = self.lease.mistakes();
        found.extend(self.quotas.mistakes());
        found.extend(self.snapshots.mistakes());
        found
    }
}

impl From<LeaseSettings> for BrokerSettings {
    /// Returns settings without quotas.
    fn from(lease: LeaseSettings) -> Self {
        BrokerSettings { lease, ..BrokerSettings::default() }
    }
}
