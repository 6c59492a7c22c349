//! Far table of eight columns of eight bytes, as in the experiments of paper 003 ("Farview"); transports to its node;
//! and the expected answers of queries. The benchmarks of queries share this module.

use crate::exit::Failure;
use crate::harness::pools::{Cluster, Existing, Room};
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use clap::ValueEnum;
use farpool::{Pool, TransportChoice};
use std::sync::Arc;

pub(crate) const ROW_BYTES: u64 = 64;
const BATCH_ROWS: u64 = 65_536;

/// Row of the table.
pub(crate) type Row = [i64; 8];

/// Transport between the client and the memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    Shm,
    Tcp,
}

impl Transport {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Transport::Shm => "shm",
            Transport::Tcp => "tcp",
        }
    }

    pub(crate) fn choice(self) -> TransportChoice {
        match self {
            Transport::Shm => TransportChoice::Shm,
            Transport::Tcp => TransportChoice::Tcp,
        }
    }
}

/// Expected answer of a query: the number of rows, and the sum of the columns that the query checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) rows: u64,
    pub(crate) sum: i128,
}

impl Expected {
    /// Adds a row to the expected answer. `sum` is the sum of its checked columns.
    pub(crate) fn add(&mut self, sum: i128) {
        self.rows += 1;
        self.sum += sum;
    }

    /// Compares an answer with the expected one. A different answer is an error.
    pub(crate) fn check(self, found: Expected, query: &str) -> Result<(), Failure> {
        match found == self {
            true => Ok(()),
            false => Err(Failure::Failed(format!("WRONG ANSWER of {query}: {found:?}, expected {self:?}"))),
        }
    }
}

/// Query over the table. `K` is the type in which a benchmark describes its queries.
pub(crate) struct Query<K> {
    pub(crate) name: String,
    pub(crate) kind: K,
    /// Expected answer. It is complete once [`Batches`] has made all rows of the table.
    pub(crate) expected: Expected,
}

impl<K> Query<K> {
    pub(crate) fn new(name: String, kind: K) -> Query<K> {
        Query { name, kind, expected: Expected::default() }
    }

    /// Returns the queries whose names begin with one of `names`, or all queries if `names` is empty. An error if there
    /// is none. `flag` is the name of the flag for the message.
    pub(crate) fn named(all: Vec<Query<K>>, flag: &str, names: &[String]) -> Result<Vec<Query<K>>, Failure> {
        let is_wanted = |query: &Query<K>| names.iter().any(|name| query.name.starts_with(name.as_str()));
        let (wanted, others): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|query| names.is_empty() || is_wanted(query));
        if wanted.is_empty() {
            let names: Vec<String> = others.into_iter().map(|query| query.name).collect();
            return Err(Failure::Usage(format!("{flag}: there are {}", names.join(", "))));
        }
        Ok(wanted)
    }
}

/// Iterator that makes the batches of the table. It calls `told` with the number and the values of each row.
pub(crate) struct Batches<T> {
    schema: SchemaRef,
    row: fn(u64) -> Row,
    told: T,
    next: u64,
    rows: u64,
}

impl<T: FnMut(u64, &Row)> Batches<T> {
    /// Creates the iterator for a table of `rows` rows. `row` returns the row with a number.
    pub(crate) fn new(columns: [&str; 8], row: fn(u64) -> Row, rows: u64, told: T) -> Batches<T> {
        let fields = columns.map(|name| Field::new(name, DataType::Int64, false));
        Batches { schema: Arc::new(Schema::new(fields.to_vec())), row, told, next: 0, rows }
    }

    /// Writes the table to the pool. Returns the session that owns the table. The caller must drop the table.
    pub(crate) fn put(self, cluster: &Cluster, transport: Transport, name: &str) -> Result<Pool, Failure> {
        let writer = cluster.session(transport.choice(), self.rows * ROW_BYTES)?;
        writer.put_table(name, Arc::clone(&self.schema), self)?;
        Ok(writer)
    }
}

impl<T: FnMut(u64, &Row)> Iterator for Batches<T> {
    type Item = RecordBatch;

    fn next(&mut self) -> Option<RecordBatch> {
        let count = BATCH_ROWS.min(self.rows - self.next);
        if count == 0 {
            return None;
        }
        let mut columns = [(); 8].map(|()| Vec::with_capacity(count as usize));
        for number in self.next..self.next + count {
            let row = (self.row)(number);
            columns.iter_mut().zip(row).for_each(|(column, value)| column.push(value));
            (self.told)(number, &row);
        }
        self.next += count;
        let columns = columns.map(|column| Arc::new(Int64Array::from(column)) as ArrayRef);
        RecordBatch::try_new(Arc::clone(&self.schema), columns.into()).ok()
    }
}

// This struct is flattened into the arguments of benchmarks. A doc comment here would replace their help text.
#[derive(clap::Args)]
pub(crate) struct TablePool {
    /// Address of an existing pool [default: start one]
    #[arg(long, value_name = "ADDRESS")]
    pool: Option<String>,
    /// Connect to the existing pool without TLS, even on another machine
    #[arg(long, requires = "pool")]
    plaintext: bool,
}

impl TablePool {
    /// Returns the named pool, or starts one with room for a table of `bytes` and for `clients` sessions.
    pub(crate) fn cluster(
        &self,
        bytes: u64,
        clients: usize,
        node_flags: &[String],
    ) -> Result<Cluster, Failure> {
        match &self.pool {
            Some(url) => Ok(Cluster::existing(Existing { url, plaintext: self.plaintext, pids: &[] })),
            None => Cluster::start(Room { bytes, clients: clients as u64, nodes: 1 }, node_flags),
        }
    }
}

/// Returns the number of rows in all batches.
#[cfg(test)]
pub(crate) fn rows_made(batches: impl Iterator<Item = RecordBatch>) -> u64 {
    batches.map(|batch| batch.num_rows() as u64).sum()
}

/// Returns the expected number of rows of a query.
#[cfg(test)]
pub(crate) fn rows_expected<K>(queries: &[Query<K>], name: &str) -> u64 {
    queries.iter().find(|query| query.name == name).expect("a query").expected.rows
}
