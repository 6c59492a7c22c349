//! Kernels over rows of fixed width, compared with their portable twins, and those with a definition in one line.

use farpool_kernels::{Ranges, Row, portable, project_rows, select_rows, split_rows};
use proptest::prelude::*;

fn rows() -> impl Strategy<Value = Vec<Row>> {
    let number = prop_oneof![-3..3i64, Just(i64::MIN), Just(i64::MAX)];
    prop::collection::vec(prop::array::uniform8(number), 0..300)
}

fn ranges() -> impl Strategy<Value = Ranges> {
    let limit = || prop_oneof![6 => Just(None), 1 => (-3..3i64).prop_map(Some)];
    (prop::array::uniform8(limit()), prop::array::uniform8(limit())).prop_map(|(low, high)| Ranges {
        low: low.map(|low| low.unwrap_or(i64::MIN)),
        high: high.map(|high| high.unwrap_or(i64::MAX)),
    })
}

proptest! {
    #[test]
    fn selected_rows_lie_in_all_ranges(rows in rows(), ranges in ranges(), offset in 0..3usize) {
        let rows = &rows[offset.min(rows.len())..];
        for ranges in [ranges, Ranges::ALL, Ranges { low: [1; 8], high: [0; 8] }] {
            let (mut found, mut plain) = (vec![[5; 8]], vec![[5; 8]]);
            select_rows(rows, &ranges, &mut found);
            portable::select_rows(rows, &ranges, &mut plain);
            prop_assert_eq!(&found, &plain);
            let passes = |row: &&Row| (0..8).all(|at| (ranges.low[at]..=ranges.high[at]).contains(&row[at]));
            let expected: Vec<Row> = rows.iter().filter(passes).copied().collect();
            prop_assert_eq!(&found[1..], &expected);
        }
    }

    #[test]
    fn projected_rows_are_the_bytes_of_their_columns(
        bytes in prop::collection::vec(any::<u8>(), 0..3_000),
        width in 1..80usize,
        from in 0..80usize,
        to in 0..80usize,
    ) {
        let columns = from.min(to).min(width)..from.max(to).min(width);
        let rows = &bytes[..bytes.len() / width * width];
        for columns in [columns, 0..width.min(8), width - width.min(24)..width] {
            let (mut found, mut plain) = (vec![1], vec![1]);
            project_rows(rows, width, columns.clone(), &mut found);
            portable::project_rows(rows, width, columns, &mut plain);
            prop_assert_eq!(found, plain);
        }
    }
}

proptest! {
    #[test]
    fn split_rows_are_their_columns_one_by_one(
        bytes in prop::collection::vec(any::<u8>(), 0..40_000), width in 1..300usize, ends in prop::collection::vec(0..300usize, 2..6),
    ) {
        let rows = &bytes[..bytes.len() / width * width];
        let columns = || ends.windows(2).map(|ends| ends[0].min(ends[1]).min(width)..ends[0].max(ends[1]).min(width));
        let mut found: Vec<Vec<u8>> = columns().map(|column| vec![7; rows.len() / width * column.len()]).collect();
        let mut into: Vec<_> = columns().zip(found.iter_mut().map(Vec::as_mut_slice)).collect();
        split_rows(rows, width, &mut into);
        for (column, found) in columns().zip(&found) {
            let mut alone = Vec::new();
            portable::project_rows(rows, width, column, &mut alone);
            prop_assert_eq!(found, &alone);
        }
    }
}

#[test]
#[should_panic(expected = "bytes 8..24 of rows of 16 bytes")]
fn columns_beyond_the_row_are_refused() {
    project_rows(&[0; 32], 16, 8..24, &mut Vec::new());
}
