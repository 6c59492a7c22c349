//! `farpool table`: lists, describes and drops the far tables of a pool. Clients create them from Arrow data.

use crate::pool_args::PoolArgs;
use crate::units::show_bytes;
use crate::{Outcome, table};
use farpool::operators::columns::value_bytes;
use farpool::operators::run::type_of;
use farpool::operators::{Scalar, Value};
use farpool::table::{ColumnChunk, Statistics, TABLE_PREFIX, TableLayout};
use farpool::{FarTable, shown};
use serde_json::json;
use std::collections::BTreeMap;

/// Label of the sessions of this command in `farpool status`.
const LABEL: &str = "farpool table";

/// List, describe and drop far tables.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// List the far tables of a pool.
    List(ListArgs),
    /// Show a far table: its columns, rows, row groups, size, recipe, and the nodes that hold it.
    Describe(OneArgs),
    /// Drop a far table: remove its name and free its memory.
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
pub(crate) struct OneArgs {
    /// Name of the table
    name: String,
    #[command(flatten)]
    pool: PoolArgs,
}

pub(crate) fn run(command: &Command) -> Outcome {
    match command {
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

/// One column over all row groups.
struct Column {
    name: String,
    of: String,
    nulls: u64,
    bytes: u64,
    /// Smallest and largest value, as text. `None` if no row group has statistics, or if some are truncated.
    bounds: Option<(String, String)>,
}

fn describe(args: &OneArgs) -> Outcome {
    let pool = args.pool.open(LABEL)?;
    let table = pool.table(&args.name)?;
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
    // The statistics of an encrypted table (its bounds) are readable only with its key, which this command does not
    // have.
    let encrypted = if table.is_encrypted() { " | encrypted" } else { "" };
    let recipe = recipe.map_or(String::new(), |kind| format!(" | recipe: {}", shown(&kind)));
    let mut text = vec![
        format!(
            "{} | {rows} rows | {groups} row groups of {layout} | {size}{encrypted}{recipe}",
            table.name()
        ),
        String::new(),
    ];
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
    let bytes = |chunk: &ColumnChunk| chunk.buffers.iter().map(|buffer| u64::from(buffer.bytes)).sum::<u64>();
    let width = value_bytes(field.data_type()).unwrap_or(0) as u64;
    let bytes = match table.layout() {
        TableLayout::Columns => chunks().map(bytes).sum(),
        TableLayout::Rows => table.rows() * width,
    };
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
