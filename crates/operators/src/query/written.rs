//! Display of expressions in messages.

use super::expr::{Expr, Literal};
use crate::expression::Binary;
use std::fmt;

/// Most characters of a text that a message shows.
const SHOWN_MAX: usize = 64;

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Literal::Null => f.write_str("NULL"),
            Literal::Boolean(value) => write!(f, "{value}"),
            Literal::Integer(value) => write!(f, "{value}"),
            Literal::Float(value) => write!(f, "{value:?}"),
            Literal::Text(text) => {
                let rest = if text.chars().nth(SHOWN_MAX).is_some() { "..." } else { "" };
                write!(f, "'{}{rest}'", text.chars().take(SHOWN_MAX).collect::<String>())
            }
            Literal::Scalar(scalar) => write!(f, "{scalar}"),
        }
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expr::Column(name) => f.write_str(name),
            Expr::Literal(literal) => write!(f, "{literal}"),
            Expr::Compare(comparison, left, right) => write!(f, "({left} {comparison} {right})"),
            Expr::InList(value, list) => write!(f, "({value} in {} values)", list.len()),
            Expr::IsNull(value) => write!(f, "({value} is null)"),
            Expr::And(left, right) => write!(f, "({left} and {right})"),
            Expr::Or(left, right) => write!(f, "({left} or {right})"),
            Expr::Not(value) => write!(f, "(not {value})"),
            Expr::Like(value, pattern, _) => write!(f, "({value} like {pattern:?})"),
            Expr::Matches(value, pattern) => write!(f, "({value} matches {pattern:?})"),
            Expr::Ratio(left, right) => write!(f, "({left} / {right})"),
            Expr::Binary(binary, left, right) => {
                let sign = match binary {
                    Binary::Add => "+",
                    Binary::Subtract => "-",
                    Binary::Multiply => "*",
                    Binary::Divide => "/",
                    Binary::Remainder => "%",
                };
                write!(f, "({left} {sign} {right})")
            }
            Expr::Negate(value) => write!(f, "-{value}"),
            Expr::Cast(value, to) => write!(f, "cast({value} as {to})"),
        }
    }
}
