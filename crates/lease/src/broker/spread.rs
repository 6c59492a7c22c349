//! Choice of the nodes that give the regions of a promise, and how many each gives.
//!
//! The idea: regions are divided at once, not handed out one by one. Nodes near the client come first. Among
//! nodes that are equally near, failure domains give equal shares as far as they can. Within a domain, the
//! nodes with most free memory give first, so that what stays free is as equal as possible. Shares are bytes,
//! rounded down to whole regions. The remainder comes from the domains that have most.

use farpool_wire::Name;
use farpool_wire::ids::NodeId;
use std::cmp::Reverse;

/// Node whose regions may be promised.
#[derive(Clone, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) node: NodeId,
    /// True if the node is on the client's own host.
    pub(super) near: bool,
    /// Failure domain of the node.
    pub(super) label: &'a Name,
    pub(super) region_bytes: u64,
    /// Regions that the node can give.
    pub(super) free: u64,
    /// Regions that the node will give: the result.
    pub(super) taken: u64,
}

impl Candidate<'_> {
    fn left_bytes(&self) -> u64 {
        (self.free - self.taken) * self.region_bytes
    }

    /// Takes up to this many bytes of the node's free regions, rounded down to whole regions. Returns the bytes taken.
    fn take_at_most(&mut self, bytes: u64) -> u64 {
        let regions = (bytes / self.region_bytes).min(self.free - self.taken);
        self.taken += regions;
        regions * self.region_bytes
    }
}

fn left_bytes(nodes: &[Candidate<'_>]) -> u64 {
    nodes.iter().map(Candidate::left_bytes).sum()
}

/// Takes at least this many bytes of the candidates' free regions, and less than one region more. Returns the bytes
/// that are missing: 0, unless all free regions were taken.
pub(super) fn spread(candidates: &mut [Candidate<'_>], bytes: u64) -> u64 {
    candidates.sort_by_key(|node| (Reverse(node.near), node.label, Reverse(node.left_bytes()), node.node));
    let mut missing = bytes;
    for tier in candidates.chunk_by_mut(|one, next| one.near == next.near) {
        missing = spread_over_domains(tier, missing);
    }
    missing
}

/// Takes bytes from nodes that are equally near, as [`spread`] does. The nodes are sorted by label, then by
/// free bytes.
fn spread_over_domains(tier: &mut [Candidate<'_>], bytes: u64) -> u64 {
    let mut domains: Vec<&mut [Candidate<'_>]> =
        tier.chunk_by_mut(|one, next| one.label == next.label).collect();
    let here = bytes.min(domains.iter().map(|domain| left_bytes(domain)).sum());
    // The smallest domain comes first; what it cannot give, the others share.
    domains.sort_by_key(|domain| left_bytes(domain));
    let mut to_share = here;
    let mut missing = here;
    for (index, left) in (1..=domains.len() as u64).rev().enumerate() {
        let share = left_bytes(domains[index]).min(to_share / left);
        to_share -= share;
        missing -= level(domains[index], share);
    }
    while missing > 0 {
        let before = missing;
        domains.sort_by_key(|domain| Reverse(left_bytes(domain)));
        for (index, left) in (1..=domains.len() as u64).rev().enumerate() {
            let most = domains[index].iter_mut().max_by_key(|node| (node.left_bytes(), Reverse(node.node)));
            if let Some(node) = most {
                let regions = missing.div_ceil(left).div_ceil(node.region_bytes);
                missing = missing.saturating_sub(node.take_at_most(regions * node.region_bytes));
            }
        }
        if missing == before {
            break;
        }
    }
    bytes - here + missing
}

/// Takes at most this many bytes from nodes sorted by free bytes, the most first. Leaves their free bytes as
/// equal as possible. Returns the bytes taken.
fn level(nodes: &mut [Candidate<'_>], bytes: u64) -> u64 {
    // Finds the level of free bytes that the first `count` nodes come down to, if the next node has no more
    // than that.
    let (mut all, mut level) = (0, 0);
    for count in 1..=nodes.len() {
        all += nodes[count - 1].left_bytes();
        if all < bytes {
            continue;
        }
        level = (all - bytes).div_ceil(count as u64);
        if nodes.get(count).is_none_or(|next| next.left_bytes() <= level) {
            break;
        }
    }
    let mut taken = 0;
    for node in nodes.iter_mut() {
        taken += node.take_at_most(node.left_bytes().saturating_sub(level));
    }
    // Takes the remainder that rounding left, while at least one whole region of it is missing.
    nodes.sort_by_key(|node| (Reverse(node.left_bytes()), node.node));
    for node in nodes.iter_mut() {
        taken += node.take_at_most(node.region_bytes.min(bytes - taken));
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn labels() -> Vec<Name> {
        ["a", "b", "c", "d"].map(|label| Name::new(label).expect("a name")).to_vec()
    }

    /// Takes regions of 1 MiB from nodes given as (label, near, free regions). Returns the regions that each gives.
    fn taken(nodes: &[(usize, bool, u64)], regions: u64) -> Vec<u64> {
        let labels = labels();
        let candidate = |(index, (label, near, free)): (usize, &(usize, bool, u64))| Candidate {
            node: NodeId(index as u64),
            near: *near,
            label: &labels[*label],
            region_bytes: MIB,
            free: *free,
            taken: 0,
        };
        let mut candidates: Vec<Candidate<'_>> = nodes.iter().enumerate().map(candidate).collect();
        spread(&mut candidates, regions * MIB);
        candidates.sort_by_key(|node| node.node);
        candidates.iter().map(|node| node.taken).collect()
    }

    #[test]
    fn promise_is_shared_equally_by_failure_domains_before_nodes() {
        // One node against three of another host; each has as many regions.
        assert_eq!(
            taken(&[(0, false, 50), (1, false, 50), (1, false, 50), (1, false, 50)], 12),
            [6, 2, 2, 2]
        );
        // Other domains share what a small one cannot give.
        assert_eq!(taken(&[(0, false, 2), (1, false, 50), (2, false, 50)], 12), [2, 5, 5]);
        // One region comes from the node that has most.
        assert_eq!(taken(&[(0, false, 10), (1, false, 50), (2, false, 30)], 1), [0, 1, 0]);
        assert_eq!(taken(&[(0, false, 10), (1, false, 50), (2, false, 30)], 2), [0, 1, 1]);
    }

    #[test]
    fn promise_within_a_failure_domain_levels_what_stays_free() {
        assert_eq!(taken(&[(0, false, 50), (0, false, 20), (0, false, 10)], 30), [30, 0, 0]);
        assert_eq!(taken(&[(0, false, 50), (0, false, 20), (0, false, 10)], 40), [35, 5, 0]);
        assert_eq!(taken(&[(0, false, 50), (0, false, 20), (0, false, 10)], 80), [50, 20, 10]);
    }

    #[test]
    fn promise_comes_from_near_nodes_as_far_as_they_go() {
        assert_eq!(taken(&[(0, true, 5), (1, false, 50), (1, true, 5)], 4), [2, 0, 2]);
        assert_eq!(taken(&[(0, true, 5), (1, false, 50), (2, false, 50)], 9), [5, 2, 2]);
    }

    proptest! {
        #[test]
        fn promise_is_whole_and_not_a_region_too_many(
            nodes in proptest::collection::vec((0..4usize, any::<bool>(), 0..60u64, 0..4u32), 1..12),
            share in 0..=1_000u64,
        ) {
            let labels = labels();
            let mut candidates: Vec<Candidate<'_>> = nodes.iter().enumerate().map(|(index, node)| Candidate {
                node: NodeId(index as u64),
                near: node.1,
                label: &labels[node.0],
                region_bytes: MIB << node.3,
                free: node.2,
                taken: 0,
            }).collect();
            let all: u64 = left_bytes(&candidates);
            let wanted = all * share / 1_000;
            prop_assert_eq!(spread(&mut candidates, wanted), 0);
            let given: u64 = candidates.iter().map(|node| node.taken * node.region_bytes).sum();
            prop_assert!(candidates.iter().all(|node| node.taken <= node.free));
            let largest = candidates.iter().map(|node| node.region_bytes).max().unwrap_or(0);
            prop_assert!(given >= wanted && given < wanted + largest, "{} for {}", given, wanted);
            let nears = candidates.iter().filter(|node| node.near);
            let near_left: u64 = nears.map(Candidate::left_bytes).sum();
            let far_taken = candidates.iter().any(|node| !node.near && node.taken > 0);
            prop_assert!(near_left == 0 || !far_taken, "near nodes come first");
            prop_assert_eq!(spread(&mut candidates, all + 1), all + 1 - (all - given));
        }
    }
}
