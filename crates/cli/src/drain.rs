//! `farpool drain`: empties a node while the pool keeps working.
//!
//! The broker passes the order to the node. Sessions learn of it when they renew their leases, and move their own data.
//! Other nodes copy the published files, as the broker orders. A function that runs over a file is called again
//! elsewhere when its file has moved, so the command waits for running calls before it gives the order. After that the
//! node drains without it; it can be run again at any time.

use crate::exit::Failure;
use crate::units::show_bytes;
use crate::{Outcome, exposure, table, units};
use farpool::{NodeStatus, Pool, PoolOptions, RunningCall, shown, shown_lines};
use farpool_command::json::JsonLine;
use farpool_wire::control::{DrainNode, RepairsListed};
use farpool_wire::{Incarnation, Name, Term};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::io::Write;
use std::time::{Duration, Instant};

/// Empty a node: its data moves to other nodes, then its process ends.
#[derive(clap::Args)]
#[command(after_help = "Example:  farpool drain n1 --pool farpool://127.0.0.1:7700")]
pub(crate) struct Args {
    /// Name of the node
    node: String,
    /// Keep the process of the node running when it is empty
    #[arg(long)]
    keep_running: bool,
    /// Cancel a drain: take the node back into use
    #[arg(long, conflicts_with_all = ["keep_running", "timeout", "calls"])]
    cancel: bool,
    /// Stop waiting after this time; the node keeps draining
    #[arg(long, value_name = "TIME", value_parser = units::millis, default_value = "10m")]
    timeout: u32,
    /// How long to wait for function calls that already run on the node; then its files are moved, and the calls made
    /// again
    #[arg(long, value_name = "TIME", value_parser = units::millis, default_value = "30s")]
    calls: u32,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    exposure: exposure::ClientArgs,
}

/// Interval at which the status of the node is polled.
const LOOK: Duration = Duration::from_millis(100);
/// Interval of progress lines where no progress bar is shown.
const SAY_EVERY: Duration = Duration::from_secs(5);
/// Most calls that are named in one line.
const CALLS_NAMED: usize = 8;

pub(crate) fn run(args: &Args) -> Outcome {
    let name = Name::new(args.node.clone()).map_err(|error| {
        Failure::Usage(format!("{:?}: {error}; a node's name of 1 to 255 bytes is permitted", args.node))
    })?;
    let exposure = args.exposure.exposure()?;
    let options = PoolOptions {
        label: Some("farpool drain".into()),
        tls: exposure.tls.clone(),
        plaintext: exposure.plaintext,
        ..PoolOptions::default()
    };
    let pool = Pool::connect_with(&args.exposure.pool, options)?;
    let order = DrainNode { node: name, drain: !args.cancel, stop: !args.cancel && !args.keep_running };
    if args.cancel {
        pool.drain(&order)?;
        return finish(
            args,
            &format!("{} is in use again: its drain is cancelled", args.node),
            json!({ "state": "in use" }),
        );
    }
    Drain::begin(args, &order, &pool)?.watch()
}

fn finish(args: &Args, text: &str, mut figures: serde_json::Value) -> Outcome {
    let mut out = std::io::stdout().lock();
    if args.json {
        figures["node"] = json!(args.node);
        writeln!(out, "{}", JsonLine(&figures))?;
    } else {
        writeln!(out, "{}", shown_lines(text))?;
    }
    Ok(())
}

/// Memory in use on a node, in bytes.
#[derive(Clone, Copy, Default)]
struct Held {
    /// Bytes leased by sessions.
    leased: u64,
    /// Bytes of published files, and of sealed regions that are being published.
    named: u64,
    /// Bytes that were released and are not wiped yet.
    wiping: u64,
    sessions: u32,
}

impl Held {
    fn of(node: &NodeStatus) -> Held {
        let bytes = |regions: u32| u64::from(regions) * node.info.region_bytes;
        Held {
            leased: bytes(node.counts.leased),
            named: bytes(node.counts.named),
            wiping: bytes(node.counts.cleaning),
            sessions: node.counts.sessions,
        }
    }

    fn bytes(&self) -> u64 {
        self.leased + self.named + self.wiping
    }

    fn shown(&self) -> String {
        let (leased, named) = (show_bytes(self.leased), show_bytes(self.named));
        let mut shown = format!("{leased} of {} sessions and {named} of published files", self.sessions);
        if self.wiping > 0 {
            shown.push_str(&format!(", {} being wiped", show_bytes(self.wiping)));
        }
        shown
    }
}

/// Describes calls of functions, such as `2 calls (walk of client 00ff for 12 s, sum of tenant a for 3 s)`.
fn calls_shown(calls: &[RunningCall]) -> String {
    let one = |call: &RunningCall| {
        format!("{} of {} for {} s", shown(&call.function), shown(&call.caller), call.running_ms / 1_000)
    };
    let mut names: Vec<String> = calls.iter().take(CALLS_NAMED).map(one).collect();
    if calls.len() > CALLS_NAMED {
        names.push(format!("and {} more", calls.len() - CALLS_NAMED));
    }
    let plural = if calls.len() == 1 { "" } else { "s" };
    format!("{} call{plural} of functions ({})", calls.len(), names.join(", "))
}

/// State of the drain of one node, as this command sees it.
struct Drain<'a> {
    args: &'a Args,
    order: &'a DrainNode,
    pool: &'a Pool,
    /// Incarnation of the node when the drain began.
    incarnation: Incarnation,
    /// Term of the broker in its latest status report. Another term means that the broker restarted.
    term: Term,
    /// True once the node has reported that it is draining.
    has_heard: bool,
    /// Milliseconds since the last sign of life of the node. `None` if the broker counts the node as alive.
    silent_ms: Option<u64>,
    at_first: Held,
    now: Held,
    /// Calls of functions that the order waits for: those that had begun before this command. `None` once the order is
    /// given.
    calls: Option<Vec<RunningCall>>,
    /// Calls of functions that were still running when the time of `--calls` was over.
    ended_calls: Vec<RunningCall>,
    /// Copies of published files that the pool still lacks.
    repairs: Option<RepairsListed>,
    bar: ProgressBar,
    begun: Instant,
    said: Instant,
}

impl<'a> Drain<'a> {
    fn begin(args: &'a Args, order: &'a DrainNode, pool: &'a Pool) -> Result<Drain<'a>, Failure> {
        let report = pool.status()?;
        let Some(node) = report.nodes.iter().find(|node| node.info.name == order.node) else {
            return Err(Failure::Refused(format!(
                "there is no node {} in this pool; farpool status lists the nodes",
                args.node
            )));
        };
        let at_first = Held::of(node);
        let bar = if args.json { ProgressBar::hidden() } else { ProgressBar::new(at_first.bytes()) };
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {msg}") {
            bar.set_style(style);
        }
        let (incarnation, term) = (node.info.incarnation, report.term);
        Ok(Drain {
            args,
            order,
            pool,
            incarnation,
            term,
            has_heard: false,
            silent_ms: None,
            at_first,
            now: at_first,
            calls: Some(Vec::new()),
            ended_calls: Vec::new(),
            repairs: None,
            bar,
            begun: Instant::now(),
            said: Instant::now(),
        })
    }

    /// Waits until the node is empty and, unless `--keep-running` is given, has ended.
    fn watch(mut self) -> Outcome {
        let timeout = Duration::from_millis(self.args.timeout.into());
        loop {
            if let Some(state) = self.look()? {
                return self.report(state);
            }
            if self.begun.elapsed() >= timeout {
                return self.give_up();
            }
            if self.bar.is_hidden() && self.said.elapsed() >= SAY_EVERY {
                self.said = Instant::now();
                self.say(&format!("waiting for {}", self.waits_for()));
            }
            // Nothing wakes this thread when other processes (sessions) move their data, so it polls the node's status.
            std::thread::park_timeout(LOOK);
        }
    }

    /// Reads the status of the node. Returns its final state, or `None` while the drain goes on.
    fn look(&mut self) -> Result<Option<&'static str>, Failure> {
        let name = &self.args.node;
        let report = self.pool.status()?;
        let Some(node) = report.nodes.iter().find(|node| node.info.name == self.order.node) else {
            // The broker forgets a node that ended after a drain. A broker that has just restarted does not know its
            // nodes yet.
            if report.term != self.term {
                return Ok(None);
            }
            self.now = Held::default();
            return Ok(Some("ended"));
        };
        if node.info.incarnation != self.incarnation {
            return Err(Failure::Refused(format!(
                "node {name} was restarted during the drain: it is in use again, and the bytes it held are gone"
            )));
        }
        if self.has_heard && !node.draining {
            return Err(Failure::Refused(format!("node {name} was taken back into use during the drain")));
        }
        self.look_at_calls()?;
        if self.calls.is_some() {
            return Ok(None);
        }
        if !self.has_heard && report.term != self.term {
            // The broker restarted before it had passed the order to the node.
            self.pool.drain(self.order)?;
        }
        self.has_heard |= node.draining;
        self.term = report.term;
        self.silent_ms = (!node.alive).then_some(node.heard_ms_ago);
        self.now = Held::of(node);
        // A broker of an earlier version does not say.
        self.repairs = self.pool.repairs().ok();
        let left = self.now.bytes();
        self.bar.set_length(self.bar.length().unwrap_or(0).max(left));
        self.bar.set_position(self.bar.length().unwrap_or(0) - left);
        self.bar.set_message(format!("left: {}", self.waits_for()));
        // A node that has not got the order yet may still lease a region that the broker has promised, so it does not
        // count as empty.
        let is_over = left == 0 && (self.has_heard || !node.alive);
        Ok(match (is_over, self.order.stop, node.alive) {
            (true, false, _) => Some("empty"),
            (true, true, false) => Some("ended"),
            _ => None,
        })
    }

    /// Updates the calls that are waited for. Gives the order when there are none, or when `--calls` is over.
    fn look_at_calls(&mut self) -> Outcome {
        if self.calls.is_none() {
            return Ok(());
        }
        let waited_ms = self.begun.elapsed().as_millis() as u64;
        // A node of an earlier release does not report its running calls, so they are not waited for.
        let mut calls =
            self.pool.running_calls(&self.args.node).map_or(Vec::new(), |told| told.calls.to_vec());
        calls.retain(|call| call.running_ms >= waited_ms);
        if !calls.is_empty() && waited_ms < self.args.calls.into() {
            self.calls = Some(calls);
            return Ok(());
        }
        self.pool.drain(self.order)?;
        self.calls = None;
        if !calls.is_empty() {
            self.say(&format!("ending {}: the files that they run over are moved now", calls_shown(&calls)));
            self.ended_calls = calls;
        }
        Ok(())
    }

    fn waits_for(&self) -> String {
        let mut shown = String::new();
        if let Some(calls) = self.calls.as_ref().filter(|calls| !calls.is_empty()) {
            shown.push_str(&calls_shown(calls));
            shown.push_str(", ");
        }
        shown.push_str(&self.now.shown());
        match &self.repairs {
            Some(repairs) if repairs.leaving_files > 0 => {
                let copying: u64 = repairs.under_way.iter().map(|repair| repair.bytes).sum();
                let (left, copying) = (show_bytes(repairs.leaving_bytes), show_bytes(copying));
                shown.push_str(&format!("; other nodes have {left} to copy and are copying {copying}"));
            }
            None if self.now.named > 0 => shown.push_str(
                "; the broker is of an earlier version, under which only the farpool drain of that version moves \
                 published files",
            ),
            _ => {}
        }
        if let Some(ms) = self.silent_ms {
            shown.push_str(&format!("; the node has not reported for {} s", ms / 1_000));
        }
        shown
    }

    /// Prints a line on standard error, above the progress bar if there is one.
    fn say(&self, what: &str) {
        let line = format!("farpool drain: node {}: {what}", self.args.node);
        self.bar.suspend(|| drop(writeln!(std::io::stderr(), "{line}")));
    }

    fn moved_bytes(&self) -> u64 {
        self.at_first.named.saturating_sub(self.now.named)
    }

    fn figures(&self, state: &str) -> serde_json::Value {
        let calls = |calls: &[RunningCall]| -> Vec<serde_json::Value> {
            let one = |call: &RunningCall| {
                let RunningCall { function, caller, running_ms } = call;
                json!({ "function": **function, "caller": **caller, "running_ms": running_ms })
            };
            calls.iter().map(one).collect()
        };
        json!({
            "state": state,
            "leased_bytes_at_first": self.at_first.leased,
            "named_bytes_at_first": self.at_first.named,
            "moved_file_bytes": self.moved_bytes(),
            "leased_bytes": self.now.leased,
            "named_bytes": self.now.named,
            "sessions": self.now.sessions,
            "running_calls": calls(self.calls.as_deref().unwrap_or_default()),
            "ended_calls": calls(&self.ended_calls),
            "took_ms": self.begun.elapsed().as_millis() as u64,
        })
    }

    fn report(&self, state: &str) -> Outcome {
        self.bar.finish_and_clear();
        let header = ["node", "state", "was leased", "was published", "files moved", "took"];
        let row = vec![
            self.args.node.clone(),
            state.to_owned(),
            show_bytes(self.at_first.leased),
            show_bytes(self.at_first.named),
            show_bytes(self.moved_bytes()),
            format!("{:.1} s", self.begun.elapsed().as_secs_f64()),
        ];
        finish(self.args, &table::lines(&header, &[row]).join("\n"), self.figures(state))
    }

    fn give_up(&self) -> Outcome {
        self.bar.finish_and_clear();
        if self.args.json {
            finish(self.args, "", self.figures(if self.calls.is_some() { "in use" } else { "draining" }))?;
        }
        let state = match self.calls {
            Some(_) => "It is in use as before: run this again",
            None => {
                "It is still draining: run this again to continue, or with --cancel to take it back into use"
            }
        };
        Err(Failure::Refused(format!(
            "node {} is not empty after {:.0} s: it has {}. {state}",
            self.args.node,
            self.begun.elapsed().as_secs_f64(),
            self.waits_for()
        )))
    }
}
