//! Counts of a world, summed over many for the report.

use std::collections::BTreeMap;

/// What happened how often.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Virtual nanoseconds.
    pub virtual_ns: u64,
    /// Things that happened, each of them an event.
    pub events: u64,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Operations of clients by kind and whether they succeeded.
    pub operations: BTreeMap<(&'static str, bool), u64>,
    /// Errors clients got, by kind.
    pub errors: BTreeMap<String, u64>,
    /// Comparisons made by the oracle.
    pub checks: u64,
    /// Connections made.
    pub connections: u64,
    /// Copies and other steps in the middle of which others were let run.
    pub interrupts: u64,
    /// Bytes read and compared.
    pub bytes_compared: u64,
}

impl Tally {
    pub(crate) fn fault(&mut self, kind: &'static str) {
        *self.faults.entry(kind).or_default() += 1;
    }

    pub(crate) fn operation(&mut self, kind: &'static str, succeeded: bool) {
        *self.operations.entry((kind, succeeded)).or_default() += 1;
    }

    /// All faults together.
    pub fn fault_count(&self) -> u64 {
        self.faults.values().sum()
    }

    /// All operations together.
    pub fn operation_count(&self) -> u64 {
        self.operations.values().sum()
    }

    /// Operations that did not succeed.
    pub fn failures(&self) -> u64 {
        self.operations.iter().filter(|((_, succeeded), _)| !succeeded).map(|(_, count)| count).sum()
    }

    /// Simulated hours.
    pub fn hours(&self) -> f64 {
        self.virtual_ns as f64 / 3.6e12
    }

    /// Adds another world's counts.
    pub fn add(&mut self, other: &Tally) {
        self.virtual_ns += other.virtual_ns;
        self.events += other.events;
        self.checks += other.checks;
        self.connections += other.connections;
        self.interrupts += other.interrupts;
        self.bytes_compared += other.bytes_compared;
        for (kind, count) in &other.faults {
            *self.faults.entry(kind).or_default() += count;
        }
        for (kind, count) in &other.operations {
            *self.operations.entry(*kind).or_default() += count;
        }
        for (kind, count) in &other.errors {
            *self.errors.entry(kind.clone()).or_default() += count;
        }
    }
}
