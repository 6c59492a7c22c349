//! Arrangement of the rows of a table: its partitions and the order within its files, as columns of its manifest.

use crate::bounds::{BOUNDED_COLUMNS_MAX, bounded_by_default};
use arrow_schema::{DataType, SchemaRef};
use farpool_files::{Error, ErrorKind};
use farpool_wire::WireError;
use farpool_wire::codec::{Cursor, Field};
use std::collections::BTreeSet;

/// Partitions and order of the rows of a table, as numbers of its columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arrangement {
    /// Columns whose values divide the rows: all rows of a file have the same ones.
    pub partition_by: Vec<u16>,
    /// Columns by which the rows of each file are sorted, ascending and NULL first.
    pub sort_by: Vec<u16>,
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

impl Arrangement {
    /// Finds the columns that `partition_by` and `sort_by` name among those that a table stores.
    ///
    /// Errors: there is no such column, a column is named twice, there are more than eight, or rows cannot be divided
    /// by the type of a column.
    pub(crate) fn of(
        partition_by: &[String],
        sort_by: &[String],
        stored: &SchemaRef,
    ) -> Result<Arrangement, Error> {
        let mut named = BTreeSet::new();
        let mut places = |names: &[String], what: &str| -> Result<Vec<u16>, Error> {
            let place = |name: &String| {
                let place = stored.index_of(name).map_err(|_| {
                    let all: Vec<&str> = stored.fields().iter().map(|field| field.name().as_str()).collect();
                    invalid(format!("{what} names column {name:?}; the table has {all:?}"))
                })?;
                match named.insert(place) {
                    true => Ok(place as u16),
                    false => Err(invalid(format!("{what} names column {name:?}, which is named already"))),
                }
            };
            names.iter().map(place).collect()
        };
        let partition_by = places(partition_by, "partition_by")?;
        let sort_by = places(sort_by, "sort_by")?;
        let count = partition_by.len() + sort_by.len();
        if count > BOUNDED_COLUMNS_MAX {
            let message = format!(
                "partition_by and sort_by name {count} columns; at most {BOUNDED_COLUMNS_MAX} are permitted"
            );
            return Err(invalid(message));
        }
        for place in &partition_by {
            let field = stored.field(usize::from(*place));
            if matches!(field.data_type(), DataType::Float32 | DataType::Float64) {
                let (name, of) = (field.name(), field.data_type());
                return Err(invalid(format!(
                    "column {name:?} of type {of} cannot divide a table into partitions"
                )));
            }
        }
        Ok(Arrangement { partition_by, sort_by })
    }

    /// Reports whether rows lie as they come.
    pub fn is_none(&self) -> bool {
        self.partition_by.is_empty() && self.sort_by.is_empty()
    }

    /// Returns the columns whose bounds the manifest keeps: those of the arrangement, and the first ones.
    pub(crate) fn bounded(&self, schema: &SchemaRef) -> Vec<u16> {
        let mut bounded = [&self.partition_by[..], &self.sort_by[..]].concat();
        let others = bounded_by_default(schema);
        bounded.extend(others.into_iter().filter(|column| !self.columns().any(|of| of == *column)));
        bounded.truncate(BOUNDED_COLUMNS_MAX);
        bounded
    }

    fn columns(&self) -> impl Iterator<Item = u16> {
        self.partition_by.iter().chain(&self.sort_by).copied()
    }

    /// Appends the encoded arrangement.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        for columns in [&self.partition_by, &self.sort_by] {
            (columns.len() as u8).put(out);
            columns.iter().for_each(|column| column.put(out));
        }
    }

    /// Decodes an arrangement of a table with so many columns, of which some have bounds.
    pub(crate) fn take(
        columns: usize,
        bounded: &[u16],
        from: &mut Cursor<'_>,
    ) -> Result<Arrangement, WireError> {
        let mut named = BTreeSet::new();
        let mut places = || -> Result<Vec<u16>, WireError> {
            let count = u8::take(from)?;
            if usize::from(count) > BOUNDED_COLUMNS_MAX {
                let (found, max) = (count.into(), BOUNDED_COLUMNS_MAX as u64);
                return Err(WireError::TooMany { what: "columns of partitions or of the order", found, max });
            }
            let place = |_| match u16::take(from)? {
                place if usize::from(place) < columns && named.insert(place) => Ok(place),
                place => Err(WireError::Value {
                    what: "a column of partitions or of the order",
                    found: place.into(),
                }),
            };
            (0..count).map(place).collect()
        };
        let (partition_by, sort_by) = (places()?, places()?);
        // The partition of a file is known from bounds alone.
        match partition_by.iter().find(|column| !bounded.contains(column)) {
            Some(column) => Err(WireError::Value {
                what: "a column of partitions without bounds",
                found: (*column).into(),
            }),
            None => Ok(Arrangement { partition_by, sort_by }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_schema::{Field as ArrowField, Schema};
    use std::sync::Arc;

    #[test]
    fn columns_are_found_by_their_names_and_wrong_ones_are_named() {
        let fields = ["a", "b", "c", "d", "e", "f"].map(|name| ArrowField::new(name, DataType::Int64, true));
        let float = ArrowField::new("x", DataType::Float64, true);
        let schema: SchemaRef = Arc::new(Schema::new(fields.into_iter().chain([float]).collect::<Vec<_>>()));
        let of = |partition_by: &[&str], sort_by: &[&str]| {
            let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>();
            Arrangement::of(&names(partition_by), &names(sort_by), &schema)
        };
        let found = of(&["f"], &["x", "b"]).expect("found");
        assert_eq!((&found.partition_by[..], &found.sort_by[..]), (&[5][..], &[6, 1][..]));
        assert_eq!(found.bounded(&schema), [5, 6, 1, 0, 2, 3]);
        let mut bytes = Vec::new();
        found.put(&mut bytes);
        let mut from = Cursor::new(&bytes);
        assert_eq!(Arrangement::take(7, &[5], &mut from), Ok(found));
        let refused = |columns, bounded: &[u16], bytes: &[u8]| {
            Arrangement::take(columns, bounded, &mut Cursor::new(bytes)).is_err()
        };
        assert!(refused(6, &[5], &bytes), "it has no such column");
        assert!(refused(7, &[6, 1], &bytes), "the column of the partitions has no bounds");
        assert!(refused(7, &[5], &[1, 5, 0, 1, 5, 0]), "a column is named twice");
        for (partition_by, sort_by, why) in [
            (&["z"][..], &[][..], "\"z\""),
            (&["a"][..], &["a"][..], "named already"),
            (&["x"][..], &[][..], "Float64"),
        ] {
            let error = of(partition_by, sort_by).expect_err("refused").to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
