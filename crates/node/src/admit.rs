//! Check of the rights of one data operation: a pure function of the request and the region's fence (its epoch, and the
//! handles that may read or write).
//!
//! The caller has entered the region's gate (it is counted as using the region), and nobody changes the fence before
//! the caller has left. The fence therefore stays valid until the copy is over.

use farpool_region::Fence;
use farpool_transport::Intent;
use farpool_wire::data::Span;
use farpool_wire::{Code, Refusal, mutant};

/// Checks an operation, and returns the first reason to refuse it.
///
/// The epoch is checked first: a late client learns that the region has a new epoch, and nothing about its new owner.
pub fn admit(span: &Span, intent: Intent, fence: &Fence) -> Result<(), Refusal> {
    if span.epoch != fence.epoch && !mutant!(RightsNotChecked) {
        return Err(Refusal::new(Code::StaleEpoch, fence.epoch.0));
    }
    let may_write = fence.write_handle == Some(span.handle);
    let may_read = may_write || fence.read_handle == Some(span.handle);
    if !may_read && !mutant!(HandleNotChecked) && !mutant!(RightsNotChecked) {
        return Err(Refusal::new(Code::WrongHandle, 0));
    }
    if intent == Intent::Write && !may_write && !mutant!(HandleNotChecked) && !mutant!(RightsNotChecked) {
        return Err(Refusal::new(Code::Sealed, 0));
    }
    if fence.suspended {
        return Err(Refusal::new(Code::LeaseExpired, 0));
    }
    match span.offset.checked_add(span.bytes.into()) {
        Some(end) if end <= fence.region_bytes => Ok(()),
        _ => Err(Refusal::new(Code::OutOfBounds, fence.region_bytes)),
    }
}
