//! Sum of the reports of a scan's steps. A step is a query over a few row groups of the scan.

use farpool::table::Report;
use farpool_lock::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;

/// Collects the reports of the steps of a scan. Threads may share it.
#[derive(Debug, Default)]
pub struct ScanReports {
    sum: Mutex<Option<Sum>>,
}

/// Sum over all steps so far.
#[derive(Clone, Debug, PartialEq)]
pub struct Sum {
    /// Number of steps.
    pub steps: usize,
    /// Merged report of the steps. Its numbers are sums; its other fields are those of the last step.
    pub report: Report,
    /// Number of steps by placement: fetched, shipped, split.
    pub ways: BTreeMap<&'static str, usize>,
    /// Sum of the estimated times of all steps, each for the placement that was chosen for it. Steps of one scan may
    /// run at the same time, so this can exceed the elapsed time.
    pub expected: Duration,
}

impl Sum {
    fn of(report: &Report) -> Sum {
        let expected = report.estimates.as_ref().map_or(Duration::ZERO, |all| all.of(report.chosen).time);
        Sum { steps: 1, report: report.clone(), ways: BTreeMap::from([(report.chosen.name(), 1)]), expected }
    }
}

impl ScanReports {
    /// Adds the report of a step.
    pub(crate) fn add(&self, report: &Report) {
        let step = Sum::of(report);
        let mut sum = self.sum.lock();
        match &mut *sum {
            None => *sum = Some(step),
            Some(sum) => {
                sum.steps += 1;
                sum.expected += step.expected;
                step.ways.into_iter().for_each(|(way, steps)| *sum.ways.entry(way).or_default() += steps);
                sum.report.add(report);
            }
        }
    }

    /// Returns the sum so far; `None` before the first step.
    pub fn sum(&self) -> Option<Sum> {
        self.sum.lock().clone()
    }
}
