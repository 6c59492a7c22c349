//! Electing a leader among several brokers, and storing its records, in an etcd cluster.
//!
//! The idea: leases and locks of etcd give no safety. A lease may be revoked early, or prolonged when etcd changes its
//! own leader, and a paused process does not notice that its lease has ended. The lease is used for one thing only: the
//! key of a dead leader goes away. Safety rests on revisions. The leader's key has the revision at which it was
//! created, and every write of that leader is a transaction that compares this revision. A broker that has lost the
//! leadership can write nothing, even if it believes that it still leads.
//!
//! Never in this crate: a rule about leases of regions, or code of the data path. The keys in etcd are described in
//! `spec/etcd.md`.
#![forbid(unsafe_code)]

mod gateway;
mod leadership;
mod store;
mod suspicion;

pub use gateway::EtcdTls;
pub use store::EtcdStore;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use farpool_broker::election::{Electorate, Leadership, Victory};
use farpool_broker::stores::StoreError;
use farpool_lock::Mutex;
use gateway::Gateway;
use leadership::EtcdLeadership;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use suspicion::{Shown, Sight, Suspicion};

/// Default prefix of the keys of a pool.
pub const PREFIX: &str = "farpool";
/// Members of a cluster that are asked, at most.
const MEMBERS_MAX: usize = 16;
/// Default timeout in s after which a leader without a heartbeat is replaced.
pub const LEAD_SECONDS: u64 = 3;
/// Longest wait for an answer, over all members.
const PATIENCE: Duration = Duration::from_secs(3);

/// Address of a cluster, and prefix of the keys in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdAddress {
    /// Addresses (`host:port`) of the client ports of its members.
    pub members: Vec<String>,
    /// Prefix of all keys.
    pub prefix: String,
    /// True if the connections use TLS.
    pub is_tls: bool,
}

impl EtcdAddress {
    /// Parses `etcd://host:port,host:port/prefix`, or `etcds://` for TLS. `None` if the text has another scheme. An
    /// error says what is permitted.
    pub fn parse(text: &str) -> Option<Result<EtcdAddress, String>> {
        let (rest, is_tls) = match (text.strip_prefix("etcd://"), text.strip_prefix("etcds://")) {
            (Some(rest), _) => (rest, false),
            (_, Some(rest)) => (rest, true),
            _ => return None,
        };
        let (members, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = if prefix.is_empty() { PREFIX } else { prefix.trim_end_matches('/') };
        let members: Vec<String> = members.split(',').map(str::to_owned).collect();
        let is_member = |member: &&String| {
            member.rsplit_once(':').is_some_and(|(host, port)| {
                !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
            })
        };
        if let Some(wrong) = members.iter().find(|member| !is_member(member)) {
            return Some(Err(format!(
                "invalid etcd member {wrong:?}; use etcd://HOST:PORT,HOST:PORT/PREFIX (the prefix is optional)"
            )));
        }
        if members.len() > MEMBERS_MAX {
            return Some(Err(format!("{} etcd members; at most {MEMBERS_MAX} are permitted", members.len())));
        }
        Some(Ok(EtcdAddress { members, prefix: prefix.to_owned(), is_tls }))
    }
}

/// Etcd cluster in which the brokers of a pool elect a leader.
pub struct Etcd {
    gateway: Arc<Gateway>,
    keys: Keys,
    name: String,
    lasts_seconds: u64,
    suspicion: Mutex<Suspicion>,
}

/// Keys of a pool.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
}

impl Keys {
    pub(crate) fn leader(&self) -> String {
        format!("{}/leader", self.prefix)
    }

    /// Returns the key of a record. Given the beginning of a record's name, returns the prefix of all such keys.
    pub(crate) fn of(&self, record: &str) -> String {
        format!("{}/{record}", self.prefix)
    }
}

/// Encodes bytes as etcd's JSON has them.
pub(crate) fn encoded(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

pub(crate) fn decoded(value: &Value) -> Result<Vec<u8>, StoreError> {
    match value {
        // Etcd leaves out empty values.
        Value::Null => Ok(Vec::new()),
        Value::String(text) => {
            STANDARD.decode(text).map_err(|error| StoreError(format!("etcd's answer is not base64: {error}")))
        }
        other => Err(StoreError(format!("etcd's answer has {other} instead of bytes"))),
    }
}

/// Decodes a number. Etcd's JSON has numbers as text, and leaves out 0.
pub(crate) fn number(value: &Value) -> Result<i64, StoreError> {
    let wrong = || StoreError(format!("etcd's answer has {value} instead of a number"));
    match value {
        Value::Null => Ok(0),
        Value::String(text) => text.parse().map_err(|_| wrong()),
        other => other.as_i64().ok_or_else(wrong),
    }
}

/// Returns the comparison of a leader's transactions: true in etcd if the leader's key is still the one created at this
/// revision.
pub(crate) fn is_led(leader: &str, revision: i64) -> Value {
    json!({
        "key": encoded(leader.as_bytes()), "target": "CREATE", "result": "EQUAL",
        "create_revision": revision.to_string(),
    })
}

impl Etcd {
    /// Makes the client of a cluster. `name` is the name of this broker in the leader's key, for people who look there.
    /// The client connects with the first request.
    ///
    /// Errors: `tls` is needed and missing, or cannot be used.
    pub fn new(address: &EtcdAddress, tls: Option<&EtcdTls>, name: &str) -> Result<Etcd, StoreError> {
        let gateway = Arc::new(Gateway::new(address, tls)?);
        let keys = Keys { prefix: address.prefix.clone() };
        Ok(Etcd {
            gateway,
            keys,
            name: name.to_owned(),
            lasts_seconds: LEAD_SECONDS,
            suspicion: Mutex::default(),
        })
    }

    /// Sets the timeout in s after which a leader without a heartbeat is replaced. Etcd may take longer.
    pub fn lasts_seconds(self, seconds: u64) -> Etcd {
        Etcd { lasts_seconds: seconds.max(1), ..self }
    }

    /// Deletes the key of a leader that has not written to it since etcd changed its own leader. Returns true if the
    /// key is gone.
    fn gives_up(&self, found: &Value, raft_term: i64) -> Result<bool, StoreError> {
        let written = number(&found["mod_revision"])?;
        let shown = Shown::decode(&decoded(&found["value"])?)?.raft_term;
        let sight = Sight { written, shown, raft_term };
        // A living leader sends three heartbeats in this time.
        let patience = Duration::from_secs(self.lasts_seconds) / 2;
        let is_overdue = {
            let mut suspicion = self.suspicion.lock();
            suspicion.look(sight, Instant::now(), patience)
        };
        if !is_overdue {
            return Ok(false);
        }
        let key = &found["key"];
        let unless_written = json!({
            "compare": [{ "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": written.to_string() }],
            "success": [{ "request_delete_range": { "key": key } }],
        });
        let answer = self.gateway.call("kv/txn", &unless_written, PATIENCE)?;
        Ok(answer["succeeded"].as_bool() == Some(true))
    }
}

impl Electorate for Etcd {
    fn campaign(&self) -> Result<Option<Victory>, StoreError> {
        let leader = self.keys.leader();
        let key = encoded(leader.as_bytes());
        let led = self.gateway.call("kv/range", &json!({ "key": key }), PATIENCE)?;
        let raft_term = number(&led["header"]["raft_term"])?;
        if let Some(found) = led["kvs"].as_array().and_then(|found| found.first())
            && !self.gives_up(found, raft_term)?
        {
            return Ok(None);
        }
        let granted = self.gateway.call("lease/grant", &json!({ "TTL": self.lasts_seconds }), PATIENCE)?;
        let (lease, seconds) = (number(&granted["ID"])?, number(&granted["TTL"])?);
        let gateway = Arc::clone(&self.gateway);
        let seconds = seconds.max(1) as u64;
        let shown = Shown { name: self.name.clone(), raft_term };
        let put = json!({ "key": key, "value": encoded(&shown.encode()), "lease": lease.to_string() });
        let mut lead = EtcdLeadership { gateway, key: leader, revision: 0, lease, seconds, shown };
        let won = json!({
            "compare": [{ "key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0" }],
            "success": [{ "request_put": put }],
            "failure": [{ "request_range": { "key": key } }],
        });
        let answer = self.gateway.call("kv/txn", &won, PATIENCE);
        let revision = answer.and_then(|answer| match answer["succeeded"].as_bool() {
            Some(true) => number(&answer["header"]["revision"]).map(Some),
            // The first try may have won although its answer was lost.
            _ => {
                let found = &answer["responses"][0]["response_range"]["kvs"][0];
                let is_ours = number(&found["lease"])? == lease;
                number(&found["create_revision"]).map(|revision| is_ours.then_some(revision))
            }
        });
        match revision {
            Ok(Some(revision)) if revision > 0 => {
                lead.revision = revision;
                let store = EtcdStore::new(Arc::clone(&self.gateway), self.keys.clone(), revision);
                Ok(Some(Victory { lead: Box::new(lead), store: Box::new(store) }))
            }
            other => {
                lead.resign();
                other.map(|_| None)
            }
        }
    }
}
