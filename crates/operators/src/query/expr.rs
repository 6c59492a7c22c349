//! Expressions by the names of columns, as people and engines write them. [`Expr::compile`] makes instructions of
//! them and finds a common type for the two sides of an operation.
//!
//! A literal takes the type of the other side, if it has the same value there: `col("price").gt(lit(0.05))` over a
//! decimal(12, 2) compares decimals. Otherwise both sides take the narrowest type that holds both.

use crate::expression::{Binary, Comparison, Instruction};
use crate::limits::DECIMAL_DIGITS_MAX;
use crate::run::rescaled;
use crate::types::{Arithmetic, Scalar, Type, Value};
use std::ops;

/// Value as it is written, mostly without a type.
#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    /// NULL of whatever type is needed.
    Null,
    /// True or false.
    Boolean(bool),
    /// Whole number.
    Integer(i128),
    /// Number with a fraction or exponent.
    Float(f64),
    /// Text.
    Text(String),
    /// Value of a given type.
    Scalar(Scalar),
}

macro_rules! literals {
    ($($from:ty => $make:expr),* $(,)?) => {$(
        impl From<$from> for Literal {
            fn from(value: $from) -> Literal {
                let make: fn($from) -> Literal = $make;
                make(value)
            }
        }
    )*};
}

literals!(
    bool => Literal::Boolean,
    i32 => |value| Literal::Integer(value.into()),
    i64 => |value| Literal::Integer(value.into()),
    u32 => |value| Literal::Integer(value.into()),
    u64 => |value| Literal::Integer(value.into()),
    i128 => Literal::Integer,
    f64 => Literal::Float,
    &str => |value| Literal::Text(value.to_owned()),
    String => Literal::Text,
    Scalar => Literal::Scalar,
);

/// Expression over named columns.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// Column of this name.
    Column(String),
    /// Literal value.
    Literal(Literal),
    /// Comparison of two values.
    Compare(Comparison, Box<Expr>, Box<Expr>),
    /// Test whether a value is in a list.
    InList(Box<Expr>, Vec<Literal>),
    /// Test whether a value is NULL.
    IsNull(Box<Expr>),
    /// AND of two conditions.
    And(Box<Expr>, Box<Expr>),
    /// OR of two conditions.
    Or(Box<Expr>, Box<Expr>),
    /// Negation of a condition.
    Not(Box<Expr>),
    /// SQL's LIKE, or ILIKE if the last field is true. The escape character is `\`.
    Like(Box<Expr>, String, bool),
    /// Test whether a regular expression is found in a text.
    Matches(Box<Expr>, String),
    /// Quotient of two numbers of any type, as a float64.
    Ratio(Box<Expr>, Box<Expr>),
    /// Arithmetic between two numbers.
    Binary(Binary, Box<Expr>, Box<Expr>),
    /// Negative of a number.
    Negate(Box<Expr>),
    /// Cast to another type.
    Cast(Box<Expr>, Type),
}

/// Returns the column of this name.
pub fn col(name: impl Into<String>) -> Expr {
    Expr::Column(name.into())
}

/// Returns a literal value.
pub fn lit(value: impl Into<Literal>) -> Expr {
    Expr::Literal(value.into())
}

macro_rules! comparisons {
    ($($name:ident => $comparison:ident, $doc:literal);* $(;)?) => {$(
        #[doc = $doc]
        pub fn $name(self, other: impl Into<Expr>) -> Expr {
            Expr::Compare(Comparison::$comparison, Box::new(self), Box::new(other.into()))
        }
    )*};
}

impl Expr {
    comparisons!(
        eq => Equal, "`=`";
        not_eq => NotEqual, "`<>`";
        lt => Less, "`<`";
        lt_eq => LessOrEqual, "`<=`";
        gt => Greater, "`>`";
        gt_eq => GreaterOrEqual, "`>=`";
    );

    /// Tests whether the value lies between two others, both included.
    pub fn between(self, least: impl Into<Expr>, most: impl Into<Expr>) -> Expr {
        self.clone().gt_eq(least).and(self.lt_eq(most))
    }

    /// Tests whether both are true.
    pub fn and(self, other: Expr) -> Expr {
        Expr::And(Box::new(self), Box::new(other))
    }

    /// Tests whether at least one is true.
    pub fn or(self, other: Expr) -> Expr {
        Expr::Or(Box::new(self), Box::new(other))
    }

    /// Tests whether the value is NULL.
    pub fn is_null(&self) -> Expr {
        Expr::IsNull(Box::new(self.clone()))
    }

    /// Tests whether the value is not NULL.
    pub fn is_not_null(&self) -> Expr {
        !self.is_null()
    }

    /// Tests whether the value is in a list.
    pub fn in_list<L: Into<Literal>>(self, values: impl IntoIterator<Item = L>) -> Expr {
        Expr::InList(Box::new(self), values.into_iter().map(Into::into).collect())
    }

    /// Tests whether the whole text matches a pattern: `%` is any text, `_` any character, and `\` makes the next
    /// character an ordinary one.
    pub fn like(self, pattern: impl Into<String>) -> Expr {
        Expr::Like(Box::new(self), pattern.into(), false)
    }

    /// Tests the same as [`Expr::like`], but letters match in either case.
    pub fn ilike(self, pattern: impl Into<String>) -> Expr {
        Expr::Like(Box::new(self), pattern.into(), true)
    }

    /// Tests whether the regular expression is found in the text.
    pub fn matches(self, pattern: impl Into<String>) -> Expr {
        Expr::Matches(Box::new(self), pattern.into())
    }

    /// Divides as float64. The operator `/` between whole numbers gives a whole number.
    pub fn ratio(self, divisor: impl Into<Expr>) -> Expr {
        Expr::Ratio(Box::new(self), Box::new(divisor.into()))
    }

    /// Casts to another type. A value that does not fit ends the query with an error.
    pub fn cast(self, to: Type) -> Expr {
        Expr::Cast(Box::new(self), to)
    }

    /// Compiles to instructions over these columns, and returns the type of the result. An error names what does not
    /// fit.
    pub fn compile(&self, columns: &[(String, Type)]) -> Result<(Vec<Instruction>, Type), String> {
        compile(self, columns, None).map(|compiled| (compiled.code, compiled.of))
    }
}

impl<L: Into<Literal>> From<L> for Expr {
    fn from(value: L) -> Expr {
        Expr::Literal(value.into())
    }
}

macro_rules! operators {
    ($($trait:ident, $method:ident, $binary:ident);* $(;)?) => {$(
        impl<E: Into<Expr>> ops::$trait<E> for Expr {
            type Output = Expr;
            fn $method(self, other: E) -> Expr {
                Expr::Binary(Binary::$binary, Box::new(self), Box::new(other.into()))
            }
        }
    )*};
}

operators!(
    Add, add, Add;
    Sub, sub, Subtract;
    Mul, mul, Multiply;
    Div, div, Divide;
    Rem, rem, Remainder;
);

impl ops::Neg for Expr {
    type Output = Expr;
    fn neg(self) -> Expr {
        Expr::Negate(Box::new(self))
    }
}

impl ops::Not for Expr {
    type Output = Expr;
    fn not(self) -> Expr {
        Expr::Not(Box::new(self))
    }
}

/// Instructions, and the type of their result.
struct Compiled {
    code: Vec<Instruction>,
    of: Type,
}

impl Compiled {
    fn then(mut self, instruction: Instruction, of: Type) -> Compiled {
        self.code.push(instruction);
        Compiled { of, ..self }
    }

    fn cast(self, to: Type) -> Compiled {
        if self.of == to { self } else { self.then(Instruction::Cast(to), to) }
    }

    fn and_then(mut self, other: Compiled, instruction: Instruction, of: Type) -> Compiled {
        self.code.extend(other.code);
        self.then(instruction, of)
    }
}

type Columns<'c> = &'c [(String, Type)];

/// Compiles an expression. `wanted` is the type that a literal should take if it can.
fn compile(expr: &Expr, columns: Columns<'_>, wanted: Option<Type>) -> Result<Compiled, String> {
    let whole = |expr| compile(expr, columns, None);
    let truth = |expr: &Expr| {
        let compiled = compile(expr, columns, Some(Type::Boolean))?;
        match compiled.of {
            Type::Boolean => Ok(compiled),
            of => Err(format!("{expr} is of type {of}: a condition (true or false) is needed")),
        }
    };
    Ok(match expr {
        Expr::Column(name) => {
            let mut found = columns.iter().zip(0u16..).filter(|((known, _), _)| known == name);
            let Some(((_, of), column)) = found.next() else {
                let names: Vec<&str> = columns.iter().map(|(name, _)| &**name).collect();
                return Err(format!("no column {name:?}; there are {}", names.join(", ")));
            };
            Compiled { code: vec![Instruction::Column(column)], of: *of }
        }
        Expr::Literal(literal) => {
            let scalar = wanted.and_then(|of| exactly(literal, of)).or_else(|| natural(literal));
            let scalar = scalar.ok_or_else(|| format!("no type can hold the literal {literal}"))?;
            Compiled { of: scalar.of, code: vec![Instruction::Literal(scalar)] }
        }
        Expr::Compare(comparison, left, right) => {
            let (left, right) = both(left, right, columns)?;
            let (left, right) = in_common(left, right).map_err(|why| format!("{expr}: {why}"))?;
            left.and_then(right, Instruction::Compare(*comparison), Type::Boolean)
        }
        Expr::InList(value, list) => {
            let value = whole(value)?;
            let exact = |literal| {
                exactly(literal, value.of).ok_or_else(|| {
                    format!("{literal} in a list for {}: it is not a value of this type", value.of)
                })
            };
            let list = list.iter().map(exact).collect::<Result<Vec<_>, _>>()?;
            value.then(Instruction::InList(list), Type::Boolean)
        }
        Expr::IsNull(value) => whole(value)?.then(Instruction::IsNull, Type::Boolean),
        Expr::And(left, right) => truth(left)?.and_then(truth(right)?, Instruction::And, Type::Boolean),
        Expr::Or(left, right) => truth(left)?.and_then(truth(right)?, Instruction::Or, Type::Boolean),
        Expr::Not(value) => truth(value)?.then(Instruction::Not, Type::Boolean),
        Expr::Like(value, pattern, ignores_case) => {
            let like = Instruction::Like {
                pattern: pattern.clone(),
                escape: Some('\\'),
                ignores_case: *ignores_case,
            };
            whole(value)?.then(like, Type::Boolean)
        }
        Expr::Matches(value, pattern) => {
            whole(value)?.then(Instruction::Matches { pattern: pattern.clone() }, Type::Boolean)
        }
        Expr::Ratio(left, right) => {
            let (left, right) = both(left, right, columns)?;
            if let Some(other) = [left.of, right.of].into_iter().find(|of| of.arithmetic().is_none()) {
                return Err(format!("{expr}: a division of {other}: numbers are needed"));
            }
            let divide = Instruction::Binary(Binary::Divide);
            left.cast(Type::Float64).and_then(right.cast(Type::Float64), divide, Type::Float64)
        }
        Expr::Binary(binary, left, right) => {
            let (left, right) = both(left, right, columns)?;
            arithmetic(*binary, left, right).map_err(|why| format!("{expr}: {why}"))?
        }
        Expr::Negate(value) => {
            let value = compile(value, columns, wanted)?;
            let of = value.of;
            value.then(Instruction::Negate, of)
        }
        Expr::Cast(value, to) => compile(value, columns, Some(*to))?.cast(*to),
    })
}

/// Compiles both sides. If one is a literal, it takes the type of the other if it can.
fn both(left: &Expr, right: &Expr, columns: Columns<'_>) -> Result<(Compiled, Compiled), String> {
    Ok(match (left, right) {
        (Expr::Literal(_), _) => {
            let right = compile(right, columns, None)?;
            (compile(left, columns, Some(right.of))?, right)
        }
        _ => {
            let left = compile(left, columns, None)?;
            let right = compile(right, columns, Some(left.of))?;
            (left, right)
        }
    })
}

/// Casts both sides to a common type.
fn in_common(left: Compiled, right: Compiled) -> Result<(Compiled, Compiled), String> {
    let of = common(left.of, right.of)
        .ok_or_else(|| format!("{} and {} have no common type: cast one of them", left.of, right.of))?;
    Ok((left.cast(of), right.cast(of)))
}

fn arithmetic(binary: Binary, left: Compiled, right: Compiled) -> Result<Compiled, String> {
    let are_decimals = [&left, &right].map(|side| side.of.arithmetic()) == [Some(Arithmetic::Decimal); 2];
    // The scales of a product of decimals are added, so they may differ.
    let is_product = binary == Binary::Multiply && are_decimals;
    let (mut left, mut right) = if is_product { (left, right) } else { in_common(left, right)? };
    let mut of = left.of;
    if let (Type::Decimal { scale: one, .. }, Type::Decimal { scale: other, .. }) = (left.of, right.of) {
        match binary {
            Binary::Add | Binary::Subtract => {
                of = Type::Decimal { precision: DECIMAL_DIGITS_MAX, scale: one }
            }
            Binary::Multiply if one + other <= DECIMAL_DIGITS_MAX => {
                of = Type::Decimal { precision: DECIMAL_DIGITS_MAX, scale: one + other };
            }
            _ => {
                (left, right) = (left.cast(Type::Float64), right.cast(Type::Float64));
                of = Type::Float64;
            }
        }
    }
    if of.arithmetic().is_none() {
        return Err(format!("arithmetic of {of}: numbers are needed"));
    }
    Ok(left.and_then(right, Instruction::Binary(binary), of))
}

/// Returns the narrowest type that holds all values of both.
fn common(left: Type, right: Type) -> Option<Type> {
    if left == right {
        return Some(left);
    }
    let kinds = (left.arithmetic(), right.arithmetic());
    match (left, right) {
        (Type::Decimal { scale: one, precision: left }, Type::Decimal { scale: other, precision: right }) => {
            let scale = one.max(other);
            let whole = (left - one).max(right - other);
            Some(Type::Decimal { precision: (whole + scale).min(DECIMAL_DIGITS_MAX), scale })
        }
        (of @ Type::Decimal { .. }, whole) | (whole, of @ Type::Decimal { .. })
            if whole.arithmetic() == Some(Arithmetic::Integer) =>
        {
            let Type::Decimal { scale, .. } = of else { return None };
            Some(Type::Decimal { precision: DECIMAL_DIGITS_MAX, scale })
        }
        _ if kinds == (Some(Arithmetic::Integer), Some(Arithmetic::Integer)) => {
            Some(common_integer(left, right))
        }
        _ if kinds.0.is_some() && kinds.1.is_some() => Some(Type::Float64),
        (time @ Type::Timestamp { .. }, Type::Date) | (Type::Date, time @ Type::Timestamp { .. }) => {
            Some(time)
        }
        (Type::Timestamp { unit: left, is_zoned: one }, Type::Timestamp { unit: right, is_zoned: other })
            if one == other =>
        {
            Some(Type::Timestamp { unit: left.max(right), is_zoned: one })
        }
        _ => None,
    }
}

fn common_integer(left: Type, right: Type) -> Type {
    let bits = |of: Type| of.width().unwrap_or(8) * 8;
    let (wider, narrower) = if bits(left) >= bits(right) { (left, right) } else { (right, left) };
    if wider.is_signed() == narrower.is_signed() || (wider.is_signed() && bits(wider) > bits(narrower)) {
        return wider;
    }
    // The unsigned type is at least as wide as the signed one, and the sign takes one more bit.
    match bits(wider) {
        8 => Type::Int16,
        16 => Type::Int32,
        32 => Type::Int64,
        _ => Type::Decimal { precision: DECIMAL_DIGITS_MAX, scale: 0 },
    }
}

/// Returns the literal in the type that it takes if no operand beside it has a type. `None` if no type holds it.
fn natural(literal: &Literal) -> Option<Scalar> {
    let first_of = |types: &[Type]| types.iter().find_map(|of| exactly(literal, *of));
    match literal {
        Literal::Null | Literal::Boolean(_) => exactly(literal, Type::Boolean),
        Literal::Integer(_) => {
            first_of(&[Type::Int64, Type::UInt64, Type::Decimal { precision: DECIMAL_DIGITS_MAX, scale: 0 }])
        }
        Literal::Float(_) => exactly(literal, Type::Float64),
        Literal::Text(_) => exactly(literal, Type::Text),
        Literal::Scalar(scalar) => scalar.is_valid().then(|| scalar.clone()),
    }
}

/// Returns the literal as a value of this type, or `None` if the type has no equal value.
fn exactly(literal: &Literal, of: Type) -> Option<Scalar> {
    let value = match (literal, of) {
        (Literal::Null, _) => return Some(Scalar::null(of)),
        (Literal::Scalar(scalar), _) if scalar.of == of => return scalar.is_valid().then(|| scalar.clone()),
        (Literal::Scalar(scalar), _) => same_kind(scalar, of)?,
        (Literal::Boolean(value), Type::Boolean) => Value::Boolean(*value),
        (Literal::Integer(value), Type::Float64) if value.unsigned_abs() <= 1 << 53 => {
            Value::Float((*value as f64).to_bits())
        }
        (Literal::Integer(value), Type::Float32) if value.unsigned_abs() <= 1 << 24 => {
            Value::Float((*value as f32).to_bits().into())
        }
        (Literal::Integer(value), Type::Decimal { scale, .. }) => {
            Value::Integer(value.checked_mul(10i128.checked_pow(scale.into())?)?)
        }
        (Literal::Integer(value), _) if of.arithmetic() == Some(Arithmetic::Integer) => {
            Value::Integer(*value)
        }
        (Literal::Float(value), Type::Float64) => Value::Float(value.to_bits()),
        (Literal::Float(value), Type::Float32) if f64::from(*value as f32) == *value => {
            Value::Float((*value as f32).to_bits().into())
        }
        (Literal::Float(value), Type::Decimal { scale, .. }) => Value::Integer(as_written(*value, scale)?),
        (Literal::Text(text), Type::Text) => Value::Bytes(text.clone().into_bytes()),
        _ => return None,
    };
    let scalar = Scalar { of, value: Some(value) };
    scalar.is_valid().then_some(scalar)
}

/// Converts a value of a given type to another type of its kind: between decimals, between timestamps that both have a
/// time zone or both have none, or from bytes to bytes of fixed width. `None` for other pairs, and if digits are lost.
fn same_kind(scalar: &Scalar, of: Type) -> Option<Value> {
    let is_kind = match (scalar.of, of) {
        (Type::Timestamp { is_zoned: one, .. }, Type::Timestamp { is_zoned: other, .. }) => one == other,
        (Type::Decimal { .. }, Type::Decimal { .. }) => true,
        (Type::Bytes, Type::FixedBytes(_)) => return scalar.value.clone(),
        _ => false,
    };
    let Some(Value::Integer(value)) = scalar.value else { return None };
    let moved = rescaled(value, scalar.of, of).filter(|_| is_kind)?;
    // A value that differs after a conversion and back has lost digits.
    (rescaled(moved, of, scalar.of) == Some(value)).then_some(Value::Integer(moved))
}

/// Returns a float as the decimal that people write for it, in units of its last digit: 0.05 is 5 at a scale of 2.
/// `None` if it has more digits.
fn as_written(value: f64, scale: u8) -> Option<i128> {
    // Rust prints the fewest digits that read back as the same float, and no exponent.
    let written = value.is_finite().then(|| format!("{value}"))?;
    let (whole, fraction) = written.split_once('.').unwrap_or((&written, ""));
    if fraction.len() > usize::from(scale) {
        return None;
    }
    format!("{whole}{fraction:0<width$}", width = usize::from(scale)).parse().ok()
}
