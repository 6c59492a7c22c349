//! Copies of long ranges in several steps. Each step enters the region's gate anew (is counted as using the region),
//! checks the rights anew, and moves at most `GATE_BYTES_MAX` bytes.

use crate::admit::admit;
use crate::memory::{Inside, Memory};
use farpool_region::GATE_BYTES_MAX;
use farpool_transport::Intent;
use farpool_wire::control::{Checksums, ChecksumsTaken};
use farpool_wire::data::Span;
use farpool_wire::{Code, List, Refusal};

/// Calls `copy` for each step of a range, inside the region's gate and after the check of the rights.
pub(crate) fn each_step<M: Memory>(
    memory: &M,
    span: &Span,
    intent: Intent,
    mut copy: impl FnMut(&M::Entered<'_>, u64, std::ops::Range<usize>) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let total = span.bytes as usize;
    let mut done = 0;
    loop {
        let entered = memory.enter(span.region)?;
        admit(span, intent, &entered.fence())?;
        let step = done..total.min(done + GATE_BYTES_MAX);
        copy(&entered, span.offset + done as u64, step.clone())?;
        done = step.end;
        if done == total {
            return Ok(());
        }
    }
}

/// Copies a range out, as [`farpool_transport::Service::read`] does. The buffer is exactly as long as the range.
pub fn copy_out<M: Memory>(memory: &M, span: &Span, into: &mut [u8]) -> Result<(), Refusal> {
    each_step(memory, span, Intent::Read, |entered, offset, step| entered.copy_out(offset, &mut into[step]))
}

/// Returns the checksums of ranges of a region. Together they may be as long as the region.
pub(crate) fn checksums<M: Memory>(memory: &M, asked: &Checksums) -> Result<ChecksumsTaken, Refusal> {
    let all: u64 = asked.ranges.iter().map(|range| u64::from(range.bytes)).sum();
    if all > memory.region_bytes() {
        return Err(Refusal::new(Code::OutOfBounds, memory.region_bytes()));
    }
    let mut piece = vec![0; GATE_BYTES_MAX];
    let mut taken = Vec::with_capacity(asked.ranges.len());
    for range in asked.ranges.iter() {
        let Checksums { region, epoch, handle, .. } = *asked;
        let span = Span { region, bytes: range.bytes, offset: range.offset.into(), epoch, handle };
        let mut checksum = 0;
        each_step(memory, &span, Intent::Read, |entered, offset, step| {
            let read = &mut piece[..step.len()];
            entered.copy_out(offset, read)?;
            checksum = crc32c::crc32c_append(checksum, read);
            Ok(())
        })?;
        taken.push(checksum);
    }
    // The request's list has the same limit.
    Ok(ChecksumsTaken { checksums: List::new(taken).unwrap_or_default() })
}
