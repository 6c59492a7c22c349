//! Fuzzes the decoders of a write and of a batch of writes.
#![no_main]

use farpool_wire::data::{Operations, decode_write, put_spans};
use farpool_wire::limits::{BATCH_OPS_MAX, IO_BYTES_MAX};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    let mut spans = Vec::new();
    for operations in [Operations::One, Operations::Batch] {
        if let Ok(payload) = decode_write(body, operations, &mut spans) {
            assert!(spans.len() <= BATCH_OPS_MAX && payload.len() <= IO_BYTES_MAX);
            let mut again = Vec::new();
            put_spans(&spans, operations, &mut again);
            again.extend_from_slice(payload);
            assert_eq!(again, body, "what is accepted has one form");
        }
    }
});
