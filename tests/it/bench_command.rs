//! Tests that `farpool bench io` and `bench cache` work, with runs as short as possible. They do not measure speed.

use crate::processes::binary;
use crate::programs::output;
use serde_json::Value;
use std::process::Command;

/// Runs `farpool bench io` for two clients, with further flags. Returns its results as JSON.
fn bench(more: &[&str]) -> Value {
    let fixed = ["bench", "io", "--size", "16MiB", "--seconds", "0.01", "--rounds", "1", "--json"];
    let fixed = fixed.into_iter().chain(["--clients", "2", "--depths", "1,16"]);
    let output = output(Command::new(binary()).args(fixed).args(more));
    assert!(output.status.success(), "{more:?} said {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn bench_of_equal_seeds_does_equal_work_whoever_is_measured() {
    // The emulated link has a latency of 500 us, so no operation over it can be faster than that.
    let first = bench(&["--access", "8k-read,8k-write", "--shape", "500,10"]);
    let points = first["points"].as_array().expect("points");
    assert_eq!(points.len(), 2 * 2 * 4, "two accesses at two depths for memcpy, shm, tcp, and tcp emulated");
    for point in points {
        assert!(point["gb_per_s"].as_f64() > Some(0.0), "{point}");
        let is_emulated = point["target"] == "tcp, emulated";
        assert!(!is_emulated || point["p50_us"].as_f64() >= Some(500.0), "{point}");
        assert_eq!(point["server_cpu_us"].is_null(), point["target"] == "memcpy", "{point}");
    }
    // The operations are the same when another target, a file in tmpfs, is measured beside far memory.
    let again = bench(&["--access", "8k-read,8k-write", "--beside", "tmpfs"]);
    assert_eq!(first["work"], again["work"]);
    let other = bench(&["--access", "8k-read,8k-write", "--seed", "2"]);
    assert_ne!(first["work"], other["work"]);
}

#[test]
fn bench_of_a_cache_reads_every_byte_right_and_says_where_it_was_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().to_str().expect("a path");
    let args = [
        "bench", "cache", "--size", "4MiB", "--reads", "2000", "--rounds", "1", "--json", "--folder", folder,
    ];
    let output = output(Command::new(binary()).args(args));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let ways = told["ways"].as_array().expect("ways");
    assert_eq!(ways.iter().map(|way| &way["way"]).collect::<Vec<_>>(), ["tcp", "shm"]);
    for way in ways {
        let [near, far, missed] =
            ["near", "far", "missed"].map(|share| way[share].as_f64().expect("a share"));
        assert!((near + far + missed - 1.0).abs() < 1e-9 && near > 0.0, "{way}");
    }
}

// The benchmark itself fails if the program beside far memory did other operations than far memory did.
#[test]
fn bench_beside_a_program_has_it_do_the_same_work_and_counts_its_cpu_time() {
    let found = bench(&["--access", "8k-read,8k-write", "--beside", "tokio"]);
    let points = found["points"].as_array().expect("points");
    let of_program: Vec<_> = points.iter().filter(|point| point["target"] == "tokio").collect();
    assert_eq!(of_program.len(), 2 * 2, "two accesses at two depths");
    for point in of_program {
        for key in ["gb_per_s", "p50_us", "client_cpu_us", "server_cpu_us"] {
            assert!(point[key].as_f64() > Some(0.0), "{key} of {point}");
        }
    }
}

#[test]
fn bench_beside_a_server_that_is_not_installed_says_how_to_get_it() {
    let args = ["bench", "io", "--size", "16MiB", "--seconds", "0.01", "--rounds", "1", "--beside", "redis"];
    let output = output(Command::new(binary()).args(args).env("PATH", ""));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("apt-get install redis-server"), "{said}");
}
