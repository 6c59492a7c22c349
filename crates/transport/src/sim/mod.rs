//! A simulated network: the real framing code on both sides, a virtual clock, and faults drawn from one seed.
//!
//! The service answers a frame at once, in the caller's own thread. Random numbers then decide whether the request or
//! the reply is lost, whether the connection ends, and how much virtual time the transfer takes. Only waiting
//! advances the virtual clock. No real time passes, and the same seed with the same calls gives the same run.
//!
//! Simulated faults: loss, delay, a connection that ends before or after the service acted. Not simulated: corrupted or
//! reordered bytes inside a connection, which TCP and the frame checksums exclude.

use crate::client::FrameLink;
use crate::outgoing::Outgoing;
use crate::serve::{Conversation, Next, Peer, Service};
use crate::socket::{Interest, Stream};
use crate::{LinkError, Transport};
use farpool_lock::{Mutex, MutexGuard};
use farpool_wire::MonoNs;
use farpool_wire::frame::Header;
use farpool_wire::limits::HEADER_BYTES;
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Rates of the simulated faults.
#[derive(Clone, Debug)]
pub struct Faults {
    /// Range of the delay in one direction, in virtual ns.
    pub delay_ns: RangeInclusive<u64>,
    /// Frames lost in either direction, per million.
    pub lost_per_million: u32,
    /// Connections that end while a frame is in flight, per million frames.
    pub disconnects_per_million: u32,
}

impl Faults {
    /// Returns a network without faults and with a delay of 10 us in each direction.
    pub fn none() -> Faults {
        Faults { delay_ns: 10_000..=10_000, lost_per_million: 0, disconnects_per_million: 0 }
    }
}

#[derive(Debug)]
struct State {
    random: u64,
    now: MonoNs,
    faults: Faults,
}

/// A simulated network. Clones share one network.
#[derive(Clone, Debug)]
pub struct SimNet(Arc<Mutex<State>>);

impl SimNet {
    /// Makes a network whose random numbers all come from `seed`.
    pub fn new(seed: u64, faults: Faults) -> SimNet {
        SimNet(Arc::new(Mutex::new(State { random: seed, now: MonoNs(1), faults })))
    }

    /// Returns the virtual time.
    pub fn now(&self) -> MonoNs {
        self.state().now
    }

    /// Advances the virtual time.
    pub fn advance_ns(&self, ns: u64) {
        let mut state = self.state();
        state.now = MonoNs(state.now.0.saturating_add(ns));
    }

    /// Changes the fault rates from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// Draws a random number from the seed.
    pub fn draw(&self) -> u64 {
        self.state().draw()
    }

    /// Connects to a service.
    pub fn connect(&self, service: Arc<dyn Service>) -> Result<FrameLink<SimStream>, LinkError> {
        let stream = SimStream {
            net: self.clone(),
            service,
            conversation: Conversation::new(Peer::default()),
            outgoing: Vec::new(),
            incoming: VecDeque::new(),
            arrives: MonoNs(0),
            is_disconnected: false,
        };
        FrameLink::greet(stream, Transport::Sim, self.now().plus_ms(1_000))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl State {
    /// Draws with SplitMix64 (Steele, Lea, Flood 2014): every seed is good, and the whole state is one number.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn happens(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.draw() % 1_000_000 < u64::from(per_million)
    }

    fn delay(&mut self) -> u64 {
        let (low, high) = (*self.faults.delay_ns.start(), *self.faults.delay_ns.end());
        low + self.draw() % (high.saturating_sub(low) + 1)
    }
}

/// Client's end of a simulated connection.
pub struct SimStream {
    net: SimNet,
    service: Arc<dyn Service>,
    conversation: Conversation,
    outgoing: Vec<u8>,
    incoming: VecDeque<u8>,
    arrives: MonoNs,
    is_disconnected: bool,
}

impl SimStream {
    /// Delivers every whole frame that was written to the service, and keeps its replies until they arrive.
    fn deliver(&mut self) {
        while let Some(head) = self.outgoing.first_chunk::<HEADER_BYTES>() {
            let Ok(header) = Header::decode(head) else {
                self.is_disconnected = true;
                return;
            };
            let whole = HEADER_BYTES + header.body_bytes as usize;
            if self.outgoing.len() < whole {
                return;
            }
            let frame: Vec<u8> = self.outgoing.drain(..whole).collect();
            let (request_lost, disconnects_before, reply_lost, disconnects_after, journey) = {
                let mut state = self.net.state();
                let (lost, disconnects) =
                    (state.faults.lost_per_million, state.faults.disconnects_per_million);
                let drawn = (
                    state.happens(lost),
                    state.happens(disconnects),
                    state.happens(lost),
                    state.happens(disconnects),
                );
                let journey = state.delay() + state.delay();
                (drawn.0, drawn.1, drawn.2, drawn.3, journey)
            };
            if disconnects_before {
                self.is_disconnected = true;
                return;
            }
            if request_lost {
                continue;
            }
            let mut reply = Outgoing::default();
            let next = self.conversation.answer(&*self.service, &header, &frame[HEADER_BYTES..], &mut reply);
            if let Next::Bytes(bytes) = &next {
                bytes.slices().for_each(|piece| reply.extend(piece));
            }
            if disconnects_after {
                self.is_disconnected = true;
                return;
            }
            if !reply_lost {
                self.incoming.extend(reply.iter());
                self.arrives = MonoNs(self.net.now().0.max(self.arrives.0) + journey);
            }
            if matches!(next, Next::HangUp) {
                self.is_disconnected = true;
                return;
            }
        }
    }
}

impl Stream for SimStream {
    fn read(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if self.incoming.is_empty() {
            return if self.is_disconnected { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        if self.net.now() < self.arrives {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.incoming.read_vectored(into)
    }

    fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.is_disconnected {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut count = 0;
        for slice in from {
            self.outgoing.extend_from_slice(slice);
            count += slice.len();
        }
        self.deliver();
        Ok(count)
    }

    fn wait(&mut self, interest: Interest, deadline: MonoNs) -> io::Result<()> {
        if interest == Interest::Writable || self.is_disconnected {
            return Ok(());
        }
        let mut state = self.net.state();
        if self.incoming.is_empty() || self.arrives > deadline {
            state.now = state.now.max(deadline);
            return Err(io::ErrorKind::TimedOut.into());
        }
        state.now = state.now.max(self.arrives);
        Ok(())
    }
}
