//! Programs over random tables, compared with the oracle, however rows are split into batches, batches are given to
//! runs, and partial results are ordered.

mod oracle;
mod tables;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use farpool_operators::packed::{BatchPacker, unpack};
use farpool_operators::run::{Keys, LookupTable, Lookups};
use farpool_operators::{Bounds, Merge, Operator, Prepared, Program, Run, Stopped};
use oracle::{Outcome, Row, Stop};
use proptest::prelude::*;
use std::sync::Arc;

/// Split of a table: the number of rows of each batch and the run that gets it, and the order of partial results.
#[derive(Clone, Debug)]
struct Division {
    batches: Vec<(usize, usize)>,
    rotation: usize,
    is_dictionary: bool,
    held_bytes_max: usize,
    /// Bytes of the chunks that partial results are packed into.
    chunk_bytes: usize,
    seed: u64,
}

fn divisions() -> impl Strategy<Value = Division> {
    let batches = prop::collection::vec((0..40usize, 0..3usize), 1..8);
    let held = prop_oneof![Just(1usize), Just(8_000), Just(1 << 20)];
    let chunks = prop_oneof![Just(3_000usize), Just(9_000), Just(1 << 20)];
    (batches, 0..7usize, any::<bool>(), held, chunks, any::<u64>()).prop_map(
        |(batches, rotation, is_dictionary, held_bytes_max, chunk_bytes, seed)| Division {
            batches,
            rotation,
            is_dictionary,
            held_bytes_max,
            chunk_bytes,
            seed,
        },
    )
}

/// Packs and unpacks the batches. A batch that one chunk has no room for comes back as several.
fn travelled(batches: &[RecordBatch], chunk_bytes: usize) -> Vec<RecordBatch> {
    let mut packer = BatchPacker::new(chunk_bytes);
    for (group, batch) in batches.iter().enumerate() {
        if packer.push(group as u32, batch).is_err() {
            // A single row is larger than a chunk.
            return batches.to_vec();
        }
    }
    let mut unpacked = Vec::new();
    while let Some(chunk) = packer.pop() {
        let chunk = chunk.into_buffers().iter().flat_map(|piece| piece.to_vec()).collect::<Vec<u8>>();
        assert!(chunk.len() <= chunk_bytes);
        for (group, batch) in unpack(Buffer::from_vec(chunk)).expect("packed here") {
            assert!((group as usize) < batches.len());
            unpacked.push(batch);
        }
    }
    unpacked
}

fn divided(
    program: &Arc<Program>,
    table: &[Row],
    keys: &[Row],
    division: &Division,
) -> Result<Vec<Row>, Stopped> {
    let lookups: Lookups = program
        .operators()
        .iter()
        .flat_map(|operator| {
            let Operator::SemiJoin { keys: columns, .. } = operator else { return None };
            let types: Vec<_> = columns.iter().map(|column| program.input()[usize::from(*column)]).collect();
            let batch = tables::batch(&types, keys, false);
            Some(Arc::new(LookupTable::Keys(Keys::new(types, &[batch], 7).unwrap())))
        })
        .collect();
    let prepared = Arc::new(Prepared::new(program.clone()).unwrap());
    let is_top = matches!(program.operators().last(), Some(Operator::Top { .. }));
    let bounds = Bounds {
        seed: division.seed,
        held_bytes_max: if is_top { 1 << 20 } else { division.held_bytes_max },
        ..Bounds::default()
    };
    let mut runs: Vec<Run> =
        (0..3).map(|_| Run::new(prepared.clone(), lookups.clone(), bounds.clone()).unwrap()).collect();
    let mut partial: Vec<RecordBatch> = Vec::new();
    let mut start = 0;
    let rest = (table.len(), 0);
    for (rows, run) in division.batches.iter().copied().chain([rest]) {
        let end = table.len().min(start + rows);
        let batch = tables::batch(program.input(), &table[start..end], division.is_dictionary);
        partial.extend(runs[run].push(&batch, start as u64)?);
        start = end;
    }
    let mut merge = Merge::new(program, division.seed ^ 1).unwrap();
    for run in runs {
        partial.extend(run.finish()?);
    }
    let is_ordered =
        matches!(program.operators().last(), Some(Operator::Group { .. } | Operator::Top { .. }));
    if is_ordered && !partial.is_empty() {
        let middle = division.rotation % partial.len();
        partial.rotate_left(middle);
    }
    travelled(&partial, division.chunk_bytes).iter().try_for_each(|batch| merge.push(batch))?;
    let result = merge.finish()?;
    Ok(result.iter().flat_map(|batch| tables::rows(batch, program.output())).collect())
}

fn same(found: &Result<Vec<Row>, Stopped>, wanted: &Outcome, program: &Program) -> Result<(), TestCaseError> {
    let shown = |rows: &[Row]| -> Vec<Row> {
        let one = |(value, of): (&Option<_>, &_)| oracle::with_one_nan(value.clone(), *of);
        rows.iter().map(|row| row.iter().zip(program.output()).map(one).collect()).collect()
    };
    match (found, wanted) {
        (Ok(found), Ok(wanted)) => prop_assert_eq!(shown(found), shown(wanted)),
        (_, Err(Stop::Unspecified)) | (Err(Stopped::Overflow { .. }), Err(Stop::Overflow)) => {}
        _ => prop_assert!(false, "{:?} where the oracle has {:?}", found, wanted),
    }
    Ok(())
}

proptest! {
    // The environment variable PROPTEST_CASES can ask for more cases.
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.max(2_000),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_division_of_a_table_gives_what_the_oracle_gives(
        (program, table, keys) in tables::cases(),
        first in divisions(),
    ) {
        let wanted = oracle::run(&program, &table, &keys);
        let found = divided(&Arc::new(program.clone()), &table, &keys, &first);
        match program.operators().last() {
            // Any rows are right, but their number must be.
            Some(Operator::Limit(_)) => {
                if let (Ok(found), Ok(wanted)) = (&found, &wanted) {
                    prop_assert_eq!(found.len(), wanted.len());
                }
            }
            // Rows come in the order of their batches, because each push outputs its rows at once.
            _ => same(&found, &wanted, &program)?,
        }
    }
}
