//! Tests of `farpool certs`, and of pools of real processes that use its certificates.

use crate::processes::{Process, binary};
use crate::programs::{PATIENCE, eventually, output};
use farpool::{
    CreateOptions, ErrorKind, FileClass, Pool, PoolOptions, Tls, TlsErrorKind, TlsFiles, TransportChoice,
};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn certs(args: &[&str]) -> Output {
    output(Command::new(binary()).arg("certs").args(args))
}

/// Runs `farpool certs`, which must succeed. Returns its standard output.
fn done(args: &[&str]) -> String {
    let output = certs(args);
    assert!(output.status.success(), "{args:?} said {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Runs `farpool certs`, which must fail with this exit code. Returns its message.
fn fails(args: &[&str], code: i32) -> String {
    let output = certs(args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{args:?} said {said}");
    said
}

/// Returns the name and contents of every file in a folder.
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

/// Starts a broker and a node with the certificates in the folder `dir`.
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
        "--no-reserve",
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
        crl: None,
    });
    assert_eq!(error.err().map(|error| error.kind()), Some(TlsErrorKind::OtherCa));
    let broker = Process::start(&["broker", "--listen", "127.0.0.1:0", "--certs", &our]);
    let output = output(Command::new(binary()).args(["status", "--pool", &broker.ready, "--certs", &their]));
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("broker.farpool") && said.contains(&their), "{said}");
}

/// Connects with the certificate of this name in a folder.
fn connect_as(url: &str, folder: &Path, stem: &str) -> Result<Pool, farpool::Error> {
    let tls = Some(Tls::load(&TlsFiles::in_folder(folder, stem)).expect("good files"));
    Pool::connect_with(url, PoolOptions { tls, transport: TransportChoice::Tcp, ..PoolOptions::default() })
}

fn replace(folder: &Path, file: &str, text: &[u8]) {
    let beside = folder.join("beside");
    std::fs::write(&beside, text).expect("written");
    std::fs::rename(&beside, folder.join(file)).expect("replaced");
}

/// The new certificates are of another CA, and the client at the end trusts only that CA. It can connect only if the
/// servers use the new certificates.
#[test]
fn certificates_are_renewed_under_load_without_a_restart_or_a_failure() {
    let (ours, other) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let [dir, other_dir] = [&ours, &other].map(|folder| folder.path().display().to_string());
    for dir in [&dir, &other_dir] {
        done(&["init", dir, "--node", "n1"]);
    }
    let (broker, _node) = pool_of(&dir);
    let (is_over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let pool = connect_as(&broker.ready, ours.path(), "admin").expect("a session");
                let file = pool.create("f", FileClass::Cache, CreateOptions::default()).expect("created");
                file.write_at(0, b"under load").expect("a write");
                let mut back = [0; 10];
                file.read_at(0, &mut back).expect("a read");
                assert_eq!(&back, b"under load");
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        let read = |folder: &Path, file: &str| std::fs::read(folder.join(file)).expect("there");
        // All parties trust both CAs before any has a certificate of the new CA, so no connection fails meanwhile.
        let both = [read(ours.path(), "ca.pem"), read(other.path(), "ca.pem")].concat();
        replace(ours.path(), "ca.pem", &both);
        for stem in ["broker", "node-n1"] {
            for end in ["key", "pem"] {
                let file = format!("{stem}.{end}");
                replace(ours.path(), &file, &read(other.path(), &file));
            }
        }
        let pool = eventually("broker and node use the new certificates", || {
            let use_it = || {
                let pool = connect_as(&broker.ready, other.path(), "admin")?;
                let file = pool.create("g", FileClass::Cache, CreateOptions::default())?;
                file.write_at(0, b"new").map(|()| pool)
            };
            use_it().map_err(|error: farpool::Error| error.to_string())
        });
        drop(pool);
        let before = rounds.load(Ordering::Relaxed);
        let begun = Instant::now();
        while rounds.load(Ordering::Relaxed) < before + 3 {
            assert!(!load.is_finished() && begun.elapsed() < PATIENCE, "the load goes on");
            std::thread::sleep(Duration::from_millis(10));
        }
        is_over.store(true, Ordering::Relaxed);
        load.join().expect("no operation failed");
    });
}

#[test]
fn revoked_certificate_is_refused_by_running_processes_and_the_others_are_not() {
    let parent = tempfile::tempdir().expect("a folder");
    let dir = parent.path().display().to_string();
    done(&["init", &dir, "--node", "n1", "--tenant", "a", "--tenant", "b"]);
    let (broker, _node) = pool_of(&dir);
    connect_as(&broker.ready, parent.path(), "tenant-a").expect("not revoked yet");
    done(&["revoke", &dir, "--cert", "tenant-a"]);
    eventually("tenant a is refused", || match connect_as(&broker.ready, parent.path(), "tenant-a") {
        Err(error) if error.to_string().contains("its CA has revoked it") => Ok(()),
        Err(error) => Err(error.to_string()),
        Ok(_) => Err("it is still let in".to_owned()),
    });
    for stem in ["tenant-b", "admin"] {
        connect_as(&broker.ready, parent.path(), stem).expect("not revoked");
    }
    // A new certificate of the same tenant has another serial number.
    done(&["renew", &dir, "--cert", "tenant-a"]);
    connect_as(&broker.ready, parent.path(), "tenant-a").expect("the new certificate is not revoked");
    done(&["revoke", &dir, "--cert", "tenant-b"]);
    let listed = std::fs::read_to_string(parent.path().join("revoked.txt")).expect("the list");
    assert_eq!(listed.lines().count(), 2, "what was revoked before stays so: {listed}");
}

#[test]
fn pattern_stands_for_a_certificate_for_each_number() {
    let parent = tempfile::tempdir().expect("a folder");
    let dir = parent.path().display().to_string();
    done(&["init", &dir, "--node", "pod-[8-11]"]);
    for number in 8..=11 {
        assert!(parent.path().join(format!("node-pod-{number}.pem")).exists(), "{number}");
    }
    for wrong in ["n[3-1]", "n[a-b]", "n[0-4096]", "n[1]"] {
        assert!(fails(&["add", &dir, "--node", wrong], 2).contains("NAME[FIRST-LAST]"), "{wrong}");
    }
}
