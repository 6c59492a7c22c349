//! Tests of the HTTP server of real brokers and nodes: what it shows, to whom, and what it does with bad requests.

use crate::processes::{Process, binary};
use crate::programs::{PATIENCE, output, reserved_address};
use farpool_transport::{Tls, TlsFiles};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const TOKEN: &str = "a-token-of-32-characters-for-test";

/// Answer of a server.
struct Answer {
    status: u16,
    headers: BTreeMap<String, String>,
    body: String,
}

fn connect(address: SocketAddr) -> TcpStream {
    let give_up = Instant::now() + PATIENCE;
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => {
                stream.set_read_timeout(Some(PATIENCE)).expect("a deadline");
                return stream;
            }
            Err(error) => assert!(Instant::now() < give_up, "{address}: {error}"),
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// Sends bytes and returns the answer, which ends with the connection.
fn exchange(stream: &mut (impl Read + Write), request: &[u8]) -> Answer {
    stream.write_all(request).expect("sent");
    let mut bytes = Vec::new();
    // A TLS peer may end the connection without a last alert.
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {}
        Err(error) => panic!("after {} bytes: {error}", bytes.len()),
    }
    let text = String::from_utf8(bytes).expect("text");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head in {text:?}"));
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a status");
    let headers = lines.filter_map(|line| line.split_once(": "));
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
    Answer { status, headers, body: body.to_owned() }
}

fn request(method: &str, path: &str, headers: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{headers}\r\n")
}

fn get(address: SocketAddr, path: &str, headers: &str) -> Answer {
    exchange(&mut connect(address), request("GET", path, headers).as_bytes())
}

fn json(address: SocketAddr, path: &str) -> Value {
    let answer = get(address, path, "");
    assert_eq!((answer.status, answer.headers["content-type"].as_str()), (200, "application/json"));
    serde_json::from_str(&answer.body).expect("JSON")
}

/// Starts a broker and a node, and returns them with their addresses for HTTP.
fn pool() -> (Process, SocketAddr, Process, SocketAddr) {
    let (of_broker, of_node) = (reserved_address(), reserved_address());
    let broker = Process::start(&["broker", "--listen", "127.0.0.1:0", "--http", &of_broker.to_string()]);
    let node = Process::start(&[
        "node",
        "--name",
        "n1",
        "--memory",
        "8MiB",
        "--region-size",
        "1MiB",
        "--broker",
        &broker.ready,
        "--http",
        &of_node.to_string(),
    ]);
    (broker, of_broker, node, of_node)
}

/// Returns the value of a series.
fn value(metrics: &str, series: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in {metrics}")).parse().expect("a number")
}

#[test]
fn metrics_of_broker_and_node_agree_about_memory_and_count_operations() {
    let (broker, of_broker, _node, of_node) = pool();
    let pool = farpool::Pool::connect(&broker.ready).expect("a session");
    let options =
        farpool::CreateOptions { protection: Some(farpool::Protection::None), ..Default::default() };
    let file = pool.create("f", farpool::FileClass::Pinned, options).expect("created");
    file.write_at(0, &[7; 100_000]).expect("written");
    pool.publish("f", farpool::IfTaken::Refuse).expect("published");

    let node = get(of_node, "/metrics", "").body;
    let states = ["free", "leased", "named", "cleaning", "away"];
    let memory = |metrics: &str, family: &str| -> f64 {
        states.iter().map(|state| value(metrics, &format!("{family}{{node=\"n1\",state=\"{state}\"}}"))).sum()
    };
    assert_eq!(memory(&node, "farpool_node_memory_bytes"), f64::from(8 << 20));
    assert_eq!(value(&node, "farpool_node_joined{node=\"n1\"}"), 1.0);
    assert_eq!(value(&node, "farpool_build_info{version=\"0.1.0\",program=\"node\"}"), 1.0);
    let seals = node.lines().any(|line| {
        line.starts_with("farpool_operation_seconds_count{operation=\"seal_ranges\",") && line.ends_with(" 1")
    });
    assert!(seals, "one seal was counted: {node}");

    let metrics = get(of_broker, "/metrics", "").body;
    assert_eq!(memory(&metrics, "farpool_pool_node_memory_bytes"), f64::from(8 << 20));
    assert_eq!(value(&metrics, "farpool_broker_leads"), 1.0);
    assert_eq!(value(&metrics, "farpool_pool_files{state=\"whole\"}"), 1.0);
    assert_eq!(value(&metrics, "farpool_pool_files{state=\"lost\"}"), 0.0);
    assert_eq!(value(&metrics, "farpool_pool_file_bytes{state=\"whole\"}"), 100_000.0);
    // A session repeats a request that came before the node's first report.
    let publish =
        value(&metrics, "farpool_operation_seconds_count{operation=\"publish_places\",transport=\"tcp\"}");
    assert!(publish >= 1.0, "{publish}");
}

#[test]
fn format_of_metrics_is_the_one_that_the_scraper_prefers() {
    let (_broker, of_broker, _node, _of_node) = pool();
    let plain = get(of_broker, "/metrics", "");
    assert_eq!(plain.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    assert!(plain.body.contains("# TYPE farpool_events_total counter"), "{}", plain.body);
    let open =
        get(of_broker, "/metrics", "Accept: application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1\r\n");
    assert_eq!(open.headers["content-type"], "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(open.body.contains("# TYPE farpool_events counter") && open.body.ends_with("# EOF\n"));
}

#[test]
fn api_shows_the_pool_and_refuses_what_it_does_not_have() {
    let (broker, of_broker, _node, of_node) = pool();
    let pool = farpool::Pool::connect(&broker.ready).expect("a session");
    for name in ["a/1", "a/2", "b/1"] {
        let options =
            farpool::CreateOptions { protection: Some(farpool::Protection::None), ..Default::default() };
        let file = pool.create(name, farpool::FileClass::Pinned, options).expect("created");
        file.write_at(0, b"bytes").expect("written");
        pool.publish(name, farpool::IfTaken::Refuse).expect("published");
    }
    let status = json(of_broker, "/api/v1/status");
    assert_eq!((&status["leads"], &status["file_count"]), (&Value::Bool(true), &Value::from(3)));
    let nodes = json(of_broker, "/api/v1/nodes");
    assert_eq!(nodes["nodes"][0]["name"], "n1");
    let names = |path: &str| -> Vec<String> {
        let files = json(of_broker, path)["files"].as_array().expect("files").clone();
        files.iter().map(|file| file["name"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(names("/api/v1/files"), ["a/1", "a/2", "b/1"]);
    assert_eq!(names("/api/v1/files?prefix=a%2F&after=a/1"), ["a/2"]);
    let sessions = json(of_broker, "/api/v1/sessions");
    assert_eq!(
        (sessions["sessions"].as_array().map(Vec::len), &sessions["more"]),
        (Some(1), &Value::Bool(false))
    );
    assert_eq!(json(of_broker, "/api/v1/tenants")["tenants"][0]["tenant"], "local");
    assert_eq!(json(of_node, "/api/v1/status")["name"], "n1");

    for (path, status, says) in [
        ("/api/v1/files?limit=3", 400, "prefix and after"),
        ("/api/v1/files?prefix=a&prefix=b", 400, "twice"),
        ("/api/v1/files?prefix=%00", 400, "prefix"),
        ("/api/v1/nodes?x=1", 400, "none"),
        ("/api/v1/volumes", 404, "/api/v1/files"),
        ("/api/v2/status", 404, "/api/v1/status"),
    ] {
        let answer = get(of_broker, path, "");
        let body: Value = serde_json::from_str(&answer.body).expect("JSON");
        assert_eq!((answer.status, &body["error"]["status"]), (status, &Value::from(status)), "{path}");
        assert!(body["error"]["message"].as_str().is_some_and(|why| why.contains(says)), "{path}: {body}");
    }
}

#[test]
fn node_is_ready_once_a_broker_has_registered_it() {
    let (of_broker, of_node) = (reserved_address(), reserved_address());
    let node = [
        "node",
        "--name",
        "n1",
        "--memory",
        "8MiB",
        "--region-size",
        "1MiB",
        "--no-reserve",
        "--broker",
        &format!("farpool://{of_broker}"),
        "--http",
        &of_node.to_string(),
    ];
    let mut child =
        Command::new(binary()).args(node).stdout(std::process::Stdio::null()).spawn().expect("a node");
    let lonely = get(of_node, "/readyz", "");
    assert_eq!(lonely.status, 503, "{}", lonely.body);
    assert_eq!(get(of_node, "/healthz", "").status, 200);
    let _broker = Process::start(&["broker", "--listen", &of_broker.to_string()]);
    let give_up = Instant::now() + PATIENCE;
    while get(of_node, "/readyz", "").status != 200 {
        assert!(Instant::now() < give_up, "the node is not ready within {PATIENCE:?}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
    child.kill().expect("killed");
    child.wait().expect("gone");
}

#[test]
fn bad_requests_are_answered_with_their_status_and_the_server_serves_on() {
    let (_broker, of_broker, _node, _of_node) = pool();
    let ask = |bytes: &[u8]| exchange(&mut connect(of_broker), bytes).status;
    assert_eq!(get(of_broker, "/", "").status, 404);
    assert_eq!(get(of_broker, "/metrics/", "").status, 404);
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "get"] {
        let answer = exchange(&mut connect(of_broker), request(method, "/metrics", "").as_bytes());
        assert_eq!((answer.status, answer.headers["allow"].as_str()), (405, "GET, HEAD"), "{method}");
    }
    let head = exchange(&mut connect(of_broker), request("HEAD", "/healthz", "").as_bytes());
    assert_eq!((head.status, head.headers["content-length"].as_str(), head.body.as_str()), (200, "3", ""));
    assert_eq!(ask(request("GET", "/metrics", &format!("x: {}\r\n", "a".repeat(9_000))).as_bytes()), 431);
    assert_eq!(ask(request("GET", "/metrics", &"x: y\r\n".repeat(70)).as_bytes()), 431);
    assert_eq!(ask(request("GET", &format!("/{}", "a".repeat(3_000)), "").as_bytes()), 414);
    assert_eq!(ask(b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nbody"), 413);
    assert_eq!(ask(b"GET /metrics HTTP/1.1\r\n\r\n"), 400);
    assert_eq!(ask(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), 400, "a greeting of TLS");
    assert_eq!(ask(b"GET /metrics HTTP/3.0\r\n\r\n"), 505);
    // Two requests that come together are answered one after another.
    let two = format!("GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n{}", request("GET", "/healthz", ""));
    let answer = exchange(&mut connect(of_broker), two.as_bytes());
    assert_eq!(answer.body.matches("HTTP/1.1 200 OK").count(), 1, "{}", answer.body);
    assert_eq!(get(of_broker, "/metrics", "").status, 200);
}

#[test]
fn scrapers_that_send_nothing_do_not_keep_others_out_for_long() {
    let (_broker, of_broker, _node, _of_node) = pool();
    let idle: Vec<TcpStream> = (0..40).map(|_| connect(of_broker)).collect();
    let give_up = Instant::now() + PATIENCE;
    loop {
        let mut stream = connect(of_broker);
        let mut bytes = Vec::new();
        // A connection beyond the limit is closed without an answer.
        let answered = stream.write_all(request("GET", "/healthz", "").as_bytes()).is_ok()
            && stream.read_to_end(&mut bytes).is_ok()
            && bytes.starts_with(b"HTTP/1.1 200");
        if answered {
            break;
        }
        assert!(Instant::now() < give_up, "nobody is served");
        std::thread::park_timeout(Duration::from_millis(50));
    }
    drop(idle);
}

/// Makes a file with the token, and returns its path.
fn token_file(folder: &Path) -> String {
    let path = folder.join("token");
    std::fs::write(&path, format!("{TOKEN}\n")).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("permissions");
    path.display().to_string()
}

#[test]
fn token_is_needed_for_all_but_health() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = reserved_address();
    let token = token_file(folder.path());
    let _broker = Process::start(&[
        "broker",
        "--listen",
        "127.0.0.1:0",
        "--http",
        &address.to_string(),
        "--http-token",
        &token,
    ]);
    for path in ["/metrics", "/api/v1/status", "/x"] {
        let answer = get(address, path, "");
        assert_eq!(answer.status, 401, "{path}");
        assert!(answer.headers["www-authenticate"].starts_with("Bearer"));
        assert!(answer.body.contains("Authorization: Bearer"), "{}", answer.body);
    }
    assert_eq!(get(address, "/metrics", "Authorization: Bearer wrong\r\n").status, 401);
    assert_eq!(get(address, "/metrics", &format!("Authorization: Bearer {TOKEN}\r\n")).status, 200);
    assert_eq!(get(address, "/x", &format!("Authorization: Bearer {TOKEN}\r\n")).status, 404);
    assert_eq!([get(address, "/healthz", "").status, get(address, "/readyz", "").status], [200, 200]);
}

/// Connects by TLS, with the certificate of `stem` or with none.
fn tls(address: SocketAddr, folder: &Path, stem: Option<&str>) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_file(folder.join("ca.pem")).expect("a CA");
    roots.add(ca).expect("a CA");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    let config = match stem {
        None => config.with_no_client_auth(),
        Some(stem) => {
            let cert =
                CertificateDer::from_pem_file(folder.join(format!("{stem}.pem"))).expect("a certificate");
            let key = PrivateKeyDer::from_pem_file(folder.join(format!("{stem}.key"))).expect("a key");
            config.with_client_auth_cert(vec![cert], key).expect("usable")
        }
    };
    let name = ServerName::try_from("broker.farpool").expect("a name");
    let connection = ClientConnection::new(Arc::new(config), name).expect("a connection");
    StreamOwned::new(connection, connect(SocketAddr::from(([127, 0, 0, 1], address.port()))))
}

#[test]
fn beyond_this_machine_the_administrators_certificate_or_the_token_is_needed() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("certs").display().to_string();
    assert!(output(Command::new(binary()).args(["certs", "init", &dir, "--tenant", "a"])).status.success());
    let token = token_file(folder.path());
    let port = reserved_address().port();
    let address = SocketAddr::from(([0, 0, 0, 0], port));
    let _broker = Process::start(&[
        "broker",
        "--listen",
        "127.0.0.1:0",
        "--certs",
        &dir,
        "--http",
        &address.to_string(),
        "--http-token",
        &token,
    ]);
    let certs = Path::new(&dir);
    let ask = |stem: Option<&str>, headers: &str| {
        exchange(&mut tls(address, certs, stem), request("GET", "/metrics", headers).as_bytes())
    };
    let right = format!("Authorization: Bearer {TOKEN}\r\n");
    let administrator = ask(Some("admin"), "");
    assert_eq!(administrator.status, 200);
    let end =
        value(&administrator.body, "farpool_certificate_end_timestamp_seconds{identity=\"broker.farpool\"}");
    let files = TlsFiles::in_folder(certs, "broker");
    assert_eq!(end, Tls::load(&files).expect("good").not_after() as f64);
    assert_eq!(ask(None, &right).status, 200);
    assert_eq!(ask(None, "").status, 401);
    assert_eq!(ask(Some("tenant-a"), "").status, 403);
    assert_eq!(ask(Some("tenant-a"), &right).status, 200);
    // A client without TLS gets no answer of HTTP at all.
    let mut plain = connect(SocketAddr::from(([127, 0, 0, 1], port)));
    plain.write_all(request("GET", "/metrics", &right).as_bytes()).expect("sent");
    let mut bytes = Vec::new();
    let _ = plain.read_to_end(&mut bytes);
    assert!(!bytes.starts_with(b"HTTP"), "{bytes:?}");
}

#[test]
fn address_that_cannot_be_served_as_asked_is_refused_before_anything_starts() {
    let folder = tempfile::tempdir().expect("a folder");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().map(|address| (taken, address.to_string())).expect("an address");
    let store = folder.path().join("store.redb").display().to_string();
    let good = token_file(folder.path());
    let open = folder.path().join("open").display().to_string();
    std::fs::write(&open, TOKEN).expect("written");
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).expect("permissions");
    for (args, code, says) in [
        (&["--http", &taken.1][..], 2, &["--http", &taken.1, "in use"][..]),
        (&["--http", "0.0.0.0:0"], 1, &["--http", "0.0.0.0", "--http-token"]),
        (&["--http", "nowhere"], 2, &["--http nowhere", "HOST:PORT"]),
        (&["--http", "127.0.0.1:0", "--http-token", "/nowhere"], 2, &["--http-token", "/nowhere"]),
        (&["--http", "127.0.0.1:0", "--http-token", &open], 2, &["--http-token", "644", "chmod"]),
        (&["--http-token", &good], 2, &["--http"]),
    ] {
        let broker = [&["broker", "--listen", "127.0.0.1:0", "--store", &store], args].concat();
        let node = [&["node", "--name", "n", "--memory", "8MiB", "--broker", "farpool://127.0.0.1:1"], args]
            .concat();
        for args in [broker, node] {
            let output = output(Command::new(binary()).args(&args));
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{args:?} said {said}");
            assert!(says.iter().all(|part| said.contains(part)), "{args:?} said {said}");
        }
        assert!(!Path::new(&store).exists(), "no store was made");
    }
}
