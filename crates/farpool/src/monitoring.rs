//! Metrics, health and state of a session over HTTP, when its program asks for them.

use farpool_files::beneath::session_of_pool;
use farpool_lock::Mutex;
use farpool_monitoring::{Monitored, Readiness, Resource, Scrape, Server, families};
use farpool_tables::scan_counts;
use farpool_transport::times::{BOUNDS_NS, OperationTime};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

pub use farpool_monitoring::{Access, AccessError, Endpoint, HttpError};

/// Adds the samples of what a program has beside its session, such as a cache.
pub type More = Box<dyn Fn(&mut Scrape) + Send + Sync>;

/// Session that is monitored, and the program that has it.
pub struct MonitoredSession {
    program: &'static str,
    pool: farpool_files::Pool,
    more: Option<More>,
}

impl fmt::Debug for MonitoredSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MonitoredSession").field("program", &self.program).finish_non_exhaustive()
    }
}

impl MonitoredSession {
    /// Makes the monitored session of a program. `more` adds what the program knows beside it.
    pub fn new(program: &'static str, pool: &farpool_files::Pool, more: Option<More>) -> MonitoredSession {
        MonitoredSession { program, pool: pool.clone(), more }
    }
}

impl Monitored for MonitoredSession {
    fn program(&self) -> &'static str {
        self.program
    }

    fn measure(&self, into: &mut Scrape) {
        let stats = self.pool.stats();
        for (operation, all, mapped) in [
            ("read", [stats.read_ops, stats.bytes_read], [stats.mapped_read_ops, stats.mapped_bytes_read]),
            (
                "write",
                [stats.write_ops, stats.bytes_written],
                [stats.mapped_write_ops, stats.mapped_bytes_written],
            ),
        ] {
            for (family, all, mapped) in [
                (&families::SESSION_OPERATIONS, all[0], mapped[0]),
                (&families::SESSION_BYTES, all[1], mapped[1]),
            ] {
                into.set(family, &[operation, "mapped"], mapped);
                // The two counters are not read at the same moment.
                into.set(family, &[operation, "linked"], all.saturating_sub(mapped));
            }
        }
        for OperationTime { opcode, kind, buckets, sum_ns } in self.pool.operation_times() {
            let labels = [&*format!("{opcode:?}").to_lowercase(), &*kind.to_string()];
            into.set_times(&families::SESSION_TIMES, &labels, &BOUNDS_NS, &buckets, sum_ns);
        }
        for (family, value) in [
            (&families::SESSION_FAILED, stats.failed_ops),
            (&families::SESSION_SPILLED, stats.scratch_bytes_written),
            (&families::SESSION_BROKER_CALLS, stats.broker_calls),
            (&families::SESSION_LEASED, stats.leased_bytes),
            (&families::SESSION_USED, stats.used_bytes),
            (&families::SESSION_NODES_LOST, stats.nodes_lost),
            (&families::SESSION_UNPROTECTED, stats.unprotected_bytes),
            (&families::SESSION_DROPPED, stats.dropped_copy_bytes),
            (&families::SESSION_REPAIRED, stats.repaired_bytes),
        ] {
            into.set(family, &[], value);
        }
        for (result, count) in [("read", stats.row_groups_read), ("skipped", stats.row_groups_skipped)] {
            into.set(&families::SESSION_ROW_GROUPS, &[result], count);
        }
        let scans = scan_counts(&self.pool);
        for (placement, count) in [("fetch", scans.fetched), ("ship", scans.shipped), ("split", scans.split)]
        {
            into.set(&families::SESSION_SCANS, &[placement], count);
        }
        into.set(&families::SESSION_CHOSEN, &[], scans.chosen);
        if let Some(more) = &self.more {
            more(into);
        }
    }

    fn readiness(&self) -> Readiness {
        match session_of_pool(&self.pool).check_open() {
            Ok(()) => Readiness::Ready(format!("{} has a session", self.program)),
            Err(error) => Readiness::NotReady(error.to_string()),
        }
    }

    fn resources(&self) -> &'static [&'static str] {
        &["status"]
    }

    fn resource(&self, _name: &str, query: &BTreeMap<String, String>) -> Resource {
        if let Some(wrong) = query.keys().next() {
            return Resource::WrongQuery(format!("there is no parameter {wrong:?}; there are none here"));
        }
        let counters =
            self.pool.stats().named().into_iter().map(|(name, value)| (name.to_owned(), value.into()));
        let status = [
            ("program".to_owned(), Value::from(self.program)),
            ("version".to_owned(), env!("CARGO_PKG_VERSION").into()),
            ("session".to_owned(), Value::Object(counters.collect::<Map<_, _>>())),
        ];
        Resource::Found(Value::Object(status.into_iter().collect()))
    }
}

/// Server of a session's monitoring, which ends with the session.
pub(crate) struct Serving {
    pool: farpool_files::Pool,
    server: Mutex<Option<Server>>,
}

impl Serving {
    pub(crate) fn new(pool: &farpool_files::Pool) -> Serving {
        Serving { pool: pool.clone(), server: Mutex::new(None) }
    }

    /// Serves the session at this address instead of the one before.
    pub(crate) fn begin(&self, endpoint: Endpoint) -> io::Result<SocketAddr> {
        let server = endpoint.serve(Arc::new(MonitoredSession::new("session", &self.pool, None)))?;
        let address = server.address();
        *self.server.lock() = Some(server);
        Ok(address)
    }

    /// Ends the server, if there is one. In a forked process its threads do not exist.
    pub(crate) fn end(&self) {
        let server = self.server.lock().take();
        let is_forked = session_of_pool(&self.pool)
            .check_open()
            .is_err_and(|error| error.kind() == farpool_files::ErrorKind::Forked);
        if is_forked {
            std::mem::forget(server);
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.end();
    }
}
