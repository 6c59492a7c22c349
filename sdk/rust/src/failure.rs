//! Codes with which a function ends a call.

/// Reason why a function ended a call. The caller gets the code as the detail of outcome `GaveUp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure(u32);

impl Failure {
    /// Too few bytes of arguments, or a value that is not permitted.
    pub const BAD_ARGUMENTS: Failure = Failure(1);
    /// The output's capacity is too small.
    pub const OUTPUT_SHORT: Failure = Failure(2);
    /// Bytes of the window are malformed, or a range is not inside the window.
    pub const BAD_DATA: Failure = Failure(3);
    /// The file is not a far table, has no such column, or the column has another type.
    pub const NO_COLUMN: Failure = Failure(4);

    /// Greatest code.
    pub const CODE_MAX: u32 = 1 << 31;

    /// Makes a failure of a code of the function's own, 1 to [`Failure::CODE_MAX`]. Any other number becomes
    /// `CODE_MAX`.
    pub const fn new(code: u32) -> Failure {
        if code == 0 || code > Self::CODE_MAX { Failure(Self::CODE_MAX) } else { Failure(code) }
    }

    /// Returns the code.
    pub const fn code(self) -> u32 {
        self.0
    }
}
