//! Fuzzes the answering side with a peer that sends any frames, over a service with one small region. Each frame must
//! get exactly one reply that its own decoder accepts, or the connection must end.
#![no_main]

use farpool_lock::Mutex;
use farpool_transport::serve::{Conversation, Next};
use farpool_transport::{Outgoing, Peer, Service, Shared};
use farpool_wire::control::{Attach, Hello, SessionKept};
use farpool_wire::data::{Span, decode_refused_index};
use farpool_wire::limits::{HEADER_BYTES, VERSION_MAX, VERSION_MIN};
use farpool_wire::{ClientId, Code, Header, Opcode, Refusal, Reply, Request};
use libfuzzer_sys::fuzz_target;

const REGION_BYTES: u64 = 64;

struct OneRegion(Mutex<[u8; REGION_BYTES as usize]>);

fn range(span: &Span) -> Result<std::ops::Range<usize>, Refusal> {
    match span.offset.checked_add(span.bytes.into()) {
        Some(end) if end <= REGION_BYTES => Ok(span.offset as usize..end as usize),
        _ => Err(Refusal::new(Code::OutOfBounds, REGION_BYTES)),
    }
}

impl Service for OneRegion {
    fn call(&self, _peer: &Peer, request: Request) -> Result<Reply, Refusal> {
        match request {
            Request::KeepSession(_) => Ok(Reply::KeepSession(SessionKept { hosts: 1 })),
            other => Err(Refusal::new(Code::Unsupported, other.opcode() as u64)),
        }
    }

    fn read(&self, span: &Span, into: &mut [u8]) -> Result<(), Refusal> {
        into.copy_from_slice(&self.0.lock()[range(span)?]);
        Ok(())
    }

    fn write(&self, span: &Span, from: &[u8]) -> Result<(), Refusal> {
        self.0.lock()[range(span)?].copy_from_slice(from);
        Ok(())
    }

    fn share(&self, _attach: &Attach) -> Result<Shared, Refusal> {
        Err(Refusal::new(Code::NotShared, 0))
    }
}

/// Checks the first frame of `out`, which must be complete and well-formed. Returns the bytes after it.
fn check_reply<'a>(out: &'a [u8], asked: &Header) -> &'a [u8] {
    let (head, rest) = out.split_at_checked(HEADER_BYTES).expect("a whole header");
    let reply = Header::decode(head.try_into().expect("40 bytes")).expect("our own reply is well-formed");
    assert!(reply.is_reply);
    let (body, rest) = rest.split_at_checked(reply.body_bytes as usize).expect("a whole body");
    reply.check_body(body).expect("our own checksum fits");
    if reply.request_id != 0 || asked.request_id == 0 {
        assert_eq!((reply.request_id, reply.version), (asked.request_id, VERSION_MAX));
    }
    match (reply.refusal, reply.opcode) {
        (Some(_), _) => assert!(body.is_empty() || decode_refused_index(body).is_ok()),
        (None, Opcode::Read | Opcode::ReadBatch) => {}
        (None, Opcode::Write | Opcode::WriteBatch) => assert!(body.is_empty()),
        (None, opcode) => assert!(Reply::decode(opcode, body).is_ok()),
    }
    rest
}

// Each frame of the input: opcode, flags, request id, two bytes of length, body.
fuzz_target!(|input: &[u8]| {
    let service = OneRegion(Mutex::new([0; REGION_BYTES as usize]));
    let mut rest = input;
    let mut conversation = Conversation::new(Peer { is_local: input.len() % 2 == 1, ..Peer::default() });
    let mut out = Outgoing::default();
    if let Some((flags, behind)) = rest.split_first()
        && flags % 8 != 0
    {
        rest = behind;
        let mut body = Vec::new();
        Request::Hello(Hello { version_min: VERSION_MIN, version_max: VERSION_MAX, client: ClientId(1) })
            .encode(&mut body);
        let hello = Header::request(Opcode::Hello, 0, &body);
        assert!(matches!(conversation.answer(&service, &hello, &body, &mut out), Next::Continue));
    }
    while let [opcode, flags, id, low, high, behind @ ..] = rest {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(behind.len());
        let (body, behind) = behind.split_at(length);
        rest = behind;
        let opcode = Opcode::ALL[usize::from(*opcode) % Opcode::ALL.len()];
        let mut header = Header::request(opcode, (*id).into(), body);
        header.is_reply = flags & 0x10 != 0;
        if flags & 0x20 != 0 {
            header.body_crc = None;
        } else if flags & 0x40 != 0 {
            header.body_crc = Some(u32::from(*flags));
        }
        out.clear();
        let next = conversation.answer(&service, &header, body, &mut out);
        assert!(check_reply(&out, &header).is_empty(), "one reply to one frame");
        match next {
            Next::Continue => {}
            Next::Bytes(_) => unreachable!("no scans here"),
            Next::Memory(_) => unreachable!("nothing is shared here"),
            Next::HandOver(_) | Next::HangUp => return,
        }
    }
});
