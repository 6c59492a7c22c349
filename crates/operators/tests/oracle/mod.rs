//! Oracle: a second implementation of programs, one row at a time over plain values, slow and obvious.

use farpool_operators::{
    Aggregate, AggregateFunction, Binary, Comparison, Instruction, Operator, Program, Scalar, SortKey, Type,
    Value,
};
use std::cmp::Ordering;

/// Row of plain values.
pub type Row = Vec<Option<Value>>;

/// Reason why there are no rows to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A value did not fit.
    Overflow,
    /// Two NaNs of different bits met in arithmetic, where IEEE 754 does not specify the result.
    Unspecified,
}

/// Rows that a program produces.
pub type Outcome = Result<Vec<Row>, Stop>;

/// Runs a program over a whole table.
pub fn run(program: &Program, table: &[Row], keys: &[Row]) -> Outcome {
    let mut types = program.input().to_vec();
    let mut rows = table.to_vec();
    for (operator, step) in program.operators().iter().zip(program.steps()) {
        rows = match operator {
            Operator::Filter(filter) => {
                let mut kept = Vec::new();
                for row in rows {
                    if evaluate(filter, &row, &types)? == Some(Value::Boolean(true)) {
                        kept.push(row);
                    }
                }
                kept
            }
            Operator::Project(list) => {
                let project = |row: &Row| list.iter().map(|one| evaluate(one, row, &types)).collect();
                rows.iter().map(project).collect::<Result<_, Stop>>()?
            }
            Operator::SemiJoin { keys: columns, is_anti, .. } => {
                let found = |row: &Row| {
                    keys.iter().any(|key| {
                        columns.iter().zip(key).all(|(column, wanted)| {
                            let column = usize::from(*column);
                            match (&row[column], wanted) {
                                (Some(left), Some(right)) => compared(left, right, types[column]).is_eq(),
                                _ => false,
                            }
                        })
                    })
                };
                rows.into_iter().filter(|row| found(row) != *is_anti).collect()
            }
            Operator::Group { keys, aggregates, .. } => group(keys, aggregates, &rows, &types)?,
            Operator::Top { keys, rows: count } => {
                let mut sorted = rows;
                sorted.sort_by(|left, right| {
                    let each = keys.iter().map(|key| sort_order(key, left, right, &types));
                    each.fold(Ordering::Equal, Ordering::then)
                });
                sorted.truncate(*count as usize);
                sorted
            }
            Operator::Limit(count) => {
                rows.truncate(usize::try_from(*count).unwrap_or(usize::MAX));
                rows
            }
        };
        types = step.output.clone();
    }
    Ok(rows)
}

fn sort_order(key: &SortKey, left: &Row, right: &Row, types: &[Type]) -> Ordering {
    let column = usize::from(key.column);
    match (&left[column], &right[column]) {
        (None, None) => Ordering::Equal,
        (None, _) => {
            if key.nulls_first {
                Ordering::Less
            } else {
                Ordering::Greater
            }
        }
        (_, None) => {
            if key.nulls_first {
                Ordering::Greater
            } else {
                Ordering::Less
            }
        }
        (Some(left), Some(right)) => {
            let found = order(left, right, types[column]);
            if key.is_descending { found.reverse() } else { found }
        }
    }
}

/// Returns a float of either width as 64 bits.
pub fn float(bits: u64, of: Type) -> f64 {
    match of {
        Type::Float32 => f64::from(f32::from_bits(bits as u32)),
        _ => f64::from_bits(bits),
    }
}

fn float_value(value: f64, of: Type) -> Value {
    match of {
        Type::Float32 => Value::Float(u64::from((value as f32).to_bits())),
        _ => Value::Float(value.to_bits()),
    }
}

/// Compares two values of a type for sorting: floats in the total order of IEEE 754.
pub fn order(left: &Value, right: &Value, of: Type) -> Ordering {
    match (left, right) {
        (Value::Boolean(left), Value::Boolean(right)) => left.cmp(right),
        (Value::Integer(left), Value::Integer(right)) => left.cmp(right),
        (Value::Bytes(left), Value::Bytes(right)) => left.cmp(right),
        (Value::Float(left), Value::Float(right)) => float(*left, of).total_cmp(&float(*right, of)),
        _ => panic!("{left:?} and {right:?} are of one type"),
    }
}

/// Compares two values as comparisons and keys do: in the order of sorting, except that the two zeros are equal.
fn compared(left: &Value, right: &Value, of: Type) -> Ordering {
    order(&with_one_zero(left, of), &with_one_zero(right, of), of)
}

fn with_one_zero(value: &Value, of: Type) -> Value {
    match value {
        Value::Float(bits) if float(*bits, of) == 0.0 => Value::Float(0),
        other => other.clone(),
    }
}

/// Replaces NaN of any bits by one NaN, for comparison with values that were computed elsewhere.
pub fn with_one_nan(value: Option<Value>, of: Type) -> Option<Value> {
    match value {
        Some(Value::Float(bits)) if float(bits, of).is_nan() => Some(Value::Float(f64::NAN.to_bits())),
        other => other,
    }
}

fn group(keys: &[u16], aggregates: &[Aggregate], rows: &[Row], types: &[Type]) -> Outcome {
    let key = |row: &Row| -> Row {
        let one = |key: usize| row[key].as_ref().map(|value| with_one_zero(value, types[key]));
        keys.iter().map(|key| one(usize::from(*key))).collect()
    };
    let mut groups: Vec<(Row, Vec<&Row>)> = Vec::new();
    if keys.is_empty() {
        groups.push((Vec::new(), Vec::new()));
    }
    for row in rows {
        let key = key(row);
        match groups.iter_mut().find(|(held, _)| *held == key) {
            Some((_, members)) => members.push(row),
            None => groups.push((key, vec![row])),
        }
    }
    groups.sort_by(|(left, _), (right, _)| {
        let each = (0..keys.len()).map(|index| match (&left[index], &right[index]) {
            (None, None) => Ordering::Equal,
            (None, _) => Ordering::Less,
            (_, None) => Ordering::Greater,
            (Some(left), Some(right)) => order(left, right, types[usize::from(keys[index])]),
        });
        each.fold(Ordering::Equal, Ordering::then)
    });
    let whole = |(mut key, members): (Row, Vec<&Row>)| {
        for aggregate in aggregates {
            key.push(self::aggregate(aggregate, &members, types)?);
        }
        Ok(key)
    };
    groups.into_iter().map(whole).collect()
}

fn aggregate(aggregate: &Aggregate, rows: &[&Row], types: &[Type]) -> Result<Option<Value>, Stop> {
    let Some(column) = aggregate.column.map(usize::from) else {
        return Ok(Some(Value::Integer(rows.len() as i128)));
    };
    let of = types[column];
    let values: Vec<&Value> = rows.iter().filter_map(|row| row[column].as_ref()).collect();
    Ok(match aggregate.function {
        AggregateFunction::Count => Some(Value::Integer(values.len() as i128)),
        _ if values.is_empty() => None,
        AggregateFunction::Min => values.into_iter().min_by(|left, right| order(left, right, of)).cloned(),
        AggregateFunction::Max => values.into_iter().max_by(|left, right| order(left, right, of)).cloned(),
        AggregateFunction::Sum => match values[0] {
            Value::Float(_) => {
                let floats = values.iter().map(|value| match value {
                    Value::Float(bits) => float(*bits, of),
                    _ => 0.0,
                });
                // The added 0.0 turns -0 into 0.
                Some(Value::Float((exact_sum(floats) + 0.0).to_bits()))
            }
            _ => {
                // The sum is split into multiples of 10^20 and the rest, so that no partial sum overflows.
                let (mut high, mut low) = (0i128, 0i128);
                let unit = 10i128.pow(20);
                for value in values {
                    let Value::Integer(value) = value else { continue };
                    high += value / unit;
                    low += value % unit;
                }
                let sum = high.checked_mul(unit).and_then(|high| high.checked_add(low));
                Some(Value::Integer(
                    sum.filter(|sum| sum.unsigned_abs() < 10u128.pow(38)).ok_or(Stop::Overflow)?,
                ))
            }
        },
    })
}

/// Adds floats and rounds once, at the end (Shewchuk): `parts` are floats that do not overlap, the least first.
fn exact_sum(values: impl Iterator<Item = f64>) -> f64 {
    let mut parts: Vec<f64> = Vec::new();
    let mut plain = 0.0;
    for value in values {
        plain += value;
        let mut carried = value;
        for part in &mut parts {
            let sum = carried + *part;
            let other = sum - carried;
            let lost = (carried - (sum - other)) + (*part - other);
            (*part, carried) = (lost, sum);
        }
        parts.push(carried);
    }
    if plain.is_finite() { parts.iter().sum() } else { plain }
}

fn boolean(value: &Option<Value>) -> Option<bool> {
    match value {
        Some(Value::Boolean(value)) => Some(*value),
        _ => None,
    }
}

fn evaluate(instructions: &[Instruction], row: &Row, types: &[Type]) -> Result<Option<Value>, Stop> {
    let mut stack: Vec<(Option<Value>, Type)> = Vec::new();
    for instruction in instructions {
        let result = match instruction {
            Instruction::Column(column) => (row[usize::from(*column)].clone(), types[usize::from(*column)]),
            Instruction::Literal(scalar) => (scalar.value.clone(), scalar.of),
            Instruction::Compare(comparison) => {
                let ((right, of), (left, _)) = (stack.pop().unwrap(), stack.pop().unwrap());
                let result = match (left, right) {
                    (Some(left), Some(right)) => {
                        let found = compared(&left, &right, of);
                        Some(Value::Boolean(match comparison {
                            Comparison::Equal => found.is_eq(),
                            Comparison::NotEqual => found.is_ne(),
                            Comparison::Less => found.is_lt(),
                            Comparison::LessOrEqual => found.is_le(),
                            Comparison::Greater => found.is_gt(),
                            Comparison::GreaterOrEqual => found.is_ge(),
                        }))
                    }
                    _ => None,
                };
                (result, Type::Boolean)
            }
            Instruction::InList(list) => {
                let (value, of) = stack.pop().unwrap();
                (in_list(value, of, list).map(Value::Boolean), Type::Boolean)
            }
            Instruction::IsNull => (Some(Value::Boolean(stack.pop().unwrap().0.is_none())), Type::Boolean),
            Instruction::And | Instruction::Or => {
                let (right, left) = (boolean(&stack.pop().unwrap().0), boolean(&stack.pop().unwrap().0));
                let decisive = *instruction == Instruction::Or;
                let result = match (left, right) {
                    (Some(left), _) if left == decisive => Some(decisive),
                    (_, Some(right)) if right == decisive => Some(decisive),
                    (Some(_), Some(_)) => Some(!decisive),
                    _ => None,
                };
                (result.map(Value::Boolean), Type::Boolean)
            }
            Instruction::Not => {
                (boolean(&stack.pop().unwrap().0).map(|value| Value::Boolean(!value)), Type::Boolean)
            }
            Instruction::Like { pattern, escape, ignores_case } => {
                let value = stack.pop().unwrap().0;
                let result = value.map(|value| {
                    let fold = |text: &str| if *ignores_case { text.to_lowercase() } else { text.to_owned() };
                    let Value::Bytes(bytes) = value else { panic!("LIKE of text") };
                    let text: Vec<char> = fold(std::str::from_utf8(&bytes).unwrap()).chars().collect();
                    let pattern: Vec<char> = fold(pattern).chars().collect();
                    Value::Boolean(is_like(&text, &pattern, *escape))
                });
                (result, Type::Boolean)
            }
            Instruction::Matches { pattern } => {
                // Only plain text is generated as a pattern, and it is found as it is.
                let value = stack.pop().unwrap().0;
                let result = value.map(|value| {
                    let Value::Bytes(bytes) = value else { panic!("a pattern of text") };
                    Value::Boolean(std::str::from_utf8(&bytes).unwrap().contains(pattern.as_str()))
                });
                (result, Type::Boolean)
            }
            Instruction::Binary(binary) => {
                let ((right, right_of), (left, of)) = (stack.pop().unwrap(), stack.pop().unwrap());
                let result_of = match (of, right_of) {
                    (Type::Decimal { scale, .. }, Type::Decimal { scale: other, .. }) => Type::Decimal {
                        precision: 38,
                        scale: if *binary == Binary::Multiply { scale + other } else { scale },
                    },
                    _ => of,
                };
                let result = match (left, right) {
                    (Some(left), Some(right)) => arithmetic(*binary, left, right, result_of)?,
                    _ => None,
                };
                (result, result_of)
            }
            Instruction::Negate => {
                let (value, of) = stack.pop().unwrap();
                let result = match value {
                    None => None,
                    Some(Value::Float(bits)) => Some(float_value(-float(bits, of), of)),
                    Some(Value::Integer(value)) => Some(fitting(-value, of)?),
                    Some(_) => panic!("a negation of numbers"),
                };
                (result, of)
            }
            Instruction::Cast(to) => {
                let (value, from) = stack.pop().unwrap();
                let result = match value {
                    Some(value) => Some(cast(value, from, *to)?),
                    None => None,
                };
                (result, *to)
            }
        };
        stack.push(result);
    }
    Ok(stack.pop().unwrap().0)
}

fn in_list(value: Option<Value>, of: Type, list: &[Scalar]) -> Option<bool> {
    let value = value?;
    let is_found =
        list.iter().any(|one| one.value.as_ref().is_some_and(|one| compared(one, &value, of).is_eq()));
    match is_found {
        true => Some(true),
        false if list.iter().any(|one| one.value.is_none()) => None,
        false => Some(false),
    }
}

fn is_like(text: &[char], pattern: &[char], escape: Option<char>) -> bool {
    let Some((first, rest)) = pattern.split_first() else { return text.is_empty() };
    if Some(*first) == escape {
        return text.first() == rest.first() && is_like(&text[1..], &rest[1..], escape);
    }
    match first {
        '%' => (0..=text.len()).any(|skipped| is_like(&text[skipped..], rest, escape)),
        '_' => !text.is_empty() && is_like(&text[1..], rest, escape),
        _ => text.first() == Some(first) && is_like(&text[1..], rest, escape),
    }
}

fn fitting(value: i128, of: Type) -> Result<Value, Stop> {
    let value = Value::Integer(value);
    if (Scalar { of, value: Some(value.clone()) }).is_valid() { Ok(value) } else { Err(Stop::Overflow) }
}

fn arithmetic(binary: Binary, left: Value, right: Value, of: Type) -> Result<Option<Value>, Stop> {
    Ok(match (left, right) {
        (Value::Float(left), Value::Float(right)) => {
            let (left, right) = (float(left, of), float(right, of));
            if left.is_nan() && right.is_nan() && left.to_bits() != right.to_bits() {
                return Err(Stop::Unspecified);
            }
            let result = match binary {
                Binary::Add => left + right,
                Binary::Subtract => left - right,
                Binary::Multiply => left * right,
                Binary::Divide => left / right,
                Binary::Remainder => left % right,
            };
            Some(float_value(result, of))
        }
        (Value::Integer(left), Value::Integer(right)) => {
            let result = match binary {
                Binary::Add => left.checked_add(right),
                Binary::Subtract => left.checked_sub(right),
                Binary::Multiply => left.checked_mul(right),
                Binary::Divide | Binary::Remainder if right == 0 => return Ok(None),
                Binary::Divide => left.checked_div(right),
                Binary::Remainder => left.checked_rem(right),
            };
            Some(fitting(result.ok_or(Stop::Overflow)?, of)?)
        }
        _ => panic!("arithmetic of numbers"),
    })
}

/// Performs the casts that are generated: between whole numbers, decimals and float64, and from whole numbers to
/// text.
fn cast(value: Value, from: Type, to: Type) -> Result<Value, Stop> {
    let scale = |of| if let Type::Decimal { scale, .. } = of { u32::from(scale) } else { 0 };
    match (value, to) {
        (value, _) if from == to => Ok(value),
        (Value::Integer(value), Type::Text) => Ok(Value::Bytes(value.to_string().into_bytes())),
        (Value::Integer(value), Type::Float64) => {
            Ok(Value::Float((value as f64 / 10f64.powi(scale(from) as i32)).to_bits()))
        }
        (Value::Integer(value), _) => {
            let (old, new) = (scale(from), scale(to));
            let value = match new >= old {
                true => value.checked_mul(10i128.pow(new - old)).ok_or(Stop::Overflow)?,
                false => {
                    let unit = 10i128.pow(old - new);
                    // Halves are rounded away from zero.
                    value.signum() * ((value.abs() + unit / 2) / unit)
                }
            };
            fitting(value, to)
        }
        (Value::Float(bits), _) => {
            let value = (float(bits, from) * 10f64.powi(scale(to) as i32)).round();
            if value.abs() < 1e38 { fitting(value as i128, to) } else { Err(Stop::Overflow) }
        }
        (value, _) => panic!("a cast of {value:?} to {to}"),
    }
}
