//! Translates DataFusion's expressions into instructions of near-data programs.
//!
//! The idea: once an expression is pushed down, DataFusion does not check it again. It is translated only if every
//! operation in it gives the same value as in DataFusion for every input, including NULL and NaN. Otherwise the
//! expression stays in DataFusion, and the error says why; EXPLAIN shows it.
//!
//! Pure: no I/O, no clock.

use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator as Sign;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CastExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr, Literal, NegativeExpr,
    NotExpr,
};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use farpool::operators::limits::{DECIMAL_DIGITS_MAX, LIST_VALUES_MAX};
use farpool::operators::run::type_of;
use farpool::operators::{Arithmetic, Binary, Comparison, Instruction, Scalar, Type, Value};
use std::sync::Arc;

/// Translated expression, and the type of its value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Translated {
    pub(crate) code: Vec<Instruction>,
    pub(crate) of: Type,
}

/// Translates an expression over columns of this schema. The error names the subexpression that cannot be translated.
pub(crate) fn translate(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Translated, String> {
    let mut code = Vec::new();
    let of = push(expr, schema, &mut code)?;
    Ok(Translated { code, of })
}

/// Translates an expression that must be boolean.
pub(crate) fn condition(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Vec<Instruction>, String> {
    let Translated { code, of } = translate(expr, schema)?;
    if of == Type::Boolean {
        Ok(code)
    } else {
        Err(format!("{expr} is of type {of}: a condition (true or false) is needed"))
    }
}

fn not_known(expr: &dyn PhysicalExpr) -> String {
    format!("{expr} cannot be pushed down")
}

fn push(expr: &Arc<dyn PhysicalExpr>, schema: &Schema, code: &mut Vec<Instruction>) -> Result<Type, String> {
    if let Some(column) = expr.downcast_ref::<Column>() {
        let field = schema.fields().get(column.index()).ok_or_else(|| not_known(&**expr))?;
        let of = type_of(field.data_type())
            .ok_or_else(|| format!("{column} has type {}, which cannot be pushed down", field.data_type()))?;
        code.push(Instruction::Column(column.index() as u16));
        return Ok(of);
    }
    if let Some(literal) = expr.downcast_ref::<Literal>() {
        let scalar = scalar(literal.value())?;
        let of = scalar.of;
        code.push(Instruction::Literal(scalar));
        return Ok(of);
    }
    if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
        return push_binary(binary, schema, code);
    }
    if let Some(not) = expr.downcast_ref::<NotExpr>() {
        push(not.arg(), schema, code)?;
        code.push(Instruction::Not);
        return Ok(Type::Boolean);
    }
    if let Some(is_null) = expr.downcast_ref::<IsNullExpr>() {
        push(is_null.arg(), schema, code)?;
        code.push(Instruction::IsNull);
        return Ok(Type::Boolean);
    }
    if let Some(is_not_null) = expr.downcast_ref::<IsNotNullExpr>() {
        push(is_not_null.arg(), schema, code)?;
        code.extend([Instruction::IsNull, Instruction::Not]);
        return Ok(Type::Boolean);
    }
    if let Some(negative) = expr.downcast_ref::<NegativeExpr>() {
        let of = push(negative.arg(), schema, code)?;
        // The least integer has no negative. DataFusion and near-data programs treat that case differently, so negation
        // of integers is refused.
        return match of.arithmetic() {
            Some(Arithmetic::Float | Arithmetic::Decimal) => {
                code.push(Instruction::Negate);
                Ok(of)
            }
            _ => Err(not_known(&**expr)),
        };
    }
    if let Some(list) = expr.downcast_ref::<InListExpr>() {
        return push_list(list, schema, code);
    }
    if let Some(like) = expr.downcast_ref::<LikeExpr>() {
        let pattern = text(like.pattern()).ok_or_else(|| not_known(&**expr))?;
        push_text(like.expr(), schema, code)?;
        code.push(Instruction::Like { pattern, escape: Some('\\'), ignores_case: like.case_insensitive() });
        code.extend(like.negated().then_some(Instruction::Not));
        return Ok(Type::Boolean);
    }
    if let Some(cast) = expr.downcast_ref::<CastExpr>() {
        let to = cast.cast_type();
        let to =
            type_of(to).or_else(|| is_text(to).then_some(Type::Text)).ok_or_else(|| not_known(&**expr))?;
        let from = push(cast.expr(), schema, code)?;
        if from != to {
            if !casts_alike(from, to) {
                return Err(format!("a cast from {from} to {to} cannot be pushed down"));
            }
            code.push(Instruction::Cast(to));
        }
        return Ok(to);
    }
    if let Some(function) = expr.downcast_ref::<ScalarFunctionExpr>() {
        return push_function(function, schema, code);
    }
    Err(not_known(&**expr))
}

fn is_text(of: &DataType) -> bool {
    matches!(of, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

/// Translates an expression that must be a text, in any of Arrow's layouts.
fn push_text(
    expr: &Arc<dyn PhysicalExpr>,
    schema: &Schema,
    code: &mut Vec<Instruction>,
) -> Result<(), String> {
    match push(expr, schema, code)? {
        Type::Text => Ok(()),
        other => Err(format!("{expr} has type {other}: text is needed")),
    }
}

fn text(expr: &Arc<dyn PhysicalExpr>) -> Option<String> {
    match expr.downcast_ref::<Literal>()?.value() {
        ScalarValue::Utf8(text) | ScalarValue::LargeUtf8(text) | ScalarValue::Utf8View(text) => text.clone(),
        _ => None,
    }
}

/// Reports whether a cast gives the same value in DataFusion and in near-data programs and cannot fail: `to` must hold
/// every value of `from`.
fn casts_alike(from: Type, to: Type) -> bool {
    let digits = |of: Type| match of {
        Type::Int8 | Type::UInt8 => Some(3),
        Type::Int16 | Type::UInt16 => Some(5),
        Type::Int32 | Type::UInt32 => Some(10),
        Type::Int64 => Some(19),
        Type::UInt64 => Some(20),
        _ => None,
    };
    let bits = |of: Type| of.width().unwrap_or_default() * 8;
    let is_integer = |of: Type| of.arithmetic() == Some(Arithmetic::Integer);
    match (from, to) {
        _ if is_integer(from) && is_integer(to) => match (from.is_signed(), to.is_signed()) {
            (true, false) => false,
            (false, true) => bits(from) < bits(to),
            _ => bits(from) <= bits(to),
        },
        (_, Type::Float64) => is_integer(from) || from == Type::Float32,
        (Type::Decimal { precision, scale }, Type::Decimal { precision: wider, scale: finer }) => {
            scale <= finer && precision - scale <= wider - finer
        }
        (Type::Date, Type::Timestamp { is_zoned, .. }) => !is_zoned,
        (_, Type::Decimal { precision, scale }) => {
            digits(from).is_some_and(|digits| digits <= precision - scale)
        }
        _ => false,
    }
}

fn comparison(sign: Sign) -> Option<Comparison> {
    Some(match sign {
        Sign::Eq => Comparison::Equal,
        Sign::NotEq => Comparison::NotEqual,
        Sign::Lt => Comparison::Less,
        Sign::LtEq => Comparison::LessOrEqual,
        Sign::Gt => Comparison::Greater,
        Sign::GtEq => Comparison::GreaterOrEqual,
        _ => return None,
    })
}

fn push_binary(binary: &BinaryExpr, schema: &Schema, code: &mut Vec<Instruction>) -> Result<Type, String> {
    let (left, right) = (binary.left(), binary.right());
    let sign = *binary.op();
    match sign {
        Sign::And | Sign::Or => {
            push(left, schema, code)?;
            push(right, schema, code)?;
            code.push(if sign == Sign::And { Instruction::And } else { Instruction::Or });
            return Ok(Type::Boolean);
        }
        Sign::RegexMatch | Sign::RegexNotMatch => {
            let pattern = text(right).ok_or_else(|| not_known(binary))?;
            push_text(left, schema, code)?;
            code.push(Instruction::Matches { pattern });
            code.extend((sign == Sign::RegexNotMatch).then_some(Instruction::Not));
            return Ok(Type::Boolean);
        }
        Sign::LikeMatch | Sign::ILikeMatch | Sign::NotLikeMatch | Sign::NotILikeMatch => {
            let pattern = text(right).ok_or_else(|| not_known(binary))?;
            let ignores_case = matches!(sign, Sign::ILikeMatch | Sign::NotILikeMatch);
            push_text(left, schema, code)?;
            code.push(Instruction::Like { pattern, escape: Some('\\'), ignores_case });
            let is_not = matches!(sign, Sign::NotLikeMatch | Sign::NotILikeMatch);
            code.extend(is_not.then_some(Instruction::Not));
            return Ok(Type::Boolean);
        }
        _ => {}
    }
    let (left, right) = (translate(left, schema)?, translate(right, schema)?);
    if let Some(comparison) = comparison(sign) {
        let (left, right) = alike(left, right).ok_or_else(|| not_known(binary))?;
        code.extend(left.code);
        code.extend(right.code);
        code.push(Instruction::Compare(comparison));
        return Ok(Type::Boolean);
    }
    let kind = left.of.arithmetic().zip(right.of.arithmetic()).filter(|(left, right)| left == right);
    // Integer overflow wraps in DataFusion and is an error in near-data programs, so DataFusion keeps integer
    // arithmetic.
    let (Some((kind, _)), true) = (kind, left.of.arithmetic() != Some(Arithmetic::Integer)) else {
        return Err(not_known(binary));
    };
    let operation = match (sign, kind) {
        (Sign::Plus, _) => Binary::Add,
        (Sign::Minus, _) => Binary::Subtract,
        (Sign::Multiply, _) => Binary::Multiply,
        (Sign::Divide, Arithmetic::Float) => Binary::Divide,
        _ => return Err(not_known(binary)),
    };
    let (left, right) = match operation {
        Binary::Multiply if kind == Arithmetic::Decimal => (left, right),
        _ => alike(left, right).ok_or_else(|| not_known(binary))?,
    };
    let of = match (left.of, right.of) {
        (Type::Decimal { scale: left, .. }, Type::Decimal { scale: right, .. }) => {
            let scale = if operation == Binary::Multiply { left + right } else { left };
            if scale > DECIMAL_DIGITS_MAX {
                return Err(not_known(binary));
            }
            Type::Decimal { precision: DECIMAL_DIGITS_MAX, scale }
        }
        (of, other) if of == other => of,
        _ => return Err(not_known(binary)),
    };
    code.extend(left.code);
    code.extend(right.code);
    code.push(Instruction::Binary(operation));
    Ok(of)
}

/// Converts both sides of an operation to one type: decimals of different scales get the larger number of decimal
/// places.
fn alike(left: Translated, right: Translated) -> Option<(Translated, Translated)> {
    let of = match (left.of, right.of) {
        (of, other) if of == other => return Some((left, right)),
        (Type::Decimal { precision: a, scale: x }, Type::Decimal { precision: b, scale: y }) => {
            let scale = x.max(y);
            let whole = (a - x).max(b - y);
            Type::Decimal { precision: (whole + scale).min(DECIMAL_DIGITS_MAX), scale }
        }
        _ => return None,
    };
    let to = |side: Translated| {
        let mut code = side.code;
        match &mut code[..] {
            // A literal is converted now, so that no cast is needed for each row.
            [Instruction::Literal(scalar)] => *scalar = rescaled(scalar, of)?,
            _ if side.of == of => {}
            _ => code.push(Instruction::Cast(of)),
        }
        Some(Translated { code, of })
    };
    Some((to(left)?, to(right)?))
}

fn rescaled(scalar: &Scalar, to: Type) -> Option<Scalar> {
    let (Type::Decimal { scale, .. }, Type::Decimal { scale: finer, .. }) = (scalar.of, to) else {
        return None;
    };
    let value = match scalar.value {
        None => None,
        Some(Value::Integer(value)) => {
            let factor = 10i128.checked_pow(u32::from(finer.checked_sub(scale)?))?;
            Some(Value::Integer(value.checked_mul(factor)?))
        }
        Some(_) => return None,
    };
    let made = Scalar { of: to, value };
    made.is_valid().then_some(made)
}

fn push_list(list: &InListExpr, schema: &Schema, code: &mut Vec<Instruction>) -> Result<Type, String> {
    let of = push(list.expr(), schema, code)?;
    if list.len() > LIST_VALUES_MAX {
        return Err(format!("a list of {} values: at most {LIST_VALUES_MAX} are permitted", list.len()));
    }
    let value = |item: &Arc<dyn PhysicalExpr>| {
        let literal = item.downcast_ref::<Literal>().ok_or_else(|| not_known(list))?;
        let scalar = scalar(literal.value())?;
        match scalar.of == of || scalar.value.is_none() {
            true => Ok(Scalar { of, ..scalar }),
            false => rescaled(&scalar, of).ok_or_else(|| not_known(list)),
        }
    };
    let has_zero = |item: &Arc<dyn PhysicalExpr>| {
        let value = item.downcast_ref::<Literal>().map(Literal::value);
        matches!(value, Some(ScalarValue::Float32(Some(0.0)) | ScalarValue::Float64(Some(0.0))))
    };
    // DataFusion's IN distinguishes -0.0 from 0.0; near-data programs do not.
    if list.list().iter().any(has_zero) {
        return Err(not_known(list));
    }
    code.push(Instruction::InList(list.list().iter().map(value).collect::<Result<_, String>>()?));
    code.extend(list.negated().then_some(Instruction::Not));
    Ok(Type::Boolean)
}

fn push_function(
    function: &ScalarFunctionExpr,
    schema: &Schema,
    code: &mut Vec<Instruction>,
) -> Result<Type, String> {
    match (function.fun().name(), function.args()) {
        ("regexp_like", [of, pattern]) => {
            let pattern = text(pattern).ok_or_else(|| not_known(function))?;
            push_text(of, schema, code)?;
            code.push(Instruction::Matches { pattern });
        }
        ("starts_with", [of, prefix]) => {
            let prefix = text(prefix).ok_or_else(|| not_known(function))?;
            push_text(of, schema, code)?;
            code.push(Instruction::Like {
                pattern: escaped(&prefix) + "%",
                escape: Some('\\'),
                ignores_case: false,
            });
        }
        ("ends_with", [of, suffix]) => {
            let suffix = text(suffix).ok_or_else(|| not_known(function))?;
            push_text(of, schema, code)?;
            let pattern = format!("%{}", escaped(&suffix));
            code.push(Instruction::Like { pattern, escape: Some('\\'), ignores_case: false });
        }
        ("contains", [of, within]) => {
            let within = text(within).ok_or_else(|| not_known(function))?;
            push_text(of, schema, code)?;
            let pattern = format!("%{}%", escaped(&within));
            code.push(Instruction::Like { pattern, escape: Some('\\'), ignores_case: false });
        }
        _ => return Err(not_known(function)),
    }
    Ok(Type::Boolean)
}

/// Returns a LIKE pattern that matches exactly this text.
fn escaped(text: &str) -> String {
    let each = |letter: char| match letter {
        '%' | '_' | '\\' => vec!['\\', letter],
        _ => vec![letter],
    };
    text.chars().flat_map(each).collect()
}

/// Converts a literal of DataFusion. The error says that its type does not exist in near-data programs.
pub(crate) fn scalar(value: &ScalarValue) -> Result<Scalar, String> {
    use ScalarValue as S;
    let none = || format!("a value of type {} cannot be pushed down", value.data_type());
    let integer = |of: Type, value: Option<i128>| Scalar { of, value: value.map(Value::Integer) };
    let bytes = |of: Type, value: Option<&[u8]>| Scalar {
        of,
        value: value.map(|bytes| Value::Bytes(bytes.to_vec())),
    };
    let of = || type_of(&value.data_type()).ok_or_else(none);
    Ok(match value {
        S::Boolean(of) => Scalar { of: Type::Boolean, value: of.map(Value::Boolean) },
        S::Int8(of) => integer(Type::Int8, of.map(i128::from)),
        S::Int16(of) => integer(Type::Int16, of.map(i128::from)),
        S::Int32(of) => integer(Type::Int32, of.map(i128::from)),
        S::Int64(of) => integer(Type::Int64, of.map(i128::from)),
        S::UInt8(of) => integer(Type::UInt8, of.map(i128::from)),
        S::UInt16(of) => integer(Type::UInt16, of.map(i128::from)),
        S::UInt32(of) => integer(Type::UInt32, of.map(i128::from)),
        S::UInt64(of) => integer(Type::UInt64, of.map(i128::from)),
        S::Float32(of) => {
            Scalar { of: Type::Float32, value: of.map(|of| Value::Float(u64::from(of.to_bits()))) }
        }
        S::Float64(of) => Scalar { of: Type::Float64, value: of.map(|of| Value::Float(of.to_bits())) },
        S::Decimal128(value, ..) => integer(of()?, *value),
        S::Date32(of) => integer(Type::Date, of.map(i128::from)),
        S::TimestampSecond(value, _)
        | S::TimestampMillisecond(value, _)
        | S::TimestampMicrosecond(value, _)
        | S::TimestampNanosecond(value, _) => integer(of()?, value.map(i128::from)),
        S::Utf8(text) | S::LargeUtf8(text) | S::Utf8View(text) => {
            bytes(Type::Text, text.as_ref().map(|text| text.as_bytes()))
        }
        S::Binary(value) | S::LargeBinary(value) | S::BinaryView(value) => {
            bytes(Type::Bytes, value.as_deref())
        }
        S::FixedSizeBinary(_, value) => bytes(of()?, value.as_deref()),
        _ => return Err(none()),
    })
}
