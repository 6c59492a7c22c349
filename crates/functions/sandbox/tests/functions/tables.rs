//! Tests of functions over columns of far tables.

use crate::pool::*;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use farpool::TransportChoice::Tcp;
use farpool::function::{CallOptions, Function};
use farpool::{Placement, Pool};
use std::sync::Arc;

/// Function that sums an i64 column without nulls and counts its rows, over all row groups in the call's table of
/// columns.
pub const SUM: &str = r#"(module (memory (export "memory") 1) (func (export "sum") (param $call i32) (result i64)
    (local $at i32) (local $groups i32) (local $rows i64) (local $all i64) (local $sum i64) (local $value i32) (local $out i32)
    (local.set $out (i32.wrap_i64 (i64.load offset=40 (local.get $call))))
    (local.set $at (i32.wrap_i64 (i64.load offset=56 (local.get $call))))
    (local.set $groups (i32.load offset=4 (local.get $at)))
    (local.set $at (i32.add (local.get $at) (i32.add (i32.const 8) (i32.mul (i32.const 16) (i32.load (local.get $at))))))
    (block $done (loop $group
      (br_if $done (i32.eqz (local.get $groups)))
      (local.set $rows (i64.load (local.get $at)))
      (local.set $all (i64.add (local.get $all) (local.get $rows)))
      (local.set $value (i32.wrap_i64 (i64.add (i64.load offset=8 (local.get $call)) (i64.load offset=48 (local.get $at)))))
      (block $end (loop $row
        (br_if $end (i64.eqz (local.get $rows)))
        (local.set $sum (i64.add (local.get $sum) (i64.load (local.get $value))))
        (local.set $value (i32.add (local.get $value) (i32.const 8)))
        (local.set $rows (i64.sub (local.get $rows) (i64.const 1)))
        (br $row)))
      (local.set $at (i32.add (local.get $at) (i32.const 96)))
      (local.set $groups (i32.sub (local.get $groups) (i32.const 1)))
      (br $group)))
    (i64.store (local.get $out) (local.get $sum))
    (i64.store offset=8 (local.get $out) (local.get $all))
    (i64.const 16)))"#;

/// Puts the table `amounts`, whose 400,000 amounts are 0, 1, 2 and so on.
pub fn put_amounts(pool: &Pool) {
    let schema = Arc::new(Schema::new(vec![
        Field::new("name", DataType::Utf8, false),
        Field::new("amount", DataType::Int64, false),
    ]));
    let batch = |from: i64| {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(from..from + 50_000));
        let names: ArrayRef =
            Arc::new(StringArray::from_iter_values((0..50_000).map(|n| format!("n{}", n % 7))));
        RecordBatch::try_new(Arc::clone(&schema), vec![names, numbers]).unwrap()
    };
    let batches: Vec<RecordBatch> = (0..8).map(|index| batch(index * 50_000)).collect();
    pool.put_table("amounts", Arc::clone(&schema), batches).unwrap();
}

#[test]
fn column_of_two_nodes_is_summed_at_each_here_shared_and_at_one_of_them_alike() {
    let running = Running::start(2, sandbox());
    let pool = running.connect(Tcp);
    put_amounts(&pool);
    let table = pool.table("amounts").unwrap();
    let caller = table.caller(&["amount"], Default::default()).unwrap();
    assert_eq!(caller.nodes().len(), 2);
    let sum = Function::wasm(module(SUM), "sum").unwrap();
    let (wanted, rows) = ((0..400_000u64).sum::<u64>(), 400_000);
    let options = |placement| CallOptions { placement, ..CallOptions::default() };
    // Split comes first: the columns that it fetches are a part of those that fetching needs later.
    for placement in [Placement::Split, Placement::Ship, Placement::Fetch, Placement::Split] {
        let called = caller.call_each(&sum, &[], options(placement)).unwrap();
        let calls = called.len();
        assert!(
            match placement {
                Placement::Ship => calls == 2,
                Placement::Fetch => calls == 1,
                // A node whose row groups are all fetched is not called.
                _ => calls > 1,
            },
            "{calls} calls: {placement:?}"
        );
        let parts: Vec<Vec<u64>> = called.iter().map(|called| words_of(&called.output)).collect();
        assert_eq!(parts.iter().map(|part| part[0]).sum::<u64>(), wanted);
        assert_eq!(parts.iter().map(|part| part[1]).sum::<u64>(), rows);
        assert!(called.iter().all(|called| called.supplied == 0));
        let here = called.iter().position(|called| called.node.is_none());
        assert_eq!(here, (placement != Placement::Ship).then_some(calls - 1), "{placement:?}");
        assert!(parts.iter().all(|part| part[1] > 0), "{placement:?}");
    }
    // Runs at one node over all row groups. The other node's bytes must be supplied.
    let called = caller.call(&sum, &[], options(Placement::Ship)).unwrap();
    assert_eq!(words_of(&called.output), [wanted, rows]);
    assert!(called.supplied > 0);
    let error = caller.call(&sum, &[], options(Placement::Split)).err().unwrap();
    assert!(error.to_string().contains("call_each"), "{error}");
    let error = table.caller(&["price"], Default::default()).err().unwrap();
    assert!(error.to_string().contains("no column \"price\"; the columns are name, amount"), "{error}");
}
