//! Failed calls of functions: what went wrong, and where in the module.

use farpool_wire::control::Outcome;
use std::fmt;

/// Call of a function that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Kind of end.
    pub outcome: Outcome,
    /// Number whose meaning depends on `outcome`, such as an address or a signal.
    pub detail: u64,
    /// Call stack in the module, innermost first: name or number of the function, and offset in the module's bytes.
    pub frames: Vec<(String, u32)>,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let detail = self.detail;
        match self.outcome {
            Outcome::Done => f.write_str("done"),
            Outcome::GaveUp => write!(f, "failed with code {detail}"),
            Outcome::Hop => write!(f, "asked to continue at byte {detail}, which no node holds"),
            Outcome::Away => write!(f, "waits for byte {detail}"),
            Outcome::OutOfBounds => write!(f, "out of bounds: nothing is at address {detail:#x}"),
            Outcome::ReadOnly => write!(f, "wrote to byte {detail} of its window, which is read-only"),
            Outcome::OutputFull => {
                write!(f, "wrote more output than the {detail} bytes that the caller allowed")
            }
            Outcome::Unreachable => f.write_str("executed an unreachable instruction"),
            Outcome::Arithmetic => f.write_str("division by zero or integer overflow"),
            Outcome::BadCall => f.write_str("called an invalid function pointer"),
            Outcome::StackOverflow => f.write_str("stack overflow"),
            Outcome::Deadline => write!(f, "timed out after {detail} ms"),
            Outcome::MemoryFull => {
                write!(f, "out of memory: needed more than its limit of {detail} bytes of heap")
            }
            Outcome::Revoked => f.write_str("memory of its window was revoked while it ran"),
            Outcome::Cancelled => f.write_str("cancelled"),
            Outcome::Died if detail == 0 => f.write_str("its sandbox process ended"),
            Outcome::Died => write!(f, "its sandbox process ended by signal {detail}{}", signal(detail)),
            Outcome::Contract => {
                write!(f, "broke the calling contract: returned {}, or left an invalid record", detail as i64)
            }
            Outcome::NotSupplied => {
                write!(f, "bytes from {detail} on lie elsewhere and could not be fetched")
            }
        }?;
        self.frames.iter().try_for_each(|(name, offset)| write!(f, "\n  in {name}, at {offset:#x}"))
    }
}

/// Returns the meaning of a signal that ends sandbox processes. Empty if it is not a usual one.
fn signal(number: u64) -> &'static str {
    match number {
        4 => " (illegal instruction)",
        6 => " (abort)",
        7 | 11 => " (bad memory access)",
        8 => " (arithmetic)",
        9 => " (killed)",
        31 => " (a system call that is not permitted)",
        _ => "",
    }
}
