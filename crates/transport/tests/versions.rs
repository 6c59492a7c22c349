//! Peers of the protocol's previous version, as recorded bytes: both ends then speak that version.

use farpool_host::clock;
use farpool_lock::Mutex;
use farpool_transport::socket::{Interest, Stream};
use farpool_transport::{
    FrameLink, Link, LinkError, Outgoing, Peer, Service, Transport, serve::Conversation,
};
use farpool_wire::control::{Done, SessionProof};
use farpool_wire::limits::HEADER_BYTES;
use farpool_wire::{Code, Header, MonoNs, Opcode, Refusal, Reply, Request, Secret, SessionId, TraceId};
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::sync::Arc;

/// Frames of version 1, recorded from commit 37e693b1.
const HELLO_1: &str =
    "465057310102010001000000000000000a00000010ed64760000000000000000000000005b77fe1201010807060504030201";
const WELCOME_1: &str = "465057310103010001000000000000000100000052d016a0000000000000000000000000930cb4f001";

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex")).collect()
}

/// Service that answers every request by an empty reply, and records the query id of each.
#[derive(Default)]
struct Noting(Mutex<Vec<TraceId>>);

impl Service for Noting {
    fn call(&self, peer: &Peer, _request: Request) -> Result<Reply, Refusal> {
        self.0.lock().push(peer.trace);
        Ok(Reply::CloseSession(Done {}))
    }
}

/// Answers one frame. Returns the header of the reply.
fn answered(conversation: &mut Conversation, service: &Noting, frame: &[u8]) -> (Header, Vec<u8>) {
    let header = Header::decode(frame.first_chunk().expect("a header")).expect("a good header");
    let mut out = Outgoing::default();
    conversation.answer(service, &header, &frame[HEADER_BYTES..], &mut out);
    (
        Header::decode(out.first_chunk().expect("a header")).expect("a good reply"),
        out[HEADER_BYTES..].to_vec(),
    )
}

#[test]
fn client_of_version_1_is_answered_in_version_1() {
    let (service, mut conversation) = (Noting::default(), Conversation::new(Peer::default()));
    let header =
        Header::decode(bytes(HELLO_1).first_chunk().expect("a header")).expect("version 1 is spoken");
    let mut out = Outgoing::default();
    conversation.answer(&service, &header, &bytes(HELLO_1)[HEADER_BYTES..], &mut out);
    assert_eq!(&out[..], bytes(WELCOME_1), "the recorded answer of version 1");
    let status = Header { version: 1, ..Header::request(Opcode::Status, 2, &[]) }.encode();
    assert_eq!(answered(&mut conversation, &service, &status).0.version, 1);
    assert_eq!(*service.0.lock(), [TraceId::NONE]);
}

#[test]
fn client_of_version_2_tells_its_query() {
    let (service, mut conversation) = (Noting::default(), Conversation::new(Peer::default()));
    let hello = bytes(
        "465057310202010001000000000000000a00000039e1cb6f000000000000000000000000a15a482601020807060504030201",
    );
    let (welcome, version) = answered(&mut conversation, &service, &hello);
    assert_eq!((welcome.version, version), (2, vec![2]));
    let status = Header { version: 2, trace: TraceId(7), ..Header::request(Opcode::Status, 2, &[]) }.encode();
    assert_eq!(answered(&mut conversation, &service, &status).0.version, 2);
    assert_eq!(*service.0.lock(), [TraceId(7)]);
}

/// Stream to a peer that has written all its answers already.
#[derive(Clone, Default)]
struct Recorded {
    answers: Arc<Mutex<io::Cursor<Vec<u8>>>>,
    asked: Arc<Mutex<Vec<u8>>>,
}

impl Stream for Recorded {
    fn read(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.answers.lock().read_vectored(into)
    }
    fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut asked = self.asked.lock();
        Ok(from
            .iter()
            .map(|slice| asked.extend_from_slice(slice))
            .zip(from)
            .map(|((), slice)| slice.len())
            .sum())
    }
    fn wait(&mut self, _interest: Interest, _deadline: MonoNs) -> io::Result<()> {
        Err(io::ErrorKind::TimedOut.into())
    }
}

#[test]
fn server_of_version_1_is_asked_in_version_1_and_told_no_query() {
    let mut done = Vec::new();
    Reply::CloseSession(Done {}).encode(&mut done);
    let request = Header { version: 1, ..Header::request(Opcode::CloseSession, 2, &[]) };
    let mut answers = bytes(WELCOME_1);
    answers.extend_from_slice(&request.reply(&done, None).encode());
    answers.extend_from_slice(&done);
    let stream = Recorded { answers: Arc::new(Mutex::new(io::Cursor::new(answers))), ..Recorded::default() };
    let deadline = clock::now().plus_ms(1_000);
    let mut link =
        FrameLink::greet(stream.clone(), Transport::Tcp, deadline).expect("they agree on version 1");
    stream.asked.lock().clear();
    link.set_trace(TraceId(7));
    let close = Request::CloseSession(SessionProof { session: SessionId(1), secret: Secret(1) });
    link.call(&close, deadline).expect("an answer in version 1");
    let asked = stream.asked.lock().clone();
    let header = Header::decode(asked.first_chunk().expect("a header")).expect("a good request");
    assert_eq!((header.version, header.trace), (1, TraceId::NONE));
}

/// The server would end the connection, with all that it serves over it.
#[test]
fn opcode_of_a_later_version_is_refused_before_it_is_sent() {
    let stream =
        Recorded { answers: Arc::new(Mutex::new(io::Cursor::new(bytes(WELCOME_1)))), ..Recorded::default() };
    let deadline = clock::now().plus_ms(1_000);
    let mut link =
        FrameLink::greet(stream.clone(), Transport::Tcp, deadline).expect("they agree on version 1");
    stream.asked.lock().clear();
    let refused = link.call(&Request::ListMemory(Done {}), deadline);
    let Err(LinkError::Refused { refusal, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(refusal, Refusal::new(Code::Unsupported, Opcode::ListMemory as u64));
    assert!(stream.asked.lock().is_empty(), "nothing was sent");
}
