//! JSON output that is safe both for programs and for a terminal.

use std::fmt::{self, Write};

/// Displays JSON in one line. Characters that are not printable are shown as JSON escapes, so the JSON value stays the
/// same.
pub struct JsonLine<'a, T>(pub &'a T);

impl<T: fmt::Display> fmt::Display for JsonLine<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Unprintable characters occur only inside strings of this JSON, where an escape is permitted.
        for letter in self.0.to_string().chars() {
            if farpool_files::prints(letter) {
                f.write_char(letter)?;
            } else {
                let mut units = [0; 2];
                letter.encode_utf16(&mut units).iter().try_for_each(|unit| write!(f, "\\u{unit:04x}"))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::JsonLine;

    #[test]
    fn characters_that_do_not_print_are_escapes_of_json() {
        assert_eq!(JsonLine(&"{\"a\":\"b c\"}").to_string(), "{\"a\":\"b c\"}");
        assert_eq!(JsonLine(&"\"\u{202e}\u{9b}\u{7f}\"").to_string(), "\"\\u202e\\u009b\\u007f\"");
        assert_eq!(JsonLine(&"\"\u{e0001}\"").to_string(), "\"\\udb40\\udc01\"");
    }
}
