//! Linked list that the functions of `farpool bench functions` read, and the check of their outputs.

use crate::Outcome;
use crate::exit::Failure;

/// Bytes of one node of the list.
pub(super) const NODE_BYTES: usize = 64;
/// Bytes of one page read.
pub(super) const PAGE_BYTES: usize = 8 << 10;
/// Name of a page read in the results.
pub(super) const PAGE: &str = "page of 8 KiB read";

/// Linked list. `next` has the index of each node's successor.
pub(super) struct List {
    pub(super) next: Vec<u32>,
}

impl List {
    /// Creates a random list that visits all nodes in one cycle (Sattolo's algorithm).
    pub(super) fn new(bytes: u64) -> List {
        let count = (bytes as usize / NODE_BYTES).max(2);
        let mut next: Vec<u32> = (0..count as u32).collect();
        let mut random = 88_172_645_463_325_252u64;
        for index in (1..count).rev() {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            next.swap(index, (random % index as u64) as usize);
        }
        List { next }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.next.len() * NODE_BYTES];
        for (index, (node, next)) in bytes.chunks_exact_mut(NODE_BYTES).zip(&self.next).enumerate() {
            node[..8].copy_from_slice(&(u64::from(*next) * NODE_BYTES as u64).to_le_bytes());
            node[8..16].copy_from_slice(&(index as u64).to_le_bytes());
        }
        bytes
    }

    /// Returns the nodes for walks in this process. The first word of a node is the index of its successor, not the
    /// offset as in [`List::bytes`].
    pub(super) fn nodes(&self) -> Vec<[u64; NODE_BYTES / 8]> {
        self.next.iter().map(|next| [u64::from(*next), 0, 0, 0, 0, 0, 0, 0]).collect()
    }

    pub(super) fn walked(&self, first: u64, steps: u64) -> Vec<u8> {
        let (mut at, mut sum) = (first as usize / NODE_BYTES, 0u64);
        for _ in 0..steps {
            sum = sum.wrapping_add(at as u64);
            at = self.next[at] as usize;
        }
        words(&[(at * NODE_BYTES) as u64, sum])
    }
}

pub(super) fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub(super) fn check(got: &[u8], wanted: &[u8], what: &str) -> Outcome {
    if got == wanted {
        Ok(())
    } else {
        Err(Failure::Failed(format!("{what} gave {got:02x?}, not {wanted:02x?}")))
    }
}
