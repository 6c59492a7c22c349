//! `farpool tiers`: shows the memory tiers of this machine and measures their bandwidth.

use crate::Outcome;
use crate::exit::Failure;
use crate::table;
use crate::units::show_bytes;
use farpool_tiers::calibrate::{Calibration, calibrate};
use farpool_tiers::kept;
use farpool_tiers::plan::traffic::TierRates;
use farpool_tiers::topology::{NumaNode, Topology};
use serde_json::{Value, json};
use std::io::Write;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  farpool tiers
  farpool tiers --fresh --json")]
pub(crate) struct Args {
    /// Measure again, even if results of an earlier run are stored
    #[arg(long)]
    fresh: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let topology = Topology::read().map_err(Failure::failed)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let path = kept::folder().map(|folder| kept::path(&folder, &topology, threads));
    let found = path.as_deref().filter(|_| !args.fresh).and_then(kept::read);
    let is_kept = found.is_some();
    let calibration = match found {
        Some(calibration) => calibration,
        None => calibrate(&topology, threads).map_err(Failure::failed)?,
    };
    if let Some(path) = path.as_deref().filter(|_| !is_kept)
        && let Err(error) = kept::write(path, &calibration)
    {
        eprintln!(
            "farpool: {}: the measurement cannot be kept: {error}; the next run measures again",
            path.display()
        );
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", json_of(&topology, &calibration, is_kept))?;
        return Ok(());
    }
    for line in lines(&topology, &calibration) {
        writeln!(out, "{line}")?;
    }
    writeln!(out)?;
    for line in words(&topology, &calibration, is_kept) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// Returns the memory tier of a NUMA node: `near`, `far`, or `-` for neither.
fn tier_of(topology: &Topology, node: &NumaNode) -> &'static str {
    match topology.tiers() {
        Some((near, _)) if near.id == node.id => "near",
        Some((_, far)) if far.id == node.id => "far",
        None => "near",
        Some(_) => "-",
    }
}

/// Returns the measured bandwidths of a NUMA node. `None` for a node that is not part of a tier.
fn rates_of(topology: &Topology, calibration: &Calibration, node: &NumaNode) -> Option<TierRates> {
    match tier_of(topology, node) {
        "near" => Some(calibration.near),
        "far" => calibration.far.map(|(far, _)| far),
        _ => None,
    }
}

fn lines(topology: &Topology, calibration: &Calibration) -> Vec<String> {
    let gb = |rate: f64| format!("{:.1}", rate / 1e9);
    let some = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let row = |node: &NumaNode| {
        let rates = rates_of(topology, calibration, node);
        let promised = node.promised.read_mb_per_s.map(|rate| gb(rate as f64 * 1e6));
        let latency = node.promised.read_latency_ns.map(|ns| ns.to_string());
        vec![
            node.id.to_string(),
            tier_of(topology, node).to_owned(),
            if node.is_cpu_less() { "no CPUs".to_owned() } else { node.cpus.len().to_string() },
            show_bytes(node.bytes),
            show_bytes(node.free_bytes),
            some(rates.map(|rates| gb(rates.read))),
            some(rates.map(|rates| gb(rates.write))),
            some(rates.map(|rates| gb(rates.both))),
            some(promised),
            some(latency),
            some(node.weight.map(|weight| weight.to_string())),
        ]
    };
    let header = [
        "node",
        "tier",
        "CPUs",
        "memory",
        "free",
        "read GB/s",
        "write",
        "copy",
        "promised GB/s",
        "promised ns",
        "weight",
    ];
    table::lines(&header, &topology.nodes.iter().map(row).collect::<Vec<_>>())
}

fn words(topology: &Topology, calibration: &Calibration, is_kept: bool) -> Vec<String> {
    let mut words = Vec::new();
    match calibration.rates() {
        Some(rates) => words.push(format!(
            "Both tiers together: {:.1} GB/s. They are loaded evenly with {:.0} % of the bytes near.",
            rates.together / 1e9,
            100.0 * rates.even_share()
        )),
        None => words.push(format!(
            "{} NUMA node with memory: one tier, so there is nothing to place. farpool bench tiers emulates two.",
            topology.nodes.len()
        )),
    }
    let kept = if is_kept { "from an earlier run; --fresh measures again" } else { "measured now" };
    words.push(format!(
        "Rates of {} threads, of bytes read and written (of a copy, half of each), {kept}.",
        calibration.threads
    ));
    words
}

fn json_of(topology: &Topology, calibration: &Calibration, is_kept: bool) -> Value {
    let node = |node: &NumaNode| {
        json!({
            "node": node.id, "tier": tier_of(topology, node), "cpus": node.cpus, "bytes": node.bytes,
            "free_bytes": node.free_bytes, "distances": node.distances, "weight": node.weight,
            "kernel_tier": node.kernel_tier,
            "promised": {
                "read_mb_per_s": node.promised.read_mb_per_s, "write_mb_per_s": node.promised.write_mb_per_s,
                "read_latency_ns": node.promised.read_latency_ns,
                "write_latency_ns": node.promised.write_latency_ns,
            },
        })
    };
    json!({
        "nodes": topology.nodes.iter().map(node).collect::<Vec<_>>(),
        "measured": kept::to_json(calibration), "is_kept": is_kept,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use farpool_tiers::topology::Promised;

    fn node(id: u32, cpus: &[u32]) -> NumaNode {
        NumaNode {
            id,
            cpus: cpus.to_vec(),
            bytes: 32 << 30,
            free_bytes: 1 << 30,
            available_bytes: 1 << 30,
            distances: Vec::new(),
            promised: Promised::default(),
            weight: None,
            kernel_tier: None,
        }
    }

    #[test]
    fn tiers_are_named_and_what_is_not_known_is_left_open() {
        let near = TierRates { read: 30e9, write: 20e9, both: 31e9 };
        let topology = Topology { nodes: vec![node(0, &[0, 1]), node(1, &[])] };
        let calibration = Calibration { near, far: Some((TierRates::shared(20e9), 45e9)), threads: 2 };
        let lines = lines(&topology, &calibration);
        assert!(lines[2].contains("near") && lines[2].contains("31.0"), "{lines:?}");
        assert!(
            lines[3].contains("far") && lines[3].contains("no CPUs") && lines[3].ends_with('-'),
            "{lines:?}"
        );
        let words = words(&topology, &calibration, true);
        assert!(words[0].contains("45.0 GB/s") && words[0].contains("61 % of the bytes near"), "{words:?}");
        let json = json_of(&topology, &calibration, false);
        assert_eq!(json["measured"]["together"], 45e9);
    }

    #[test]
    fn one_node_is_one_tier() {
        let topology = Topology { nodes: vec![node(0, &[0])] };
        let calibration = Calibration { near: TierRates::shared(20e9), far: None, threads: 1 };
        assert!(words(&topology, &calibration, false)[0].contains("one tier"));
    }
}
