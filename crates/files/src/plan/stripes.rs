//! Stripes of a file: ranges of its map that protect each other. Ranges behind the end of the file have parity.

use super::Allocation;
use farpool_wire::Name;
use farpool_wire::host_label::may_be_one_host;
use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges that protect each other. Each lies on another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stripe {
    /// Ranges of the map, in the order of the code: those with bytes of the file first, then those with parity.
    pub shards: Vec<Range<u64>>,
    /// Number of ranges with bytes of the file.
    pub data: usize,
}

/// Stripe whose parity was written while the file was, and is not in its map yet.
#[derive(Debug)]
pub struct StripeAhead<R> {
    /// Ranges with bytes of the file.
    pub data: Vec<Range<u64>>,
    /// Extents of each run with parity, which is as long as the longest of the ranges.
    pub parity: Vec<Vec<Allocation<R>>>,
}

impl<R> StripeAhead<R> {
    /// Returns where the parity lies.
    pub fn into_parity(self) -> impl Iterator<Item = Allocation<R>> {
        self.parity.into_iter().flatten()
    }
}

/// Stripes of a file.
#[derive(Clone, Debug, Default)]
pub struct Stripes {
    stripes: Vec<Stripe>,
    /// Stripe of each range, and its number there, by the first byte.
    by_start: BTreeMap<u64, (usize, usize)>,
}

impl Stripes {
    /// Makes the stripes of a file. No two ranges overlap.
    pub fn new(stripes: Vec<Stripe>) -> Stripes {
        let mut by_start = BTreeMap::new();
        for (index, stripe) in stripes.iter().enumerate() {
            for (number, shard) in stripe.shards.iter().enumerate() {
                by_start.insert(shard.start, (index, number));
            }
        }
        Stripes { stripes, by_start }
    }

    /// Returns the stripe that a byte belongs to, and the number of the shard that has it.
    pub fn at(&self, offset: u64) -> Option<(&Stripe, usize)> {
        let (_, (index, number)) = self.by_start.range(..=offset).next_back()?;
        let stripe = self.stripes.get(*index)?;
        stripe.shards.get(*number).filter(|shard| shard.contains(&offset)).map(|_| (stripe, *number))
    }

    /// Returns all stripes.
    pub fn iter(&self) -> impl Iterator<Item = &Stripe> {
        self.stripes.iter()
    }
}

/// Groups runs of a file, each given by its length and the label of its host, to stripes with up to `data` runs that
/// lie on different hosts. Returns their indices.
///
/// A stripe takes as much parity as its longest run has bytes, so runs of similar length come together.
pub fn grouped(runs: &[(u64, Name)], data: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..runs.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(runs[*index].0));
    let (mut full, mut open): (Vec<Vec<usize>>, Vec<Vec<usize>>) = (Vec::new(), Vec::new());
    for index in order {
        let is_apart = |other: &usize| !may_be_one_host(&runs[*other].1, &runs[index].1);
        let found = open.iter().position(|group| group.iter().all(is_apart));
        let at = found.unwrap_or_else(|| {
            open.push(Vec::with_capacity(data));
            open.len() - 1
        });
        open[at].push(index);
        if open[at].len() >= data {
            full.push(open.remove(at));
        }
    }
    full.append(&mut open);
    full
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn label(host: usize) -> Name {
        Name::new(format!("host-{host}")).expect("a name")
    }

    proptest! {
        #[test]
        fn each_run_is_in_one_stripe_whose_runs_lie_on_different_hosts(
            runs in proptest::collection::vec((1..1_000u64, 0..6usize), 0..40), data in 1..6usize,
        ) {
            let given: Vec<(u64, Name)> = runs.iter().map(|(bytes, host)| (*bytes, label(*host))).collect();
            let stripes = grouped(&given, data);
            let mut all: Vec<usize> = stripes.concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..runs.len()).collect::<Vec<_>>());
            for stripe in &stripes {
                let hosts: BTreeSet<usize> = stripe.iter().map(|index| runs[*index].1).collect();
                prop_assert_eq!(hosts.len(), stripe.len());
                prop_assert!(stripe.len() <= data);
            }
        }
    }

    #[test]
    fn runs_that_are_spread_over_as_many_hosts_make_whole_stripes_of_similar_lengths() {
        let runs: Vec<(u64, Name)> =
            (0..12).map(|index| (if index < 6 { 100 } else { 7 }, label(index % 6))).collect();
        let stripes = grouped(&runs, 3);
        assert_eq!(stripes.iter().map(Vec::len).collect::<Vec<_>>(), [3; 4]);
        assert!(stripes.iter().all(|stripe| stripe.iter().all(|index| runs[*index].0 == runs[stripe[0]].0)));
    }

    #[test]
    fn byte_is_found_in_its_stripe() {
        let stripe = |shards: &[Range<u64>]| Stripe { shards: shards.to_vec(), data: 1 };
        let stripes = Stripes::new(vec![stripe(&[0..10, 64..128]), stripe(&[10..30, 128..192])]);
        let at = |offset| stripes.at(offset).map(|(stripe, number)| (stripe.shards[0].start, number));
        assert_eq!(
            [0, 9, 10, 29, 30, 63, 64, 191, 192].map(at),
            [
                Some((0, 0)),
                Some((0, 0)),
                Some((10, 0)),
                Some((10, 0)),
                None,
                None,
                Some((0, 1)),
                Some((10, 1)),
                None
            ]
        );
    }
}
