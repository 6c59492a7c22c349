//! Accesses of the benchmarks: sizes, order and offsets. Random offsets depend on the seed of the run, but not on the
//! system that is measured. All systems of a run therefore access the same offsets.

use super::mixing::mix;

/// Bytes of a small access: a page of a database.
pub(crate) const SMALL: usize = 8 << 10;
/// Bytes of a large access: a block of a sorted run.
pub(crate) const LARGE: usize = 512 << 10;

/// Kind of access to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// Name in the results.
    pub(crate) name: &'static str,
    /// Name in `--access`.
    pub(crate) word: &'static str,
    /// Bytes of each operation.
    pub(crate) block: usize,
    pub(crate) is_random: bool,
    pub(crate) is_write: bool,
}

/// All kinds of access. Within each size, reads come before writes.
pub(crate) const ACCESSES: [Access; 4] = [
    Access { name: "8 KiB random reads", word: "8k-read", block: SMALL, is_random: true, is_write: false },
    Access { name: "8 KiB random writes", word: "8k-write", block: SMALL, is_random: true, is_write: true },
    Access {
        name: "512 KiB sequential reads",
        word: "512k-read",
        block: LARGE,
        is_random: false,
        is_write: false,
    },
    Access {
        name: "512 KiB sequential writes",
        word: "512k-write",
        block: LARGE,
        is_random: false,
        is_write: true,
    },
];

/// Limit for the bytes of one client's outstanding operations. Above this limit, more outstanding operations only make
/// the queue longer.
pub(crate) const UNDER_WAY_BYTES_MAX: usize = 8 << 20;

/// Parses one word of `--access`.
pub(crate) fn parse_access(word: &str) -> Result<Access, String> {
    let words = ACCESSES.map(|access| access.word).join(", ");
    ACCESSES
        .into_iter()
        .find(|access| access.word == word)
        .ok_or_else(|| format!("{word:?} is not an access; {words} are permitted"))
}

/// Endless iterator over the offsets, in bytes, that one client accesses.
pub(crate) struct Offsets {
    access: Access,
    blocks: u64,
    state: u64,
}

impl Offsets {
    /// Creates the offsets for a file of `bytes`, which is at least one block. Equal seeds give equal offsets. For
    /// sequential accesses, the seed is the number of the first block.
    pub(crate) fn new(access: Access, bytes: u64, seed: u64) -> Offsets {
        Offsets { access, blocks: (bytes / access.block as u64).max(1), state: seed }
    }
}

impl Iterator for Offsets {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let block = if self.access.is_random {
            self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(self.state) % self.blocks
        } else {
            let next = self.state % self.blocks;
            self.state = next + 1;
            next
        };
        Some(block * self.access.block as u64)
    }
}

/// Returns the seed of the offsets of one client. `numbers` are parts such as the client, the depth and the round. The
/// measured system is not among them, so that all systems access the same offsets.
pub(crate) fn seed_of(seed: u64, access: Access, numbers: [u64; 4]) -> u64 {
    if !access.is_random {
        return 0;
    }
    let start = mix(seed ^ access.block as u64 ^ u64::from(access.is_write) << 32);
    numbers.into_iter().fold(start, |state, number| mix(state ^ number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_lie_in_the_file_on_blocks() {
        for access in ACCESSES {
            for bytes in [1 << 20, 3 << 20, (5 << 20) + 777] {
                for offset in Offsets::new(access, bytes, 7).take(5_000) {
                    assert_eq!(offset % access.block as u64, 0);
                    assert!(offset + access.block as u64 <= bytes, "{offset} of {bytes}");
                }
            }
        }
    }

    #[test]
    fn sequential_offsets_are_every_block_in_turn() {
        let access = parse_access("512k-read").unwrap();
        let found: Vec<u64> = Offsets::new(access, 3 * LARGE as u64, 0).take(4).collect();
        assert_eq!(found, [0, 1, 2, 0].map(|block| block * LARGE as u64));
    }

    #[test]
    fn random_offsets_repeat_with_their_seed_and_reach_everywhere() {
        let access = parse_access("8k-read").unwrap();
        let draw = |seed| -> Vec<u64> { Offsets::new(access, 1 << 20, seed).take(4_000).collect() };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let mut distinct = draw(1);
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), (1 << 20) / SMALL);
    }

    #[test]
    fn seeds_differ_by_client_depth_round_and_kind() {
        let [read, write, ..] = ACCESSES;
        let seeds = [
            seed_of(1, read, [0, 1, 0, 0]),
            seed_of(1, read, [1, 1, 0, 0]),
            seed_of(1, read, [0, 64, 0, 0]),
            seed_of(1, read, [0, 1, 1, 0]),
            seed_of(2, read, [0, 1, 0, 0]),
            seed_of(1, write, [0, 1, 0, 0]),
        ];
        for (index, seed) in seeds.iter().enumerate() {
            assert!(!seeds[..index].contains(seed), "seed {index}");
        }
    }

    #[test]
    fn unknown_access_is_refused_with_those_there_are() {
        assert!(parse_access("4k-read").is_err_and(|message| message.contains("8k-write")));
    }
}
