//! Finds public functions that take a `bool`: a call of them does not show the meaning of `true`.

/// Returns the names of public functions that take a `bool`.
pub(super) fn with_bools<'a>(tokens: &[&'a str]) -> Vec<&'a str> {
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        if *token != "pub" {
            continue;
        }
        let words = tokens[at + 1..].iter().take_while(|token| QUALIFIERS.contains(*token)).count();
        if let ["fn", name, rest @ ..] = &tokens[at + 1 + words..]
            && takes_bool(rest)
        {
            found.push(*name);
        }
    }
    found
}

/// Tokens that may stand between `pub` and `fn`. The last one is a literal, as in `extern "C"`.
const QUALIFIERS: [&str; 5] = ["const", "async", "unsafe", "extern", "\""];

/// Reports whether a parameter is a `bool`. `rest` begins after the function's name, with its generics or parameters.
fn takes_bool(rest: &[&str]) -> bool {
    let mut angles = 0;
    let mut parentheses = 0;
    let mut before = ["", ""];
    for token in rest {
        match *token {
            "<" if parentheses == 0 => angles += 1,
            // The `>` of an arrow `->` closes no generics.
            ">" if parentheses == 0 && before[1] != "-" => angles -= 1,
            "(" if angles == 0 => parentheses += 1,
            ")" | "," if parentheses == 1 && before == [":", "bool"] => return true,
            ")" if parentheses == 1 => return false,
            ")" if angles == 0 => parentheses -= 1,
            _ => {}
        }
        before = [before[1], *token];
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::tokens::tokens;
    use super::*;

    fn found(text: &str) -> Vec<&str> {
        with_bools(&tokens(text).all)
    }

    #[test]
    fn public_function_with_a_bool_is_named() {
        assert_eq!(
            found("pub fn a(b: bool) {} impl C { pub fn d(&self, e: u8, f: bool,) -> bool { true } }"),
            ["a", "d"]
        );
        assert_eq!(
            found("pub const fn a(b: bool) {} pub async unsafe extern \"C\" fn c(d: bool) {}"),
            ["a", "c"]
        );
        assert_eq!(
            found("pub fn a<F: Fn(u8) -> bool, const B: bool>(f: F, (c, d): (u8, u8), e: bool) {}"),
            ["a"]
        );
    }

    #[test]
    fn function_of_the_crate_alone_or_without_a_bool_is_not() {
        for text in [
            "fn a(b: bool) {}",
            "pub(crate) fn a(b: bool) {}",
            "pub fn a(b: u8) -> bool { |c: bool| c }",
            "pub fn a<F: Fn(u8) -> bool, const B: bool>(f: F) {}",
            "pub fn a(b: Option<bool>, c: &mut bool, d: [bool; 2], e: fn(f: bool) -> u8) {}",
            "pub struct A { b: bool }",
            "#[cfg(test)] pub fn a(b: bool) {}",
        ] {
            assert_eq!(found(text), [""; 0], "{text}");
        }
    }
}
