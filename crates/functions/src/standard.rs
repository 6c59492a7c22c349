//! The resident functions that every node has.

use crate::resident::{Output, Resident, ResidentCall, Stopped, words};
use farpool_wire::control::Outcome;
use std::sync::Arc;

/// All of them.
pub fn standard() -> Arc<[Arc<dyn Resident>]> {
    Arc::new([Arc::new(Walk) as Arc<dyn Resident>, Arc::new(Checksum), Arc::new(Find)])
}

/// Arguments that are not what the function takes.
const BAD_ARGUMENTS: Stopped = Stopped::GaveUp(1);
/// Bytes that are looked at between two looks at the time.
const STRIDE: usize = 1 << 20;

/// `walk`: follows a list through the window. A node of the list is two words: the byte of the window at which the next
/// one is, and a value. Arguments: the first node, how many steps, and 1 to hop to nodes that are elsewhere or 0 to
/// load them from here. Output: the node after the last step, and the wrapping sum of the values passed.
struct Walk;

impl Resident for Walk {
    fn name(&self) -> &str {
        "walk"
    }

    fn call(&self, call: &ResidentCall<'_>, output: &mut Output) -> Result<(), Stopped> {
        let [first, steps, hops] = words(call.args).ok_or(BAD_ARGUMENTS)?;
        let [mut at, mut left, mut sum] = match call.state {
            Some(state) => words(state).ok_or(BAD_ARGUMENTS)?,
            None => [first, steps, 0],
        };
        while left > 0 {
            if left.is_multiple_of(4096) {
                call.go_on()?;
            }
            if hops != 0 && !call.is_here(at) && at < call.window_bytes() {
                [at, left, sum].iter().try_for_each(|word| output.put(&word.to_le_bytes()))?;
                output.hop(at);
                return Ok(());
            }
            let value_at = at.checked_add(8).ok_or(Stopped::By(Outcome::OutOfBounds, at))?;
            sum = sum.wrapping_add(call.u64_at(value_at)?);
            at = call.u64_at(at)?;
            left -= 1;
        }
        output.put(&at.to_le_bytes())?;
        output.put(&sum.to_le_bytes())
    }
}

/// `checksum`: the CRC32C of a range. Arguments: first byte, bytes. Output: four bytes.
struct Checksum;

impl Resident for Checksum {
    fn name(&self) -> &str {
        "checksum"
    }

    fn call(&self, call: &ResidentCall<'_>, output: &mut Output) -> Result<(), Stopped> {
        let [first, bytes] = words(call.args).ok_or(BAD_ARGUMENTS)?;
        let mut crc = 0;
        each(call, first, bytes, |_, bytes| {
            crc = crc32c::crc32c_append(crc, bytes);
            Ok(())
        })?;
        output.put(&crc.to_le_bytes())
    }
}

/// `find`: where a pattern is. Arguments: first byte and bytes of the range, then the pattern. Output: the bytes of the
/// window at which it begins, in order.
struct Find;

impl Resident for Find {
    fn name(&self) -> &str {
        "find"
    }

    fn call(&self, call: &ResidentCall<'_>, output: &mut Output) -> Result<(), Stopped> {
        let (range, pattern) = call.args.split_at_checked(16).ok_or(BAD_ARGUMENTS)?;
        let [first, bytes] = words(range).ok_or(BAD_ARGUMENTS)?;
        if pattern.is_empty() || pattern.len() > STRIDE {
            return Err(BAD_ARGUMENTS);
        }
        let finder = memchr::memmem::Finder::new(pattern);
        // What a pattern may have begun in, before the bytes that come next.
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

/// Shows a range of the window, piece by piece.
fn each(
    call: &ResidentCall<'_>,
    first: u64,
    bytes: u64,
    mut see: impl FnMut(u64, &[u8]) -> Result<(), Stopped>,
) -> Result<(), Stopped> {
    let end = first.checked_add(bytes).filter(|end| *end <= call.window_bytes());
    let end = end.ok_or(Stopped::By(Outcome::OutOfBounds, first.saturating_add(bytes)))?;
    let mut at = first;
    let mut copied = Vec::new();
    while at < end {
        call.go_on()?;
        let most = STRIDE.min((end - at) as usize);
        let seen = match call.slice(at, most) {
            Some(bytes) if !bytes.is_empty() => bytes,
            _ => {
                // Up to the end of the piece that is elsewhere.
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
