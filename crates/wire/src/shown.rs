//! Text from peers in a form that is safe to show on a terminal, in a log or in an error.
//!
//! The idea: whoever may name a table or fill a column must not be able to move the cursor of a reader's terminal, to
//! turn the direction of the text around, or to begin a line of their own. A printable character is shown as it is.
//! Any other (control and format characters, separators of lines, code points without a meaning) is shown as
//! `\u{..}`.
//!
//! Invariant: text that was made safe comes out the same when it is made safe a second time.

use std::fmt::{self, Write};

/// Text that is safe to show, by its `Display`.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    text: &'a str,
    keeps_line_feeds: bool,
}

/// Returns `text` in a form for one line.
pub fn shown(text: &str) -> Shown<'_> {
    Shown { text, keeps_line_feeds: false }
}

/// Returns `text` in a form for several lines: its line feeds stay.
pub fn shown_lines(text: &str) -> Shown<'_> {
    Shown { text, keeps_line_feeds: true }
}

/// Reports whether a character prints as itself.
pub fn prints(letter: char) -> bool {
    if letter.is_ascii() {
        return letter == ' ' || letter.is_ascii_graphic();
    }
    // The standard library escapes what does not print. It also escapes a combining mark that stands alone, so a
    // letter comes before it here.
    String::from_iter(['a', letter]).escape_debug().count() == 2
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.chars().try_for_each(|letter| match letter {
            '\n' if self.keeps_line_feeds => f.write_char(letter),
            letter if prints(letter) => f.write_char(letter),
            letter => write!(f, "{}", letter.escape_unicode()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_prints_is_shown_as_it_is() {
        for text in [
            "",
            "line item",
            "Gro\u{df}e 'Stra\u{df}e' \"\\\"",
            "e\u{301}",
            "\u{928}\u{94d}\u{926}",
            "\u{6f22}\u{5b57}",
            "\u{1f980}",
        ] {
            assert_eq!(shown(text).to_string(), text);
            assert_eq!(shown_lines(text).to_string(), text);
        }
    }

    #[test]
    fn control_and_format_characters_are_shown_as_escapes() {
        let cases = [
            ("\x1b[2J", "\\u{1b}[2J"),
            ("a\u{7f}\u{9b}31m", "a\\u{7f}\\u{9b}31m"),
            ("invoice\u{202e}fdp", "invoice\\u{202e}fdp"),
            ("a\u{200b}\u{feff}\u{2028}", "a\\u{200b}\\u{feff}\\u{2028}"),
            ("\r\t", "\\u{d}\\u{9}"),
        ];
        for (text, escaped) in cases {
            assert_eq!(shown(text).to_string(), escaped);
            assert_eq!(shown(escaped).to_string(), escaped, "shown again, it is the same");
        }
    }

    #[test]
    fn line_feed_stays_only_in_text_of_several_lines() {
        assert_eq!(shown("a\nb").to_string(), "a\\u{a}b");
        assert_eq!(shown_lines("a\nb\r").to_string(), "a\nb\\u{d}");
    }
}
