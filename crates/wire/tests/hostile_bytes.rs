//! Bytes from the wire can never panic, over-allocate or loop (invariant I10), and every malformed frame is named by
//! its first fault.

mod messages;

use farpool_wire::codec::{Cursor, Field, List, Name, Text};
use farpool_wire::data::{Operations, Span, decode_read, decode_refused_index, decode_write, put_spans};
use farpool_wire::frame::MAGIC;
use farpool_wire::limits::*;
use farpool_wire::*;
use messages::{CONTROL, any_reply, any_request};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATED_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// System allocator that counts the bytes each thread asks for.
struct Counting;

// SAFETY: every call goes to `System` unchanged; the counter is a thread-local cell without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED_BYTES.set(ALLOCATED_BYTES.get() + layout.size());
        // SAFETY: the caller's promises on `layout` hold for `System` too.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: `block` came from `System` with this layout.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocated_bytes<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = ALLOCATED_BYTES.get();
    let result = work();
    (result, ALLOCATED_BYTES.get() - before)
}

/// Returns the most bytes that decoding may allocate. A value may be larger than its bytes, as a name of two bytes is
/// a `String`, but only so much.
fn bound_on_allocation(body: &[u8]) -> usize {
    12 * body.len() + 64
}

/// Decodes a body as a request and as a reply. Bytes that are accepted have this one form; refusing costs little
/// memory.
fn check_control(opcode: Opcode, body: &[u8]) -> Result<(), TestCaseError> {
    let (request, request_bytes) = allocated_bytes(|| Request::decode(opcode, body));
    let (reply, reply_bytes) = allocated_bytes(|| Reply::decode(opcode, body));
    prop_assert!(
        request_bytes <= bound_on_allocation(body),
        "{opcode:?}: {request_bytes} B for {}",
        body.len()
    );
    prop_assert!(reply_bytes <= bound_on_allocation(body), "{opcode:?}: {reply_bytes} B for {}", body.len());
    let mut again = Vec::new();
    if let Ok(request) = request {
        request.encode(&mut again);
        prop_assert_eq!(&again, body);
    }
    if let Ok(reply) = reply {
        again.clear();
        reply.encode(&mut again);
        prop_assert_eq!(&again, body);
    }
    Ok(())
}

fn check_data(body: &[u8]) -> Result<(), TestCaseError> {
    let mut spans = Vec::with_capacity(BATCH_OPS_MAX);
    for operations in [Operations::One, Operations::Batch] {
        let (read, bytes) = allocated_bytes(|| decode_read(body, operations, &mut spans));
        prop_assert_eq!(bytes, 0, "a table that fits needs no memory");
        if let Ok(total) = read {
            prop_assert!(total <= IO_BYTES_MAX as u64);
            prop_assert_eq!(spans.iter().map(|span| u64::from(span.bytes)).sum::<u64>(), total);
            let mut again = Vec::new();
            put_spans(&spans, operations, &mut again);
            prop_assert_eq!(&again, body);
        }
        if let Ok(payload) = decode_write(body, operations, &mut spans) {
            prop_assert_eq!(
                payload.len() as u64,
                spans.iter().map(|span| u64::from(span.bytes)).sum::<u64>()
            );
        }
    }
    prop_assert_eq!(decode_refused_index(body).is_ok(), body.len() == 4);
    Ok(())
}

/// Single change to good bytes.
#[derive(Clone, Debug)]
enum Damage {
    Flip { at: Index, bit: u8 },
    Put { at: Index, byte: u8 },
    Count { at: Index, count: u32 },
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        (any::<Index>(), 0..8u8).prop_map(|(at, bit)| Damage::Flip { at, bit }),
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Damage::Put { at, byte }),
        (any::<Index>(), select(vec![u32::MAX, 1 << 31, 1 << 16, 16_385, 4_097, 1_025, 257, 7, 1]))
            .prop_map(|(at, count)| Damage::Count { at, count }),
    ]
}

fn inflict(damages: &[Damage], body: &mut [u8]) {
    if body.is_empty() {
        return;
    }
    for damage in damages {
        match damage {
            Damage::Flip { at, bit } => body[at.index(body.len())] ^= 1 << bit,
            Damage::Put { at, byte } => body[at.index(body.len())] = *byte,
            Damage::Count { at, count } => {
                let at = at.index(body.len());
                for (to, from) in body[at..].iter_mut().zip(count.to_le_bytes()) {
                    *to = from;
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_as_control_message_are_refused_or_canonical(
        opcode in select(CONTROL.to_vec()), body in vec(any::<u8>(), 0..300),
    ) {
        check_control(opcode, &body)?;
    }

    #[test]
    fn any_bytes_as_data_body_are_refused_or_canonical(
        count in 0..300u64, body in vec(any::<u8>(), 0..300), small in any::<bool>(),
    ) {
        check_data(&body)?;
        let mut table = [&count.to_le_bytes()[..], &body].concat();
        // Small byte counts, so that some tables pass the limit on their sum.
        if small {
            table.iter_mut().skip(8 + 6).step_by(40).for_each(|byte| *byte = 0);
            table.iter_mut().skip(8 + 7).step_by(40).for_each(|byte| *byte = 0);
            table.truncate(8 + (table.len() - 8) / 40 * 40);
            let operations = (table.len() - 8) as u64 / 40;
            table[..8].copy_from_slice(&operations.to_le_bytes());
        }
        check_data(&table)?;
    }

    /// Magic and checksum are made right, so that the fields behind them are reached.
    #[test]
    fn any_bytes_as_header_are_refused_or_canonical(
        mut bytes in any::<[u8; HEADER_BYTES]>(), good in any::<[bool; 6]>(), opcode in select(Opcode::ALL.to_vec()),
    ) {
        prop_assert!(Header::decode(&bytes).is_err());
        bytes[..4].copy_from_slice(&MAGIC);
        if good[0] { bytes[4] = VERSION_MAX }
        if good[1] { bytes[5] &= 3 }
        if good[2] { bytes[6..8].copy_from_slice(&(opcode as u16).to_le_bytes()) }
        if good[3] { bytes[18..20].fill(0) }
        if good[4] { bytes[33..36].fill(0) }
        if good[5] { bytes[20..32].fill(0) }
        put_checksum(&mut bytes);
        if let Ok(header) = Header::decode(&bytes) {
            prop_assert_eq!(header.encode(), bytes);
        }
    }

    #[test]
    fn damaged_message_is_refused_or_canonical(
        request in any_request(), reply in any_reply(), damages in vec(damage(), 1..4),
    ) {
        let mut body = Vec::new();
        request.encode(&mut body);
        inflict(&damages, &mut body);
        check_control(request.opcode(), &body)?;
        body.clear();
        reply.encode(&mut body);
        inflict(&damages, &mut body);
        check_control(reply.opcode(), &body)?;
    }

    #[test]
    fn truncated_message_is_refused(request in any_request(), reply in any_reply(), at in any::<Index>()) {
        let mut body = Vec::new();
        request.encode(&mut body);
        if !body.is_empty() {
            let cut = Request::decode(request.opcode(), &body[..at.index(body.len())]);
            let is_truncated = matches!(cut, Err(WireError::Truncated { .. }));
            prop_assert!(is_truncated, "{:?}", cut);
        }
        body.clear();
        reply.encode(&mut body);
        if !body.is_empty() {
            let cut = Reply::decode(reply.opcode(), &body[..at.index(body.len())]);
            let is_truncated = matches!(cut, Err(WireError::Truncated { .. }));
            prop_assert!(is_truncated, "{:?}", cut);
        }
    }

    #[test]
    fn extended_message_is_refused(request in any_request(), reply in any_reply(), tail in vec(any::<u8>(), 1..50)) {
        let left = tail.len();
        let mut body = Vec::new();
        request.encode(&mut body);
        body.extend_from_slice(&tail);
        prop_assert_eq!(Request::decode(request.opcode(), &body), Err(WireError::Trailing { left }));
        body.clear();
        reply.encode(&mut body);
        body.extend_from_slice(&tail);
        prop_assert_eq!(Reply::decode(reply.opcode(), &body), Err(WireError::Trailing { left }));
    }
}

fn check_list<T: Field + std::fmt::Debug + PartialEq, const MAX: usize>() {
    for count in [MAX as u32 + 1, u32::MAX] {
        // The body has as many bytes behind the count as a frame can carry: the count alone must be refused.
        let mut body = count.to_le_bytes().to_vec();
        body.resize(FRAME_BODY_BYTES_MAX, 0);
        let (taken, bytes) = allocated_bytes(|| List::<T, MAX>::take(&mut Cursor::new(&body)));
        let expected = WireError::TooMany { what: "entries in a list", found: count.into(), max: MAX as u64 };
        assert_eq!(taken, Err(expected));
        assert_eq!(bytes, 0, "refused before allocating");
    }
    // A permitted count without entries behind it.
    let (taken, bytes) =
        allocated_bytes(|| List::<T, MAX>::take(&mut Cursor::new(&(MAX as u32).to_le_bytes())));
    assert_eq!(taken, Err(WireError::Truncated { needed: MAX * T::BYTES_MIN, left: 0 }));
    assert_eq!(bytes, 0, "refused before allocating");
}

#[test]
fn list_count_beyond_its_limit_or_its_bytes_is_refused_without_allocating() {
    use farpool_wire::control::*;
    check_list::<Incarnation, NODES_MAX>();
    check_list::<TicketOffer, TICKETS_MAX>();
    check_list::<NamedExtent, NAMED_EXTENTS_MAX>();
    check_list::<NamedRun, NAMED_EXTENTS_MAX>();
    check_list::<NamedRegion, NAMED_REGIONS_MAX>();
    check_list::<RunCopy, RUN_COPIES_MAX>();
    check_list::<Stripe, STRIPES_MAX>();
    check_list::<ComputedRun, REPAIR_COMPUTED_MAX>();
    check_list::<RepairRun, REPAIR_RUNS_MAX>();
    check_list::<RepairOrder, 1>();
    check_list::<NodeInfo, NODES_MAX>();
    check_list::<NameInfo, NAMES_PAGE_MAX>();
    check_list::<NodeStatus, NODES_MAX>();
    check_list::<TicketId, SPENT_TICKETS_MAX>();
    check_list::<OwnedRegion, NODE_REGIONS_MAX>();
    check_list::<Adoption, NODE_REGIONS_MAX>();
    check_list::<RegionAt, LEASE_REGIONS_MAX>();
    check_list::<Grant, LEASE_REGIONS_MAX>();
}

#[test]
fn list_built_beyond_its_limit_is_refused() {
    assert!(List::<u8, 3>::new(vec![0; 3]).is_ok());
    let expected = WireError::TooMany { what: "entries in a list", found: 4, max: 3 };
    assert_eq!(List::<u8, 3>::new(vec![0; 4]), Err(expected));
}

#[test]
fn text_too_long_empty_or_with_control_characters_is_refused() {
    let name = |text: &str| Name::new(text).map(|name| name.to_string());
    assert_eq!(name(&"é".repeat(127)), Ok("é".repeat(127)));
    assert_eq!(
        name(&"é".repeat(128)),
        Err(WireError::TooMany { what: "bytes of a name", found: 256, max: 255 })
    );
    for bad in ["", "a\nb", "\u{7f}", "\u{9b}2J", "a\0"] {
        assert_eq!(name(bad), Err(WireError::Text { what: "bytes of a name" }), "{bad:?}");
    }
    assert!(Text::new("").is_ok());
    assert_eq!(Text::new("\u{1b}[31m"), Err(WireError::Text { what: "bytes of text" }));
    let invalid_utf8 = [2, 0, 0xc3, 0x28];
    assert_eq!(Name::take(&mut Cursor::new(&invalid_utf8)), Err(WireError::Text { what: "Name" }));
}

fn put_checksum(bytes: &mut [u8; HEADER_BYTES]) {
    let crc = crc32c::crc32c(&bytes[..36]);
    bytes[36..].copy_from_slice(&crc.to_le_bytes());
}

/// Returns the error of a good header in which these bytes were replaced and the checksum was made right.
fn header_error(is_reply: bool, at: usize, put: &[u8]) -> WireError {
    let request = Header::request(Opcode::Status, 7, &[]);
    let header = if is_reply { request.reply(&[], None) } else { request };
    let mut bytes = header.encode();
    bytes[at..at + put.len()].copy_from_slice(put);
    put_checksum(&mut bytes);
    Header::decode(&bytes).expect_err("a fault was put in")
}

#[test]
fn header_with_one_fault_is_refused_by_the_name_of_that_fault() {
    use WireError::*;
    assert_eq!(header_error(false, 0, b"HTTP"), Magic { found: *b"HTTP" });
    assert_eq!(header_error(false, 4, &[VERSION_MAX + 1]), Version { found: VERSION_MAX + 1 });
    assert_eq!(header_error(false, 4, &[0]), Version { found: 0 });
    assert_eq!(header_error(false, 5, &[0x80]), Reserved { field: "flags" });
    assert_eq!(header_error(false, 6, &999u16.to_le_bytes()), Opcode { found: 999 });
    let found = FRAME_BODY_BYTES_MAX as u64 + 1;
    let too_long = TooMany { what: "bytes of a frame body", found, max: FRAME_BODY_BYTES_MAX as u64 };
    assert_eq!(header_error(false, 16, &(found as u32).to_le_bytes()), too_long);
    assert_eq!(header_error(false, 5, &[0, 25, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]), {
        Reserved { field: "checksum of an unchecked body" }
    });
    assert_eq!(header_error(true, 24, &[1]), Reserved { field: "detail without a refusal" });
    let version_1 = |bytes: &[u8]| {
        let mut all = vec![1];
        all.extend_from_slice(&Header::request(farpool_wire::Opcode::Status, 7, &[]).encode()[5..24]);
        all.extend_from_slice(bytes);
        all
    };
    assert_eq!(header_error(false, 4, &version_1(&[1])), Reserved { field: "detail without a refusal" });
    assert_eq!(header_error(false, 32, &[1, 0]), Reserved { field: "status of a request" });
    assert_eq!(header_error(true, 32, &[0xff, 0xff]), Value { what: "a refusal", found: 0xffff });
    assert_eq!(header_error(false, 34, &[1]), Reserved { field: "bytes 34 and 35 of the header" });
}

#[test]
fn header_with_any_bit_flipped_is_refused() {
    let bytes = Header::request(Opcode::Read, 42, &[1, 2, 3]).encode();
    for bit in 0..HEADER_BYTES * 8 {
        let mut flipped = bytes;
        flipped[bit / 8] ^= 1 << (bit % 8);
        let error = Header::decode(&flipped).expect_err("a flipped bit");
        let is_magic = bit / 8 < 4;
        assert_eq!(matches!(error, WireError::Magic { .. }), is_magic);
        assert_eq!(error == WireError::HeaderChecksum, !is_magic);
    }
}

/// Two versions that share nothing must still be able to say so to each other.
#[test]
fn greeting_of_any_version_is_read() {
    let mut bytes = Header::request(Opcode::Hello, 1, &[]).encode();
    bytes[4] = 200;
    put_checksum(&mut bytes);
    assert_eq!(Header::decode(&bytes).map(|header| header.version), Ok(200));
}

#[test]
fn body_with_any_bit_flipped_is_refused_where_it_is_checksummed() {
    let body = *b"some bytes";
    let checked = Header::request(Opcode::Write, 1, &body);
    assert_eq!(checked.check_body(&body), Ok(()));
    for bit in 0..body.len() * 8 {
        let mut flipped = body;
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(checked.check_body(&flipped), Err(WireError::BodyChecksum));
    }
    let protected_elsewhere = Header { body_crc: None, ..checked };
    assert_eq!(protected_elsewhere.check_body(b"other bytes"), Ok(()));
}

#[test]
fn data_frame_beyond_its_limits_is_refused() {
    let span = |bytes: usize| Span {
        region: RegionIndex(0),
        bytes: bytes as u32,
        offset: u64::MAX,
        epoch: Epoch(1),
        handle: Handle(1),
    };
    let read = |spans: &[Span]| {
        let mut body = Vec::new();
        put_spans(spans, Operations::Batch, &mut body);
        decode_read(&body, Operations::Batch, &mut Vec::new())
    };
    let max = IO_BYTES_MAX as u64;
    assert_eq!(read(&[span(IO_BYTES_MAX)]), Ok(max));
    let what = "bytes of one data frame";
    assert_eq!(read(&[span(IO_BYTES_MAX), span(1)]), Err(WireError::TooMany { what, found: max + 1, max }));
    let all_of_them = vec![span(u32::MAX as usize); BATCH_OPS_MAX];
    let found = u64::from(u32::MAX) * BATCH_OPS_MAX as u64;
    assert_eq!(read(&all_of_them), Err(WireError::TooMany { what, found, max }));
    let what = "operations of a batch";
    let max = BATCH_OPS_MAX as u64;
    assert_eq!(read(&[]), Err(WireError::TooMany { what, found: 0, max }));
    assert_eq!(
        read(&vec![span(0); BATCH_OPS_MAX + 1]),
        Err(WireError::TooMany { what, found: max + 1, max })
    );
    let mut spans = Vec::new();
    assert_eq!(
        decode_read(&u64::MAX.to_le_bytes(), Operations::Batch, &mut spans),
        Err(WireError::TooMany { what, found: u64::MAX, max })
    );
    let mut write = Vec::new();
    put_spans(&[span(3)], Operations::One, &mut write);
    write.extend_from_slice(b"12");
    let what = "the payload length of a write";
    assert_eq!(decode_write(&write, Operations::One, &mut spans), Err(WireError::Value { what, found: 2 }));
    write.extend_from_slice(b"34");
    assert_eq!(decode_write(&write, Operations::One, &mut spans), Err(WireError::Value { what, found: 4 }));
}

#[test]
fn orphan_with_an_owner_is_refused() {
    let body = [&[3u8][..], &1u64.to_le_bytes()].concat();
    let owner = farpool_wire::control::RegionOwner::take(&mut Cursor::new(&body));
    assert_eq!(owner, Err(WireError::Reserved { field: "owner of an orphan" }));
}
