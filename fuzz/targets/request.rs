//! Fuzzes the decoder of requests of every opcode.
#![no_main]

use farpool_wire::{Opcode, Request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((opcode, body)) = input.split_first() else { return };
    let opcode = Opcode::ALL[usize::from(*opcode) % Opcode::ALL.len()];
    if let Ok(request) = Request::decode(opcode, body) {
        let mut again = Vec::new();
        request.encode(&mut again);
        assert_eq!(again, body, "what is accepted has one form");
    }
});
