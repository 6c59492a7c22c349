//! Patterns, compiled once for a program: LIKE and regular expressions alike end as an automaton of linear time.

use regex::{Regex, RegexBuilder};

/// Bytes of one compiled pattern, and of the states that a search may remember of it.
const PATTERN_STATES_BYTES_MAX: usize = 512 << 10;

/// A regular expression, found anywhere.
pub(super) fn regular(pattern: &str) -> Result<Regex, String> {
    build(RegexBuilder::new(pattern))
}

fn build(mut builder: RegexBuilder) -> Result<Regex, String> {
    builder.size_limit(PATTERN_STATES_BYTES_MAX).dfa_size_limit(PATTERN_STATES_BYTES_MAX).nest_limit(64);
    builder.build().map_err(|error| format!("a pattern that cannot be used: {error}"))
}

/// SQL's LIKE: `%` is any text, `_` any character, and behind the escape character both are ordinary.
pub(super) fn like(pattern: &str, escape: Option<char>, ignores_case: bool) -> Result<Regex, String> {
    // None: any text. An end that may be any text is left open rather than spelled out: the search then looks for
    // the rest as fast as it can.
    let mut parts: Vec<Option<String>> = Vec::new();
    let mut characters = pattern.chars();
    let mut buffer = [0; 4];
    while let Some(character) = characters.next() {
        parts.push(match character {
            _ if Some(character) == escape => {
                let Some(ordinary) = characters.next() else {
                    return Err(format!("a pattern {pattern:?} that ends in its escape character"));
                };
                Some(regex::escape(ordinary.encode_utf8(&mut buffer)))
            }
            '%' => None,
            '_' => Some(".".to_owned()),
            _ => Some(regex::escape(character.encode_utf8(&mut buffer))),
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
    let mut builder = RegexBuilder::new(&text);
    builder.dot_matches_new_line(true).case_insensitive(ignores_case);
    build(builder)
}
