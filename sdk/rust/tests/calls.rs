//! Tests of calls made through a call record, byte for byte, and through `CallInputs`.

use farpool_function::{Call, CallInputs, Failure, Record, Type, Window, enter};

/// Makes a record over these bytes. The caller keeps them alive.
fn record(window: &[u8], args: &[u8], parts: &[u64], output: &mut [u8], state: Option<&[u8]>) -> Record {
    let place = |bytes: &[u8]| (bytes.as_ptr().expose_provenance() as u64, bytes.len() as u64);
    let ((window, window_bytes), (args, args_bytes)) = (place(window), place(args));
    let (state_at, state_bytes) = state.map_or((0, 0), place);
    Record {
        version: 1,
        flags: state.is_some().into(),
        window,
        window_bytes,
        args,
        args_bytes,
        output: output.as_mut_ptr().expose_provenance() as u64,
        output_capacity: output.len() as u64,
        columns: 0,
        columns_bytes: 0,
        parts: parts.as_ptr().expose_provenance() as u64,
        part_count: parts.len() as u64 / 2,
        state: state_at,
        state_bytes,
        hop: u64::MAX,
        reserved: [0; 5],
    }
}

#[test]
fn exported_function_reads_its_record_and_returns_the_bytes_it_wrote() {
    farpool_function::export!(sum, |call| -> Result<(), Failure> {
        let (first, count) = (call.arg(0)?, call.arg(8)?);
        let sum: i64 = call.slice_of::<i64>(first, count)?.iter().sum();
        call.output().put(&sum)
    });
    unsafe extern "C" {
        fn sum(record: *mut Record) -> i64;
    }
    let window: Vec<i64> = (0..100).collect();
    let window: Vec<u8> = window.iter().flat_map(|value| value.to_le_bytes()).collect();
    let run = |first: u64, count: u64, capacity: usize| {
        let args: Vec<u8> = [first, count].iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut output = vec![0; capacity];
        let mut record = record(&window, &args, &[], &mut output, None);
        // SAFETY: the record names vectors that live until the end of this closure.
        (unsafe { sum(&raw mut record) }, record.hop, output)
    };
    assert_eq!(run(8, 99, 8), (8, u64::MAX, 4950i64.to_le_bytes().to_vec()));
    assert_eq!(run(8, 99, 7).0, -i64::from(Failure::OUTPUT_SHORT.code()));
    for (first, count) in [(8, 100), (u64::MAX - 7, 2), (0, 1 << 61), (1 << 32, 1)] {
        assert_eq!(run(first, count, 8).0, -i64::from(Failure::BAD_DATA.code()));
    }
}

#[test]
fn a_call_that_hops_leaves_its_state_and_the_next_one_finds_it() {
    let body = |call: &mut Call<'_>| {
        call.output().put(&[1u8; 20])?;
        match call.state() {
            None => call.hop(4096, b"state"),
            Some(state) => call.output().put_bytes(state),
        }
    };
    let mut output = [0; 64];
    let mut first = record(&[0; 8], &[], &[], &mut output, None);
    // SAFETY: the record names arrays of this function.
    assert_eq!((unsafe { enter(&raw mut first, body) }, first.hop), (5, 4096));
    assert_eq!(&output[..5], b"state");
    let mut second = record(&[0; 8], &[], &[], &mut output, Some(b"state"));
    // SAFETY: the record names arrays of this function.
    assert_eq!((unsafe { enter(&raw mut second, body) }, second.hop), (25, u64::MAX));
    assert_eq!(&output[20..25], b"state");
}

#[test]
fn a_state_that_is_too_large_or_has_no_room_is_refused_and_the_call_stays() {
    for (state, capacity) in [(65_537, 1 << 20), (100, 99)] {
        let mut output = vec![0; capacity];
        let mut call = Call::new(CallInputs { output: &mut output, ..CallInputs::default() });
        assert_eq!(call.hop(0, &vec![0; state]), Err(Failure::OUTPUT_SHORT));
        assert_eq!(call.hops_to(), None);
    }
}

#[test]
fn a_range_is_here_if_parts_that_touch_one_another_hold_all_of_it() {
    let parts = [(0, 10), (10, 5), (20, 1), (30, 10)];
    let bytes: Vec<u8> = parts
        .iter()
        .flat_map(|(first, count): &(u64, u64)| [*first, *count])
        .flat_map(u64::to_le_bytes)
        .collect();
    let call = Call::new(CallInputs { parts: &bytes, ..CallInputs::default() });
    for first in 0..45 {
        for count in 0..18 {
            let here = |byte| parts.iter().any(|(first, count)| (*first..first + count).contains(&byte));
            assert_eq!(call.is_here(first, count), (first..first + count).all(here), "{count} from {first}");
        }
    }
    assert!(!call.is_here(u64::MAX, 2));
}

#[test]
fn codes_outside_what_may_be_returned_become_the_greatest_one() {
    let codes = [1, 7, 1 << 31, 0, u32::MAX].map(|code| Failure::new(code).code());
    assert_eq!(codes, [1, 7, 1 << 31, 1 << 31, 1 << 31]);
}

/// Type and width of a column, then encoding, number of nulls and buffers of its chunk.
type Column<'a> = (u8, u32, u8, u64, &'a [(u64, u64)]);

/// Encodes a table of columns with one row group of `rows` rows.
fn table(rows: u64, columns: &[Column<'_>]) -> Vec<u8> {
    let mut bytes = [columns.len() as u32, 1].map(u32::to_le_bytes).concat();
    for (kind, width, ..) in columns {
        bytes.extend([*kind, 0, 0, 0]);
        bytes.extend(width.to_le_bytes());
        bytes.extend([0; 8]);
    }
    bytes.extend([rows, 0].map(u64::to_le_bytes).concat());
    for (.., encoding, nulls, buffers) in columns {
        bytes.extend([*encoding, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(nulls.to_le_bytes());
        for index in 0..4 {
            let (offset, count) = buffers.get(index).copied().unwrap_or_default();
            bytes.extend([offset, count].map(u64::to_le_bytes).concat());
        }
    }
    bytes
}

#[repr(C, align(64))]
struct Aligned([u8; 256]);

#[test]
fn values_are_found_plain_with_nulls_in_dictionaries_and_in_rows() {
    let mut window = Aligned([0; 256]);
    window.0[0] = 0b101; // validity
    window.0[8..20].copy_from_slice(&[1u32, 2, 3].map(u32::to_le_bytes).concat());
    window.0[64..70].copy_from_slice(&[1u16, 0, 1].map(u16::to_le_bytes).concat()); // keys
    window.0[72..84].copy_from_slice(&[0u32, 2, 5].map(u32::to_le_bytes).concat()); // offsets
    window.0[96..101].copy_from_slice(b"aabbb");
    window.0[128..152].copy_from_slice(&[10u64, 20, 30].map(u64::to_le_bytes).concat()); // rows of 8 bytes
    let columns = table(
        3,
        &[
            (4, 4, 0, 1, &[(0, 1), (8, 12)]),
            (4, 4, 0, 0, &[(0, 0), (8, 12)]),
            (15, 0, 1, 1, &[(0, 1), (64, 6), (72, 12), (96, 5)]),
            (7, 2, 2, 0, &[(0, 0), (128, 24), (0, 8)]),
            (1, 0, 0, 0, &[(0, 0), (0, 1)]),
        ],
    );
    let inputs =
        CallInputs { window: Window::over(&window.0), columns: Some(&columns), ..CallInputs::default() };
    let found = Call::new(inputs).columns().unwrap();
    assert_eq!((found.len(), found.column(2).unwrap().kind, found.column(5)), (5, Type::Utf8, None));
    let group = found.groups().next().unwrap();
    let values = |index| group.values(index).unwrap();
    assert_eq!([0, 1, 2, 3].map(|row| values(0).integer(row)), [Some(1), None, Some(3), None]);
    assert_eq!((values(0).slice_of::<i32>(), values(1).slice_of::<i32>()), (None, Some(&[1, 2, 3][..])));
    assert_eq!([0, 1, 2].map(|row| values(1).number(row)), [1.0, 2.0, 3.0].map(Some));
    assert_eq!([0, 1, 2].map(|row| values(2).text(row)), [Ok(Some(&b"bbb"[..])), Ok(None), Ok(Some(b"bbb"))]);
    assert_eq!([0, 1, 2].map(|row| values(3).integer(row)), [10, 20, 30].map(Some));
    assert_eq!([0, 1, 2].map(|row| values(4).boolean(row)), [true, false, true].map(Some));
    assert_eq!(group.values(5).err(), Some(Failure::NO_COLUMN));
}

#[test]
fn buffers_that_do_not_hold_their_rows_and_tables_of_another_length_are_refused() {
    let window = Aligned([0xff; 256]);
    let broken: &[Column<'_>] = &[
        (5, 8, 0, 0, &[(0, 0), (0, 79)]),
        (5, 8, 0, 0, &[(0, 0), (200, 80)]),
        (5, 8, 0, 0, &[(0, 0), (u64::MAX - 7, 80)]),
        (5, 8, 0, 1, &[(0, 1), (0, 80)]),
        (5, 8, 1, 0, &[(0, 0), (0, 80)]),
        (5, 8, 2, 0, &[(0, 0), (0, 159), (0, 16)]),
        (5, 8, 2, 0, &[(0, 0), (0, 160), (9, 16)]),
        (5, 8, 2, 0, &[(0, 0), (0, 160), (u64::MAX, 16)]),
        (5, 0, 0, 0, &[(0, 0), (0, 80)]),
        (15, 0, 0, 0, &[(0, 0), (0, 40), (0, 0)]),
        (15, 0, 2, 0, &[(0, 0), (0, 160), (0, 16)]),
    ];
    for column in broken {
        let columns = table(10, &[*column]);
        let inputs = |columns| CallInputs {
            window: Window::over(&window.0),
            columns: Some(columns),
            ..CallInputs::default()
        };
        let found = Call::new(inputs(&columns)).columns().unwrap();
        assert_eq!(found.groups().next().unwrap().values(0).err(), Some(Failure::BAD_DATA), "{column:?}");
        assert!(Call::new(inputs(&columns[1..])).columns().is_none());
    }
    let columns = table(1, &[(15, 0, 0, 0, &[(0, 0), (0, 8), (8, 8)])]);
    let inputs =
        CallInputs { window: Window::over(&window.0), columns: Some(&columns), ..CallInputs::default() };
    let values = Call::new(inputs).columns().unwrap().groups().next().unwrap().values(0).unwrap();
    assert_eq!(values.text(0), Err(Failure::BAD_DATA));
}
