//! Fuzzes a link with a peer that answers anything. The link must accept no more than it asked for, and return
//! exactly the bytes of the frames.
#![no_main]

use farpool_transport::socket::{Interest, Stream};
use farpool_transport::{FrameLink, Link, LinkError, ReadOp, Transport, WriteOp};
use farpool_wire::data::Span;
use farpool_wire::limits::{HEADER_BYTES, VERSION_MAX};
use farpool_wire::{Code, Epoch, Handle, Header, MonoNs, Opcode, Refusal, RegionIndex};
use libfuzzer_sys::fuzz_target;
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut, Read};

/// Stream that delivers the bytes of the fuzzer's script in reads of at most `piece` bytes, and accepts all writes.
struct Script {
    bytes: Vec<u8>,
    taken: usize,
    piece: usize,
    needs_checksums: bool,
}

impl Stream for Script {
    fn read(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let piece = self.piece.min(self.bytes.len() - self.taken);
        let count = (&self.bytes[self.taken..self.taken + piece]).read_vectored(into)?;
        self.taken += count;
        Ok(count)
    }

    fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(from.iter().map(|slice| slice.len()).sum())
    }

    fn wait(&mut self, _interest: Interest, _deadline: MonoNs) -> io::Result<()> {
        Err(io::ErrorKind::TimedOut.into())
    }

    fn needs_checksums(&self) -> bool {
        self.needs_checksums
    }
}

/// Operation that the test asks the link for, drawn from the fuzzer's input.
#[derive(Clone, Copy)]
struct Asked {
    is_read: bool,
    ranges: usize,
    range_bytes: usize,
}

impl Asked {
    fn opcode(self) -> Opcode {
        match (self.is_read, self.ranges > 1) {
            (true, true) => Opcode::ReadBatch,
            (true, false) => Opcode::Read,
            (false, true) => Opcode::WriteBatch,
            (false, false) => Opcode::Write,
        }
    }

    fn span(self, index: usize) -> Span {
        let offset = (index * self.range_bytes) as u64;
        Span {
            region: RegionIndex(0),
            epoch: Epoch(1),
            offset,
            handle: Handle(1),
            bytes: self.range_bytes as u32,
        }
    }
}

/// Appends an answer to the script. `how` chooses the defect of the answer.
fn put_answer(asked: Asked, id: u64, how: u8, rest: &mut &[u8], out: &mut Vec<u8>) {
    let mut take = |most: usize| {
        let (front, behind) = rest.split_at(most.min(rest.len()));
        *rest = behind;
        front
    };
    let wanted = if asked.is_read { asked.ranges * asked.range_bytes } else { 0 };
    let refusal = Refusal::new(Code::OutOfBounds, 7);
    let (refusal, body) = match how % 6 {
        0 | 1 => (None, (0..wanted).map(|at| at as u8 ^ how).collect()),
        2 => (Some(refusal), vec![]),
        3 => (Some(refusal), take(4).to_vec()),
        4 => (None, take(usize::from(how)).to_vec()),
        // These bytes are not a frame.
        _ => return out.extend(take(usize::from(how))),
    };
    let request_id = if how & 0x40 != 0 { id } else { id.wrapping_add(u64::from(how & 0x20)) };
    let header = Header { request_id, ..Header::request(asked.opcode(), id, &body) };
    let mut header = header.reply(&body, refusal);
    if how & 0x10 != 0 {
        header.body_crc = None;
    }
    out.extend(header.encode());
    out.extend(body);
}

/// Returns the frame (header and body) at the beginning of `bytes`. `None` if there is no whole one.
fn frame(bytes: &[u8]) -> Option<(Header, &[u8])> {
    let header = Header::decode(bytes.first_chunk::<HEADER_BYTES>()?).ok()?;
    let body = bytes[HEADER_BYTES..].get(..header.body_bytes as usize)?;
    Some((header, body))
}

// Layout of the input: two bytes configure the stream. Four bytes for each operation follow: its kind, number of
// ranges, bytes of a range, and the defect of its answer.
fuzz_target!(|input: &[u8]| {
    let [piece, flags, rest @ ..] = input else { return };
    let mut bytes = Vec::new();
    let welcome = [VERSION_MAX];
    bytes.extend(Header::request(Opcode::Hello, 1, &[]).reply(&welcome, None).encode());
    bytes.extend(welcome);
    let mut at = bytes.len();
    let (mut operations, mut rest) = (Vec::new(), rest);
    while let [kind, ranges, range_bytes, how, behind @ ..] = rest {
        rest = behind;
        let asked = Asked {
            is_read: kind % 2 == 0,
            ranges: 1 + usize::from(*ranges) % 4,
            range_bytes: 1 + usize::from(*range_bytes) % 32,
        };
        // The greeting has id 1, so the first operation has id 2.
        let id = 2 + operations.len() as u64;
        put_answer(asked, id, *how, &mut rest, &mut bytes);
        // The second number is how many operations are asked for ahead of their answers.
        operations.push((asked, 1 + usize::from(*kind >> 1) % 4));
    }
    bytes.extend(rest);
    let script = bytes.clone();
    let stream =
        Script { bytes, taken: 0, piece: 1 + usize::from(*piece) * 4, needs_checksums: flags % 2 == 0 };
    let soon = MonoNs(u64::MAX);
    let mut link = match FrameLink::greet(stream, Transport::Tcp, soon) {
        Ok(link) => link,
        Err(error) => panic!("an honest greeting: {error}"),
    };
    let mut under_way: VecDeque<Asked> = VecDeque::new();
    let mut to_post = operations.into_iter().peekable();
    while to_post.peek().is_some() || !under_way.is_empty() {
        let ahead = to_post.peek().map_or(0, |(_, ahead)| *ahead);
        if under_way.len() < ahead
            && let Some((asked, _)) = to_post.next()
        {
            let mut buffers = vec![vec![0; asked.range_bytes]; asked.ranges];
            let posted = match asked.is_read {
                true => link.post_read(&read_ops(asked, &mut buffers), soon),
                false => link.post_write(&write_ops(asked, &buffers), soon),
            };
            posted.expect("everything is taken that is written");
            under_way.push_back(asked);
            continue;
        }
        let Some(asked) = under_way.pop_front() else { return };
        let mut buffers = vec![vec![0; asked.range_bytes]; asked.ranges];
        let result = match asked.is_read {
            true => link.take_read(&mut read_ops(asked, &mut buffers), soon),
            false => link.take_write(&write_ops(asked, &buffers), soon),
        };
        let said = frame(&script[at..]);
        match (&result, &said) {
            (Ok(()), Some((header, body))) => {
                assert!(header.is_reply && header.refusal.is_none() && header.opcode == asked.opcode());
                let whole: Vec<u8> = buffers.into_iter().flatten().collect();
                assert_eq!(*body, if asked.is_read { &whole[..] } else { &[] });
            }
            (Err(LinkError::Refused { index, refusal }), Some((header, _))) => {
                assert_eq!(header.refusal, Some(*refusal));
                assert!(*index < asked.ranges);
            }
            (Err(_), _) => {}
            (Ok(()), None) => panic!("an answer was taken that is none"),
        }
        match (result, said) {
            (Err(error), _) if !error.link_survives() => return,
            (_, Some((_, body))) => at += HEADER_BYTES + body.len(),
            (_, None) => return,
        }
    }
});

fn read_ops(asked: Asked, buffers: &mut [Vec<u8>]) -> Vec<ReadOp<'_>> {
    let each = buffers.iter_mut().enumerate();
    each.map(|(index, into)| ReadOp { span: asked.span(index), into }).collect()
}

fn write_ops(asked: Asked, buffers: &[Vec<u8>]) -> Vec<WriteOp<'_>> {
    let each = buffers.iter().enumerate();
    each.map(|(index, from)| WriteOp { span: asked.span(index), from }).collect()
}
