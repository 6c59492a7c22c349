//! What a broker keeps, as keys that only the leader of the moment changes.

use crate::gateway::Gateway;
use crate::{Keys, PATIENCE, decoded, encoded, is_led};
use farpool_broker::stores::{Store, StoreError, decode_file, encode_file};
use farpool_lease::broker::{Durable, Record};
use farpool_wire::{FileId, Name, Term, mutant};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The version of what is in the keys.
const FORMAT: &str = "1";
/// Keys that are read at once.
const PAGE: usize = 64;

/// The keys of a pool, for the leader whose key was made at a revision.
pub struct EtcdStore {
    gateway: Arc<Gateway>,
    keys: Keys,
    revision: i64,
}

impl EtcdStore {
    pub(crate) fn new(gateway: Arc<Gateway>, keys: Keys, revision: i64) -> EtcdStore {
        EtcdStore { gateway, keys, revision }
    }

    fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let found = self.gateway.call("kv/range", &json!({ "key": encoded(key.as_bytes()) }), PATIENCE)?;
        found["kvs"].as_array().and_then(|found| found.first()).map(|one| decoded(&one["value"])).transpose()
    }

    fn number(&self, what: &str) -> Result<Option<u64>, StoreError> {
        let key = self.keys.meta(what);
        let Some(bytes) = self.get(&key)? else { return Ok(None) };
        let text = std::str::from_utf8(&bytes).ok().and_then(|text| text.parse().ok());
        text.map(Some).ok_or_else(|| self.damaged(&key, "it is no number"))
    }

    fn damaged(&self, key: &str, why: &str) -> StoreError {
        StoreError(format!("the key {key} in etcd is damaged: {why}"))
    }

    /// The names from a key on, as many as come at once; and whether there are more.
    fn names(&self, from: &[u8], into: &mut Durable) -> Result<Option<Vec<u8>>, StoreError> {
        let all = self.keys.names();
        let mut behind = all.clone().into_bytes();
        // The next character after the last one of what they all begin with.
        if let Some(last) = behind.last_mut() {
            *last += 1;
        }
        let wanted =
            json!({ "key": encoded(from), "range_end": encoded(&behind), "limit": PAGE.to_string() });
        let found = self.gateway.call("kv/range", &wanted, PATIENCE)?;
        let mut last = None;
        for one in found["kvs"].as_array().into_iter().flatten() {
            let key = decoded(&one["key"])?;
            let shown = String::from_utf8_lossy(&key).into_owned();
            let name =
                key.strip_prefix(all.as_bytes()).and_then(|name| String::from_utf8(name.to_vec()).ok());
            let name = name.and_then(|name| Name::new(name).ok());
            let name = name.ok_or_else(|| self.damaged(&shown, "it is no name"))?;
            let file = decode_file(&decoded(&one["value"])?);
            let file = file.map_err(|error| self.damaged(&shown, &error.to_string()))?;
            into.names.insert(name, file);
            last = Some([&key[..], &[0]].concat());
        }
        Ok(last.filter(|_| found["more"].as_bool() == Some(true)))
    }
}

impl Store for EtcdStore {
    fn load(&self) -> Result<Durable, StoreError> {
        let key = self.keys.meta("format");
        match self.get(&key)?.as_deref() {
            None => {}
            Some(found) if found == FORMAT.as_bytes() => {}
            Some(other) => {
                return Err(StoreError(format!(
                    "what is under {} in etcd has format {:?}; this version reads and writes format {FORMAT} only. Use \
                     the version that wrote it, or another prefix",
                    self.keys.prefix,
                    String::from_utf8_lossy(other)
                )));
            }
        }
        let mut durable = Durable {
            term: Term(self.number("term")?.unwrap_or_default()),
            next_file: FileId(self.number("next_file")?.unwrap_or_default()),
            ..Durable::default()
        };
        let key = self.keys.meta("key");
        if let Some(bytes) = self.get(&key)? {
            let bytes = bytes.try_into().map_err(|_| self.damaged(&key, "it is not 32 bytes long"))?;
            durable.key = Some(bytes);
        }
        let mut from = Some(self.keys.names().into_bytes());
        while let Some(next) = from {
            from = self.names(&next, &mut durable)?;
        }
        Ok(durable)
    }

    fn commit(&mut self, records: &[Record]) -> Result<(), StoreError> {
        // A transaction may name a key once: the last word holds.
        let mut words: BTreeMap<String, Option<Vec<u8>>> = BTreeMap::new();
        for record in records {
            let (key, value) = match record {
                Record::Term(term) => {
                    words.insert(self.keys.meta("format"), Some(FORMAT.into()));
                    (self.keys.meta("term"), Some(term.0.to_string().into_bytes()))
                }
                Record::Key(key) => (self.keys.meta("key"), Some(key.to_vec())),
                Record::NextFile(file) => {
                    (self.keys.meta("next_file"), Some(file.0.to_string().into_bytes()))
                }
                Record::Name(name, file) => (self.keys.names() + name, Some(encode_file(file)?)),
                Record::DropName(name) => (self.keys.names() + name, None),
            };
            words.insert(key, value);
        }
        let operation = |(key, value): (&String, &Option<Vec<u8>>)| match value {
            Some(value) => {
                json!({ "request_put": { "key": encoded(key.as_bytes()), "value": encoded(value) } })
            }
            None => json!({ "request_delete_range": { "key": encoded(key.as_bytes()) } }),
        };
        let operations: Vec<Value> = words.iter().map(operation).collect();
        let leader = self.keys.leader();
        // Carried out twice, it comes to the same: nobody else has written in between, or it is not carried out.
        let is_leader = is_led(&leader, self.revision);
        let compared = if mutant!(LeadNotCompared) { Vec::new() } else { vec![is_leader] };
        let guarded = json!({ "compare": compared, "success": operations });
        let answer = self.gateway.call("kv/txn", &guarded, PATIENCE)?;
        match answer["succeeded"].as_bool() {
            Some(true) => Ok(()),
            _ => Err(StoreError(format!("another broker may lead: {leader} in etcd is not ours any more"))),
        }
    }
}
