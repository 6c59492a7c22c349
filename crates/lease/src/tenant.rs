//! Tenants: whose a session, a file and a region are.
//!
//! The idea: a tenant is a name that a connection proves. Nodes count regions by it, the broker holds the
//! counts against its quotas, and names of other tenants are not there for whoever asks.

use farpool_wire::control::TenantUse;
use farpool_wire::ids::{TENANT_ADMIN, TENANT_LOCAL};
use farpool_wire::limits::TENANTS_MAX;
use farpool_wire::{List, Name};

/// The tenant of whoever connects without a certificate.
pub fn local() -> Name {
    Name::new(TENANT_LOCAL).expect("it is a name")
}

/// Whether this tenant sees and may do what any other does.
pub fn is_admin(tenant: &Name) -> bool {
    **tenant == *TENANT_ADMIN
}

/// Whether this tenant may look at the whole pool and empty nodes: the administrator, and whoever is on this
/// machine or in a pool that does not ask for certificates.
pub fn oversees(tenant: &Name) -> bool {
    is_admin(tenant) || **tenant == *TENANT_LOCAL
}

/// Where a tenant stands in [`TenantCounts`], for as long as it has something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TenantIndex(u16);

/// How many regions of one node each tenant has.
#[derive(Clone, Debug, Default)]
pub(crate) struct TenantCounts(Vec<TenantUse>);

impl TenantCounts {
    /// Where this tenant is counted; `None` if `TENANTS_MAX` others have something. Good until the next call
    /// if nothing is added meanwhile.
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

    /// Those that have something.
    pub(crate) fn list(&self) -> List<TenantUse, TENANTS_MAX> {
        // No longer than this list, which `index_of` bounds.
        List::new(self.0.iter().filter(|has| has.regions > 0).cloned().collect()).unwrap_or_default()
    }
}

const _: () = assert!(TENANTS_MAX <= u16::MAX as usize);
