//! The flags that say how far connections go, and what proves each side to the other.

use crate::exit::Failure;
use farpool_transport::{Brokers, Reach, ReachError, Tls, TlsFiles};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Flags of every command that connects or listens.
#[derive(clap::Args)]
pub struct Args {
    /// Speak TLS with the certificates of this folder, made by `farpool certs init`
    #[arg(long, value_name = "DIR", conflicts_with_all = ["tls_ca", "tls_cert", "tls_key", "plaintext"])]
    certs: Option<PathBuf>,
    /// Speak TLS: the CAs to trust (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "tls_key"], conflicts_with = "plaintext")]
    tls_ca: Option<PathBuf>,
    /// Our certificate, and those between it and the CA (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_ca")]
    tls_cert: Option<PathBuf>,
    /// The key of our certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_ca")]
    tls_key: Option<PathBuf>,
    /// Go beyond this machine without encryption or authentication
    #[arg(long)]
    plaintext: bool,
}

/// Flags of a command that opens a session.
#[derive(clap::Args)]
pub struct ClientArgs {
    #[command(flatten)]
    reach: Args,
    /// With --certs: the tenant to be; otherwise the pool's administrator
    #[arg(long, value_name = "NAME", requires = "certs")]
    tenant: Option<String>,
}

impl Args {
    /// What the flags come to. `stem` is what this command's files are called in a folder of certificates.
    pub fn reach(&self, stem: &str) -> Result<Reach, Failure> {
        let files = match (&self.certs, &self.tls_ca, &self.tls_cert, &self.tls_key) {
            (Some(folder), ..) => Some(files_in(folder, stem)?),
            (None, Some(ca), Some(cert), Some(key)) => {
                Some(TlsFiles { ca: ca.clone(), cert: cert.clone(), key: key.clone() })
            }
            // The argument parser lets them come together only.
            _ => None,
        };
        let tls = files.map(|files| Tls::load(&files)).transpose();
        let tls = tls.map_err(|error| Failure::Failed(error.to_string()))?;
        Ok(Reach { tls, plaintext: self.plaintext })
    }
}

impl ClientArgs {
    /// What the flags come to.
    pub fn reach(&self) -> Result<Reach, Failure> {
        let stem = self.tenant.as_ref().map_or("admin".to_owned(), |tenant| format!("tenant-{tenant}"));
        self.reach.reach(&stem)
    }
}

/// The files of `stem`, which must be there: the likeliest mistake is a name that was never given a
/// certificate, so the error says which were.
fn files_in(folder: &Path, stem: &str) -> Result<TlsFiles, Failure> {
    let files = TlsFiles::in_folder(folder, stem);
    if files.cert.exists() {
        return Ok(files);
    }
    let mut found: Vec<String> = std::fs::read_dir(folder)
        .map_err(|error| Failure::Failed(format!("--certs {}: {error}", folder.display())))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".pem").filter(|stem| *stem != "ca").map(str::to_owned))
        .collect();
    found.sort_unstable();
    let found = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
    Err(Failure::Failed(format!(
        "--certs {}: no certificate {stem}.pem there (found: {found}); farpool certs add makes one",
        folder.display()
    )))
}

/// The addresses behind `host:port`, refused if one lies beyond this machine and nothing protects it.
pub fn resolve(flag: &str, address: &str, reach: &Reach) -> Result<SocketAddr, Failure> {
    match reach.resolve(address) {
        Ok(found) => Ok(found[0]),
        Err(ReachError::Beyond(error)) => Err(Failure::Refused(format!("{flag} {address}: {error}"))),
        Err(ReachError::Unresolved(error)) => Err(Failure::Usage(format!(
            "{flag} {address}: {error}; HOST:PORT is permitted, such as 127.0.0.1:7700"
        ))),
    }
}

/// The brokers of a pool's address, refused if one lies beyond this machine and nothing protects it.
pub fn brokers_of(flag: &str, url: &str, reach: &Reach) -> Result<Brokers, Failure> {
    let usage = |why: &str| {
        Failure::Usage(format!(
            "{flag} {url}: no pool address{why}; farpool://HOST:PORT is one, or with several brokers \
             farpool://HOST:PORT,HOST:PORT"
        ))
    };
    let addresses = url.strip_prefix("farpool://").ok_or_else(|| usage(""))?.trim_end_matches('/');
    let brokers = Brokers::new(addresses).map_err(|why| usage(&format!(": {why}")))?;
    let mut unresolved = None;
    for address in brokers.addresses() {
        match resolve(flag, address, reach) {
            Ok(_) => {}
            // One of several may be gone with its name.
            Err(error @ Failure::Usage(_)) if brokers.count() > 1 => unresolved = Some(error),
            Err(error) => return Err(error),
        }
    }
    match unresolved {
        Some(error) if brokers.addresses().iter().all(|one| resolve(flag, one, reach).is_err()) => Err(error),
        _ => Ok(brokers),
    }
}
