//! Requests to a cluster, through the JSON gateway of its members (`/v3/`, etcd 3.4 and later).

use crate::EtcdAddress;
use farpool_broker::stores::StoreError;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

/// Longest wait for one member. Shorter if the caller's time would otherwise not suffice for each member.
const ATTEMPT: Duration = Duration::from_secs(1);
/// Pause before a member is asked again.
const PAUSE: Duration = Duration::from_millis(50);
/// Longest answer in bytes. Large enough for a page of the longest records.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// Certificates for TLS with the cluster, in PEM.
#[derive(Clone, Debug, Default)]
pub struct EtcdTls {
    /// Certificates of the authorities that sign the cluster's certificates.
    pub ca: Vec<u8>,
    /// Our certificate and its key, if the cluster demands one.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

pub(crate) struct Gateway {
    agent: ureq::Agent,
    members: Vec<String>,
    /// Index of the member that answered last.
    now: AtomicUsize,
}

/// Reason why a member gave no answer.
enum Failed {
    /// Another member, or a retry, may answer.
    Again(String),
    /// The request is wrong, and would be at every member.
    Refused(String),
}

impl Gateway {
    pub(crate) fn new(address: &EtcdAddress, tls: Option<&EtcdTls>) -> Result<Gateway, StoreError> {
        let mut config =
            ureq::Agent::config_builder().http_status_as_error(false).max_redirects(0).proxy(None);
        let scheme = if address.is_tls { "https" } else { "http" };
        match (address.is_tls, tls) {
            (true, Some(tls)) => config = config.tls_config(tls_config(tls)?),
            (false, None) => {}
            (true, None) => {
                return Err(StoreError(
                    "etcds:// needs the certificate of the CA that signed the cluster's certificates".into(),
                ));
            }
            (false, Some(_)) => {
                return Err(StoreError(
                    "certificates were given, but etcd:// does not use TLS; use etcds://".into(),
                ));
            }
        }
        let members = address.members.iter().map(|member| format!("{scheme}://{member}/v3/")).collect();
        Ok(Gateway { agent: config.build().into(), members, now: AtomicUsize::new(0) })
    }

    /// Asks one member after the other until one answers. The request may be carried out several times.
    pub(crate) fn call(&self, what: &str, body: &Value, patience: Duration) -> Result<Value, StoreError> {
        let until = Instant::now() + patience;
        let attempt = (patience / self.members.len() as u32).min(ATTEMPT);
        let body = body.to_string();
        let mut tried = 0;
        loop {
            let now = self.now.load(Ordering::Relaxed);
            let member = &self.members[now % self.members.len()];
            let left = until.saturating_duration_since(Instant::now());
            match self.ask(member, what, &body, left.min(attempt).max(PAUSE)) {
                Ok(answer) => return Ok(answer),
                Err(Failed::Refused(why)) => return Err(StoreError(format!("etcd at {member}: {why}"))),
                Err(Failed::Again(why)) => {
                    let next = (now + 1) % self.members.len();
                    let _ = self.now.compare_exchange(now, next, Ordering::Relaxed, Ordering::Relaxed);
                    tried += 1;
                    if Instant::now() >= until {
                        return Err(StoreError(format!(
                            "etcd at {member}: {why} (gave up after {patience:?})"
                        )));
                    }
                    // Every member is asked once without a pause.
                    if tried % self.members.len() == 0 {
                        std::thread::sleep(PAUSE);
                    }
                }
            }
        }
    }

    fn ask(&self, member: &str, what: &str, body: &str, patience: Duration) -> Result<Value, Failed> {
        let again = |error: ureq::Error| Failed::Again(error.to_string());
        let request = self.agent.post(format!("{member}{what}")).content_type("application/json");
        let request = request.config().timeout_global(Some(patience)).build();
        let mut answer = request.send(body).map_err(again)?;
        let status = answer.status().as_u16();
        let bytes = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec().map_err(again)?;
        let value: Value = serde_json::from_slice(&bytes).map_err(|error| {
            Failed::Again(format!("status {status}, and the answer is not JSON: {error}"))
        })?;
        if status == 200 {
            return Ok(value);
        }
        let why = value["error"].as_str().or(value["message"].as_str()).unwrap_or("no reason").to_owned();
        // Codes of gRPC. A wrong request is wrong at every member. A cluster without a leader, or a member that does
        // not know of it, is worth a retry.
        match value["code"].as_i64() {
            Some(3 | 5 | 7 | 16) => Err(Failed::Refused(why)),
            _ => Err(Failed::Again(why)),
        }
    }
}

fn tls_config(tls: &EtcdTls) -> Result<TlsConfig, StoreError> {
    let wrong = |what: &str, error: String| StoreError(format!("{what} for etcd: {error}"));
    let mut authorities = Vec::new();
    for item in parse_pem(&tls.ca) {
        if let PemItem::Certificate(certificate) =
            item.map_err(|error| wrong("the CA certificate", error.to_string()))?
        {
            authorities.push(certificate);
        }
    }
    if authorities.is_empty() {
        return Err(wrong("the CA certificate", "the file contains no certificate".into()));
    }
    let identity = match &tls.identity {
        None => None,
        Some((certificate, key)) => {
            let certificate = Certificate::from_pem(certificate)
                .map_err(|error| wrong("the certificate", error.to_string()))?
                .to_owned();
            let key = PrivateKey::from_pem(key).map_err(|error| wrong("the key", error.to_string()))?;
            Some(ClientCert::new_with_certs(&[certificate], key))
        }
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::new_with_certs(&authorities))
        .client_cert(identity)
        .unversioned_rustls_crypto_provider(provider)
        .build())
}
