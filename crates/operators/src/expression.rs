//! Expressions: instructions for a stack machine, so that checking and running one is a loop without recursion.
//!
//! The idea: each instruction takes its operands, whole columns, from the top of the stack and puts its result there.
//! An expression is well-formed if every instruction finds operands of types that it accepts, and exactly one value
//! is left at the end. The height of the stack is the nesting depth, and it is limited.

use crate::limits::*;
use crate::types::{Arithmetic, Scalar, Type};
use std::fmt;

/// Comparison of two values. Floats have the total order of IEEE 754, in which NaN is below or above all numbers by
/// its sign, but the two zeros are equal. Text and bytes compare by their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// `=`
    Equal,
    /// `<>`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
}

/// Arithmetic between two values of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    /// Sum.
    Add,
    /// Difference.
    Subtract,
    /// Product. The scale of a product of decimals is the sum of the two scales.
    Multiply,
    /// Quotient. Whole numbers are divided towards zero; a division by the whole number 0 gives NULL. Decimals are
    /// refused.
    Divide,
    /// Remainder, with the sign of the dividend. A division by the whole number 0 gives NULL.
    Remainder,
}

/// Instruction of an expression. NULL behaves as in SQL.
#[derive(Clone, Debug, PartialEq)]
pub enum Instruction {
    /// Puts a column of the operator's input on the stack.
    Column(u16),
    /// Puts the same value for every row on the stack.
    Literal(Scalar),
    /// Compares two values of one type. The result is a boolean.
    Compare(Comparison),
    /// Tests whether a value is in a list of values of its type. If the list has a NULL, the result is true or NULL.
    InList(Vec<Scalar>),
    /// Tests whether a value of any type is NULL. The result is never NULL.
    IsNull,
    /// AND of two booleans: false if one is false, even if the other is NULL.
    And,
    /// OR of two booleans: true if one is true, even if the other is NULL.
    Or,
    /// Negates a boolean.
    Not,
    /// SQL's LIKE: tests whether a whole text matches a pattern with `%`, `_` and an escape character.
    Like {
        /// The pattern.
        pattern: String,
        /// Character that makes the next character of the pattern an ordinary one.
        escape: Option<char>,
        /// True if letters match in either case.
        ignores_case: bool,
    },
    /// Tests whether a regular expression is found anywhere in a text. The syntax is that of the `regex` crate: no
    /// backreferences, no look-around, linear time.
    Matches {
        /// The regular expression.
        pattern: String,
    },
    /// Arithmetic between two numbers of one type.
    Binary(Binary),
    /// Negates a signed number, decimal or float.
    Negate,
    /// Casts a value to another type.
    Cast(Type),
}

/// Instructions that were checked and leave one value. Only [`Expression::check`] makes one.
#[derive(Clone, Debug, PartialEq)]
pub struct Expression {
    instructions: Vec<Instruction>,
    of: Type,
}

/// Rule that an expression or program breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// Number of the operator in the program, from 0.
    pub operator: usize,
    /// Text that says what is wrong, with the value found and what is permitted.
    pub what: String,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "operator {}: {}", self.operator, self.what)
    }
}

impl std::error::Error for Flaw {}

pub(crate) fn limited(what: &str, found: usize, max: usize) -> Result<(), String> {
    if found <= max { Ok(()) } else { Err(format!("{found} {what}: at most {max} are permitted")) }
}

impl Expression {
    /// Checks instructions over columns of these types.
    pub fn check(instructions: Vec<Instruction>, columns: &[Type]) -> Result<Expression, String> {
        limited("instructions", instructions.len(), INSTRUCTIONS_MAX)?;
        let mut stack: Vec<Type> = Vec::new();
        for instruction in &instructions {
            let result = result_type(instruction, &mut stack, columns)?;
            stack.push(result);
            limited("values on the stack", stack.len(), STACK_MAX)?;
        }
        match stack[..] {
            [of] => Ok(Expression { instructions, of }),
            _ => Err(format!("an expression must leave exactly 1 value, not {}", stack.len())),
        }
    }

    /// Returns the type of the result.
    pub fn of(&self) -> Type {
        self.of
    }

    /// Returns the instructions, in order.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// Returns the numbers of the columns that the expression reads, once per use.
    pub fn columns(&self) -> impl Iterator<Item = u16> + '_ {
        self.instructions.iter().filter_map(|instruction| match instruction {
            Instruction::Column(column) => Some(*column),
            _ => None,
        })
    }
}

fn pop(stack: &mut Vec<Type>, what: &str) -> Result<Type, String> {
    stack.pop().ok_or_else(|| format!("{what} lacks an operand"))
}

fn pop_of(stack: &mut Vec<Type>, what: &str, wanted: Type) -> Result<(), String> {
    let found = pop(stack, what)?;
    if found == wanted { Ok(()) } else { Err(format!("{what} of {found}: {wanted} is needed")) }
}

fn pop_two(stack: &mut Vec<Type>, what: &str) -> Result<Type, String> {
    let (right, left) = (pop(stack, what)?, pop(stack, what)?);
    if left == right {
        Ok(left)
    } else {
        Err(format!("{what} of {left} and {right}: both sides must have the same type"))
    }
}

fn checked_scalar(scalar: &Scalar) -> Result<(), String> {
    if let Some(crate::types::Value::Bytes(bytes)) = &scalar.value {
        limited("bytes of a literal", bytes.len(), LITERAL_BYTES_MAX)?;
    }
    if scalar.is_valid() { Ok(()) } else { Err(format!("the literal is not a valid {}", scalar.of)) }
}

/// Takes the operand types of an instruction from the stack and returns the type of its result.
fn result_type(instruction: &Instruction, stack: &mut Vec<Type>, columns: &[Type]) -> Result<Type, String> {
    Ok(match instruction {
        Instruction::Column(column) => *columns
            .get(usize::from(*column))
            .ok_or_else(|| format!("column {column} does not exist: there are {} columns", columns.len()))?,
        Instruction::Literal(scalar) => {
            checked_scalar(scalar)?;
            scalar.of
        }
        Instruction::Compare(_) => {
            pop_two(stack, "a comparison")?;
            Type::Boolean
        }
        Instruction::InList(values) => {
            limited("values of a list", values.len(), LIST_VALUES_MAX)?;
            let of = pop(stack, "a search in a list")?;
            for value in values {
                checked_scalar(value)?;
                if value.of != of {
                    return Err(format!("a list of {} is searched for a value of {of}", value.of));
                }
            }
            Type::Boolean
        }
        Instruction::IsNull => {
            pop(stack, "a test for NULL")?;
            Type::Boolean
        }
        Instruction::And | Instruction::Or => {
            pop_of(stack, "AND or OR", Type::Boolean)?;
            pop_of(stack, "AND or OR", Type::Boolean)?;
            Type::Boolean
        }
        Instruction::Not => {
            pop_of(stack, "NOT", Type::Boolean)?;
            Type::Boolean
        }
        Instruction::Like { escape: Some('\0'), .. } => {
            return Err("the escape character must not be NUL".to_owned());
        }
        Instruction::Like { pattern, .. } | Instruction::Matches { pattern } => {
            limited("bytes of a pattern", pattern.len(), PATTERN_BYTES_MAX)?;
            pop_of(stack, "a pattern", Type::Text)?;
            Type::Boolean
        }
        Instruction::Binary(binary) => {
            let (right, left) = (pop(stack, "arithmetic")?, pop(stack, "arithmetic")?);
            binary_type(*binary, left, right)?
        }
        Instruction::Negate => {
            let of = pop(stack, "a negation")?;
            match of.arithmetic() {
                Some(Arithmetic::Integer) if !of.is_signed() => {
                    return Err(format!("a negation of {of}: a signed type is needed"));
                }
                Some(_) => of,
                None => return Err(format!("a negation of {of}: a number is needed")),
            }
        }
        Instruction::Cast(to) => {
            let from = pop(stack, "a cast")?;
            if !to.is_valid() || !from.casts_to(*to) {
                return Err(format!("there is no cast from {from} to {to}"));
            }
            *to
        }
    })
}

fn binary_type(binary: Binary, left: Type, right: Type) -> Result<Type, String> {
    match (left, right) {
        (Type::Decimal { scale: left_scale, .. }, Type::Decimal { scale: right_scale, .. }) => {
            let scale = match binary {
                Binary::Add | Binary::Subtract if left_scale == right_scale => left_scale,
                Binary::Multiply if left_scale + right_scale <= DECIMAL_DIGITS_MAX => {
                    left_scale + right_scale
                }
                Binary::Add | Binary::Subtract => {
                    return Err(format!(
                        "arithmetic of {left} and {right}: equal scales are needed; cast one of them"
                    ));
                }
                _ => return Err(format!("arithmetic of {left} and {right}: cast to float64 first")),
            };
            Ok(Type::Decimal { precision: DECIMAL_DIGITS_MAX, scale })
        }
        _ if left == right && left.arithmetic().is_some() => Ok(left),
        _ => Err(format!("arithmetic of {left} and {right}: numbers of the same type are needed")),
    }
}
