//! Snapshots of far tables in SQL: `lineitem AS OF SNAPSHOT 7` is the table `"lineitem@7"`, which the catalog knows.

use datafusion::common::{DataFusionError, Result};
use datafusion::sql::parser::{DFParser, Statement};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer, Word};
use std::collections::VecDeque;

/// Parses statements. `AS OF SNAPSHOT` and a number behind the name of a far table choose an earlier snapshot of it.
pub fn parse_sql(text: &str) -> Result<VecDeque<Statement>> {
    let failed = |error: datafusion::sql::sqlparser::tokenizer::TokenizerError| {
        DataFusionError::SQL(Box::new(error.into()), None)
    };
    let tokens = Tokenizer::new(&GenericDialect {}, text).with_unescape(false).tokenize().map_err(failed)?;
    match with_snapshots(tokens) {
        Some(tokens) => {
            let text: String = tokens.iter().map(ToString::to_string).collect();
            DFParser::parse_sql(&text)
        }
        None => DFParser::parse_sql(text),
    }
}

/// Returns the name of a snapshot of a table in the catalog.
pub(crate) fn parts_of(name: &str) -> Option<(&str, u64)> {
    let (table, snapshot) = name.rsplit_once('@')?;
    Some((table, snapshot.parse().ok()?))
}

/// Replaces each name with a snapshot by that of the snapshot. `None` if there is none.
fn with_snapshots(tokens: Vec<Token>) -> Option<Vec<Token>> {
    let mut found = false;
    let mut out: Vec<Token> = Vec::with_capacity(tokens.len());
    let mut rest = &tokens[..];
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if let Token::Word(word) = first
            && let Some((snapshot, after)) = as_of(behind)
        {
            found = true;
            // What is not quoted counts as written in lower case.
            let name =
                if word.quote_style.is_some() { word.value.clone() } else { word.value.to_lowercase() };
            out.push(Token::Word(Word {
                value: format!("{name}@{snapshot}"),
                quote_style: Some('"'),
                ..word.clone()
            }));
            rest = after;
            continue;
        }
        out.push(first.clone());
    }
    found.then_some(out)
}

/// Takes `AS OF SNAPSHOT n` from the front of tokens. Returns the number, and what follows.
fn as_of(tokens: &[Token]) -> Option<(u64, &[Token])> {
    let mut rest = tokens;
    for keyword in ["AS", "OF", "SNAPSHOT"] {
        let (first, behind) = skip_space(rest).split_first()?;
        match first {
            Token::Word(word) if word.quote_style.is_none() && word.value.eq_ignore_ascii_case(keyword) => {}
            _ => return None,
        }
        rest = behind;
    }
    match skip_space(rest).split_first()? {
        (Token::Number(number, _), behind) => Some((number.parse().ok()?, behind)),
        _ => None,
    }
}

fn skip_space(tokens: &[Token]) -> &[Token] {
    let after = tokens.iter().position(|token| !matches!(token, Token::Whitespace(_)));
    &tokens[after.unwrap_or(tokens.len())..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> String {
        parse_sql(text).expect("valid").iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn snapshot_behind_a_name_is_a_part_of_the_name() {
        let pairs = [
            ("SELECT * FROM t AS OF SNAPSHOT 3", "SELECT * FROM \"t@3\""),
            ("SELECT * FROM Sales as of /* x */ snapshot 12 AS s", "SELECT * FROM \"sales@12\" AS s"),
            (
                "SELECT * FROM a.\"B b\" AS OF SNAPSHOT 1 JOIN t ON true",
                "SELECT * FROM a.\"B b@1\" JOIN t ON true",
            ),
            ("SELECT 'it''s t AS OF SNAPSHOT 3' FROM t", "SELECT 'it''s t AS OF SNAPSHOT 3' FROM t"),
            ("SELECT 'it''s' FROM t AS OF SNAPSHOT 3", "SELECT 'it''s' FROM \"t@3\""),
        ];
        for (text, expected) in pairs {
            assert_eq!(parsed(text), expected, "{text}");
        }
        assert!(parse_sql("SELECT * FROM t AS OF SNAPSHOT x").is_err());
    }

    #[test]
    fn number_behind_the_last_at_sign_is_a_snapshot() {
        assert_eq!(parts_of("t@3"), Some(("t", 3)));
        assert_eq!(parts_of("a@b@12"), Some(("a@b", 12)));
        assert_eq!((parts_of("t"), parts_of("t@"), parts_of("t@-1")), (None, None, None));
    }
}
