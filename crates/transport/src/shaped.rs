//! Links that emulate a slower network: added latency and limited bandwidth over any transport.
//!
//! It is a simple emulation: no queueing elsewhere, no loss, one direction at a time. Figures measured with it are
//! labelled as emulated.

use crate::{Link, LinkError, ReadOp, Transport, WriteOp};
use farpool_wire::{MonoNs, Reply, Request, TraceId};

/// Latency and bandwidth of the emulated link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkShape {
    /// Nanoseconds added to every operation or batch.
    pub latency_ns: u64,
    /// Bandwidth in bytes per second; 0 means no limit.
    pub bytes_per_second: u64,
}

impl LinkShape {
    /// Returns how long one exchange of `bytes` takes on the emulated link, in ns.
    pub fn duration_ns(&self, bytes: u64) -> u64 {
        let transfer = u128::from(bytes) * 1_000_000_000;
        let transfer = transfer.checked_div(self.bytes_per_second.into()).unwrap_or(0);
        self.latency_ns.saturating_add(u64::try_from(transfer).unwrap_or(u64::MAX))
    }
}

/// Clock of the wrapper: reads the time and lets it pass.
pub trait ShapeClock: Send {
    /// Returns the current time.
    fn now(&mut self) -> MonoNs;
    /// Waits until the time is `until` or later.
    fn pass(&mut self, until: MonoNs);
}

/// Real time. Sleeps for most of a wait and spins for the last part, because sleeps overshoot by tens of microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealPace;

impl ShapeClock for RealPace {
    fn now(&mut self) -> MonoNs {
        farpool_host::clock::now()
    }

    fn pass(&mut self, until: MonoNs) {
        const OVERSHOOT_NS: u64 = 200_000;
        let left = until.0.saturating_sub(self.now().0);
        if left > OVERSHOOT_NS {
            std::thread::sleep(std::time::Duration::from_nanos(left - OVERSHOOT_NS));
        }
        while self.now() < until {
            std::hint::spin_loop();
        }
    }
}

impl ShapeClock for crate::sim::SimNet {
    fn now(&mut self) -> MonoNs {
        crate::sim::SimNet::now(self)
    }

    fn pass(&mut self, until: MonoNs) {
        let now = crate::sim::SimNet::now(self);
        self.advance_ns(until.0.saturating_sub(now.0));
    }
}

/// Link on which each exchange takes at least as long as on the emulated link.
pub struct Shaped<L, P = RealPace> {
    link: L,
    shape: LinkShape,
    pace: P,
}

impl<L: Link, P: ShapeClock> Shaped<L, P> {
    /// Wraps a link.
    pub fn new(link: L, shape: LinkShape, pace: P) -> Self {
        Shaped { link, shape, pace }
    }

    fn shaped<T>(
        &mut self,
        bytes: u64,
        exchange: impl FnOnce(&mut L) -> Result<T, LinkError>,
    ) -> Result<T, LinkError> {
        let due = MonoNs(self.pace.now().0.saturating_add(self.shape.duration_ns(bytes)));
        let result = exchange(&mut self.link);
        self.pace.pass(due);
        result
    }
}

impl<L: Link, P: ShapeClock> Link for Shaped<L, P> {
    fn transport(&self) -> Transport {
        self.link.transport()
    }

    fn set_trace(&mut self, trace: TraceId) {
        self.link.set_trace(trace);
    }

    fn call(&mut self, request: &Request, deadline: MonoNs) -> Result<Reply, LinkError> {
        self.shaped(0, |link| link.call(request, deadline))
    }

    fn read(&mut self, ops: &mut [ReadOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        let bytes = ops.iter().map(|op| op.into.len() as u64).sum();
        self.shaped(bytes, |link| link.read(ops, deadline))
    }

    fn write(&mut self, ops: &[WriteOp<'_>], deadline: MonoNs) -> Result<(), LinkError> {
        let bytes = ops.iter().map(|op| op.from.len() as u64).sum();
        self.shaped(bytes, |link| link.write(ops, deadline))
    }

    fn is_worn(&self) -> bool {
        self.link.is_worn()
    }
}
