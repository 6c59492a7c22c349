//! Small automata over many short strings: what they cost depends on how long the strings are, not on the pattern.
//!
//! The idea ("Sheng"): of at most 16 states, a byte is a table of 16 bytes that says where each state goes, and a
//! step is one shuffle of vector bytes. Its only wait is for the step before, so eight strings side by side keep the
//! CPU busy. Most automata tell no more than 16 kinds of bytes apart; then two bytes make one step.

use crate::portable;

/// States that an automaton may have: one vector of bytes.
pub const STATES_MAX: usize = 16;

/// How far following a string came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Followed {
    /// It passes, or does not, whatever may follow.
    ToTheEnd(bool),
    /// Behind this many bytes the automaton stands in its start state again, as if none of them had been.
    BackAtStart(usize),
}

/// A deterministic automaton over bytes, with at most 16 states.
#[derive(Clone, Debug)]
pub struct Automaton {
    /// Of each byte, where each state goes.
    pub(crate) steps: Box<[[u8; STATES_MAX]; 256]>,
    pub(crate) start: u8,
    /// 255 for each state in which a string passes if it ends there.
    pub(crate) accepting: [u8; STATES_MAX],
    /// 255 for each state that no byte leaves: what follows need not be read.
    pub(crate) settled: [u8; STATES_MAX],
    pub(crate) pairs: Option<Box<Pairs>>,
}

/// Two bytes at once.
#[derive(Clone, Debug)]
pub(crate) struct Pairs {
    /// The kind of each byte, below 16: those of one kind go the same ways.
    pub(crate) kinds: [u8; 256],
    /// Of 16 times the first byte's kind plus the second's: where each state goes.
    pub(crate) steps: [[u8; STATES_MAX]; 256],
}

impl Pairs {
    /// Nothing if there are more than 16 kinds of bytes.
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
    /// Of where each state goes for each of the 256 bytes, the state that strings begin in, and the states they pass
    /// in. Nothing if there are more than 16 states, or one that is spoken of is not there.
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

    /// Whether a string passes.
    pub fn passes(&self, string: &[u8]) -> bool {
        let step = |state: u8, byte: &u8| self.steps[usize::from(*byte)][usize::from(state)];
        self.accepting[usize::from(string.iter().fold(self.start, step))] != 0
    }

    /// Follows one string to its end, or to where nothing more can change. From time to time it looks whether it
    /// stands in its start state, and then stops, as whoever can skip ahead from there may.
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

    /// A bit for each string, in words, the least significant first: whether it passes. String `i` is
    /// `bytes[offsets[i]..offsets[i + 1]]`.
    ///
    /// # Panics
    /// If the offsets descend, or lie outside of the bytes.
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
