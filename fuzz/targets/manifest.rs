//! Fuzzes the decoders of manifests of far tables: a root, and the entries of a page below it.
#![no_main]

use farpool_tables::manifest::{Entries, Root};
use farpool_wire::codec::Cursor;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut from = Cursor::new(input);
    let Ok((root, totals)) = Root::take_head(&mut from) else { return };
    let columns = root.bounded_columns();
    let Ok(entries) = Entries::take(&columns, &mut from) else { return };
    // The root says the sums of its entries, which are checked after they were decoded.
    if entries.totals() != totals {
        return;
    }
    let root = Root { entries, ..root };
    let mut again = Vec::new();
    root.put_head(&mut again);
    root.entries.put(&columns, &mut again);
    let mut from = Cursor::new(&again);
    let (head, _) = Root::take_head(&mut from).expect("it was encoded");
    let entries = Entries::take(&columns, &mut from).expect("they were encoded");
    assert_eq!(Root { entries, ..head }, root, "what was encoded means the same");
});
