//! Tests of footers and trailers: they decode to what was encoded, and foreign bytes are refused without a panic.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, FixedSizeBinaryArray, Int32Array, RecordBatch, StringArray};
use arrow_buffer::Buffer;
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use farpool_encryption::TableCipher;
use farpool_tables::operators::Value;
use farpool_tables::operators::columns::{column_of, columns_of_rows, value_bytes};
use farpool_tables::*;
use farpool_wire::limits::SCAN_GROUP_BYTES_MAX;
use proptest::prelude::*;
use std::sync::Arc;

fn column_type() -> impl Strategy<Value = DataType> {
    let unit = prop_oneof![
        Just(TimeUnit::Second),
        Just(TimeUnit::Millisecond),
        Just(TimeUnit::Microsecond),
        Just(TimeUnit::Nanosecond)
    ];
    prop_oneof![
        Just(DataType::Boolean),
        Just(DataType::Int8),
        Just(DataType::Int64),
        Just(DataType::UInt16),
        Just(DataType::UInt64),
        Just(DataType::Float32),
        Just(DataType::Float64),
        (1..=38u8, -38..=1i8).prop_map(|(precision, scale)| DataType::Decimal128(precision, scale)),
        Just(DataType::Date32),
        (unit, proptest::option::of("[A-Z][a-z]{1,8}"))
            .prop_map(|(unit, zone)| DataType::Timestamp(unit, zone.map(Into::into))),
        Just(DataType::Utf8),
        Just(DataType::Binary),
        (1..=100i32).prop_map(DataType::FixedSizeBinary),
    ]
}

fn value(of: &DataType, number: i64, text: &str) -> Value {
    match of {
        DataType::Boolean => Value::Boolean(number % 2 == 0),
        DataType::Int8 => Value::Integer((number as i8).into()),
        DataType::UInt16 => Value::Integer((number as u16).into()),
        DataType::UInt64 => Value::Integer((number as u64).into()),
        DataType::Float32 => Value::Float((number as f32).to_bits().into()),
        DataType::Float64 => Value::Float((number as f64).to_bits()),
        DataType::Decimal128(..) => Value::Integer(i128::from(number) << 50),
        DataType::Date32 => Value::Integer((number as i32).into()),
        DataType::Utf8 | DataType::Binary | DataType::FixedSizeBinary(_) => Value::Bytes(text.into()),
        _ => Value::Integer(number.into()),
    }
}

/// Returns the encoding of a column in a group, and the sizes of its buffers.
fn sizes(
    of: &DataType,
    rows: usize,
    has_nulls: bool,
    text_bytes: usize,
    distinct: usize,
) -> (Encoding, Vec<usize>) {
    let (encoding, mut sizes) = match of {
        DataType::Boolean => (Encoding::Plain, vec![rows.div_ceil(8)]),
        DataType::Utf8 | DataType::Binary if distinct > 0 => {
            (Encoding::Dictionary, vec![rows * 2, (distinct + 1) * 4, text_bytes])
        }
        DataType::Utf8 | DataType::Binary => (Encoding::Plain, vec![(rows + 1) * 4, text_bytes]),
        DataType::FixedSizeBinary(width) => (Encoding::Plain, vec![rows * *width as usize]),
        other => (Encoding::Plain, vec![rows * other.primitive_width().expect("a width")]),
    };
    if has_nulls {
        sizes.insert(0, rows.div_ceil(8));
    }
    (encoding, sizes)
}

prop_compose! {
    fn footer()(
        fields in proptest::collection::vec(("[a-zé]{0,9}", column_type()), 1..6),
        may_be_rows in any::<bool>(),
        groups in proptest::collection::vec(
            (1..=GROUP_ROWS_MAX, any::<u16>(), any::<bool>(), 0..9_000usize, 0..300usize, any::<i64>(), "[a-zé]{0,20}"), 0..5),
    ) -> (Footer, u64) {
        let schema = Schema::new(
            fields.iter().map(|(name, of)| Field::new(name, of.clone(), true)).collect::<Vec<_>>());
        let widths: Option<Vec<usize>> = schema.fields().iter().map(|field| value_bytes(field.data_type())).collect();
        let row_bytes = widths.filter(|_| may_be_rows).map(|widths| widths.iter().sum::<usize>().next_multiple_of(8));
        let mut offset = 0u64;
        let mut all = Vec::new();
        for (rows, nulls, has_statistics, text_bytes, distinct, number, text) in groups {
            let mut end = 0;
            let null_count = if row_bytes.is_some() { 0 } else { u32::from(nulls).min(rows as u32) };
            let columns = schema.fields().iter().map(|field| {
                let (encoding, sizes) = sizes(field.data_type(), rows, null_count > 0, text_bytes, distinct);
                let buffers = sizes.into_iter().map(|bytes| {
                    let offset = usize::next_multiple_of(end, BUFFER_ALIGN);
                    end = offset + bytes;
                    BufferAt { offset: offset as u32, bytes: bytes as u32, crc: number as u32 }
                });
                let (encoding, buffers) = match row_bytes {
                    Some(row_bytes) => {
                        end = rows * row_bytes;
                        (Encoding::Rows, vec![BufferAt { offset: 0, bytes: end as u32, crc: number as u32 }])
                    }
                    None => (encoding, buffers.collect()),
                };
                let statistics = has_statistics.then(|| Statistics {
                    min: value(field.data_type(), number, &text),
                    max: value(field.data_type(), number / 2, &text),
                    is_min_truncated: nulls.is_multiple_of(2),
                    is_max_truncated: nulls.is_multiple_of(3),
                    has_nan: nulls.is_multiple_of(5),
                });
                ColumnChunk { encoding, null_count, buffers, statistics }
            }).collect();
            let group = RowGroup { offset, bytes: end as u32, rows: rows as u32, columns };
            offset = group.end().next_multiple_of(GROUP_ALIGN as u64);
            all.push(group);
        }
        (Footer { schema: Arc::new(schema), groups: all, encryption: None }, offset)
    }
}

/// A node decodes columns that any client may describe, so the size of the result is bounded.
#[test]
fn dictionary_that_would_take_more_than_permitted_is_refused_before_it_is_expanded() {
    let buffers = || {
        let offsets: Vec<u8> = [0i32, 1_000].iter().flat_map(|offset| offset.to_le_bytes()).collect();
        vec![Buffer::from(vec![0u8; 200]), Buffer::from(offsets), Buffer::from(vec![b'x'; 1_000])]
    };
    let column = |bytes_max| {
        column_of(&DataType::Utf8, Encoding::Dictionary, 100, 0, buffers(), bytes_max)
            .map(|column| column.len())
    };
    assert_eq!(column(100_000), Ok(100));
    let refused = column(99_999).expect_err("too large");
    assert!(refused.contains("100000 bytes") && refused.contains("99999"), "{refused}");
}

#[test]
fn row_groups_of_wide_rows_are_no_larger_than_a_scan_reads() {
    let width = 2_001;
    let field = Field::new("b", DataType::FixedSizeBinary(width), false);
    let schema: SchemaRef = Arc::new(Schema::new(vec![field]));
    let value = vec![7u8; width as usize];
    let values = FixedSizeBinaryArray::try_from_iter(std::iter::repeat_n(&value, GROUP_ROWS_MAX))
        .expect("equal widths");
    let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(values)]).expect("a batch");
    let mut packer =
        RowGroupEncoder::new(schema, 2 << 30).expect("a schema").in_rows().expect("fixed widths");
    let mut rows = 0;
    let mut take = |group: EncodedGroup| {
        assert!(group.group.bytes as usize <= SCAN_GROUP_BYTES_MAX);
        rows += group.group.rows;
        Ok(())
    };
    packer.push(&batch, &mut take).expect("pushed");
    packer.finish(&mut take).expect("finished");
    assert_eq!(rows as usize, GROUP_ROWS_MAX);
}

proptest! {
    #[test]
    fn footer_comes_back_and_no_shorter_or_longer_one_does((footer, offset) in footer(), cut in any::<prop::sample::Index>()) {
        let mut bytes = Vec::new();
        footer.put(&mut bytes);
        prop_assert_eq!(&Footer::take(&bytes, offset).expect("a footer"), &footer);
        prop_assert!(Footer::take(&bytes[..cut.index(bytes.len())], offset).is_err());
        if !footer.groups.is_empty() {
            prop_assert!(Footer::take(&bytes, footer.groups.last().expect("one").end() - 1).is_err());
        }
        bytes.push(0);
        prop_assert!(Footer::take(&bytes, offset).is_err());
    }

    #[test]
    fn encrypted_footer_comes_back_and_decrypts_whole_under_its_key_alone(
        (mut footer, offset) in footer(), at in any::<prop::sample::Index>(), flip in 1..=255u8, salt in any::<[u8; 16]>(),
    ) {
        // Makes room for the tags: each buffer moves behind the tags of the buffers before it.
        for group in &mut footer.groups {
            let mut more = 0;
            // The columns share one buffer in the row layout, which each column lists.
            let each = if group.columns[0].encoding == Encoding::Rows { 0 } else { BUFFER_ALIGN as u32 };
            for buffer in group.columns.iter_mut().flat_map(|column| &mut column.buffers) {
                (buffer.offset, buffer.crc) = (buffer.offset + more, 0);
                more += each;
            }
            group.bytes += more.max(BUFFER_ALIGN as u32);
        }
        let mut end = 0;
        for group in &mut footer.groups {
            group.offset = end;
            end = group.end().next_multiple_of(GROUP_ALIGN as u64);
        }
        let offset = offset.max(end);
        let key = farpool_tables::TableKey::new([1; 16]);
        let (own, check) = key.of_table(&salt);
        footer.encrypt(&TableCipher::new(&own, salt), salt, check);
        let mut bytes = Vec::new();
        footer.put(&mut bytes);
        let mut found = Footer::take_encrypted(&bytes, offset).expect("a footer");
        prop_assert!(found.groups.iter().flat_map(|group| &group.columns).all(|column| column.statistics.is_none()));
        prop_assert_eq!(found.decrypt(&farpool_tables::TableKey::new([2; 16])).err(), Some(WrongKey::Other));
        prop_assert!(found.decrypt(&key).expect("its key").is_some());
        prop_assert_eq!(&found, &footer);
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        if let Ok(mut changed) = Footer::take_encrypted(&bytes, offset) {
            prop_assert!(changed.decrypt(&key).is_err());
        }
    }

    #[test]
    fn altered_footer_is_refused_or_keeps_to_its_bounds(
        (footer, offset) in footer(), at in any::<prop::sample::Index>(), flip in 1..=255u8,
    ) {
        let mut bytes = Vec::new();
        footer.put(&mut bytes);
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        if let Ok(found) = Footer::take(&bytes, offset) {
            let mut again = Vec::new();
            found.put(&mut again);
            prop_assert_eq!(&again, &bytes, "what is accepted has one form");
            let mut end = 0;
            for group in &found.groups {
                prop_assert!(group.offset >= end && group.end() <= offset);
                end = group.end();
                let buffers = group.columns.iter().flat_map(|column| &column.buffers);
                let is_placed = |buffer: &BufferAt| {
                    let end = u64::from(buffer.offset) + u64::from(buffer.bytes);
                    buffer.offset.is_multiple_of(BUFFER_ALIGN as u32) && end <= u64::from(group.bytes)
                };
                prop_assert!(buffers.into_iter().all(is_placed));
            }
        }
    }

    #[test]
    fn any_bytes_are_a_footer_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..400), offset in any::<u64>()) {
        let _ = Footer::take(&bytes, offset);
        let _ = Footer::take_encrypted(&bytes, offset);
    }

    #[test]
    fn any_bytes_are_a_trailer_or_an_error(bytes in any::<[u8; 32]>(), length in any::<u64>(), offset in 0..1u64 << 40, footer in 0..1u32 << 20, form in proptest::sample::select(vec![Form::Rows, Form::EncryptedRows, Form::Manifest, Form::EncryptedManifest])) {
        let _ = Trailer::take(&bytes, length);
        let trailer = Trailer { footer_offset: offset, footer_bytes: footer, footer_crc: 7, form };
        let mut put = Vec::new();
        trailer.put(&mut put);
        let put: [u8; 32] = put.try_into().expect("32 bytes");
        prop_assert_eq!(Trailer::take(&put, offset + u64::from(footer) + 32), Ok(trailer));
        prop_assert!(Trailer::take(&put, offset + u64::from(footer) + 33).is_err());
    }

    #[test]
    fn any_bytes_are_a_column_or_an_error(
        of in column_type(), rows in 1..200usize, has_nulls in any::<bool>(), distinct in 0..4usize,
        bytes in proptest::collection::vec(prop_oneof![Just(0u8), 0..8u8, any::<u8>()], 4_000),
    ) {
        let (encoding, sizes) = sizes(&of, rows, has_nulls, 40, distinct);
        let buffers: Vec<Buffer> = sizes.iter().enumerate()
            .map(|(index, size)| bytes.iter().copied().cycle().skip(index * 7).take(*size).collect()).collect();
        if let Ok(column) = column_of(&of, encoding, rows, usize::from(has_nulls), buffers, 1 << 20) {
            prop_assert_eq!(column.len(), rows);
            column.to_data().validate_full().expect("a checked column is whole");
        }
    }

    #[test]
    fn any_bytes_are_columns_of_rows_or_an_error(
        types in proptest::collection::vec((column_type(), 0..40usize), 1..5), row_bytes in 0..40usize, rows in 0..50usize,
        bytes in proptest::collection::vec(any::<u8>(), 0..2_000), is_theirs in any::<bool>(),
    ) {
        let bytes = if is_theirs { bytes.iter().copied().cycle().take(rows * row_bytes).collect() } else { bytes };
        let columns: Vec<_> = types.iter().map(|(of, start)| (of, *start)).collect();
        if let Ok(found) = columns_of_rows(&columns, row_bytes, rows, &bytes, 1_000) {
            prop_assert!(found.iter().map(|column| column.get_buffer_memory_size()).sum::<usize>() <= 1_000 + 64 * found.len());
            for ((of, start), column) in columns.iter().zip(found) {
                prop_assert_eq!(column.len(), rows);
                prop_assert!(start + value_bytes(of).expect("a width") <= row_bytes);
                column.to_data().validate_full().expect("a checked column is whole");
            }
        }
    }

    #[test]
    fn packed_rows_come_back_whatever_the_batches(
        cuts in proptest::collection::vec(0..9_000usize, 0..12), few in 1..5_000i32, region in prop_oneof![Just(16u64 << 20), Just(256u64 << 10)],
    ) {
        let schema: SchemaRef = Arc::new(Schema::new(vec![
            Field::new("n", DataType::Int32, true), Field::new("s", DataType::Utf8, true)]));
        let mut packer = RowGroupEncoder::new(Arc::clone(&schema), region).expect("a schema");
        let mut groups = Vec::new();
        let mut from = 0;
        let value = |row: i32| (row % 11 != 3).then_some(row);
        let text = |row: i32| (row % 13 != 5).then(|| format!("text {}", row % few));
        for rows in &cuts {
            let range = from..from + *rows as i32;
            let columns: Vec<ArrayRef> = vec![
                Arc::new(Int32Array::from_iter(range.clone().map(value))),
                Arc::new(StringArray::from_iter(range.clone().map(text)))];
            let batch = RecordBatch::try_new(Arc::clone(&schema), columns).expect("a batch");
            packer.push(&batch, |group| { groups.push(group); Ok(()) }).expect("pushed");
            from = range.end;
        }
        packer.finish(|group| { groups.push(group); Ok(()) }).expect("finished");
        let mut row = 0;
        for EncodedGroup { group, bytes } in groups {
            prop_assert!(bytes.len() as u64 <= region && bytes.len().is_multiple_of(GROUP_ALIGN));
            let column = |index: usize| {
                let chunk = &group.columns[index];
                let buffer = |at: &BufferAt| {
                    let bytes = &bytes[at.offset as usize..][..at.bytes as usize];
                    Buffer::from(bytes.to_vec())
                };
                let buffers = chunk.buffers.iter().map(buffer).collect();
                let (rows, nulls) = (group.rows as usize, chunk.null_count as usize);
                column_of(schema.field(index).data_type(), chunk.encoding, rows, nulls, buffers, usize::MAX).expect("a column")
            };
            let (numbers, texts) = (column(0), column(1));
            for at in 0..group.rows as usize {
                let (numbers, texts) = (numbers.as_primitive::<arrow_array::types::Int32Type>(), texts.as_string::<i32>());
                prop_assert_eq!(numbers.is_valid(at).then(|| numbers.value(at)), value(row));
                prop_assert_eq!(texts.is_valid(at).then(|| texts.value(at).to_owned()), text(row));
                row += 1;
            }
        }
        prop_assert_eq!(row, from);
    }
}
