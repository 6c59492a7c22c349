//! Patterns, compiled once for a program. Both LIKE and regular expressions end as an automaton of linear time.
//!
//! The idea: there are two engines that give the same results. The `regex` crate costs about 40 ns per text, and in
//! long texts it skips ahead to where a match is possible. Our small automata start cheaply and cost the same for
//! each byte. So they take all short texts, and in long texts they skip ahead to where the pattern may begin. Other
//! ways to skip ahead are left to `regex`.

use super::automaton::automaton;
use arrow_array::{Array, StringArray};
use arrow_buffer::{BooleanBuffer, Buffer};
use farpool_kernels::{Automaton, Followed, STATES_MAX};
use regex_automata::meta::{self, Regex};
use regex_automata::util::prefilter::Prefilter;
use regex_automata::util::syntax;
use regex_automata::{MatchKind, Span};
use regex_syntax::hir::Hir;

/// Most bytes of one compiled pattern, and also of the states that one search may cache.
const PATTERN_STATES_BYTES_MAX: usize = 512 << 10;
/// Greatest nesting depth of a regular expression.
const NEST_MAX: u32 = 64;
/// Bytes of a text from which on skipping ahead may be faster than reading each byte.
const LONG_BYTES: usize = 128;
/// Least number of consecutive short texts that are searched by the automaton at once, in a column that has long texts
/// too. Fewer are searched one by one.
const SHORT_RUN_MIN: usize = 8;

/// Compiled pattern: the same language as a `regex` and, if 16 states suffice, as an automaton.
#[derive(Debug)]
pub(super) struct Pattern {
    regex: Regex,
    automaton: Option<Automaton>,
    /// Search of long texts, if there is an automaton.
    ahead: Ahead,
}

/// Way to skip ahead in long texts.
#[derive(Debug)]
enum Ahead {
    /// No skipping: every byte is read.
    Nothing,
    /// A search for the beginning of the pattern; the automaton goes on from there.
    Beginning(Prefilter),
    /// The search of `regex`.
    ByRegex,
}

impl Pattern {
    /// Returns the bytes that the pattern takes, with the cache of one search.
    pub(super) fn held_bytes(&self) -> usize {
        let automaton = self.automaton.as_ref().map_or(0, |_| size_of::<[[u8; 256]; 2 * STATES_MAX]>());
        self.regex.memory_usage() + PATTERN_STATES_BYTES_MAX + automaton
    }

    /// Returns one bit per text: 1 if the pattern is found in it. The bit of a NULL has no meaning.
    pub(super) fn search(&self, texts: &StringArray) -> BooleanBuffer {
        let by_regex = |row: usize| texts.is_valid(row) && self.regex.is_match(texts.value(row));
        let alone = |row: usize| texts.is_valid(row) && self.is_in(texts.value(row));
        let Some(automaton) = &self.automaton else {
            return BooleanBuffer::collect_bool(texts.len(), by_regex);
        };
        let (offsets, bytes) = (texts.value_offsets(), texts.value_data());
        let is_long = |row: usize| offsets[row].abs_diff(offsets[row + 1]) as usize > LONG_BYTES;
        let rows = texts.len();
        let by_automaton = |from: usize, to: usize| {
            let words = automaton.matches(bytes, &offsets[from..=to]);
            BooleanBuffer::new(Buffer::from_vec(words), 0, to - from)
        };
        if matches!(self.ahead, Ahead::Nothing) || !(0..rows).any(is_long) {
            return by_automaton(0, rows);
        }
        if (0..rows).all(is_long) {
            return match &self.ahead {
                Ahead::Beginning(_) => BooleanBuffer::collect_bool(rows, alone),
                _ => BooleanBuffer::collect_bool(rows, by_regex),
            };
        }
        let mut found = arrow_buffer::BooleanBufferBuilder::new(rows);
        let mut row = 0;
        while row < rows {
            let short = (row..rows).take_while(|row| !is_long(*row)).count();
            if short >= SHORT_RUN_MIN {
                found.append_buffer(&by_automaton(row, row + short));
                row += short;
                continue;
            }
            let next = rows.min(row + short.max(1));
            (row..next).for_each(|row| found.append(alone(row)));
            row = next;
        }
        found.finish()
    }

    /// Reports whether the pattern is found in one text.
    fn is_in(&self, text: &str) -> bool {
        let (Some(automaton), Ahead::Beginning(beginning)) = (&self.automaton, &self.ahead) else {
            return self.regex.is_match(text);
        };
        let mut at = 0;
        while let Some(found) = beginning.find(text.as_bytes(), Span { start: at, end: text.len() }) {
            match automaton.follow(&text.as_bytes()[found.start..]) {
                Followed::ToTheEnd(is_found) => return is_found,
                Followed::BackAtStart(behind) => at = found.start + behind,
            }
        }
        false
    }
}

/// Compiles a regular expression that may match anywhere in a text.
pub(super) fn regular(pattern: &str) -> Result<Pattern, String> {
    build(pattern, false, false)
}

fn build(pattern: &str, dot_is_any: bool, ignores_case: bool) -> Result<Pattern, String> {
    let syntax = syntax::Config::new()
        .nest_limit(NEST_MAX)
        .dot_matches_new_line(dot_is_any)
        .case_insensitive(ignores_case);
    let limits = meta::Config::new()
        .nfa_size_limit(Some(PATTERN_STATES_BYTES_MAX))
        .hybrid_cache_capacity(PATTERN_STATES_BYTES_MAX);
    let unusable = |why: String| format!("a pattern that cannot be used: {why}");
    let parsed = syntax::parse_with(pattern, &syntax).map_err(|error| unusable(error.to_string()))?;
    let regex = meta::Builder::new().configure(limits).build_from_hir(&parsed);
    let regex = regex.map_err(|error| match error.size_limit() {
        Some(limit) => unusable(format!("it takes more than {limit} bytes once compiled")),
        None => unusable(error.to_string()),
    })?;
    let automaton = automaton(&parsed);
    let ahead = match automaton.is_some() && regex.is_accelerated() {
        true => beginning(&parsed).map_or(Ahead::ByRegex, Ahead::Beginning),
        false => Ahead::Nothing,
    };
    Ok(Pattern { regex, automaton, ahead })
}

/// Returns a search for the beginning of the pattern. `None` if it is not fast, or if a match depends on what comes
/// before.
fn beginning(pattern: &Hir) -> Option<Prefilter> {
    let properties = pattern.properties();
    // A pattern of plain words is found completely by that search, and `regex` does it as fast.
    let is_plain = properties.is_literal() || properties.is_alternation_literal();
    let found = Prefilter::from_hir_prefix(MatchKind::LeftmostFirst, pattern)?;
    (!is_plain && properties.look_set().is_empty() && found.is_fast()).then_some(found)
}

/// Compiles SQL's LIKE: `%` is any text, `_` any character, and behind the escape character both are ordinary.
pub(super) fn like(pattern: &str, escape: Option<char>, ignores_case: bool) -> Result<Pattern, String> {
    // `None` stands for any text. At either end of the pattern it is left out instead of spelled out, so that the
    // search looks for the rest as fast as it can.
    let mut parts: Vec<Option<String>> = Vec::new();
    let mut characters = pattern.chars();
    let mut buffer = [0; 4];
    while let Some(character) = characters.next() {
        parts.push(match character {
            _ if Some(character) == escape => {
                let Some(ordinary) = characters.next() else {
                    return Err(format!("the pattern {pattern:?} ends in its escape character"));
                };
                Some(regex_syntax::escape(ordinary.encode_utf8(&mut buffer)))
            }
            '%' => None,
            '_' => Some(".".to_owned()),
            _ => Some(regex_syntax::escape(character.encode_utf8(&mut buffer))),
        });
    }
    parts.dedup_by(|next, previous| next.is_none() && previous.is_none());
    let mut text = String::new();
    let is_open_ended = matches!(parts.last(), Some(None));
    for (index, part) in parts.iter().enumerate() {
        match part {
            Some(part) if index == 0 => text.extend(["\\A", part]),
            Some(part) => text.push_str(part),
            None if index == 0 || index + 1 == parts.len() => {}
            None => text.push_str(".*"),
        }
    }
    if parts.is_empty() {
        text.push_str("\\A");
    }
    if !is_open_ended {
        text.push_str("\\z");
    }
    build(&text, true, ignores_case)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Generates patterns with everything that automata must refuse or get right: classes, characters of several
    /// bytes and of several cases, ends of texts and lines, and words.
    fn patterns() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
            "a",
            "b",
            "ab",
            "é",
            "k",
            "1",
            " ",
            "\\n",
            ".",
            "[ab]",
            "[^a]",
            "[^é]",
            "\\d",
            "\\w",
            "\\s",
            "^",
            "$",
            "\\A",
            "\\z",
            "\\b",
            "(?-u:\\b)",
            "(?-u:\\B)",
            "[a-zé-ü]",
            "(?i:k)",
            "(?s:.)",
            "(?m:^)",
            "(?m:$)",
            "",
            "\\x00",
        ]);
        piece.prop_map(str::to_owned).prop_recursive(4, 24, 4, |inner| {
            let times = prop::sample::select(vec!["*", "+", "?", "{1,2}", "*?", "{0}", "+?"]);
            prop_oneof![
                4 => prop::collection::vec(inner.clone(), 1..4).prop_map(|parts| parts.concat()),
                2 => prop::collection::vec(inner.clone(), 1..4).prop_map(|parts| format!("({})", parts.join("|"))),
                2 => (inner, times).prop_map(|(part, times)| format!("(?:{part}){times}")),
            ]
        })
    }

    fn texts() -> impl Strategy<Value = Vec<Option<String>>> {
        let piece = prop::sample::select(vec![
            "a",
            "b",
            "ab",
            "é",
            "k",
            "K",
            "\u{212a}",
            "1",
            "٣",
            " ",
            "\n",
            "_",
            "ü",
            "\u{ffff}",
            "\u{10348}",
            "\0",
            "x",
        ]);
        let short = prop::collection::vec(piece, 0..8).prop_map(|parts| parts.concat());
        let text = prop_oneof![
            10 => short.clone(),
            1 => (short.clone(), 10..60usize, short).prop_map(|(part, times, end)| part.repeat(times) + &end),
        ];
        prop::collection::vec(prop::option::weighted(0.9, text), 0..70)
    }

    fn check(pattern: &Pattern, texts: &[Option<String>]) {
        let texts = StringArray::from(texts.to_vec());
        for (offset, rows) in [(0, texts.len()), (texts.len() / 3, texts.len() / 2)] {
            let texts = texts.slice(offset, rows);
            let found = pattern.search(&texts);
            assert_eq!(found.len(), rows);
            for row in (0..rows).filter(|row| texts.is_valid(*row)) {
                let text = texts.value(row);
                assert_eq!(found.value(row), pattern.regex.is_match(text), "{:?} in {text:?}", pattern.regex);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn automata_find_what_regex_finds(
            pattern in patterns(), texts in texts(), ignores_case in any::<bool>(),
        ) {
            if let Ok(pattern) = build(&pattern, false, ignores_case) {
                check(&pattern, &texts);
                check(&Pattern { ahead: Ahead::Nothing, ..pattern }, &texts);
            }
        }

        #[test]
        fn skipping_ahead_loses_nothing(
            begins in prop::sample::select(vec!["ab", "a[bé]", "(ab|kk)", "1é"]),
            goes_on in prop::sample::select(vec![".*", ".{2}", "[ab]+", "é*", "(ab)*?"]),
            ends in prop::sample::select(vec!["1", "é", "a", "b1", "$"]),
            texts in texts(),
        ) {
            let pattern = regular(&format!("{begins}(?:{goes_on}){ends}")).unwrap();
            check(&pattern, &texts);
        }

        #[test]
        fn automata_find_what_like_is(pattern in "[ab_%é]{0,8}", texts in texts(), ignores_case in any::<bool>()) {
            check(&like(&pattern, None, ignores_case).unwrap(), &texts);
        }
    }

    #[test]
    fn usual_patterns_have_automata_and_others_have_none() {
        let has = |pattern: &str| regular(pattern).unwrap().automaton.is_some();
        assert!(has("(Strasse|Str\\.).*(8[0-9]{4})"));
        assert!(has("[0-9]+(USD|EUR|GBP)"));
        assert!(has("^https?://"));
        for pattern in ["%special%requests%", "%green%", "PROMO%", "%BRASS", "a_c"] {
            assert!(like(pattern, None, false).unwrap().automaton.is_some(), "{pattern}");
        }
        // The first matches empty text, the second looks for words, the third has too many states.
        assert!(!has("a*") && !has("\\bcat\\b") && !has("[a-z]{40}"));
    }

    #[test]
    fn hostile_patterns_stop_early_on_the_way_to_an_automaton() {
        for pattern in ["[ab]*a[ab]{30}c", "(?i)\\w{30}x", "(a{50}){20}b", "(.|..|...){9}x", "\\pL+\\PL+\\d"]
        {
            if let Ok(pattern) = regular(pattern) {
                assert!(pattern.automaton.is_none(), "{:?}", pattern.regex);
            }
        }
    }
}
