//! Snapshots of far tables in SQL: `lineitem AS OF SNAPSHOT 7` is parsed as if it was the name of a table, in quotes,
//! with the alias `"lineitem"`. Such a name is never that of a table itself.

use datafusion::common::{DataFusionError, Result, plan_err};
use datafusion::sql::parser::{DFParser, Statement};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::keywords::{Keyword, RESERVED_FOR_TABLE_ALIAS};
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer, Whitespace, Word};
use farpool::shown;
use std::collections::VecDeque;

/// Text between the name of a table and the number of a snapshot, in the name of the snapshot.
const AS_OF: &str = " AS OF SNAPSHOT ";

/// Parses statements. `AS OF SNAPSHOT` and a number behind the name of a far table choose an earlier snapshot of it.
pub fn parse_sql(text: &str) -> Result<VecDeque<Statement>> {
    let failed = |error: datafusion::sql::sqlparser::tokenizer::TokenizerError| {
        DataFusionError::SQL(Box::new(error.into()), None)
    };
    let tokens = Tokenizer::new(&GenericDialect {}, text).with_unescape(false).tokenize().map_err(failed)?;
    match with_snapshots(tokens)? {
        Some(tokens) => {
            let text: String = tokens.iter().map(ToString::to_string).collect();
            DFParser::parse_sql(&text)
        }
        None => DFParser::parse_sql(text),
    }
}

/// Returns the name of a snapshot of a table in the catalog.
pub(crate) fn parts_of(name: &str) -> Option<(&str, u64)> {
    let (table, snapshot) = name.rsplit_once(AS_OF)?;
    Some((table, snapshot.parse().ok().filter(|snapshot| *snapshot > 0)?))
}

/// Replaces each name with a snapshot by that of the snapshot. `None` if there is none.
fn with_snapshots(tokens: Vec<Token>) -> Result<Option<Vec<Token>>> {
    let mut found = false;
    let mut out: Vec<Token> = Vec::with_capacity(tokens.len());
    let mut rest = &tokens[..];
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if let Token::Word(word) = first
            && let Some((snapshot, after)) = as_of(behind)?
        {
            found = true;
            // A name that is not quoted counts as written in lower case.
            let name =
                if word.quote_style.is_some() { word.value.clone() } else { word.value.to_lowercase() };
            let quoted = |value: String| {
                Token::Word(Word { value, quote_style: Some('"'), keyword: Keyword::NoKeyword })
            };
            out.push(quoted(format!("{name}{AS_OF}{snapshot}")));
            if !has_alias(after) {
                // Columns can be written with the name of the table.
                let space = || Token::Whitespace(Whitespace::Space);
                out.extend([space(), Token::make_keyword("AS"), space(), quoted(name)]);
            }
            rest = after;
            continue;
        }
        out.push(first.clone());
    }
    Ok(found.then_some(out))
}

/// Takes `AS OF SNAPSHOT n` from the front of tokens. Returns the number, and what follows.
fn as_of(tokens: &[Token]) -> Result<Option<(u64, &[Token])>> {
    let mut rest = tokens;
    for keyword in ["AS", "OF", "SNAPSHOT"] {
        match skip_space(rest).split_first() {
            Some((Token::Word(word), behind))
                if word.quote_style.is_none() && word.value.eq_ignore_ascii_case(keyword) =>
            {
                rest = behind;
            }
            _ => return Ok(None),
        }
    }
    let first = skip_space(rest).split_first();
    if let Some((Token::Number(number, _), behind)) = first
        && let Some(snapshot) = number.parse().ok().filter(|snapshot| *snapshot > 0)
    {
        return Ok(Some((snapshot, behind)));
    }
    let found = first.map_or_else(|| "nothing".to_owned(), |(token, _)| token.to_string());
    plan_err!("AS OF SNAPSHOT {}: the number of a snapshot is needed, which is 1 or more", shown(&found))
}

/// Reports whether an alias stands at the front of tokens.
fn has_alias(tokens: &[Token]) -> bool {
    match skip_space(tokens).first() {
        Some(Token::Word(word)) => {
            let is_reserved = RESERVED_FOR_TABLE_ALIAS.contains(&word.keyword);
            word.keyword == Keyword::AS || word.quote_style.is_some() || !is_reserved
        }
        _ => false,
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
            ("SELECT t.a FROM t AS OF SNAPSHOT 3", "SELECT t.a FROM \"t AS OF SNAPSHOT 3\" AS \"t\""),
            (
                "SELECT * FROM T AS OF SNAPSHOT 3 WHERE a > 1",
                "SELECT * FROM \"t AS OF SNAPSHOT 3\" AS \"t\" WHERE a > 1",
            ),
            ("SELECT * FROM t AS OF SNAPSHOT 3 b, c", "SELECT * FROM \"t AS OF SNAPSHOT 3\" b, c"),
            (
                "INSERT INTO t SELECT * FROM t AS OF SNAPSHOT 3",
                "INSERT INTO t SELECT * FROM \"t AS OF SNAPSHOT 3\" AS \"t\"",
            ),
            (
                "SELECT * FROM Sales as of /* x */ snapshot 12 AS s",
                "SELECT * FROM \"sales AS OF SNAPSHOT 12\" AS s",
            ),
            (
                "SELECT * FROM a.\"B b\" AS OF SNAPSHOT 1 JOIN t ON true",
                "SELECT * FROM a.\"B b AS OF SNAPSHOT 1\" AS \"B b\" JOIN t ON true",
            ),
            ("SELECT 'it''s t AS OF SNAPSHOT 3' FROM t", "SELECT 'it''s t AS OF SNAPSHOT 3' FROM t"),
            ("SELECT 'it''s' FROM t AS OF SNAPSHOT 3", "SELECT 'it''s' FROM \"t AS OF SNAPSHOT 3\" AS \"t\""),
        ];
        for (text, expected) in pairs {
            assert_eq!(parsed(text), expected, "{text}");
        }
        for wrong in ["x", "0", "-1", "1.5", "99999999999999999999"] {
            let error =
                parse_sql(&format!("SELECT * FROM t AS OF SNAPSHOT {wrong}")).expect_err("no snapshot");
            assert!(error.to_string().contains("1 or more"), "{wrong}: {error}");
        }
    }

    #[test]
    fn number_at_the_end_of_the_name_of_a_snapshot_is_its_own() {
        assert_eq!(parts_of("t AS OF SNAPSHOT 3"), Some(("t", 3)));
        assert_eq!(parts_of("a AS OF SNAPSHOT 1 AS OF SNAPSHOT 12"), Some(("a AS OF SNAPSHOT 1", 12)));
        for other in ["t", "t@3", "t AS OF SNAPSHOT ", "t AS OF SNAPSHOT -1", "t AS OF SNAPSHOT 0"] {
            assert_eq!(parts_of(other), None, "{other}");
        }
    }
}
