//! `farpool status`: shows the state of a pool.

use crate::exit::Failure;
use crate::signals::Stop;
use crate::units::show_bytes;
use crate::{Outcome, exposure, table, units};
use farpool::{FileClass, FileInfo, MemoryKind, NodeMemory, NodeStatus, Pool, PoolOptions, StatusReport};
use farpool_command::json::JsonLine;
use farpool_wire::control::{
    EndangeredFile, RegionCounts, RepairUnderWay, RepairsListed, TenantStatus, Traffic,
};
use serde_json::{Value, json};
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// Show a pool: nodes, regions, sessions, tenants, files, traffic.
#[derive(clap::Args)]
#[command(after_help = "Example:  farpool status --pool farpool://127.0.0.1:7700 --watch")]
pub(crate) struct Args {
    /// Refresh until interrupted
    #[arg(long)]
    watch: bool,
    /// Time between two refreshes, with --watch
    #[arg(long, value_name = "TIME", value_parser = units::millis, default_value = "1s")]
    interval: u32,
    /// Print the state as JSON, one object per refresh
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    exposure: exposure::ClientArgs,
    /// Limit for the published files that are listed
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    files: usize,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let stop = Stop::catch()?;
    let exposure = args.exposure.exposure()?;
    let options = PoolOptions {
        label: Some("farpool status".into()),
        tls: exposure.tls,
        plaintext: exposure.plaintext,
        ..PoolOptions::default()
    };
    let pool = Pool::connect_with(&args.exposure.pool, options)?;
    if !args.watch {
        return look(&pool, args);
    }
    // The main thread waits for the end of the watch. It comes from one of two other threads: the one that shows the
    // status, if that fails, or the one that waits for a signal.
    std::thread::scope(|scope| {
        let (ended, end) = std::sync::mpsc::channel::<Outcome>();
        let pool = &pool;
        let (quit, quitting) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            let outcome = loop {
                if let Err(failure) = look(pool, args) {
                    break Err(failure);
                }
                match quitting.recv_timeout(Duration::from_millis(args.interval.into())) {
                    Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
                    _ => break Ok(()),
                }
            };
            let _ = ended.send(outcome);
        });
        let waiting = std::thread::Builder::new().spawn(move || {
            stop.wait();
            drop(quit);
        });
        waiting.map_err(Failure::failed)?;
        end.recv().unwrap_or(Ok(()))
    })
}

fn look(pool: &Pool, args: &Args) -> Outcome {
    let report = pool.status()?;
    let memory = pool.list_memory()?;
    let files = pool.list("")?;
    // A broker of an earlier version does not say.
    let repairs = pool.repairs().ok();
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", JsonLine(&as_json(&report, &memory, &files, repairs.as_ref())))?;
    } else {
        if args.watch && std::io::stdout().is_terminal() {
            write!(out, "\x1b[H\x1b[2J")?;
        }
        for line in as_text(&report, &memory, &files, repairs.as_ref(), args.files) {
            writeln!(out, "{line}")?;
        }
    }
    out.flush()?;
    Ok(())
}

/// Returns the memory that a node donates. `None` if it has not told.
fn memory_of<'a>(memory: &'a [NodeMemory], node: &NodeStatus) -> Option<&'a NodeMemory> {
    memory.iter().find(|one| one.node == node.info.node)
}

fn memory_json(memory: &NodeMemory) -> Value {
    let kind = match memory.kind {
        MemoryKind::Ordinary => "ordinary",
        MemoryKind::HugePages => "huge_pages",
        MemoryKind::Device => "device",
    };
    json!({
        "kind": kind,
        "page_bytes": (memory.page_bytes > 0).then_some(memory.page_bytes),
        "numa_node": memory.numa_node.first(),
        "device": (!memory.device.is_empty()).then_some(&*memory.device),
    })
}

fn as_json(
    report: &StatusReport,
    memory: &[NodeMemory],
    files: &[FileInfo],
    repairs: Option<&RepairsListed>,
) -> Value {
    let node = |node: &NodeStatus| {
        let mut shown = node_json(node);
        shown["memory"] = memory_of(memory, node).map_or(Value::Null, memory_json);
        shown
    };
    let file = |file: &FileInfo| file_json(&file.name, file.bytes, file.class, file.is_lost);
    json!({
        "term": report.term.0,
        "sessions": report.sessions,
        "tickets_open": report.tickets_open,
        "file_count": report.files,
        "file_bytes": report.file_bytes,
        "nodes": report.nodes.iter().map(node).collect::<Vec<_>>(),
        "tenants": report.tenants.iter().map(tenant_json).collect::<Vec<_>>(),
        "files": files.iter().map(file).collect::<Vec<_>>(),
        "repairs": repairs.map(repairs_json),
    })
}

/// Returns what published files lack in JSON.
fn repairs_json(repairs: &RepairsListed) -> Value {
    let file = |file: &EndangeredFile| {
        json!({
            "name": &*file.name, "bytes": file.bytes, "copies": file.copies,
            "copies_wanted": file.copies_wanted, "needs_host": file.needs_host,
        })
    };
    let under_way = |repair: &RepairUnderWay| json!({ "name": &*repair.name, "bytes": repair.bytes });
    json!({
        "endangered_files": repairs.endangered_files, "endangered_bytes": repairs.endangered_bytes,
        "leaving_files": repairs.leaving_files, "leaving_bytes": repairs.leaving_bytes,
        "lost_files": repairs.lost_files,
        "first": repairs.first.iter().map(file).collect::<Vec<_>>(),
        "under_way": repairs.under_way.iter().map(under_way).collect::<Vec<_>>(),
    })
}

/// Says what published files lack, in a sentence. `None` if nothing.
fn repairs_text(repairs: &RepairsListed) -> Option<String> {
    let mut parts = Vec::new();
    if repairs.endangered_files > 0 {
        let (files, bytes) = (repairs.endangered_files, show_bytes(repairs.endangered_bytes));
        parts.push(format!(
            "{files} published files lack copies of {bytes}, and would lose bytes with the next node"
        ));
    }
    if repairs.leaving_files > 0 {
        let (files, bytes) = (repairs.leaving_files, show_bytes(repairs.leaving_bytes));
        parts.push(format!("{files} have copies of {bytes} on nodes that are being drained"));
    }
    if parts.is_empty() {
        return None;
    }
    let copying: u64 = repairs.under_way.iter().map(|repair| repair.bytes).sum();
    parts.push(match (copying, repairs.first.iter().find(|file| file.needs_host)) {
        (0, Some(file)) => format!("{} needs a node on another host", file.name),
        (0, None) => "none is being copied yet".to_owned(),
        (copying, _) => format!("{} are being copied", show_bytes(copying)),
    });
    Some(parts.join("; "))
}

/// Returns a node of the pool in JSON.
pub(crate) fn node_json(node: &NodeStatus) -> Value {
    json!({
        "name": &*node.info.name,
        "address": &*node.info.address,
        "host_label": &*node.info.host_label,
        "incarnation": format!("{:016x}", node.info.incarnation.0),
        "alive": node.alive,
        "draining": node.draining,
        "heard_ms_ago": node.heard_ms_ago,
        "present_ms": node.present_ms,
        "region_bytes": node.info.region_bytes,
        "regions": regions_json(&node.counts),
        "sessions": node.counts.sessions,
        "traffic": traffic_json(&node.traffic),
    })
}

/// Returns the numbers of a node's regions in JSON.
pub(crate) fn regions_json(counts: &RegionCounts) -> Value {
    json!({
        "free": counts.free, "leased": counts.leased, "named": counts.named,
        "cleaning": counts.cleaning, "away": counts.away, "locked": counts.locked,
    })
}

/// Returns the counters of a node in JSON.
pub(crate) fn traffic_json(traffic: &Traffic) -> Value {
    json!({
        "read_ops": traffic.read_ops, "read_bytes": traffic.read_bytes,
        "write_ops": traffic.write_ops, "write_bytes": traffic.write_bytes,
        "refused_ops": traffic.refused_ops, "mapped_regions": traffic.mapped_regions,
        "spun_ns": traffic.spun_ns,
    })
}

/// Returns a tenant in JSON.
pub(crate) fn tenant_json(has: &TenantStatus) -> Value {
    json!({
        "tenant": &*has.tenant, "held_bytes": has.held_bytes, "promised_bytes": has.promised_bytes,
        "quota_bytes": (has.quota_bytes > 0).then_some(has.quota_bytes),
    })
}

/// Returns a published file in JSON.
pub(crate) fn file_json(name: &str, bytes: u64, class: FileClass, is_lost: bool) -> Value {
    json!({ "name": name, "bytes": bytes, "class": class.word(), "lost": is_lost })
}

/// Says whether a node is there, as tables show it.
pub(crate) fn state(node: &NodeStatus) -> String {
    match (node.alive, node.draining) {
        (true, false) => "up".into(),
        (true, true) => "draining".into(),
        (false, _) => format!("silent for {} s", node.heard_ms_ago / 1000),
    }
}

/// Header of the table of tenants.
pub(crate) const TENANTS: [&str; 4] = ["tenant", "held", "promised", "quota"];

/// Returns a row for each tenant.
pub(crate) fn tenants(report: &StatusReport) -> Vec<Vec<String>> {
    let tenants = report.tenants.iter().map(|has| {
        let quota = if has.quota_bytes > 0 { show_bytes(has.quota_bytes) } else { "none".into() };
        vec![has.tenant.to_string(), show_bytes(has.held_bytes), show_bytes(has.promised_bytes), quota]
    });
    tenants.collect()
}

fn as_text(
    report: &StatusReport,
    memory: &[NodeMemory],
    files: &[FileInfo],
    repairs: Option<&RepairsListed>,
    most: usize,
) -> Vec<String> {
    let total = |count: fn(&NodeStatus) -> u32| -> u64 {
        let alive = report.nodes.iter().filter(|node| node.alive);
        alive.map(|node| u64::from(count(node)) * node.info.region_bytes).sum()
    };
    let mut lines = vec![format!(
        "broker term {} | {} sessions | {} nodes | free {} | leased {} | published {} files, {}",
        report.term,
        report.sessions,
        report.nodes.len(),
        show_bytes(total(|node| node.counts.free)),
        show_bytes(total(|node| node.counts.leased)),
        report.files,
        show_bytes(report.file_bytes),
    )];
    lines.extend(repairs.and_then(repairs_text));
    lines.push(String::new());
    let rows: Vec<Vec<String>> = report
        .nodes
        .iter()
        .map(|node| {
            let size = |regions: u32| show_bytes(u64::from(regions) * node.info.region_bytes);
            vec![
                node.info.name.to_string(),
                node.info.address.to_string(),
                node.info.host_label.to_string(),
                memory_of(memory, node).map_or_else(|| "unknown".into(), ToString::to_string),
                state(node),
                size(node.counts.free),
                size(node.counts.leased),
                size(node.counts.named),
                size(node.counts.cleaning),
                size(node.counts.away),
                node.counts.sessions.to_string(),
                show_bytes(node.traffic.read_bytes),
                show_bytes(node.traffic.write_bytes),
                node.traffic.refused_ops.to_string(),
                node.traffic.mapped_regions.to_string(),
            ]
        })
        .collect();
    let header = [
        "node",
        "address",
        "host",
        "memory",
        "state",
        "free",
        "leased",
        "named",
        "wiping",
        "away",
        "sessions",
        "tcp read",
        "tcp written",
        "refused",
        "mapped",
    ];
    if rows.is_empty() {
        lines.push("No node has joined. Start one: farpool node --name n1 --memory 1GiB --broker …".into());
    } else {
        lines.extend(table::lines(&header, &rows));
    }
    if !report.tenants.is_empty() {
        lines.push(String::new());
        lines.extend(table::lines(&TENANTS, &tenants(report)));
    }
    if !files.is_empty() {
        lines.push(String::new());
        let rows: Vec<Vec<String>> = files
            .iter()
            .take(most)
            .map(|file| {
                let state = if file.is_lost { "lost" } else { "whole" };
                vec![file.name.clone(), file.class.word().into(), show_bytes(file.bytes), state.into()]
            })
            .collect();
        lines.extend(table::lines(&["published file", "class", "size", "state"], &rows));
        if files.len() > most {
            lines.push(format!("and {} more (--files {})", files.len() - most, files.len()));
        }
    }
    lines
}
