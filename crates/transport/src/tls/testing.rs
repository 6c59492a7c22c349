//! Handshakes between two ends within this process, for the tests of this folder.

use super::{Identity, Tls, TlsStream, accept, connect};
use crate::socket::Socket;
use farpool_host::clock;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ExtractedSecrets, ServerConnection};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, OnceLock};

/// Returns a client and a broker of one CA. All tests share them, because making keys takes time.
pub(crate) fn client_and_broker() -> &'static [Tls; 2] {
    static BOTH: OnceLock<[Tls; 2]> = OnceLock::new();
    BOTH.get_or_init(|| {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = params.self_signed(&key).expect("signed").pem();
        let issuer = Issuer::new(params, key);
        [Identity::Admin, Identity::Broker].map(|identity| {
            let key = KeyPair::generate().expect("a key");
            let params = CertificateParams::new(vec![identity.dns_name()]).expect("a name");
            let cert = params.signed_by(&key, &issuer).expect("signed").pem();
            Tls::from_pem(&ca, &cert, &key.serialize_pem()).expect("good")
        })
    })
}

/// Returns both ends of a connection after its handshake: the client's, then the server's.
pub(super) fn pair() -> (TlsStream, TlsStream) {
    let [client, broker] = client_and_broker();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let deadline = clock::now().plus_ms(10_000);
    std::thread::scope(|scope| {
        let accepting = scope.spawn(move || {
            let (stream, _) = listener.accept().expect("a peer");
            accept(broker, Socket::tcp(stream).expect("a socket"), deadline).expect("a good peer")
        });
        let socket = Socket::tcp(TcpStream::connect(address).expect("connected")).expect("a socket");
        let connected = connect(client, socket, &Identity::Broker, deadline).expect("a good peer");
        let (accepted, identity) = accepting.join().expect("accepted");
        assert_eq!(identity, Identity::Admin);
        (connected, accepted)
    })
}

/// Makes a handshake in memory and returns the secrets: the client's, then the server's.
pub(super) fn secrets() -> [ExtractedSecrets; 2] {
    let [client, broker] = client_and_broker();
    let name = ServerName::try_from(Identity::Broker.dns_name()).expect("a name");
    let mut client = ClientConnection::new(Arc::clone(&client.loaded().client), name).expect("a client");
    let mut server = ServerConnection::new(Arc::clone(&broker.loaded().server)).expect("a server");
    while client.is_handshaking() || server.is_handshaking() {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).expect("written");
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            server.read_tls(&mut rest).expect("read");
            server.process_new_packets().expect("good");
        }
        let mut bytes = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut bytes).expect("written");
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            client.read_tls(&mut rest).expect("read");
            client.process_new_packets().expect("good");
        }
    }
    [
        client.dangerous_extract_secrets().expect("secrets"),
        server.dangerous_extract_secrets().expect("secrets"),
    ]
}
