//! Flags for connections: whether they may leave this machine, and the certificates that authenticate both sides.

use crate::exit::Failure;
use farpool_host::{Event, Host, Machine};
use farpool_transport::tls::utc;
use farpool_transport::{Brokers, Exposure, ExposureError, Tls, TlsFiles};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Heading of these flags. They mean the same in every command.
const CONNECTION: &str = crate::settings::declared::COMMON[0];

/// Flags of every command that connects or listens.
#[derive(clap::Args)]
pub struct Args {
    /// Use TLS with the certificates of this directory, made by `farpool certs init`
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with_all = ["tls_ca", "tls_cert", "tls_key", "tls_crl", "plaintext"],
        help_heading = CONNECTION,
    )]
    certs: Option<PathBuf>,
    /// Use TLS and trust these CAs (PEM)
    #[arg(
        long,
        value_name = "FILE",
        requires_all = ["tls_cert", "tls_key"],
        conflicts_with = "plaintext",
        help_heading = CONNECTION,
    )]
    tls_ca: Option<PathBuf>,
    /// Certificate of this process and intermediates (PEM)
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_ca",
        conflicts_with = "plaintext",
        help_heading = CONNECTION,
    )]
    tls_cert: Option<PathBuf>,
    /// Private key of this process (PEM)
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_ca",
        conflicts_with = "plaintext",
        help_heading = CONNECTION,
    )]
    tls_key: Option<PathBuf>,
    /// Revocation list of the CA: certificates in it are not accepted (PEM); with --certs it is crl.pem
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_ca",
        conflicts_with = "plaintext",
        help_heading = CONNECTION,
    )]
    tls_crl: Option<PathBuf>,
    /// Allow connections to other machines without encryption or authentication
    #[arg(long, help_heading = CONNECTION)]
    plaintext: bool,
}

/// Flags of a command that opens a session.
#[derive(clap::Args)]
pub struct ClientArgs {
    /// Address of the pool; several brokers are separated by commas
    #[arg(
        long,
        value_name = "farpool://HOST:PORT",
        default_value = "farpool://127.0.0.1:7700",
        help_heading = CONNECTION,
    )]
    pub pool: String,
    #[command(flatten)]
    exposure: Args,
    /// Tenant to connect as, with --certs [default: the administrator of the pool]
    #[arg(
        long,
        value_name = "NAME",
        requires = "certs",
        conflicts_with = "plaintext",
        help_heading = CONNECTION,
    )]
    tenant: Option<String>,
}

impl Args {
    /// Loads the TLS files that the flags name, and returns the settings of this process's connections. In a directory
    /// of certificates (`--certs`), the files of this process are `STEM.pem` and `STEM.key`.
    pub fn exposure(&self, stem: &str) -> Result<Exposure, Failure> {
        let files = match (&self.certs, &self.tls_ca, &self.tls_cert, &self.tls_key) {
            (Some(folder), ..) => Some(files_in(folder, stem)?),
            (None, Some(ca), Some(cert), Some(key)) => {
                let (ca, cert, key) = (ca.clone(), cert.clone(), key.clone());
                Some(TlsFiles { ca, cert, key, crl: self.tls_crl.clone() })
            }
            // No flag names certificates. (The argument parser accepts CA, certificate and key only together.)
            _ => None,
        };
        if let Some(crl) = self.tls_crl.as_ref().filter(|crl| !crl.is_file()) {
            let crl = crl.display();
            return Err(Failure::Failed(format!(
                "--tls-crl {crl}: there is no such file; farpool certs revoke makes one"
            )));
        }
        let tls = files.map(|files| Tls::load(&files)).transpose();
        let tls = tls.map_err(|error| Failure::Failed(error.to_string()))?;
        tls.iter().for_each(watch_end);
        Ok(Exposure { tls, plaintext: self.plaintext })
    }
}

/// Days before the end of a certificate at which a warning is logged.
const WARN_DAYS: [u64; 4] = [30, 7, 3, 1];
/// Interval between two checks of the certificate's end.
const LOOK: Duration = Duration::from_secs(60);

/// Logs warnings before the certificate ends, for as long as this process runs. Each check also loads renewed files.
fn watch_end(tls: &Tls) {
    let tls = tls.clone();
    let watch = move || {
        let mut warned = u64::MAX;
        loop {
            let now =
                SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
            let due = warning_due(now, tls.not_after());
            if let Some(days) = due.filter(|days| *days < warned) {
                let end = utc(tls.not_after());
                let message = format!(
                    "the certificate of {} ends on {end}: farpool certs renew makes a new one",
                    tls.identity()
                );
                Machine.log(&Event::warn("certificate_ends", message));
                warned = days;
            }
            warned = if due.is_none() { u64::MAX } else { warned };
            std::thread::sleep(LOOK);
        }
    };
    // If no thread can be started, there are no warnings, but connections work.
    let _ = std::thread::Builder::new().name("farpool-certificate".into()).spawn(watch);
}

/// Returns the least of [`WARN_DAYS`] that has been reached. `None` if more days are left than the largest of them.
/// Times are seconds since 1970.
fn warning_due(now: u64, not_after: u64) -> Option<u64> {
    let left = not_after.saturating_sub(now);
    WARN_DAYS.into_iter().filter(|days| left <= days * 86_400).min()
}

impl ClientArgs {
    /// Returns the variables by which another program of Farpool opens the same session.
    pub fn variables(&self) -> Vec<(&'static str, OsString)> {
        let Args { certs, tls_ca, tls_cert, tls_key, tls_crl, plaintext } = &self.exposure;
        let files = [
            ("FARPOOL_CERTS", certs),
            ("FARPOOL_TLS_CA", tls_ca),
            ("FARPOOL_TLS_CERT", tls_cert),
            ("FARPOOL_TLS_KEY", tls_key),
            ("FARPOOL_TLS_CRL", tls_crl),
        ];
        let files = files.into_iter().filter_map(|(name, file)| Some((name, file.clone()?.into_os_string())));
        let tenant = self.tenant.iter().map(|tenant| ("FARPOOL_TENANT", tenant.into()));
        let plaintext = plaintext.then(|| ("FARPOOL_PLAINTEXT", "true".into()));
        [("FARPOOL_POOL", self.pool.clone().into())]
            .into_iter()
            .chain(files)
            .chain(tenant)
            .chain(plaintext)
            .collect()
    }

    /// Loads the TLS files of the tenant, or of the administrator without `--tenant`.
    pub fn exposure(&self) -> Result<Exposure, Failure> {
        let stem = self.tenant.as_ref().map_or("admin".to_owned(), |tenant| format!("tenant-{tenant}"));
        self.exposure.exposure(&stem)
    }
}

/// Returns the files of `stem` in a directory. The likeliest mistake is a name without a certificate, so the error
/// lists the names that have one.
fn files_in(folder: &Path, stem: &str) -> Result<TlsFiles, Failure> {
    let files = TlsFiles::in_folder(folder, stem);
    if files.cert.exists() {
        return Ok(files);
    }
    let mut found: Vec<String> = std::fs::read_dir(folder)
        .map_err(|error| Failure::Failed(format!("--certs {}: {error}", folder.display())))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter_map(|name| {
            name.strip_suffix(".pem").filter(|stem| !["ca", "crl"].contains(stem)).map(str::to_owned)
        })
        .collect();
    found.sort_unstable();
    let found = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
    Err(Failure::Failed(format!(
        "--certs {}: no certificate {stem}.pem there (found: {found}); farpool certs add makes one",
        folder.display()
    )))
}

/// Resolves `host:port`. An address of another machine is refused unless TLS or `--plaintext` is given.
pub fn resolve(flag: &str, address: &str, exposure: &Exposure) -> Result<SocketAddr, Failure> {
    match exposure.resolve(address) {
        Ok(found) => Ok(found[0]),
        Err(ExposureError::Beyond(error)) => Err(Failure::Refused(format!("{flag} {address}: {error}"))),
        Err(ExposureError::Unresolved(error)) => Err(Failure::Usage(format!(
            "{flag} {address}: {error}; HOST:PORT is permitted, such as 127.0.0.1:7700"
        ))),
    }
}

/// Parses the address of a pool into its brokers. A broker on another machine is refused unless TLS or `--plaintext` is
/// given. One whose name does not resolve yet is asked later, as one that does not answer.
pub fn brokers_of(flag: &str, url: &str, exposure: &Exposure) -> Result<Brokers, Failure> {
    let usage = |why: &str| {
        Failure::Usage(format!(
            "{flag} {url}: not a pool address{why}; write farpool://HOST:PORT, or with several brokers \
             farpool://HOST:PORT,HOST:PORT"
        ))
    };
    let addresses = url.strip_prefix("farpool://").ok_or_else(|| usage(""))?.trim_end_matches('/');
    let brokers = Brokers::new(addresses).map_err(|why| usage(&format!(": {why}")))?;
    for address in brokers.addresses() {
        if let Err(ExposureError::Beyond(error)) = exposure.resolve(address) {
            return Err(Failure::Refused(format!("{flag} {address}: {error}")));
        }
    }
    Ok(brokers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_a_certificate_is_warned_of_at_each_threshold() {
        const DAY: u64 = 86_400;
        let due = |left: u64| warning_due(1_000_000, 1_000_000 + left);
        assert_eq!(due(31 * DAY), None);
        assert_eq!([due(30 * DAY), due(8 * DAY)], [Some(30); 2]);
        assert_eq!([due(7 * DAY), due(2 * DAY), due(DAY), due(0)], [Some(7), Some(3), Some(1), Some(1)]);
        assert_eq!(warning_due(2_000_000, 1_000_000), Some(1), "it has ended");
    }
}
