//! Counts of a world. A report sums them over many worlds.

use std::collections::BTreeMap;

/// Counts of what happened.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Simulated time in ns.
    pub virtual_ns: u64,
    /// Number of events.
    pub events: u64,
    /// Number of faults of each kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Number of clients' operations, by kind and by whether they succeeded.
    pub operations: BTreeMap<(&'static str, bool), u64>,
    /// Number of errors that clients got, by kind.
    pub errors: BTreeMap<String, u64>,
    /// Number of comparisons made by the oracle.
    pub checks: u64,
    /// Number of connections made.
    pub connections: u64,
    /// Number of times that other tasks ran in the middle of a copy or another step.
    pub interrupts: u64,
    /// Number of bytes that were read and compared.
    pub bytes_compared: u64,
}

impl Tally {
    pub(crate) fn fault(&mut self, kind: &'static str) {
        *self.faults.entry(kind).or_default() += 1;
    }

    pub(crate) fn operation(&mut self, kind: &'static str, succeeded: bool) {
        *self.operations.entry((kind, succeeded)).or_default() += 1;
    }

    /// Returns the number of all faults.
    pub fn fault_count(&self) -> u64 {
        self.faults.values().sum()
    }

    /// Returns the number of all operations.
    pub fn operation_count(&self) -> u64 {
        self.operations.values().sum()
    }

    /// Returns the number of operations that failed.
    pub fn failures(&self) -> u64 {
        self.operations.iter().filter(|((_, succeeded), _)| !succeeded).map(|(_, count)| count).sum()
    }

    /// Returns the simulated time in hours.
    pub fn hours(&self) -> f64 {
        self.virtual_ns as f64 / 3.6e12
    }

    /// Adds the counts of another world.
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
