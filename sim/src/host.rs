//! Host of a simulated process, and the client side of its connections.

use crate::kernel::{self, ProcessId, Wait, world, world_if_free};
use crate::localdisk::SimFile;
use crate::net::{Asked, CALLER, ConnId, Read};
use farpool_host::{DiskFile, Event, Host, HostEvent, Level, Task};
use farpool_transport::shm::{Mapped, MappedBytes, MemoryStream, ShmLink};
use farpool_transport::socket::{Interest, Stream};
use farpool_transport::{Dial, Dialer, FrameLink, Link, LinkError, Transport};
use farpool_wire::MonoNs;
use farpool_wire::control::Attached;
use std::io::{self, IoSlice, IoSliceMut};
use std::path::Path;
use std::sync::Arc;

/// Host of a simulated process: its clock, sleep, connections and random numbers. Once the process is dead, every call
/// fails at once, and its clock shows a time past every deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SimHost(pub(crate) ProcessId);

/// Time that the clock of a dead process shows, in ns: past every deadline, yet small enough to add to.
const NEVER_AGAIN: MonoNs = MonoNs(1 << 62);

impl SimHost {
    fn is_alive(self) -> bool {
        // A panic unwinds without waiting, as a dead process does.
        !std::thread::panicking() && world(|world| world.is_alive(self.0))
    }

    fn wait_for(self, until: MonoNs, event: Option<(HostEvent, u64)>, conn: Option<ConnId>) {
        kernel::wait(self.0, Wait { until, event, conn, task: None });
    }

    fn connect(self, address: &str, is_local: bool, deadline: MonoNs) -> Result<SimStream, LinkError> {
        const AGAIN_MS_MAX: u64 = 8_000;
        let mut again_ms = 1_000;
        loop {
            if !self.is_alive() {
                return Err(LinkError::Disconnected(io::ErrorKind::ConnectionRefused.into()));
            }
            let asked = world(|world| world.ask_for_connection(self.0, address, is_local));
            let until = match &asked {
                Asked::Connected(_, ns) | Asked::Refused(ns) => MonoNs(self.now().0 + ns),
                Asked::Lost => deadline.min(self.now().plus_ms(again_ms)),
            };
            // Owned by a `SimStream` from here on, so that the connection is closed if this function gives up.
            let stream = match asked {
                Asked::Connected(conn, _) => Some(SimStream { host: self, conn }),
                _ => None,
            };
            while self.now() < until && self.is_alive() {
                self.wait_for(until, None, None);
            }
            match (stream, asked) {
                (Some(stream), _) => return Ok(stream),
                (None, Asked::Refused(_)) => {
                    return Err(LinkError::Disconnected(io::ErrorKind::ConnectionRefused.into()));
                }
                _ if self.now() >= deadline => return Err(LinkError::TimedOut),
                _ => again_ms = (2 * again_ms).min(AGAIN_MS_MAX),
            }
        }
    }
}

impl Host for SimHost {
    fn now(&self) -> MonoNs {
        if self.is_alive() { world(|world| world.clock_of(self.0)) } else { NEVER_AGAIN }
    }

    fn wall_ms(&self) -> u64 {
        const BEGIN: u64 = 1_700_000_000_000;
        world(|world| {
            let ahead_ms = world.machines[world.process(self.0).machine].wall_ahead_ms;
            (BEGIN + world.now() / 1_000_000).saturating_add_signed(ahead_ms)
        })
    }

    fn boot_id(&self) -> u128 {
        world(|world| world.machines[world.process(self.0).machine].boot)
    }

    fn random(&self, into: &mut [u8]) -> io::Result<()> {
        world(|world| {
            for chunk in into.chunks_mut(8) {
                let drawn = world.random.draw().to_le_bytes();
                chunk.copy_from_slice(&drawn[..chunk.len()]);
            }
        });
        Ok(())
    }

    fn spun_ns(&self) -> u64 {
        0
    }

    fn wait(&self, event: &HostEvent, heard: u64, until: MonoNs) {
        self.wait_for(until, Some((event.clone(), heard)), None);
    }

    fn temporary_file(&self, _folder: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(SimFile::new(self.0)))
    }

    fn spawn(&self, _name: &str, run: Box<dyn FnOnce() + Send>) -> io::Result<Task> {
        let process = self.0;
        if !self.is_alive() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let task = world(|world| world.spawn(process, run));
        Ok(Task::new(move || {
            let host = SimHost(process);
            while host.is_alive() && !world(|world| world.has_ended(task)) {
                kernel::wait(process, Wait { until: NEVER_AGAIN, event: None, conn: None, task: Some(task) });
            }
        }))
    }

    fn log(&self, event: &Event) {
        world(|world| {
            world.oracle.said(&event.message);
            world.note_text(self.0, "says", [0; 3], Some(event.message.as_str().into()));
        });
    }

    fn logs(&self, level: Level) -> bool {
        level < Level::Debug
    }

    fn is_one_thread(&self) -> bool {
        true
    }
}

impl Dialer for SimHost {
    fn dial(&self, to: Dial<'_>, deadline: MonoNs) -> Result<Box<dyn Link>, LinkError> {
        Ok(match to {
            Dial::Broker { address } | Dial::Node { address, .. } => {
                let stream = self.connect(address, false, deadline)?;
                Box::new(FrameLink::greet(stream, Transport::Tcp, deadline)?)
            }
            Dial::Local { socket, space } => {
                let stream = self.connect(socket, true, deadline)?;
                Box::new(ShmLink::over(stream, Arc::clone(space), deadline)?)
            }
        })
    }
}

/// Client end of a connection.
pub(crate) struct SimStream {
    host: SimHost,
    conn: ConnId,
}

impl Stream for SimStream {
    fn read(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut count = 0;
        let found = world(|world| {
            world.read(self.conn, |mut bytes| {
                for slice in into.iter_mut() {
                    let part = slice.len().min(bytes.len());
                    slice[..part].copy_from_slice(&bytes[..part]);
                    bytes = &bytes[part..];
                    count += part;
                }
                count
            })
        });
        match found {
            Read::Some => Ok(count),
            Read::End => Ok(0),
            Read::Nothing if self.host.is_alive() => Err(io::ErrorKind::WouldBlock.into()),
            Read::Nothing | Read::Reset => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }

    fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let bytes = from.iter().fold(Vec::new(), |mut all: Vec<u8>, slice| {
            all.extend_from_slice(slice);
            all
        });
        let count = bytes.len();
        if self.host.is_alive() && world(|world| world.write(self.conn, bytes)) {
            Ok(count)
        } else {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    }

    fn wait(&mut self, interest: Interest, deadline: MonoNs) -> io::Result<()> {
        if interest == Interest::Writable {
            return Ok(());
        }
        loop {
            if !self.host.is_alive() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            if world(|world| world.is_readable(self.conn)) {
                return Ok(());
            }
            if self.host.now() >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.host.wait_for(deadline, None, Some(self.conn));
        }
    }
}

impl MemoryStream for SimStream {
    type Beside = Option<Mapped>;

    fn read_beside(&mut self, into: &mut [u8], beside: &mut Option<Mapped>) -> io::Result<usize> {
        let count = self.read(&mut [IoSliceMut::new(into)])?;
        if let Some(mapped) = world(|world| world.take_beside(self.conn)) {
            *beside = Some(mapped);
        }
        Ok(count)
    }

    fn map(
        beside: Option<Mapped>,
        _attached: &Attached,
        words: Option<Arc<dyn MappedBytes>>,
    ) -> Result<Mapped, LinkError> {
        let Some(mut mapped) = beside else {
            return Err(LinkError::Disconnected(io::ErrorKind::InvalidData.into()));
        };
        if let Some(words) = words {
            mapped.words = words;
        }
        Ok(mapped)
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        world_if_free(|world| world.hang_up(self.conn, CALLER));
    }
}
