//! Admission of reads and writes by handle, epoch, state of the region and range. If several are wrong, the tests fix
//! which of them is reported.

use farpool_node::admit::admit;
use farpool_region::Fence;
use farpool_transport::Intent;
use farpool_wire::data::Span;
use farpool_wire::{Code, Epoch, Handle, RegionIndex};

const REGION_BYTES: u64 = 1 << 20;
const WRITER: Handle = Handle(7);
const READER: Handle = Handle(8);

fn open() -> Fence {
    Fence {
        epoch: Epoch(5),
        suspended: false,
        write_handle: Some(WRITER),
        read_handle: None,
        sealed: false,
        region_bytes: REGION_BYTES,
    }
}

fn sealed() -> Fence {
    Fence { write_handle: None, read_handle: Some(READER), sealed: true, ..open() }
}

fn span(handle: Handle, epoch: u64, offset: u64, bytes: u32) -> Span {
    Span { region: RegionIndex(0), bytes, offset, epoch: Epoch(epoch), handle }
}

fn code(span: Span, intent: Intent, fence: Fence) -> Option<Code> {
    admit(&span, intent, &fence).err().map(|refusal| refusal.code)
}

#[test]
fn dispatch_holder_of_the_write_handle_reads_and_writes_its_whole_region() {
    for intent in [Intent::Read, Intent::Write] {
        assert_eq!(code(span(WRITER, 5, 0, REGION_BYTES as u32), intent, open()), None);
        assert_eq!(code(span(WRITER, 5, REGION_BYTES, 0), intent, open()), None);
    }
}

#[test]
fn dispatch_another_epoch_is_stale_whatever_else_is_wrong() {
    for epoch in [0, 4, 6, u64::MAX] {
        let wrong = span(Handle(0), epoch, u64::MAX, u32::MAX);
        let refusal = admit(&wrong, Intent::Write, &open()).expect_err("refused");
        assert_eq!((refusal.code, refusal.detail), (Code::StaleEpoch, 5));
    }
}

#[test]
fn dispatch_handle_of_nobody_is_refused_also_where_there_is_no_handle() {
    let closed = Fence { write_handle: None, ..open() };
    for handle in [Handle(0), READER, Handle(u128::MAX)] {
        assert_eq!(code(span(handle, 5, 0, 1), Intent::Read, open()), Some(Code::WrongHandle));
        assert_eq!(code(span(handle, 5, 0, 1), Intent::Read, closed), Some(Code::WrongHandle));
    }
}

#[test]
fn dispatch_sealed_region_is_read_and_not_written() {
    assert_eq!(code(span(READER, 5, 0, 1), Intent::Read, sealed()), None);
    assert_eq!(code(span(READER, 5, 0, 1), Intent::Write, sealed()), Some(Code::Sealed));
    assert_eq!(code(span(WRITER, 5, 0, 1), Intent::Read, sealed()), Some(Code::WrongHandle));
}

#[test]
fn dispatch_suspended_lease_is_expired_for_its_holder_only() {
    let suspended = Fence { suspended: true, ..open() };
    assert_eq!(code(span(WRITER, 5, 0, 1), Intent::Read, suspended), Some(Code::LeaseExpired));
    assert_eq!(code(span(READER, 5, 0, 1), Intent::Read, suspended), Some(Code::WrongHandle));
}

#[test]
fn dispatch_range_that_leaves_the_region_or_wraps_is_out_of_bounds() {
    for (offset, bytes) in
        [(0, REGION_BYTES as u32 + 1), (REGION_BYTES, 1), (REGION_BYTES - 1, 2), (u64::MAX, 1)]
    {
        assert_eq!(code(span(WRITER, 5, offset, bytes), Intent::Read, open()), Some(Code::OutOfBounds));
    }
}
