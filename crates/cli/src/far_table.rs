//! `farpool table`: lists, describes, watches, compacts and drops the far tables of a pool. Clients create them from
//! Arrow data.

use crate::exit::Failure;
use crate::pool_args::PoolArgs;
use crate::units::{self, show_bytes};
use crate::{Outcome, table};
use chrono::{DateTime, SecondsFormat};
use farpool::operators::columns::value_bytes;
use farpool::operators::run::type_of;
use farpool::operators::{Scalar, Value};
use farpool::table::{
    Encoding, HistoryEntry, PutOptions, RowGroup, Statistics, TABLE_PREFIX, TableChange, TableLayout,
    TableSnapshot,
};
use farpool::{FarTable, TableKey, shown};
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// Label of the sessions of this command in `farpool status`.
const LABEL: &str = "farpool table";

/// List, describe and drop far tables.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// List the far tables of a pool.
    List(ListArgs),
    /// Show a far table: its columns, rows, files, row groups, size, recipe, and the nodes that hold it.
    Describe(DescribeArgs),
    /// List the snapshots of a far table: each change makes one.
    #[command(after_help = "Example:  farpool table history lineitem --pool farpool://127.0.0.1:7700")]
    History(OneArgs),
    /// Print each change of a far table from now on, as it is made.
    Watch(WatchArgs),
    /// Go back to an earlier snapshot of a far table: a new snapshot has its rows.
    Rollback(RollbackArgs),
    /// Make the files of a far table fewer: small ones become one. Others may read and change the table meanwhile.
    Compact(CompactArgs),
    /// Drop a far table: remove its name and free its memory.
    #[command(after_help = "Example:  farpool table drop lineitem --pool farpool://127.0.0.1:7700")]
    Drop(OneArgs),
}

#[derive(clap::Args)]
#[command(after_help = "Example:  farpool table list --pool farpool://127.0.0.1:7700")]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pool: PoolArgs,
}

#[derive(clap::Args)]
#[command(after_help = "Example:  farpool table describe lineitem --pool farpool://127.0.0.1:7700")]
pub(crate) struct DescribeArgs {
    /// Name of the table
    name: String,
    #[command(flatten)]
    key: KeyArgs,
    #[command(flatten)]
    pool: PoolArgs,
}

#[derive(clap::Args)]
pub(crate) struct OneArgs {
    /// Name of the table
    name: String,
    #[command(flatten)]
    pool: PoolArgs,
}

/// Key of a table.
#[derive(clap::Args)]
struct KeyArgs {
    /// File with the key of an encrypted table: 16 bytes
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

impl KeyArgs {
    /// Reads the key, if a file is named.
    fn key(&self) -> Result<Option<TableKey>, Failure> {
        self.key_file.as_deref().map(table_key).transpose()
    }

    /// Returns options with the key, for what is written.
    fn options(&self) -> Result<PutOptions, Failure> {
        Ok(PutOptions { key: self.key()?, ..PutOptions::default() })
    }
}

#[derive(clap::Args)]
#[command(after_help = "Example:  farpool table rollback lineitem 7 --pool farpool://127.0.0.1:7700")]
pub(crate) struct RollbackArgs {
    /// Name of the table
    name: String,
    /// Number of the snapshot, as `farpool table history` lists it
    snapshot: u64,
    #[command(flatten)]
    key: KeyArgs,
    #[command(flatten)]
    pool: PoolArgs,
}

#[derive(clap::Args)]
#[command(after_help = "Example:  farpool table compact lineitem --pool farpool://127.0.0.1:7700")]
pub(crate) struct CompactArgs {
    /// Name of the table
    name: String,
    #[command(flatten)]
    key: KeyArgs,
    #[command(flatten)]
    pool: PoolArgs,
}

#[derive(clap::Args)]
#[command(after_help = "Example:  farpool table watch lineitem --count 1 --pool farpool://127.0.0.1:7700")]
pub(crate) struct WatchArgs {
    /// Name of the table
    name: String,
    /// End after so many changes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End with an error if no change comes for so long
    #[arg(long, value_name = "TIME", value_parser = units::millis)]
    timeout: Option<u32>,
    #[command(flatten)]
    pool: PoolArgs,
}

pub(crate) fn run(command: &Command) -> Outcome {
    match command {
        Command::Watch(args) => watch(args),
        Command::History(args) => history(args),
        Command::Rollback(args) => roll_back(args),
        Command::Compact(args) => compact(args),
        Command::List(args) => list(args),
        Command::Describe(args) => describe(args),
        Command::Drop(args) => drop_one(args),
    }
}

fn list(args: &ListArgs) -> Outcome {
    let pool = args.pool.open(LABEL)?;
    let tables = pool.tables()?;
    let json: Vec<_> = tables
        .iter()
        .map(|info| json!({ "name": info.name, "bytes": info.bytes, "lost": info.is_lost }))
        .collect();
    let row = |info: &farpool::TableInfo| {
        let state = if info.is_lost { "lost" } else { "whole" };
        vec![info.name.clone(), show_bytes(info.bytes), state.to_owned()]
    };
    let text = match tables.is_empty() {
        true => vec!["No far tables. Clients store them with pool.put_table(name, data).".to_owned()],
        false => table::lines(&["far table", "size", "state"], &tables.iter().map(row).collect::<Vec<_>>()),
    };
    args.pool.say(&json!({ "tables": json }), &text)
}

/// Returns a time in ms since 1970 as text in UTC.
fn utc(ms: u64) -> String {
    let time = i64::try_from(ms).ok().and_then(DateTime::from_timestamp_millis);
    time.map_or_else(String::new, |time| time.to_rfc3339_opts(SecondsFormat::Secs, true))
}

fn history(args: &OneArgs) -> Outcome {
    let pool = args.pool.open(LABEL)?;
    let entries = pool.table_history(&args.name)?;
    let json: Vec<_> = entries
        .iter()
        .map(|entry| {
            json!({
                "snapshot": entry.snapshot, "at": utc(entry.at_ms), "session": entry.session.to_string(),
                "kept": entry.is_kept, "summary": entry.summary,
            })
        })
        .collect();
    let row = |entry: &HistoryEntry| {
        let state = if entry.is_kept { "kept" } else { "ended" };
        let (number, session) = (entry.snapshot.to_string(), entry.session.to_string());
        vec![number, utc(entry.at_ms), session, state.to_owned(), shown(&entry.summary).to_string()]
    };
    let text = match entries.is_empty() {
        true => vec![format!("{} was not changed since it was made.", args.name)],
        false => {
            let cells: Vec<_> = entries.iter().map(row).collect();
            table::lines(&["snapshot", "time", "session", "state", "change"], &cells)
        }
    };
    args.pool.say(&json!({ "snapshots": json }), &text)
}

/// Prints changes until there were as many as asked for. A signal, such as that of Ctrl-C, ends the process.
fn watch(args: &WatchArgs) -> Outcome {
    let pool = args.pool.open(LABEL)?;
    let mut watch = pool.watch_table(&args.name)?;
    let mut left = args.count;
    while left != Some(0) {
        // Whoever waits without a limit waits again.
        let waited = watch.next_within(args.timeout.map_or(u64::from(u32::MAX), u64::from))?;
        let Some(change) = waited else {
            match args.timeout {
                Some(ms) => {
                    let message = format!("no change of far table {} came within {ms} ms", args.name);
                    return Err(Failure::Failed(message));
                }
                None => continue,
            }
        };
        left = left.map(|left| left - 1);
        let name = &args.name;
        let (json, text) = match &change {
            TableChange::Snapshot(entry) => {
                let HistoryEntry { snapshot, session, at_ms, summary, .. } = entry;
                let json = json!({
                    "kind": "snapshot", "snapshot": snapshot, "at": utc(*at_ms), "session": session.to_string(),
                    "summary": summary,
                });
                (json, format!("{snapshot:>8}  {}  {}", utc(*at_ms), shown(summary)))
            }
            TableChange::File => {
                (json!({ "kind": "file" }), format!("{name} is another file, without snapshots"))
            }
            TableChange::Dropped => (json!({ "kind": "dropped" }), format!("{name} was dropped")),
        };
        args.pool.say(&json, &[text])?;
    }
    Ok(())
}

/// Reads the key of an encrypted table.
fn table_key(path: &Path) -> Result<TableKey, Failure> {
    let failed = |why: &dyn Display| Failure::failed(format_args!("--key-file {}: {why}", path.display()));
    let bytes = std::fs::read(path).map_err(|error| failed(&error))?;
    TableKey::try_from(&bytes[..]).map_err(|wrong| failed(&wrong))
}

fn roll_back(args: &RollbackArgs) -> Outcome {
    let options = args.key.options()?;
    let pool = args.pool.open(LABEL)?;
    let made = pool.roll_back_table(&args.name, args.snapshot, &options)?.snapshot;
    let text =
        vec![format!("{} has the rows of snapshot {} again, in snapshot {made}.", args.name, args.snapshot)];
    args.pool.say(&json!({ "name": args.name, "snapshot": made }), &text)
}

fn compact(args: &CompactArgs) -> Outcome {
    let options = args.key.options()?;
    let pool = args.pool.open(LABEL)?;
    let made = pool.compact_table(&args.name, &options)?;
    let text = match &made {
        Some(made) => format!("{} has fewer files in snapshot {}.", args.name, made.snapshot),
        None => format!("{} has no files that would become fewer.", args.name),
    };
    args.pool.say(&json!({ "name": args.name, "snapshot": made.map(|made| made.snapshot) }), &[text])
}

/// One column over all row groups.
struct Column {
    name: String,
    of: String,
    nulls: u64,
    bytes: u64,
    /// Smallest and largest value, as text. `None` if no row group has statistics, or if some are truncated.
    bounds: Option<(String, String)>,
}

fn describe(args: &DescribeArgs) -> Outcome {
    let key = args.key.key()?;
    let pool = args.pool.open(LABEL)?;
    let found = pool.table_on_demand(&args.name, None, key.as_ref())?;
    let table = found.open_all()?;
    let snapshot = found.snapshot();
    let partition_by = snapshot.map(TableSnapshot::partition_by).unwrap_or_default();
    let sort_by = snapshot.map(TableSnapshot::sort_by).unwrap_or_default();
    let columns: Vec<Column> =
        (0..table.schema().fields().len()).map(|place| column(&table, place)).collect();
    // A row group whose bytes lie on more than one node is counted under `several`.
    let mut nodes: BTreeMap<String, u64> = BTreeMap::new();
    for group in 0..table.row_groups().len() {
        let node = table.place(group).map_or("several".to_owned(), |place| place.node);
        *nodes.entry(node).or_default() += 1;
    }
    let groups = table.row_groups().len();
    let layout = match table.layout() {
        TableLayout::Columns => "columns",
        TableLayout::Rows => "rows",
    };
    // Brokers of earlier versions keep none.
    let recipe =
        pool.recipe(&format!("{TABLE_PREFIX}{}", args.name)).ok().flatten().map(|recipe| recipe.kind);
    let json = json!({
        "name": table.name(),
        "recipe": recipe,
        "snapshot": snapshot.map(TableSnapshot::snapshot),
        "partition_by": partition_by,
        "sort_by": sort_by,
        "files": table.files_opened().total,
        "rows": table.rows(),
        "row_groups": groups,
        "bytes": table.bytes(),
        "layout": layout,
        "encrypted": table.is_encrypted(),
        "nodes": nodes.iter().map(|(node, groups)| json!({ "node": node, "row_groups": groups })).collect::<Vec<_>>(),
        "columns": columns.iter().map(|column| json!({
            "name": column.name, "type": column.of, "nulls": column.nulls, "bytes": column.bytes,
            "min": column.bounds.as_ref().map(|(min, _)| min), "max": column.bounds.as_ref().map(|(_, max)| max),
        })).collect::<Vec<_>>(),
    });
    let (rows, size) = (table.rows(), show_bytes(table.bytes()));
    let encrypted = if table.is_encrypted() { " | encrypted" } else { "" };
    let recipe = recipe.map_or(String::new(), |kind| format!(" | recipe: {}", shown(&kind)));
    let files = match table.files_opened().total {
        1 => String::new(),
        count => format!("{count} files, "),
    };
    let mut text = vec![format!(
        "{} | {rows} rows | {files}{groups} row groups of {layout} | {size}{encrypted}{recipe}",
        table.name()
    )];
    text.extend(snapshot.map(|of| format!("snapshot {}", of.snapshot())));
    for (what, columns) in [("partitioned", &partition_by), ("sorted", &sort_by)] {
        text.extend((!columns.is_empty()).then(|| format!("{what} by {}", columns.join(", "))));
    }
    text.push(String::new());
    let cells = columns.iter().map(|column| {
        let (min, max) = column.bounds.clone().unwrap_or_default();
        let (nulls, bytes) = (column.nulls.to_string(), show_bytes(column.bytes));
        vec![column.name.clone(), column.of.clone(), nulls, bytes, min, max]
    });
    let cells: Vec<Vec<String>> = cells.collect();
    text.extend(table::lines(&["column", "type", "nulls", "size", "least", "greatest"], &cells));
    if groups > 0 {
        text.push(String::new());
        let cells: Vec<Vec<String>> =
            nodes.iter().map(|(node, groups)| vec![node.clone(), groups.to_string()]).collect();
        text.extend(table::lines(&["node", "row groups"], &cells));
    }
    args.pool.say(&json, &text)
}

fn column(table: &FarTable, place: usize) -> Column {
    let field = table.schema().field(place);
    let of = type_of(field.data_type());
    let chunks = || table.row_groups().iter().map(|group| &group.columns[place]);
    let width = value_bytes(field.data_type()).unwrap_or(0) as u64;
    let bytes = |group: &RowGroup| match &group.columns[place] {
        // All columns share one buffer.
        chunk if chunk.encoding == Encoding::Rows => u64::from(group.rows) * width,
        chunk => chunk.buffers.iter().map(|buffer| u64::from(buffer.bytes)).sum::<u64>(),
    };
    let bytes = table.row_groups().iter().map(bytes).sum();
    let known: Vec<&Statistics> = chunks().filter_map(|chunk| chunk.statistics.as_ref()).collect();
    // A truncated bound is not a value of the column. NaN and nulls are not covered by the bounds.
    let is_truncated = known.iter().any(|known| known.is_min_truncated || known.is_max_truncated);
    let ordered = |one: &&Value, other: &&Value| match (one, other) {
        (Value::Float(one), Value::Float(other)) => {
            let float = |bits: u64| match of {
                Some(farpool::operators::Type::Float32) => f64::from(f32::from_bits(bits as u32)),
                _ => f64::from_bits(bits),
            };
            float(*one).total_cmp(&float(*other))
        }
        (Value::Integer(one), Value::Integer(other)) => one.cmp(other),
        (Value::Bytes(one), Value::Bytes(other)) => one.cmp(other),
        (Value::Boolean(one), Value::Boolean(other)) => one.cmp(other),
        _ => std::cmp::Ordering::Equal,
    };
    let least = known.iter().map(|known| &known.min).min_by(ordered);
    let greatest = known.iter().map(|known| &known.max).max_by(ordered);
    let words = |value: &Value| Some(Scalar { of: of?, value: Some(value.clone()) }.to_string());
    let bounds = least.zip(greatest).filter(|_| !is_truncated);
    Column {
        name: field.name().clone(),
        of: of.map_or(field.data_type().to_string(), |of| of.to_string()),
        nulls: chunks().map(|chunk| u64::from(chunk.null_count)).sum(),
        bytes,
        bounds: bounds.and_then(|(least, greatest)| Some((words(least)?, words(greatest)?))),
    }
}

fn drop_one(args: &OneArgs) -> Outcome {
    let pool = args.pool.open(LABEL)?;
    pool.drop_table(&args.name)?;
    args.pool.say(&json!({ "dropped": args.name }), &[format!("dropped far table {}", args.name)])
}
