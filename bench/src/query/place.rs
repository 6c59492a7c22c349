//! `farpool bench place`: automatic placement of queries compared with the best forced placement. A query runs at the
//! client (fetch), at the node (ship) or at both (split); with automatic placement, the planner chooses.
//!
//! One table is queried with selections of 1 to 100 % of its rows, groupings into 16 to a million groups, and groupings
//! of a selection as in table 3 of paper 001 ("Move your code, not your data"). All placements take turns. Each has a
//! session of its own, so the planner learns only from its own runs and no placement finds warmer connections or
//! memory. The result is the time of automatic placement divided by the best forced time, for the first run and for
//! later runs.

use super::choices::{self, Cell, Run};
use super::wide_table::{self, Batches, Expected, ROW_BYTES, Row, TablePool, Transport};
use crate::exit::Failure;
use crate::harness::machine::{cpus, machine};
use crate::harness::mixing::mix;
use crate::harness::pools::{Cluster, wait_quiet};
use crate::harness::statistics::median;
use crate::signals::Stop;
use crate::units::{self, show_bytes};
use crate::{Outcome, table};
use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Int64Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::DataType;
use farpool::operators::{Agg, Plan, col, lit};
use farpool::table::Report;
use farpool::{FarTable, Placement, Way};
use std::io::Write;
use std::time::Instant;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  farpool bench place
  farpool bench place --transports tcp --cells select --json > tcp.json
  bench/drawing.py place netns-1gbit.json netns-10gbit.json tcp.json > place.svg")]
pub(crate) struct PlaceArgs {
    /// Size of the table
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, default_value = "128MiB")]
    size: u64,
    /// Rounds, each of which measures every placement once; the median is shown
    #[arg(long, default_value_t = 8)]
    rounds: usize,
    /// Transports to measure
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Transport::Shm, Transport::Tcp])]
    transports: Vec<Transport>,
    /// Run only the queries whose names begin with one of these
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    cells: Vec<String>,
    #[command(flatten)]
    pool: TablePool,
    /// Name of the link in the results, such as "1 Gbit/s" [default: the transport]
    #[arg(long, value_name = "NAME")]
    link: Option<String>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const COLUMNS: [&str; 8] = ["a", "b", "g16", "g256", "g4096", "g65536", "g1000000", "c"];
const GROUPS: [u64; 5] = [16, 256, 4_096, 65_536, 1_000_000];
/// Percentages of rows that the selections keep.
const KEPT: [u64; 7] = [1, 5, 10, 25, 50, 75, 100];
/// Table 3 of paper 001 ("Move your code, not your data"): percentage of rows that are kept, and number of groups.
const PAPER: [(u64, u64); 7] =
    [(25, 1), (25, 1_000), (25, 250_000), (4, 1), (4, 1_000), (4, 250_000), (4, 2_500_000)];
const TABLE: &str = "bench-place";
const PLACEMENTS: [Placement; 4] = [Placement::Fetch, Placement::Ship, Placement::Split, Placement::Auto];
/// Orders of the placements (indices into [`PLACEMENTS`]), one order per round. After four rounds, each placement has
/// run once directly after each other one.
const TURNS: [[usize; 4]; 4] = [[0, 1, 3, 2], [1, 2, 0, 3], [2, 3, 1, 0], [3, 0, 2, 1]];

/// Returns a row of the table.
fn row(number: u64) -> Row {
    let random = mix(number);
    let [g16, g256, g4096, g65536, g1000000] = GROUPS.map(|groups| (mix(random ^ groups) % groups) as i64);
    [(random % 100) as i64, (random >> 33) as i64, g16, g256, g4096, g65536, g1000000, number as i64]
}

#[derive(Clone, Copy)]
enum Kind {
    Select(u64),
    Group(usize),
    /// Grouping of a selection: percentage of rows that are kept, and number of groups.
    Both(u64, u64),
}

type Query = wide_table::Query<Kind>;

impl Query {
    fn all() -> Vec<Query> {
        let select = KEPT.map(|kept| Query::new(format!("select-{kept}%"), Kind::Select(kept)));
        let groups = [0, 1, 2, 3, 4].map(|at| Query::new(format!("groups-{}", GROUPS[at]), Kind::Group(at)));
        let both = PAPER
            .map(|(kept, groups)| Query::new(format!("paper-{kept}%-{groups}"), Kind::Both(kept, groups)));
        select.into_iter().chain(groups).chain(both).collect()
    }

    fn plan(&self, over: &FarTable) -> Result<Plan, Failure> {
        let query = over.query()?;
        let query = match self.kind {
            Kind::Select(kept) => query.filter(col("a").lt(kept as i64)),
            Kind::Group(at) => {
                let key = COLUMNS[2 + at];
                query.group_by([(key.to_owned(), col(key))], [("sum".to_owned(), Agg::Sum(col("b")))])
            }
            Kind::Both(kept, groups) => {
                let key = col("c") % lit(groups as i64);
                let kept = query.filter(col("a").lt(kept as i64));
                kept.group_by([("key".to_owned(), key)], [("sum".to_owned(), Agg::Sum(col("b")))])
            }
        };
        query.plan().map_err(|error| Failure::Failed(error.to_string()))
    }

    /// Checks the number of rows of an answer, and the sum of its first two columns.
    fn check(&self, batches: &[RecordBatch]) -> Result<(), Failure> {
        let mut found = Expected::default();
        for batch in batches {
            found.rows += batch.num_rows() as u64;
            found.sum += batch.columns().iter().take(2).flat_map(numbers).sum::<i128>();
        }
        self.expected.check(found, &self.name)
    }
}

/// Returns the numbers of a column of type Int64 or Decimal128.
fn numbers(column: &ArrayRef) -> Vec<i128> {
    match column.data_type() {
        DataType::Int64 => {
            column.as_primitive::<Int64Type>().values().iter().map(|value| i128::from(*value)).collect()
        }
        _ => column.as_primitive::<Decimal128Type>().values().to_vec(),
    }
}

/// Returns a hash of all values of an answer in their order.
fn digest(batches: &[RecordBatch]) -> u64 {
    let columns = batches.first().map_or(0, RecordBatch::num_columns);
    let of_column = |column: usize| {
        let values = batches.iter().flat_map(|batch| numbers(batch.column(column)));
        values.fold(0u64, |digest, value| mix(digest ^ value as u64).wrapping_add((value >> 64) as u64))
    };
    (0..columns).map(of_column).fold(0, |digest, of| mix(digest ^ of))
}

/// Creates the batches of the table. While they are read, the expected answer of each query is computed from the rows.
fn batches(queries: &mut [Query], rows: u64) -> Batches<impl FnMut(u64, &Row)> {
    let mut made = GROUPS.map(|groups| vec![false; groups as usize]);
    // Groups that already have a row, for each query of kind `Both`.
    let mut met: Vec<Vec<bool>> = queries.iter().map(|_| Vec::new()).collect();
    Batches::new(COLUMNS, row, rows, move |number, row| {
        for (Query { kind, expected, .. }, met) in queries.iter_mut().zip(&mut met) {
            match *kind {
                Kind::Select(kept) if row[0] < kept as i64 => {
                    expected.add(i128::from(row[0]) + i128::from(row[1]));
                }
                Kind::Both(kept, groups) if row[0] < kept as i64 => {
                    let key = number % groups;
                    met.resize(groups as usize, false);
                    expected.sum += i128::from(row[1]);
                    if !std::mem::replace(&mut met[key as usize], true) {
                        expected.add(i128::from(key));
                    }
                }
                Kind::Select(_) | Kind::Both(..) => {}
                Kind::Group(at) => {
                    expected.sum += i128::from(row[1]);
                    if !made[at][row[2 + at] as usize] {
                        expected.add(i128::from(row[2 + at]));
                    }
                }
            }
        }
        made.iter_mut().zip(&row[2..]).for_each(|(made, group)| made[*group as usize] = true);
    })
}

pub(crate) fn run(args: &PlaceArgs) -> Outcome {
    if args.size < 16 << 20 || args.size > 64 << 30 {
        return Err(Failure::Usage(format!(
            "--size {}: 16MiB to 64GiB are permitted",
            show_bytes(args.size)
        )));
    }
    if !(1..=100).contains(&args.rounds) {
        return Err(Failure::Usage(format!("--rounds {}: 1 to 100 are permitted", args.rounds)));
    }
    let mut stop = Stop::catch()?;
    let mut queries = Query::named(Query::all(), "--cells", &args.cells)?;
    let clients = PLACEMENTS.len() * args.transports.len();
    let cluster = args.pool.cluster(args.size, clients, &[])?;
    let writer = batches(&mut queries, args.size / ROW_BYTES).put(&cluster, args.transports[0], TABLE)?;
    let found =
        args.transports.iter().map(|transport| measure(args, &cluster, *transport, &queries, &mut stop));
    let found = found.collect::<Result<Vec<_>, _>>();
    writer.drop_table(TABLE)?;
    writer.close();
    show(args, &found?)
}

/// Measurements of one query.
#[derive(Default)]
struct Point {
    /// Seconds of each round, for each entry of [`PLACEMENTS`].
    seconds: [Vec<f64>; 4],
    /// Seconds of the first run with [`Placement::Auto`].
    first: f64,
    first_report: Option<Report>,
    reports: Vec<Report>,
}

fn measure(
    args: &PlaceArgs,
    cluster: &Cluster,
    transport: Transport,
    queries: &[Query],
    stop: &mut Stop,
) -> Result<Run, Failure> {
    let sessions =
        PLACEMENTS.iter().map(|_| cluster.session(transport.choice(), 0)).collect::<Result<Vec<_>, _>>()?;
    let tables = sessions.iter().map(|session| session.table(TABLE)).collect::<Result<Vec<_>, _>>()?;
    let mut cells = Vec::new();
    for query in queries {
        let mut point = Point::default();
        let mut answer_digest = None;
        // The first round is a warm-up. Only its run with automatic placement is recorded, as `first`.
        for round in 0..=args.rounds {
            wait_quiet(cluster.pids(), cluster.patience())?;
            for at in TURNS[round % TURNS.len()] {
                let (placement, table) = (PLACEMENTS[at], &tables[at]);
                let plan = query.plan(table)?;
                let begun = Instant::now();
                let answer = table.run(&plan, placement)?;
                let seconds = begun.elapsed().as_secs_f64();
                query.check(&answer.batches)?;
                let digest = digest(&answer.batches);
                if *answer_digest.get_or_insert(digest) != digest {
                    let what = format!("{}: {placement} answers something else than the others", query.name);
                    return Err(Failure::Failed(what));
                }
                match (round, placement) {
                    (0, Placement::Auto) => {
                        (point.first, point.first_report) = (seconds, Some(answer.report))
                    }
                    (0, _) => {}
                    (_, placement) => {
                        point.seconds[at].push(seconds);
                        if placement == Placement::Auto {
                            point.reports.push(answer.report);
                        }
                    }
                }
                stop.check()?;
            }
        }
        cells.push(cell(query, &point));
    }
    sessions.iter().for_each(|session| session.close());
    let link = args.link.clone().unwrap_or_else(|| transport.name().to_owned());
    Ok(Run { link, bytes: args.size, rounds: args.rounds, machine: machine(), cpus: cpus(), cells })
}

fn cell(query: &Query, point: &Point) -> Cell {
    let [fetch, ship, split, auto] = std::array::from_fn(|at| median(point.seconds[at].iter().copied()));
    let best = fetch.min(ship).min(split);
    let of = |way: Way| match way {
        Way::Fetch => fetch,
        Way::Ship => ship,
        Way::Split => split,
    };
    let count = |way: &Way| point.reports.iter().filter(|report| report.chosen == *way).count();
    let chosen = Way::ALL.into_iter().max_by_key(count).unwrap_or(Way::Fetch);
    let expected = |way: Way| {
        let of_report = |report: &Report| report.estimates.as_ref().map(|of| of.of(way).time.as_secs_f64());
        median(point.reports.iter().filter_map(of_report))
    };
    let link_bytes = |report: &Report| report.link_bytes() as f64;
    Cell {
        name: query.name.clone(),
        seconds: [fetch, ship, split, auto],
        all_seconds: point.seconds.clone(),
        first_seconds: point.first,
        first_report: point.first_report.as_ref().map(ToString::to_string).unwrap_or_default(),
        best: Way::ALL.into_iter().find(|way| of(*way) == best).unwrap_or(Way::Fetch).name(),
        chosen: chosen.name(),
        choices: Way::ALL.map(|way| (way.name(), count(&way))),
        expected_seconds: Way::ALL.map(expected),
        link_bytes: median(point.reports.iter().map(link_bytes)),
        report: point.reports.last().map(ToString::to_string).unwrap_or_default(),
    }
}

fn show(args: &PlaceArgs, runs: &[Run]) -> Outcome {
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", choices::json(runs))?;
        return Ok(());
    }
    let ms = |seconds: f64| format!("{:.1}", seconds * 1e3);
    let mut lines = Vec::new();
    for run in runs {
        for cell in &run.cells {
            let [fetch, ship, split, auto] = cell.seconds;
            let choices = cell.choices.iter().filter(|(_, count)| *count > 0);
            let choices =
                choices.map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ");
            lines.push(vec![
                cell.name.clone(),
                run.link.clone(),
                ms(fetch),
                ms(ship),
                ms(split),
                ms(auto),
                format!("{:.2}", cell.over_best()),
                format!("{:.2}", cell.choice_over_best()),
                choices,
                ms(cell.expected()),
                format!("{:.2}", cell.first_seconds / cell.best_seconds()),
                cell.expected_seconds.map(ms).join("/"),
            ]);
        }
    }
    let header = [
        "query",
        "link",
        "fetch ms",
        "ship",
        "split",
        "auto",
        "auto/best",
        "choice/best",
        "chosen",
        "expected ms",
        "first/best",
        "expected of each",
    ];
    for line in table::lines(&header, &lines) {
        writeln!(out, "{line}")?;
    }
    writeln!(out)?;
    let all: Vec<&Cell> = runs.iter().flat_map(|run| &run.cells).collect();
    let within = all.iter().filter(|cell| cell.over_best() <= 1.1).count();
    let chosen = all.iter().filter(|cell| cell.choice_over_best() <= 1.1).count();
    writeln!(
        out,
        "{within} of {} within 10 % of the best forced placement; {chosen} by what the chosen placements took when they were \
         forced. Medians of {} rounds in turns, until all rows are here; \
         {} in 8 columns of 8 bytes. Each placement has a session of its own; first: the planner's first run. {}",
        all.len(),
        args.rounds,
        show_bytes(args.size),
        machine()
    )?;
    writeln!(
        out,
        "Node and client are on one machine; every answer was checked, and is the same in all placements."
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::wide_table::{rows_expected, rows_made};
    use arrow_array::Int64Array;
    use std::sync::Arc;

    #[test]
    fn selection_and_grouping_expect_what_the_made_rows_hold() {
        let mut queries = Query::all();
        let rows = 150_000;
        assert_eq!(rows_made(batches(&mut queries, rows)), rows);
        let of = |name: &str| rows_expected(&queries, name);
        assert_eq!((of("select-100%"), of("groups-16"), of("groups-4096")), (rows, 16, 4_096));
        let a_quarter = (0..rows).filter(|number| row(*number)[0] < 25).count() as u64;
        assert_eq!(of("select-25%"), a_quarter);
    }

    #[test]
    fn digest_tells_the_order_of_rows() {
        let batch = |values: Vec<i64>| {
            RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from(values)) as ArrayRef)]).unwrap()
        };
        let whole = digest(&[batch(vec![1, 2, 3])]);
        assert_eq!(whole, digest(&[batch(vec![1, 2]), batch(vec![3])]));
        assert_ne!(whole, digest(&[batch(vec![2, 1, 3])]));
    }
}
