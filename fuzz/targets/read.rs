//! Fuzzes the decoders of a read, of a batch of reads, and of the index in a refused batch.
#![no_main]

use farpool_wire::data::{Operations, decode_read, decode_refused_index, put_spans};
use farpool_wire::limits::{BATCH_OPS_MAX, IO_BYTES_MAX};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    let mut spans = Vec::new();
    for operations in [Operations::One, Operations::Batch] {
        if let Ok(total) = decode_read(body, operations, &mut spans) {
            assert!(spans.len() <= BATCH_OPS_MAX && total <= IO_BYTES_MAX as u64);
            let mut again = Vec::new();
            put_spans(&spans, operations, &mut again);
            assert_eq!(again, body, "what is accepted has one form");
        }
    }
    assert_eq!(decode_refused_index(body).is_ok(), body.len() == 4);
});
