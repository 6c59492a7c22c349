//! Exact bytes of six frames of version 1, two of version 2, and three messages. They are a promise to every other
//! implementation and version: change them only together with the protocol version and `spec/wire.md`.

use farpool_wire::codec::Field;
use farpool_wire::control::*;
use farpool_wire::data::{Operations, Span, put_spans};
use farpool_wire::frame::append_frame;
use farpool_wire::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn request_frame(opcode: Opcode, id: u64, body: &[u8]) -> String {
    let mut frame = Vec::new();
    append_frame(&mut frame, Header { version: 1, ..Header::request(opcode, id, body) }, body);
    hex(&frame)
}

fn reply_frame(opcode: Opcode, id: u64, body: &[u8], refusal: Option<Refusal>) -> String {
    let mut frame = Vec::new();
    let request = Header { version: 1, ..Header::request(opcode, id, &[]) };
    append_frame(&mut frame, request.reply(body, refusal), body);
    hex(&frame)
}

fn span() -> Span {
    Span {
        region: RegionIndex(0x0102_0304),
        bytes: 4,
        offset: 0x1112_1314_1516_1718,
        epoch: Epoch(0x2122_2324_2526_2728),
        handle: Handle(0x3132_3334_3536_3738_393a_3b3c_3d3e_3f40),
    }
}

fn ticket() -> Ticket {
    Ticket {
        id: TicketId(0x0102_0304_0506_0708),
        term: Term(9),
        session: SessionId(0x1112_1314_1516_1718),
        secret_digest: 0x2122_2324_2526_2728_292a_2b2c_2d2e_2f30,
        node: NodeId(0x3132_3334_3536_3738),
        incarnation: Incarnation(0x4142_4344_4546_4748),
        region_count: 0x5152_5354,
        class: FileClass::Scratch,
        tenant: Name::new("blue").expect("a name"),
        not_after_ms: 0x6162_6364_6566_6768,
        mac: std::array::from_fn(|at| 0x80 + at as u8),
    }
}

#[test]
fn hello_request_frame_bytes_are_frozen() {
    let mut body = Vec::new();
    Request::Hello(Hello { version_min: 1, version_max: 1, client: ClientId(0x0102_0304_0506_0708) })
        .encode(&mut body);
    assert_eq!(
        request_frame(Opcode::Hello, 1, &body),
        concat!(
            "4650573101020100",
            "0100000000000000",
            "0a00000010ed6476",
            "0000000000000000",
            "000000005b77fe12",
            "0101080706050403",
            "0201",
        )
    );
}

#[test]
fn welcome_reply_frame_bytes_are_frozen() {
    let mut body = Vec::new();
    Reply::Hello(Welcome { version: 1 }).encode(&mut body);
    assert_eq!(
        reply_frame(Opcode::Hello, 1, &body, None),
        concat!(
            "4650573101030100",
            "0100000000000000",
            "0100000052d016a0",
            "0000000000000000",
            "00000000930cb4f0",
            "01",
        )
    );
}

#[test]
fn read_request_frame_bytes_are_frozen() {
    let mut body = Vec::new();
    put_spans(&[span()], Operations::One, &mut body);
    assert_eq!(
        request_frame(Opcode::Read, 2, &body),
        concat!(
            "4650573101024000",
            "0200000000000000",
            "2800000044214505",
            "0000000000000000",
            "0000000030321536",
            "040302010400000018171615141312112827262524232221403f3e3d3c3b3a393837363534333231",
        )
    );
}

#[test]
fn refused_read_batch_reply_frame_bytes_are_frozen() {
    let refusal = Refusal::new(Code::StaleEpoch, 0x2122_2324_2526_2729);
    let index = 5u32.to_le_bytes();
    assert_eq!(
        reply_frame(Opcode::ReadBatch, 3, &index, Some(refusal)),
        concat!(
            "4650573101034200",
            "0300000000000000",
            "040000008cd000ee",
            "2927262524232221",
            "0100000021367471",
            "05000000",
        )
    );
}

#[test]
fn write_request_frame_bytes_are_frozen() {
    let mut body = Vec::new();
    put_spans(&[span()], Operations::One, &mut body);
    body.extend_from_slice(b"data");
    assert_eq!(
        request_frame(Opcode::Write, 4, &body),
        concat!(
            "4650573101024100",
            "0400000000000000",
            "2c0000001c5197ad",
            "0000000000000000",
            "0000000000efd271",
            "040302010400000018171615141312112827262524232221403f3e3d3c3b3a393837363534333231",
            "64617461",
        )
    );
}

#[test]
fn write_batch_request_frame_bytes_are_frozen() {
    let mut body = Vec::new();
    put_spans(&[span()], Operations::Batch, &mut body);
    body.extend_from_slice(b"data");
    assert_eq!(
        request_frame(Opcode::WriteBatch, 5, &body),
        concat!(
            "4650573101024300",
            "0500000000000000",
            "340000002012b40a",
            "0000000000000000",
            "000000001eaa56a3",
            "0100000000000000",
            "040302010400000018171615141312112827262524232221403f3e3d3c3b3a393837363534333231",
            "64617461",
        )
    );
}

#[test]
fn request_of_version_2_has_the_query_where_a_reply_has_the_detail() {
    let mut body = Vec::new();
    put_spans(&[span()], Operations::One, &mut body);
    let header = Header::request(Opcode::Read, 2, &body);
    let header = Header { version: 2, trace: TraceId(0x5152_5354_5556_5758), ..header };
    let expected = concat!(
        "4650573102024000",
        "0200000000000000",
        "2800000044214505",
        "5857565554535251",
        "00000000180086bd",
    );
    assert_eq!(hex(&header.encode()), expected);
    assert_eq!(Header::decode(&header.encode()), Ok(header));
    let older = Header { version: 1, ..header };
    assert_eq!(Header::decode(&older.encode()).map(|header| header.trace), Ok(TraceId::NONE));
}

#[test]
fn welcome_of_version_2_is_frozen() {
    let mut frame = Vec::new();
    let request = Header { version: 2, ..Header::request(Opcode::Hello, 1, &[]) };
    append_frame(&mut frame, request.reply(&[2], None), &[2]);
    assert_eq!(
        hex(&frame),
        "4650573102030100010000000000000001000000a62346b30000000000000000000000002f19725602"
    );
}

#[test]
fn lease_message_bytes_are_frozen() {
    let mut body = Vec::new();
    Request::Lease(Lease { ticket: ticket(), shared: true }).encode(&mut body);
    assert_eq!(
        hex(&body),
        concat!(
            "0807060504030201",
            "0900000000000000",
            "1817161514131211",
            "302f2e2d2c2b2a292827262524232221",
            "3837363534333231",
            "4847464544434241",
            "54535251",
            "02",
            "0400626c7565",
            "6867666564636261",
            "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f",
            "01",
        )
    );
}

#[test]
fn ticket_bytes_are_frozen() {
    let mut body = Vec::new();
    ticket().put(&mut body);
    assert_eq!(
        hex(&body),
        concat!(
            "0807060504030201",
            "0900000000000000",
            "1817161514131211",
            "302f2e2d2c2b2a292827262524232221",
            "3837363534333231",
            "4847464544434241",
            "54535251",
            "02",
            "0400626c7565",
            "6867666564636261",
            "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f",
        )
    );
}

#[test]
fn memory_of_a_node_is_frozen() {
    let memory = NodeMemory {
        node: NodeId(0x0102_0304_0506_0708),
        kind: MemoryKind::HugePages,
        page_bytes: 2 << 20,
        numa_node: List::new(vec![1]).expect("one fits"),
        device: Text::default(),
    };
    let mut body = Vec::new();
    Request::OfferMemory(memory).encode(&mut body);
    assert_eq!(hex(&body), concat!("0807060504030201", "02", "0000200000000000", "0100000001000000", "0000"));
}
