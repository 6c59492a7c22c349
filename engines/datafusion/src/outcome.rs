//! What the steps of a scan have done, all together.

use farpool::table::Report;
use farpool_lock::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;

/// Adds reports up.
#[derive(Debug, Default)]
pub struct Outcome {
    sum: Mutex<Option<Sum>>,
}

/// Of all steps so far.
#[derive(Clone, Debug, PartialEq)]
pub struct Sum {
    /// Steps.
    pub steps: usize,
    /// The reports as one: what can be added is, and of the rest it is the last one.
    pub report: Report,
    /// Steps that were done in each way: fetched, shipped, split.
    pub ways: BTreeMap<&'static str, usize>,
    /// What all steps together were expected to take in the way that was taken: steps of one scan may be under way at
    /// the same time.
    pub expected: Duration,
}

impl Sum {
    fn of(report: &Report) -> Sum {
        let expected = report.estimates.as_ref().map_or(Duration::ZERO, |all| all.of(report.chosen).time);
        Sum { steps: 1, report: report.clone(), ways: BTreeMap::from([(report.chosen.name(), 1)]), expected }
    }
}

impl Outcome {
    /// Counts a step.
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

    /// All of it so far; nothing before the first step.
    pub fn sum(&self) -> Option<Sum> {
        self.sum.lock().clone()
    }
}
