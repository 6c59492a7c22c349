//! Column tables for functions: where the columns of a far table lie in the window of a function
//! (`spec/function.md`).

use crate::FarTable;
use crate::column_type::type_code;
use crate::footer::{ColumnChunk, Encoding, RowGroup};
use crate::schema_mapping::FileColumns;
use arrow_schema::{DataType, TimeUnit};
use farpool_calls::abi::{Column, ColumnBuffers, put_columns, put_row_group};
use farpool_calls::{Caller, CallerOptions, Columns};
use farpool_files::{Error, ErrorKind};
use farpool_operators::columns::value_bytes;
use farpool_wire::limits::FUNCTION_COLUMNS_BYTES_MAX;
use std::ops::Range;

/// The columns of a table that a function can find, in the order in which they were asked for.
struct TableColumns {
    table: FarTable,
    /// Numbers of the columns in the table.
    indexes: Vec<usize>,
}

impl FarTable {
    /// Makes a caller of functions over this table. The functions see these columns, in this order.
    ///
    /// Errors: [`ErrorKind::Invalid`] if a column does not exist, if the options have a range, or if the table is
    /// encrypted or too large for one window.
    pub fn caller(&self, columns: &[&str], options: CallerOptions) -> Result<Caller, Error> {
        let during = |error: Error| error.during(format_args!("functions over far table {:?}", self.name()));
        if self.is_encrypted() {
            let message = "the table is encrypted, and functions cannot read encrypted tables";
            return Err(during(Error::new(ErrorKind::Invalid, message)));
        }
        let schema = self.schema();
        let index = |name: &&str| {
            schema.index_of(name).map_err(|_| {
                let known: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
                let message = format!("no column {name:?}; the columns are {}", known.join(", "));
                Error::new(ErrorKind::Invalid, message)
            })
        };
        let indexes = columns.iter().map(index).collect::<Result<Vec<_>, _>>().map_err(during)?;
        if options.range.is_some() {
            let message = "a range cannot be set for a table: its window is the whole table";
            return Err(during(Error::new(ErrorKind::Invalid, message)));
        }
        if !(0..self.row_groups().len()).all(|group| self.has_in_file(group, &indexes)) {
            let message = "a column was added, or its type was widened, after rows were written, and functions see \
                           what was written: compact the table first";
            return Err(during(Error::new(ErrorKind::Invalid, message)));
        }
        let columns = TableColumns { table: self.clone(), indexes };
        columns.encode(&|_| true).map_err(during)?;
        let Some(file) = self.only_file() else {
            let message =
                "the table has several files or none, and functions see one file: compact the table first";
            return Err(during(Error::new(ErrorKind::Invalid, message)));
        };
        Ok(Caller::over(file, options).map_err(during)?.with_columns(Box::new(columns)))
    }
}

impl Columns for TableColumns {
    fn groups(&self) -> Vec<Range<u64>> {
        let range = |group: &RowGroup| group.offset..group.end();
        self.table.row_groups().iter().map(range).collect()
    }

    fn encode(&self, is_listed: &dyn Fn(usize) -> bool) -> Result<Vec<u8>, Error> {
        let schema = self.table.schema();
        let columns: Vec<Column> =
            self.indexes.iter().map(|index| column(schema.field(*index).data_type())).collect();
        let groups = self.table.row_groups();
        let listed = (0..groups.len()).filter(|index| is_listed(*index)).count();
        let mut bytes = Vec::new();
        put_columns(&columns, listed as u32, &mut bytes);
        let mut position = 0;
        for (index, group) in groups.iter().enumerate() {
            if is_listed(index) {
                let file = self.table.file_of(index).map(|file| &*file.columns);
                let chunk =
                    |column: &usize| Some(buffers_of(group, file?, *column, group.columns.get(*column)?));
                let chunks: Vec<ColumnBuffers> = self.indexes.iter().filter_map(chunk).collect();
                put_row_group(group.rows.into(), position, &chunks, &mut bytes);
            }
            position += u64::from(group.rows);
        }
        if bytes.len() > FUNCTION_COLUMNS_BYTES_MAX {
            let message = format!(
                "describing {} columns of this table takes {} bytes; at most {FUNCTION_COLUMNS_BYTES_MAX} are \
                 permitted: ask for fewer columns",
                columns.len(),
                bytes.len()
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(bytes)
    }
}

/// Returns where a column of a row group lies in the file.
fn buffers_of(group: &RowGroup, file: &FileColumns, column: usize, of: &ColumnChunk) -> ColumnBuffers {
    let encoding = match of.encoding {
        Encoding::Plain => 0,
        Encoding::Dictionary => 1,
        Encoding::Rows => 2,
    };
    let mut chunk = ColumnBuffers { encoding, null_count: of.null_count.into(), ..ColumnBuffers::default() };
    let from = usize::from(of.null_count == 0);
    for (into, buffer) in chunk.buffers[from..].iter_mut().zip(&of.buffers) {
        *into = (group.offset + u64::from(buffer.offset), buffer.bytes.into());
    }
    if let (Encoding::Rows, Some(places), Some(place)) = (of.encoding, file.rows(), file.same_place(column)) {
        let begins = places.starts.get(place).copied().unwrap_or(0);
        chunk.buffers[2] = (begins as u64, places.row_bytes as u64);
    }
    chunk
}

fn column(of: &DataType) -> Column {
    let (precision, scale) = match of {
        DataType::Decimal128(precision, scale) => (*precision, *scale),
        _ => (0, 0),
    };
    let unit = match of {
        DataType::Timestamp(TimeUnit::Millisecond, _) => 1,
        DataType::Timestamp(TimeUnit::Microsecond, _) => 2,
        DataType::Timestamp(TimeUnit::Nanosecond, _) => 3,
        _ => 0,
    };
    let width = if *of == DataType::Boolean { None } else { value_bytes(of) };
    Column { kind: type_code(of).unwrap_or(0), precision, scale, unit, width: width.unwrap_or(0) as u32 }
}
