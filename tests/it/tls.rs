//! Tests of TLS: handshakes that fail and their messages on each side, hostile bytes, and bytes changed in transit.

use crate::certificates::{Ca, Issued, Wish};
use crate::on_time::Watch;
use crate::random::Random;
use crate::raw_client::*;
use farpool_broker::{Broker, LeaseSettings};
use farpool_node::{Node, NodeOptions, node_id};
use farpool_transport::{
    Exposure, Identity, Link, LinkError, Tls, TlsError, TlsErrorKind, TlsFiles, Transport, tcp,
};
use farpool_wire::{Name, NodeId};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{
    AlertDescription, ClientConfig, ClientConnection, ConfigBuilder, Connection, RootCertStore, ServerConfig,
    ServerConnection, WantsVerifier,
};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

const NODE_NAME: &str = "n-7d26e74cb88b6b67.node.farpool";

fn plaintext() -> Exposure {
    Exposure::default()
}

fn dial(exposure: &Exposure, address: &str, expected: &Identity) -> Result<Box<dyn Link>, LinkError> {
    tcp::connect(exposure, address, expected, soon())
}

/// Returns the reason why a dialled peer was not trusted. Panics if the result is anything else.
fn untrusted(result: Result<Box<dyn Link>, LinkError>) -> TlsError {
    match result.map(|_| "a link") {
        Err(LinkError::Untrusted(error)) => error,
        other => panic!("expected no trust, got {other:?}"),
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn tls13<Side: rustls::ConfigSide>(
    builder: ConfigBuilder<Side, rustls::WantsVersions>,
) -> ConfigBuilder<Side, WantsVerifier> {
    builder.with_protocol_versions(&[&rustls::version::TLS13]).expect("TLS 1.3")
}

fn material(issued: &Issued) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let cert = CertificateDer::from_pem_slice(issued.cert.as_bytes()).expect("a certificate");
    let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).expect("a key");
    (vec![cert], key)
}

fn roots(ca: &Ca) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.pem.as_bytes()).expect("a CA")).expect("a CA");
    roots
}

/// Starts a foreign server: plain rustls with this certificate, which asks for no client certificate. It serves one
/// connection. Returns its address.
fn foreign_server(issued: &Issued) -> String {
    let (chain, key) = material(issued);
    let config = tls13(ServerConfig::builder_with_provider(provider()))
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("a server");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a peer");
        let mut server = Connection::Server(ServerConnection::new(Arc::new(config)).expect("a server"));
        // The handshake may fail on the server's side too; only the client's error is tested.
        while server.is_handshaking() && server.complete_io(&mut stream).is_ok() {}
        let _ = stream.read(&mut [0; 64]);
    });
    address
}

/// Returns the TLS alert that a node's listener at `address` sends to a foreign client (plain rustls).
fn alert_to(address: &str, ca: &Ca, issued: Option<&Issued>) -> AlertDescription {
    let builder = tls13(ClientConfig::builder_with_provider(provider())).with_root_certificates(roots(ca));
    let config = match issued.map(material) {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).expect("a client"),
        None => builder.with_no_client_auth(),
    };
    let name = Identity::Node(node_id(NODE)).dns_name().try_into().expect("a name");
    let client = ClientConnection::new(Arc::new(config), name).expect("a client");
    let mut client = Connection::Client(client);
    let mut stream = TcpStream::connect(address).expect("connected");
    loop {
        let error = match client.complete_io(&mut stream) {
            Ok(_) => continue,
            Err(error) => error,
        };
        match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(rustls::Error::AlertReceived(alert)) => return *alert,
            _ => panic!("expected an alert, got {error:?}"),
        }
    }
}

#[test]
fn server_of_another_ca_is_refused_and_the_ca_is_named() {
    let (ours, theirs) = (Ca::new(), Ca::new());
    let address = foreign_server(&theirs.issue(&Wish { names: &["broker.farpool"], days: (-1, 1) }));
    let error = untrusted(dial(&Ca::exposure(ours.tenant("a")), &address, &Identity::Broker));
    assert_eq!(error.kind(), TlsErrorKind::OtherCa, "{error}");
    assert!(error.to_string().contains("broker.farpool") && error.to_string().contains("the CA"), "{error}");
}

#[test]
fn server_whose_time_is_over_or_has_not_come_is_refused_with_the_date() {
    let ca = Ca::new();
    for (days, kind, word) in [
        ((-9, -1), TlsErrorKind::Expired, "expired on"),
        ((1, 9), TlsErrorKind::NotYetValid, "not valid before"),
    ] {
        let address = foreign_server(&ca.issue(&Wish { names: &["broker.farpool"], days }));
        let error = untrusted(dial(&Ca::exposure(ca.tenant("a")), &address, &Identity::Broker));
        assert_eq!(error.kind(), kind, "{error}");
        let text = error.to_string();
        assert!(text.contains("broker.farpool") && text.contains(word) && text.contains("UTC"), "{text}");
    }
}

#[test]
fn server_that_is_another_than_was_dialled_is_refused_and_both_are_named() {
    let (pool, ca) = one_tls_node(1, lasting_leases());
    let address = pool.node.info().address.to_string();
    for expected in [Identity::Broker, Identity::Node(NodeId(7))] {
        let error = untrusted(dial(&pool.exposure, &address, &expected));
        assert_eq!(error.kind(), TlsErrorKind::WrongPeer, "{error}");
        let text = error.to_string();
        assert!(text.contains(&expected.dns_name()), "{text}");
        assert!(text.contains(&Identity::Node(node_id(NODE)).dns_name()), "{text}");
    }
    // The server's certificate is a tenant's, of the CA that the client trusts. It is not a broker's, so it is refused.
    let tenant = foreign_server(&ca.issue(&Wish { names: &["a.tenant.farpool"], days: (-1, 1) }));
    let error = untrusted(dial(&pool.exposure, &tenant, &Identity::Broker));
    assert_eq!(error.kind(), TlsErrorKind::WrongPeer, "{error}");
}

#[test]
fn server_with_more_than_one_identity_is_nobody() {
    let ca = Ca::new();
    let node = Identity::Node(NodeId(0x7d26_e74c_b88b_6b67));
    for names in [&["broker.farpool", NODE_NAME][..], &["*.node.farpool"], &["*.node.farpool", NODE_NAME]] {
        let expected = if names[0] == "broker.farpool" { &Identity::Broker } else { &node };
        let address = foreign_server(&ca.issue(&Wish { names, days: (-1, 1) }));
        let error = untrusted(dial(&Ca::exposure(ca.tenant("a")), &address, expected));
        assert_eq!(error.kind(), TlsErrorKind::Identity, "{names:?}: {error}");
    }
}

#[test]
fn client_certificates_that_are_not_good_are_refused_by_their_fault() {
    let (pool, ca) = one_tls_node(1, lasting_leases());
    let address = pool.node.info().address.to_string();
    let tenant = "a.tenant.farpool";
    let wish = |names, days| Some(ca.issue(&Wish { names, days }));
    let other = Ca::new().issue(&Wish { names: &[tenant], days: (-1, 1) });
    for (issued, alert) in [
        (None, AlertDescription::CertificateRequired),
        (wish(&[tenant], (-9, -1)), AlertDescription::CertificateExpired),
        (wish(&[tenant], (1, 9)), AlertDescription::CertificateExpired),
        (wish(&["host.example"], (-1, 1)), AlertDescription::AccessDenied),
        (wish(&["someone.farpool"], (-1, 1)), AlertDescription::AccessDenied),
        (wish(&["*.tenant.farpool"], (-1, 1)), AlertDescription::AccessDenied),
        (wish(&[tenant, "admin.farpool"], (-1, 1)), AlertDescription::AccessDenied),
        // A certificate of a CA that has the same name as the node's, but another key.
        (Some(other), AlertDescription::DecryptError),
    ] {
        assert_eq!(alert_to(&address, &ca, issued.as_ref()), alert);
    }
    // Other clients were not affected: a session can still be opened.
    pool.session();
}

#[test]
fn client_that_is_refused_is_told_so_with_its_own_certificate_named() {
    let (pool, ca) = one_tls_node(1, lasting_leases());
    let address = pool.node.info().address.to_string();
    // The client trusts two CAs, the node's and its own. The node trusts only the node's, so it refuses the client.
    let other = Ca::new();
    let issued = other.issue(&Wish { names: &["a.tenant.farpool"], days: (-1, 1) });
    let both = format!("{}{}", ca.pem, other.pem);
    let tls = Tls::from_pem(&both, &issued.cert, &issued.key).expect("of one of the two");
    let error = untrusted(dial(&Ca::exposure(tls), &address, &Identity::Node(node_id(NODE))));
    assert_eq!(error.kind(), TlsErrorKind::RefusedByPeer, "{error}");
    assert!(error.to_string().contains("a.tenant.farpool"), "{error}");
}

#[test]
fn plaintext_client_of_a_tls_node_is_told_what_to_give() {
    let (pool, _) = one_tls_node(1, lasting_leases());
    let address = pool.node.info().address.to_string();
    let error = untrusted(dial(&plaintext(), &address, &Identity::Node(node_id(NODE))));
    assert_eq!(error.kind(), TlsErrorKind::PeerSpeaksTls, "{error}");
    assert!(error.to_string().contains("--certs"), "{error}");
}

#[test]
fn tls_client_of_a_plaintext_node_is_told_what_is_missing_there() {
    let pool = one_node(1, lasting_leases());
    let exposure = Ca::exposure(Ca::new().tenant("a"));
    let address = pool.node.info().address.to_string();
    match dial(&exposure, &address, &Identity::Node(node_id(NODE))).map(|_| "a link") {
        Err(LinkError::Disconnected(error)) => {
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
            assert!(error.to_string().contains("--certs"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    // The peer is a server that answers, but not in TLS.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a peer");
        stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").expect("sent");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let error = untrusted(dial(&exposure, &address, &Identity::Broker));
    assert_eq!(error.kind(), TlsErrorKind::PeerIsPlaintext, "{error}");
    server.join().expect("the server ends");
}

/// Loads the settings of a TLS peer from files with these contents. An error names the file that is wrong.
fn load(ca: &str, cert: &str, key: &str) -> Result<Tls, TlsError> {
    let folder = tempfile::tempdir().expect("a folder");
    let files = TlsFiles::in_folder(folder.path(), "own");
    for (path, text) in [(&files.ca, ca), (&files.cert, cert), (&files.key, key)] {
        std::fs::write(path, text).expect("written");
    }
    Tls::load(&files)
}

#[test]
fn own_certificate_that_peers_would_refuse_is_refused_at_the_start_and_its_file_named() {
    let (ca, other) = (Ca::new(), Ca::new());
    let names = &["broker.farpool"];
    let today = (-1, 1);
    let good = ca.issue(&Wish { names, days: today });
    assert_eq!(load(&ca.pem, &good.cert, &good.key).expect("good").identity(), &Identity::Broker);
    for (issued, kind) in [
        (ca.issue(&Wish { names, days: (-9, -1) }), TlsErrorKind::Expired),
        (ca.issue(&Wish { names, days: (1, 9) }), TlsErrorKind::NotYetValid),
        (other.issue(&Wish { names, days: today }), TlsErrorKind::OtherCa),
        (ca.issue(&Wish { names: &["broker.example"], days: today }), TlsErrorKind::Identity),
        (
            ca.issue(&Wish { names: &["broker.farpool", "admin.farpool"], days: today }),
            TlsErrorKind::Identity,
        ),
    ] {
        let error = load(&ca.pem, &issued.cert, &issued.key).expect_err("not good");
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains("own.pem"), "{error}");
    }
    let another = ca.issue(&Wish { names, days: today });
    for (texts, file) in [
        ([&ca.pem, &good.cert, &another.key], "own.key"),
        ([&ca.pem, &good.cert, &good.cert], "own.key"),
        ([&ca.pem, &good.key, &good.key], "own.pem"),
        ([&good.key, &good.cert, &good.key], "ca.pem"),
    ] {
        let error = load(texts[0], texts[1], texts[2]).expect_err("mixed up");
        assert_eq!(error.kind(), TlsErrorKind::File, "{error}");
        assert!(error.to_string().contains(file), "{error}");
    }
    let nowhere = TlsFiles::in_folder(std::path::Path::new("no-such-folder"), "own");
    let error = Tls::load(&nowhere).expect_err("nothing there");
    assert!(error.to_string().contains("no-such-folder"), "{error}");
}

#[test]
fn certificate_that_only_clients_may_use_is_no_servers_and_the_way_to_another_is_told() {
    let (ca, tenant) = (Ca::new(), Identity::tenant("analytics").expect("a tenant"));
    assert!(ca.tls(&tenant).check_serves().is_ok());
    let error = ca.client_alone(&tenant).check_serves().expect_err("for clients");
    assert_eq!(error.kind(), TlsErrorKind::Identity, "{error}");
    assert!(error.to_string().contains("farpool certs renew"), "{error}");
}

#[test]
fn server_started_with_anothers_certificate_is_refused() {
    let ca = Ca::new();
    let store = Box::new(farpool_broker::stores::MemoryStore::default());
    let loopback = ([127, 0, 0, 1], 0).into();
    let exposure = Ca::exposure(ca.node(NODE));
    let error = Broker::start(loopback, &exposure, LeaseSettings::default(), store).err().expect("refused");
    assert!(error.to_string().contains("broker.farpool"), "{error}");
    let name = Name::new("other").expect("a name");
    let mut options = NodeOptions::new(name, MIB, "127.0.0.1:1".into());
    (options.region_bytes, options.exposure) = (MIB, exposure);
    let error = Node::start(options).err().expect("refused").to_string();
    assert!(error.contains(&Identity::Node(node_id("other")).dns_name()), "{error}");
}

/// Time after which a listener has surely given up a handshake: its deadline of 5 s, and a margin.
const HANDSHAKE_OVER: Duration = Duration::from_secs(7);

#[test]
fn peers_that_stall_a_handshake_are_disconnected_in_time_and_keep_nobody_waiting() {
    let (pool, _) = one_tls_node(1, lasting_leases());
    let address = pool.node.info().address.to_string();
    // Some peers send the begin of a record whose head promises more bytes than ever arrive. Others send
    // change_cipher_spec records, which TLS 1.3 ignores, one at a time until the listener disconnects them.
    let promise = [22, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc];
    let nothing: &[u8] = &[20, 3, 3, 0, 1, 1];
    let stalls: Vec<(&[u8], bool)> = vec![
        (&[], false),
        (&promise[..1], false),
        (&promise[..5], false),
        (&promise, false),
        (&promise, true),
        (nothing, false),
        (nothing, true),
    ];
    let watch = Watch::start();
    let started = Instant::now();
    let stalling: Vec<_> = stalls
        .into_iter()
        .map(|(bytes, drips)| {
            let mut stream = TcpStream::connect(&address).expect("connected");
            let bytes = bytes.to_vec();
            std::thread::spawn(move || {
                let pace = if drips { Duration::from_millis(20) } else { HANDSHAKE_OVER * 10 };
                stream.set_read_timeout(Some(pace)).expect("set");
                let mut sent = stream.write_all(&bytes);
                // A dripping peer writes until the listener hangs up. The timeout of each read sets the pace.
                while sent.is_ok() {
                    match stream.read(&mut [0; 256]) {
                        Err(error) if drips && error.kind() == ErrorKind::WouldBlock => {
                            let drip = if bytes[0] == 20 { &bytes[..] } else { &[0] };
                            sent = stream.write_all(drip);
                        }
                        Ok(count) if count > 0 => {}
                        _ => break,
                    }
                }
                started.elapsed()
            })
        })
        .collect();
    // Meanwhile other clients are served at once.
    let begun = Instant::now();
    for _ in 0..10 {
        drop(pool.link(Transport::Tcp));
    }
    let served = begun.elapsed();
    let lasted: Vec<_> = stalling.into_iter().map(|stalling| stalling.join().expect("it ends")).collect();
    let late = 10 * watch.worst();
    assert!(lasted.iter().all(|lasted| *lasted < HANDSHAKE_OVER + late), "cut off only after {lasted:?}");
    assert!(served < Duration::from_secs(3) + late, "the others waited {served:?}");
    drop(pool.link(Transport::Tcp));
}

#[test]
fn hostile_bytes_instead_of_a_handshake_end_the_connection_and_nothing_else() {
    let (pool, ca) = one_tls_node(1, lasting_leases());
    let address = pool.node.info().address.to_string();
    let mut random = Random(3);
    // Makes a valid ClientHello (the first message of a handshake), which is damaged below.
    let mut hello = Vec::new();
    let config = tls13(ClientConfig::builder_with_provider(provider()))
        .with_root_certificates(roots(&ca))
        .with_no_client_auth();
    let name = Identity::Node(node_id(NODE)).dns_name().try_into().expect("a name");
    let mut client = ClientConnection::new(Arc::new(config), name).expect("a client");
    client.write_tls(&mut hello).expect("written");
    for round in 0..300 {
        let mut bytes = match round % 3 {
            0 => {
                let count = 1 + random.below(600) as usize;
                random.bytes(count)
            }
            1 => [&[22, 3, 1, 2, 0][..], &random.bytes(512)].concat(),
            _ => hello.clone(),
        };
        if round % 3 == 2 {
            for _ in 0..=random.below(4) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
        }
        let mut stream = TcpStream::connect(&address).expect("connected");
        // The listener may hang up before it has read everything, so that the write fails.
        let _ = stream.write_all(&bytes).and_then(|()| stream.shutdown(Shutdown::Write));
        let _ = stream.read_to_end(&mut Vec::new());
    }
    drop(pool.link(Transport::Tcp));
}

/// Starts a proxy to `target` that flips one bit of byte number `flip`, in one of the two directions.
fn meddler(target: &str, to_client: bool, flip: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let target = target.to_owned();
    std::thread::spawn(move || {
        let (client, _) = listener.accept().expect("a client");
        let server = TcpStream::connect(target).expect("connected");
        let halves = [
            (client.try_clone().expect("cloned"), server.try_clone().expect("cloned"), !to_client),
            (server, client, to_client),
        ];
        for (mut from, mut to, meddles) in halves {
            std::thread::spawn(move || {
                let (mut passed, mut buffer) = (0, [0; 4096]);
                while let Ok(count) = from.read(&mut buffer)
                    && count > 0
                {
                    if meddles && (passed..passed + count).contains(&flip) {
                        buffer[flip - passed] ^= 4;
                    }
                    passed += count;
                    if to.write_all(&buffer[..count]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(Shutdown::Both);
            });
        }
    });
    address
}

#[test]
fn byte_changed_on_the_way_is_an_error_wherever_it_is_and_never_taken_for_data() {
    let (pool, _) = one_tls_node(1, lasting_leases());
    let direct = pool.node.info().address.to_string();
    let node = Identity::Node(node_id(NODE));
    let session = pool.session();
    let mut link = pool.link(Transport::Tcp);
    let grant = session.lease(&pool, &mut *link, 1).expect("a lease").remove(0);
    let original = vec![0x5a; 100_000];
    write(&mut *link, &grant, 0, &original).expect("a write");
    // Bits flipped at small offsets hit the handshake, at larger ones the data.
    for flip in [12, 70, 200, 700, 1_500, 3_000, 10_000, 50_000, 99_000] {
        for to_client in [true, false] {
            let address = meddler(&direct, to_client, flip);
            let Ok(mut meddled) = dial(&pool.exposure, &address, &node) else { continue };
            if to_client {
                let found = read(&mut *meddled, &grant, 0, original.len());
                assert!(
                    matches!(found, Err(LinkError::Disconnected(_))),
                    "a byte changed at {flip}: {found:?}"
                );
            } else {
                let written = write(&mut *meddled, &grant, 200_000, &original);
                // The connection ended, so the client cannot know whether the peer received the write.
                assert!(
                    matches!(written, Err(LinkError::Disconnected(_))),
                    "a byte changed at {flip}: {written:?}"
                );
                let found = read(&mut *link, &grant, 200_000, original.len()).expect("a read");
                assert!(found.iter().all(|byte| *byte == 0), "a byte changed at {flip} arrived");
            }
        }
    }
    assert_eq!(read(&mut *link, &grant, 0, original.len()).expect("a read"), original);
}
