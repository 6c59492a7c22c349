//! Every control message, header and data body decodes to what was encoded.

mod messages;

use farpool_wire::data::{
    Operations, SPAN_BYTES, Span, decode_read, decode_refused_index, decode_write, put_spans,
};
use farpool_wire::limits::*;
use farpool_wire::*;
use messages::{CONTROL, any_reply, any_request};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

fn header() -> impl Strategy<Value = Header> {
    let refusal =
        (select(Code::ALL.to_vec()), any::<u64>()).prop_map(|(code, detail)| Refusal::new(code, detail));
    let reply =
        prop_oneof![Just((false, None)), Just((true, None)), refusal.prop_map(|why| (true, Some(why)))];
    let body_bytes = 0..=FRAME_BODY_BYTES_MAX as u32;
    (reply, select(Opcode::ALL.to_vec()), any::<u64>(), body_bytes, any::<Option<u32>>()).prop_map(
        |((is_reply, refusal), opcode, request_id, body_bytes, body_crc)| Header {
            version: VERSION_MAX,
            trace: if is_reply { TraceId::NONE } else { TraceId(request_id ^ 0x5a) },
            is_reply,
            opcode,
            request_id,
            body_bytes,
            body_crc,
            refusal,
        },
    )
}

fn spans() -> impl Strategy<Value = Vec<Span>> {
    let bytes_max = (IO_BYTES_MAX / BATCH_OPS_MAX) as u32;
    let span = (any::<u32>(), 0..=bytes_max, any::<u64>(), any::<u64>(), any::<u128>()).prop_map(
        |(region, bytes, offset, epoch, handle)| Span {
            region: RegionIndex(region),
            bytes,
            offset,
            epoch: Epoch(epoch),
            handle: Handle(handle),
        },
    );
    vec(span, 1..=BATCH_OPS_MAX)
}

/// A new control message must get a strategy; otherwise the properties below would not cover it.
#[test]
fn strategies_cover_every_control_opcode() {
    let is_data = |opcode: &Opcode| (Opcode::Read..=Opcode::WriteBatch).contains(opcode);
    let control: Vec<Opcode> = Opcode::ALL.iter().copied().filter(|opcode| !is_data(opcode)).collect();
    assert_eq!(CONTROL, control);
    for data in Opcode::ALL.iter().filter(|opcode| is_data(opcode)) {
        let found = *data as u16;
        assert_eq!(Request::decode(*data, &[]), Err(WireError::Opcode { found }));
        assert_eq!(Reply::decode(*data, &[]), Err(WireError::Opcode { found }));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn request_encoded_then_decoded_is_itself(request in any_request()) {
        let mut body = Vec::new();
        request.encode(&mut body);
        prop_assert!(body.len() <= FRAME_BODY_BYTES_MAX);
        prop_assert_eq!(Request::decode(request.opcode(), &body), Ok(request));
    }

    #[test]
    fn reply_encoded_then_decoded_is_itself(reply in any_reply()) {
        let mut body = Vec::new();
        reply.encode(&mut body);
        prop_assert!(body.len() <= FRAME_BODY_BYTES_MAX);
        prop_assert_eq!(Reply::decode(reply.opcode(), &body), Ok(reply));
    }

    #[test]
    fn header_encoded_then_decoded_is_itself(header in header()) {
        prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any offset passes: only the node knows where a region ends, and it adds with a check.
    #[test]
    fn data_body_encoded_then_decoded_is_itself(spans in spans(), index in any::<u32>()) {
        let total: usize = spans.iter().map(|span| span.bytes as usize).sum();
        let mut read = Vec::new();
        put_spans(&spans, Operations::Batch, &mut read);
        prop_assert_eq!(read.len(), 8 + spans.len() * SPAN_BYTES);
        let mut found = Vec::new();
        prop_assert_eq!(decode_read(&read, Operations::Batch, &mut found), Ok(total as u64));
        prop_assert_eq!(&found, &spans);

        let payload: Vec<u8> = (0..total).map(|at| (at % 251) as u8).collect();
        let write = [read, payload.clone()].concat();
        prop_assert_eq!(decode_write(&write, Operations::Batch, &mut found), Ok(&payload[..]));
        prop_assert_eq!(&found, &spans);

        let mut single = Vec::new();
        put_spans(&spans[..1], Operations::One, &mut single);
        prop_assert_eq!(decode_read(&single, Operations::One, &mut found), Ok(spans[0].bytes.into()));
        prop_assert_eq!(&found, &spans[..1]);
        prop_assert_eq!(decode_refused_index(&index.to_le_bytes()), Ok(index));
    }
}
