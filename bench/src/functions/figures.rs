//! Results of `farpool bench functions`, as text and as JSON.

use super::beside;
use super::list::PAGE;
use super::row_groups;
use crate::harness::statistics::{median, quantiles};
use crate::{table, units};
use farpool::TransportChoice;
use farpool_host::waiting::Waiting;
use farpool_planner::break_even_accesses;
use serde_json::{Value, json};
use std::time::Duration;

/// Times of one kind of operation, such as calls of a native function or empty round trips.
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) times: Vec<Duration>,
}

impl Kind {
    pub(super) fn new(name: &'static str) -> Kind {
        Kind { name, times: Vec::new() }
    }

    pub(super) fn median_us(&self) -> f64 {
        median(self.times.iter().map(|time| time.as_secs_f64() * 1e6))
    }

    fn p99_us(&self) -> f64 {
        quantiles(&mut self.times.clone())[2]
    }
}

/// Results for one transport and one waiting mode.
pub(super) struct Point {
    pub(super) transport: TransportChoice,
    pub(super) way: Waiting,
    pub(super) kinds: Vec<Kind>,
    /// Time of each step of a long walk over the list, in ns, by kind of function. A step needs the result of the step
    /// before.
    pub(super) access_ns: Vec<(&'static str, f64)>,
    pub(super) scans: Vec<Scan>,
    pub(super) beside: Vec<beside::Beside>,
    pub(super) placed: Vec<row_groups::Placed>,
}

/// Speed of one scan. `gb_per_s` has the name of each form of the function (such as `native`) and its speed.
pub(super) struct Scan {
    pub(super) name: &'static str,
    pub(super) bytes: u64,
    pub(super) gb_per_s: Vec<(&'static str, f64)>,
}

pub(super) const EMPTY: &str = "empty round trip";
pub(super) const EMPTY_RESIDENT: &str = "empty round trip, node";

impl Point {
    fn empty_us(&self, kind: &Kind) -> f64 {
        let beside = if kind.name == "resident" { EMPTY_RESIDENT } else { EMPTY };
        self.kinds.iter().find(|other| other.name == beside).map_or(0.0, Kind::median_us)
    }

    /// Returns the least number of dependent accesses to far memory for which one call of this kind is faster than one
    /// page read per access. `None` if a call is never faster.
    fn break_even(&self, kind: &Kind) -> Option<u64> {
        let page_ns = self.kinds.iter().find(|other| other.name == PAGE)?.median_us() * 1e3;
        let local_ns = self.access_ns.first().map_or(110.0, |(_, ns)| *ns);
        break_even_accesses(kind.median_us() * 1e3, page_ns, local_ns)
    }

    pub(super) fn json(&self) -> Value {
        let kinds: Vec<Value> = self
            .kinds
            .iter()
            .map(|kind| {
                json!({
                    "kind": kind.name, "median_us": kind.median_us(), "p99_us": kind.p99_us(),
                    "beyond_empty_us": kind.median_us() - self.empty_us(kind), "calls": kind.times.len(),
                    "break_even_accesses": self.break_even(kind),
                })
            })
            .collect();
        let access: serde_json::Map<String, Value> =
            self.access_ns.iter().map(|(name, ns)| ((*name).to_owned(), json!(ns))).collect();
        let scan = |scan: &Scan| {
            let rates: serde_json::Map<String, Value> =
                scan.gb_per_s.iter().map(|(name, rate)| ((*name).to_owned(), json!(rate))).collect();
            json!({ "scan": scan.name, "bytes": scan.bytes, "gb_per_s": rates })
        };
        let scans: Vec<Value> = self.scans.iter().map(scan).collect();
        let pages_beside: Vec<Value> = self
            .beside
            .iter()
            .map(|beside::Beside { name, median_us, p99_us, calls }| {
                json!({ "beside": name, "median_us": median_us, "p99_us": p99_us, "calls": calls })
            })
            .collect();
        let placed = self.placed.iter().map(|row_groups::Placed { work, ms, chosen }| {
            let ms: serde_json::Map<String, Value> = row_groups::PLACEMENTS
                .iter()
                .zip(ms)
                .map(|((name, _), ms)| ((*name).to_owned(), json!(ms)))
                .collect();
            json!({ "work": work, "ms": ms, "chosen": chosen })
        });
        let placed: Vec<Value> = placed.collect();
        json!({
            "transport": format!("{:?}", self.transport).to_lowercase(), "waiting": self.way.word(), "kinds": kinds,
            "access_ns": access, "scans": scans, "pages_beside": pages_beside, "placed": placed,
        })
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let transport = format!("{:?}", self.transport).to_lowercase();
        let mut lines = vec![format!("{transport}, {}:", self.way.word())];
        let rows: Vec<Vec<String>> = self
            .kinds
            .iter()
            .map(|kind| {
                let is_call = ![EMPTY, EMPTY_RESIDENT, PAGE].contains(&kind.name);
                let beyond = kind.median_us() - self.empty_us(kind);
                let accesses = self.break_even(kind).map_or("never".to_owned(), |count| count.to_string());
                vec![
                    kind.name.to_owned(),
                    format!("{:.2}", kind.median_us()),
                    format!("{:.2}", kind.p99_us()),
                    if is_call { format!("{beyond:+.2}") } else { String::new() },
                    if is_call { accesses } else { String::new() },
                    kind.times.len().to_string(),
                ]
            })
            .collect();
        lines.extend(table::lines(
            &["call", "us", "p99", "beyond empty", "pays from accesses", "calls"],
            &rows,
        ));
        for (name, ns) in &self.access_ns {
            lines.push(format!("{name}: {ns:.1} ns for each dependent access"));
        }
        for beside::Beside { name, median_us, p99_us, calls } in &self.beside {
            let calls = if *calls > 0 { format!(", {calls} of them") } else { String::new() };
            lines.push(format!("{PAGE} beside {name}{calls}: {median_us:.2} us, p99 {p99_us:.2} us"));
        }
        for row_groups::Placed { work, ms, chosen } in &self.placed {
            let ways =
                row_groups::PLACEMENTS.iter().zip(ms).map(|((name, _), ms)| format!("{name} {ms:.2} ms"));
            let ways = ways.collect::<Vec<_>>().join(", ");
            lines.push(format!("{work} steps for each value of 16 MiB: {ways} (chose {chosen})"));
        }
        for Scan { name, bytes, gb_per_s } in &self.scans {
            let native = gb_per_s.last().map_or(f64::NAN, |(_, rate)| *rate);
            let rates: Vec<String> = gb_per_s
                .iter()
                .map(|(form, rate)| format!("{form} {rate:.1} GB/s ({:.2})", rate / native))
                .collect();
            lines.push(format!("{name} of {}: {}", units::show_bytes(*bytes), rates.join(", ")));
        }
        lines
    }
}
