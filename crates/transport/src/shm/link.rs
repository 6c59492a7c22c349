//! The client's side of shared memory: the mapped regions of a node, shared by all links of the process to it, and
//! copies that are checked against the region's fence word. The fence word is a number in memory that only the node can
//! write. It holds the region's epoch and whether its lease is suspended. The node changes it before it does anything
//! else about the end of a lease.

use super::mapping::{Access, Mapping};
use super::ring::RingStream;
use super::{Mapped, MappedBytes};
use crate::client::{FrameLink, broken};
use crate::socket::{Interest, Stream};
use crate::{Link, LinkError, ReadOp, Transport, WriteOp, check_ops};
use farpool_lock::RwLock;
use farpool_wire::control::{Attach, Attached};
use farpool_wire::data::Span;
use farpool_wire::frame::Header;
use farpool_wire::limits::{HEADER_BYTES, REGION_BYTES_MAX};
use farpool_wire::{
    ClientId, Code, MonoNs, Opcode, Refusal, RegionIndex, Reply, Request, TraceId, WireError, mutant,
};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Most bytes that are copied between two checks of the fence word (`docs/decisions/0005-shared-memory.md`).
const COPY_BYTES_MAX: usize = 256 << 10;
/// Most bytes of fence words that a node may ask this process to map: one cache line for each region a node may have.
const WORDS_BYTES_MAX: u64 = 64 * farpool_wire::limits::NODE_REGIONS_MAX as u64;

/// A region that this process has mapped, for one epoch: a later lease of the region needs another mapping.
#[derive(Debug)]
pub struct MappedRegion {
    epoch: u64,
    region: Box<dyn MappedBytes>,
    words: Arc<dyn MappedBytes>,
    word_offset: u64,
}

impl MappedRegion {
    /// Checks the region's fence word, by which the node shows who may use the region: it must have the range's epoch
    /// and not be suspended.
    fn check(&self, span: &Span) -> Result<(), Refusal> {
        if mutant!(FenceNotLookedAt) {
            return Ok(());
        }
        let word = self.words.word(self.word_offset).ok_or(Refusal::new(Code::NotShared, 0))?;
        if word == span.epoch.0 << 1 {
            return Ok(());
        }
        if word >> 1 == span.epoch.0 {
            return Err(Refusal::new(Code::LeaseExpired, 0));
        }
        Err(Refusal::new(Code::StaleEpoch, word >> 1))
    }

    fn check_again(&self, span: &Span) -> Result<(), Refusal> {
        if mutant!(FenceNotLookedAtAgain) { Ok(()) } else { self.check(span) }
    }

    /// Copies a range out; it is exactly as long as `into`. Refused if the lease on the region at the range's epoch has
    /// ended or is suspended, before the copy or while it ran.
    pub fn read(&self, span: &Span, into: &mut [u8]) -> Result<(), Refusal> {
        self.check(span)?;
        let mut offset = span.offset;
        for chunk in into.chunks_mut(COPY_BYTES_MAX) {
            if !self.region.copy_out(offset, chunk) {
                return Err(Refusal::new(Code::OutOfBounds, self.region.bytes()));
            }
            // The copy must not be reordered behind the check of the fence word that validates it.
            std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
            self.check_again(span)?;
            offset += chunk.len() as u64;
        }
        Ok(())
    }

    /// Copies bytes into a range, which is exactly as long. Refused as [`Self::read`] is. Bytes that were written
    /// before such a refusal reach nobody, unless the lease can still be renewed.
    pub fn write(&self, span: &Span, from: &[u8]) -> Result<(), Refusal> {
        self.check(span)?;
        if !self.region.is_writable() {
            return Err(Refusal::new(Code::Sealed, 0));
        }
        let mut offset = span.offset;
        for chunk in from.chunks(COPY_BYTES_MAX) {
            if !self.region.copy_in(offset, chunk) {
                return Err(Refusal::new(Code::OutOfBounds, self.region.bytes()));
            }
            std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
            self.check_again(span)?;
            offset += chunk.len() as u64;
        }
        Ok(())
    }
}

/// Regions of one node that this process has mapped; shared by its links.
#[derive(Debug, Default)]
pub struct ShmSpace {
    regions: RwLock<BTreeMap<RegionIndex, Arc<MappedRegion>>>,
    words: RwLock<Option<Arc<dyn MappedBytes>>>,
}

impl ShmSpace {
    /// Returns the region of a range, if it is mapped at the range's epoch.
    pub fn get(&self, span: &Span) -> Option<Arc<MappedRegion>> {
        let regions = self.regions.read();
        regions.get(&span.region).filter(|mapped| mapped.epoch == span.epoch.0).cloned()
    }

    /// Unmaps a region that this process no longer uses.
    pub fn forget(&self, region: RegionIndex) {
        self.regions.write().remove(&region);
    }

    /// Unmaps all regions. Otherwise this process would keep the memory of a node that has ended.
    pub fn clear(&self) {
        self.regions.write().clear();
        *self.words.write() = None;
    }
}

/// A stream over which a node can also hand out its memory: a Unix socket (as descriptors), or the simulator's stream.
pub trait MemoryStream: Stream {
    /// Memory or descriptors that arrive together with bytes of the stream.
    type Beside: Default;

    /// Reads bytes, and adds the memory that came with them to `beside`.
    fn read_beside(&mut self, into: &mut [u8], beside: &mut Self::Beside) -> io::Result<usize>;

    /// Maps a region, and the node's fence words (numbers that show which regions may be used) unless `words` has them.
    fn map(
        beside: Self::Beside,
        attached: &Attached,
        words: Option<Arc<dyn MappedBytes>>,
    ) -> Result<Mapped, LinkError>;
}

/// Maps a region from its descriptors, and the node's fence words (numbers that show which regions may be used) unless
/// `words` has them already.
pub(super) fn map_files(
    fds: Vec<OwnedFd>,
    attached: &Attached,
    words: Option<Arc<dyn MappedBytes>>,
) -> Result<Mapped, LinkError> {
    let [region_fd, words_fd] = &fds[..] else {
        let found = fds.len() as u64;
        return Err(LinkError::Protocol(WireError::Value { what: "the number of descriptors", found }));
    };
    // A process that could shrink the files could kill this one by SIGBUS.
    for fd in &fds {
        let seals = rustix::fs::fcntl_get_seals(fd).map_err(|errno| LinkError::Disconnected(errno.into()))?;
        if !seals.contains(rustix::fs::SealFlags::SHRINK) {
            return Err(LinkError::Disconnected(std::io::ErrorKind::InvalidData.into()));
        }
    }
    // The flags of the descriptor show the permitted access: a client that may only read gets one without write access.
    let flags = rustix::fs::fcntl_getfl(region_fd).map_err(|errno| LinkError::Disconnected(errno.into()))?;
    let access = if flags.contains(rustix::fs::OFlags::RDWR) { Access::ReadWrite } else { Access::Read };
    let mapped = |fd: &OwnedFd, bytes: u64, access| {
        Mapping::new(fd.as_fd(), bytes as usize, access).map_err(LinkError::Disconnected)
    };
    let region = mapped(region_fd, attached.region_bytes, access)?;
    let words = match words {
        Some(words) => words,
        None => Arc::new(mapped(words_fd, attached.words_bytes, Access::Read)?),
    };
    Ok(Mapped { region: Box::new(region), words })
}

/// Link to a node of this host. Reads and writes copy from and to mapped memory; everything else goes through
/// `control`.
pub struct ShmLink<S> {
    control: FrameLink<S>,
    space: Arc<ShmSpace>,
}

/// Connects to a node's Unix socket and exchanges greetings. All links of a client send the same number `client`, so
/// that the node shares its work fairly between clients and not between links.
pub fn connect_for(
    client: ClientId,
    socket: &str,
    space: Arc<ShmSpace>,
    deadline: MonoNs,
) -> Result<Box<dyn Link>, LinkError> {
    let ring = RingStream::connect(socket, deadline).map_err(broken)?;
    let control = FrameLink::greet_for(client, ring, Transport::Shm, deadline)?;
    Ok(Box::new(ShmLink { control, space }))
}

/// Does the same as [`connect_for`] for a client with one link, which needs no number.
pub fn connect(socket: &str, space: Arc<ShmSpace>, deadline: MonoNs) -> Result<Box<dyn Link>, LinkError> {
    connect_for(ClientId(0), socket, space, deadline)
}

impl<S: MemoryStream> ShmLink<S> {
    /// Exchanges greetings over a new stream.
    pub fn over(stream: S, space: Arc<ShmSpace>, deadline: MonoNs) -> Result<ShmLink<S>, LinkError> {
        Ok(ShmLink { control: FrameLink::greet(stream, Transport::Shm, deadline)?, space })
    }

    fn mapped(
        &mut self,
        span: &Span,
        index: usize,
        deadline: MonoNs,
    ) -> Result<Arc<MappedRegion>, LinkError> {
        if let Some(mapped) = self.space.get(span) {
            return Ok(mapped);
        }
        let mapped = Arc::new(self.attach(span, deadline).map_err(|error| match error {
            LinkError::Refused { refusal, .. } => LinkError::Refused { index, refusal },
            other => other,
        })?);
        let mut regions = self.space.regions.write();
        regions.insert(span.region, Arc::clone(&mapped));
        Ok(mapped)
    }

    fn attach(&mut self, span: &Span, deadline: MonoNs) -> Result<MappedRegion, LinkError> {
        let attach = Attach { region: span.region, epoch: span.epoch, handle: span.handle };
        let id = self.control.send_call(&Request::Attach(attach), deadline)?;
        let mut head = [0; HEADER_BYTES];
        let mut got = 0;
        let mut beside = S::Beside::default();
        while got < HEADER_BYTES {
            match self.control.stream_mut().read_beside(&mut head[got..], &mut beside) {
                Ok(0) => return Err(LinkError::Disconnected(std::io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => got += count,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    self.control.stream_mut().wait(Interest::Readable, deadline).map_err(broken)?;
                }
                Err(error) => return Err(broken(error)),
            }
        }
        let header = Header::decode(&head).map_err(LinkError::Protocol)?;
        let reply = self.control.receive_body(&header, Opcode::Attach, id, deadline)?;
        let attached = match reply {
            Ok(Reply::Attach(attached)) => attached,
            Ok(other) => return Err(LinkError::Protocol(WireError::Opcode { found: other.opcode() as u16 })),
            Err(refusal) => return Err(LinkError::Refused { index: 0, refusal }),
        };
        if attached.region_bytes > REGION_BYTES_MAX || attached.words_bytes > WORDS_BYTES_MAX {
            return Err(LinkError::Protocol(WireError::TooMany {
                what: "bytes to map",
                found: attached.region_bytes.max(attached.words_bytes),
                max: REGION_BYTES_MAX,
            }));
        }
        let mut shared_words = self.space.words.write();
        let Mapped { region, words } = S::map(beside, &attached, shared_words.clone())?;
        *shared_words = Some(Arc::clone(&words));
        Ok(MappedRegion { epoch: span.epoch.0, region, words, word_offset: attached.word_offset })
    }
}

impl<S: MemoryStream> Link for ShmLink<S> {
    fn transport(&self) -> Transport {
        Transport::Shm
    }

    fn set_trace(&mut self, trace: TraceId) {
        self.control.set_trace(trace);
    }

    fn call(&mut self, request: &Request, deadline: MonoNs) -> Result<Reply, LinkError> {
        self.control.call(request, deadline)
    }

    fn post_call(&mut self, request: &Request, deadline: MonoNs) -> Result<(), LinkError> {
        self.control.post_call(request, deadline)
    }

    fn take_call(&mut self, request: &Request, deadline: MonoNs) -> Result<Reply, LinkError> {
        self.control.take_call(request, deadline)
    }

    fn begins_by(&mut self, until: MonoNs) -> Result<bool, LinkError> {
        // Only control requests are posted.
        if self.control.owes_reply() { self.control.begins_by(until) } else { Ok(true) }
    }

    fn read(&mut self, ops: &mut [ReadOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        check_ops(ops.iter().map(|op| (op.span.bytes, op.into.len())))?;
        for (index, op) in ops.iter_mut().enumerate() {
            let mapped = self.mapped(&op.span, index, deadline)?;
            mapped.read(&op.span, op.into).map_err(|refusal| LinkError::Refused { index, refusal })?;
        }
        Ok(())
    }

    fn write(&mut self, ops: &[WriteOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        check_ops(ops.iter().map(|op| (op.span.bytes, op.from.len())))?;
        for (index, op) in ops.iter().enumerate() {
            let mapped = self.mapped(&op.span, index, deadline)?;
            mapped.write(&op.span, op.from).map_err(|refusal| LinkError::Refused { index, refusal })?;
        }
        Ok(())
    }
}
