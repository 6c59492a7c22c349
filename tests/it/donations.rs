//! Which memory a node donates: what its flags refuse, and what the pool shows.

use crate::bad_input::fails;
use crate::processes::{Process, binary, broker};
use crate::programs::output;
use std::process::Command;

const NODE: [&str; 7] = ["node", "--name", "n", "--memory", "64MiB", "--broker", "farpool://127.0.0.1:1"];

fn refused(flags: &[&str], parts: &[&str]) {
    fails(&[&NODE[..], flags].concat(), 2, parts);
}

/// Returns the numbers of the NUMA nodes that have memory.
fn numa_nodes() -> Vec<u32> {
    let nodes = farpool_region::topology::Topology::read().expect("a topology").nodes;
    nodes.iter().map(|node| node.id).collect()
}

#[test]
fn numa_node_that_is_not_there_is_refused_with_those_that_are() {
    let present = numa_nodes().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    refused(&["--memory-node", "4000"], &["NUMA node 4000", &format!("nodes with memory: {present}")]);
    refused(&["--memory-node", "one"], &["--memory-node", "one"]);
}

#[test]
fn huge_pages_that_are_not_there_are_refused_with_the_command_that_makes_them() {
    // No machine has 64 TiB of them.
    let much = [
        "node",
        "--name",
        "n",
        "--memory",
        "65536GiB",
        "--region-size",
        "2GiB",
        "--broker",
        "farpool://127.0.0.1:1",
    ];
    fails(
        &[&much[..], &["--huge-pages", "2MiB"]].concat(),
        2,
        &["33555456 huge pages", "echo ", "nr_hugepages"],
    );
    refused(&["--huge-pages", "3MiB"], &["3145728", "2097152"]);
    refused(&["--huge-pages", "many"], &["--huge-pages", "many", "MiB"]);
}

#[test]
fn file_that_is_no_dax_device_is_refused() {
    refused(&["--dax", "/dev/null"], &["/dev/null: this is no DAX device", "DAX devices of this host"]);
    refused(&["--dax", "/dev/dax77.7"], &["/dev/dax77.7: No such file"]);
}

#[test]
fn flags_for_memory_that_exclude_each_other_are_refused_together() {
    for (one, other) in [
        (["--dax", "/dev/dax0.0"], ["--huge-pages", "2MiB"]),
        (["--dax", "/dev/dax0.0"], ["--memory-node", "0"]),
        (["--dax", "/dev/dax0.0"], ["--reserve", "1GiB"]),
        (["--huge-pages", "2MiB"], ["--evacuate", "1s"]),
    ] {
        refused(&[one, other].concat(), &[one[0], other[0]]);
    }
}

#[test]
fn status_shows_the_numa_node_that_a_node_donates_memory_of() {
    let chosen = numa_nodes()[0].to_string();
    let broker = broker("memory", "127.0.0.1:0");
    let args = |name| ["node", "--name", name, "--memory", "8MiB", "--region-size", "1MiB", "--broker"];
    let _chosen = Process::start(
        &[&args("chosen")[..], &[&broker.ready, "--no-reserve", "--memory-node", &chosen]].concat(),
    );
    let _any = Process::start(&[&args("any")[..], &[&broker.ready, "--no-reserve"]].concat());
    let status = |flags: &[&str]| {
        let mut status = Command::new(binary());
        let said = output(status.args(["status", "--pool", &broker.ready]).args(flags));
        String::from_utf8(said.stdout).expect("text")
    };
    let said: serde_json::Value = serde_json::from_str(&status(&["--json"])).expect("JSON");
    let memory = |name: &str| {
        let nodes = said["nodes"].as_array().expect("nodes");
        let node = nodes.iter().find(|node| node["name"] == *name);
        node.unwrap_or_else(|| panic!("{name} is there: {said}"))["memory"].clone()
    };
    assert_eq!(memory("chosen")["kind"], "ordinary");
    assert_eq!(memory("chosen")["numa_node"].to_string(), chosen);
    assert_eq!((&memory("any")["kind"], memory("any")["numa_node"].is_null()), (&"ordinary".into(), true));
    assert!(status(&[]).contains(&format!("ordinary, NUMA node {chosen}")), "{}", status(&[]));
}
