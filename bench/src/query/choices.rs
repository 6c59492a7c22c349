//! Results of `farpool bench place` for each query and link.
//!
//! Fetch evaluates a query at the client, ship at the node, and split at both. These are forced placements. With auto,
//! the planner chooses one of them.

use serde_json::{Value, json};

/// Results of one query over one link.
pub(crate) struct Cell {
    pub(crate) name: String,
    /// Median seconds of fetch, ship, split and auto.
    pub(crate) seconds: [f64; 4],
    pub(crate) all_seconds: [Vec<f64>; 4],
    /// Seconds of the first run with auto, before the planner knew any costs.
    pub(crate) first_seconds: f64,
    pub(crate) first_report: String,
    /// Name of the forced placement with the shortest median time.
    pub(crate) best: &'static str,
    /// Placement that the planner chose most often. `choices` has the number of times that it chose each placement.
    pub(crate) chosen: &'static str,
    pub(crate) choices: [(&'static str, usize); 3],
    /// Medians of the seconds that the planner expected for fetch, ship and split.
    pub(crate) expected_seconds: [f64; 3],
    pub(crate) link_bytes: f64,
    pub(crate) report: String,
}

/// Results of all queries over one link.
pub(crate) struct Run {
    pub(crate) link: String,
    pub(crate) bytes: u64,
    pub(crate) rounds: usize,
    pub(crate) machine: String,
    pub(crate) cpus: usize,
    pub(crate) cells: Vec<Cell>,
}

const PLACEMENTS: [&str; 3] = ["fetch", "ship", "split"];

impl Cell {
    /// Returns the median seconds of the fastest forced placement.
    pub(crate) fn best_seconds(&self) -> f64 {
        self.seconds[..3].iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// Returns the median time of auto divided by that of the fastest forced placement.
    pub(crate) fn over_best(&self) -> f64 {
        self.seconds[3] / self.best_seconds()
    }

    /// Returns the cost of the planner's choices relative to the fastest forced placement. Each choice counts with the
    /// median time of the same placement when it was forced. The result is the loss by wrong choices alone, without the
    /// variation between runs.
    pub(crate) fn choice_over_best(&self) -> f64 {
        let count: usize = self.choices.iter().map(|(_, count)| count).sum();
        let of = |name: &str| {
            PLACEMENTS.iter().position(|placement| *placement == name).map_or(0.0, |at| self.seconds[at])
        };
        let sum: f64 = self.choices.iter().map(|(name, count)| of(name) * *count as f64).sum();
        sum / count.max(1) as f64 / self.best_seconds()
    }

    /// Returns the seconds that the planner expected for the placement it chose.
    pub(crate) fn expected(&self) -> f64 {
        PLACEMENTS
            .iter()
            .position(|placement| *placement == self.chosen)
            .map_or(0.0, |at| self.expected_seconds[at])
    }

    fn json(&self) -> Value {
        let [fetch, ship, split, auto] = self.seconds;
        let [of_fetch, of_ship, of_split] = self.expected_seconds;
        let [all_fetch, all_ship, all_split, all_auto] = &self.all_seconds;
        let choices: serde_json::Map<String, Value> =
            self.choices.iter().map(|(name, count)| ((*name).to_owned(), json!(count))).collect();
        json!({
            "query": self.name, "best": self.best, "chosen": self.chosen, "choices": choices,
            "seconds": { "fetch": fetch, "ship": ship, "split": split, "auto": auto },
            "all_seconds": { "fetch": all_fetch, "ship": all_ship, "split": all_split, "auto": all_auto },
            "expected_seconds": { "fetch": of_fetch, "ship": of_ship, "split": of_split },
            "first_seconds": self.first_seconds, "first_report": self.first_report,
            "auto_over_best": self.over_best(), "choice_over_best": self.choice_over_best(), "link_bytes": self.link_bytes, "report": self.report,
        })
    }
}

/// Returns the results as JSON.
pub(crate) fn json(runs: &[Run]) -> Value {
    let run = |run: &Run| {
        json!({
            "link": run.link, "bytes": run.bytes, "rounds": run.rounds, "machine": run.machine,
            "cpus": run.cpus, "cells": run.cells.iter().map(Cell::json).collect::<Vec<_>>(),
        })
    };
    json!({ "runs": runs.iter().map(run).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_over_the_best_is_that_of_the_best_forced_placement() {
        let cell = Cell {
            name: "select-1%".to_owned(),
            seconds: [0.4, 0.1, 0.2, 0.105],
            all_seconds: [vec![0.4], vec![0.1], vec![0.2], vec![0.105]],
            first_seconds: 0.13,
            first_report: "first".to_owned(),
            best: "ship",
            chosen: "ship",
            choices: [("fetch", 1), ("ship", 4), ("split", 0)],
            expected_seconds: [0.41, 0.11, 0.2],
            link_bytes: 1e6,
            report: "auto, ship".to_owned(),
        };
        assert!((cell.over_best() - 1.05).abs() < 1e-9 && (cell.expected() - 0.11).abs() < 1e-9);
        assert!((cell.choice_over_best() - 1.6).abs() < 1e-9, "four of 0.1 and one of 0.4");
    }
}
