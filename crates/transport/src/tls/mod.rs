//! Mutual TLS: both ends of a TCP connection prove their identity, and nobody between them can read or change a byte.
//!
//! rustls makes the handshake and nothing else. The resulting keys go to the kernel if it can encrypt records by
//! itself. Otherwise a small record layer ([`stream`]) uses them: it calls the ciphers of rustls on the callers' own
//! buffers. A peer's identity is a DNS name in its certificate ([`Identity`]), so standard verification suffices and
//! any PKI can issue certificates.
//!
//! Not used: TLS below 1.3, resumption, tickets, early data, renegotiation, new keys within a connection. So a
//! handshake is followed by nothing but data, and a last alert.
//!
//! Unix sockets do not use TLS. They do not leave the host, and they check the user of their peer.

mod causes;
mod error;
mod handshake;
mod identity;
mod kernel;
mod renewal;
mod stream;
#[cfg(test)]
pub(crate) mod testing;

pub use causes::utc;
pub use error::{TlsError, TlsErrorKind};
pub(crate) use handshake::{accept, accept_anybody, connect, is_alert};
pub use identity::Identity;
pub use stream::TlsStream;

use farpool_lock::RwLock;
use renewal::Watched;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::{Resumption, VerifierBuilderError, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig,
    SignatureScheme, version,
};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files with the keys and certificates for TLS, in PEM form, as `farpool certs` or any PKI writes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the trusted CAs.
    pub ca: PathBuf,
    /// Certificate of this process, followed by those between it and the CA.
    pub cert: PathBuf,
    /// Private key of this process.
    pub key: PathBuf,
    /// Revocation list of the CA: certificates that are not accepted any more. If the file does not exist, all are.
    pub crl: Option<PathBuf>,
}

impl TlsFiles {
    /// Returns the paths `ca.pem`, `NAME.pem`, `NAME.key` and `crl.pem` in a folder that `farpool certs init` made.
    pub fn in_folder(folder: &Path, name: &str) -> TlsFiles {
        TlsFiles {
            ca: folder.join("ca.pem"),
            cert: folder.join(format!("{name}.pem")),
            key: folder.join(format!("{name}.key")),
            crl: Some(folder.join("crl.pem")),
        }
    }
}

/// TLS configuration of this process: the CAs it trusts, its certificate and its key. Clones share one configuration.
/// If it was made of files, changes of the files count for later handshakes.
#[derive(Clone)]
pub struct Tls(Arc<Inner>);

struct Inner {
    identity: Identity,
    loaded: RwLock<Arc<Loaded>>,
    /// Files that are read again when they change. `None` if the certificates were given as text.
    watched: Option<Watched>,
}

/// Certificates and key, ready for handshakes.
struct Loaded {
    /// Our certificate, followed by those between it and the CA.
    chain: Vec<CertificateDer<'static>>,
    roots: Arc<RootCertStore>,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    /// Like `server`, but peers need no certificate.
    open_server: Arc<ServerConfig>,
    identity: Identity,
    /// Last second in which our certificate is valid, in seconds since 1970.
    not_after: u64,
    /// Sources of the CA and of our certificate, for errors.
    ca_label: String,
    own_label: String,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tls({})", self.0.identity)
    }
}

/// Limit of a file with certificates or a key, in bytes.
const PEM_BYTES_MAX: u64 = 1 << 20;

/// Reads a file with certificates or a key. The limit matters if a path names a device by mistake, which may never end.
fn read_pem(path: &Path) -> io::Result<Vec<u8>> {
    let mut pem = Vec::new();
    File::open(path)?.take(PEM_BYTES_MAX + 1).read_to_end(&mut pem)?;
    if pem.len() as u64 > PEM_BYTES_MAX {
        let message = format!("the file is larger than {PEM_BYTES_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(pem)
}

impl Tls {
    /// Reads the files and checks all that can be checked without a peer: the key belongs to the certificate, the CA
    /// issued the certificate, it is valid now, and it has exactly one identity. Errors name the file.
    pub fn load(files: &TlsFiles) -> Result<Tls, TlsError> {
        let (watched, loaded) = Watched::load(files)?;
        Ok(Tls::of(loaded, Some(watched)))
    }

    /// Does the same as [`Self::load`] with PEM text in memory.
    pub fn from_pem(ca: &str, cert: &str, key: &str) -> Result<Tls, TlsError> {
        let loaded = Loaded::build(
            Pem { text: ca.as_bytes(), label: "the CA" },
            Pem { text: cert.as_bytes(), label: "the certificate" },
            Pem { text: key.as_bytes(), label: "the key" },
            None,
        )?;
        Ok(Tls::of(loaded, None))
    }

    fn of(loaded: Loaded, watched: Option<Watched>) -> Tls {
        let identity = loaded.identity.clone();
        Tls(Arc::new(Inner { identity, loaded: RwLock::new(Arc::new(loaded)), watched }))
    }

    /// Returns the certificates for a handshake that begins now.
    fn loaded(&self) -> Arc<Loaded> {
        let loaded = Arc::clone(&self.0.loaded.read());
        let Some(renewed) = self.0.watched.as_ref().and_then(|watched| watched.look(&loaded)) else {
            return loaded;
        };
        let renewed = Arc::new(renewed);
        *self.0.loaded.write() = Arc::clone(&renewed);
        renewed
    }

    /// Returns the last second in which the certificate is valid, in seconds since 1970.
    pub fn not_after(&self) -> u64 {
        self.loaded().not_after
    }

    /// Returns the configuration with which connections of other protocols are accepted. Peers prove that they have
    /// exactly one identity; which one, the caller checks.
    pub fn server_config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.loaded().server)
    }

    /// Returns the configuration with which connections of other protocols are made, to the DNS name of an identity.
    pub fn client_config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.loaded().client)
    }

    /// Fails if the certificate may not be used by servers, as those of tenants from earlier versions.
    pub fn check_serves(&self) -> Result<(), TlsError> {
        let loaded = self.loaded();
        verify(&loaded.chain, &loaded.roots, webpki::KeyUsage::server_auth()).map_err(|error| {
            let why = "is not one of a server; farpool certs renew makes one that is";
            TlsError::new(TlsErrorKind::Identity, format!("{} {why} ({error})", loaded.own()))
        })
    }

    /// Translates the error of a handshake that another library made with these configurations.
    pub fn explain(&self, error: io::Error, expected: Option<&Identity>) -> io::Error {
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
        let Some(cause) = cause else { return error };
        let loaded = self.loaded();
        let why = causes::of_rustls(cause, expected, &loaded.own(), &loaded.ca_label);
        io::Error::new(io::ErrorKind::PermissionDenied, why)
    }

    /// Returns the identity of this process.
    pub fn identity(&self) -> &Identity {
        &self.0.identity
    }
}

impl Loaded {
    fn read(files: &TlsFiles) -> Result<Loaded, TlsError> {
        let shown = |path: &Path| path.display().to_string();
        let pem = |path: &Path| {
            read_pem(path)
                .map_err(|error| TlsError::new(TlsErrorKind::File, format!("{}: {error}", shown(path))))
        };
        let [ca, cert, key] = [&files.ca, &files.cert, &files.key];
        let crl = files.crl.as_ref().filter(|crl| crl.exists());
        let crl = crl.map(|crl| Ok((pem(crl)?, shown(crl)))).transpose()?;
        Loaded::build(
            Pem { text: &pem(ca)?, label: &shown(ca) },
            Pem { text: &pem(cert)?, label: &shown(cert) },
            Pem { text: &pem(key)?, label: &shown(key) },
            crl.as_ref().map(|(text, label)| Pem { text, label }),
        )
    }

    fn build(ca: Pem<'_>, cert: Pem<'_>, key: Pem<'_>, crl: Option<Pem<'_>>) -> Result<Loaded, TlsError> {
        let roots = roots_of(ca)?;
        let chain = certificates_of(cert)?;
        let private =
            PrivateKeyDer::from_pem_slice(key.text).map_err(|_| no_pem(key.label, "private key"))?;
        let own_label = cert.label.to_owned();
        let identity = Identity::of_certificate(&chain[0], &format!("the certificate in {own_label}"))?;
        check_own(&chain, &roots, &identity, &own_label, ca.label)?;
        let not_after = validity(&chain[0]).map_or(u64::MAX, |(_, not_after)| not_after);

        let provider = Arc::new(provider());
        let roots = Arc::new(roots);
        let revoked = crl.map(revocation_lists).transpose()?.unwrap_or_default();
        let unusable = |error: VerifierBuilderError| {
            let label = crl.map_or(ca.label, |crl| crl.label);
            TlsError::new(TlsErrorKind::File, format!("{label}: {error}"))
        };
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .with_crls(revoked.iter().cloned())
            .only_check_end_entity_revocation()
            .build()
            .map_err(unusable)?;
        let servers = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .with_crls(revoked)
            .only_check_end_entity_revocation()
            .build()
            .map_err(unusable)?;
        let wrong_key = |error: rustls::Error| match error {
            rustls::Error::InconsistentKeys(_) => TlsError::new(
                TlsErrorKind::File,
                format!("the key in {} does not belong to the certificate in {own_label}", key.label),
            ),
            other => TlsError::new(TlsErrorKind::File, format!("{} cannot be used ({other})", key.label)),
        };
        let version = |error: rustls::Error| TlsError::new(TlsErrorKind::Handshake, error.to_string());
        let server_for = |clients: KnownClients| {
            let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
                .with_protocol_versions(&[&version::TLS13])
                .map_err(version)?
                .with_client_cert_verifier(Arc::new(clients))
                .with_single_cert(chain.clone(), private.clone_key())
                .map_err(wrong_key)?;
            // Nothing but data may follow a handshake, because our record layer and the kernel's know nothing else.
            server.send_tls13_tickets = 0;
            server.enable_secret_extraction = true;
            Ok(Arc::new(server))
        };
        let server = server_for(KnownClients { verifier: Arc::clone(&clients), is_required: true })?;
        let open_server = server_for(KnownClients { verifier: clients, is_required: false })?;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])
            .map_err(version)?
            .with_webpki_verifier(servers)
            .with_client_auth_cert(chain.clone(), private)
            .map_err(wrong_key)?;
        client.resumption = Resumption::disabled();
        client.enable_secret_extraction = true;
        Ok(Loaded {
            chain,
            roots,
            client: Arc::new(client),
            server,
            open_server,
            identity,
            not_after,
            ca_label: ca.label.to_owned(),
            own_label,
        })
    }

    /// Returns a description of our certificate for errors: its source and its identity.
    fn own(&self) -> String {
        format!("the certificate in {} ({})", self.own_label, self.identity)
    }
}

/// Returns the permitted algorithms: AES-GCM, which our processors have in hardware and our kernels in kTLS, and the
/// cheapest key exchanges.
fn provider() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: vec![
            aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256,
            aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384,
        ],
        kx_groups: vec![aws_lc_rs::kx_group::X25519, aws_lc_rs::kx_group::SECP256R1],
        ..aws_lc_rs::default_provider()
    }
}

fn no_pem(label: &str, what: &str) -> TlsError {
    TlsError::new(TlsErrorKind::File, format!("{label} contains no {what} in PEM format"))
}

/// PEM text and its source, for errors.
#[derive(Clone, Copy)]
struct Pem<'a> {
    text: &'a [u8],
    label: &'a str,
}

/// Returns the certificates of a PEM text, at least one.
fn certificates_of(pem: Pem<'_>) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.text).collect();
    found.ok().filter(|found| !found.is_empty()).ok_or_else(|| no_pem(pem.label, "certificate"))
}

/// Returns the revocation lists of a PEM text, at least one.
fn revocation_lists(pem: Pem<'_>) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(pem.text).collect();
    found.ok().filter(|found| !found.is_empty()).ok_or_else(|| no_pem(pem.label, "revocation list"))
}

fn roots_of(ca: Pem<'_>) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates_of(ca)? {
        roots.add(certificate).map_err(|_| no_pem(ca.label, "CA certificate"))?;
    }
    Ok(roots)
}

/// Checks our own certificate as a peer would, so that errors show before the first connection.
fn check_own(
    chain: &[CertificateDer<'static>],
    roots: &RootCertStore,
    identity: &Identity,
    label: &str,
    ca_label: &str,
) -> Result<(), TlsError> {
    use webpki::KeyUsage;
    let whose = format!("the certificate in {label} ({identity})");
    let usages: &[KeyUsage] = match identity {
        Identity::Broker => &[KeyUsage::server_auth()],
        // A node serves clients, and connects to the broker as a client.
        Identity::Node(_) => &[KeyUsage::server_auth(), KeyUsage::client_auth()],
        Identity::Tenant(_) | Identity::Admin => &[KeyUsage::client_auth()],
    };
    let mut usages = usages.iter();
    usages
        .try_for_each(|usage| verify(chain, roots, *usage))
        .map_err(|error| causes::of_webpki(&error, &whose, ca_label))
}

/// Checks that CAs have issued a certificate, the first of its chain, for a usage.
fn verify(
    chain: &[CertificateDer<'static>],
    roots: &RootCertStore,
    usage: webpki::KeyUsage,
) -> Result<(), webpki::Error> {
    let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms.all;
    let certificate = webpki::EndEntityCert::try_from(&chain[0])?;
    certificate
        .verify_for_usage(algorithms, &roots.roots, &chain[1..], UnixTime::now(), usage, None, None)
        .map(drop)
}

/// Verifier of clients: the standard verification, and exactly one identity.
#[derive(Debug)]
struct KnownClients {
    verifier: Arc<dyn ClientCertVerifier>,
    /// True if a client without a certificate is refused.
    is_required: bool,
}

impl ClientCertVerifier for KnownClients {
    fn client_auth_mandatory(&self) -> bool {
        self.is_required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.verifier.verify_client_cert(certificate, between, now)?;
        match Identity::of_certificate(certificate, "the peer's certificate") {
            Ok(_) => Ok(verified),
            Err(_) => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

/// Facts of a certificate for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// Identity in the certificate. `None` for a CA or a certificate for other purposes.
    pub identity: Option<Identity>,
    /// First second of validity, in seconds since 1970.
    pub not_before: u64,
    /// Last second of validity, in seconds since 1970.
    pub not_after: u64,
    /// SHA-256 of the DER form, which other tools call the fingerprint.
    pub fingerprint: [u8; 32],
    /// Serial number, big-endian. A revocation list names certificates by it.
    pub serial: Vec<u8>,
}

impl CertificateFacts {
    /// Returns the facts of the first certificate of a PEM text. `label` names its source in errors.
    pub fn of_pem(pem: &[u8], label: &str) -> Result<CertificateFacts, TlsError> {
        let certificate = certificates_of(Pem { text: pem, label })?.remove(0);
        let (not_before, not_after) =
            validity(&certificate).ok_or_else(|| no_pem(label, "readable certificate"))?;
        let serial = webpki::EndEntityCert::try_from(&certificate)
            .map(|certificate| certificate.serial().to_vec())
            .map_err(|_| no_pem(label, "readable certificate"))?;
        let digest = aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256
            .tls13()
            .map(|suite| suite.common.hash_provider.hash(&certificate))
            .and_then(|hash| hash.as_ref().first_chunk().copied());
        Ok(CertificateFacts {
            identity: Identity::of_certificate(&certificate, label).ok(),
            not_before,
            not_after,
            fingerprint: digest.ok_or_else(|| no_pem(label, "readable certificate"))?,
            serial,
        })
    }
}

/// Returns the first and the last second of validity. webpki shows these dates only in the errors of certificates that
/// it refuses for them, and it checks dates first. The certificate is therefore verified at the first and at the last
/// of all seconds.
fn validity(certificate: &CertificateDer<'_>) -> Option<(u64, u64)> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    let refusal = |seconds| {
        let at = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
        let usage = webpki::KeyUsage::client_auth();
        let WebPkiSupportedAlgorithms { all, .. } =
            aws_lc_rs::default_provider().signature_verification_algorithms;
        certificate.verify_for_usage(all, &[], &[], at, usage, None, None).err()
    };
    let not_before = match refusal(0)? {
        webpki::Error::CertNotValidYet { not_before, .. } => not_before.as_secs(),
        // The certificate has been valid since 1970 or earlier.
        _ => 0,
    };
    match refusal(u64::MAX)? {
        webpki::Error::CertExpired { not_after, .. } => Some((not_before, not_after.as_secs())),
        _ => None,
    }
}
