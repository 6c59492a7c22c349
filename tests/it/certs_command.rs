//! Tests of `farpool certs`, and of pools of real processes that use its certificates.

use crate::processes::{Process, binary};
use crate::programs::output;
use farpool::{
    CreateOptions, ErrorKind, FileClass, Pool, PoolOptions, Tls, TlsErrorKind, TlsFiles, TransportChoice,
};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

fn certs(args: &[&str]) -> Output {
    output(Command::new(binary()).arg("certs").args(args))
}

/// Runs the command, which must succeed. Returns its standard output.
fn done(args: &[&str]) -> String {
    let output = certs(args);
    assert!(output.status.success(), "{args:?} said {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Runs the command, which must fail with this code. Returns its message.
fn fails(args: &[&str], code: i32) -> String {
    let output = certs(args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{args:?} said {said}");
    said
}

/// Returns every file of a folder, with its contents.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    entries
        .map(|entry| {
            (entry.file_name().into_string().expect("text"), std::fs::read(entry.path()).expect("read"))
        })
        .collect()
}

#[test]
fn certs_init_makes_what_was_asked_for_with_keys_for_the_owner_only() {
    let parent = tempfile::tempdir().expect("a folder");
    let folder = parent.path().join("certs");
    let dir = folder.display().to_string();
    let printed = done(&["init", &dir, "--node", "n1", "--node", "n2", "--tenant", "analytics"]);
    for part in ["broker.farpool", "n-7d26e74cb88b6b67.node.farpool", "analytics.tenant.farpool", "--certs"] {
        assert!(printed.contains(part), "{printed}");
    }
    let stems = ["admin", "broker", "ca", "node-n1", "node-n2", "tenant-analytics"];
    let expected: Vec<String> =
        stems.iter().flat_map(|stem| [format!("{stem}.key"), format!("{stem}.pem")]).collect();
    assert_eq!(contents(&folder).into_keys().collect::<Vec<_>>(), expected);
    let mode = |name: &str| std::fs::metadata(folder.join(name)).expect("there").permissions().mode() & 0o777;
    for stem in stems {
        assert_eq!(mode(&format!("{stem}.key")), 0o600, "{stem}");
    }
    for stem in stems.into_iter().filter(|stem| *stem != "ca") {
        let tls = Tls::load(&TlsFiles::in_folder(&folder, stem)).expect("good");
        assert!(printed.contains(&tls.identity().dns_name()), "{printed}");
    }
}

#[test]
fn certs_never_overwrites_a_file_and_makes_none_if_one_is_there() {
    let parent = tempfile::tempdir().expect("a folder");
    let dir = parent.path().display().to_string();
    done(&["init", &dir, "--node", "n1"]);
    let before = contents(parent.path());
    assert!(fails(&["init", &dir, "--node", "n9"], 1).contains("ca.pem"));
    assert!(fails(&["add", &dir, "--node", "n2", "--node", "n1"], 1).contains("node-n1.pem"));
    assert_eq!(contents(parent.path()), before);
    done(&["add", &dir, "--node", "n2", "--tenant", "a", "--days", "7"]);
    let after = contents(parent.path());
    assert!(before.iter().all(|(name, bytes)| after.get(name) == Some(bytes)));
    assert_eq!(after.len(), before.len() + 4);
    for stem in ["node-n2", "tenant-a", "node-n1"] {
        Tls::load(&TlsFiles::in_folder(parent.path(), stem)).expect("of the same CA");
    }
}

#[test]
fn certs_show_tells_identity_dates_and_fingerprint() {
    let parent = tempfile::tempdir().expect("a folder");
    let dir = parent.path().display().to_string();
    done(&["init", &dir, "--tenant", "a", "--days", "30"]);
    assert!(done(&["show", &dir]).contains("a.tenant.farpool"));
    let shown: serde_json::Value = serde_json::from_str(&done(&["show", &dir, "--json"])).expect("JSON");
    let shown = shown.as_array().expect("an array");
    let of = |file: &str| shown.iter().find(|one| one["file"] == file).expect("listed");
    assert_eq!(shown.len(), 4);
    let tenant = of("tenant-a.pem");
    assert_eq!(tenant["identity"], "a.tenant.farpool");
    assert_eq!(tenant["state"], "valid");
    assert_eq!(tenant["fingerprint_sha256"].as_str().map(str::len), Some(64));
    let days = |one: &serde_json::Value| {
        let second = |key: &str| one[key].as_u64().expect("a number");
        (second("not_after") - second("not_before")) / 86_400
    };
    assert_eq!((days(tenant), days(of("ca.pem"))), (30, 3650));
    assert!(of("ca.pem")["identity"].is_null());
}

#[test]
fn certs_arguments_without_meaning_are_refused() {
    let parent = tempfile::tempdir().expect("a folder");
    let dir = parent.path().display().to_string();
    for (flag, value) in [("--node", "a/b"), ("--node", ".."), ("--tenant", "A"), ("--tenant", "a.b")] {
        assert!(fails(&["init", &dir, flag, value], 2).contains(flag), "{flag} {value}");
    }
    assert!(fails(&["init", &dir, "--days", "0"], 2).contains("--days"));
    assert!(fails(&["add", &dir], 2).contains("--node"));
    assert!(fails(&["add", &dir, "--node", "n1"], 2).contains("ca.key"));
    assert!(fails(&["show", &dir], 2).contains(&dir));
    assert!(contents(parent.path()).is_empty());
}

/// Starts a broker and a node with certificates of a folder.
fn pool_of(dir: &str) -> (Process, Process) {
    let broker = Process::start(&["broker", "--listen", "127.0.0.1:0", "--certs", dir]);
    let node = Process::start(&[
        "node",
        "--name",
        "n1",
        "--memory",
        "32MiB",
        "--region-size",
        "1MiB",
        "--broker",
        &broker.ready,
        "--certs",
        dir,
    ]);
    (broker, node)
}

#[test]
fn pool_with_certificates_serves_who_has_one_and_tells_others_why_not() {
    let parent = tempfile::tempdir().expect("a folder");
    let dir = parent.path().display().to_string();
    done(&["init", &dir, "--node", "n1", "--tenant", "a"]);
    let (broker, _node) = pool_of(&dir);
    let tls = |stem: &str| Tls::load(&TlsFiles::in_folder(parent.path(), stem)).expect("good");
    for transport in [TransportChoice::Tcp, TransportChoice::Shm] {
        for stem in ["tenant-a", "admin"] {
            let options =
                PoolOptions { transport, tls: Some(tls(stem)), protection: None, ..PoolOptions::default() };
            let pool = Pool::connect_with(&broker.ready, options).expect("a session");
            let file = pool.create("f", FileClass::Cache, CreateOptions::default()).expect("created");
            let bytes: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
            file.write_at(7, &bytes).expect("a write");
            let mut back = vec![0; bytes.len()];
            file.read_at(7, &mut back).expect("a read");
            assert!(back == bytes, "{stem} over {transport:?}");
        }
    }
    let error = Pool::connect(&broker.ready).err().expect("plaintext is refused");
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("TLS"), "{error}");
    let node = PoolOptions { tls: Some(tls("node-n1")), ..PoolOptions::default() };
    let error = Pool::connect_with(&broker.ready, node).err().expect("a node has no session");
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");

    let status = |more: &[&str]| {
        let args = [&["status", "--pool", &broker.ready], more].concat();
        output(Command::new(binary()).args(args))
    };
    for more in [&["--certs", &dir][..], &["--certs", &dir, "--tenant", "a"]] {
        let output = status(more);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(String::from_utf8_lossy(&output.stdout).contains("n1"));
    }
    let output = status(&["--certs", &dir, "--tenant", "b"]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("tenant-a"), "it says which there are");
}

#[test]
fn node_certificate_of_another_folder_is_refused_by_the_pool() {
    let (ours, theirs) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let [our, their] = [&ours, &theirs].map(|folder| folder.path().display().to_string());
    for dir in [&our, &their] {
        done(&["init", dir, "--node", "n1"]);
    }
    let error = Tls::load(&TlsFiles {
        ca: ours.path().join("ca.pem"),
        cert: theirs.path().join("node-n1.pem"),
        key: theirs.path().join("node-n1.key"),
    });
    assert_eq!(error.err().map(|error| error.kind()), Some(TlsErrorKind::OtherCa));
    let broker = Process::start(&["broker", "--listen", "127.0.0.1:0", "--certs", &our]);
    let output = output(Command::new(binary()).args(["status", "--pool", &broker.ready, "--certs", &their]));
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("broker.farpool") && said.contains(&their), "{said}");
}
