//! Any bytes as the footer of a far table.
#![no_main]

use farpool_tables::Footer;
use libfuzzer_sys::fuzz_target;

/// Where the footer is taken to lie: everything before may be row groups.
const FOOTER_OFFSET: u64 = 1 << 34;

fuzz_target!(|input: &[u8]| {
    // An encrypted table has another form, and statistics that come as bytes of their own.
    if let Ok(mut footer) = Footer::take_sealed(input, FOOTER_OFFSET) {
        let mut again = Vec::new();
        footer.put(&mut again);
        assert_eq!(again, input, "what is accepted has one form");
        let statistics = footer.seal.take().map(|seal| seal.statistics).unwrap_or_default();
        let _ = footer.take_statistics(&statistics);
    }
    if let Ok(footer) = Footer::take(input, FOOTER_OFFSET) {
        let mut again = Vec::new();
        footer.put(&mut again);
        assert_eq!(again, input, "what is accepted has one form");
        assert!(footer.groups.iter().all(|group| group.end() <= FOOTER_OFFSET));
    }
});
