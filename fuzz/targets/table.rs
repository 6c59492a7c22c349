//! Any bytes as the footer of a far table.
#![no_main]

use farpool::table::Footer;
use libfuzzer_sys::fuzz_target;

/// Where the footer is taken to lie: everything before may be row groups.
const FOOTER_OFFSET: u64 = 1 << 34;

fuzz_target!(|input: &[u8]| {
    if let Ok(footer) = Footer::take(input, FOOTER_OFFSET) {
        let mut again = Vec::new();
        footer.put(&mut again);
        assert_eq!(again, input, "what is accepted has one form");
        assert!(footer.groups.iter().all(|group| group.end() <= FOOTER_OFFSET));
    }
});
