//! Checks how comments begin. A comment that begins with "What" or with a bare preposition is half a sentence: its
//! reader has to find the other half in the code.

/// First words that make a comment a clause without a noun of its own.
pub(super) const CLAUSES: [&str; 2] = ["What", "Whether"];
/// First words that make a comment an adverb.
pub(super) const PREPOSITIONS: [&str; 43] = [
    "About", "Above", "Across", "After", "Against", "Among", "As", "At", "Before", "Behind", "Below",
    "Beside", "Between", "Beyond", "By", "Down", "During", "For", "From", "In", "Into", "Inside", "Of",
    "Off", "On", "Onto", "Out", "Outside", "Over", "Per", "Since", "Than", "Through", "To", "Toward",
    "Towards", "Under", "Until", "Up", "Upon", "With", "Within", "Without",
];
/// Words that begin a comment which sends its reader elsewhere.
pub(super) const ELSEWHERE: &str = "See the module";

/// Returns the lines at which comments begin, counted from 1, with the text of the comment there. A comment begins at
/// the first of several comment lines, and behind an empty one. Python's docstrings are comments.
pub(super) fn openings<'a>(path: &str, text: &'a str) -> Vec<(usize, &'a str)> {
    let is_python = path.ends_with(".py") || path.ends_with(".pyi");
    let marks: &[&str] = match path.rsplit_once('.') {
        Some((_, "py" | "pyi" | "sh" | "tcl")) => &["#"],
        _ => &["///", "//!", "//", "/*"],
    };
    let mut found = Vec::new();
    let mut before = None;
    let mut opens_block = true;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        let mark = marks.iter().copied().find(|mark| line.starts_with(mark));
        let said = mark.map_or("", |mark| line[mark.len()..].trim());
        if !said.is_empty() && before != mark {
            found.push((at + 1, said));
        }
        // An empty line of a comment ends its paragraph.
        before = mark.filter(|_| !said.is_empty());
        if is_python {
            let quoted = line.strip_prefix("\"\"\"").or_else(|| line.strip_prefix("r\"\"\"")).unwrap_or("");
            if opens_block && !quoted.is_empty() {
                found.push((at + 1, quoted));
            }
            opens_block = line.ends_with(':') || (opens_block && line.is_empty());
        }
    }
    found
}

/// Reports whether a comment begins with one of these words.
pub(super) fn begins_with(said: &str, words: &[&str]) -> bool {
    let first = said.split_whitespace().next().unwrap_or_default();
    words.contains(&first.trim_start_matches(['(', '*', '`']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comment_begins_at_its_first_line_and_behind_an_empty_one() {
        let text = "//! One.\n//! Two.\n//!\n//! Three.\nuse a;\n\n    /// Four.\n    fn b() {} // no\n\
                    // Five.\n/// Six.\n";
        let found = openings("a.rs", text);
        assert_eq!(found, [(1, "One."), (4, "Three."), (7, "Four."), (9, "Five."), (10, "Six.")]);
    }

    #[test]
    fn docstring_is_a_comment_and_another_text_is_not() {
        let text = "\"\"\"One.\"\"\"\n\ndef a():\n    \"\"\"Two.\n\n    More.\"\"\"\n    return \"\"\"no\"\"\"\n# Three.\n";
        assert_eq!(openings("a.py", text), [(1, "One.\"\"\""), (3 + 1, "Two."), (8, "Three.")]);
    }

    #[test]
    fn only_the_first_word_counts_and_only_as_a_whole() {
        for said in ["What it does.", "Whether it is", "(What"] {
            assert!(begins_with(said, &CLAUSES), "{said}");
        }
        for said in ["Whatever", "Returns what", "what", ""] {
            assert!(!begins_with(said, &CLAUSES), "{said}");
        }
        assert!(begins_with("Of the node.", &PREPOSITIONS) && !begins_with("Offers", &PREPOSITIONS));
    }
}
