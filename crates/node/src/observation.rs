//! State of a node for whoever watches it, and what it has seen of its host's memory.

use crate::pressure::{Pressure, Sample};
use farpool_transport::times::OperationTime;
use farpool_wire::control::{RegionCounts, Traffic};

/// State of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    /// True once a broker has registered the node.
    pub joined: bool,
    /// True if the node is being emptied.
    pub draining: bool,
    /// Bytes of a region.
    pub region_bytes: u64,
    /// Regions by state.
    pub counts: RegionCounts,
    /// Regions that the host needs and that are not given back yet.
    pub surplus_regions: u32,
    /// Counters of what was served.
    pub traffic: Traffic,
    /// Memory of the host, and what it has asked back.
    pub pressure: PressureSeen,
    /// Time of the operations that were served.
    pub times: Vec<OperationTime>,
}

/// Memory of the host as the node has seen it last, and what the host has asked back so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PressureSeen {
    /// Tightest limit. `None` if no sample was taken yet.
    pub tightest: Option<Tightest>,
    /// Times that memory was asked back from holders first.
    pub gradual: u64,
    /// Times that there was no time to ask.
    pub emergencies: u64,
    /// Bytes asked back, all times together.
    pub asked_back_bytes: u64,
}

/// Limit of this process's memory that leaves the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tightest {
    /// Total bytes.
    pub total_bytes: u64,
    /// Bytes that are free or easily dropped.
    pub available_bytes: u64,
    /// Bytes that the node keeps available.
    pub reserve_bytes: u64,
}

impl PressureSeen {
    /// Notes a sample of the host's memory.
    pub(crate) fn note(&mut self, sample: &Sample, pressure: &Pressure) {
        let limits = sample.spaces.iter().map(|space| Tightest {
            total_bytes: space.total_bytes,
            available_bytes: space.available_bytes,
            reserve_bytes: pressure.reserve_of(space),
        });
        let left = |limit: &Tightest| i128::from(limit.available_bytes) - i128::from(limit.reserve_bytes);
        self.tightest = limits.min_by_key(left);
    }

    /// Notes that the host has asked bytes back.
    pub(crate) fn note_asked(&mut self, bytes: u64, is_emergency: bool) {
        *(if is_emergency { &mut self.emergencies } else { &mut self.gradual }) += 1;
        self.asked_back_bytes = self.asked_back_bytes.saturating_add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pressure::BoundedMemory;

    #[test]
    fn tightest_limit_is_the_one_with_the_least_beyond_its_reserve() {
        let space = |total_bytes, available_bytes| BoundedMemory { total_bytes, available_bytes };
        let mut seen = PressureSeen::default();
        let sample =
            Sample { spaces: vec![space(100, 50), space(80, 20), space(1_000, 30)], stalled_us: None };
        seen.note(&sample, &Pressure::new(Some(40)));
        let tightest = Tightest { total_bytes: 80, available_bytes: 20, reserve_bytes: 40 };
        assert_eq!(seen.tightest, Some(tightest));
        seen.note_asked(7, true);
        seen.note_asked(5, false);
        assert_eq!((seen.gradual, seen.emergencies, seen.asked_back_bytes), (1, 1, 12));
    }
}
