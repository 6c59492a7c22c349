//! `farpool bench scan`: queries over a far table. They run at the client (fetch), at the memory node (ship) or at both
//! (split).
//!
//! The table has eight columns of eight bytes, as in the experiments of paper 003 ("Farview"), and lies on one node.
//! Each query runs with each of these placements in turns. Its time ends when its result is in the client's memory. The
//! answer is compared with one that was computed when the table was made.

use super::scan_clients::Contest;
use super::scan_queries::{Query, TABLE, batches};
use super::wide_table::{ROW_BYTES, TablePool, Transport};
use crate::exit::Failure;
use crate::harness::machine::{cpus, machine};
use crate::harness::pools::{Cluster, wait_quiet};
use crate::harness::statistics::median;
use crate::signals::Stop;
use crate::units::{self, show_bytes};
use crate::{Outcome, table};
use farpool::Placement;
use farpool::table::Report;
use serde_json::json;
use std::io::Write;
use std::time::Instant;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  farpool bench scan --size 256MiB
  farpool bench scan --queries distinct-1000 --clients 6 --transports tcp --node-cpu-limit 0.5
  farpool bench scan --transports tcp --node-cpu-limit 0.125 --queries select-1%")]
pub(crate) struct ScanArgs {
    /// Size of the table
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, default_value = "1GiB")]
    size: u64,
    /// Rounds, each of which measures every placement once; the median is shown
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Transports to measure
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Transport::Shm, Transport::Tcp])]
    transports: Vec<Transport>,
    /// Run only the queries whose names begin with one of these
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    queries: Vec<String>,
    /// CPUs that the node may use, as its --cpu-limit; only over tcp
    #[arg(long, value_name = "CPUS")]
    node_cpu_limit: Option<String>,
    #[command(flatten)]
    pool: TablePool,
    /// Measure this many clients instead, which all ship the first query in a loop, over the first transport
    #[arg(long, value_name = "COUNT")]
    clients: Option<usize>,
    /// Concurrent queries of the first of these clients; the others run one at a time
    #[arg(long, value_name = "COUNT", default_value_t = 4, requires = "clients")]
    greedy: usize,
    /// Seconds per round of these clients
    #[arg(long, default_value_t = 2.0, requires = "clients")]
    seconds: f64,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Measurements of one query with one transport and placement: the seconds of each round, and the report of the latest.
struct Point {
    transport: Transport,
    placement: Placement,
    seconds: Vec<f64>,
    report: Option<Report>,
}

pub(crate) fn run(args: &ScanArgs) -> Outcome {
    if args.size < 1 << 20 || args.size > 64 << 30 {
        return Err(Failure::Usage(format!("--size {}: 1MiB to 64GiB are permitted", show_bytes(args.size))));
    }
    if !(1..=100).contains(&args.rounds) {
        return Err(Failure::Usage(format!("--rounds {}: 1 to 100 are permitted", args.rounds)));
    }
    if let Some(clients) = args.clients.filter(|clients| !(2..=64).contains(clients)) {
        return Err(Failure::Usage(format!("--clients {clients}: 2 to 64 are permitted")));
    }
    if !(1..=16).contains(&args.greedy) || !(0.1..=600.0).contains(&args.seconds) {
        return Err(Failure::Usage(format!(
            "--greedy {} --seconds {}: 1 to 16 queries and 0.1 to 600 seconds are permitted",
            args.greedy, args.seconds
        )));
    }
    let mut stop = Stop::catch()?;
    let mut queries = Query::named(Query::all(), "--queries", &args.queries)?;
    let transports: Vec<Transport> = args.transports.clone();
    if args.node_cpu_limit.is_some() && transports.contains(&Transport::Shm) {
        let why = "--node-cpu-limit: a node with a limit serves no shared memory; add --transports tcp";
        return Err(Failure::Usage(why.into()));
    }
    let flags = args.node_cpu_limit.iter().flat_map(|limit| ["--cpu-limit".to_owned(), limit.clone()]);
    let flags: Vec<_> = flags.collect();
    let cluster = args.pool.cluster(args.size, transports.len(), &flags)?;
    let rows = args.size / ROW_BYTES;
    let writer = batches(&mut queries, rows).put(&cluster, transports[0], TABLE)?;
    if let Some(clients) = args.clients {
        let contest = Contest {
            clients,
            greedy: args.greedy,
            seconds: args.seconds,
            rounds: args.rounds,
            bytes: rows * ROW_BYTES,
            json: args.json,
        };
        wait_quiet(cluster.pids(), cluster.patience())?;
        let shown = contest.run(&queries[0], || cluster.session(transports[0].choice(), 0));
        writer.drop_table(TABLE)?;
        writer.close();
        return shown;
    }
    let found = measure(args, &cluster, &transports, &queries, &mut stop);
    writer.drop_table(TABLE)?;
    writer.close();
    show(args, rows * ROW_BYTES, &queries, &found?)
}

fn measure(
    args: &ScanArgs,
    cluster: &Cluster,
    transports: &[Transport],
    queries: &[Query],
    stop: &mut Stop,
) -> Result<Vec<Vec<Point>>, Failure> {
    let mut tables = Vec::new();
    for transport in transports {
        let pool = cluster.session(transport.choice(), 0)?;
        let table = pool.table(TABLE)?;
        tables.push((*transport, pool, table));
    }
    let mut found = Vec::new();
    for query in queries {
        let point = |transport, placement| Point { transport, placement, seconds: Vec::new(), report: None };
        let mut points: Vec<Point> = transports
            .iter()
            .flat_map(|transport| Placement::FIXED.map(|placement| point(*transport, placement)))
            .collect();
        // The first round is not recorded: it opens connections, maps memory and prepares programs.
        for round in 0..=args.rounds {
            wait_quiet(cluster.pids(), cluster.patience())?;
            for point in &mut points {
                let Some((_, _, table)) =
                    tables.iter().find(|(transport, _, _)| *transport == point.transport)
                else {
                    continue;
                };
                let plan = query.plan(table)?;
                let begun = Instant::now();
                let answer = table.run(&plan, point.placement)?;
                let seconds = begun.elapsed().as_secs_f64();
                query.check(&answer.batches)?;
                if round > 0 {
                    point.seconds.push(seconds);
                    point.report = Some(answer.report);
                }
                stop.check()?;
            }
        }
        found.push(points);
    }
    tables.into_iter().for_each(|(_, pool, _)| pool.close());
    Ok(found)
}

fn show(args: &ScanArgs, bytes: u64, queries: &[Query], found: &[Vec<Point>]) -> Outcome {
    let (mut lines, mut values) = (Vec::new(), Vec::new());
    for (query, points) in queries.iter().zip(found) {
        for point in points {
            let seconds = |point: &Point| median(point.seconds.iter().copied());
            let fetched = points
                .iter()
                .find(|other| other.transport == point.transport && other.placement == Placement::Fetch);
            let of_fetch = fetched.map_or(0.0, seconds) / seconds(point);
            let Some(report) = &point.report else { continue };
            lines.push(vec![
                query.name.clone(),
                point.transport.name().to_owned(),
                point.placement.to_string(),
                format!("{:.1}", seconds(point) * 1e3),
                format!("{:.2}", bytes as f64 / seconds(point) / 1e9),
                format!("{of_fetch:.2}"),
                format!("{}/{}", report.shipped, report.fetched),
                format!("{:.1}", report.link_bytes() as f64 / 1e6),
            ]);
            values.push(json!({
                "query": query.name, "transport": point.transport.name(), "mode": point.placement.name(),
                "seconds": seconds(point), "all_seconds": point.seconds, "rows": query.expected.rows,
                "gb_per_s": bytes as f64 / seconds(point) / 1e9, "over_fetch": of_fetch,
                "shipped": report.shipped, "fetched": report.fetched, "skipped": report.skipped,
                "link_bytes": report.link_bytes(), "node_seconds": report.node_time.as_secs_f64(),
                "client_seconds": report.client_time.as_secs_f64(), "refusals": report.refusals,
            }));
        }
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        let all = json!({
            "machine": machine(), "cpus": cpus(), "bytes": bytes, "rounds": args.rounds,
            "node_cpu_limit": args.node_cpu_limit, "points": values,
        });
        writeln!(out, "{all}")?;
        return Ok(());
    }
    let header = [
        "query",
        "over",
        "placement",
        "ms",
        "GB/s",
        "of fetch",
        "groups shipped/fetched",
        "MB over the link",
    ];
    for line in table::lines(&header, &lines) {
        writeln!(out, "{line}")?;
    }
    writeln!(out)?;
    writeln!(
        out,
        "Medians of {} rounds, until all rows are here; {} in 8 columns of 8 bytes, GB/s of all of them. {}",
        args.rounds,
        show_bytes(bytes),
        machine()
    )?;
    writeln!(out, "Node and client are on one machine; every answer was checked.")?;
    Ok(())
}
