//! Results of `farpool bench io`, as text and as JSON.

use super::contenders::Asked;
use super::rivals::Rival;
use crate::Outcome;
use crate::harness::access::{Access, SMALL};
use crate::harness::statistics::Figures;
use crate::harness::titled;
use crate::units::show_bytes;
use serde_json::{Value, json};
use std::io::Write;

/// Medians over all rounds for one combination of access, nodes, clients, depth (outstanding operations per client) and
/// name (a transport, memcpy or a rival system such as Redis).
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) access: Access,
    pub(crate) nodes: u64,
    pub(crate) clients: u64,
    pub(crate) depth: usize,
    pub(crate) name: &'static str,
    pub(crate) figures: Figures,
    /// Throughput divided by the throughput of the same accesses to local memory.
    pub(crate) of_memcpy: f64,
}

/// CPU use while a file is open and idle, as shares of one CPU.
#[derive(Clone, Debug)]
pub(crate) struct Idle {
    pub(crate) name: &'static str,
    pub(crate) client_share: f64,
    pub(crate) server_share: f64,
}

/// Results of a run of `farpool bench io`.
pub(crate) struct Report {
    /// Rows in the order in which they are shown.
    pub(crate) rows: Vec<Row>,
    /// Quantiles p50, p90, p99 and p99.9 of empty round trips, in us. `None` on a machine with one CPU.
    pub(crate) empty_rpc_us: Option<[f64; 4]>,
    pub(crate) idle: Vec<Idle>,
    pub(crate) machine: String,
    pub(crate) size_bytes: u64,
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    pub(crate) seed: u64,
    pub(crate) hash: u64,
    pub(crate) notes: Vec<&'static str>,
}

const EMPTY_RPC: &str = "empty RPC";

/// Returns sentences that explain the labels of the report. Those for systems that were not asked for are left out.
pub(crate) fn notes(asked: Asked, rivals: &[Rival]) -> Vec<&'static str> {
    let Asked { is_existing, with_tls, encrypted, shape } = asked;
    let mut notes = vec![
        "Times are per call; above depth 1 of a batch (disk, fuse: one operation). Of few calls, p99.9 is the maximum.",
        "cpu: microseconds per operation; clients: CLOCK_PROCESS_CPUTIME without the checks; servers: schedstat.",
    ];
    let mut add = |is_wanted: bool, note| {
        if is_wanted {
            notes.push(note);
        }
    };
    add(!is_existing, "tcp is loopback, not a network.");
    add(is_existing, "tcp is the network between this machine and the pool's nodes.");
    add(
        shape.is_some(),
        "emulated: each exchange takes at least as long as on such a link; each connection has a link of its own.",
    );
    add(encrypted, "encrypted: AES-256-GCM by the client, in pages of 4 KiB.");
    add(with_tls, "tls: mutual TLS 1.3 with AES-128-GCM; shm never leaves the host and has none.");
    let has = |rival| rivals.contains(&rival);
    add(has(Rival::Disk), "disk: O_DIRECT; the CPU time of kernel threads is not counted.");
    add(
        has(Rival::Fuse),
        "fuse: bindfs over tmpfs, opened with O_DIRECT so that every operation reaches it.",
    );
    add(
        has(Rival::Redis) || has(Rival::Memcached),
        "redis, memcached: over loopback, one key for each block, pipelined to the depth, nothing persistent.",
    );
    add(
        has(Rival::Tokio),
        "tokio: one connection for many requests, over loopback; farpool-rival-tokio, a task for each connection.",
    );
    let by_libfabric = rivals.iter().any(|rival| matches!(rival, Rival::Libfabric(_)));
    add(
        by_libfabric,
        "libfabric: fi_read and fi_write (delivery complete), both sides polling; net, rxm: over loopback; shm: one host.",
    );
    add(
        by_libfabric || has(Rival::Tokio),
        "tokio, libfabric: the client is a process that reports its cpu; libfabric's server is charged for the bursts.",
    );
    notes
}

fn plural(count: u64, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}

/// Prints the report as JSON.
pub(crate) fn show_json(report: &Report) -> Outcome {
    Ok(writeln!(std::io::stdout(), "{}", as_value(report))?)
}

/// Prints the report as text.
pub(crate) fn show(report: &Report) -> Outcome {
    let mut out = std::io::stdout().lock();
    for line in lines(report) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

const HEADER: [&str; 11] =
    ["to", "depth", "p50 us", "p90", "p99", "p99.9", "GB/s", "of memcpy", "cpu client", "server", "s/GiB"];

fn lines(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    let same = |one: &Row, other: &Row| {
        (one.access, one.clients, one.nodes) == (other.access, other.clients, other.nodes)
    };
    for group in report.rows.chunk_by(same) {
        let first = &group[0];
        let (clients, nodes) = (plural(first.clients, "client"), plural(first.nodes, "node"));
        let title = format!("{}, {clients}, {nodes}", first.access.name);
        let mut rows: Vec<Vec<String>> = Vec::new();
        if let Some(empty) = report.empty_rpc_us.filter(|_| first.depth == 1 && first.access.block == SMALL) {
            let mut row = vec![EMPTY_RPC.to_owned(), "1".to_owned()];
            row.extend(empty.map(|quantile| format!("{quantile:.1}")));
            rows.push(row);
        }
        rows.extend(group.iter().map(cells));
        lines.extend(titled::lines(title, &HEADER, &rows));
    }
    if !report.idle.is_empty() {
        let share = |share: f64| format!("{:.2} %", share * 100.0);
        let rows: Vec<Vec<String>> = report
            .idle
            .iter()
            .map(|idle| vec![idle.name.to_owned(), share(idle.client_share), share(idle.server_share)])
            .collect();
        let title = "Of one CPU, while a file is open and nothing is asked for 2 s".to_owned();
        lines.extend(titled::lines(title, &["of", "client", "servers"], &rows));
    }
    lines.push(format!(
        "{} in all, median of {} of {} s, every byte checked; seed {}, work {:016x}.",
        show_bytes(report.size_bytes),
        plural(report.rounds as u64, "round"),
        report.seconds,
        report.seed,
        report.hash
    ));
    lines.push(report.machine.clone());
    lines.extend(report.notes.iter().map(|note| (*note).to_owned()));
    lines
}

fn cells(row: &Row) -> Vec<String> {
    let Figures { p50_us, p90_us, p99_us, p999_us, gb_per_s, client_cpu_us, server_cpu_us, cpu_s_per_gib } =
        row.figures;
    vec![
        row.name.to_owned(),
        row.depth.to_string(),
        format!("{p50_us:.1}"),
        format!("{p90_us:.1}"),
        format!("{p99_us:.1}"),
        format!("{p999_us:.1}"),
        format!("{gb_per_s:.2}"),
        format!("{:.2}", row.of_memcpy),
        format!("{client_cpu_us:.1}"),
        server_cpu_us.map_or("-".to_owned(), |server| format!("{server:.1}")),
        format!("{cpu_s_per_gib:.2}"),
    ]
}

fn as_value(report: &Report) -> Value {
    let points: Vec<Value> = report
        .rows
        .iter()
        .map(|row| {
            let figures = &row.figures;
            json!({
                "access": row.access.word,
                "block_bytes": row.access.block,
                "nodes": row.nodes,
                "clients": row.clients,
                "depth": row.depth,
                "target": row.name,
                "p50_us": figures.p50_us,
                "p90_us": figures.p90_us,
                "p99_us": figures.p99_us,
                "p999_us": figures.p999_us,
                "gb_per_s": figures.gb_per_s,
                "of_memcpy": row.of_memcpy,
                "client_cpu_us": figures.client_cpu_us,
                "server_cpu_us": figures.server_cpu_us,
                "cpu_s_per_gib": figures.cpu_s_per_gib,
            })
        })
        .collect();
    let idle: Vec<Value> = report
        .idle
        .iter()
        .map(|idle| {
            json!({ "target": idle.name, "client_share": idle.client_share, "server_share": idle.server_share })
        })
        .collect();
    let empty = report
        .empty_rpc_us
        .map(|[p50, p90, p99, p999]| json!({ "p50_us": p50, "p90_us": p90, "p99_us": p99, "p999_us": p999 }));
    json!({
        "machine": report.machine,
        "size_bytes": report.size_bytes,
        "rounds": report.rounds,
        "seconds": report.seconds,
        "seed": report.seed,
        "work": format!("{:016x}", report.hash),
        "empty_rpc": empty,
        "idle": idle,
        "points": points,
        "notes": report.notes,
    })
}
