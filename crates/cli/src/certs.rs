//! `farpool certs`: a certificate authority in a folder, for pools that have no other.
//!
//! The certificates are ordinary X.509. With a PKI of your own, issue certificates with the same DNS names instead of
//! using this command. The command never overwrites a file, because a key that is overwritten by mistake is lost.

use crate::exit::Failure;
use crate::input::{self, KEYS_BYTES_MAX};
use crate::{Outcome, table};
use farpool_transport::tls::{CertificateFacts, utc};
use farpool_transport::{Identity, Tls};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    NameConstraints, RevokedCertParams, SerialNumber, date_time_ymd,
};
use serde_json::json;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Create and list certificates.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Create a CA, and certificates for the broker, the administrator, nodes and tenants.
    Init(IssueArgs),
    /// Create certificates for more nodes and tenants.
    Add(IssueArgs),
    /// Replace certificates by new ones. Running processes use them without a restart.
    Renew(RenewArgs),
    /// Revoke certificates: running processes refuse them in later handshakes.
    Revoke(RevokeArgs),
    /// List the certificates of a directory.
    Show(ShowArgs),
}

#[derive(clap::Args)]
#[command(after_help = "Example:  farpool certs init certs --node n1 --node n2 --tenant analytics")]
pub(crate) struct IssueArgs {
    /// Directory of the certificates; `init` creates it
    dir: PathBuf,
    /// Node to create a certificate for, as in `farpool node --name`; NAME[0-9] stands for ten nodes, such as the pods
    /// of a StatefulSet; may be given several times
    #[arg(long = "node", value_name = "NAME")]
    nodes: Vec<String>,
    /// Tenant to create a certificate for; may be given several times
    #[arg(long = "tenant", value_name = "NAME")]
    tenants: Vec<String>,
    /// Days that the certificates are valid (1 to 3650); the CA is valid for ten years
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u64).range(1..=3650))]
    days: u64,
}

#[derive(clap::Args)]
#[command(after_help = "Example:  farpool certs renew certs --days 90")]
pub(crate) struct RenewArgs {
    /// Directory of the certificates, with the key of the CA
    dir: PathBuf,
    /// Certificate to renew, by the name of its file without .pem [default: all except the CA's]; may be given several
    /// times
    #[arg(long = "cert", value_name = "STEM")]
    stems: Vec<String>,
    /// Days that the new certificates are valid (1 to 3650)
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u64).range(1..=3650))]
    days: u64,
}

#[derive(clap::Args)]
#[command(after_help = "Example:  farpool certs revoke certs --cert node-n1\n\n\
    Writes crl.pem, which every process of the pool needs beside its ca.pem. Connections that exist stay open: restart \
    the process that must be shut out.")]
pub(crate) struct RevokeArgs {
    /// Directory of the certificates, with the key of the CA
    dir: PathBuf,
    /// Certificate to revoke, by the name of its file without .pem; may be given several times
    #[arg(long = "cert", value_name = "STEM", required = true)]
    stems: Vec<String>,
}

#[derive(clap::Args)]
pub(crate) struct ShowArgs {
    /// Directory of the certificates
    dir: PathBuf,
    /// Print the certificates as JSON
    #[arg(long)]
    json: bool,
}

const CA_DAYS: u64 = 3650;
const DAY: Duration = Duration::from_secs(86_400);
/// Time by which a certificate's validity begins before it is made, because the clock of another host may be behind.
const CLOCKS_APART: Duration = Duration::from_secs(3_600);
/// Longest name of a node that gets a certificate, in bytes. The name is used as a file name.
const NODE_NAME_BYTES_MAX: usize = 64;

pub(crate) fn run(command: &Command) -> Outcome {
    match command {
        Command::Init(args) => init(args),
        Command::Add(args) => add(args),
        Command::Renew(args) => renew(args),
        Command::Revoke(args) => revoke(args),
        Command::Show(args) => show(args),
    }
}

/// CA certificate and its key, ready to issue certificates.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Certificate of the CA, in PEM.
    pem: String,
}

/// Certificate and its private key, both in PEM.
struct Issued {
    cert: String,
    key: String,
}

impl Authority {
    /// Generates a CA with a new key.
    fn new(days: u64) -> Result<Authority, Failure> {
        let key = KeyPair::generate().map_err(Failure::failed)?;
        let params = Authority::params(&key, days)?;
        let certificate = params.self_signed(&key).map_err(Failure::failed)?;
        Ok(Authority { issuer: Issuer::new(params, key), pem: certificate.pem() })
    }

    /// Rebuilds the CA from its private key. The subject name is derived from the key, so the certificate is not
    /// parsed.
    fn of_key(key: &str, pem: String) -> Result<Authority, Failure> {
        let key = KeyPair::from_pem(key).map_err(Failure::failed)?;
        Ok(Authority { issuer: Issuer::new(Authority::params(&key, CA_DAYS)?, key), pem })
    }

    fn params(key: &KeyPair, days: u64) -> Result<CertificateParams, Failure> {
        let mut params = params_of(days)?;
        let id: String =
            params.key_identifier(key).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        // The CAs of two pools need different names; else a verifier that trusts both may take one for the other.
        params.distinguished_name.push(DnType::CommonName, format!("Farpool CA {id}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        // The CA is valid for names below `.farpool` only, even if somebody installs it system-wide.
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees: vec![GeneralSubtree::DnsName("farpool".into())],
            excluded_subtrees: Vec::new(),
        });
        Ok(params)
    }

    fn issue(&self, identity: &Identity, days: u64) -> Result<Issued, Failure> {
        use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        let (what, usages) = match identity {
            Identity::Broker => ("Farpool broker", vec![ServerAuth]),
            Identity::Node(_) => ("Farpool node", vec![ServerAuth, ClientAuth]),
            // Workers serve sessions that have the same identity.
            Identity::Tenant(_) => ("Farpool tenant", vec![ServerAuth, ClientAuth]),
            Identity::Admin => ("Farpool administrator", vec![ServerAuth, ClientAuth]),
        };
        let mut params = params_of(days)?;
        let name = identity.dns_name().try_into().map_err(Failure::failed)?;
        params.subject_alt_names = vec![rcgen::SanType::DnsName(name)];
        params.distinguished_name.push(DnType::CommonName, what);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = usages;
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(Failure::failed)?;
        let certificate: Certificate = params.signed_by(&key, &self.issuer).map_err(Failure::failed)?;
        Ok(Issued { cert: certificate.pem(), key: key.serialize_pem() })
    }
}

/// Returns the seconds since 1970.
fn seconds_now() -> Result<u64, Failure> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_err(Failure::failed)?;
    Ok(since.as_secs())
}

fn params_of(days: u64) -> Result<CertificateParams, Failure> {
    let mut params = CertificateParams::new(Vec::new()).map_err(Failure::failed)?;
    let now = date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds_now()?);
    params.not_before = now - CLOCKS_APART;
    params.not_after = now + DAY * days as u32;
    params.distinguished_name = DistinguishedName::new();
    Ok(params)
}

/// Returns the identities to issue certificates for, each with the stem of its file names.
fn wanted(args: &IssueArgs) -> Result<Vec<(String, Identity)>, Failure> {
    let mut wanted = Vec::new();
    for name in &names_of(&args.nodes)? {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let is_file_name = (1..=NODE_NAME_BYTES_MAX).contains(&name.len())
            && name.bytes().all(is_plain)
            && !name.starts_with(['.', '-']);
        if !is_file_name {
            return Err(Failure::Usage(format!(
                "--node {name:?}: 1 to {NODE_NAME_BYTES_MAX} letters, digits, '.', '_' and '-' are permitted, \
                 the first a letter, digit or '_'"
            )));
        }
        wanted.push((format!("node-{name}"), Identity::Node(farpool_node::node_id(name))));
    }
    for name in &args.tenants {
        let identity = Identity::tenant(name).map_err(|error| Failure::Usage(format!("--tenant {error}")))?;
        wanted.push((format!("tenant-{name}"), identity));
    }
    Ok(wanted)
}

/// Number of names, at most, that one pattern of `--node` stands for.
const PATTERN_NAMES_MAX: u32 = 4096;

/// Returns the names that `--node` gives. `NAME[FIRST-LAST]` stands for one name for each number.
fn names_of(patterns: &[String]) -> Result<Vec<String>, Failure> {
    let mut names = Vec::new();
    for pattern in patterns {
        let Some((prefix, range)) = pattern.strip_suffix(']').and_then(|rest| rest.split_once('[')) else {
            names.push(pattern.clone());
            continue;
        };
        let numbers =
            range.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
        match numbers {
            Some((first, last)) if first <= last && last - first < PATTERN_NAMES_MAX => {
                names.extend((first..=last).map(|number: u32| format!("{prefix}{number}")));
            }
            _ => {
                return Err(Failure::Usage(format!(
                    "--node {pattern:?}: write NAME[FIRST-LAST], such as n[0-9]; at most {PATTERN_NAMES_MAX} names"
                )));
            }
        }
    }
    Ok(names)
}

fn init(args: &IssueArgs) -> Outcome {
    let mut all = vec![("broker".to_owned(), Identity::Broker), ("admin".to_owned(), Identity::Admin)];
    all.extend(wanted(args)?);
    let authority = Authority::new(CA_DAYS.max(args.days))?;
    let mut files = vec![
        File { path: args.dir.join("ca.pem"), text: authority.pem.clone(), is_secret: false },
        File { path: args.dir.join("ca.key"), text: authority.issuer.key().serialize_pem(), is_secret: true },
    ];
    files.extend(issue_all(&authority, args, &all)?);
    if !args.dir.exists() {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&args.dir)
            .map_err(|error| Failure::Failed(format!("{}: {error}", args.dir.display())))?;
    }
    write_new(&files)?;
    report_made(args, &all, true)
}

fn add(args: &IssueArgs) -> Outcome {
    let all = wanted(args)?;
    if all.is_empty() {
        return Err(Failure::Usage("nothing to add; name some with --node and --tenant".into()));
    }
    let files = issue_all(&authority_in(&args.dir)?, args, &all)?;
    write_new(&files)?;
    report_made(args, &all, false)
}

/// Reads the CA of a directory.
fn authority_in(dir: &Path) -> Result<Authority, Failure> {
    let read = |name: &str| {
        let path = dir.join(name);
        input::file(&path, KEYS_BYTES_MAX).and_then(input::text).map_err(|error| {
            let path = path.display();
            Failure::Failed(format!("{path}: {error}; a folder made by farpool certs init has this file"))
        })
    };
    Authority::of_key(&read("ca.key")?, read("ca.pem")?)
}

/// Replaces certificates and their keys. A process that reads a certificate and its key while they are replaced keeps
/// its old pair until the new one is complete.
fn renew(args: &RenewArgs) -> Outcome {
    let authority = authority_in(&args.dir)?;
    let stems = if args.stems.is_empty() { stems_in(&args.dir)? } else { args.stems.clone() };
    let stems: Vec<&str> = stems.iter().map(String::as_str).filter(|stem| *stem != "ca").collect();
    let mut files = Vec::new();
    for (file, facts) in facts_of(&args.dir, &stems)? {
        let stem = file.trim_end_matches(".pem");
        let identity = facts.identity.as_ref();
        let identity =
            identity.ok_or_else(|| Failure::Failed(format!("{file} has no identity of a pool")))?;
        files.extend(issued(&authority, &args.dir, stem, identity, args.days)?);
    }
    // The key comes first: whoever sees the new certificate finds its key.
    files.sort_by_key(|file| !file.is_secret);
    files.iter().try_for_each(replace)?;
    show_made(&args.dir, &stems)
}

/// Adds certificates to the revocation list of the CA.
fn revoke(args: &RevokeArgs) -> Outcome {
    let authority = authority_in(&args.dir)?;
    let stems: Vec<&str> = args.stems.iter().map(String::as_str).collect();
    // The serial numbers so far, one a line, each followed by a comment for people.
    let path = args.dir.join("revoked.txt");
    let mut text = match path.exists() {
        true => {
            input::file(&path, KEYS_BYTES_MAX).and_then(input::text).map_err(|error| failed(&path, error))?
        }
        false => String::new(),
    };
    let now = seconds_now()?;
    for (file, facts) in facts_of(&args.dir, &stems)? {
        let serial = hex(&facts.serial);
        if !text.lines().any(|line| line.split_whitespace().next() == Some(&serial)) {
            text.push_str(&format!("{serial} {now} {file}\n"));
        }
    }
    let mut revoked_certs = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let serial = words.next().and_then(crate::function::digits);
        let (Some(serial), Some(at)) = (serial, words.next().and_then(|at| at.parse().ok())) else {
            return Err(failed(&path, format!("{line:?} is not a serial number, a time and a file name")));
        };
        revoked_certs.push(RevokedCertParams {
            serial_number: SerialNumber::from_slice(&serial),
            revocation_time: date_time_ymd(1970, 1, 1) + Duration::from_secs(now.min(at)),
            reason_code: None,
            invalidity_date: None,
        });
    }
    let this_update = date_time_ymd(1970, 1, 1) + Duration::from_secs(now);
    let list = CertificateRevocationListParams {
        this_update,
        next_update: this_update + DAY * CA_DAYS as u32,
        crl_number: SerialNumber::from(now),
        issuing_distribution_point: None,
        revoked_certs,
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let list = list.signed_by(&authority.issuer).and_then(|list| list.pem()).map_err(Failure::failed)?;
    replace(&File { path: path.clone(), text, is_secret: false })?;
    replace(&File { path: args.dir.join("crl.pem"), text: list, is_secret: false })?;
    writeln!(
        std::io::stdout(),
        "{} lists what is revoked. Give it to every process of the pool, beside its ca.pem; running ones read it \
         without a restart.",
        args.dir.join("crl.pem").display()
    )?;
    Ok(())
}

fn failed(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::Failed(format!("{}: {error}", path.display()))
}

/// Replaces a file in one step.
fn replace(file: &File) -> Outcome {
    let beside = file.path.with_extension("new");
    let _ = std::fs::remove_file(&beside);
    write(&File { path: beside.clone(), text: file.text.clone(), is_secret: file.is_secret })?;
    std::fs::rename(&beside, &file.path).map_err(|error| failed(&file.path, error))
}

struct File {
    path: PathBuf,
    text: String,
    is_secret: bool,
}

/// Issues all certificates, before any is written. Verifies each with its key and the CA, as the program that uses it
/// will.
fn issue_all(
    authority: &Authority,
    args: &IssueArgs,
    all: &[(String, Identity)],
) -> Result<Vec<File>, Failure> {
    let mut files = Vec::new();
    for (stem, identity) in all {
        files.extend(issued(authority, &args.dir, stem, identity, args.days)?);
    }
    Ok(files)
}

/// Issues a certificate. Verifies it with its key and the CA, as the program that uses it will.
fn issued(
    authority: &Authority,
    dir: &Path,
    stem: &str,
    identity: &Identity,
    days: u64,
) -> Result<[File; 2], Failure> {
    let Issued { cert, key } = authority.issue(identity, days)?;
    Tls::from_pem(&authority.pem, &cert, &key)
        .map_err(|error| Failure::Failed(format!("{stem}: {error}")))?;
    let path = |end: &str| dir.join(format!("{stem}.{end}"));
    Ok([
        File { path: path("pem"), text: cert, is_secret: false },
        File { path: path("key"), text: key, is_secret: true },
    ])
}

/// Writes all files, or no file if one of them exists already.
fn write_new(files: &[File]) -> Outcome {
    if let Some(file) = files.iter().find(|file| file.path.exists()) {
        return Err(Failure::Refused(format!(
            "{} exists already and is not overwritten: remove it, or choose another folder or name",
            file.path.display()
        )));
    }
    files.iter().try_for_each(write)
}

fn write(file: &File) -> Outcome {
    let mode = if file.is_secret { 0o600 } else { 0o644 };
    let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(&file.path);
    let written = opened.and_then(|mut opened| {
        opened.write_all(file.text.as_bytes())?;
        opened.sync_all()
    });
    written.map_err(|error| failed(&file.path, error))
}

fn report_made(args: &IssueArgs, all: &[(String, Identity)], is_new: bool) -> Outcome {
    let dir = args.dir.display();
    let mut stems: Vec<&str> = all.iter().map(|(stem, _)| stem.as_str()).collect();
    if is_new {
        stems.insert(0, "ca");
    }
    show_made(&args.dir, &stems)?;
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "\nTo run a pool with these certificates (give each machine only ca.pem and its own .pem and .key):\n"
    )?;
    if is_new {
        writeln!(out, "  farpool broker --listen BROKER-HOST:7700 --store broker.redb --certs {dir}")?;
    }
    for name in &names_of(&args.nodes)? {
        writeln!(
            out,
            "  farpool node --name {name} --memory 4GiB --listen NODE-HOST:7701 --broker farpool://BROKER-HOST:7700 \
             --certs {dir}"
        )?;
    }
    for tenant in &args.tenants {
        writeln!(out, "  farpool status --pool farpool://BROKER-HOST:7700 --certs {dir} --tenant {tenant}")?;
    }
    if is_new {
        writeln!(out, "  farpool status --pool farpool://BROKER-HOST:7700 --certs {dir}")?;
        writeln!(
            out,
            "\nAnyone who has {dir}/ca.key can act as any member of this pool: keep it off the pool's machines."
        )?;
    }
    Ok(())
}

fn show_made(dir: &Path, stems: &[&str]) -> Outcome {
    let mut out = std::io::stdout().lock();
    for line in as_table(&facts_of(dir, stems)?) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// Reads the certificates `STEM.pem` of a directory.
fn facts_of(dir: &Path, stems: &[&str]) -> Result<Vec<(String, CertificateFacts)>, Failure> {
    let mut facts = Vec::new();
    for stem in stems {
        let path = dir.join(format!("{stem}.pem"));
        let shown = path.display().to_string();
        let pem = input::file(&path, KEYS_BYTES_MAX)
            .map_err(|error| Failure::Failed(format!("{shown}: {error}")))?;
        let read =
            CertificateFacts::of_pem(&pem, &shown).map_err(|error| Failure::Failed(error.to_string()))?;
        facts.push((format!("{stem}.pem"), read));
    }
    Ok(facts)
}

/// Returns the names of the certificates of a directory, the CA's first.
fn stems_in(dir: &Path) -> Result<Vec<String>, Failure> {
    let mut stems: Vec<String> = std::fs::read_dir(dir)
        .map_err(|error| failed(dir, error))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".pem").map(str::to_owned))
        .filter(|stem| stem != "crl")
        .collect();
    stems.sort_unstable_by_key(|stem| (stem != "ca", stem.clone()));
    if stems.is_empty() {
        return Err(failed(dir, "contains no certificate (.pem)"));
    }
    Ok(stems)
}

fn show(args: &ShowArgs) -> Outcome {
    let stems = stems_in(&args.dir)?;
    let stems: Vec<&str> = stems.iter().map(String::as_str).collect();
    let facts = facts_of(&args.dir, &stems)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        let all = facts.iter().map(|(file, facts)| {
            json!({
                "file": file,
                "identity": facts.identity.as_ref().map(Identity::dns_name),
                "not_before": facts.not_before,
                "not_after": facts.not_after,
                "state": state(facts),
                "fingerprint_sha256": hex(&facts.fingerprint),
            })
        });
        writeln!(out, "{}", serde_json::Value::Array(all.collect()))?;
    } else {
        for line in as_table(&facts) {
            writeln!(out, "{line}")?;
        }
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn state(facts: &CertificateFacts) -> &'static str {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    match now {
        _ if now < facts.not_before => "not valid yet",
        _ if now > facts.not_after => "expired",
        _ => "valid",
    }
}

fn as_table(facts: &[(String, CertificateFacts)]) -> Vec<String> {
    let rows: Vec<Vec<String>> = facts
        .iter()
        .map(|(file, facts)| {
            vec![
                file.clone(),
                match &facts.identity {
                    Some(identity) => identity.dns_name(),
                    None if file == "ca.pem" => "(CA: signs the others)".to_owned(),
                    None => "(no identity of a pool)".to_owned(),
                },
                utc(facts.not_before),
                utc(facts.not_after),
                state(facts).to_owned(),
                // Eight bytes tell certificates apart. `--json` prints the whole fingerprint.
                hex(&facts.fingerprint[..8]),
            ]
        })
        .collect();
    table::lines(&["file", "identity", "not before", "not after", "state", "sha-256"], &rows)
}
