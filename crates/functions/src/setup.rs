//! Messages of a node to a sandbox process: its settings, and its call lanes. A call lane is a connection on which a
//! caller calls functions over one window (a range of bytes that they see as their memory).
//!
//! The messages go over a pair of Unix sockets, with file descriptors beside them. Both ends come from one build, but
//! what arrives is checked as carefully as bytes from elsewhere.

use crate::abi::Part;
use farpool_host::waiting::Waiting;
use farpool_transport::HandedOver;
use farpool_wire::codec::{Cursor, Field};
use farpool_wire::limits::{LANE_PARTS_MAX, WINDOW_BYTES_MAX, WINDOW_PAGE_BYTES};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Largest number of keys that a process receives.
pub const KEYS_MAX: usize = 64;
/// Largest number of file descriptors that are sent with one byte. The kernel permits 253.
const BESIDE_MAX: usize = 128;
/// Largest size of a message in bytes. A window in the largest number of parts fits.
const MESSAGE_BYTES_MAX: usize = 2 << 20;

/// First message: the settings of the process.
#[derive(Debug)]
pub struct Start {
    /// Largest size of a function's heap, in bytes.
    pub heap_bytes: u64,
    /// Ed25519 public keys that sign functions.
    pub keys: Vec<[u8; 32]>,
    /// True if WebAssembly functions, too, must be signed by one of the keys.
    pub signed_alone: bool,
    /// Method by which its threads wait for their callers: spinning, sleeping, or both.
    pub waiting: Waiting,
    /// Shared memory in which lanes show what they are doing ([`crate::status`]).
    pub status: OwnedFd,
    /// Folder of the tenant's compiled code; `None` if nothing is cached.
    pub cache: Option<OwnedFd>,
}

/// Place in a window of a range of one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowRange {
    /// Index of the region's file in [`LaneWindow::files`].
    pub file: u32,
    /// Offset in that file in bytes, a multiple of a page.
    pub offset: u64,
    /// Range of the window at which these bytes of the file appear.
    pub part: Part,
}

/// A fence word and the value that it must have. The node changes the fence word of a region to revoke its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FenceAt {
    /// Offset in the file of fence words, in bytes.
    pub offset: u64,
    /// The word of an open region at the epoch that the caller has the right to.
    pub word: u64,
}

/// Memory that functions on a call lane see: which files lie where in their window.
#[derive(Debug)]
pub struct LaneWindow {
    /// Size of the window in bytes.
    pub window_bytes: u64,
    /// Largest size of an output, in bytes.
    pub output_bytes: u32,
    /// Ranges of the window that lie at this node, in order.
    pub ranges: Vec<WindowRange>,
    /// Fence words of the window's regions, with the values that they have until the node revokes the memory.
    pub fences: Vec<FenceAt>,
    /// File of the node's fence words and its size in bytes; `None` in a client's own sandbox, which has no node.
    pub words: Option<(OwnedFd, u64)>,
    /// Files with the memory of the regions.
    pub files: Vec<OwnedFd>,
}

impl LaneWindow {
    /// Checks that the ranges lie on pages, in order, inside the window, and in files that exist. The error is the
    /// index of the wrong range, or `None` if the window as a whole is wrong.
    pub fn check(&self) -> Result<(), Option<usize>> {
        if self.window_bytes == 0
            || self.window_bytes > WINDOW_BYTES_MAX
            || self.ranges.len() > LANE_PARTS_MAX
        {
            return Err(None);
        }
        let mut end = 0;
        for (index, range) in self.ranges.iter().enumerate() {
            let Part { first, bytes } = range.part;
            let is_on_pages =
                first.is_multiple_of(WINDOW_PAGE_BYTES) && range.offset.is_multiple_of(WINDOW_PAGE_BYTES);
            let after = first.checked_add(bytes).filter(|after| *after <= self.window_bytes);
            let is_of_file =
                (range.file as usize) < self.files.len() && range.offset.checked_add(bytes).is_some();
            match after {
                Some(after) if is_on_pages && is_of_file && bytes > 0 && first >= end => {
                    end = after.next_multiple_of(WINDOW_PAGE_BYTES);
                }
                _ => return Err(Some(index)),
            }
        }
        Ok(())
    }
}

/// Message that opens a call lane: its connection, its memory, and its number in [`crate::status`].
#[derive(Debug)]
pub struct LaneSetup {
    /// Number of the lane, by which it shows in [`crate::status`] what it is doing.
    pub slot: u32,
    /// Connection to the caller.
    pub connection: HandedOver,
    /// Memory that functions on the lane see.
    pub window: LaneWindow,
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a message to a sandbox process is malformed")
}

fn take<T: Field>(from: &mut Cursor<'_>) -> io::Result<T> {
    T::take(from).map_err(|_| malformed())
}

/// Decodes a number of items, and refuses it if it is more than `max`.
fn count(from: &mut Cursor<'_>, max: usize) -> io::Result<usize> {
    let found = take::<u32>(from)? as usize;
    if found <= max { Ok(found) } else { Err(malformed()) }
}

impl Start {
    /// Sends the settings to a sandbox process.
    pub fn send(&self, to: &UnixStream) -> io::Result<()> {
        let mut body = Vec::new();
        self.heap_bytes.put(&mut body);
        (self.waiting as u8).put(&mut body);
        self.signed_alone.put(&mut body);
        (self.keys.len() as u32).put(&mut body);
        self.keys.iter().for_each(|key| key.put(&mut body));
        let beside: Vec<_> =
            std::iter::once(self.status.as_fd()).chain(self.cache.as_ref().map(AsFd::as_fd)).collect();
        send(to, &body, &beside)
    }

    /// Receives the settings in a sandbox process; `None` if the node has closed the connection.
    pub fn receive(from: &UnixStream) -> io::Result<Option<Start>> {
        let Some((body, beside)) = receive(from)? else { return Ok(None) };
        let mut cursor = Cursor::new(&body);
        let heap_bytes = take(&mut cursor)?;
        let number: u8 = take(&mut cursor)?;
        let waiting =
            Waiting::ALL.iter().find(|(_, waiting)| *waiting as u8 == number).ok_or_else(malformed)?.1;
        let signed_alone = take(&mut cursor)?;
        let keys =
            (0..count(&mut cursor, KEYS_MAX)?).map(|_| take(&mut cursor)).collect::<io::Result<_>>()?;
        let mut beside = beside.into_iter();
        let status = beside.next().ok_or_else(malformed)?;
        Ok(Some(Start { heap_bytes, waiting, keys, signed_alone, status, cache: beside.next() }))
    }
}

impl LaneSetup {
    /// Sends a call lane to a sandbox process.
    pub fn send(&self, to: &UnixStream) -> io::Result<()> {
        let LaneWindow { window_bytes, output_bytes, ranges, fences, words, files } = &self.window;
        let mut body = Vec::new();
        self.slot.put(&mut body);
        self.connection.kind().put(&mut body);
        window_bytes.put(&mut body);
        output_bytes.put(&mut body);
        (ranges.len() as u32).put(&mut body);
        for range in ranges {
            range.file.put(&mut body);
            [range.offset, range.part.first, range.part.bytes].iter().for_each(|word| word.put(&mut body));
        }
        (fences.len() as u32).put(&mut body);
        for fence in fences {
            fence.offset.put(&mut body);
            fence.word.put(&mut body);
        }
        words.as_ref().map_or(0, |(_, bytes)| *bytes).put(&mut body);
        let mut beside = self.connection.descriptors();
        (beside.len() as u32).put(&mut body);
        beside.extend(words.as_ref().map(|(file, _)| file.as_fd()));
        beside.extend(files.iter().map(AsFd::as_fd));
        send(to, &body, &beside)
    }

    /// Receives a call lane in a sandbox process; `None` if the node has closed the connection.
    pub fn receive(from: &UnixStream) -> io::Result<Option<LaneSetup>> {
        let Some((body, mut beside)) = receive(from)? else { return Ok(None) };
        let mut cursor = Cursor::new(&body);
        let slot = take(&mut cursor)?;
        let kind = take(&mut cursor)?;
        let window_bytes = take(&mut cursor)?;
        let output_bytes = take(&mut cursor)?;
        let mut ranges = Vec::new();
        for _ in 0..count(&mut cursor, LANE_PARTS_MAX)? {
            let (file, offset) = (take(&mut cursor)?, take(&mut cursor)?);
            ranges.push(WindowRange {
                file,
                offset,
                part: Part { first: take(&mut cursor)?, bytes: take(&mut cursor)? },
            });
        }
        let mut fences = Vec::new();
        for _ in 0..count(&mut cursor, LANE_PARTS_MAX)? {
            fences.push(FenceAt { offset: take(&mut cursor)?, word: take(&mut cursor)? });
        }
        let words_bytes: u64 = take(&mut cursor)?;
        let of_connection = count(&mut cursor, 2)?;
        if beside.len() < of_connection + usize::from(words_bytes > 0) {
            return Err(malformed());
        }
        let mut files = beside.split_off(of_connection);
        let words = (words_bytes > 0).then(|| (files.remove(0), words_bytes));
        let connection = HandedOver::of(kind, beside).ok_or_else(malformed)?;
        let window = LaneWindow { window_bytes, output_bytes, ranges, fences, words, files };
        window.check().map_err(|_| malformed())?;
        Ok(Some(LaneSetup { slot, connection, window }))
    }
}

fn send(mut to: &UnixStream, body: &[u8], beside: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut head = (body.len() as u32).to_le_bytes().to_vec();
    head.extend_from_slice(&(beside.len() as u32).to_le_bytes());
    to.write_all(&head)?;
    to.write_all(body)?;
    for some in beside.chunks(BESIDE_MAX) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BESIDE_MAX))];
        let mut message = SendAncillaryBuffer::new(&mut space);
        if !message.push(SendAncillaryMessage::ScmRights(some)) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        sendmsg(to, &[IoSlice::new(&[0])], &mut message, SendFlags::NOSIGNAL)?;
    }
    Ok(())
}

fn receive(mut from: &UnixStream) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut head = [0; 8];
    match from.read_exact(&mut head) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let bytes = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
    let wanted = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
    if bytes > MESSAGE_BYTES_MAX || wanted > LANE_PARTS_MAX + 3 {
        return Err(malformed());
    }
    let mut body = vec![0; bytes];
    from.read_exact(&mut body)?;
    let mut beside = Vec::with_capacity(wanted);
    while beside.len() < wanted {
        let before = beside.len();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BESIDE_MAX))];
        let mut messages = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        recvmsg(from, &mut [IoSliceMut::new(&mut byte)], &mut messages, RecvFlags::CMSG_CLOEXEC)?;
        for message in messages.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                beside.extend(rights);
            }
        }
        if beside.len() == before {
            return Err(malformed());
        }
    }
    Ok(Some((body, beside)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> OwnedFd {
        rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap()
    }

    #[test]
    fn lane_arrives_as_it_was_sent_with_all_its_files() {
        let (near, far) = UnixStream::pair().unwrap();
        let (end, _other) = UnixStream::pair().unwrap();
        let range = |file| WindowRange {
            file,
            offset: 4096,
            part: Part { first: u64::from(file) << 16, bytes: 1 << 16 },
        };
        let window = LaneWindow {
            window_bytes: 300 << 16,
            output_bytes: 9,
            ranges: (0..300).map(range).collect(),
            fences: vec![FenceAt { offset: 64, word: 6 }],
            words: Some((file(), 128)),
            files: (0..300).map(|_| file()).collect(),
        };
        let setup = LaneSetup { slot: 5, connection: HandedOver::Unix(end.into()), window };
        let sent = std::thread::spawn(move || setup.send(&near).map(|()| setup));
        let got = LaneSetup::receive(&far).unwrap().unwrap();
        let setup = sent.join().unwrap().unwrap();
        assert_eq!((got.slot, got.connection.kind(), got.window.files.len()), (5, 1, 300));
        assert_eq!((got.window.window_bytes, got.window.output_bytes), (300 << 16, 9));
        assert_eq!((&got.window.ranges, &got.window.fences), (&setup.window.ranges, &setup.window.fences));
        assert_eq!(got.window.words.unwrap().1, 128);
        assert!(LaneSetup::receive(&far).unwrap().is_none());
    }

    #[test]
    fn window_whose_parts_overlap_or_leave_it_is_refused_with_the_part() {
        let window = |ranges: Vec<WindowRange>| LaneWindow {
            window_bytes: 1 << 20,
            output_bytes: 0,
            ranges,
            fences: vec![],
            words: None,
            files: vec![file()],
        };
        let range = |file, offset, first, bytes| WindowRange { file, offset, part: Part { first, bytes } };
        let good = range(0, 0, 0, 5000);
        let cases = [
            (range(0, 0, 4096, 1), Some(1)),
            (range(1, 0, 8192, 1), Some(1)),
            (range(0, 1, 8192, 1), Some(1)),
            (range(0, 0, 8192, 1 << 20), Some(1)),
            (range(0, 0, 8192, 0), Some(1)),
            (range(0, u64::MAX - 4095, 8192, 1 << 13), Some(1)),
        ];
        for (bad, part) in cases {
            assert_eq!(window(vec![good, bad]).check(), Err(part), "{bad:?}");
        }
        assert_eq!(window(vec![good, range(0, 4096, 8192, (1 << 20) - 8192)]).check(), Ok(()));
        assert_eq!(LaneWindow { window_bytes: 0, ..window(vec![]) }.check(), Err(None));
    }
}
