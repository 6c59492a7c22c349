//! Pools to run SQL over, filled with the tables that `reference.py` made.

use arrow::array::{RecordBatch, RecordBatchReader};
use arrow::compute::concat_batches;
use arrow::ipc::reader::FileReader;
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use farpool::table::PutOptions;
use farpool::{EmbeddedOptions, Pool, PoolOptions, Protection, TransportChoice};
use farpool_datafusion::{FarSession, Options};
use farpool_tests::programs;
use std::convert::Infallible;
use std::fs::File;
use std::future::Future;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Region size in bytes: large enough for a full row group of any table here. Smaller regions would limit row groups to
/// fewer than 65,536 rows.
const REGION_BYTES: u64 = 16 << 20;
/// Least memory in bytes of a pool for tables: some regions for each table, on every node.
const MEMORY_BYTES_MIN: u64 = 1 << 30;
/// Bytes of memory that a pool has for each byte of a Parquet file, which is compressed.
const MEMORY_PER_FILE_BYTE: u64 = 6;
/// Environment variable with the format of the tables: 1, the default, for tables of one file, and 2 for tables that
/// were changed and have snapshots.
const TABLE_FORMAT: &str = "FARPOOL_TABLE_FORMAT";
/// Environment variable with the path of the `farpool` binary.
pub const FARPOOL: &str = "FARPOOL_BIN";
/// Environment variable with the path of the `farpool-sql` binary.
pub const FARPOOL_SQL: &str = "FARPOOL_SQL_BIN";
/// Time limit of a query. No query takes that long unless it hangs.
const PATIENCE_WITH_QUERIES: Duration = Duration::from_secs(120);
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Returns a subfolder of the folder that `reference.py` made.
pub fn reference(part: &str) -> PathBuf {
    let folder = std::env::var_os("FARPOOL_SUITE")
        .expect("FARPOOL_SUITE names the folder that engines/tests/reference.py made: run `make test-sql`");
    let part = Path::new(&folder).join(part);
    assert!(part.is_dir(), "{} is no folder: run engines/tests/reference.py", part.display());
    part
}

/// Returns the files of a folder with this extension, sorted by name. Fails if there are none.
pub fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|of| of == extension))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no .{extension} files in {}", folder.display());
    files
}

pub fn stem(path: &Path) -> String {
    path.file_stem().expect("a name").to_string_lossy().into_owned()
}

/// Returns the memory in bytes that these files take as far tables.
fn memory_bytes(tables: &[PathBuf]) -> u64 {
    let file_bytes: u64 = tables.iter().map(|path| path.metadata().expect("a file").len()).sum();
    MEMORY_BYTES_MIN + file_bytes * MEMORY_PER_FILE_BYTE
}

/// Returns half of [`memory_bytes`], for each of two nodes, as a command-line argument.
pub fn memory_of_each(tables: &[PathBuf]) -> String {
    format!("{}MiB", memory_bytes(tables).div_ceil(2 << 20))
}

/// Makes a pool of two nodes in this process, large enough for these files.
pub fn embedded(tables: &[PathBuf]) -> Pool {
    let mut options = EmbeddedOptions::new(memory_bytes(tables));
    options.node_count = 2;
    options.region_bytes = Some(REGION_BYTES);
    Pool::embedded(options).expect("an embedded pool")
}

/// Puts each file as a far table of its name, in the format that [`TABLE_FORMAT`] says.
pub fn put(pool: &Pool, tables: &[PathBuf]) {
    match std::env::var(TABLE_FORMAT).as_deref() {
        Err(_) | Ok("1") => put_each(tables, |name, rows| pool.try_put_table(name, rows.schema(), rows)),
        Ok("2") => put_changed(pool, tables),
        Ok(other) => panic!("{TABLE_FORMAT} is {other:?}; 1 and 2 are permitted"),
    }
}

/// Puts each file as a far table that was changed: half of its rows are appended.
pub fn put_changed(pool: &Pool, tables: &[PathBuf]) {
    put_each(tables, |name, rows| put_halves(pool, name, rows));
}

fn put_each(
    tables: &[PathBuf],
    put: impl Fn(&str, Box<dyn RecordBatchReader>) -> Result<(), farpool::Error>,
) {
    for path in tables {
        let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let reader: Box<dyn RecordBatchReader> = if path.extension().is_some_and(|of| of == "parquet") {
            let builder = ParquetRecordBatchReaderBuilder::try_new(file).expect("a Parquet file");
            Box::new(builder.build().expect("a reader"))
        } else {
            Box::new(FileReader::try_new(BufReader::new(file), None).expect("an Arrow file"))
        };
        put(&stem(path), reader).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// Puts the first half of the rows and appends the others, so that the table has a snapshot and several files.
fn put_halves(pool: &Pool, name: &str, reader: Box<dyn RecordBatchReader>) -> Result<(), farpool::Error> {
    let schema = reader.schema();
    let batches = reader.collect::<Result<Vec<RecordBatch>, _>>().expect("rows");
    let rows = concat_batches(&schema, &batches).expect("batches of one schema");
    let half = rows.num_rows() / 2;
    let appended = [Ok::<_, Infallible>(rows.slice(half, rows.num_rows() - half))];
    pool.put_table(name, schema.clone(), [rows.slice(0, half)])?;
    pool.append_to_table(name, schema, appended, &PutOptions::default())?;
    assert!(pool.table(name)?.snapshot().is_some(), "{name} is of format 1 after an append");
    Ok(())
}

/// Makes a session whose queries run in this placement.
pub fn session_in(pool: &Pool, placement: &str, runtime: &Runtime) -> FarSession {
    let session = FarSession::new(pool, Options::default()).expect("a session");
    let set = format!("SET farpool.placement = '{placement}'");
    let done = runtime.block_on(async { session.context().sql(&set).await?.collect().await });
    done.unwrap_or_else(|error| panic!("{set}: {error}"));
    session
}

/// Broker and two nodes as processes, which end when this value is dropped.
pub struct Cluster {
    pub pool: Pool,
    nodes: [Process; 2],
    broker: Process,
}

impl Cluster {
    /// Starts a cluster that is reached over TCP. Each node has this much memory.
    pub fn start(memory: &str) -> Cluster {
        Cluster::begin(memory, |_, args| Process::start(FARPOOL, args))
    }

    /// Does the same as [`Self::start`] with nodes that write their events to files `one` and `two` of a folder.
    pub fn start_logging(memory: &str, logs: &Path) -> Cluster {
        Cluster::begin(memory, |name, args| Process::start_logging(FARPOOL, args, &logs.join(name)))
    }

    /// Does the same as [`Self::start`] with nodes whose host labels differ, as those of two hosts do.
    pub fn start_on_two_hosts(memory: &str) -> Cluster {
        Cluster::begin(memory, |name, args| {
            Process::start(FARPOOL, &[args, &["--host-label", name]].concat())
        })
    }

    fn begin(memory: &str, start: impl Fn(&str, &[&str]) -> Process) -> Cluster {
        let broker = Process::start(FARPOOL, &["broker", "--listen", "127.0.0.1:0", "--store", "memory"]);
        let nodes = ["one", "two"].map(|name| node(name, &broker.ready, memory, &start));
        let options = PoolOptions {
            transport: TransportChoice::Tcp,
            protection: Some(Protection::None),
            ..PoolOptions::default()
        };
        let pool = Pool::connect_with(&broker.ready, options).expect("a session");
        let begun = Instant::now();
        while pool.status().expect("a status").nodes.len() < nodes.len() {
            assert!(begun.elapsed() < PATIENCE, "both nodes join within {PATIENCE:?}");
            std::thread::park_timeout(Duration::from_millis(10));
        }
        Cluster { pool, nodes, broker }
    }

    /// Opens another session with the cluster, whose temporary files have this protection.
    pub fn connect(&self, protection: Protection) -> Pool {
        let options = PoolOptions {
            transport: TransportChoice::Tcp,
            protection: Some(protection),
            ..PoolOptions::default()
        };
        Pool::connect_with(&self.broker.ready, options).expect("a session")
    }

    /// Kills both nodes and starts them again, with nothing of what they had.
    pub fn lose_all(&mut self, memory: &str) {
        self.nodes.iter_mut().for_each(Process::kill);
        let start = |_: &str, args: &[&str]| Process::start(FARPOOL, args);
        self.nodes = ["one", "two"].map(|name| node(name, &self.broker.ready, memory, start));
    }

    /// Kills node "two".
    pub fn lose_two(&mut self) {
        self.nodes[1].kill();
    }

    pub fn lose_broker(&mut self) {
        self.broker.kill();
    }
}

/// Starts a node of a cluster.
fn node(name: &str, broker: &str, memory: &str, start: impl Fn(&str, &[&str]) -> Process) -> Process {
    // Each node keeps its memory, however little the other tests of this machine leave.
    let to = ["--broker", broker, "--region-size", "16MiB", "--memory", memory, "--no-reserve"];
    start(name, &[&["node", "--name", name], &to[..]].concat())
}

/// Waits for the result. Fails if it takes so long that it must hang.
pub async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE_WITH_QUERIES, work).await.expect("an answer or an error, and no hang")
}

/// Process that prints a line when it is ready.
pub struct Process {
    child: Child,
    /// Address that the process printed in that line.
    pub ready: String,
}

/// Returns a command for the binary that this environment variable names.
pub fn command(variable: &str) -> Command {
    let binary = std::env::var(variable);
    Command::new(binary.unwrap_or_else(|_| panic!("{variable} names a binary: run `make test-sql`")))
}

impl Process {
    pub fn start(variable: &str, args: &[&str]) -> Process {
        Process::begin(command(variable).args(args))
    }

    /// Does the same as [`Self::start`] with a file to which the process writes all its events as JSON lines.
    pub fn start_logging(variable: &str, args: &[&str], log: &Path) -> Process {
        let file = File::create(log).expect("a file for the log");
        Process::begin(command(variable).args(args).args(["--log-level", "debug"]).stderr(file))
    }

    fn begin(command: &mut Command) -> Process {
        let what = format!("{command:?}");
        let child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut process = Process { child, ready: String::new() };
        let said = process.child.stdout.take().expect("piped");
        let line = programs::first_line(said, &what);
        let ready = line.strip_prefix("ready ").unwrap_or_else(|| panic!("{what} said {line:?}"));
        process.ready = ready.trim().to_owned();
        process
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills the process, and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
