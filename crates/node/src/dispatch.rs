//! May this operation touch this region? A pure function of the request and the region's fence.
//!
//! Called with the region's gate entered, so that whatever the fence says holds until the copy is over.

use farpool_region::Fence;
use farpool_transport::Intent;
use farpool_wire::data::Span;
use farpool_wire::{Code, Refusal, mutant};

/// Admits an operation, or says the first thing that is wrong with it.
///
/// The epoch comes first: a late client is told that the region moved on, never anything about its new owner.
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
