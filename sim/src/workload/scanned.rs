//! Far tables: clients put and scan them, at nodes and here, and compare every row.
//!
//! The idea: the number of rows of a table is drawn at random, and gives all of its values. Whichever table of a name a
//! client has opened, it knows what a scan returns. Small values make many row groups of little memory, so faults hit
//! scans that nodes and the client have half done.

use super::{Client, stamped, violated};
use crate::kernel::world;
use crate::random::Random;
use arrow_array::{Array, ArrayRef, Int8Array, RecordBatch};
use farpool_files::{Error, ErrorKind, Pool, Protection};
use farpool_planner::Placement;
use farpool_tables::operators::{col, lit};
use farpool_tables::{Answer, FarTable, GROUP_ROWS_MAX, PutOptions, TABLE_PREFIX, open_table, put_table};
use std::sync::Arc;

/// Most row groups of a table.
const GROUPS_MAX: u64 = 8;
/// Most tables that a client has open.
const TABLES_MAX: usize = 2;

/// Returns the values of a table with this many rows.
fn values(rows: usize) -> Int8Array {
    let mut source = Random::new(rows as u64);
    let mut values = Vec::with_capacity(rows + 8);
    while values.len() < rows {
        values.extend(source.draw().to_le_bytes().map(|byte| byte as i8));
    }
    values.truncate(rows);
    values.into()
}

/// Scans a table, and checks that each row comes that was asked for, once and in order.
fn scan(table: &FarTable, placement: Placement) -> Result<(), Error> {
    let query = table.query()?.filter(col("value").gt_eq(lit(0)));
    let plan = query.plan().expect("the column is there");
    let Answer { batches, .. } = table.run(&plan, placement)?;
    let wanted = values(table.rows() as usize);
    let wanted = wanted.values().iter().copied().filter(|value| *value >= 0);
    let found = batches.iter().flat_map(|batch| {
        let column = batch.column(0).as_any().downcast_ref::<Int8Array>().expect("the type of the column");
        column.values().iter().copied()
    });
    world(|world| {
        world.oracle.checks += 1;
        world.tally.bytes_compared += batches.iter().map(|batch| batch.num_rows() as u64).sum::<u64>();
    });
    if !found.eq(wanted.clone()) {
        let found: usize = batches.iter().map(RecordBatch::num_rows).sum();
        let (name, rows, wanted) = (table.name(), table.rows(), wanted.count());
        let what =
            format!("{placement:?} of table {name:?} of {rows} rows: {found} rows of {wanted}, or others");
        violated("I8", what);
    }
    Ok(())
}

impl Client {
    /// Returns the name of the table of the client's tenant.
    fn table_name(&self) -> String {
        world(|world| format!("{}/scanned", world.plan.tenant_of(self.index)))
    }

    /// Returns the name of that table's file.
    pub(super) fn table_file(&self) -> String {
        format!("{TABLE_PREFIX}{}", self.table_name())
    }

    pub(super) fn put_table(&mut self) {
        let groups = self.random.range(1, GROUPS_MAX);
        let stamp = u64::from_le_bytes(stamped(8).try_into().expect("8 bytes"));
        let rows = groups * GROUP_ROWS_MAX as u64 - stamp % (GROUP_ROWS_MAX as u64 / 2);
        let protection = match self.random.below(4) {
            0 => Protection::None,
            1 => Protection::Rs { data: 2, parity: 1 },
            _ => Protection::Mirror,
        };
        let column: ArrayRef = Arc::new(values(rows as usize));
        let batch = RecordBatch::try_from_iter([("value", column)]).expect("one column");
        let put = |protection| {
            let options = PutOptions { replace: true, protection: Some(protection), ..PutOptions::default() };
            let batches = [Ok::<_, Error>(batch.clone())];
            put_table(&self.pool(), &self.table_name(), batch.schema(), batches, &options)
        };
        let mut result = put(protection);
        if result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Invalid) {
            // There are too few hosts at the moment.
            result = put(Protection::None);
        }
        self.outcome("put a table", result);
    }

    pub(super) fn open_table(&mut self) {
        let from = self.now();
        let opened = open_table(&self.pool(), &self.table_name(), None);
        if opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            let file = self.table_file();
            self.must_not_be_there(&file, &self.values_since(&file, from));
        }
        if let Some(table) = self.outcome("open a table", opened) {
            self.tables.truncate(TABLES_MAX - 1);
            self.tables.insert(0, table);
        }
    }

    pub(super) fn scan_table(&mut self) {
        if self.tables.is_empty() || self.random.one_in(4) {
            self.open_table();
        }
        if self.tables.is_empty() {
            return;
        }
        let which = self.random.below(self.tables.len() as u64) as usize;
        let all = [Placement::Auto, Placement::Fetch, Placement::Ship, Placement::Split, Placement::Split];
        let scanned = scan(&self.tables[which], *self.random.pick(&all));
        let is_lost = scanned.as_ref().is_err_and(|error| error.kind() == ErrorKind::Lost);
        self.outcome("scan a table", scanned);
        if is_lost {
            self.tables.remove(which);
        }
    }

    /// Proves I5: the table of the client's tenant can be scanned if the nodes with its bytes live.
    pub(super) fn prove_table(&mut self, pool: &Pool) -> Result<(), Error> {
        let (file, from) = (self.table_file(), self.now());
        let result =
            open_table(pool, &self.table_name(), None).and_then(|table| scan(&table, Placement::Split));
        match result {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.must_not_be_there(&file, &self.values_since(&file, from));
                Ok(())
            }
            Err(error) if world(|world| world.is_whole(&file, &world.parties.disk)) => Err(error),
            _ => Ok(()),
        }
    }
}
