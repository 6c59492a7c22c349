//! The lead: a key of etcd's that is there for as long as its lease is kept, if nobody takes it away.

use crate::gateway::Gateway;
use crate::suspicion::Shown;
use crate::{encoded, is_led, number};
use farpool_broker::election::Lead;
use farpool_broker::stores::StoreError;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// Giving it up is worth waiting so long: a cluster that is back by then need not wait for the lease to end.
const RESIGNING: Duration = Duration::from_secs(3);

pub(crate) struct EtcdLead {
    pub(crate) gateway: Arc<Gateway>,
    /// The leader's key, and the revision at which it was made.
    pub(crate) key: String,
    pub(crate) revision: i64,
    /// The lease that it goes with.
    pub(crate) lease: i64,
    pub(crate) seconds: u64,
    /// What the key says.
    pub(crate) shown: Shown,
}

impl Lead for EtcdLead {
    fn lasts_ms(&self) -> u64 {
        self.seconds * 1000
    }

    fn keep(&mut self) -> Result<bool, StoreError> {
        // Each member can be tried once within what is left of it.
        let patience = Duration::from_millis(self.lasts_ms() / 3);
        let key = encoded(self.key.as_bytes());
        // The key may have gone while its lease lives on, and another may have been elected: nodes that report to a
        // leader of whom nobody else knows would hear nothing of the pool any more.
        let found = self.gateway.call("kv/range", &json!({ "key": key }), patience)?;
        if number(&found["kvs"][0]["create_revision"])? != self.revision {
            return Ok(false);
        }
        let raft_term = number(&found["header"]["raft_term"])?;
        if raft_term > self.shown.raft_term {
            let shown = Shown { raft_term, ..self.shown.clone() };
            let lease = self.lease.to_string();
            let while_ours = json!({
                "compare": [is_led(&self.key, self.revision)],
                "success": [{ "request_put": { "key": key, "value": encoded(&shown.encode()), "lease": lease } }],
            });
            let answer = self.gateway.call("kv/txn", &while_ours, patience)?;
            if answer["succeeded"].as_bool() != Some(true) {
                return Ok(false);
            }
            self.shown = shown;
        }
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
