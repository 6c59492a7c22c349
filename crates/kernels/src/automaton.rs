//! Small automata over many short strings. Their cost depends on the length of the strings, not on the pattern.
//!
//! The idea ("Sheng"): with at most 16 states, each byte is a table of 16 bytes that maps the present state to the
//! next one, and a step is one vector shuffle. A step waits only for the step before it, so eight strings side by
//! side keep the CPU busy. Most automata treat many bytes alike. If there are no more than 16 kinds of bytes, two
//! bytes make one step.

use crate::portable;

/// States that an automaton may have: the bytes of one vector.
pub const STATES_MAX: usize = 16;

/// Result of following a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Followed {
    /// Result for the whole string, which bytes that were not read cannot change: true if the string passes.
    ToTheEnd(bool),
    /// Number of bytes after which the automaton is in its start state again, as if it had read none of them.
    BackAtStart(usize),
}

/// Deterministic automaton over bytes, with at most 16 states.
#[derive(Clone, Debug)]
pub struct Automaton {
    /// Next state of each state, for each byte.
    pub(crate) steps: Box<[[u8; STATES_MAX]; 256]>,
    /// State before the first byte of a string.
    pub(crate) start: u8,
    /// 255 for each state in which a string passes if it ends there, else 0.
    pub(crate) accepting: [u8; STATES_MAX],
    /// 255 for each state that no byte leaves, else 0. The rest of a string need not be read in such a state.
    pub(crate) settled: [u8; STATES_MAX],
    /// Tables for steps of two bytes; `None` if the automaton treats bytes in more than 16 ways.
    pub(crate) pairs: Option<Box<Pairs>>,
}

/// Tables with which an automaton takes two bytes per step.
#[derive(Clone, Debug)]
pub(crate) struct Pairs {
    /// Kind of each byte, below 16. Bytes of one kind lead to the same states.
    pub(crate) kinds: [u8; 256],
    /// Next state of each state, for 16 times the kind of the first byte plus the kind of the second.
    pub(crate) steps: [[u8; STATES_MAX]; 256],
}

impl Pairs {
    /// Makes the tables. `None` if there are more than 16 kinds of bytes.
    fn new(steps: &[[u8; STATES_MAX]; 256]) -> Option<Box<Pairs>> {
        let mut found: Vec<[u8; STATES_MAX]> = Vec::new();
        let mut kinds = [0; 256];
        for (kind, step) in kinds.iter_mut().zip(steps) {
            let at = found.iter().position(|found| found == step).unwrap_or_else(|| {
                found.push(*step);
                found.len() - 1
            });
            *kind = at as u8;
        }
        if found.len() > 16 {
            return None;
        }
        let mut pairs = Box::new(Pairs { kinds, steps: [[0; STATES_MAX]; 256] });
        for (first, by_first) in found.iter().enumerate() {
            for (second, by_second) in found.iter().enumerate() {
                pairs.steps[first * 16 + second] = by_first.map(|state| by_second[usize::from(state)]);
            }
        }
        Some(pairs)
    }
}

impl Automaton {
    /// Makes an automaton from the next state of each state for each of the 256 bytes, the start state, and for each
    /// state whether strings that end there pass. `None` if there are more than 16 states, or a state that is named
    /// does not exist.
    pub fn new(states: &[[u8; 256]], start: u8, accepting: &[bool]) -> Option<Automaton> {
        let is_there = |state: &u8| usize::from(*state) < states.len();
        if states.len() > STATES_MAX
            || states.len() != accepting.len()
            || !is_there(&start)
            || !states.iter().flatten().all(is_there)
        {
            return None;
        }
        let mut steps = Box::new([[0; STATES_MAX]; 256]);
        let (mut accepts, mut settled) = ([0; STATES_MAX], [0; STATES_MAX]);
        for (state, next) in states.iter().enumerate() {
            next.iter().zip(steps.iter_mut()).for_each(|(next, step)| step[state] = *next);
            accepts[state] = if accepting[state] { 255 } else { 0 };
            settled[state] = if next.iter().all(|next| usize::from(*next) == state) { 255 } else { 0 };
        }
        let pairs = Pairs::new(&steps);
        Some(Automaton { steps, start, accepting: accepts, settled, pairs })
    }

    /// Reports whether a string passes: the automaton is in an accepting state after its last byte.
    pub fn passes(&self, string: &[u8]) -> bool {
        let step = |state: u8, byte: &u8| self.steps[usize::from(*byte)][usize::from(state)];
        self.accepting[usize::from(string.iter().fold(self.start, step))] != 0
    }

    /// Follows one string to its end, or to a state that cannot change any more. Every 64 bytes it checks whether it
    /// is in the start state, and stops if so: the caller may be able to skip ahead from there.
    pub fn follow(&self, string: &[u8]) -> Followed {
        #[cfg(target_arch = "x86_64")]
        let (state, at) = crate::x86::follow(self, string).unwrap_or_else(|| portable::follow(self, string));
        #[cfg(not(target_arch = "x86_64"))]
        let (state, at) = portable::follow(self, string);
        match state == self.start && at < string.len() && self.settled[usize::from(state)] == 0 {
            true => Followed::BackAtStart(at),
            false => Followed::ToTheEnd(self.accepting[usize::from(state)] != 0),
        }
    }

    /// Returns one bit per string, in words with the least significant bit first: 1 if the string passes. String `i`
    /// is `bytes[offsets[i]..offsets[i + 1]]`.
    ///
    /// # Panics
    /// If the offsets descend or reach beyond the bytes.
    pub fn matches(&self, bytes: &[u8], offsets: &[i32]) -> Vec<u64> {
        let is_within = offsets.is_sorted()
            && offsets.first().is_none_or(|first| *first >= 0)
            && offsets.last().is_none_or(|last| *last as usize <= bytes.len());
        assert!(is_within, "offsets that descend, or lie outside of {} bytes", bytes.len());
        #[cfg(target_arch = "x86_64")]
        if let Some(found) = crate::x86::matches(self, bytes, offsets) {
            return found;
        }
        portable::matches(self, bytes, offsets)
    }
}
