//! Tenants: the owners of sessions, files and regions.
//!
//! The idea: a tenant is a name that a connection proves. Nodes count regions by tenant, and the broker compares the
//! counts with its quotas. To a tenant that asks, another tenant's file looks as if it did not exist.

use farpool_wire::control::TenantUse;
use farpool_wire::ids::{TENANT_ADMIN, TENANT_LOCAL};
use farpool_wire::limits::TENANTS_MAX;
use farpool_wire::{List, Name};

/// Returns the tenant of whoever connects without a certificate.
pub fn local() -> Name {
    Name::new(TENANT_LOCAL).expect("it is a name")
}

/// Returns the tenant of the administrator.
pub fn admin() -> Name {
    Name::new(TENANT_ADMIN).expect("it is a name")
}

/// Reports whether this tenant is the administrator, who sees everything and may do what any tenant may.
pub fn is_admin(tenant: &Name) -> bool {
    **tenant == *TENANT_ADMIN
}

/// Reports whether this tenant may look at the whole pool and empty nodes. That is the administrator, and
/// whoever is on this machine or in a pool that does not ask for certificates.
pub fn oversees(tenant: &Name) -> bool {
    is_admin(tenant) || **tenant == *TENANT_LOCAL
}

/// Index of a tenant in [`TenantCounts`]. It is good as long as the tenant has a region on this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TenantIndex(u16);

/// Number of regions of one node that each tenant has.
#[derive(Clone, Debug, Default)]
pub(crate) struct TenantCounts(Vec<TenantUse>);

impl TenantCounts {
    /// Returns the index of this tenant; `None` if `TENANTS_MAX` others have regions. If the caller adds no
    /// region, the index is good only until the next call.
    pub(crate) fn index_of(&mut self, tenant: &Name) -> Option<TenantIndex> {
        let known = self.0.iter().position(|has| has.tenant == *tenant && has.regions > 0);
        let index = known.or_else(|| self.0.iter().position(|has| has.regions == 0)).unwrap_or(self.0.len());
        match self.0.get_mut(index) {
            Some(has) => has.tenant = tenant.clone(),
            None if index < TENANTS_MAX => self.0.push(TenantUse { tenant: tenant.clone(), regions: 0 }),
            None => return None,
        }
        Some(TenantIndex(index as u16))
    }

    pub(crate) fn add(&mut self, index: TenantIndex) {
        self.0[usize::from(index.0)].regions += 1;
    }

    pub(crate) fn remove(&mut self, index: TenantIndex) {
        self.0[usize::from(index.0)].regions -= 1;
    }

    /// Returns the tenants that have regions.
    pub(crate) fn list(&self) -> List<TenantUse, TENANTS_MAX> {
        // `index_of` keeps the list below its bound.
        List::new(self.0.iter().filter(|has| has.regions > 0).cloned().collect()).unwrap_or_default()
    }
}

const _: () = assert!(TENANTS_MAX <= u16::MAX as usize);
