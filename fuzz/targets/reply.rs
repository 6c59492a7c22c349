//! Fuzzes the decoder of replies of every opcode.
#![no_main]

use farpool_wire::{Opcode, Reply};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((opcode, body)) = input.split_first() else { return };
    let opcode = Opcode::ALL[usize::from(*opcode) % Opcode::ALL.len()];
    if let Ok(reply) = Reply::decode(opcode, body) {
        let mut again = Vec::new();
        reply.encode(&mut again);
        assert_eq!(again, body, "what is accepted has one form");
    }
});
