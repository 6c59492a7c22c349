//! Fuzzes the lookup tables of semi-joins, which clients send.
#![no_main]

use farpool_operators::JoinLookup;
use farpool_operators::run::LookupTable;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else { return };
    let kind = if kind % 2 == 0 { JoinLookup::Bloom } else { JoinLookup::Keys };
    let _ = LookupTable::from_bytes(kind, bytes.to_vec().into(), 7);
});
