//! Encrypted pages against a donor that reads, alters, swaps and replays what it holds. Whatever it answers, the client
//! gets the bytes it wrote last, or an error and zeros.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use farpool_files::plan::{
    PAGE_BYTES, PageError, PageKey, PagePlace, PageSplit, PageTag, PageTags, pages_around,
};
use farpool_wire::{Epoch, Incarnation, RegionIndex};
use proptest::prelude::*;
use std::ops::Range;
use std::sync::Barrier;

const PAGE: u64 = PAGE_BYTES as u64;

fn key(seed: u8) -> PageKey {
    PageKey::new(&mut std::array::from_fn(|index| index as u8 ^ seed))
}

fn place(page: u32) -> PagePlace {
    PagePlace {
        incarnation: Incarnation(0x0102_0304_0506_0708),
        region: RegionIndex(0x0a0b_0c0d),
        epoch: Epoch(0x1112_1314_1516_1718),
        page,
    }
}

fn hex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digit).collect()
}

/// Pseudo-random numbers, the same in every run (SplitMix64).
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn fill(&mut self, into: &mut [u8]) {
        for chunk in into.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// Test cases 13 to 16 of the paper that proposed GCM to NIST (McGrew and Viega, appendix B): those with a key of 256
/// bits and a nonce of 96 bits. They show that the cipher is AES-256-GCM.
#[test]
fn cipher_gives_the_published_answers() {
    let feff = "feffe9928665731c6d6a8f9467308308".repeat(2);
    let zeros = "00".repeat(32);
    let plain = "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72\
                 1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255";
    let cipher = "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa\
                  8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015ad";
    let data = "feedfacedeadbeeffeedfacedeadbeefabaddad2";
    let (no_nonce, nonce) = ("00".repeat(12), "cafebabefacedbaddecaf888");
    #[rustfmt::skip]
    let cases = [
        (&*zeros, &*no_nonce, "", "", "", "530f8afbc74536b9a963b4f1c4cb738b"),
        (&*zeros, &*no_nonce, &zeros[..32], "", "cea7403d4d606b6e074ec5d3baf39d18", "d0d1c8a799996bf0265b98b5d48ab919"),
        (&*feff, nonce, plain, "", cipher, "b094dac5d93471bdec1a502270e3cc6c"),
        (&*feff, nonce, &plain[..120], data, &cipher[..120], "76fc6ece0f4e1768cddf8853bb2d551b"),
    ];
    for (key, nonce, plain, data, cipher, tag) in cases {
        let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &hex(key)).unwrap());
        let nonce = || Nonce::try_assume_unique_for_key(&hex(nonce)).unwrap();
        let mut bytes = hex(plain);
        let made = key.seal_in_place_separate_tag(nonce(), Aad::from(hex(data)), &mut bytes).unwrap();
        assert_eq!((&bytes, made.as_ref()), (&hex(cipher), &*hex(tag)));
        key.open_in_place_separate_tag(nonce(), Aad::from(hex(data)), made.as_ref(), &mut bytes).unwrap();
        assert_eq!(bytes, hex(plain));
    }
}

/// Compares two pages with those that OpenSSL 3.0 encrypted from the description in the decision record: key, nonce,
/// and the order and width of the additional data.
#[test]
fn pages_are_encrypted_as_openssl_encrypts_them() {
    let plain: Vec<u8> = (0..2 * PAGE_BYTES).map(|index| ((index * 7 + 3) % 251) as u8).collect();
    let (mut into, mut tags) = (vec![0; plain.len()], [None; 2]);
    key(0).encrypt(place(0x0001_2324), &plain, &mut into, &mut tags).unwrap();
    let expected = [
        (1, "e1269327bb89c13371464c936b9feda7", "ec50a08238b7ada0de21dfe8729c50df"),
        (2, "db2aa032a3c50fd3d8c1ed9e1d1e68a4", "2522f7c85cc5e74b1cdec15e26d7713f"),
    ];
    for ((page, entry), (nonce, start, tag)) in into.chunks(PAGE_BYTES).zip(tags).zip(expected) {
        let entry = entry.unwrap();
        assert_eq!((entry.nonce(), &page[..16], &entry.tag()[..]), (nonce, &*hex(start), &*hex(tag)));
    }
}

#[test]
fn secret_is_wiped_when_the_key_is_made_and_is_never_shown() {
    let mut secret = [0xab; 32];
    let key = PageKey::new(&mut secret);
    assert_eq!(secret, [0; 32]);
    assert_eq!(format!("{key:?}"), "PageKey { pages_encrypted: 0, .. }");
}

/// A donor that compares two versions, or two copies on two nodes, cannot see which parts are equal.
#[test]
fn same_page_encrypted_twice_is_other_bytes_each_time() {
    let key = key(1);
    let plain = [0; PAGE_BYTES];
    let mut versions = [[0; PAGE_BYTES]; 2];
    for into in &mut versions {
        key.encrypt(place(7), &plain, into, &mut [None]).unwrap();
    }
    for version in versions {
        let zeros = version.iter().filter(|byte| **byte == 0).count();
        assert!(zeros < 60, "{zeros} bytes of 4,096 are as they were; 16 are to be expected");
    }
    let equal = versions[0].iter().zip(&versions[1]).filter(|(one, other)| one == other).count();
    assert!(equal < 60, "{equal} bytes of 4,096 are equal; 16 are to be expected");
}

#[test]
fn nonces_never_repeat_across_threads() {
    const THREADS: usize = 8;
    const RUNS: usize = 2_000;
    let key = key(2);
    let barrier = Barrier::new(THREADS);
    let mut nonces: Vec<u64> = std::thread::scope(|scope| {
        let encrypters: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (key, barrier) = (&key, &barrier);
                scope.spawn(move || {
                    let plain = [thread as u8; 5 * PAGE_BYTES];
                    let (mut into, mut tags) = (plain, [None; 5]);
                    let mut nonces = Vec::new();
                    barrier.wait();
                    for run in 0..RUNS {
                        let pages = 1 + (run + thread) % 5;
                        let bytes = pages * PAGE_BYTES;
                        let tags = &mut tags[..pages];
                        key.encrypt(place(0), &plain[..bytes], &mut into[..bytes], tags).unwrap();
                        nonces.extend(tags.iter().flatten().map(PageTag::nonce));
                    }
                    nonces
                })
            })
            .collect();
        encrypters.into_iter().flat_map(|encrypter| encrypter.join().unwrap()).collect()
    });
    nonces.sort_unstable();
    // Each nonce occurs once and none is left out: as many as there are pages, from 1 on.
    let pages = (THREADS * RUNS * 3) as u64;
    assert!(nonces.into_iter().eq(1..=pages));
    assert_eq!(key.pages_encrypted(), pages);
}

/// Changes that the donor of the next test makes to pages, and mistakes of the client about their location.
const ATTACKS: [&str; 13] = [
    "one bit flipped",
    "some bytes changed",
    "random bytes",
    "zeros",
    "another page of the region",
    "an older version of the page",
    "decrypted as another page of the region",
    "decrypted as the same page of another region",
    "decrypted as the same page of another epoch",
    "decrypted as the same page of another incarnation",
    "decrypted with nonce and tag of another page or version",
    "decrypted with another session's key",
    "a run cut short, extended or shifted by a page",
];

#[test]
fn donor_million_tampered_pages_none_accepted_and_no_plaintext_left() {
    const TAMPERED: usize = 1_000_000;
    const PAGES: usize = 64;
    let (ours, others) = (key(3), key(4));
    let mut draws = Draws(1);
    let mut plain = vec![0; PAGES * PAGE_BYTES];
    let (mut older, mut newer) = (plain.clone(), plain.clone());
    let (mut older_tags, mut tags) = ([None; PAGES], [None; PAGES]);
    draws.fill(&mut plain);
    // Both versions have the same bytes: an old version must be refused even then.
    ours.encrypt(place(0), &plain, &mut older, &mut older_tags).unwrap();
    ours.encrypt(place(0), &plain, &mut newer, &mut tags).unwrap();

    let zeros = [0; 3 * PAGE_BYTES];
    let mut buffer = [0; 3 * PAGE_BYTES];
    let (mut refused, mut accepted, mut decrypted) = ([0; ATTACKS.len()], 0, 0);
    let mut flipped = 0;
    for round in 0..TAMPERED {
        let attack = round % ATTACKS.len();
        // A run of three pages fits from here on.
        let page = draws.below(PAGES - 3);
        let other = (page + 1 + draws.below(PAGES - 1)) % PAGES;
        let of = |bytes: &[u8], page: usize| -> [u8; PAGE_BYTES] {
            bytes[page * PAGE_BYTES..][..PAGE_BYTES].try_into().unwrap()
        };
        let (mut key, mut asked, mut entries) = (&ours, place(page as u32), &tags[page..=page]);
        let mut bytes = PAGE_BYTES;
        let answer = &mut buffer[..bytes];
        answer.copy_from_slice(&of(&newer, page));
        match attack {
            // Each bit of a page in turn is flipped.
            0 => {
                answer[flipped / 8 % PAGE_BYTES] ^= 1 << (flipped % 8);
                flipped += 1;
            }
            1 => {
                let before = of(&newer, page);
                while *answer == before {
                    for _ in 0..1 + draws.below(16) {
                        answer[draws.below(PAGE_BYTES)] = draws.next() as u8;
                    }
                }
            }
            2 => draws.fill(answer),
            3 => answer.fill(0),
            4 => answer.copy_from_slice(&of(&newer, other)),
            5 => answer.copy_from_slice(&of(&older, page)),
            6 => asked.page = other as u32,
            7 => asked.region = RegionIndex(draws.next() as u32 & 0xffff),
            8 => asked.epoch = Epoch(asked.epoch.0 + 1 + draws.next() % 1000),
            9 => asked.incarnation = Incarnation(draws.next()),
            10 if (round / ATTACKS.len()).is_multiple_of(2) => entries = &tags[other..=other],
            10 => entries = &older_tags[page..=page],
            11 => key = &others,
            _ => {
                // The donor answers a request for two pages with three, with one, or with the wrong two.
                let (from, pages) = [(page, 3), (page, 1), (page + 1, 2)][round / ATTACKS.len() % 3];
                bytes = pages * PAGE_BYTES;
                buffer[..bytes].copy_from_slice(&newer[from * PAGE_BYTES..][..bytes]);
                entries = &tags[page..page + 2];
            }
        }
        let answer = &mut buffer[..bytes];
        match key.decrypt(asked, entries, answer) {
            Ok(()) => accepted += 1,
            Err(_) => refused[attack] += 1,
        }
        assert!(*answer == zeros[..bytes], "{}: something is left in the buffer", ATTACKS[attack]);
        // An honest answer now and then shows that not everything is refused.
        if round % 100 == 0 {
            let answer = &mut buffer[..PAGE_BYTES];
            answer.copy_from_slice(&of(&newer, page));
            ours.decrypt(place(page as u32), &tags[page..=page], answer).unwrap();
            assert!(*answer == of(&plain, page));
            decrypted += 1;
        }
    }
    let total: usize = refused.iter().sum();
    println!(
        "{TAMPERED} tampered pages: {accepted} accepted, {total} refused; {decrypted} honest ones decrypted"
    );
    for (attack, count) in ATTACKS.iter().zip(refused) {
        println!("{count:>7} refused: {attack}");
    }
    assert_eq!((accepted, total, decrypted), (0, TAMPERED, TAMPERED / 100));
    assert!(flipped >= 8 * PAGE_BYTES, "every bit of a page was flipped at least once");
}

#[test]
fn run_with_one_bad_page_decrypts_none_of_them_and_names_it() {
    let key = key(5);
    let plain = [42; 4 * PAGE_BYTES];
    let (mut cipher, mut tags) = (plain, [None; 4]);
    key.encrypt(place(10), &plain, &mut cipher, &mut tags).unwrap();
    for bad in 0..4 {
        let mut answer = cipher;
        answer[bad * PAGE_BYTES + 17] ^= 0x20;
        let named = PageError::Tampered { place: place(10 + bad as u32) };
        assert_eq!(key.decrypt(place(10), &tags, &mut answer), Err(named));
        assert!(answer.iter().all(|byte| *byte == 0));

        let mut answer = cipher;
        let mut entries = tags;
        entries[bad] = None;
        let named = PageError::NeverEncrypted { place: place(10 + bad as u32) };
        assert_eq!(key.decrypt(place(10), &entries, &mut answer), Err(named));
        assert!(answer.iter().all(|byte| *byte == 0));
    }
    assert_eq!(key.decrypt(place(10), &tags, &mut cipher), Ok(()));
    assert!(cipher == plain);
}

#[test]
fn run_whose_buffers_do_not_fit_is_refused_and_spends_no_nonce() {
    let key = key(6);
    let mut tags = [None; 2];
    for (plain, into) in [(4096, 8192), (8192, 4096), (8191, 8192), (8192, 8193), (12_288, 12_288), (0, 0)] {
        let refused = key.encrypt(place(0), &vec![1; plain], &mut vec![0; into], &mut tags);
        assert!(matches!(refused, Err(PageError::WrongLength { pages: 2, .. })), "{plain} into {into}");
    }
    // The largest region, 2 GiB, has 524,288 pages.
    let (plain, mut into) = ([1; 8192], [0; 8192]);
    for page in [524_287, 524_288, u32::MAX] {
        let refused = Err(PageError::OutsideRegion { page, pages: 2 });
        assert_eq!(key.encrypt(place(page), &plain, &mut into, &mut tags), refused);
        assert_eq!(key.decrypt(place(page), &tags, &mut into), refused);
    }
    assert_eq!((key.pages_encrypted(), tags), (0, [None; 2]));
    key.encrypt(place(524_286), &plain, &mut into, &mut tags).unwrap();
    key.decrypt(place(524_286), &tags, &mut into).unwrap();
    assert_eq!(key.encrypt(place(0), &[], &mut [], &mut []), Ok(()), "no pages are no work");
}

#[test]
fn tags_of_an_extent_take_memory_from_the_first_page_on() {
    let mut tags = PageTags::new(1 << 20);
    let mut looked_up = [None; 3];
    tags.load(253, &mut looked_up);
    assert_eq!((looked_up, tags.memory_bytes()), ([None; 3], 0));

    let (key, mut made) = (key(7), [None; 2]);
    key.encrypt(place(0), &[1; 8192], &mut [0; 8192], &mut made).unwrap();
    tags.store(254, &made);
    assert_eq!(tags.memory_bytes(), 256 * 24);
    tags.load(253, &mut looked_up);
    assert_eq!(looked_up, [None, made[0], made[1]]);
}

#[test]
#[should_panic(expected = "2 pages from page 15 on of an extent of 16 pages")]
fn tags_of_an_extent_do_not_reach_into_the_next() {
    PageTags::new(65_536).load(15, &mut [None; 2]);
}

/// File of one extent in a donor's memory, with as little file I/O as the test needs.
struct EncryptedFile {
    key: PageKey,
    tags: PageTags,
    donor: Vec<u8>,
}

/// First page of the extent in its region. Not 0, so that the two are not confused.
const FIRST_PAGE: u32 = 48;
const EXTENT_BYTES: u64 = 128 << 10;

impl EncryptedFile {
    /// Returns the pages of a range. Those never written are zeros.
    fn read_pages(&self, pages: Range<u64>) -> Vec<u8> {
        let mut bytes = self.donor[pages.start as usize..pages.end as usize].to_vec();
        for (index, page) in bytes.chunks_mut(PAGE_BYTES).enumerate() {
            let number = (pages.start / PAGE) as u32 + index as u32;
            let mut tags = [None];
            self.tags.load(number, &mut tags);
            match tags {
                [None] => page.fill(0),
                tags => self.key.decrypt(place(FIRST_PAGE + number), &tags, page).unwrap(),
            }
        }
        bytes
    }

    fn write_pages(&mut self, pages: Range<u64>, plain: &[u8]) {
        let number = (pages.start / PAGE) as u32;
        let mut tags = vec![None; plain.len() / PAGE_BYTES];
        let into = &mut self.donor[pages.start as usize..pages.end as usize];
        self.key.encrypt(place(FIRST_PAGE + number), plain, into, &mut tags).unwrap();
        self.tags.store(number, &tags);
    }

    fn write(&mut self, start: u64, bytes: &[u8]) {
        let split = PageSplit::of(start..start + bytes.len() as u64);
        for part in [split.head, split.tail].into_iter().filter(|part| !part.is_empty()) {
            let pages = pages_around(part.clone());
            let mut page = self.read_pages(pages.clone());
            let from = &bytes[(part.start - start) as usize..(part.end - start) as usize];
            page[(part.start - pages.start) as usize..][..from.len()].copy_from_slice(from);
            self.write_pages(pages, &page);
        }
        let whole = (split.whole.start - start) as usize..(split.whole.end - start) as usize;
        self.write_pages(split.whole, &bytes[whole]);
    }
}

fn range_below(end: u64) -> impl Strategy<Value = Range<u64>> {
    // Half of the range ends lie on a page boundary or next to one.
    let position = prop_oneof![
        0..=end,
        (0..=end / PAGE, -1..=1i64)
            .prop_map(move |(page, by)| (page * PAGE).saturating_add_signed(by).min(end)),
    ];
    (position.clone(), position).prop_map(|(one, other)| one.min(other)..one.max(other))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn file_of_encrypted_pages_reads_as_it_was_written(
        steps in prop::collection::vec((any::<bool>(), range_below(EXTENT_BYTES), any::<u64>()), 1..20),
    ) {
        let tags = PageTags::new(EXTENT_BYTES as u32);
        // Extents are reused without being wiped, so the bytes there at first are arbitrary.
        let mut file = EncryptedFile { key: key(8), tags, donor: vec![0xee; EXTENT_BYTES as usize] };
        let mut model = vec![0; EXTENT_BYTES as usize];
        for (is_write, range, seed) in steps {
            if range.is_empty() {
                continue;
            }
            if is_write {
                let into = &mut model[range.start as usize..range.end as usize];
                Draws(seed).fill(into);
                file.write(range.start, into);
            } else {
                let pages = pages_around(range.clone());
                let read = file.read_pages(pages.clone());
                let asked = &read[(range.start - pages.start) as usize..][..(range.end - range.start) as usize];
                prop_assert!(*asked == model[range.start as usize..range.end as usize]);
            }
        }
        prop_assert!(file.read_pages(0..EXTENT_BYTES) == model);
    }

    #[test]
    fn runs_decrypt_to_what_was_encrypted_and_in_any_parts(
        pages in 1..40usize, first in 0..500_000u32, seed in any::<u64>(), cut in any::<prop::sample::Index>(),
    ) {
        let key = key(9);
        let mut plain = vec![0; pages * PAGE_BYTES];
        Draws(seed).fill(&mut plain);
        let (mut bytes, mut tags) = (vec![0; plain.len()], vec![None; pages]);
        key.encrypt(place(first), &plain, &mut bytes, &mut tags).unwrap();
        prop_assert!(bytes.chunks(PAGE_BYTES).zip(plain.chunks(PAGE_BYTES)).all(|(one, other)| one != other));
        let cut = cut.index(pages + 1);
        let (front, back) = bytes.split_at_mut(cut * PAGE_BYTES);
        prop_assert_eq!(key.decrypt(place(first + cut as u32), &tags[cut..], back), Ok(()));
        prop_assert_eq!(key.decrypt(place(first), &tags[..cut], front), Ok(()));
        prop_assert!(bytes == plain);
    }

    #[test]
    fn split_is_where_pages_begin_and_loses_nothing(range in range_below(1 << 20), far in any::<bool>()) {
        // Half of the ranges lie at the very end of all offsets.
        let base = if far { (u64::MAX - (1 << 20)) / PAGE * PAGE } else { 0 };
        let range = base + range.start..base + range.end;
        let PageSplit { head, whole, tail } = PageSplit::of(range.clone());
        prop_assert_eq!(
            (head.start, head.end, whole.end, tail.end),
            (range.start, whole.start, tail.start, range.end)
        );
        prop_assert!(head.start <= head.end && whole.start <= whole.end && tail.start <= tail.end);
        if !whole.is_empty() {
            prop_assert!(whole.start.is_multiple_of(PAGE) && whole.end.is_multiple_of(PAGE));
        }
        for part in [head.clone(), tail.clone()].into_iter().filter(|part| !part.is_empty()) {
            prop_assert!(part.end - part.start < PAGE);
            prop_assert_eq!(part.start / PAGE, (part.end - 1) / PAGE, "inside one page");
            prop_assert_eq!(pages_around(part.clone()), part.start / PAGE * PAGE..(part.start / PAGE + 1) * PAGE);
        }
        if !head.is_empty() && !tail.is_empty() {
            prop_assert_ne!(head.start / PAGE, tail.start / PAGE, "never one page twice");
        }
        // The whole pages are as many as possible: `pages_around` adds only the pages of head and tail.
        let around = pages_around(range.clone());
        let partial = [&head, &tail].into_iter().filter(|part| !part.is_empty()).count() as u64;
        prop_assert_eq!(around.end - around.start, whole.end - whole.start + partial * PAGE);
    }
}

#[test]
fn split_of_a_range_that_ends_with_the_last_offset_does_not_overflow() {
    let start = u64::MAX - 10;
    let nothing = u64::MAX..u64::MAX;
    let split = PageSplit { head: start..u64::MAX, whole: nothing.clone(), tail: nothing };
    assert_eq!(PageSplit::of(start..u64::MAX), split);
    assert_eq!(pages_around(start..u64::MAX), u64::MAX - PAGE + 1..u64::MAX);
}
