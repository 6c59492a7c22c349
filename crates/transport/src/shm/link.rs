//! The asking side: mapped regions shared by all links of a process to one node, and the checked copies.

use super::descriptors::receive_descriptors;
use super::mapping::{Access, Mapping};
use crate::client::{FrameLink, broken};
use crate::socket::{Interest, Socket, Stream};
use crate::{Link, LinkError, ReadOp, Transport, WriteOp, check_ops};
use farpool_wire::control::Attach;
use farpool_wire::data::Span;
use farpool_wire::frame::Header;
use farpool_wire::limits::{HEADER_BYTES, REGION_BYTES_MAX};
use farpool_wire::{Code, MonoNs, Opcode, Refusal, RegionIndex, Reply, Request, WireError};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::{Arc, PoisonError, RwLock};

/// A copy is checked against the fence word every so many bytes.
const COPY_BYTES_MAX: usize = 256 << 10;
/// Most bytes of fence words a node may ask us to map: one cache line for each region it may have.
const WORDS_BYTES_MAX: u64 = 64 * farpool_wire::limits::NODE_REGIONS_MAX as u64;

#[derive(Debug)]
struct MappedRegion {
    epoch: u64,
    region: Mapping,
    words: Arc<Mapping>,
    word_offset: u64,
}

impl MappedRegion {
    /// The one fence word under which this mapping may be used: this epoch, not suspended.
    fn check(&self, span: &Span) -> Result<(), Refusal> {
        let word = self.words.word(self.word_offset).ok_or(Refusal::new(Code::NotShared, 0))?;
        if word == span.epoch.0 << 1 {
            return Ok(());
        }
        if word >> 1 == span.epoch.0 {
            return Err(Refusal::new(Code::LeaseExpired, 0));
        }
        Err(Refusal::new(Code::StaleEpoch, word >> 1))
    }

    fn read(&self, span: &Span, into: &mut [u8]) -> Result<(), Refusal> {
        self.check(span)?;
        let mut offset = span.offset;
        for chunk in into.chunks_mut(COPY_BYTES_MAX) {
            if !self.region.copy_out(offset, chunk) {
                return Err(Refusal::new(Code::OutOfBounds, self.region.bytes() as u64));
            }
            // The copy must not sink below the look at the word that vouches for it.
            std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
            self.check(span)?;
            offset += chunk.len() as u64;
        }
        Ok(())
    }

    fn write(&self, span: &Span, from: &[u8]) -> Result<(), Refusal> {
        self.check(span)?;
        if !self.region.is_writable() {
            return Err(Refusal::new(Code::Sealed, 0));
        }
        let mut offset = span.offset;
        for chunk in from.chunks(COPY_BYTES_MAX) {
            if !self.region.copy_in(offset, chunk) {
                return Err(Refusal::new(Code::OutOfBounds, self.region.bytes() as u64));
            }
            std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
            self.check(span)?;
            offset += chunk.len() as u64;
        }
        Ok(())
    }
}

/// What this process has mapped of one node; shared by its links.
#[derive(Debug, Default)]
pub struct ShmSpace {
    regions: RwLock<BTreeMap<RegionIndex, Arc<MappedRegion>>>,
    words: RwLock<Option<Arc<Mapping>>>,
}

impl ShmSpace {
    fn get(&self, span: &Span) -> Option<Arc<MappedRegion>> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        regions.get(&span.region).filter(|mapped| mapped.epoch == span.epoch.0).cloned()
    }

    /// Unmaps a region this process is done with.
    pub fn forget(&self, region: RegionIndex) {
        self.regions.write().unwrap_or_else(PoisonError::into_inner).remove(&region);
    }
}

/// A link to a node of this host.
pub struct ShmLink {
    control: FrameLink<Socket>,
    space: Arc<ShmSpace>,
}

impl ShmLink {
    /// Connects to a node's local socket and greets.
    pub fn connect(socket: &str, space: Arc<ShmSpace>, deadline: MonoNs) -> Result<ShmLink, LinkError> {
        let address = SocketAddr::from_abstract_name(socket).map_err(LinkError::Cut)?;
        let stream = UnixStream::connect_addr(&address).map_err(LinkError::Cut)?;
        let socket = Socket::unix(stream).map_err(LinkError::Cut)?;
        Ok(ShmLink { control: FrameLink::greet(socket, Transport::Shm, deadline)?, space })
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
        let mut regions = self.space.regions.write().unwrap_or_else(PoisonError::into_inner);
        regions.insert(span.region, Arc::clone(&mapped));
        Ok(mapped)
    }

    fn attach(&mut self, span: &Span, deadline: MonoNs) -> Result<MappedRegion, LinkError> {
        let attach = Attach { region: span.region, epoch: span.epoch, handle: span.handle };
        let id = self.control.send_call(&Request::Attach(attach), deadline)?;
        let mut head = [0; HEADER_BYTES];
        let mut got = 0;
        let mut fds = Vec::new();
        while got < HEADER_BYTES {
            match receive_descriptors(self.control.stream(), &mut head[got..], &mut fds) {
                Ok(0) => return Err(LinkError::Cut(std::io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => got += count,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    self.control.wait(Interest::Readable, deadline).map_err(broken)?;
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
        let [region, words] = &fds[..] else {
            let found = fds.len() as u64;
            return Err(LinkError::Protocol(WireError::Value { what: "the number of descriptors", found }));
        };
        if attached.region_bytes > REGION_BYTES_MAX || attached.words_bytes > WORDS_BYTES_MAX {
            return Err(LinkError::Protocol(WireError::TooMany {
                what: "bytes to map",
                found: attached.region_bytes.max(attached.words_bytes),
                max: REGION_BYTES_MAX,
            }));
        }
        // The descriptor says what may be done with it: a read handle brings one without write access.
        let flags = rustix::fs::fcntl_getfl(region).map_err(|errno| LinkError::Cut(errno.into()))?;
        let access = if flags.contains(rustix::fs::OFlags::RDWR) { Access::ReadWrite } else { Access::Read };
        let region_bytes = attached.region_bytes as usize;
        let region = Mapping::new(region.as_fd(), region_bytes, access).map_err(LinkError::Cut)?;
        let mut shared_words = self.space.words.write().unwrap_or_else(PoisonError::into_inner);
        let words = match &*shared_words {
            Some(words) => Arc::clone(words),
            None => {
                let words_bytes = attached.words_bytes as usize;
                let words =
                    Arc::new(Mapping::new(words.as_fd(), words_bytes, Access::Read).map_err(LinkError::Cut)?);
                *shared_words = Some(Arc::clone(&words));
                words
            }
        };
        Ok(MappedRegion { epoch: span.epoch.0, region, words, word_offset: attached.word_offset })
    }
}

impl Link for ShmLink {
    fn transport(&self) -> Transport {
        Transport::Shm
    }

    fn call(&mut self, request: &Request, deadline: MonoNs) -> Result<Reply, LinkError> {
        self.control.call(request, deadline)
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

impl FrameLink<Socket> {
    fn wait(&mut self, interest: Interest, deadline: MonoNs) -> std::io::Result<()> {
        self.stream_mut().wait(interest, deadline)
    }
}
