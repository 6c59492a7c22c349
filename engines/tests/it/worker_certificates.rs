//! Workers and sessions with certificates of the pool: encrypted connections, and one identity on both sides.

use crate::plans::sales;
use crate::pools::{FARPOOL, FARPOOL_SQL, PATIENCE, Process, command};
use farpool::{Pool, PoolOptions, Protection, Tls};
use farpool_tests::programs::output;
use farpool_transport::TlsFiles;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

const QUERY: &str = "SELECT count(*) AS n FROM sales WHERE item >= 0";

/// Runs a statement as a tenant, with these workers. Returns the exit code and both streams.
fn ask(certs: &Path, pool: &str, tenant: &str, workers: &[&str], sql: &str) -> (Option<i32>, String, String) {
    let mut command = command(FARPOOL_SQL);
    command.args(["--pool", pool, "--tenant", tenant, "--certs"]).arg(certs);
    command.args(workers.iter().flat_map(|worker| ["--workers", worker]));
    command.args(["--explain", "--json", "--quiet", "--format", "csv", "-c", sql]);
    let output = output(&mut command);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn workers_with_certificates_serve_sessions_of_their_own_tenant_and_nobody_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let certs = folder.path().join("certs");
    let path = certs.to_str().expect("a path");
    let issue = ["certs", "init", path, "--node", "one", "--tenant", "alpha", "--tenant", "beta"];
    assert!(output(command(FARPOOL).args(issue)).status.success());
    let with = ["--certs", path];
    let broker = ["broker", "--listen", "127.0.0.1:0", "--store", "memory"];
    let broker = Process::start(FARPOOL, &[&broker[..], &with].concat());
    let node = ["node", "--name", "one", "--memory", "256MiB", "--region-size", "16MiB", "--no-reserve"];
    let _node = Process::start(FARPOOL, &[&node[..], &["--broker", &broker.ready], &with].concat());

    let options = PoolOptions {
        tls: Some(Tls::load(&TlsFiles::in_folder(&certs, "tenant-alpha")).expect("certificates")),
        protection: Some(Protection::None),
        ..PoolOptions::default()
    };
    let pool = Pool::connect_with(&broker.ready, options).expect("a session");
    let sales = sales();
    pool.put_table("sales", sales.schema(), [sales]).expect("put");

    let worker = ["worker", "--listen", "127.0.0.1:0", "--pool", &broker.ready, "--near", "one"];
    let worker = || Process::start(FARPOOL_SQL, &[&worker[..], &with, &["--tenant", "alpha"]].concat());
    let workers = [worker(), worker()];
    let urls = [&*workers[0].ready, &*workers[1].ready];
    assert!(urls.iter().all(|url| url.starts_with("https://")), "{urls:?}");

    let divided = || {
        let (code, said, told) = ask(&certs, &broker.ready, "alpha", &urls, QUERY);
        assert_eq!((code, said.trim()), (Some(0), "n\n470000"), "{told}");
        let report: serde_json::Value = serde_json::from_str(&told).expect("one object");
        assert!(report["tasks"].as_array().is_some_and(|tasks| tasks.len() == 2), "{told}");
    };
    divided();

    // The other tenant does not take these workers for its own, and does without them.
    let (code, said, told) = ask(&certs, &broker.ready, "beta", &urls[..1], "SELECT 1 AS n");
    assert_eq!((code, said.trim()), (Some(0), "n\n1"), "{told}");
    assert!(told.contains("is left out") && told.contains("beta") && told.contains("alpha"), "{told}");
    let plain = urls[0].replace("https", "http");
    let (code, _, told) = ask(&certs, &broker.ready, "alpha", &[&plain], QUERY);
    assert!(code == Some(1) && told.contains("https://"), "{told}");

    // Whoever speaks no TLS is disconnected, and the others are served as before.
    let address = urls[0].trim_start_matches("https://").trim_end_matches('/');
    let mut stranger = TcpStream::connect(address).expect("connected");
    stranger.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stranger.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").expect("written");
    let mut answer = Vec::new();
    // An alert may come before the end, and the end may be a reset.
    let _ = stranger.read_to_end(&mut answer);
    assert!(answer.len() < 64, "{answer:?}");
    divided();
}
