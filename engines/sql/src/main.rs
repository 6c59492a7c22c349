//! `farpool sql`: SQL over far tables and Parquet files. It is a separate program because it contains a whole SQL
//! engine.
//!
//! This file parses the arguments and runs statements. `output` writes rows, `plan` reads and writes plans as
//! Substrait, `progress` shows the progress of scans and writes, `scan_report` reports what they did, `shell` reads
//! statements from a terminal, `stores` finds files, and `worker` runs parts of other sessions' queries.
#![forbid(unsafe_code)]

mod output;
mod plan;
mod progress;
mod scan_report;
mod shell;
mod stores;
mod worker;

use clap::{CommandFactory, Parser, Subcommand};
use datafusion::common::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TempFileFactory};
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::{DataFrame, ParquetReadOptions};
use farpool::Placement;
use farpool::{Pool, PoolOptions, Protection, UsableMemory};
use farpool_cache::{BlockCache, CacheOptions, Counts};
use farpool_command::exit::{self, Failure};
use farpool_command::settings::{self, declared::Scope, origin::Origins};
use farpool_command::{declaration, exposure, input, log, units};
use farpool_datafusion::{FarSession, FarTempFiles, Options, Spilled, parse_sql, runtime};
use farpool_distributed::{Assigned, LeftOut, WorkerAddress, Workers};
use farpool_transport::Exposure;
use output::Format;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// SQL over far tables and local Parquet.
#[derive(Parser)]
#[command(name = "farpool sql", bin_name = "farpool sql", version, max_term_width = 100)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:  farpool sql -c \"SELECT count(*) FROM lineitem\"\n           \
    farpool sql --parquet new=new.parquet -c \"SELECT * FROM new JOIN parts USING (part)\" --format csv\n           \
    farpool sql --substrait plan.bin --format arrow -o rows.arrow\n           \
    farpool sql            a shell; \\? lists its commands")]
struct Args {
    #[command(subcommand)]
    other: Option<Other>,
    /// Statements to run, separated by semicolons; may be given several times
    #[arg(short, long, value_name = "SQL")]
    command: Vec<String>,
    /// A file of statements to run; - is the standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "command")]
    file: Option<PathBuf>,
    /// A query plan to run, in Substrait's protobuf format; - is the standard input
    #[arg(long, value_name = "PLAN.bin", conflicts_with_all = ["command", "file", "to_substrait"])]
    substrait: Option<PathBuf>,
    /// Write the plan of the given query as Substrait, without running it; - is the standard output
    #[arg(long, value_name = "PLAN.bin", conflicts_with_all = ["explain", "output"])]
    to_substrait: Option<PathBuf>,
    /// Use a Parquet file or folder as a table of this name; may be given several times. The path is local or
    /// s3://BUCKET/.. (configured by AWS_ENDPOINT, AWS_ACCESS_KEY_ID and so on)
    #[arg(long, value_name = "NAME=PATH", value_parser = named)]
    parquet: Vec<(String, String)>,
    /// Placement of programs over far tables: auto, fetch, ship or split (later: SET farpool.placement)
    #[arg(long, value_name = "WHERE")]
    placement: Option<Placement>,
    /// Memory limit of sorts, groupings and joins, such as 512MiB or 40%; beyond it they spill to temporary files; none
    /// is no limit. Default: half of what the control group of this process, such as a pod, has left; else none
    #[arg(long, value_name = "SIZE|PERCENT|none", value_parser = limit, conflicts_with = "workers")]
    memory: Option<Limit>,
    /// Place for temporary files: far, in the pool's memory (on the local disk when the pool is full), or disk
    #[arg(long, value_name = "WHERE", value_enum, default_value_t = Spill::Far)]
    spill: Spill,
    /// Protection of temporary files in the pool against the loss of a node: none (the query fails then), mirror or
    /// local. Default: mirror if the pool has two hosts, else local
    #[arg(long, value_name = "HOW", value_parser = protection)]
    protection: Option<Protection>,
    /// Cache what is read of Parquet and other files in the pool's memory, up to this size, such as 4GiB; nodes may
    /// reclaim it at any time
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, conflicts_with = "workers")]
    cache: Option<u64>,
    /// Size of the cache in this process's memory, which is asked first (with --cache)
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, requires = "cache", default_value = "64MiB")]
    cache_near: u64,
    /// Stop asking far memory for a while after a block took longer than this (with --cache)
    #[arg(long, value_name = "TIME", value_parser = units::millis, requires = "cache", default_value = "200ms")]
    cache_patience: u32,
    /// Format of the rows
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// File to write rows to; default: the standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Rows of a table to show; 0 shows all
    #[arg(long, value_name = "N", default_value_t = 100)]
    rows: usize,
    /// Report after each query, for each scan: what ran where, what did not and why, and the estimated and actual cost
    #[arg(long)]
    explain: bool,
    /// Print the report of each query as JSON on standard error (with --explain)
    #[arg(long, requires = "explain")]
    json: bool,
    /// No progress bar
    #[arg(short, long)]
    quiet: bool,
    /// A worker to divide queries among (farpool sql worker), optionally with the names of memory nodes that it is
    /// near; may be given several times. Workers without certificates have addresses with http://
    #[arg(long, value_name = "https://HOST:PORT[=NODE,..]")]
    workers: Vec<WorkerAddress>,
    /// Permit workers on other machines without certificates: plans and rows travel there unencrypted and
    /// unauthenticated
    #[arg(long, requires = "workers")]
    insecure_workers: bool,
    #[command(flatten)]
    exposure: exposure::ClientArgs,
    #[command(flatten)]
    settings: settings::Args,
    #[command(flatten)]
    log: log::Args,
}

#[derive(Subcommand)]
enum Other {
    /// Run parts of other sessions' queries, near the memory that they read
    Worker(Box<worker::Args>),
    /// Print the flags of this program, its settings and the mistakes in them as JSON, for `farpool`
    #[command(hide = true)]
    Describe,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Spill {
    Far,
    Disk,
}

/// Memory limit of a query.
#[derive(Clone, Copy)]
enum Limit {
    None,
    Of(units::MemoryAmount),
}

/// Share of the memory left in a control group that queries may use by default: the program itself takes the rest, with
/// buffers that DataFusion does not count.
const SHARE_OF_GROUP: units::MemoryAmount = units::MemoryAmount::Percent(50);

fn limit(text: &str) -> Result<Limit, String> {
    if text == "none" { Ok(Limit::None) } else { units::memory(text).map(Limit::Of) }
}

/// Returns the memory limit in bytes. `None` is no limit.
fn limit_bytes(asked: Option<Limit>, usable: &UsableMemory) -> Option<u64> {
    match asked {
        Some(Limit::None) => None,
        Some(Limit::Of(memory)) => {
            let spaces = usable.spaces().unwrap_or_default();
            Some(memory.bytes(spaces.iter().map(|space| space.total_bytes).min().unwrap_or(u64::MAX)))
        }
        None => usable.group_limit().map(|group| SHARE_OF_GROUP.bytes(group.available_bytes)),
    }
}

fn named(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => Ok((name.to_owned(), path.to_owned())),
        _ => Err("NAME=PATH is needed, such as orders=orders.parquet".to_owned()),
    }
}

fn protection(text: &str) -> Result<Protection, String> {
    text.parse().map_err(|_| "one of none, mirror, local is permitted".to_owned())
}

/// Session that runs statements, with the output for their rows.
pub(crate) struct Runner {
    session: FarSession,
    files: Option<FarTempFiles>,
    /// Cache of files that are no far tables.
    cache: Option<BlockCache>,
    workers: Option<Arc<Workers>>,
    /// Workers that were left out of the last statement. They are kept so that each is reported only once.
    left_out: Vec<LeftOut>,
    /// Prints a line after each statement: rows, time, bytes transferred. `\timing` of the shell changes it.
    reports: bool,
    args: Args,
    /// Where the settings among the arguments come from.
    origins: Origins,
    out: output::Out,
}

fn main() -> ExitCode {
    let (args, origins) = match settings::parse::<Args>(&SCOPE) {
        Ok(parsed) => parsed,
        Err(code) => return code,
    };
    args.log.begin();
    let done = match &args.other {
        Some(Other::Worker(args)) => worker::run(args),
        Some(Other::Describe) => describe(&args.settings),
        None => run(args, origins.clone()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => exit::report(&failure, &origins),
    }
}

/// Subcommands that take settings.
const SCOPE: Scope = Scope { table: &["sql"], without: &[], elsewhere: &[] };

fn describe(args: &settings::Args) -> Result<(), Failure> {
    let found = settings::report::SettingsReport::of::<Args>(&SCOPE, args.config.as_deref());
    let mut command = Args::command();
    command.build();
    let told = serde_json::json!({ "report": found.json(), "declaration": declaration::to_json(&command) });
    writeln!(std::io::stdout(), "{told}")?;
    Ok(())
}

fn run(args: Args, origins: Origins) -> Result<(), Failure> {
    let threads = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let exposure = args.exposure.exposure()?;
    let options = PoolOptions {
        label: Some("farpool sql".into()),
        tls: exposure.tls.clone(),
        plaintext: exposure.plaintext,
        ..PoolOptions::default()
    };
    let pool = Pool::connect_with(&args.exposure.pool, options)?;
    let mut options = Options::default();
    options.placement = args.placement.unwrap_or(options.placement);
    let workers = match args.workers.is_empty() {
        true => None,
        false => {
            let exposure = Exposure { tls: exposure.tls, plaintext: args.insecure_workers };
            Some(Workers::new(args.workers.clone(), exposure).map_err(refused)?)
        }
    };
    let memory_bytes = match &workers {
        // Workers have limits of their own.
        Some(_) => None,
        None => limit_bytes(args.memory, &UsableMemory::find()),
    };
    if memory_bytes.is_none() && args.protection.is_some() {
        return Err(Failure::Usage(
            "--protection is of temporary files, and without --memory there are none; give --memory, such as 512MiB"
                .into(),
        ));
    }
    let files = match (memory_bytes, args.spill) {
        (Some(_), Spill::Far) => Some(FarTempFiles::new(&pool, args.protection).map_err(failed)?),
        _ => None,
    };
    let cache = args.cache.map(|far_bytes| {
        let patience = Duration::from_millis(args.cache_patience.into());
        let options =
            CacheOptions { near_bytes: args.cache_near, far_bytes, patience, ..CacheOptions::default() };
        BlockCache::new(&options, Some(&pool)).map_err(Failure::failed)
    });
    let cache = cache.transpose()?;
    let session = match &workers {
        None => {
            let memory = memory_bytes.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
            let files = files.clone().map(|files| Arc::new(files) as Arc<dyn TempFileFactory>);
            runtime(memory, files)
                .and_then(|runtime| stores::with_stores(&runtime, cache.as_ref()))
                .and_then(|runtime| FarSession::within(&pool, options, runtime))
        }
        Some(workers) => farpool_distributed::session(&pool, options, workers),
    };
    let session = session.map_err(failed)?;
    let out = output::Out::new(args.output.as_deref(), args.format, args.rows)?;
    let reports = std::io::stderr().is_terminal() && !args.quiet;
    let mut runner =
        Runner { session, files, cache, workers, left_out: Vec::new(), reports, args, origins, out };
    let outcome = threads.block_on(async {
        for (name, path) in &runner.args.parquet {
            let context = runner.session.context();
            let registered =
                context.register_parquet(name.as_str(), path, ParquetReadOptions::default()).await;
            registered.map_err(|error| Failure::Usage(format!("--parquet {name}={path}: {error}")))?;
        }
        if let Some(from) = &runner.args.substrait {
            let bytes = plan::read(from)?;
            return runner.plan(bytes).await;
        }
        if let Some(to) = &runner.args.to_substrait {
            let query = runner.args.query()?;
            let bytes = runner.session.to_substrait(&query).await.map_err(failed)?;
            return plan::write(to, &bytes);
        }
        match (&runner.args.file, runner.args.command.is_empty()) {
            (Some(file), _) => {
                let text = read(file)?;
                runner.statements(&text).await
            }
            (None, false) => {
                for text in runner.args.command.clone() {
                    runner.statements(&text).await?;
                }
                Ok(())
            }
            (None, true) if std::io::stdin().is_terminal() => shell::run(&mut runner).await,
            (None, true) => {
                let text = read("-".as_ref())?;
                runner.statements(&text).await
            }
        }
    });
    // An interrupted query may have left threads at work, which are not waited for.
    threads.shutdown_background();
    outcome?;
    runner.out.finish()
}

impl Args {
    /// Returns the query that was given. Called where exactly one query is required; another number is an error.
    fn query(&self) -> Result<String, Failure> {
        match (&self.command[..], &self.file) {
            ([query], _) => Ok(query.clone()),
            ([], Some(file)) => read(file),
            ([], None) if !std::io::stdin().is_terminal() => read("-".as_ref()),
            (queries, _) => Err(Failure::Usage(format!(
                "--to-substrait: exactly one query is needed, not {}",
                queries.len()
            ))),
        }
    }
}

/// Size of a file of statements in bytes, at most.
const STATEMENTS_BYTES_MAX: usize = 64 << 20;

fn read(file: &std::path::Path) -> Result<String, Failure> {
    let read = input::file_or_standard(file, STATEMENTS_BYTES_MAX).and_then(input::text);
    read.map_err(|error| Failure::Usage(format!("--file {}: {error}", file.display())))
}

/// Converts an error of DataFusion. The exit code depends on its innermost cause.
fn failed(error: DataFusionError) -> Failure {
    match error.find_root() {
        DataFusionError::SQL(..) | DataFusionError::Plan(..) | DataFusionError::SchemaError(..) => {
            Failure::Usage(error.strip_backtrace())
        }
        DataFusionError::External(inner) => match inner.downcast_ref::<farpool::Error>() {
            Some(error) => error.clone().into(),
            None => Failure::Failed(error.strip_backtrace()),
        },
        _ => Failure::Failed(error.strip_backtrace()),
    }
}

fn refused(error: DataFusionError) -> Failure {
    Failure::Refused(error.strip_backtrace())
}

/// Result of a statement.
pub(crate) struct Done {
    rows: usize,
    elapsed: Duration,
    plan: Arc<dyn ExecutionPlan>,
    /// Tasks (parts of scans) that ran at workers.
    tasks: Vec<Assigned>,
    /// Report of the stages. `None` if the query ran in this process only.
    stages: Option<String>,
    /// Temporary files that the statement wrote, with their bytes.
    spilled: Spilled,
    /// Counts of the file cache during this statement. `None` without a cache.
    cached: Option<Counts>,
}

impl Runner {
    /// Runs statements one after another. Stops at the first one that fails.
    pub(crate) async fn statements(&mut self, text: &str) -> Result<(), Failure> {
        let statements = parse_sql(text).map_err(failed)?;
        for statement in statements {
            self.ask_workers().await;
            let begun = Instant::now();
            let rows = self.execute(self.session.run(statement)).await?;
            let done = self.rows_of(rows, begun).await?;
            self.tell(&done)?;
        }
        Ok(())
    }

    /// Runs a Substrait plan.
    async fn plan(&mut self, bytes: Vec<u8>) -> Result<(), Failure> {
        self.ask_workers().await;
        let begun = Instant::now();
        let plan = self.session.substrait(bytes).await.map_err(failed)?;
        let rows = self.execute(self.session.execute(plan)).await?;
        let done = self.rows_of(rows, begun).await?;
        self.tell(&done)
    }

    /// Reports whether somebody may be watching the progress.
    fn is_watched(&self) -> bool {
        !self.args.quiet && std::io::stderr().is_terminal()
    }

    /// Waits for a statement. Shows what it writes.
    async fn execute(
        &self,
        statement: impl Future<Output = datafusion::common::Result<DataFrame>>,
    ) -> Result<DataFrame, Failure> {
        match self.is_watched() {
            true => progress::show_written(&self.session, statement).await,
            false => statement.await,
        }
        .map_err(failed)
    }

    /// Asks the workers which of them are available for the next statement. Reports each that is not, once.
    async fn ask_workers(&mut self) {
        let Some(workers) = &self.workers else { return };
        let left_out = workers.refresh().await;
        for one in &left_out {
            if !self.left_out.contains(one) {
                eprintln!("farpool: {}", farpool::shown_lines(&one.to_string()));
            }
        }
        self.left_out = left_out;
    }

    async fn rows_of(&mut self, rows: DataFrame, begun: Instant) -> Result<Done, Failure> {
        let task = Arc::new(rows.task_ctx());
        let plan = rows.create_physical_plan().await.map_err(failed)?;
        let (before, cached_before) = (self.spilled(), self.cached());
        let failed_over =
            |runner: &Runner| runner.workers.as_ref().map_or(0, |workers| workers.failed_over());
        let failed_before = failed_over(self);
        let stream = execute_stream(Arc::clone(&plan), task).map_err(failed)?;
        let bar = if self.is_watched() { progress::Bar::new(&plan) } else { None };
        let rows = self.write(stream, bar).await?;
        let elapsed = begun.elapsed();
        if failed_over(self) > failed_before {
            eprintln!("farpool: a worker was lost while the statement ran, and others did its tasks again");
        }
        let tasks = self.workers.as_ref().map_or_else(Vec::new, |workers| workers.assigned());
        let stages = match self.args.explain && !self.args.json {
            true => farpool_distributed::explain(&plan).await.map_err(failed)?,
            false => None,
        };
        let spilled = self.spilled().since(before);
        let cached = self.cached().map(|now| now.since(cached_before.unwrap_or_default()));
        Ok(Done { rows, elapsed, plan, tasks, stages, spilled, cached })
    }

    /// Returns the names of the tables that a statement may use, in order.
    pub(crate) fn tables(&self) -> Vec<String> {
        let context = self.session.context();
        let schemas = context.catalog_names().into_iter().filter_map(|name| context.catalog(&name));
        let schemas = schemas.flat_map(|catalog| {
            let names = catalog.schema_names().into_iter();
            names.filter_map(move |name| catalog.schema(&name)).collect::<Vec<_>>()
        });
        let mut names: Vec<String> = schemas.flat_map(|schema| schema.table_names()).collect();
        names.sort();
        names
    }

    /// Returns the counts of the file cache over all statements so far. `None` without a cache.
    fn cached(&self) -> Option<Counts> {
        self.cache.as_ref().map(BlockCache::counts)
    }

    /// Returns the totals of temporary files over all statements so far.
    fn spilled(&self) -> Spilled {
        self.files.as_ref().map_or_else(Spilled::default, FarTempFiles::spilled)
    }

    /// Writes rows as they arrive, and shows the progress bar meanwhile. Returns the number of rows.
    async fn write(
        &mut self,
        mut stream: SendableRecordBatchStream,
        bar: Option<progress::Bar>,
    ) -> Result<usize, Failure> {
        use futures::StreamExt;
        let mut tick = tokio::time::interval(progress::LOOK);
        let schema = stream.schema();
        let mut rows = 0;
        self.out.begin(&schema)?;
        loop {
            tokio::select! {
                batch = stream.next() => match batch {
                    None => break,
                    Some(batch) => {
                        let batch = batch.map_err(failed)?;
                        rows += batch.num_rows();
                        if let Some(bar) = &bar { bar.hide() }
                        self.out.rows(&batch)?;
                    }
                },
                _ = tick.tick() => if let Some(bar) = &bar { bar.show() },
            }
        }
        if let Some(bar) = &bar {
            bar.hide();
        }
        self.out.end(rows)?;
        Ok(rows)
    }

    /// Reports what the statement did, if `--explain` asks for it or a person is watching.
    fn tell(&self, done: &Done) -> Result<(), Failure> {
        if self.args.explain && self.args.json {
            scan_report::explain_json(done)?;
        } else if self.args.explain {
            scan_report::explain(done)?;
        } else if self.reports {
            scan_report::line(done)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farpool_command::settings::report::documented;

    #[test]
    fn default_limit_is_half_of_what_the_fullest_control_group_has_left() {
        let root = std::env::temp_dir().join(format!("farpool-sql-{}", std::process::id()));
        let files = [
            ("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n"),
            ("proc/self/cgroup", "0::/pod/app\n"),
            ("sys/fs/cgroup/pod/app/memory.max", "1000000\n"),
            ("sys/fs/cgroup/pod/app/memory.current", "0\n"),
            ("sys/fs/cgroup/pod/memory.max", "4000000\n"),
            ("sys/fs/cgroup/pod/memory.current", "3400000\n"),
        ];
        for (name, text) in files {
            let file = root.join(name);
            std::fs::create_dir_all(file.parent().expect("a folder")).expect("made");
            std::fs::write(file, text).expect("written");
        }
        let usable = UsableMemory::find_below(&root);
        let share = Limit::Of(units::MemoryAmount::Percent(50));
        let limits = [None, Some(share), Some(Limit::None)].map(|asked| limit_bytes(asked, &usable));
        std::fs::remove_dir_all(&root).expect("removed");
        assert_eq!(limits, [Some(300_000), Some(500_000), None]);
    }

    #[test]
    fn document_lists_all_settings() {
        let text = include_str!("../../../docs/configuration.md");
        let found: Vec<&str> = text.lines().filter(|line| line.starts_with("| `[sql")).collect();
        assert_eq!(found.join("\n"), documented::<Args>(&SCOPE).join("\n"), "docs/configuration.md");
    }
}
