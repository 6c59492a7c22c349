//! Every time series of every program, with its type, labels and help. `docs/monitoring.md` has the same table, which a
//! test compares.

use std::fmt;

/// Type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FamilyKind {
    /// Number that only grows. The name ends with `_total`.
    Counter,
    /// Number that rises and falls.
    Gauge,
    /// Counts of observations by size.
    Histogram,
}

impl fmt::Display for FamilyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FamilyKind::Counter => "counter",
            FamilyKind::Gauge => "gauge",
            FamilyKind::Histogram => "histogram",
        })
    }
}

/// Family of time series: one name, one meaning.
#[derive(Debug)]
pub struct Family {
    /// Name, with its unit at the end.
    pub name: &'static str,
    /// Type.
    pub kind: FamilyKind,
    /// Names of the labels, in the order in which their values are given.
    pub labels: &'static [&'static str],
    /// Explanation in one sentence.
    pub help: &'static str,
}

macro_rules! families {
    ($($constant:ident = $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(
            #[doc = $help]
            pub static $constant: Family =
                Family { name: $name, kind: FamilyKind::$kind, labels: &[$($label),*], help: $help };
        )*

        /// All families.
        pub static ALL: &[&Family] = &[$(&$constant),*];
    };
}

families! {
    BUILD_INFO = Gauge "farpool_build_info" ["version", "program"] "1, with the version of the program.";
    EVENTS = Counter "farpool_events_total" ["level", "event"] "Events of the log, written or suppressed.";
    CERTIFICATE_END = Gauge "farpool_certificate_end_timestamp_seconds" ["identity"]
        "Last second in which the certificate of the process is valid, since 1970.";
    SPUN = Counter "farpool_spun_seconds_total" [] "CPU time that threads spun while they waited for a peer.";
    OPERATIONS = Histogram "farpool_operation_seconds" ["operation", "transport"]
        "Time from a request to its answer, at the process that serves it.";

    PROCESS_CPU = Counter "process_cpu_seconds_total" [] "CPU time of the process.";
    PROCESS_MEMORY = Gauge "process_resident_memory_bytes" [] "Resident memory of the process.";
    PROCESS_FILES = Gauge "process_open_fds" [] "Open file descriptors of the process.";
    PROCESS_START = Gauge "process_start_time_seconds" [] "Start of the process, since 1970.";

    BROKER_LEADS = Gauge "farpool_broker_leads" [] "1 if this broker leads its pool, 0 if it stands by.";
    BROKER_TERM = Gauge "farpool_broker_term" [] "Term in which this broker leads.";
    POOL_SESSIONS = Gauge "farpool_pool_sessions" [] "Open sessions.";
    POOL_TICKETS = Gauge "farpool_pool_open_tickets" [] "Tickets that were promised and not redeemed yet.";
    POOL_WAITS = Gauge "farpool_pool_waits" [] "Requests that wait for changes of published names, at most 512.";
    POOL_FILES = Gauge "farpool_pool_files" ["state"]
        "Published files: whole, or lost if bytes of them are gone.";
    POOL_FILE_BYTES = Gauge "farpool_pool_file_bytes" ["state"]
        "Bytes of published files: whole, or lost if bytes of them are gone.";
    POOL_REPAIR_FILES = Gauge "farpool_pool_repair_files" ["state"]
        "Published files that lack copies: endangered, or leaving if all copies are there and some lie on nodes \
         that are being emptied.";
    POOL_REPAIR_BYTES = Gauge "farpool_pool_repair_bytes" ["state"]
        "Bytes of the copies that published files lack: endangered, or leaving.";
    POOL_NODE_UP = Gauge "farpool_pool_node_up" ["node", "host"]
        "1 if the node has reported to the broker in time, 0 if it is lost.";
    POOL_NODE_DRAINING = Gauge "farpool_pool_node_draining" ["node"] "1 if the node is being emptied.";
    POOL_NODE_SILENT = Gauge "farpool_pool_node_silent_seconds" ["node"]
        "Time since the broker last heard of the node.";
    POOL_NODE_MEMORY = Gauge "farpool_pool_node_memory_bytes" ["node", "state"]
        "Memory of the node as the broker knows it: free, leased, named, cleaning, or away (given back to \
         its host).";
    TENANT_HELD = Gauge "farpool_tenant_held_bytes" ["tenant"] "Memory that the tenant holds.";
    TENANT_PROMISED = Gauge "farpool_tenant_promised_bytes" ["tenant"]
        "Memory that the tenant was promised and does not hold yet.";
    TENANT_QUOTA = Gauge "farpool_tenant_quota_bytes" ["tenant"]
        "Limit for what the tenant holds and was promised; absent without a limit.";

    NODE_JOINED = Gauge "farpool_node_joined" ["node"] "1 once a broker has registered the node.";
    NODE_DRAINING = Gauge "farpool_node_draining" ["node"] "1 if this node is being emptied.";
    NODE_MEMORY = Gauge "farpool_node_memory_bytes" ["node", "state"]
        "Memory of this node: free, leased, named, cleaning, or away (given back to its host).";
    NODE_LOCKED = Gauge "farpool_node_locked_bytes" ["node"] "Memory of this node that is locked into RAM.";
    NODE_SESSIONS = Gauge "farpool_node_sessions" ["node"] "Sessions that lease memory of this node.";
    NODE_OPERATIONS = Counter "farpool_node_operations_total" ["node", "operation"]
        "Ranges read and written over sockets, and ranges refused.";
    NODE_BYTES = Counter "farpool_node_bytes_total" ["node", "operation"]
        "Bytes read and written over sockets.";
    NODE_MAPPED = Counter "farpool_node_mapped_regions_total" ["node"]
        "Regions that clients of this host have mapped; their traffic does not pass the node.";
    NODE_WANTED = Gauge "farpool_node_wanted_bytes" ["node"]
        "Memory that the host needs and this node has not given back yet.";
    NODE_PRESSURE = Counter "farpool_node_pressure_total" ["node", "severity"]
        "Decisions to give memory back because the host was short of it.";
    NODE_GIVEN_BACK = Counter "farpool_node_given_back_bytes_total" ["node"]
        "Memory that the host has asked back since the start of this node.";
    HOST_MEMORY = Gauge "farpool_host_memory_bytes" []
        "Total memory of the tightest limit: the host's, or a control group's.";
    HOST_AVAILABLE = Gauge "farpool_host_available_bytes" [] "Available memory below the tightest limit.";
    HOST_RESERVE = Gauge "farpool_host_reserve_bytes" []
        "Memory that the node keeps available below the tightest limit.";

    SESSION_OPERATIONS = Counter "farpool_session_operations_total" ["operation", "path"]
        "Ranges of far files read and written: mapped (copied by this process from and to memory of nodes \
         on its host) or linked (by requests to nodes).";
    SESSION_BYTES = Counter "farpool_session_bytes_total" ["operation", "path"]
        "Bytes of far files read and written, mapped or linked.";
    SESSION_TIMES = Histogram "farpool_session_operation_seconds" ["operation", "transport"]
        "Time from a request for ranges of one node to its answer, at the client.";
    SESSION_FAILED = Counter "farpool_session_failed_operations_total" []
        "Operations on far files that failed.";
    SESSION_SPILLED = Counter "farpool_session_spilled_bytes_total" []
        "Bytes written to scratch files, such as those that engines spill to.";
    SESSION_BROKER_CALLS = Counter "farpool_session_broker_calls_total" [] "Requests to the broker.";
    SESSION_LEASED = Gauge "farpool_session_leased_bytes" [] "Memory that the session leases.";
    SESSION_USED = Gauge "farpool_session_used_bytes" [] "Memory of these leases that files occupy.";
    SESSION_NODES_LOST = Counter "farpool_session_lost_nodes_total" [] "Nodes that the session has lost.";
    SESSION_UNPROTECTED = Gauge "farpool_session_unprotected_bytes" []
        "Bytes of protected files that the next loss would destroy: mirrors to repair, or not yet on the \
         disk.";
    SESSION_DROPPED = Counter "farpool_session_dropped_copy_bytes_total" []
        "Bytes of copies that were given up, because a write did not reach them or their node was lost.";
    SESSION_REPAIRED = Counter "farpool_session_repaired_bytes_total" []
        "Bytes of lost copies that were made again.";
    SESSION_ROW_GROUPS = Counter "farpool_session_row_groups_total" ["result"]
        "Row groups of far tables that queries read, or skipped by their statistics.";
    SESSION_SCANS = Counter "farpool_session_scans_total" ["placement"]
        "Scans of far tables by placement: fetch (in this process), ship (at the nodes) or split (both). A \
         query in steps is several.";
    SESSION_CHOSEN = Counter "farpool_session_chosen_placements_total" []
        "Scans of far tables whose placement was left to Farpool.";

    VOLUME_UP = Gauge "farpool_volume_up" ["volume", "pod"]
        "1 if the process that serves the volume lives, 0 if it has ended and the volume is lost.";
    VOLUME_SIZE = Gauge "farpool_volume_size_bytes" ["volume", "pod"] "Limit for the files of the volume.";
    VOLUME_USED = Gauge "farpool_volume_used_bytes" ["volume", "pod"] "Size of the files of the volume.";
    VOLUME_FILES = Gauge "farpool_volume_files" ["volume", "pod"] "Files and directories of the volume.";

    CACHE_LOOKUPS = Counter "farpool_cache_lookups_total" ["result"]
        "Lookups of blocks: near_hit (in this process), far_hit (in far memory) or miss.";
    CACHE_FAILURES = Counter "farpool_cache_far_failures_total" []
        "Blocks that far memory had and did not deliver.";
    CACHE_WRITES = Counter "farpool_cache_far_writes_total" [] "Blocks written to far memory.";
    CACHE_REFUSED = Counter "farpool_cache_far_refused_total" []
        "Blocks that were not written to far memory: too many were queued, or it had no room.";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_follow_the_conventions_of_prometheus() {
        let names: BTreeSet<&str> = ALL.iter().map(|family| family.name).collect();
        assert_eq!(names.len(), ALL.len());
        for Family { name, kind, labels, help } in ALL {
            let is_name = |text: &str| {
                text.bytes().all(|letter| letter.is_ascii_lowercase() || letter == b'_')
                    && !text.starts_with('_')
            };
            assert!(is_name(name) && labels.iter().all(|label| is_name(label)), "{name}");
            assert_eq!(name.ends_with("_total"), *kind == FamilyKind::Counter, "{name}");
            assert!(name.starts_with("farpool_") || name.starts_with("process_"), "{name}");
            assert!(help.ends_with('.') && !help.contains(['"', '\\', '\n', '|']), "{name}: {help}");
        }
    }
}
