//! Standard functions: the resident functions (Rust code that is built into nodes) that every node has.

use crate::resident::{Output, Resident, ResidentCall, ResidentFailure, words};
use farpool_wire::control::Outcome;
use std::sync::Arc;

/// Returns the standard functions.
pub fn standard() -> Arc<[Arc<dyn Resident>]> {
    Arc::new([Arc::new(Walk) as Arc<dyn Resident>, Arc::new(Checksum), Arc::new(Find)])
}

/// Error for arguments that a standard function does not accept: its own code 1.
const BAD_ARGUMENTS: ResidentFailure = ResidentFailure::GaveUp(1);
/// Bytes that are processed between two checks of the call's deadline.
const STRIDE: usize = 1 << 20;

/// `walk` follows a linked list through the window. An item of the list is two 64-bit words: the offset in the window
/// of the next item, and a value. Arguments: the offset of the first item; the number of steps; 1 to hop (continue the
/// call at the memory node where the next item lies) or 0 to load distant items from here. Output: the offset of the
/// item after the last step, and the wrapping sum of the values that were passed.
struct Walk;

impl Resident for Walk {
    fn name(&self) -> &str {
        "walk"
    }

    fn call(&self, call: &ResidentCall<'_>, output: &mut Output) -> Result<(), ResidentFailure> {
        let [first, steps, hops] = words(call.args).ok_or(BAD_ARGUMENTS)?;
        let [mut at, mut left, mut sum] = match call.state {
            Some(state) => words(state).ok_or(BAD_ARGUMENTS)?,
            None => [first, steps, 0],
        };
        // A walk that has hopped takes a step: the node where the item lay may be lost, and this one loads it.
        let mut may_hop = hops != 0 && call.state.is_none();
        while left > 0 {
            if left.is_multiple_of(4096) {
                call.go_on()?;
            }
            if may_hop && !call.is_here(at) && at < call.window_bytes() {
                [at, left, sum].iter().try_for_each(|word| output.put(&word.to_le_bytes()))?;
                output.hop(at);
                return Ok(());
            }
            let value_at = at.checked_add(8).ok_or(ResidentFailure::By(Outcome::OutOfBounds, at))?;
            sum = sum.wrapping_add(call.u64_at(value_at)?);
            at = call.u64_at(at)?;
            left -= 1;
            may_hop = hops != 0;
        }
        output.put(&at.to_le_bytes())?;
        output.put(&sum.to_le_bytes())
    }
}

/// `checksum` computes the CRC32C of a range of the window. Arguments: offset of the first byte, number of bytes.
/// Output: the four bytes of the checksum.
struct Checksum;

impl Resident for Checksum {
    fn name(&self) -> &str {
        "checksum"
    }

    fn call(&self, call: &ResidentCall<'_>, output: &mut Output) -> Result<(), ResidentFailure> {
        let [first, bytes] = words(call.args).ok_or(BAD_ARGUMENTS)?;
        let mut crc = 0;
        each(call, first, bytes, |_, bytes| {
            crc = crc32c::crc32c_append(crc, bytes);
            Ok(())
        })?;
        output.put(&crc.to_le_bytes())
    }
}

/// `find` searches a range of the window for a pattern. Arguments: offset of the range's first byte, its number of
/// bytes, then the bytes of the pattern. Output: the offsets in the window at which the pattern begins, in ascending
/// order.
struct Find;

impl Resident for Find {
    fn name(&self) -> &str {
        "find"
    }

    fn call(&self, call: &ResidentCall<'_>, output: &mut Output) -> Result<(), ResidentFailure> {
        let (range, pattern) = call.args.split_at_checked(16).ok_or(BAD_ARGUMENTS)?;
        let [first, bytes] = words(range).ok_or(BAD_ARGUMENTS)?;
        if pattern.is_empty() || pattern.len() > STRIDE {
            return Err(BAD_ARGUMENTS);
        }
        let finder = memchr::memmem::Finder::new(pattern);
        // Last bytes that were read, in which a match may have begun.
        let mut held: Vec<u8> = Vec::new();
        each(call, first, bytes, |at, bytes| {
            let begins = at - held.len() as u64;
            held.extend_from_slice(bytes);
            let mut from = 0;
            while let Some(found) = finder.find(&held[from..]) {
                output.put(&(begins + (from + found) as u64).to_le_bytes())?;
                from += found + 1;
            }
            held.drain(..held.len().saturating_sub(pattern.len() - 1).max(from.min(held.len())));
            Ok(())
        })
    }
}

/// Calls `see` with the bytes of a range of the window, in runs of at most [`STRIDE`] bytes and with their offset.
fn each(
    call: &ResidentCall<'_>,
    first: u64,
    bytes: u64,
    mut see: impl FnMut(u64, &[u8]) -> Result<(), ResidentFailure>,
) -> Result<(), ResidentFailure> {
    let end = first.checked_add(bytes).filter(|end| *end <= call.window_bytes());
    let end = end.ok_or(ResidentFailure::By(Outcome::OutOfBounds, first.saturating_add(bytes)))?;
    let mut at = first;
    let mut copied = Vec::new();
    while at < end {
        call.go_on()?;
        let most = STRIDE.min((end - at) as usize);
        let seen = match call.slice(at, most) {
            Some(bytes) if !bytes.is_empty() => bytes,
            _ => {
                // The byte lies at another node. The caller supplies bytes in blocks, so this reads to the end of one.
                let piece = farpool_wire::limits::FUNCTION_PIECE_BYTES;
                copied.resize(most.min(piece - at as usize % piece), 0);
                call.read(at, &mut copied)?;
                &copied[..]
            }
        };
        see(at, seen)?;
        at += seen.len() as u64;
    }
    Ok(())
}
