//! Ranges of regions, piece by piece: no visit to a gate moves more than it may, and each is admitted anew.

use crate::dispatch::admit;
use crate::memory::{Inside, Memory};
use farpool_region::GATE_BYTES_MAX;
use farpool_transport::Intent;
use farpool_wire::Refusal;
use farpool_wire::data::Span;

/// Runs `copy` on each piece of a range, every piece inside the region's gate and admitted anew.
pub(crate) fn each_piece<M: Memory>(
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
        let piece = done..total.min(done + GATE_BYTES_MAX);
        copy(&entered, span.offset + done as u64, piece.clone())?;
        done = piece.end;
        if done == total {
            return Ok(());
        }
    }
}

/// Copies a range out, as [`farpool_transport::Service::read`] does. The buffer is exactly as long.
pub fn copy_out<M: Memory>(memory: &M, span: &Span, into: &mut [u8]) -> Result<(), Refusal> {
    each_piece(memory, span, Intent::Read, |entered, offset, piece| {
        entered.copy_out(offset, &mut into[piece])
    })
}
