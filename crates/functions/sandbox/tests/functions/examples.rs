//! Tests of the example functions, as modules built by `examples/functions/build.sh`: their outputs in a real sandbox
//! are compared with those of plain Rust.

use crate::pool::*;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use farpool::Placement;
use farpool::TransportChoice::{Shm, Tcp};
use farpool::function::{CallOptions, Function};
use farpool_tests::programs::PATIENCE;
use std::path::PathBuf;
use std::sync::Arc;

const SHIP: CallOptions =
    CallOptions { placement: Placement::Ship, at: None, fresh: false, deadline: PATIENCE };

/// Reads a module from the folder that `FARPOOL_FUNCTIONS` names.
fn example(name: &str, entry: &str) -> Function {
    let folder = std::env::var_os("FARPOOL_FUNCTIONS").map(PathBuf::from);
    let folder = folder.expect("FARPOOL_FUNCTIONS names the folder of modules: `make test` builds them");
    let file = folder.join(format!("{name}.wasm"));
    let bytes = std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    Function::wasm(bytes, entry).unwrap()
}

#[test]
fn walk_in_c_gives_what_the_resident_one_gives_over_two_nodes() {
    let running = Running::start(2, sandbox());
    let pool = running.connect(Tcp);
    let list = list(100_000, 64);
    let caller = publish(&pool, "list", &list).caller(Default::default()).unwrap();
    assert_eq!(caller.nodes().len(), 2);
    let wanted = walked(&list, 0, 200);
    for hops in [0, 1] {
        let called = caller.call(&example("walk", "walk"), &bytes_of(&[0, 200, hops]), SHIP).unwrap();
        assert_eq!(words_of(&called.output), wanted);
        assert_eq!(called.hops > 0, hops == 1, "{called:?}");
    }
}

#[test]
fn sums_in_c_are_those_of_rust_at_a_node_and_here() {
    let running = Running::start(1, sandbox());
    let pool = running.connect(Shm);
    let numbers: Vec<u64> =
        (0..200_000u64).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    let caller = publish(&pool, "numbers", &bytes_of(&numbers)).caller(Default::default()).unwrap();
    let threshold = 1i64 << 60;
    let passing: Vec<i64> = numbers.iter().map(|n| *n as i64).filter(|n| *n > threshold).collect();
    let sum = passing.iter().fold(0i64, |sum, n| sum.wrapping_add(*n)) as u64;
    for placement in [Placement::Ship, Placement::Fetch] {
        let options = CallOptions { placement, ..SHIP };
        let all =
            caller.call(&example("sum", "sum"), &bytes_of(&[0, numbers.len() as u64]), options).unwrap();
        assert_eq!(words_of(&all.output)[0], numbers.iter().fold(0u64, |sum, n| sum.wrapping_add(*n)));
        let args = bytes_of(&[0, numbers.len() as u64, threshold as u64]);
        let some = caller.call(&example("filter_sum", "filter_sum"), &args, options).unwrap();
        assert_eq!(words_of(&some.output), [sum, passing.len() as u64]);
    }
}

/// Placements to try: the automatic one before any call, both forced ones, and the automatic one afterwards.
const PLACEMENTS: [Placement; 4] = [Placement::Auto, Placement::Ship, Placement::Fetch, Placement::Auto];

/// Regression: choosing a placement once limited the output to the size of the window. The helpers of both SDKs check
/// that limit and give up with a code, which looked like a code of the function's own.
#[test]
fn output_of_300_000_bytes_over_a_window_of_4_kib_comes_whole_from_c_wherever_it_runs() {
    let running = Running::start(1, sandbox());
    let pool = running.connect(Tcp);
    // Layout of a B-tree's leaf: its kind and number of entries, 255 keys, and a value for each key.
    let (entries, looked_up) = (255u64, 37_000u64);
    let mut leaf = bytes_of(&[2 | entries << 16, 0]);
    leaf.extend(bytes_of(&(0..entries).map(|entry| entry * 2).collect::<Vec<_>>()));
    leaf.extend(bytes_of(&(0..entries).map(|entry| entry + 1_000).collect::<Vec<_>>()));
    assert_eq!(leaf.len(), 4_096);
    let caller = publish(&pool, "tree", &leaf).caller(Default::default()).unwrap();
    let keys: Vec<u64> = (0..looked_up).map(|number| number % 600).collect();
    let found = |key: &u64| key.is_multiple_of(2) && key / 2 < entries;
    let mut wanted =
        bytes_of(&keys.iter().map(|key| if found(key) { key / 2 + 1_000 } else { 0 }).collect::<Vec<_>>());
    for eight in keys.chunks(8) {
        wanted.push(eight.iter().enumerate().map(|(bit, key)| u8::from(found(key)) << bit).sum());
    }
    assert!(wanted.len() > 300_000);
    let args = [bytes_of(&[0]), bytes_of(&keys)].concat();
    for placement in PLACEMENTS {
        let called =
            caller.call(&example("btree", "btree"), &args, CallOptions { placement, ..SHIP }).unwrap();
        assert!(called.output == wanted, "{placement:?}");
    }
}

/// Regression: choosing a placement once limited the output to the size of the window. This is the test for functions
/// in Rust.
#[test]
fn output_of_300_000_bytes_over_a_table_of_64_kib_comes_whole_from_rust_wherever_it_runs() {
    let running = Running::start(1, sandbox());
    let pool = running.connect(Tcp);
    let schema = Arc::new(Schema::new(vec![Field::new("amount", DataType::Int64, false)]));
    let column: ArrayRef = Arc::new((0..512).rev().collect::<Int64Array>());
    pool.put_table("amounts", Arc::clone(&schema), [RecordBatch::try_new(schema, vec![column]).unwrap()])
        .unwrap();
    let caller = pool.table("amounts").unwrap().caller(&["amount"], Default::default()).unwrap();
    assert!(caller.window_bytes() < 100_000, "{} bytes", caller.window_bytes());
    let percentiles = 37_500;
    let fraction = |number: usize| (number % 512 + 1) as f64 / 512.0;
    // The arguments are the number of the column, then the fraction for each percentile.
    let mut args = vec![0; 8];
    args.extend((0..percentiles).flat_map(|number| fraction(number).to_le_bytes()));
    let mut wanted = bytes_of(&[512]);
    wanted.extend((0..percentiles).flat_map(|number| ((number % 512) as f64).to_le_bytes()));
    let function = example("rust/percentiles", "percentiles");
    for placement in PLACEMENTS {
        let called = caller.call(&function, &args, CallOptions { placement, ..SHIP }).unwrap();
        assert!(called.output == wanted, "{placement:?}");
    }
}

#[test]
fn nearest_neighbours_are_the_same_with_vectors_and_without() {
    let running = Running::start(1, sandbox());
    let pool = running.connect(Tcp);
    let mut random = 1u32;
    let mut next = || {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 8) as f32 / (1 << 24) as f32
    };
    let (dimensions, count) = (24u32, 3_000u64);
    let vectors: Vec<f32> = (0..count * u64::from(dimensions)).map(|_| next()).collect();
    let bytes: Vec<u8> = vectors.iter().flat_map(|number| number.to_le_bytes()).collect();
    let caller = publish(&pool, "vectors", &bytes).caller(Default::default()).unwrap();
    // Arguments: offset of the first vector, number of vectors, their dimensions, the number of neighbours wanted (5),
    // and the vector whose neighbours are wanted, which is number 1,234.
    let mut args = bytes_of(&[0, count]);
    args.extend(dimensions.to_le_bytes());
    args.extend(5u32.to_le_bytes());
    args.extend(&bytes[1_234 * 96..1_235 * 96]);
    let plain = caller.call(&example("knn", "knn"), &args, SHIP).unwrap().output;
    let vectored = caller.call(&example("knn.simd", "knn"), &args, SHIP).unwrap().output;
    assert_eq!(plain, vectored);
    assert_eq!((plain.len(), &plain[..8], &plain[8..12]), (80, &1_234u64.to_le_bytes()[..], &[0; 4][..]));
}

#[test]
fn json_path_finds_values_of_a_text_column_of_a_far_table() {
    let running = Running::start(1, sandbox());
    let pool = running.connect(Tcp);
    let schema = Arc::new(Schema::new(vec![Field::new("body", DataType::Utf8, true)]));
    let document = |row: usize| match row % 3 {
        0 => Some(format!("{{\"user\": {{\"id\": \"u{row}\"}}}}")),
        1 => Some("{\"user\": {}}".to_owned()),
        _ => None,
    };
    let column: ArrayRef = Arc::new((0..3_000).map(document).collect::<StringArray>());
    pool.put_table("events", Arc::clone(&schema), [RecordBatch::try_new(schema, vec![column]).unwrap()])
        .unwrap();
    let caller = pool.table("events").unwrap().caller(&["body"], Default::default()).unwrap();
    // The arguments are the number of the column and the path.
    let args = [&[0; 8][..], b"user.id"].concat();
    let called = caller.call_each(&example("json_path", "json_path"), &args, SHIP).unwrap();
    let output = &called[0].output;
    assert_eq!(words_of(&output[..16]), [3_000, 2_000], "rows, and how many of them have none");
    let offset =
        |row: usize| u32::from_le_bytes(output[16 + 4 * row..20 + 4 * row].try_into().unwrap()) as usize;
    let texts = output.len() - offset(3_000);
    for row in 0..3_000 {
        let text = &output[texts + offset(row)..texts + offset(row + 1)];
        let wanted = if row % 3 == 0 { format!("u{row}") } else { String::new() };
        assert_eq!(text, wanted.as_bytes(), "row {row}");
    }
}
