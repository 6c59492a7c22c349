//! The lead, as a lease of etcd's: when it ends, the leader's key goes.

use crate::gateway::Gateway;
use crate::number;
use farpool_broker::election::Lead;
use farpool_broker::stores::StoreError;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// Giving it up is worth waiting so long.
const RESIGNING: Duration = Duration::from_millis(500);

pub(crate) struct EtcdLead {
    gateway: Arc<Gateway>,
    lease: i64,
    seconds: u64,
}

impl EtcdLead {
    pub(crate) fn new(gateway: Arc<Gateway>, lease: i64, seconds: u64) -> EtcdLead {
        EtcdLead { gateway, lease, seconds }
    }
}

impl Lead for EtcdLead {
    fn lasts_ms(&self) -> u64 {
        self.seconds * 1000
    }

    fn keep(&mut self) -> Result<bool, StoreError> {
        // One try on each of three members within what is left of it.
        let patience = Duration::from_millis(self.lasts_ms() / 3);
        let kept =
            self.gateway.call("lease/keepalive", &json!({ "ID": self.lease.to_string() }), patience)?;
        // A lease that has ended has no time to live.
        Ok(number(&kept["result"]["TTL"])? > 0)
    }

    fn resign(&mut self) {
        // Whoever cannot be told sees the lease end.
        let _ = self.gateway.call("lease/revoke", &json!({ "ID": self.lease.to_string() }), RESIGNING);
    }
}
