//! Settings that are out of range are named in an error, with the values that are permitted.

use farpool_lease::LeaseSettings;

#[test]
fn times_as_they_come_are_permitted() {
    assert_eq!(LeaseSettings::default().mistakes(), Vec::<String>::new());
}

#[test]
fn times_out_of_range_are_named() {
    let good = LeaseSettings::default();
    let cases = [
        (LeaseSettings { lease_ttl_ms: 299, ..good }, "299 ms"),
        (LeaseSettings { lease_ttl_ms: 600_001, ..good }, "600001 ms"),
        (LeaseSettings { grace_ms: 600_001, ..good }, "600001 ms"),
        (LeaseSettings { heartbeat_ms: 0, ..good }, "every 0 ms"),
        (LeaseSettings { node_silence_ms: 499, ..good }, "silent after 499 ms"),
        // A node whose clock runs ahead between two reports would find every ticket void.
        (LeaseSettings { ticket_ttl_ms: 499, ..good }, "expires after 499 ms"),
    ];
    for (settings, words) in cases {
        let mistakes = settings.mistakes();
        assert!(matches!(&mistakes[..], [one] if one.contains(words)), "{words}: {mistakes:?}");
    }
}
