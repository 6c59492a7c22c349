//! Tokens of Rust source, as far as the rules of tidy need them: without comments, without code that is compiled for
//! tests only, and without the contents of literals.

/// Token that stands for a literal: a string, bytes, or a character.
const LITERAL: &str = "\"";
/// Tokens before an item that is compiled for tests only.
const TESTS_ONLY: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];

/// Tokens of one file.
#[derive(Debug)]
pub(super) struct Tokens<'a> {
    /// Words, `::`, and single other characters.
    pub(super) all: Vec<&'a str>,
    /// Names of modules in files of their own that are compiled for tests only.
    pub(super) test_modules: Vec<&'a str>,
}

pub(super) fn tokens(text: &str) -> Tokens<'_> {
    let all = split(text);
    let mut kept = Tokens { all: Vec::new(), test_modules: Vec::new() };
    let mut rest = &all[..];
    while let Some(first) = rest.first() {
        if let Some(behind) = rest.strip_prefix(&TESTS_ONLY) {
            let (item, others) = behind.split_at(item_length(behind));
            if let [.., "mod", name, ";"] = item {
                kept.test_modules.push(*name);
            }
            rest = others;
        } else {
            kept.all.push(*first);
            rest = &rest[1..];
        }
    }
    kept
}

/// Returns the number of tokens of the item at the beginning of `tokens`. An item ends with its block or its semicolon;
/// a field may end where the block around it ends.
fn item_length(tokens: &[&str]) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        match *token {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" if depth == 0 => return at,
            "}" if depth == 1 => return at + 1,
            "}" | ")" | "]" => depth -= 1,
            ";" if depth == 0 => return at + 1,
            _ => {}
        }
    }
    tokens.len()
}

fn split(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            comment_length(rest)
        } else if let Some(length) = literal_length(rest) {
            found.push(LITERAL);
            length
        } else {
            let length = match rest.find(|c: char| !is_word(c)).unwrap_or(rest.len()) {
                0 if rest.starts_with("::") => 2,
                0 => first.len_utf8(),
                word => word,
            };
            if !first.is_whitespace() {
                found.push(&rest[..length]);
            }
            length
        };
        rest = &rest[length..];
    }
    found
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the length of the block comment at the beginning of a text. Block comments can be nested.
fn comment_length(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while let Some(found) = text[at..].find(['/', '*']) {
        at += found;
        match text.get(at..at + 2) {
            Some("/*") => depth += 1,
            Some("*/") => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// Returns the length of the literal at the beginning of a text. `None` if there is none.
fn literal_length(text: &str) -> Option<usize> {
    let behind = text.trim_start_matches(['b', 'c', 'r']);
    let prefix = &text[..text.len() - behind.len()];
    if prefix.contains('r') {
        let quoted = behind.trim_start_matches('#');
        let end = format!("\"{}", &behind[..behind.len() - quoted.len()]);
        let inside = quoted.strip_prefix('"')?;
        let length = inside.find(&end)? + end.len();
        return Some(text.len() - inside.len() + length);
    }
    if let Some(inside) = behind.strip_prefix('"') {
        let mut is_escaped = false;
        let end = inside.find(|c: char| {
            let ends = c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            ends
        })?;
        return Some(text.len() - inside.len() + end + 1);
    }
    // A quote that is not closed after one character begins the name of a lifetime.
    let inside = behind.strip_prefix('\'')?;
    let first = inside.chars().next()?;
    let head = if first == '\\' { 2 } else { first.len_utf8() };
    let end = inside.get(head..)?.find('\'')?;
    (end == 0 || first == '\\').then(|| text.len() - inside.len() + head + end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> String {
        tokens(text).all.join(" ")
    }

    #[test]
    fn source_is_words_paths_and_signs() {
        assert_eq!(all("use a::{b_1, c};\nlet x=1.5;"), "use a :: { b_1 , c } ; let x = 1 . 5 ;");
    }

    #[test]
    fn comments_are_left_out() {
        assert_eq!(all("a // b \"\n/// c\n/* d /* e */ f */ g //"), "a g");
        assert_eq!(all("a / b * c /"), "a / b * c /");
    }

    #[test]
    fn literals_are_one_token() {
        assert_eq!(
            all(r####"a("b \" c", r"d\", br#"e " f"#, b"g", c"h")"####),
            "a ( \" , \" , \" , \" , \" )"
        );
        assert_eq!(
            all(r"['a', '\'', '\\', '\u{1F600}', b'x', '\n', 'ä', '(']"),
            all("[0,0,0,0,0,0,0,0]").replace('0', "\"")
        );
        assert_eq!(all("\"\" a"), "\" a");
    }

    #[test]
    fn lifetimes_and_words_with_the_letters_of_prefixes_are_no_literals() {
        assert_eq!(all("fn f<'a, 'bc>(x: &'a str)"), "fn f < ' a , ' bc > ( x : & ' a str )");
        assert_eq!(all("bcr r#type crab"), "bcr r # type crab");
    }

    #[test]
    fn items_for_tests_are_left_out() {
        assert_eq!(all("a; #[cfg(test)] use b::{c}; d"), "a ; ; d");
        assert_eq!(all("#[cfg(test)]\nmod tests { fn f() { g[0]; } }\nh"), "h");
        assert_eq!(all("#[cfg(test)] #[derive(A)] struct B([u8; 3]); c"), "c");
        assert_eq!(all("struct A { b: u8, #[cfg(test)] c: [u8; 2] } d"), "struct A { b : u8 , } d");
        assert_eq!(all("#[cfg(not(test))] a;"), "# [ cfg ( not ( test ) ) ] a ;");
    }

    #[test]
    fn modules_for_tests_in_other_files_are_named() {
        let text = "mod a; #[cfg(test)] mod b; #[cfg(test)] pub(crate) mod c; #[cfg(test)] mod d { }";
        assert_eq!(tokens(text).test_modules, ["b", "c"]);
        assert_eq!(all(text), "mod a ;");
    }
}
