//! Programs as text for people: a line for each operator, with expressions as one would write them.

use crate::expression::{Binary, Comparison, Expression, Instruction};
use crate::program::{AggregateFunction, JoinLookup, Operator, Program, SortKey};
use crate::run::date_text;
use crate::types::{Scalar, TimeUnit, Type, Value};
use std::fmt;

/// Most bytes of a value or a pattern that are shown.
const SHOWN_BYTES_MAX: usize = 64;
/// Most values of a list that are shown.
const SHOWN_VALUES_MAX: usize = 16;

/// Returns a line for each operator of a program over columns of these names, and the names of the columns that it
/// produces.
pub fn lines(program: &Program, names: &[String]) -> (Vec<String>, Vec<String>) {
    let mut names = names.to_vec();
    let mut lines = Vec::new();
    for (operator, step) in program.operators().iter().zip(program.steps()) {
        let name = |column: u16| names.get(usize::from(column)).cloned().unwrap_or(format!("#{column}"));
        let list =
            |columns: &[u16]| columns.iter().map(|column| name(*column)).collect::<Vec<_>>().join(", ");
        let texts: Vec<String> = step.expressions.iter().map(|one| text(one, &names)).collect();
        let line = match operator {
            Operator::Filter(_) => format!("filter {}", texts.join(", ")),
            Operator::Project(_) => format!("select {}", texts.join(", ")),
            Operator::SemiJoin { keys, lookup, is_anti, .. } => {
                let kind = if *is_anti { "anti" } else { "semi" };
                let filter = if *lookup == JoinLookup::Bloom { " (Bloom filter)" } else { "" };
                format!("{kind}-join by {}{filter}", list(keys))
            }
            Operator::Group { keys, .. } if keys.is_empty() => "aggregate".to_owned(),
            Operator::Group { keys, .. } => format!("group by {}", list(keys)),
            Operator::Top { keys, rows } => {
                let key = |key: &SortKey| {
                    let order = if key.is_descending { " descending" } else { "" };
                    let nulls = if key.nulls_first { " (NULL first)" } else { "" };
                    format!("{}{order}{nulls}", name(key.column))
                };
                format!("top {rows} rows by {}", keys.iter().map(key).collect::<Vec<_>>().join(", "))
            }
            Operator::Limit(rows) => format!("limit {rows}"),
        };
        match operator {
            Operator::Project(_) => {
                names = texts;
                lines.push(line);
            }
            Operator::Group { keys, aggregates, .. } => {
                let computed = aggregates.iter().map(|aggregate| {
                    let function = match aggregate.function {
                        AggregateFunction::Count => "count",
                        AggregateFunction::Sum => "sum",
                        AggregateFunction::Min => "min",
                        AggregateFunction::Max => "max",
                    };
                    format!("{function}({})", aggregate.column.map(name).unwrap_or_default())
                });
                let computed: Vec<String> = computed.collect();
                let ending =
                    if computed.is_empty() { String::new() } else { format!(": {}", computed.join(", ")) };
                lines.push(format!("{line}{ending}"));
                names = keys.iter().map(|key| name(*key)).chain(computed).collect();
            }
            _ => lines.push(line),
        }
    }
    (lines, names)
}

/// Returns an expression over columns of these names, as one would write it.
pub fn text(expression: &Expression, names: &[String]) -> String {
    // Each text has its binding strength. A text that binds less tightly than the operator around it gets brackets.
    const LOOSE: u8 = 0;
    const TIGHT: u8 = 9;
    let mut stack: Vec<(String, u8)> = Vec::new();
    let mut last = None;
    for instruction in expression.instructions() {
        let before = last.replace(instruction);
        let mut pop = |least: u8| match stack.pop() {
            Some((text, binding)) if binding >= least => text,
            Some((text, _)) => format!("({text})"),
            None => String::new(),
        };
        let mut two = |sign: &str, binding: u8| {
            let right = pop(binding + 1);
            (format!("{} {sign} {right}", pop(binding)), binding)
        };
        let result = match instruction {
            Instruction::Column(column) => match names.get(usize::from(*column)) {
                Some(name) => (name.clone(), if holds_together(name) { TIGHT } else { LOOSE }),
                None => (format!("#{column}"), TIGHT),
            },
            Instruction::Literal(scalar) => (scalar.to_string(), TIGHT),
            Instruction::Or => two("or", 1),
            Instruction::And => two("and", 2),
            Instruction::Not => {
                let text = pop(3);
                match text.strip_suffix(" is null") {
                    Some(value) if matches!(before, Some(Instruction::IsNull)) => {
                        (format!("{value} is not null"), 4)
                    }
                    _ => (format!("not {text}"), 3),
                }
            }
            Instruction::Compare(comparison) => {
                let right = pop(5);
                (format!("{} {comparison} {right}", pop(5)), 4)
            }
            Instruction::InList(values) => {
                let mut shown: Vec<String> =
                    values.iter().take(SHOWN_VALUES_MAX).map(Scalar::to_string).collect();
                if values.len() > SHOWN_VALUES_MAX {
                    shown.push(format!("and {} more", values.len() - SHOWN_VALUES_MAX));
                }
                (format!("{} in ({})", pop(5), shown.join(", ")), 4)
            }
            Instruction::IsNull => (format!("{} is null", pop(5)), 4),
            Instruction::Like { pattern, ignores_case, .. } => {
                let like = if *ignores_case { "ilike" } else { "like" };
                (format!("{} {like} {}", pop(5), quoted(pattern)), 4)
            }
            Instruction::Matches { pattern } => (format!("{} matches {}", pop(5), quoted(pattern)), 4),
            Instruction::Binary(binary) => match binary {
                Binary::Add => two("+", 5),
                Binary::Subtract => two("-", 5),
                Binary::Multiply => two("*", 6),
                Binary::Divide => two("/", 6),
                Binary::Remainder => two("%", 6),
            },
            Instruction::Negate => (format!("-{}", pop(7)), 7),
            Instruction::Cast(to) => (format!("cast({} as {to})", pop(LOOSE)), TIGHT),
        };
        stack.push(result);
    }
    stack.pop().map(|(text, _)| text).unwrap_or_default()
}

/// Reports whether a text needs no brackets, because it is one word or one call.
fn holds_together(name: &str) -> bool {
    let behind = name.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_');
    let mut depth = 0usize;
    behind.is_empty()
        || behind.char_indices().all(|(at, c)| {
            match c {
                '(' => depth += 1,
                ')' => depth = depth.saturating_sub(1),
                _ => {}
            }
            (depth == 0) == (at + c.len_utf8() == behind.len())
        })
}

fn quoted(text: &str) -> String {
    let end = (0..=text.len().min(SHOWN_BYTES_MAX)).rev().find(|end| text.is_char_boundary(*end));
    let shown = &text[..end.unwrap_or(0)];
    let rest = if shown.len() < text.len() { "..." } else { "" };
    format!("'{}{rest}'", shown.replace('\'', "''"))
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Comparison::Equal => "=",
            Comparison::NotEqual => "<>",
            Comparison::Less => "<",
            Comparison::LessOrEqual => "<=",
            Comparison::Greater => ">",
            Comparison::GreaterOrEqual => ">=",
        })
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.value, self.of) {
            (None, _) => f.write_str("NULL"),
            (Some(Value::Boolean(value)), _) => write!(f, "{value}"),
            (Some(Value::Float(bits)), Type::Float32) => write!(f, "{:?}", f32::from_bits(*bits as u32)),
            (Some(Value::Float(bits)), _) => write!(f, "{:?}", f64::from_bits(*bits)),
            (Some(Value::Integer(value)), Type::Date) => f.write_str(&date_text(*value)),
            (Some(Value::Integer(value)), Type::Timestamp { unit, is_zoned }) => {
                let (per_second, digits) = match unit {
                    TimeUnit::Second => (1, 0),
                    TimeUnit::Millisecond => (1_000, 3),
                    TimeUnit::Microsecond => (1_000_000, 6),
                    TimeUnit::Nanosecond => (1_000_000_000, 9),
                };
                let (second, fraction) = (value.div_euclid(per_second), value.rem_euclid(per_second));
                let (day, second) = (second.div_euclid(86_400), second.rem_euclid(86_400));
                let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
                write!(f, "{} {hour:02}:{minute:02}:{second:02}", date_text(day))?;
                if fraction != 0 {
                    write!(f, ".{fraction:0digits$}")?;
                }
                f.write_str(if is_zoned { "Z" } else { "" })
            }
            (Some(Value::Integer(value)), Type::Decimal { scale, .. }) if scale > 0 => {
                let unit = 10u128.pow(scale.into());
                let (whole, fraction) = (value.unsigned_abs() / unit, value.unsigned_abs() % unit);
                let sign = if *value < 0 { "-" } else { "" };
                write!(f, "{sign}{whole}.{fraction:0width$}", width = usize::from(scale))
            }
            (Some(Value::Integer(value)), _) => write!(f, "{value}"),
            (Some(Value::Bytes(bytes)), Type::Text) => f.write_str(&quoted(&String::from_utf8_lossy(bytes))),
            (Some(Value::Bytes(bytes)), _) => {
                let shown = bytes.iter().take(SHOWN_BYTES_MAX).map(|byte| format!("{byte:02x}"));
                let rest = if bytes.len() > SHOWN_BYTES_MAX { "..." } else { "" };
                write!(f, "x'{}{rest}'", shown.collect::<String>())
            }
        }
    }
}
