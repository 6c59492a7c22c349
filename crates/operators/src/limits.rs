//! Limits of a program. A larger one is refused before memory is allocated for it. spec/pipeline.md lists the same
//! limits.

/// Bytes of an encoded program.
pub const PROGRAM_BYTES_MAX: usize = 64 << 10;
/// Operators of a program.
pub const OPERATORS_MAX: usize = 16;
/// Columns of a table, and of the output of any operator.
pub const COLUMNS_MAX: usize = 1_024;
/// Instructions of one expression.
pub const INSTRUCTIONS_MAX: usize = 1_024;
/// Values on the stack of an expression at the same time, which bounds how deep it nests.
pub const STACK_MAX: usize = 64;
/// Values of one IN list.
pub const LIST_VALUES_MAX: usize = 1_024;
/// Bytes of one literal text.
pub const LITERAL_BYTES_MAX: usize = 4_096;
/// Bytes of one LIKE pattern or regular expression.
pub const PATTERN_BYTES_MAX: usize = 1_024;
/// Key columns of a grouping, of a top (the first rows in an order) or of a semi-join.
pub const KEYS_MAX: usize = 32;
/// Aggregates of a grouping.
pub const AGGREGATES_MAX: usize = 64;
/// Groups that a grouping may hold at the same time. Rows of further groups leave early, as partial groups that the
/// receiver merges.
pub const GROUPS_MAX: u32 = 1 << 20;
/// Rows that a top keeps.
pub const TOP_ROWS_MAX: u32 = 65_536;
/// Lookups of one request: keys, or Bloom filters of them, for its semi-joins.
pub const LOOKUPS_MAX: usize = OPERATORS_MAX;
/// Encoded bytes of one lookup: a Bloom filter or packed keys.
pub const LOOKUP_BYTES_MAX: usize = 16 << 20;
/// Keys of one lookup.
pub const LOOKUP_KEYS_MAX: usize = 1 << 22;
/// Bytes of one value of fixed width.
pub const FIXED_BYTES_MAX: u32 = 4_096;
/// Digits of a decimal.
pub const DECIMAL_DIGITS_MAX: u8 = 38;
