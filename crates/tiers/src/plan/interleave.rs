//! Which of many pieces lie near, at any ratio exactly, and evenly mixed.
//!
//! The idea: piece `i` is near if `round((i + 1) near / of)` is more than `round(i near / of)`, as Bresenham draws a
//! line: among the first `n` pieces as near to `n near / of` as can be are near, for every `n`. That pieces are mixed
//! is a condition of all that this crate says about two tiers: with the near ones first and the far ones behind them,
//! only one tier works at a time, and nothing is gained at any ratio.

/// So many of every so many are near.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interleave {
    near: u64,
    of: u64,
}

impl Interleave {
    /// All of them far.
    pub const FAR: Interleave = Interleave { near: 0, of: 1 };
    /// All of them near.
    pub const NEAR: Interleave = Interleave { near: 1, of: 1 };

    /// `near` to `far`, such as 3:2. Nothing if both are 0.
    pub fn ratio(near: u32, far: u32) -> Option<Interleave> {
        let of = u64::from(near) + u64::from(far);
        (of > 0).then_some(Interleave { near: u64::from(near), of })
    }

    /// As near to a share as so many pieces can be. What is no share counts as the nearest one, NaN as none.
    pub fn share(share: f64, pieces: u64) -> Interleave {
        let of = pieces.max(1);
        let near = (share.clamp(0.0, 1.0) * of as f64).round() as u64;
        Interleave { near: near.min(of), of }
    }

    /// Whether this piece is near.
    pub fn is_near(&self, piece: u64) -> bool {
        self.near_of_first(u128::from(piece) + 1) > self.near_of_first(u128::from(piece))
    }

    /// How many of the first so many pieces are near.
    pub fn near_among(&self, pieces: u64) -> u64 {
        // No more than `pieces`, as `near` is no more than `of`.
        self.near_of_first(u128::from(pieces)) as u64
    }

    fn near_of_first(&self, pieces: u128) -> u128 {
        let of = u128::from(self.of);
        (pieces * u128::from(self.near) + of / 2) / of
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_run_of_pieces_has_its_share_to_within_one(near in 0u32..50, far in 0u32..50, from in 0u64..1 << 40) {
            prop_assume!(near + far > 0);
            let interleave = Interleave::ratio(near, far).unwrap();
            let mut found = 0.0;
            for count in 1..200u64 {
                found += f64::from(u8::from(interleave.is_near(from + count - 1)));
                let share = f64::from(near) / f64::from(near + far);
                prop_assert!((found - count as f64 * share).abs() < 1.0 + 1e-9);
                let among = interleave.near_among(count) as f64;
                prop_assert!((among - count as f64 * share).abs() <= 0.5 + 1e-9);
            }
        }

        #[test]
        fn share_of_so_many_pieces_is_exact(share in 0.0f64..=1.0, pieces in 1u64..10_000) {
            let interleave = Interleave::share(share, pieces);
            let near = (0..pieces).filter(|piece| interleave.is_near(*piece)).count() as u64;
            prop_assert_eq!(near, (share * pieces as f64).round() as u64);
            prop_assert_eq!(near, interleave.near_among(pieces));
        }
    }

    #[test]
    fn three_to_two_is_mixed_and_not_in_blocks() {
        let interleave = Interleave::ratio(3, 2).unwrap();
        let near: Vec<bool> = (0..5).map(|piece| interleave.is_near(piece)).collect();
        assert_eq!(near, [true, false, true, false, true]);
        assert_eq!(Interleave::ratio(0, 0), None);
        assert!(!Interleave::share(f64::NAN, 7).is_near(3));
        assert!(Interleave::NEAR.is_near(u64::MAX) && !Interleave::FAR.is_near(0));
    }
}
