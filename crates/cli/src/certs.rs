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
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints, date_time_ymd,
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
    /// List the certificates of a directory.
    Show(ShowArgs),
}

#[derive(clap::Args)]
#[command(after_help = "Example:  farpool certs init certs --node n1 --node n2 --tenant analytics")]
pub(crate) struct IssueArgs {
    /// Directory of the certificates; `init` creates it
    dir: PathBuf,
    /// Node to create a certificate for, as in `farpool node --name`; may be given several times
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
pub(crate) struct ShowArgs {
    /// Directory of the certificates
    dir: PathBuf,
    /// Print the certificates as JSON
    #[arg(long)]
    json: bool,
}

const CA_DAYS: u64 = 3650;
const DAY: Duration = Duration::from_secs(86_400);
/// Certificates are valid from this long before they are made, because the clock of another host may be behind.
const CLOCKS_APART: Duration = Duration::from_secs(3_600);
/// Longest node name that gets a certificate, in bytes. The name is used as a file name.
const NODE_NAME_BYTES_MAX: usize = 64;

pub(crate) fn run(command: &Command) -> Outcome {
    match command {
        Command::Init(args) => init(args),
        Command::Add(args) => add(args),
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
        // The CAs of two pools need different names, or a verifier may take one for the other.
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
            Identity::Tenant(_) => ("Farpool tenant", vec![ClientAuth]),
            Identity::Admin => ("Farpool administrator", vec![ClientAuth]),
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

fn params_of(days: u64) -> Result<CertificateParams, Failure> {
    let mut params = CertificateParams::new(Vec::new()).map_err(Failure::failed)?;
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_err(Failure::failed)?;
    let now = date_time_ymd(1970, 1, 1) + Duration::from_secs(since.as_secs());
    params.not_before = now - CLOCKS_APART;
    params.not_after = now + DAY * days as u32;
    params.distinguished_name = DistinguishedName::new();
    Ok(params)
}

/// Returns the identities to issue certificates for, each with the stem of its file names.
fn wanted(args: &IssueArgs) -> Result<Vec<(String, Identity)>, Failure> {
    let mut wanted = Vec::new();
    for name in &args.nodes {
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
    let read = |name: &str| {
        let path = args.dir.join(name);
        input::file(&path, KEYS_BYTES_MAX).and_then(input::text).map_err(|error| {
            let path = path.display();
            Failure::Failed(format!("{path}: {error}; a folder made by farpool certs init has this file"))
        })
    };
    let authority = Authority::of_key(&read("ca.key")?, read("ca.pem")?)?;
    let files = issue_all(&authority, args, &all)?;
    write_new(&files)?;
    report_made(args, &all, false)
}

struct File {
    path: PathBuf,
    text: String,
    is_secret: bool,
}

/// Issues all certificates and verifies each as its user will, before anything is written.
fn issue_all(
    authority: &Authority,
    args: &IssueArgs,
    all: &[(String, Identity)],
) -> Result<Vec<File>, Failure> {
    let mut files = Vec::new();
    for (stem, identity) in all {
        let Issued { cert, key } = authority.issue(identity, args.days)?;
        Tls::from_pem(&authority.pem, &cert, &key)
            .map_err(|error| Failure::Failed(format!("{stem}: {error}")))?;
        let path = |end: &str| args.dir.join(format!("{stem}.{end}"));
        files.push(File { path: path("pem"), text: cert, is_secret: false });
        files.push(File { path: path("key"), text: key, is_secret: true });
    }
    Ok(files)
}

/// Writes all files, or none if one of them exists already.
fn write_new(files: &[File]) -> Outcome {
    if let Some(file) = files.iter().find(|file| file.path.exists()) {
        return Err(Failure::Refused(format!(
            "{} exists already and is not overwritten: remove it, or choose another folder or name",
            file.path.display()
        )));
    }
    for file in files {
        let mode = if file.is_secret { 0o600 } else { 0o644 };
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&file.path)
            .and_then(|mut opened| opened.write_all(file.text.as_bytes()));
        written.map_err(|error| Failure::Failed(format!("{}: {error}", file.path.display())))?;
    }
    Ok(())
}

fn report_made(args: &IssueArgs, all: &[(String, Identity)], is_new: bool) -> Outcome {
    let dir = args.dir.display();
    let mut stems: Vec<&str> = all.iter().map(|(stem, _)| stem.as_str()).collect();
    if is_new {
        stems.insert(0, "ca");
    }
    let mut out = std::io::stdout().lock();
    for line in as_table(&facts_of(&args.dir, &stems)?) {
        writeln!(out, "{line}")?;
    }
    writeln!(
        out,
        "\nTo run a pool with these certificates (give each machine only ca.pem and its own .pem and .key):\n"
    )?;
    if is_new {
        writeln!(out, "  farpool broker --listen BROKER-HOST:7700 --store broker.redb --certs {dir}")?;
    }
    for name in &args.nodes {
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

fn show(args: &ShowArgs) -> Outcome {
    let mut stems: Vec<String> = std::fs::read_dir(&args.dir)
        .map_err(|error| Failure::Failed(format!("{}: {error}", args.dir.display())))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".pem").map(str::to_owned))
        .collect();
    stems.sort_unstable_by_key(|stem| (stem != "ca", stem.clone()));
    let stems: Vec<&str> = stems.iter().map(String::as_str).collect();
    if stems.is_empty() {
        return Err(Failure::Failed(format!("{}: contains no .pem file", args.dir.display())));
    }
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
