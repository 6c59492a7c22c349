//! Store of a broker's records in etcd keys that only the present leader can change.

use crate::gateway::Gateway;
use crate::{Keys, PATIENCE, decoded, encoded, is_led, number};
use farpool_broker::stores::records::{
    COMMITS, FILES, Ledger, NAMES, OPEN_COMMITS, PAGES, Reading, SUM, Step,
};
use farpool_broker::stores::{Store, StoreError};
use farpool_lease::broker::{Durable, StateChange};
use farpool_wire::mutant;
use serde_json::{Value, json};
use std::sync::{Arc, OnceLock};

/// Version of the format.
const FORMAT: &str = "4";
/// Versions of the format that are read.
const FORMATS: [&str; 3] = ["2", "3", FORMAT];
/// Key of the version, without the prefix.
const FORMAT_KEY: &str = "meta/format";
/// Prefixes of all keys except the leader's.
const PREFIXES: [&str; 6] = ["meta/", FILES, PAGES, NAMES, COMMITS, OPEN_COMMITS];
/// Keys that are read at once.
const KEYS_AT_ONCE: usize = 64;

/// Keys of a pool, for the leader whose key was created at `revision`.
pub struct EtcdStore {
    gateway: Arc<Gateway>,
    keys: Keys,
    revision: i64,
    /// Digests of what is stored, once it was read. Nobody else changes it.
    ledger: OnceLock<Ledger>,
    /// True once this store has stored the version of its format.
    has_format: bool,
}

impl EtcdStore {
    pub(crate) fn new(gateway: Arc<Gateway>, keys: Keys, revision: i64) -> EtcdStore {
        EtcdStore { gateway, keys, revision, ledger: OnceLock::new(), has_format: false }
    }

    fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let found = self.gateway.call("kv/range", &json!({ "key": encoded(key.as_bytes()) }), PATIENCE)?;
        found["kvs"].as_array().and_then(|found| found.first()).map(|one| decoded(&one["value"])).transpose()
    }

    fn damaged(&self, why: &str) -> StoreError {
        StoreError(format!(
            "what is under {} in etcd is damaged ({why}): restore etcd from a snapshot, or use another prefix, which \
             starts empty, without the published names",
            self.keys.prefix
        ))
    }

    /// Reads up to a page of the keys that begin with `prefix`, from the key `from` on. Returns the next key to read
    /// from. `None` if there are no more.
    fn read_page(
        &self,
        prefix: &str,
        from: &[u8],
        into: &mut Reading,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let mut behind = self.keys.of(prefix).into_bytes();
        // The end is the prefix with its last character replaced by the next one.
        if let Some(last) = behind.last_mut() {
            *last += 1;
        }
        let wanted =
            json!({ "key": encoded(from), "range_end": encoded(&behind), "limit": KEYS_AT_ONCE.to_string() });
        let found = self.gateway.call("kv/range", &wanted, PATIENCE)?;
        let mut last = None;
        for one in found["kvs"].as_array().into_iter().flatten() {
            let key = decoded(&one["key"])?;
            let shown = key.strip_prefix(self.keys.of("").as_bytes()).map(String::from_utf8_lossy);
            let shown =
                shown.ok_or_else(|| self.damaged("etcd returned a key outside the requested range"))?;
            if shown != FORMAT_KEY {
                into.take(&shown, &decoded(&one["value"])?).map_err(|why| self.damaged(&why))?;
            }
            last = Some([&key[..], &[0]].concat());
        }
        Ok(last.filter(|_| found["more"].as_bool() == Some(true)))
    }

    /// Reads all records and verifies their checksums.
    fn read(&self) -> Result<(Durable, Ledger), StoreError> {
        let format = self.get(&self.keys.of(FORMAT_KEY))?;
        if let Some(other) = format.as_deref().filter(|found| !FORMATS.map(str::as_bytes).contains(found)) {
            return Err(StoreError(format!(
                "what is under {} in etcd has format {:?}; this version reads formats {} to {FORMAT}. Use the \
                 version that wrote it, or another prefix",
                self.keys.prefix,
                String::from_utf8_lossy(other),
                FORMATS[0]
            )));
        }
        let mut reading = Reading::default();
        for prefix in PREFIXES {
            let mut from = Some(self.keys.of(prefix).into_bytes());
            while let Some(next) = from {
                from = self.read_page(prefix, &next, &mut reading)?;
            }
        }
        let (durable, ledger) = reading.finish().map_err(|why| self.damaged(&why))?;
        match format.is_some() == (ledger.commit() > 0) {
            true => Ok((durable, ledger)),
            false if format.is_some() => Err(self.damaged("its records are gone")),
            false => Err(self.damaged("it does not say which format it has")),
        }
    }
}

impl Store for EtcdStore {
    fn load(&self) -> Result<Durable, StoreError> {
        let (durable, ledger) = self.read()?;
        match *self.ledger.get_or_init(|| ledger.clone()) == ledger {
            true => Ok(durable),
            false => Err(self.damaged("its records are not those that were committed")),
        }
    }

    fn commit(&mut self, records: &[StateChange]) -> Result<(), StoreError> {
        if self.ledger.get().is_none() {
            self.load()?;
        }
        for step in self.ledger()?.steps(records)? {
            self.commit_step(&step)?;
        }
        Ok(())
    }

    fn confirm(&mut self) -> Result<(), StoreError> {
        let leader = self.keys.leader();
        // Etcd answers with what a majority of its members has.
        let found = self.gateway.call("kv/range", &json!({ "key": encoded(leader.as_bytes()) }), PATIENCE)?;
        match number(&found["kvs"][0]["create_revision"])? == self.revision {
            true => Ok(()),
            false => Err(lost_leadership(&leader)),
        }
    }
}

fn lost_leadership(leader: &str) -> StoreError {
    StoreError(format!(
        "this broker lost the leadership: {leader} in etcd was created by another broker or is gone"
    ))
}

impl EtcdStore {
    fn ledger(&mut self) -> Result<&mut Ledger, StoreError> {
        self.ledger.get_mut().ok_or_else(|| StoreError("etcd was not read".to_owned()))
    }

    /// Commits a step in one transaction.
    fn commit_step(&mut self, step: &Step) -> Result<(), StoreError> {
        let has_format = self.has_format;
        let ledger = self.ledger()?;
        let (changes, before) = (ledger.changes(step), ledger.sum());
        let put = |key: &str, value: &[u8]| {
            let key = encoded(self.keys.of(key).as_bytes());
            json!({ "request_put": { "key": key, "value": encoded(value) } })
        };
        let operation = |(key, value): (&String, &Option<Vec<u8>>)| match value {
            Some(value) => put(key, value),
            None => json!({ "request_delete_range": { "key": encoded(self.keys.of(key).as_bytes()) } }),
        };
        let mut operations: Vec<Value> = changes.values.iter().map(operation).collect();
        if !has_format {
            operations.push(put(FORMAT_KEY, FORMAT.as_bytes()));
        }
        // A transaction may be carried out a second time, by a member that was asked first and acts late, after other
        // commits. It therefore names the sum that it was made from.
        let sum = encoded(self.keys.of(SUM).as_bytes());
        let follows = match before {
            Some(value) => {
                json!({ "key": sum, "target": "VALUE", "result": "EQUAL", "value": encoded(&value) })
            }
            None => json!({ "key": sum, "target": "CREATE", "result": "EQUAL", "create_revision": "0" }),
        };
        let leader = self.keys.leader();
        let is_leader = is_led(&leader, self.revision);
        let compared = if mutant!(LeadNotCompared) { vec![follows] } else { vec![is_leader, follows] };
        let found = [
            json!({ "request_range": { "key": encoded(leader.as_bytes()) } }),
            json!({ "request_range": { "key": sum } }),
        ];
        let guarded = json!({ "compare": compared, "success": operations, "failure": found });
        let answer = self.gateway.call("kv/txn", &guarded, PATIENCE)?;
        let is_done = answer["succeeded"].as_bool() == Some(true) || {
            // The first try was carried out although its answer was lost.
            let of = |index: usize| &answer["responses"][index]["response_range"]["kvs"][0];
            number(&of(0)["create_revision"])? == self.revision
                && changes.values.get(SUM) == Some(&Some(decoded(&of(1)["value"])?))
        };
        if !is_done {
            return Err(lost_leadership(&leader));
        }
        self.has_format = true;
        self.ledger()?.kept(&changes);
        Ok(())
    }
}
