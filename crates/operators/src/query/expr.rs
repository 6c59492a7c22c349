//! Expressions by the names of columns, for people and engines to write; [`Expr::compile`] makes instructions of them
//! and finds the types that two sides have in common.
//!
//! A literal takes the type of what it stands beside, if it is the same value there: `col("price").gt(lit(0.05))` over
//! a decimal(12, 2) compares decimals. If it is not, both sides take the narrowest type that holds both.

use crate::expression::{Binary, Comparison, Instruction};
use crate::limits::DECIMAL_DIGITS_MAX;
use crate::run::rescaled;
use crate::types::{Arithmetic, Scalar, Type, Value};
use std::ops;

/// A value as it is written, before it has a type.
#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    /// NULL of whatever type is wanted.
    Null,
    /// True or false.
    Boolean(bool),
    /// A whole number.
    Integer(i128),
    /// A number.
    Float(f64),
    /// Text.
    Text(String),
    /// A value whose type is settled.
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

/// An expression over named columns.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// A column.
    Column(String),
    /// A value.
    Literal(Literal),
    /// How two values stand to each other.
    Compare(Comparison, Box<Expr>, Box<Expr>),
    /// Whether a value is among others.
    InList(Box<Expr>, Vec<Literal>),
    /// Whether a value is NULL.
    IsNull(Box<Expr>),
    /// Both.
    And(Box<Expr>, Box<Expr>),
    /// One of two, or both.
    Or(Box<Expr>, Box<Expr>),
    /// The opposite.
    Not(Box<Expr>),
    /// SQL's LIKE or ILIKE, with `\` as escape.
    Like(Box<Expr>, String, bool),
    /// Whether a regular expression is found.
    Matches(Box<Expr>, String),
    /// The quotient of two numbers of any type, as a float64.
    Ratio(Box<Expr>, Box<Expr>),
    /// Arithmetic.
    Binary(Binary, Box<Expr>, Box<Expr>),
    /// The negative.
    Negate(Box<Expr>),
    /// A value of another type.
    Cast(Box<Expr>, Type),
}

/// The column of this name.
pub fn col(name: impl Into<String>) -> Expr {
    Expr::Column(name.into())
}

/// A value.
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

    /// Both ends included.
    pub fn between(self, least: impl Into<Expr>, most: impl Into<Expr>) -> Expr {
        self.clone().gt_eq(least).and(self.lt_eq(most))
    }

    /// Both are true.
    pub fn and(self, other: Expr) -> Expr {
        Expr::And(Box::new(self), Box::new(other))
    }

    /// One is true.
    pub fn or(self, other: Expr) -> Expr {
        Expr::Or(Box::new(self), Box::new(other))
    }

    /// It is NULL.
    pub fn is_null(&self) -> Expr {
        Expr::IsNull(Box::new(self.clone()))
    }

    /// It is not NULL.
    pub fn is_not_null(&self) -> Expr {
        !self.is_null()
    }

    /// It is one of these.
    pub fn in_list<L: Into<Literal>>(self, values: impl IntoIterator<Item = L>) -> Expr {
        Expr::InList(Box::new(self), values.into_iter().map(Into::into).collect())
    }

    /// It is like the pattern as a whole: `%` is any text, `_` any character, `\` takes the meaning of the next.
    pub fn like(self, pattern: impl Into<String>) -> Expr {
        Expr::Like(Box::new(self), pattern.into(), false)
    }

    /// Likewise, whatever the case of letters.
    pub fn ilike(self, pattern: impl Into<String>) -> Expr {
        Expr::Like(Box::new(self), pattern.into(), true)
    }

    /// The regular expression is found in it.
    pub fn matches(self, pattern: impl Into<String>) -> Expr {
        Expr::Matches(Box::new(self), pattern.into())
    }

    /// Their quotient as a float64, where `/` of whole numbers is a whole number.
    pub fn ratio(self, divisor: impl Into<Expr>) -> Expr {
        Expr::Ratio(Box::new(self), Box::new(divisor.into()))
    }

    /// As another type. A value that does not fit ends the query with an error.
    pub fn cast(self, to: Type) -> Expr {
        Expr::Cast(Box::new(self), to)
    }

    /// Instructions over these columns, and what they leave. An error names what does not fit.
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

/// Instructions, and what they leave.
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

/// `wanted`: what a literal should become, if it can.
fn compile(expr: &Expr, columns: Columns<'_>, wanted: Option<Type>) -> Result<Compiled, String> {
    let whole = |expr| compile(expr, columns, None);
    let truth = |expr: &Expr| {
        let compiled = compile(expr, columns, Some(Type::Boolean))?;
        match compiled.of {
            Type::Boolean => Ok(compiled),
            of => Err(format!("{expr} is {of} where true or false is wanted")),
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
            let scalar = scalar.ok_or_else(|| format!("a literal {literal} that no type holds"))?;
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
                    format!("{literal} in a list for {}: only its values are permitted", value.of)
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
                return Err(format!("{expr}: a quotient of {other}: numbers are wanted"));
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

/// Two sides. The other side says what a literal becomes.
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

/// Two sides as one type.
fn in_common(left: Compiled, right: Compiled) -> Result<(Compiled, Compiled), String> {
    let of = common(left.of, right.of)
        .ok_or_else(|| format!("{} beside {}: no type holds both; cast one of them", left.of, right.of))?;
    Ok((left.cast(of), right.cast(of)))
}

fn arithmetic(binary: Binary, left: Compiled, right: Compiled) -> Result<Compiled, String> {
    let are_decimals = [&left, &right].map(|side| side.of.arithmetic()) == [Some(Arithmetic::Decimal); 2];
    // Of a product of decimals the scales add up: they need not be the same.
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
        return Err(format!("arithmetic of {of}: numbers are wanted"));
    }
    Ok(left.and_then(right, Instruction::Binary(binary), of))
}

/// The narrowest type that holds both.
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
    // An unsigned one as wide as the other or wider: a sign takes a bit more.
    match bits(wider) {
        8 => Type::Int16,
        16 => Type::Int32,
        32 => Type::Int64,
        _ => Type::Decimal { precision: DECIMAL_DIGITS_MAX, scale: 0 },
    }
}

/// The type that a literal has by itself.
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

/// The same value as a type; nothing if it is another there.
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

/// A value of a settled type as another of its kind: decimals, times of one sort, bytes.
fn same_kind(scalar: &Scalar, of: Type) -> Option<Value> {
    let is_kind = match (scalar.of, of) {
        (Type::Timestamp { is_zoned: one, .. }, Type::Timestamp { is_zoned: other, .. }) => one == other,
        (Type::Decimal { .. }, Type::Decimal { .. }) => true,
        (Type::Bytes, Type::FixedBytes(_)) => return scalar.value.clone(),
        _ => false,
    };
    let Some(Value::Integer(value)) = scalar.value else { return None };
    let moved = rescaled(value, scalar.of, of).filter(|_| is_kind)?;
    // What comes back as another lost digits on the way.
    (rescaled(moved, of, scalar.of) == Some(value)).then_some(Value::Integer(moved))
}

/// A float as the decimal that people write for it, in units of its last digit: 0.05 is 5 at a scale of 2.
fn as_written(value: f64, scale: u8) -> Option<i128> {
    // Rust writes the fewest digits that are read as the same float again, and no exponent.
    let written = value.is_finite().then(|| format!("{value}"))?;
    let (whole, fraction) = written.split_once('.').unwrap_or((&written, ""));
    if fraction.len() > usize::from(scale) {
        return None;
    }
    format!("{whole}{fraction:0<width$}", width = usize::from(scale)).parse().ok()
}
