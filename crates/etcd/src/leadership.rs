//! Leadership: a key in etcd that exists while its lease is kept alive, unless another broker deletes it.

use crate::gateway::Gateway;
use crate::suspicion::Shown;
use crate::{encoded, is_led, number};
use farpool_broker::election::Leadership;
use farpool_broker::stores::StoreError;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for etcd when resigning. If the cluster answers by then, the other brokers need not wait until the
/// lease ends.
const RESIGNING: Duration = Duration::from_secs(3);

pub(crate) struct EtcdLeadership {
    pub(crate) gateway: Arc<Gateway>,
    /// Leader's key, and the revision at which it was created.
    pub(crate) key: String,
    pub(crate) revision: i64,
    /// Lease that the key is attached to.
    pub(crate) lease: i64,
    pub(crate) seconds: u64,
    /// Contents of the key.
    pub(crate) shown: Shown,
}

impl Leadership for EtcdLeadership {
    fn lasts_ms(&self) -> u64 {
        self.seconds * 1000
    }

    fn keep(&mut self) -> Result<bool, StoreError> {
        // Every member can be asked once before the timeout of the leadership is over.
        let patience = Duration::from_millis(self.lasts_ms() / 3);
        let key = encoded(self.key.as_bytes());
        // The key may be gone while its lease lives, and another broker may have been elected. A leader whom nobody
        // else knows would then go on alone, and the nodes that report to it would not hear of the pool any more.
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
        // If etcd cannot be reached, the lease ends by itself.
        let _ = self.gateway.call("lease/revoke", &json!({ "ID": self.lease.to_string() }), RESIGNING);
    }
}
