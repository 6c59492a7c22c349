//! `farpool fn`: builds, stores and calls functions that run at the nodes. `function/build` compiles modules,
//! `function/values` parses arguments and formats outputs.

mod build;
mod values;

use crate::exit::Failure;
use crate::input::{self, KEYS_BYTES_MAX};
use crate::pool_args::PoolArgs;
use crate::units::{self, show_bytes};
use crate::{Outcome, table};
use chrono::{DateTime, SecondsFormat};
use farpool::function::{
    CallOptions, Called, CallerOptions, Function, FunctionForm, FunctionStored, FunctionVersion, abi,
};
use farpool::{IfTaken, Placement, Pool, Protection};
use farpool_calls::SigningKey;
use farpool_wire::limits::FUNCTION_BYTES_MAX;
use serde_json::json;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
pub(crate) use values::digits;
use values::{Argument, Shown};

/// Label of the sessions of this command in `farpool status`.
const LABEL: &str = "farpool fn";

/// Build, store and call functions that run beside the data.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Compile a function in C or WebAssembly text to a WebAssembly module.
    Build(build::Args),
    /// Store a function in a pool, for all its clients.
    Push(PushArgs),
    /// Call a function over a published far file, or over columns of a far table.
    Run(RunArgs),
    /// List the functions that are stored in a pool.
    List(ListArgs),
    /// List the versions of a function: who stored them, when, and their tags.
    Log(LogArgs),
    /// Let a tag name a version of a function.
    Tag(TagArgs),
    /// Remove a function, a version of it or a tag from a pool.
    Rm(RmArgs),
    /// Create a key pair to sign functions with.
    Keygen(KeygenArgs),
}

/// How a file becomes a function.
#[derive(clap::Args)]
struct CodeArgs {
    /// Exported name of the function in the file [default: the file name without its extension]
    #[arg(long, value_name = "NAME")]
    entry: Option<String>,
    /// Private key to sign the function with, made by `farpool fn keygen`; native ones (.so) must be signed
    #[arg(long, value_name = "FILE")]
    sign: Option<PathBuf>,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:  farpool fn push walk walk.wasm\n           \
    farpool fn push walk walk.wasm --replace --tag stable")]
pub(crate) struct PushArgs {
    /// Name of the function in the pool
    name: String,
    /// WebAssembly module (.wasm), WebAssembly text (.wat) or shared object (.so)
    file: PathBuf,
    #[command(flatten)]
    code: CodeArgs,
    /// Add a version to the function of this name, if there is one; it becomes the newest, which NAME alone means
    #[arg(long)]
    replace: bool,
    /// Tag that names this version from now on; may be given several times
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// Protection of all its versions when a node is lost: none, mirror or rs(DATA,PARITY), which becomes a mirror for
    /// a file as small as a function [default: mirror if the pool has two hosts, otherwise none]
    #[arg(long, value_name = "HOW")]
    protection: Option<Protection>,
    #[command(flatten)]
    pool: PoolArgs,
}

#[derive(clap::Args)]
#[command(
    after_help = "Examples:  farpool fn run walk --on list --arg u64:0 --arg u64:1000 --arg u64:0 --show u64\n           \
    farpool fn run json_path.wasm --table events --columns body --arg u64:0 --arg text:user.id --show hex\n           \
    farpool fn run resident:checksum --on list --arg u64:0 --arg u64:4096 --show hex"
)]
pub(crate) struct RunArgs {
    /// Function to call: a name in the pool (NAME, NAME@VERSION or NAME@TAG), a file (.wasm, .wat, .so), or
    /// resident:NAME for one built into the nodes
    function: String,
    /// Published far file that the function reads
    #[arg(long, value_name = "FILE", required_unless_present = "table", conflicts_with = "table")]
    on: Option<String>,
    /// Far table that the function reads: it runs at each node that holds row groups of the table
    #[arg(long, value_name = "TABLE")]
    table: Option<String>,
    /// Columns of the table that the function gets, in this order
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', requires = "table")]
    columns: Vec<String>,
    /// Argument: u64:N, i64:N, u32:N, i32:N, f64:X, f32:X, text:T, hex:DIGITS or @FILE; may be given several times: the
    /// arguments are concatenated in this order
    #[arg(long = "arg", value_name = "ARGUMENT", value_parser = values::argument)]
    arguments: Vec<Argument>,
    #[command(flatten)]
    code: CodeArgs,
    /// Placement: ship (at the node that holds most of the data), fetch (in this process, over fetched bytes), split
    /// (at the nodes and in this process at once; with --table) or auto
    #[arg(long, value_name = "WHERE", default_value = "auto")]
    placement: Placement,
    /// Time limit of the call; 1ms to 60m
    #[arg(long, value_name = "TIME", value_parser = units::millis, default_value = "10s")]
    deadline: u32,
    /// Largest output of the call; up to 240MiB
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, default_value = "16MiB")]
    output_size: u64,
    /// Format of the output: hex, text, u64, i64, u32, i32, f64, f32 or raw (the bytes as they are)
    #[arg(long, value_name = "HOW", value_parser = values::shown, default_value = "hex")]
    show: Shown,
    #[command(flatten)]
    pool: PoolArgs,
}

#[derive(clap::Args)]
#[command(after_help = "Example:  farpool fn list --pool farpool://127.0.0.1:7700")]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pool: PoolArgs,
}

#[derive(clap::Args)]
#[command(after_help = "Example:  farpool fn log walk")]
pub(crate) struct LogArgs {
    /// Name of the function
    name: String,
    #[command(flatten)]
    pool: PoolArgs,
}

#[derive(clap::Args)]
#[command(after_help = "Example:  farpool fn tag walk@3 stable")]
pub(crate) struct TagArgs {
    /// Version: NAME@VERSION, NAME@TAG of another tag, or NAME for the newest
    name: String,
    /// Tag, which names no other version from now on
    tag: String,
    #[command(flatten)]
    pool: PoolArgs,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:  farpool fn rm walk\n           farpool fn rm walk@3")]
pub(crate) struct RmArgs {
    /// NAME for the function, NAME@VERSION for a version and its tags, NAME@TAG for a tag
    name: String,
    #[command(flatten)]
    pool: PoolArgs,
}

#[derive(clap::Args)]
#[command(after_help = "Example:  farpool fn keygen team.key   then give the line that it prints to nodes: \
    farpool node --function-keys FILE")]
pub(crate) struct KeygenArgs {
    /// File to write the private key to; it must not exist yet
    file: PathBuf,
}

pub(crate) fn run(command: &Command) -> Outcome {
    match command {
        Command::Build(args) => build::run(args),
        Command::Push(args) => push(args),
        Command::Run(args) => call(args),
        Command::List(args) => list(args),
        Command::Log(args) => log(args),
        Command::Tag(args) => tag(args),
        Command::Rm(args) => remove(args),
        Command::Keygen(args) => keygen(args),
    }
}

fn failed(what: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::Failed(format!("{}: {error}", what.display()))
}

impl CodeArgs {
    /// Loads the function of a file, signed with the key of `--sign`.
    fn load(&self, file: &Path) -> Result<Function, Failure> {
        let read = |bytes_max| input::file(file, bytes_max).map_err(|error| failed(file, error));
        let stem = file.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let entry = self.entry.clone().or(stem).unwrap_or_default();
        let signed = |module| {
            let function = Function::wasm(module, &entry)?;
            let key = self.sign.as_deref().map(read_key).transpose()?;
            Ok(key.map_or(function.clone(), |key| key.sign_wasm(function)))
        };
        match file.extension().and_then(|ending| ending.to_str()) {
            Some("wasm") => signed(read(FUNCTION_BYTES_MAX)?),
            Some("wat") => signed(build::module_of_text(file)?),
            Some("so") => {
                let Some(key) = &self.sign else {
                    let message =
                        "a native function must be signed: --sign FILE, made by `farpool fn keygen`";
                    return Err(Failure::Usage(message.to_owned()));
                };
                Ok(read_key(key)?.sign(read(FUNCTION_BYTES_MAX)?, &entry)?)
            }
            _ => Err(failed(file, "it is not a .wasm, .wat or .so file; `farpool fn build` makes modules")),
        }
    }
}

fn read_key(file: &Path) -> Result<SigningKey, Failure> {
    let bytes = input::file(file, KEYS_BYTES_MAX).map_err(|error| failed(file, error))?;
    SigningKey::of_pkcs8(&bytes).ok_or_else(|| failed(file, "it is not an Ed25519 key in PKCS #8"))
}

fn keygen(args: &KeygenArgs) -> Outcome {
    let (key, kept) = SigningKey::generate()?;
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(&args.file);
    file.and_then(|mut file| file.write_all(kept.as_ref())).map_err(|error| failed(&args.file, error))?;
    writeln!(std::io::stdout(), "{}", key.public_hex())?;
    Ok(())
}

fn push(args: &PushArgs) -> Outcome {
    let function = args.code.load(&args.file)?;
    let pool = args.pool.open(LABEL)?;
    let if_taken = if args.replace { IfTaken::Replace } else { IfTaken::Refuse };
    let FunctionStored { version, protection } =
        pool.put_function(&args.name, &function, if_taken, args.protection)?;
    let protection = protection.to_string();
    let name = format!("{}@{version}", args.name);
    args.tag.iter().try_for_each(|tag| pool.tag_function(&name, tag).map(drop))?;
    let digest = abi::hex(function.digest());
    let (form, bytes) = (function.form().word(), function.bytes().len());
    let json = json!({
        "name": args.name, "version": version, "tags": args.tag, "form": form, "entry": function.entry(), "bytes": bytes,
        "sha256": digest, "protection": protection, "signed": function.is_signed(),
    });
    let line = format!(
        "{name}: {form}, {}, sha256 {}, protection {protection}",
        show_bytes(bytes as u64),
        &digest[..16]
    );
    args.pool.say(&json, &[line])
}

fn list(args: &ListArgs) -> Outcome {
    let pool = args.pool.open(LABEL)?;
    let mut rows = Vec::new();
    let mut described = Vec::new();
    for info in pool.functions()? {
        let versions =
            if info.is_lost { Vec::new() } else { pool.function_versions(&info.name).unwrap_or_default() };
        let (form, entry, digest, number) = match versions.first() {
            Some(newest) => {
                (newest.form.word(), newest.entry.clone(), abi::hex(&newest.digest[..8]), newest.version)
            }
            None => ("lost", String::new(), String::new(), 0),
        };
        described.push(json!({
            "name": info.name, "version": number, "versions": versions.len(), "form": form, "entry": entry,
            "bytes": info.bytes, "sha256": digest, "lost": info.is_lost,
        }));
        rows.push(vec![
            info.name,
            number.to_string(),
            form.to_owned(),
            entry,
            show_bytes(info.bytes),
            digest,
        ]);
    }
    let text = match rows.is_empty() {
        true => vec!["No functions. `farpool fn push NAME FILE` stores one in the pool.".to_owned()],
        false => table::lines(&["function", "version", "form", "entry", "size", "sha256"], &rows),
    };
    args.pool.say(&json!({ "functions": described }), &text)
}

fn log(args: &LogArgs) -> Outcome {
    let pool = args.pool.open(LABEL)?;
    let versions = pool.function_versions(&args.name)?;
    let described: Vec<_> = versions.iter().map(version_json).collect();
    let row = |version: &FunctionVersion| {
        vec![
            version.version.to_string(),
            stored_at(version).unwrap_or_else(|| "-".to_owned()),
            version.owner.clone(),
            version.form.word().to_owned(),
            show_bytes(version.bytes.into()),
            abi::hex(&version.digest[..8]),
            version.tags.join(", "),
        ]
    };
    let rows: Vec<_> = versions.iter().map(row).collect();
    let text = table::lines(&["version", "stored", "owner", "form", "size", "sha256", "tags"], &rows);
    args.pool.say(&json!({ "name": args.name, "versions": described }), &text)
}

fn version_json(version: &FunctionVersion) -> serde_json::Value {
    json!({
        "version": version.version, "stored": stored_at(version), "owner": version.owner, "form": version.form.word(),
        "entry": version.entry, "bytes": version.bytes, "sha256": abi::hex(&version.digest),
        "signed": version.is_signed, "tags": version.tags,
    })
}

/// Returns when a version was stored, in UTC. `None` if it is not known.
fn stored_at(version: &FunctionVersion) -> Option<String> {
    let seconds = i64::try_from(version.stored_s).ok().filter(|seconds| *seconds > 0)?;
    Some(DateTime::from_timestamp_secs(seconds)?.to_rfc3339_opts(SecondsFormat::Secs, true))
}

fn tag(args: &TagArgs) -> Outcome {
    let pool = args.pool.open(LABEL)?;
    let version = pool.tag_function(&args.name, &args.tag)?;
    let name = args.name.rsplit_once('@').map_or(&*args.name, |(name, _)| name);
    let line = format!("{name}@{} is version {version} now", args.tag);
    args.pool.say(&json!({ "name": name, "tag": args.tag, "version": version }), &[line])
}

fn remove(args: &RmArgs) -> Outcome {
    let pool = args.pool.open(LABEL)?;
    pool.drop_function(&args.name)?;
    args.pool.say(&json!({ "removed": args.name }), &[format!("removed {}", args.name)])
}

/// Returns the function that `farpool fn run` names: one of the pool, of a file, or one resident at the nodes.
fn find(args: &RunArgs, pool: &Pool) -> Result<Function, Failure> {
    if let Some(name) = args.function.strip_prefix("resident:") {
        return Ok(Function::resident(name)?);
    }
    let file = Path::new(&args.function);
    let is_file =
        file.extension().is_some_and(|ending| ["wasm", "wat", "so"].iter().any(|known| ending == *known));
    if is_file { args.code.load(file) } else { Ok(pool.function(&args.function)?) }
}

fn call(args: &RunArgs) -> Outcome {
    let pool = args.pool.open(LABEL)?;
    let function = find(args, &pool)?;
    let output_bytes = u32::try_from(args.output_size).unwrap_or(u32::MAX);
    let options = CallerOptions { output_bytes, ..CallerOptions::default() };
    let call = CallOptions {
        placement: args.placement,
        deadline: Duration::from_millis(args.deadline.into()),
        ..CallOptions::default()
    };
    let arguments: Vec<u8> = args.arguments.iter().flat_map(|argument| argument.0.iter().copied()).collect();
    let (caller, is_table) = match (&args.table, &args.on) {
        (Some(table), _) => {
            let columns: Vec<&str> = args.columns.iter().map(String::as_str).collect();
            (pool.table(table)?.caller(&columns, options)?, true)
        }
        (None, Some(file)) => (pool.open(file)?.caller(options)?, false),
        (None, None) => return Err(Failure::Usage("--on FILE or --table TABLE is needed".to_owned())),
    };
    let begun = Instant::now();
    // A resident function (one built into the nodes) is called once, over the whole table: it cannot be called at each
    // node.
    let called = match is_table && function.form() != FunctionForm::Resident {
        true => caller.call_each(&function, &arguments, call)?,
        false => vec![caller.call(&function, &arguments, call)?],
    };
    let took = begun.elapsed();
    if args.show == Shown::Raw && !args.pool.json {
        let mut out = std::io::stdout().lock();
        called.iter().try_for_each(|called| out.write_all(&called.output))?;
        out.flush()?;
        return Ok(());
    }
    let described: Vec<_> = called.iter().map(|called| describe(called, args.show)).collect();
    let mut text: Vec<String> = called.iter().flat_map(|called| args.show.lines(&called.output)).collect();
    text.extend(called.iter().map(|called| told(called, took)));
    args.pool.say(&json!({ "outputs": described, "took_us": took.as_micros() as u64 }), &text)
}

fn describe(called: &Called, shown: Shown) -> serde_json::Value {
    json!({
        "node": called.node, "ran_us": called.ran.as_nanos() as f64 / 1e3, "hops": called.hops,
        "pieces_from_elsewhere": called.supplied, "bytes": called.output.len(), "output": shown.json(&called.output),
        "trace": called.trace.to_string(),
    })
}

/// Summarizes a call in one line: size of the output, where the function ran, and for how long.
fn told(called: &Called, took: Duration) -> String {
    let at = called.node.as_deref().map_or("here".to_owned(), |node| format!("at {node}"));
    let mut line = format!(
        "-- {} of output; ran {:.1} us {at}; {:.1} us in total",
        show_bytes(called.output.len() as u64),
        called.ran.as_nanos() as f64 / 1e3,
        took.as_nanos() as f64 / 1e3
    );
    if called.hops > 0 {
        line += &format!("; hopped {} times", called.hops);
    }
    if called.supplied > 0 {
        line += &format!("; {} blocks of 64 KiB came from other nodes", called.supplied);
    }
    line += &format!("; trace {}", called.trace);
    line
}
