//! Changes of the columns of a table: a commit of another root over the same files.
//!
//! The idea: rows are not written anew. The root says which columns the table has from now on, and each data file keeps
//! those that it was written with. A reader maps the ones to the others (`schema_mapping`).

use crate::arrangement::Arrangement;
use crate::column_type::stored_schema;
use crate::commit::{Base, Committed, REBASES_MAX, changed_too_often};
use crate::layout::TableLayout;
use crate::manifest::{self, DataFile, Entries, Removed, Root, Walked};
use crate::options::PutOptions;
use crate::schema_mapping::{FieldIds, check_widening};
use crate::snapshot::{Found, find_table};
use crate::writing::NewFiles;
use arrow_schema::{DataType, Field, Schema};
use farpool_files::beneath::TableCommit;
use farpool_files::{Error, ErrorKind, Pool};
use farpool_wire::control::{NO_PART, PartAt, Replaces};
use farpool_wire::limits::SUMMARY_BYTES_MAX;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// Change of a column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnChange {
    /// A column comes behind the others. It may have nulls: the rows that the table has already have NULL in it.
    Add {
        /// Name of the column, which no other may have.
        name: String,
        /// Type of the column.
        of: DataType,
    },
    /// A column goes.
    Drop {
        /// Name of the column.
        name: String,
    },
    /// A column gets another name.
    Rename {
        /// Name of the column.
        name: String,
        /// Its name from now on, which no other may have.
        to: String,
    },
    /// A column gets a wider type, which has each value of the present one: an integer or a float with more bits, a
    /// decimal of a higher precision, or a timestamp in s or ms in place of a date.
    Widen {
        /// Name of the column.
        name: String,
        /// Its type from now on.
        to: DataType,
    },
    /// A column may have nulls from now on. Nothing changes if it may have them already.
    AllowNulls {
        /// Name of the column.
        name: String,
    },
}

/// Formats what is done, in a few words.
impl fmt::Display for ColumnChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ColumnChange::Add { name, of } => write!(f, "add column {name} {of}"),
            ColumnChange::Drop { name } => write!(f, "drop column {name}"),
            ColumnChange::Rename { name, to } => write!(f, "rename column {name} to {to}"),
            ColumnChange::Widen { name, to } => write!(f, "widen column {name} to {to}"),
            ColumnChange::AllowNulls { name } => write!(f, "allow nulls in column {name}"),
        }
    }
}

/// Changes columns of a table, one change after the other. No row is written anew. Readers that have opened the table,
/// and its earlier snapshots, keep their columns.
///
/// Errors: [`ErrorKind::NotFound`] if there is no such table; [`ErrorKind::Invalid`] if there is no such column or one
/// of that name already, if a type cannot be stored or widened so, if no column would be left, or if there is no
/// change.
pub fn alter_table(
    pool: &Pool,
    name: &str,
    changes: &[ColumnChange],
    options: &PutOptions,
) -> Result<Committed, Error> {
    let alter = || {
        let mut commit = TableCommit::begin(pool, None)?;
        for rebases in 0..REBASES_MAX {
            let found = find_table(pool, name, options.key.as_ref())?;
            let (mut root, mut used) = (found.root(), BTreeSet::new());
            let (file, former) = match &found {
                Found::Snapshot(before) => (before.root_id(), NO_PART),
                // The file becomes the first part of the table.
                Found::OneFile(id, _, _, data) => {
                    let at = PartAt { commit: commit.id(), index: 0 };
                    root.table = commit.new_table(0);
                    root.entries = Entries::Files(vec![DataFile { at, ..data.clone() }]);
                    (*id, at.index)
                }
            };
            let used = || {
                if let Found::Snapshot(before) = &found {
                    let mut add = |walked: Walked<'_>| {
                        if let Walked::File(file) = walked {
                            used.insert(file.columns);
                        }
                    };
                    manifest::walk(&root.entries, &mut before.pages(), &mut add)?;
                }
                Ok::<_, Error>(used)
            };
            let root = altered(&root, changes, used)?;
            let (replaces, entries) = (Replaces::Only(file), root.entries.clone());
            let base = Base { pool, name, replaces, former, root, options, recipe: None };
            let (mut new, removed) = (NewFiles::default(), Removed::default());
            let made =
                base.commit_entries(&mut commit, &mut new, removed, &summary(changes), |_, _, _| Ok(entries));
            match made {
                Err(error) if error.kind() == ErrorKind::Conflict => base.wait(rebases)?,
                other => return other,
            }
        }
        Err(changed_too_often())
    };
    alter().map_err(|error: Error| error.during(format_args!("changing columns of far table {name:?}")))
}

/// Returns what the changes are, in as many bytes as a summary may have.
fn summary(changes: &[ColumnChange]) -> String {
    let mut summary = changes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    summary.truncate(summary.floor_char_boundary(SUMMARY_BYTES_MAX));
    summary
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

/// Returns the root with other columns, over the same files. `used` is that of [`FieldIds::with_new_list`].
fn altered(
    root: &Root,
    changes: &[ColumnChange],
    used: impl FnOnce() -> Result<BTreeSet<u16>, Error>,
) -> Result<Root, Error> {
    if changes.is_empty() {
        return Err(invalid("no change of a column was given".to_owned()));
    }
    let fields = root.schema.fields().iter().map(|field| field.as_ref().clone());
    let mut columns: Vec<(u32, Field)> = root.field_ids.of_columns().iter().copied().zip(fields).collect();
    // Rows that lie in rows have no nulls, so rows that may have some lie in columns from now on.
    let (mut next, mut layout) = (root.field_ids.next, root.layout);
    for change in changes {
        match change {
            ColumnChange::Add { name, of } => {
                check_is_new(&columns, name)?;
                columns.push((next, Field::new(name, of.clone(), true)));
                next = next.checked_add(1).ok_or_else(|| {
                    invalid(format!("the table has had {next} columns, and more are not permitted"))
                })?;
                layout = TableLayout::Columns;
            }
            ColumnChange::Drop { name } => {
                let place = place_of(&columns, name)?;
                columns.remove(place);
            }
            ColumnChange::Rename { name, to } => {
                let place = place_of(&columns, name)?;
                check_is_new(&columns, to)?;
                let (_, field) = &mut columns[place];
                *field = field.clone().with_name(to);
            }
            ColumnChange::Widen { name, to } => {
                let place = place_of(&columns, name)?;
                let (_, field) = &mut columns[place];
                check_widening(field.data_type(), to)
                    .map_err(|why| invalid(format!("column {name:?}: {why}")))?;
                *field = field.clone().with_data_type(to.clone());
            }
            ColumnChange::AllowNulls { name } => {
                let place = place_of(&columns, name)?;
                let (_, field) = &mut columns[place];
                if !field.is_nullable() {
                    *field = field.clone().with_nullable(true);
                    layout = TableLayout::Columns;
                }
            }
        }
    }
    let (ids, fields): (Vec<u32>, Vec<Field>) = columns.into_iter().unzip();
    let schema = Arc::new(stored_schema(&Schema::new(fields))?);
    let place = |column: &u16| {
        let id = root.field_ids.of_columns().get(usize::from(*column))?;
        ids.iter().position(|of| of == id).map(|place| place as u16)
    };
    let bounded: Vec<u16> = root.bounded.iter().filter_map(place).collect();
    let arrangement = Arrangement {
        partition_by: root.arrangement.partition_by.iter().filter_map(place).collect(),
        // Rows that are sorted by several columns are sorted by the first ones of them, and not by the others alone.
        sort_by: root.arrangement.sort_by.iter().map_while(place).collect(),
    };
    // Files tell by their list which of them have the narrower type, so that a compaction finds them.
    let is_widened = changes.iter().any(|change| matches!(change, ColumnChange::Widen { .. }));
    let field_ids = match is_widened {
        true => root.field_ids.with_new_list(ids, used)?,
        false => root.field_ids.with_columns(ids, used)?,
    };
    let field_ids = FieldIds { next, ..field_ids };
    let entries = root.entries.clone();
    let mut altered = Root { schema, field_ids, layout, bounded, arrangement, entries, ..root.clone() };
    let (before, after) = (root.bounded_columns(), altered.bounded_columns());
    if let Entries::Files(files) = &mut altered.entries {
        files.iter_mut().for_each(|file| file.bounds = after.converted(&before, &file.bounds));
    }
    Ok(altered)
}

/// Returns the place of the column with this name.
fn place_of(columns: &[(u32, Field)], name: &str) -> Result<usize, Error> {
    let mut places = (0..columns.len()).filter(|place| columns[*place].1.name() == name);
    match (places.next(), places.next()) {
        (Some(place), None) => Ok(place),
        (Some(_), Some(_)) => Err(invalid(format!("several columns have the name {name:?}"))),
        (None, _) => {
            let known: Vec<&str> = columns.iter().map(|(_, field)| field.name().as_str()).collect();
            Err(invalid(format!("no column {name:?}; the columns are {}", known.join(", "))))
        }
    }
}

fn check_is_new(columns: &[(u32, Field)], name: &str) -> Result<(), Error> {
    match columns.iter().any(|(_, field)| field.name() == name) {
        true => Err(invalid(format!("there is a column {name:?} already"))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partitions::partition_of;
    use crate::schema_mapping::{FileColumns, InFile};
    use crate::snapshot::root_of_one_file;
    use crate::statistics::Statistics;
    use arrow_schema::{SchemaRef, TimeUnit};
    use farpool_encryption::SALT_BYTES;
    use farpool_operators::Value;
    use farpool_wire::CommitId;
    use proptest::prelude::*;

    fn column(name: &str, of: DataType) -> Field {
        Field::new(name, of, false)
    }

    fn root(layout: TableLayout) -> Root {
        let columns =
            vec![column("a", DataType::Int8), column("b", DataType::Date32), column("c", DataType::UInt16)];
        root_of_one_file(Arc::new(Schema::new(columns)), layout)
    }

    fn change(root: &Root, change: ColumnChange) -> Result<Root, Error> {
        altered(root, &[change], || panic!("there is room for lists"))
    }

    fn name(name: &str) -> String {
        name.to_owned()
    }

    #[test]
    fn change_that_is_not_possible_says_why() {
        let root = root(TableLayout::Columns);
        let twice = Schema::new(vec![column("a", DataType::Int8), column("a", DataType::Int8)]);
        let twice = root_of_one_file(Arc::new(twice), TableLayout::Columns);
        let microseconds = DataType::Timestamp(TimeUnit::Microsecond, None);
        let refused: [(&Root, Vec<ColumnChange>, &str); 10] = [
            (&root, Vec::new(), "no change"),
            (&root, vec![ColumnChange::Drop { name: name("d") }], "no column \"d\"; the columns are a, b, c"),
            (&twice, vec![ColumnChange::Drop { name: name("a") }], "several columns have the name \"a\""),
            (&root, vec![ColumnChange::Rename { name: name("a"), to: name("b") }], "a column \"b\" already"),
            (
                &root,
                vec![ColumnChange::Add { name: name("c"), of: DataType::Int8 }],
                "a column \"c\" already",
            ),
            (
                &root,
                vec![ColumnChange::Add { name: name("d"), of: DataType::Float16 }],
                "\"d\" is of type Float16",
            ),
            (
                &root,
                vec![ColumnChange::Widen { name: name("c"), to: DataType::Int64 }],
                "both signed or both unsigned",
            ),
            (
                &root,
                vec![ColumnChange::Widen { name: name("a"), to: DataType::Int8 }],
                "of type Int8 already",
            ),
            (
                &root,
                vec![ColumnChange::Widen { name: name("b"), to: microseconds }],
                "the midnight of each date",
            ),
            (&root, ["a", "b", "c"].map(|of| ColumnChange::Drop { name: name(of) }).to_vec(), "0 columns"),
        ];
        for (root, changes, expected) in refused {
            let error = altered(root, &changes, || panic!("not asked")).expect_err(expected);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn table_in_rows_lies_in_columns_once_it_may_have_nulls() {
        let rows = root(TableLayout::Rows);
        let wider =
            change(&rows, ColumnChange::Widen { name: name("a"), to: DataType::Int64 }).expect("wider");
        let less = change(&wider, ColumnChange::Drop { name: name("b") }).expect("less");
        assert_eq!(less.layout, TableLayout::Rows);
        let more = change(&less, ColumnChange::Add { name: name("d"), of: DataType::Utf8 }).expect("more");
        let nulls = change(&less, ColumnChange::AllowNulls { name: name("a") }).expect("nulls");
        assert_eq!((more.layout, nulls.layout), (TableLayout::Columns, TableLayout::Columns));
    }

    #[test]
    fn partitions_and_order_stay_with_their_columns() {
        let named = |root: &Root| {
            let Arrangement { partition_by, sort_by } = &root.arrangement;
            [partition_by, sort_by, &root.bounded].map(|columns| {
                let of = |column: &u16| root.schema.field(usize::from(*column)).name().as_str();
                columns.iter().map(of).collect::<Vec<_>>().join(" ")
            })
        };
        let arrangement = Arrangement { partition_by: vec![2, 0], sort_by: vec![1] };
        let mut now = Root { bounded: vec![2, 0, 1], arrangement, ..root(TableLayout::Columns) };
        for (made, expected) in [
            (ColumnChange::Add { name: name("d"), of: DataType::Int8 }, ["c a", "b", "c a b"]),
            (ColumnChange::Rename { name: name("c"), to: name("e") }, ["e a", "b", "e a b"]),
            (ColumnChange::Widen { name: name("a"), to: DataType::Int64 }, ["e a", "b", "e a b"]),
            (ColumnChange::Drop { name: name("a") }, ["e", "b", "e b"]),
            (ColumnChange::Drop { name: name("b") }, ["e", "", "e"]),
            (ColumnChange::Drop { name: name("e") }, ["", "", ""]),
        ] {
            now = change(&now, made).expect("permitted");
            assert_eq!(named(&now), expected);
        }
        let arrangement = Arrangement { partition_by: Vec::new(), sort_by: vec![0, 1, 2] };
        let sorted = Root { arrangement, ..root(TableLayout::Columns) };
        let less = change(&sorted, ColumnChange::Drop { name: name("b") }).expect("permitted");
        assert_eq!(named(&less), ["", "a", "a c"], "rows are not sorted by the third column alone");
    }

    #[test]
    fn file_is_of_the_same_partition_after_its_column_was_widened() {
        let only = |value| Statistics {
            min: Value::Integer(value),
            max: Value::Integer(value),
            is_min_truncated: false,
            is_max_truncated: false,
            has_nan: false,
        };
        let file = |value| DataFile {
            at: PartAt { commit: CommitId(1), index: 0 },
            added: 1,
            rows: 10,
            bytes: 1_000,
            groups: 1,
            columns: 0,
            left_out: Vec::new(),
            salt: [0; SALT_BYTES],
            bounds: vec![None, Some(only(value)), None],
        };
        let arrangement = Arrangement { partition_by: vec![1], sort_by: Vec::new() };
        let entries = Entries::Files(vec![file(2)]);
        let days = Root { arrangement, entries, ..root(TableLayout::Columns) };
        let to = DataType::Timestamp(TimeUnit::Second, None);
        let seconds = change(&days, ColumnChange::Widen { name: name("b"), to }).expect("permitted");
        let Entries::Files(files) = &seconds.entries else { panic!("one file") };
        let of = |file: &DataFile| partition_of(&seconds, file);
        assert_eq!(of(&files[0]), of(&file(2 * 86_400)), "as a file that is written from now on");
        assert_ne!(of(&files[0]), of(&file(2)));
    }

    #[test]
    fn file_tells_by_its_list_that_it_has_a_narrower_type_whatever_was_changed_since() {
        let mut now = root(TableLayout::Columns);
        let ids = now.field_ids.of_columns().to_vec();
        for made in [
            ColumnChange::Add { name: name("d"), of: DataType::Int8 },
            ColumnChange::Widen { name: name("a"), to: DataType::Int64 },
            ColumnChange::Drop { name: name("d") },
        ] {
            now = change(&now, made).expect("permitted");
        }
        assert_eq!(now.field_ids.of_columns(), ids);
        assert_ne!(now.field_ids.own, 0, "the list of the files with the narrower type");
        let own = now.field_ids.own;
        for made in [
            ColumnChange::Rename { name: name("b"), to: name("e") },
            ColumnChange::Add { name: name("f"), of: DataType::Int8 },
            ColumnChange::Drop { name: name("f") },
        ] {
            now = change(&now, made).expect("permitted");
        }
        assert_eq!(now.field_ids.own, own, "nothing was widened since");
    }

    #[test]
    fn summary_is_cut_where_a_character_begins() {
        let long = ColumnChange::Drop { name: "ä".repeat(600) };
        let cut = summary(&[ColumnChange::Drop { name: name("ab") }, long]);
        assert!(cut.starts_with("drop column ab, drop column ää") && cut.len() <= SUMMARY_BYTES_MAX);
        assert!(cut.len() > SUMMARY_BYTES_MAX - 2);
    }

    /// Column of the model: its id for the whole life of the table, and what it is now.
    #[derive(Clone, Debug, PartialEq)]
    struct Known {
        id: usize,
        name: String,
        of: DataType,
    }

    /// Returns the change of a step, and makes it in the model. `None` if the step cannot be made.
    fn step(columns: &mut Vec<Known>, ids: &mut usize, (kind, place): (u8, usize)) -> Option<ColumnChange> {
        let place = place % columns.len();
        let before = columns[place].name.clone();
        match kind {
            0 => {
                let (name, of) = (format!("column {ids}"), DataType::Int8);
                columns.push(Known { id: *ids, name: name.clone(), of: of.clone() });
                *ids += 1;
                Some(ColumnChange::Add { name, of })
            }
            1 if columns.len() > 1 => Some(ColumnChange::Drop { name: columns.remove(place).name }),
            2 => {
                columns[place].name = format!("{before}'");
                Some(ColumnChange::Rename { name: before.clone(), to: format!("{before}'") })
            }
            3 => {
                let to = match columns[place].of {
                    DataType::Int8 => DataType::Int16,
                    DataType::Int16 => DataType::Int64,
                    DataType::UInt16 => DataType::UInt32,
                    DataType::Date32 => DataType::Timestamp(TimeUnit::Second, None),
                    _ => return None,
                };
                columns[place].of = to.clone();
                Some(ColumnChange::Widen { name: before, to })
            }
            4 => Some(ColumnChange::AllowNulls { name: before }),
            _ => None,
        }
    }

    proptest! {
        /// A file is written with the columns of each moment. At every later moment each column is found in each of the
        /// files in which the model has it, and in no other.
        #[test]
        fn columns_are_found_in_files_of_all_earlier_moments(
            steps in proptest::collection::vec((0u8..6, 0usize..100), 1..30)
        ) {
            let mut now = root(TableLayout::Columns);
            let names = now.schema.fields().iter().zip(0..);
            let mut columns: Vec<Known> = names
                .map(|(field, id)| Known { id, name: field.name().clone(), of: field.data_type().clone() })
                .collect();
            let mut ids = columns.len();
            let mut files: Vec<(SchemaRef, u16, Vec<Known>)> = Vec::new();
            for picked in steps {
                files.push((Arc::clone(&now.schema), now.field_ids.own, columns.clone()));
                let Some(made) = step(&mut columns, &mut ids, picked) else { continue };
                now = change(&now, made).expect("permitted");
                let fields = now.schema.fields().iter();
                let found: Vec<_> = fields.map(|field| (field.name().clone(), field.data_type().clone())).collect();
                let expected: Vec<_> = columns.iter().map(|known| (known.name.clone(), known.of.clone())).collect();
                prop_assert_eq!(found, expected);
                for (schema, list, had) in &files {
                    let file = FileColumns::find(&now.schema, &now.field_ids, *list, schema).expect("a file of it");
                    for (place, known) in columns.iter().enumerate() {
                        let expected = match had.iter().position(|column| column.id == known.id) {
                            None => InFile::Nowhere,
                            Some(in_file) if had[in_file].of == known.of => InFile::Same(in_file),
                            Some(in_file) => InFile::Narrower(in_file),
                        };
                        prop_assert_eq!(file.place(place), expected);
                    }
                }
                // The first columns are bounded, as long as they are there.
                let bounded: Vec<&str> =
                    now.bounded.iter().map(|column| now.schema.field(usize::from(*column)).name().as_str()).collect();
                let expected: Vec<&str> =
                    columns.iter().filter(|known| known.id < 3).map(|known| known.name.as_str()).collect();
                prop_assert_eq!(bounded, expected);
            }
        }
    }
}
