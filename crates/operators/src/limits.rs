//! How large a program may be. Whoever sends a larger one is refused before anything is allocated for it.

/// Bytes of an encoded program.
pub const PROGRAM_BYTES_MAX: usize = 64 << 10;
/// Operators in a row.
pub const OPERATORS_MAX: usize = 16;
/// Columns of a table or of any operator's output.
pub const COLUMNS_MAX: usize = 1_024;
/// Instructions of one expression.
pub const INSTRUCTIONS_MAX: usize = 1_024;
/// Values that an expression holds at the same time, and so how deep it nests.
pub const STACK_MAX: usize = 64;
/// Values of one list.
pub const LIST_VALUES_MAX: usize = 1_024;
/// Bytes of one literal text.
pub const LITERAL_BYTES_MAX: usize = 4_096;
/// Bytes of a pattern.
pub const PATTERN_BYTES_MAX: usize = 1_024;
/// Keys of a grouping or a sort.
pub const KEYS_MAX: usize = 32;
/// Aggregates of a grouping.
pub const AGGREGATES_MAX: usize = 64;
/// Groups that are held at the same time. More of them leave as partial groups.
pub const GROUPS_MAX: u32 = 1 << 20;
/// Rows of a top-k.
pub const TOP_ROWS_MAX: u32 = 65_536;
/// Lookups that a request brings for its semi-joins.
pub const LOOKUPS_MAX: usize = OPERATORS_MAX;
/// Bytes of one lookup as it travels: of a Bloom filter, or of packed keys.
pub const LOOKUP_BYTES_MAX: usize = 16 << 20;
/// Keys of one lookup that travel.
pub const LOOKUP_KEYS_MAX: usize = 1 << 22;
/// Bytes of one value of fixed width.
pub const FIXED_BYTES_MAX: u32 = 4_096;
/// Digits of a decimal.
pub const DECIMAL_DIGITS_MAX: u8 = 38;
