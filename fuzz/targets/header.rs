//! Fuzzes the decoder of headers with any 40 bytes: unchanged, and with a correct magic and checksum.
#![no_main]

use farpool_wire::Header;
use farpool_wire::frame::MAGIC;
use farpool_wire::limits::{FRAME_BODY_BYTES_MAX, HEADER_BYTES};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: [u8; HEADER_BYTES]| {
    let _ = Header::decode(&bytes);
    let mut bytes = bytes;
    bytes[..4].copy_from_slice(&MAGIC);
    let crc = crc32c::crc32c(&bytes[..36]);
    bytes[36..].copy_from_slice(&crc.to_le_bytes());
    if let Ok(header) = Header::decode(&bytes) {
        assert!(header.body_bytes as usize <= FRAME_BODY_BYTES_MAX);
        assert_eq!(header.encode(), bytes, "what is accepted has one form");
    }
});
