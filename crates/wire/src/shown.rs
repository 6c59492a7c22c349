//! Text of others as people are shown it: on a terminal, in a log, in an error.
//!
//! Idea: whoever may name a table or fill a column must not be able to move the cursor of who looks at it, to turn the
//! direction of the text around, or to begin a line of their own. A character that prints is shown as it is; any other
//! (control and format characters, separators of lines, code points without a meaning) is shown as `\u{..}`.
//!
//! Invariant: what is shown can be shown again, and comes to the same.

use std::fmt::{self, Write};

/// Text that is safe to show, by its `Display`.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    text: &'a str,
    keeps_line_feeds: bool,
}

/// Returns `text` to be shown within one line.
pub fn shown(text: &str) -> Shown<'_> {
    Shown { text, keeps_line_feeds: false }
}

/// Returns `text` to be shown in lines of its own: its line feeds stay.
pub fn shown_lines(text: &str) -> Shown<'_> {
    Shown { text, keeps_line_feeds: true }
}

/// Returns whether a character prints as itself.
pub fn prints(letter: char) -> bool {
    if letter.is_ascii() {
        return letter == ' ' || letter.is_ascii_graphic();
    }
    // The standard library escapes what does not print, and by itself a mark that joins the letter before it: so there
    // is one.
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
