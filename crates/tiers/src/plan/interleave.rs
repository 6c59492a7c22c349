//! Choice of which of many items (chunks of memory, parts of an input) lie near, at any ratio exactly and evenly mixed.
//!
//! The idea: a straight line on a grid of pixels cannot be followed exactly, but Bresenham's rule stays within half a
//! pixel of it everywhere. Here the line is the desired number of near items. Item `i` is near if
//! `round((i + 1) near / of)` is more than `round(i near / of)`. Among the first `n` items, for every `n`, the number
//! of near items is as close to `n near / of` as a whole number can be.
//!
//! Putting the near items first is simpler and has the same ratio. Then only one tier works at a time, and no ratio
//! gains anything. All results of this crate about two tiers assume that items are mixed. Choosing at random mixes too,
//! but then a short run of items may have far too many of one kind.

/// Ratio: `near` of every `of` items lie near.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interleave {
    near: u64,
    of: u64,
}

impl Interleave {
    /// All items far.
    pub const FAR: Interleave = Interleave { near: 0, of: 1 };
    /// All items near.
    pub const NEAR: Interleave = Interleave { near: 1, of: 1 };

    /// Returns the ratio `near` to `far`, such as 3:2; `None` if both are 0.
    pub fn ratio(near: u32, far: u32) -> Option<Interleave> {
        let of = u64::from(near) + u64::from(far);
        (of > 0).then_some(Interleave { near: u64::from(near), of })
    }

    /// Returns the ratio closest to `share` that `items` items can have. Shares are limited to 0..=1; NaN counts as 0.
    pub fn share(share: f64, items: u64) -> Interleave {
        let of = items.max(1);
        let near = (share.clamp(0.0, 1.0) * of as f64).round() as u64;
        Interleave { near: near.min(of), of }
    }

    /// Reports whether item number `item` is near.
    pub fn is_near(&self, item: u64) -> bool {
        self.near_of_first(u128::from(item) + 1) > self.near_of_first(u128::from(item))
    }

    /// Returns how many of the first `items` items are near.
    pub fn near_among(&self, items: u64) -> u64 {
        // The result fits, because it is at most `items`: `near` is at most `of`.
        self.near_of_first(u128::from(items)) as u64
    }

    fn near_of_first(&self, items: u128) -> u128 {
        let of = u128::from(self.of);
        (items * u128::from(self.near) + of / 2) / of
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_run_of_items_has_its_share_to_within_one(near in 0u32..50, far in 0u32..50, from in 0u64..1 << 40) {
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
        fn share_of_so_many_items_is_exact(share in 0.0f64..=1.0, items in 1u64..10_000) {
            let interleave = Interleave::share(share, items);
            let near = (0..items).filter(|item| interleave.is_near(*item)).count() as u64;
            prop_assert_eq!(near, (share * items as f64).round() as u64);
            prop_assert_eq!(near, interleave.near_among(items));
        }
    }

    #[test]
    fn three_to_two_is_mixed_and_not_in_blocks() {
        let interleave = Interleave::ratio(3, 2).unwrap();
        let near: Vec<bool> = (0..5).map(|item| interleave.is_near(item)).collect();
        assert_eq!(near, [true, false, true, false, true]);
        assert_eq!(Interleave::ratio(0, 0), None);
        assert!(!Interleave::share(f64::NAN, 7).is_near(3));
        assert!(Interleave::NEAR.is_near(u64::MAX) && !Interleave::FAR.is_near(0));
    }
}
