//! Codes that a function gives up with.

/// Why a function gave up: its caller gets the code as the detail of `GaveUp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure(u32);

impl Failure {
    /// Too few bytes of arguments, or a value that is not permitted.
    pub const BAD_ARGUMENTS: Failure = Failure(1);
    /// The output's capacity is too small.
    pub const OUTPUT_SHORT: Failure = Failure(2);
    /// Bytes of the window are not what they should be, or not inside.
    pub const BAD_DATA: Failure = Failure(3);
    /// No far table, or no such column, or it has another type.
    pub const NO_COLUMN: Failure = Failure(4);

    /// The greatest code there is.
    pub const CODE_MAX: u32 = 1 << 31;

    /// A code of the function's own, 1 to [`Failure::CODE_MAX`]; any other number becomes the latter.
    pub const fn new(code: u32) -> Failure {
        if code == 0 || code > Self::CODE_MAX { Failure(Self::CODE_MAX) } else { Failure(code) }
    }

    /// The code.
    pub const fn code(self) -> u32 {
        self.0
    }
}
