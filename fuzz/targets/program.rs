//! Fuzzes the decoder of programs of near-data operators.
#![no_main]

use farpool_operators::Program;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Ok(program) = Program::decode(input) {
        assert_eq!(program.encode().as_deref(), Ok(input), "what is accepted has one form");
        assert_eq!(program.reads().len(), program.input().len());
    }
});
