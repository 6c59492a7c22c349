//! Tests of skipping: no row group with a row that passes is skipped, and row groups that should be skipped are.

#[path = "../../operators/tests/tables/mod.rs"]
#[allow(dead_code)]
mod tables;

/// Type that the generator of random programs expects in a module of this name. The oracle itself is not needed here.
mod oracle {
    pub type Row = Vec<Option<farpool_tables::operators::Value>>;
}

use arrow_array::RecordBatch;
use farpool_tables::operators::run::{Bounds, Prepared, Run};
use farpool_tables::operators::*;
use farpool_tables::{RowGroup, RowGroupEncoder, may_pass};
use oracle::Row;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn groups(batch: &RecordBatch) -> Vec<RowGroup> {
    let mut packer = RowGroupEncoder::new(batch.schema(), 16 << 20).expect("a schema");
    let mut groups = Vec::new();
    let mut take = |encoded: farpool_tables::EncodedGroup| {
        groups.push(encoded.group);
        Ok(())
    };
    packer.push(batch, &mut take).expect("pushed");
    packer.finish(&mut take).expect("finished");
    groups
}

/// Counts the rows that pass; `None` if a value does not fit its type.
fn passing(program: Program, batch: &RecordBatch) -> Option<usize> {
    let prepared = Arc::new(Prepared::new(Arc::new(program)).expect("prepared"));
    let mut run = Run::new(prepared, Vec::new(), Bounds::default()).expect("a run");
    let leaving = run.push(batch, 0).ok()?;
    Some(leaving.iter().map(RecordBatch::num_rows).sum())
}

/// Keeps only the operators that decide which rows pass.
fn filters(program: &Program) -> Program {
    let is_filter = |operator: &&Operator| matches!(operator, Operator::Filter(_) | Operator::Project(_));
    let operators = program.operators().iter().filter(is_filter).cloned().collect();
    Program::check(program.input().to_vec(), operators).expect("a part of a program is one")
}

static SKIPPED: AtomicUsize = AtomicUsize::new(0);

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    fn no_row_of_a_skipped_group_passes((program, rows, _) in tables::cases(), few in 1..4usize) {
        let program = filters(&program);
        let types = program.input().to_vec();
        // Groups of few rows have narrow bounds.
        for rows in rows.chunks(few) {
            let batch = tables::batch(&types, rows, false);
            for group in groups(&batch) {
                if !may_pass(&program, &[], &group) {
                    SKIPPED.fetch_add(1, Ordering::Relaxed);
                    let found = passing(program.clone(), &batch);
                    prop_assert!(matches!(found, None | Some(0)), "{:?} of {:?} pass {:?}", found, rows, program);
                }
            }
        }
    }
}

static APART: AtomicUsize = AtomicUsize::new(0);

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    fn no_row_of_a_skipped_group_is_among_the_keys(
        (program, rows, _) in tables::cases(), others in 0..3usize, few in 1..4usize,
        keys in proptest::collection::vec(any::<prop::sample::Index>(), 1..3), is_anti in any::<bool>(),
    ) {
        let types = program.input().to_vec();
        if types.is_empty() {
            return Ok(());
        }
        let keys: Vec<usize> = keys.iter().map(|key| key.index(types.len())).collect();
        let other = tables::batch(&types, &rows[..others.min(rows.len())], false);
        let columns: Vec<(usize, Type)> = keys.iter().map(|key| (*key, types[*key])).collect();
        let set = Arc::new(KeySet::new(&columns, &other.schema(), &[other]).expect("the same types"));
        let keys = keys.iter().map(|key| *key as u16).collect();
        let join = Operator::SemiJoin { keys, lookup: JoinLookup::Keys, number: 0, is_anti };
        let program = Program::check(types.clone(), vec![join]).expect("a program");
        for rows in rows.chunks(few) {
            let batch = tables::batch(&types, rows, false);
            for group in groups(&batch) {
                if !may_pass(&program, std::slice::from_ref(&set), &group) {
                    APART.fetch_add(1, Ordering::Relaxed);
                    let prepared = Arc::new(Prepared::new(Arc::new(program.clone())).expect("prepared"));
                    let lookups = vec![set.table(1).expect("keys")];
                    let mut run = Run::new(prepared, lookups, Bounds::default()).expect("a run");
                    let found = run.push(&batch, 0).expect("pushed");
                    prop_assert!(found.is_empty(), "{:?} are among {:?}", rows, set);
                }
            }
        }
    }
}

#[test]
fn random_keys_pass_over_groups_in_which_none_of_them_is() {
    no_row_of_a_skipped_group_is_among_the_keys();
    let apart = APART.load(Ordering::Relaxed);
    assert!(apart > 4_000, "{apart} groups were passed over");
}

/// Checks that `no_row_of_a_skipped_group_passes` has skipped enough groups to mean something.
#[test]
fn random_filters_pass_over_groups_of_which_no_row_passes() {
    no_row_of_a_skipped_group_passes();
    let skipped = SKIPPED.load(Ordering::Relaxed);
    assert!(skipped > 4_000, "{skipped} groups were passed over");
}

fn integer(of: Type, value: i128) -> Value {
    assert!(Scalar { of, value: Some(Value::Integer(value)) }.is_valid());
    Value::Integer(value)
}

/// Reports whether a query with this filter reads a group of one column with these values.
fn is_read(of: Type, values: Vec<Option<Value>>, filter: Expr) -> bool {
    let rows: Vec<Row> = values.into_iter().map(|value| vec![value]).collect();
    let batch = tables::batch(&[of], &rows, false);
    let plan = Query::over(vec![("c".to_owned(), of)]).filter(filter).plan().expect("a plan");
    let found = groups(&batch).iter().any(|group| may_pass(&plan.near, &[], group));
    let passing = passing(plan.near, &batch).expect("every value fits");
    assert!(found || passing == 0, "{passing} rows pass");
    found
}

fn text(value: &str) -> Option<Value> {
    Some(Value::Bytes(value.as_bytes().to_vec()))
}

#[test]
fn sorted_column_is_read_only_where_its_values_are() {
    let of = Type::Int64;
    let rows: Vec<Row> = (0..300_000).map(|value| vec![Some(integer(of, value))]).collect();
    let groups = groups(&tables::batch(&[of], &rows, false));
    assert_eq!(groups.len(), 5);
    let read = |filter: Expr| {
        let plan = Query::over(vec![("n".to_owned(), of)]).filter(filter).plan().expect("a plan");
        let is_read = |place: &usize| may_pass(&plan.near, &[], &groups[*place]);
        (0..groups.len()).filter(is_read).collect::<Vec<_>>()
    };
    assert_eq!(read(col("n").lt(65_536)), [0]);
    assert_eq!(read(col("n").lt_eq(65_536)), [0, 1]);
    assert_eq!(read(col("n").gt_eq(262_144)), [4]);
    assert_eq!(read(col("n").eq(131_071)), [1]);
    assert_eq!(read(col("n").between(131_071, 131_072)), [1, 2]);
    assert_eq!(read(col("n").in_list([1, 299_999])), [0, 4]);
    assert_eq!(read(col("n").lt(10).or(col("n").gt(290_000))), [0, 4]);
    assert_eq!(read(!col("n").lt(262_144)), [4]);
    assert_eq!(read(col("n").is_null()), [] as [usize; 0]);
    assert_eq!(read(col("n").gt(1e6)), [] as [usize; 0]);
    assert_eq!(read(col("n").gt(lit(Literal::Null))), [] as [usize; 0]);
    assert_eq!(read((col("n") + 1).lt(0)), [0, 1, 2, 3, 4], "arithmetic may be anything");
}

#[test]
fn filters_behind_a_projection_are_understood() {
    let of = Type::Int32;
    let batch = tables::batch(&[of], &[vec![Some(integer(of, 5))]], false);
    let query =
        Query::over(vec![("c".to_owned(), of)]).select([("d".to_owned(), col("c").cast(Type::Int64))]);
    let plan = query.filter(col("d").gt(5)).plan().expect("a plan");
    assert!(!may_pass(&plan.near, &[], &groups(&batch)[0]));
}

#[test]
fn nan_and_both_zeros_keep_their_group() {
    let float = |value: f64| Some(Value::Float(value.to_bits()));
    let with = |values: &[f64], filter| {
        is_read(Type::Float64, values.iter().map(|value| float(*value)).collect(), filter)
    };
    assert!(with(&[1.0, f64::NAN], col("c").gt(2.0)), "NaN is greater than all else");
    assert!(with(&[1.0, -f64::NAN], col("c").lt(1.0)), "NaN with a sign is less than all else");
    assert!(with(&[f64::NAN], col("c").gt(2.0)) && with(&[-f64::NAN], col("c").lt(2.0)));
    assert!(with(&[1.0, f64::NAN], col("c").eq(f64::NAN)) && with(&[1.0, -f64::NAN], col("c").eq(-f64::NAN)));
    assert!(!with(&[1.0], col("c").eq(f64::NAN)) && !with(&[1.0], col("c").eq(-f64::NAN)));
    assert!(with(&[-0.0], col("c").eq(0.0)) && with(&[0.0], col("c").eq(-0.0)));
    assert!(!with(&[-0.0], col("c").lt(0.0)) && !with(&[0.0], col("c").gt(-0.0)));
    assert!(!with(&[1.0, 2.0], col("c").gt(2.0)));
    assert!(!is_read(Type::Float64, vec![None, None], col("c").gt(0.0)), "NULL is not greater");
    assert!(is_read(Type::Float64, vec![None, None], col("c").is_null()));
}

#[test]
fn decimals_times_and_unsigned_numbers_compare_as_what_they_are() {
    let price = Type::Decimal { precision: 12, scale: 2 };
    let prices = || vec![Some(integer(price, 100)), Some(integer(price, 250))];
    assert!(is_read(price, prices(), col("c").gt(2.49)) && !is_read(price, prices(), col("c").gt(2.5)));
    assert!(is_read(price, prices(), col("c").gt(2.499)) && !is_read(price, prices(), col("c").gt(2.505)));
    let scalar = |of, value| Literal::Scalar(Scalar { of, value: Some(Value::Integer(value)) });
    let fine = Type::Decimal { precision: 12, scale: 4 };
    assert!(!is_read(price, prices(), col("c").gt(Expr::Literal(scalar(fine, 25_001)))));
    assert!(is_read(price, prices(), col("c").gt(Expr::Literal(scalar(fine, 24_999)))));
    let moment = Type::Timestamp { unit: TimeUnit::Microsecond, is_zoned: false };
    let day = || vec![Some(integer(Type::Date, 1))];
    let at = |value| Expr::Literal(scalar(moment, value));
    assert!(is_read(Type::Date, day(), col("c").gt_eq(at(86_400_000_000))));
    assert!(!is_read(Type::Date, day(), col("c").gt(at(86_400_000_000))));
    let most = || vec![Some(integer(Type::UInt64, u64::MAX.into()))];
    assert!(
        is_read(Type::UInt64, most(), col("c").gt(i64::MAX))
            && !is_read(Type::UInt64, most(), col("c").lt(1))
    );
    assert!(
        is_read(Type::UInt64, most(), col("c").gt(-1)) && !is_read(Type::UInt64, most(), col("c").lt(-1))
    );
}

#[test]
fn long_texts_are_bounded_by_their_beginnings() {
    let a = "a".repeat(64);
    let values = || vec![text(&format!("{a}x")), text(&format!("{a}z"))];
    let read = |filter| is_read(Type::Text, values(), filter);
    assert!(read(col("c").eq(format!("{a}y"))) && read(col("c").gt(format!("{a}y"))));
    assert!(read(col("c").lt(format!("{a}y"))), "the least one is known to its beginning");
    assert!(!read(col("c").gt("b")) && !read(col("c").lt(a.clone())));
    assert!(read(col("c").like("aaa%")) && !read(col("c").like("ab%")) && !read(col("c").like("A%")));
    assert!(read(col("c").ilike("A%")) && read(col("c").like("%z")) && read(!col("c").like("a%x")));
    let bytes = vec![Some(Value::Bytes(vec![255; 70]))];
    let literal = Scalar { of: Type::Bytes, value: Some(Value::Bytes(vec![255; 80])) };
    assert!(is_read(Type::Bytes, bytes, col("c").lt(literal)), "nothing is behind all that begin so");
}

#[test]
fn lists_with_null_are_true_or_unknown() {
    let of = Type::Int8;
    let list = || [Literal::Null, Literal::Integer(7)];
    let five = || vec![Some(integer(of, 5)), None];
    assert!(!is_read(of, five(), col("c").in_list(list())));
    assert!(!is_read(of, five(), !col("c").in_list(list())), "not in a list with NULL is never true");
    assert!(is_read(of, five(), !col("c").in_list([7])));
    assert!(!is_read(of, vec![Some(integer(of, 7))], !col("c").in_list([7])));
}
