//! Memory files of the regions that the zombie leased, kept as bare descriptors. The zombie stores and loads bytes
//! without checking the fence word (by which a node revokes a mapping), as a badly behaved client with a mapping would.
//!
//! The node passes a descriptor in its answer to an `Attach`. A `pwrite` to the descriptor reaches the same pages as a
//! store to a mapping, and returns an error where the store would be a fatal signal.

use crate::messages::Holding;
use crate::{Order, Tally};
use farpool_tests::canary::GRAFFITI;
use farpool_tests::random::Random;
use farpool_tests::raw_session::{MIB, soon};
use farpool_transport::shm::MemoryStream;
use farpool_transport::shm::ring::RingStream;
use farpool_transport::socket::{Interest, Stream};
use farpool_wire::Request;
use farpool_wire::control::{Attach, Hello};
use farpool_wire::frame::{Header, append_frame};
use farpool_wire::limits::{HEADER_BYTES, VERSION_MAX, VERSION_MIN};
use std::fs::File;
use std::io::{ErrorKind, IoSlice};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Largest number of bytes that are stored or loaded at once.
const BYTES_MAX: u64 = 64 << 10;

/// Descriptors of memory files, each with the lease under which it was received.
pub(crate) struct OldFiles<'a>(Vec<(File, &'a Holding)>);

impl<'a> OldFiles<'a> {
    /// Attaches every region over a separate connection, and keeps only the descriptors.
    pub(crate) fn take(socket: &str, held: &'a [Holding]) -> OldFiles<'a> {
        let mut stream = RingStream::connect(socket, soon()).expect("the node's local socket");
        let client = Default::default();
        let hello = Hello { version_min: VERSION_MIN, version_max: VERSION_MAX, client };
        ask(&mut stream, 1, &Request::Hello(hello));
        let files = held.iter().zip(2..).map(|(holding, id)| {
            let grant = &holding.grant;
            let attach = Attach { region: grant.region, epoch: grant.epoch, handle: grant.handle };
            let mut descriptors = ask(&mut stream, id, &Request::Attach(attach));
            assert_eq!(descriptors.len(), 2, "the region and the fence words");
            let file = File::from(descriptors.remove(0));
            let mut found = vec![0; MIB as usize];
            file.read_exact_at(&mut found, 0).expect("a load");
            assert!(holding.canary.is_at(0, &found), "this is the file of the lease");
            (file, holding)
        });
        OldFiles(files.collect())
    }

    /// Waits until the zombie was stopped and continued. Then stores and loads for as long as the zombie's other
    /// threads try old rights.
    pub(crate) fn use_until(self, is_over: &AtomicBool, order: &Order) -> Tally {
        let mut random = Random(!order.seed);
        let mut tally = Tally::default();
        while !is_over.load(Ordering::Acquire) {
            if !order.note.is_left() {
                std::thread::park_timeout(std::time::Duration::from_millis(1));
                continue;
            }
            let (file, holding) = &self.0[random.below(self.0.len() as u64) as usize];
            let bytes = 8 + random.below(BYTES_MAX - 7);
            let offset = random.below(MIB - bytes + 1);
            if random.below(2) == 0 {
                file.write_all_at(&vec![GRAFFITI; bytes as usize], offset)
                    .expect("nobody may cut the file off");
                tally.add("stored past the fence");
            } else {
                let mut found = vec![0; bytes as usize];
                file.read_exact_at(&mut found, offset).expect("nobody may cut the file off");
                // The node freed the pages of this file when it revoked the region. Everything in the file since then
                // was stored by this process.
                let is_own = holding.canary.is_harmless(offset, &found);
                tally.add(if is_own {
                    "loaded past the fence"
                } else {
                    "wrong: bytes of an old memory file"
                });
            }
        }
        tally
    }
}

/// Sends a request. Returns the file descriptors that come with the answer.
fn ask(stream: &mut RingStream, id: u64, request: &Request) -> Vec<OwnedFd> {
    let mut body = Vec::new();
    request.encode(&mut body);
    let mut frame = Vec::new();
    append_frame(&mut frame, Header::request(request.opcode(), id, &body), &body);
    let sent = stream.write(&[IoSlice::new(&frame)]).expect("sent");
    assert_eq!(sent, frame.len(), "a small frame has room");
    let mut descriptors = Vec::new();
    let mut read = |into: &mut [u8]| {
        let mut got = 0;
        while got < into.len() {
            match stream.read_beside(&mut into[got..], &mut descriptors) {
                Ok(0) => panic!("the node hung up"),
                Ok(count) => got += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    stream.wait(Interest::Readable, soon()).expect("an answer");
                }
                Err(error) => panic!("no answer: {error}"),
            }
        }
    };
    let mut head = [0; HEADER_BYTES];
    read(&mut head);
    let header = Header::decode(&head).expect("a header");
    assert_eq!((header.request_id, header.refusal), (id, None));
    read(&mut vec![0; header.body_bytes as usize]);
    descriptors
}
