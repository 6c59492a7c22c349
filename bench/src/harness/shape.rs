//! Emulation of a slower link between this machine and the memory nodes of a pool. Reports label such results as
//! emulated.

use farpool_host::{Host, HostLayer};
use farpool_transport::shaped::{LinkShape, RealPace, Shaped};
use farpool_transport::{Dial, Dialer, Exposure, Link, LinkError, Sockets};
use farpool_wire::MonoNs;
use std::sync::Arc;

/// Parses `LATENCY_US,GBIT`: a latency in us and a bandwidth in Gbit/s.
pub(crate) fn parse_shape(text: &str) -> Result<LinkShape, String> {
    let wrong = || {
        format!(
            "{text:?} is not a link; write LATENCY_US,GBIT, such as 20,10 (0 to 1000000 us, 0.001 to 1000 Gbit/s)"
        )
    };
    let (latency, rate) = text.split_once(',').ok_or_else(wrong)?;
    let latency_us: f64 = latency.trim().parse().map_err(|_| wrong())?;
    let gbit: f64 = rate.trim().parse().map_err(|_| wrong())?;
    if !(0.0..=1e6).contains(&latency_us) || !(0.001..=1000.0).contains(&gbit) {
        return Err(wrong());
    }
    Ok(LinkShape { latency_ns: (latency_us * 1e3) as u64, bytes_per_second: (gbit * 1e9 / 8.0) as u64 })
}

/// Opens links to nodes and to the broker. Each link to a node has the latency and bandwidth of `shape` for itself.
/// Links to the broker are not slowed down.
pub(crate) struct Emulated {
    machine: Arc<dyn Dialer>,
    shape: LinkShape,
}

impl Emulated {
    /// Returns a dialer that emulates links of this shape.
    pub(crate) fn host(exposure: Exposure, shape: LinkShape) -> Arc<dyn Dialer> {
        Arc::new(Emulated { machine: Sockets::dialer(exposure), shape })
    }
}

impl HostLayer for Emulated {
    fn inner(&self) -> &dyn Host {
        &*self.machine
    }
}

impl Dialer for Emulated {
    fn dial(&self, to: Dial<'_>, deadline: MonoNs) -> Result<Box<dyn Link>, LinkError> {
        let is_node = matches!(to, Dial::Node { .. });
        let link = self.machine.dial(to, deadline)?;
        Ok(if is_node { Box::new(Shaped::new(link, self.shape, RealPace)) } else { link })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_is_read_from_microseconds_and_gigabits() {
        let shape = LinkShape { latency_ns: 20_000, bytes_per_second: 1_250_000_000 };
        assert_eq!(parse_shape("20,10"), Ok(shape));
        assert_eq!(parse_shape("0.5,1").map(|shape| shape.latency_ns), Ok(500));
    }

    #[test]
    fn link_without_meaning_is_refused_with_an_example() {
        for text in ["", "20", "20,", "a,1", "-1,10", "20,0", "20,1e9", "NaN,1"] {
            assert!(parse_shape(text).is_err_and(|message| message.contains("20,10")), "{text:?}");
        }
    }
}
