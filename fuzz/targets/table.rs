//! Fuzzes the decoder of footers of far tables.
#![no_main]

use farpool_tables::Footer;
use libfuzzer_sys::fuzz_target;

/// Offset of the footer in the file, in bytes. It is so large that all row groups fit before it.
const FOOTER_OFFSET: u64 = 1 << 34;

fuzz_target!(|input: &[u8]| {
    // The footer of an encrypted table has another form: its statistics are a separate range of bytes.
    if let Ok(mut footer) = Footer::take_encrypted(input, FOOTER_OFFSET) {
        let mut again = Vec::new();
        footer.put(&mut again);
        assert_eq!(again, input, "what is accepted has one form");
        let statistics = footer.encryption.take().map(|encryption| encryption.statistics).unwrap_or_default();
        let _ = footer.take_statistics(&statistics);
    }
    if let Ok(footer) = Footer::take(input, FOOTER_OFFSET) {
        let mut again = Vec::new();
        footer.put(&mut again);
        assert_eq!(again, input, "what is accepted has one form");
        assert!(footer.groups.iter().all(|group| group.end() <= FOOTER_OFFSET));
    }
});
