//! Small automata for patterns, with at most 16 states, built from the parser output of the regex crates.
//!
//! The idea: text is valid UTF-8, so `.*` may match any bytes. That saves the states within a character. A pattern
//! that does not fit 16 states, or has another meaning over bytes, is left to `regex`.

use farpool_kernels::{Automaton, STATES_MAX};
use regex_automata::dfa::dense::{Builder, Config, DFA};
use regex_automata::dfa::{Automaton as _, StartKind};
use regex_automata::nfa::thompson::{self, Compiler, WhichCaptures};
use regex_automata::util::primitives::StateID;
use regex_automata::{Anchored, Input, MatchKind};
use regex_syntax::hir::{Class, ClassBytes, ClassBytesRange, Hir, HirKind, Look, LookSet, Visitor, visit};
use std::collections::BTreeMap;

/// Most bytes of the intermediate automata.
const ON_THE_WAY_BYTES_MAX: usize = 256 << 10;
/// Most states of the intermediate automaton. Many of them may be equivalent.
const ON_THE_WAY_STATES_MAX: usize = 256;

/// Returns an automaton that passes the texts in which the pattern is found, or `None` if there is no small one.
pub(super) fn automaton(pattern: &Hir) -> Option<Automaton> {
    let properties = pattern.properties();
    // An empty match can lie within a character, and word boundaries need tables of letters.
    let ends = [Look::Start, Look::End, Look::StartLF, Look::EndLF].map(LookSet::singleton);
    let ends = ends.into_iter().fold(LookSet::empty(), LookSet::union);
    if properties.minimum_len().is_none_or(|least| least == 0)
        || !properties.look_set().subtract(ends).is_empty()
    {
        return None;
    }
    let pattern = visit(pattern, OverBytes::default()).ok()?;
    let nfa = Compiler::new()
        .configure(
            thompson::Config::new()
                .utf8(false)
                .which_captures(WhichCaptures::None)
                .nfa_size_limit(Some(ON_THE_WAY_BYTES_MAX)),
        )
        .build_from_hir(&pattern)
        .ok()?;
    let config = Config::new()
        .start_kind(StartKind::Unanchored)
        .match_kind(MatchKind::All)
        .accelerate(false)
        .dfa_size_limit(Some(ON_THE_WAY_BYTES_MAX))
        .determinize_size_limit(Some(ON_THE_WAY_BYTES_MAX));
    smallest(&Builder::new().configure(config).build_from_nfa(&nfa).ok()?)
}

/// Visitor that rebuilds a pattern with `.*` over bytes and without captures.
#[derive(Default)]
struct OverBytes {
    done: Vec<Hir>,
}

impl Visitor for OverBytes {
    type Output = Hir;
    type Err = ();

    fn finish(mut self) -> Result<Hir, ()> {
        self.done.pop().ok_or(())
    }

    fn visit_post(&mut self, hir: &Hir) -> Result<(), ()> {
        let count = match hir.kind() {
            HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.len(),
            HirKind::Repetition(_) | HirKind::Capture(_) => 1,
            HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) | HirKind::Look(_) => 0,
        };
        let mut parts = self.done.split_off(self.done.len().checked_sub(count).ok_or(())?);
        let done = match hir.kind() {
            HirKind::Concat(_) => Hir::concat(parts),
            HirKind::Alternation(_) => Hir::alternation(parts),
            HirKind::Capture(_) => parts.pop().ok_or(())?,
            HirKind::Repetition(repetition) => {
                let mut repetition = repetition.clone();
                let part = parts.pop().ok_or(())?;
                let is_open = repetition.min <= 1 && repetition.max.is_none();
                repetition.sub = Box::new(over_bytes(&part).filter(|_| is_open).unwrap_or(part));
                Hir::repetition(repetition)
            }
            _ => hir.clone(),
        };
        self.done.push(done);
        Ok(())
    }
}

/// Converts a class that has all characters beyond ASCII to one over bytes: the same ASCII bytes, and all bytes from
/// 0x80. Any number of those bytes is any number of such characters, because the text before and after begins and
/// ends with whole characters.
fn over_bytes(class: &Hir) -> Option<Hir> {
    let HirKind::Class(Class::Unicode(class)) = class.kind() else { return None };
    class.ranges().last().filter(|last| last.end() == char::MAX && last.start() <= '\u{80}')?;
    let ascii = class.ranges().iter().filter(|range| range.start() < '\u{80}');
    let ascii =
        ascii.map(|range| ClassBytesRange::new(range.start() as u8, (range.end() as u32).min(0x7f) as u8));
    Some(Hir::class(Class::Bytes(ClassBytes::new(ascii.chain([ClassBytesRange::new(0x80, 0xff)])))))
}

/// Returns the equivalent automaton with the fewest states, or `None` if it has more than 16. A match is final: the
/// rest of the text is not read.
fn smallest(dfa: &DFA<Vec<u32>>) -> Option<Automaton> {
    let start = dfa.start_state_forward(&Input::new("").anchored(Anchored::No)).ok()?;
    // State 0 means that the pattern was found.
    let mut numbers: BTreeMap<StateID, usize> = BTreeMap::from([(start, 1)]);
    let mut found = vec![start];
    let mut steps = vec![[0usize; 256]];
    let mut accepting = vec![true];
    let mut at = 0;
    while let Some(state) = found.get(at).copied() {
        at += 1;
        let mut step = [0; 256];
        for (byte, step) in (0..=u8::MAX).zip(&mut step) {
            let next = dfa.next_state(state, byte);
            if dfa.is_quit_state(next) || found.len() > ON_THE_WAY_STATES_MAX {
                return None;
            }
            if !dfa.is_match_state(next) {
                *step = *numbers.entry(next).or_insert_with(|| {
                    found.push(next);
                    found.len()
                });
            }
        }
        steps.push(step);
        accepting.push(dfa.is_match_state(dfa.next_eoi_state(state)));
    }
    // Moore's algorithm: classes of states are split until all states of a class lead to the same classes.
    let mut classes: Vec<usize> = accepting.iter().map(|accepts| usize::from(!accepts)).collect();
    let mut count = 0;
    loop {
        let mut of: BTreeMap<(usize, Vec<usize>), usize> = BTreeMap::new();
        let mut split = Vec::new();
        for (class, step) in classes.iter().zip(&steps) {
            let key = (*class, step.iter().map(|next| classes[*next]).collect());
            let next = of.len();
            split.push(*of.entry(key).or_insert(next));
        }
        if of.len() > STATES_MAX {
            return None;
        }
        classes = split;
        if of.len() == count {
            break;
        }
        count = of.len();
    }
    let mut table = vec![[0u8; 256]; count];
    let mut accepts = vec![false; count];
    for (state, class) in classes.iter().enumerate() {
        accepts[*class] = accepting[state];
        for (to, next) in table[*class].iter_mut().zip(&steps[state]) {
            *to = classes[*next] as u8;
        }
    }
    Automaton::new(&table, classes[1] as u8, &accepts)
}
