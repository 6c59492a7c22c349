//! JSON as commands print it: it may be read by a program or by a person at a terminal.

use std::fmt::{self, Write};

/// JSON in one line, by its `Display`: characters that do not print are escapes of JSON, so that it means the same.
pub struct Line<'a, T>(pub &'a T);

impl<T: fmt::Display> fmt::Display for Line<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Outside of its strings, JSON in one line has only characters that print.
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
    use super::Line;

    #[test]
    fn characters_that_do_not_print_are_escapes_of_json() {
        assert_eq!(Line(&"{\"a\":\"b c\"}").to_string(), "{\"a\":\"b c\"}");
        assert_eq!(Line(&"\"\u{202e}\u{9b}\u{7f}\"").to_string(), "\"\\u202e\\u009b\\u007f\"");
        assert_eq!(Line(&"\"\u{e0001}\"").to_string(), "\"\\udb40\\udc01\"");
    }
}
