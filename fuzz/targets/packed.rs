//! Fuzzes the decoder of record batches in a `NextChunk` reply, which nodes send.
#![no_main]

use arrow_array::Array;
use arrow_buffer::Buffer;
use farpool_operators::packed::unpack;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Ok(batches) = unpack(Buffer::from_vec(input.to_vec())) {
        for (_, batch) in batches {
            for column in batch.columns() {
                column.to_data().validate_full().expect("what is accepted is whole");
            }
        }
    }
});
