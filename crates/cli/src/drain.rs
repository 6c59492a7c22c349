//! `farpool drain`: empties a node while the pool goes on.
//!
//! The broker says so to the node; sessions hear it with their renewals and move what they have there. What
//! belongs to names is moved from here. This command asks, moves, watches, and can be run again at any time:
//! a node that was told to drain stays so without it.

use crate::exit::Failure;
use crate::units::show_bytes;
use crate::{Outcome, reach, table, units};
use farpool::{NodeStatus, Pool, PoolOptions};
use farpool_transport::{LinkError, Machine, Reach, is_not_leader};
use farpool_wire::control::DrainNode;
use farpool_wire::{Code, Incarnation, Name, Request, Term};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Empty a node: its holders move away, and its process ends once nothing is left.
#[derive(clap::Args)]
#[command(after_help = "Example:  farpool drain n1 --pool farpool://127.0.0.1:7700")]
pub(crate) struct Args {
    /// The node, by its name
    node: String,
    /// The pool
    #[arg(long, value_name = "farpool://HOST:PORT", default_value = "farpool://127.0.0.1:7700")]
    pool: String,
    /// Leave its process running, empty
    #[arg(long)]
    keep_running: bool,
    /// Take it back into use instead
    #[arg(long, conflicts_with_all = ["keep_running", "timeout"])]
    cancel: bool,
    /// Give up waiting after this; the node stays draining
    #[arg(long, value_name = "TIME", value_parser = units::millis, default_value = "10m")]
    timeout: u32,
    /// For machines: one JSON object at the end
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: reach::ClientArgs,
}

/// The broker must answer within this.
const BROKER_PATIENCE_MS: u64 = 5_000;
/// Time between two looks at the node.
const LOOK: Duration = Duration::from_millis(100);
/// Files that are left behind, or are published there still, are moved again after this.
const MOVE_AGAIN: Duration = Duration::from_millis(500);

pub(crate) fn run(args: &Args) -> Outcome {
    let name = Name::new(args.node.clone()).map_err(|error| {
        Failure::Usage(format!("{:?}: {error}; a node's name of 1 to 255 bytes is permitted", args.node))
    })?;
    let reach = args.reach.reach()?;
    let order = DrainNode { node: name, drain: !args.cancel, stop: !args.cancel && !args.keep_running };
    if args.cancel {
        ask(args, &reach, &order)?;
        return finish(args, &format!("{} is in use again", args.node), json!({ "state": "in use" }));
    }
    let options = PoolOptions {
        label: Some("farpool drain".into()),
        tls: reach.tls.clone(),
        plaintext: reach.plaintext,
        ..PoolOptions::default()
    };
    let pool = Pool::connect_with(&args.pool, options)?;
    ask(args, &reach, &order)?;
    Drain::begin(args, &reach, &order, &pool)?.watch()
}

/// Tells the broker.
fn ask(args: &Args, reach: &Reach, order: &DrainNode) -> Outcome {
    let host = Machine::host(reach.clone());
    let brokers = reach::brokers_of("--pool", &args.pool, reach)?;
    let deadline = host.now().plus_ms(BROKER_PATIENCE_MS);
    let ask = || {
        let answer = brokers
            .dial(&*host, deadline)
            .and_then(|mut link| link.call(&Request::Drain(order.clone()), brokers.until(&*host, deadline)));
        brokers.heard(&answer);
        answer
    };
    // Whoever leads is one of them.
    let mut answer = ask();
    for _ in 1..brokers.count() {
        match answer {
            Err(error) if is_not_leader(&error) || !error.link_survives() => answer = ask(),
            _ => break,
        }
    }
    match answer {
        Ok(_) => Ok(()),
        Err(LinkError::Refused { refusal, .. }) => Err(Failure::Refused(match refusal.code {
            Code::NoNodes => {
                format!("no node is called {} in this pool; farpool status lists those there are", args.node)
            }
            Code::NotPermitted => {
                "only the administrator may drain a node: use the certificate of admin.farpool".into()
            }
            _ => format!("broker {brokers}: {refusal}"),
        })),
        Err(error) => Err(Failure::Failed(format!("broker {brokers}: {error}"))),
    }
}

fn finish(args: &Args, text: &str, mut figures: serde_json::Value) -> Outcome {
    let mut out = std::io::stdout().lock();
    if args.json {
        figures["node"] = json!(args.node);
        writeln!(out, "{figures}")?;
    } else {
        writeln!(out, "{text}")?;
    }
    Ok(())
}

/// What lies on a node, in bytes.
#[derive(Clone, Copy, Default)]
struct Held {
    /// Of sessions.
    leased: u64,
    /// Of published files, or sealed on its way there.
    named: u64,
    /// Given back, and not wiped yet.
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

/// Moves published files, beside whoever watches. It is not waited for when the time is over: what was being
/// moved stays where it was.
struct Mover {
    go: Sender<()>,
    done: Receiver<Result<u64, farpool::Error>>,
    is_moving: bool,
    idle_since: Instant,
    /// What the last try failed of.
    failure: Option<farpool::Error>,
    moved_bytes: u64,
    /// Of the try that is under way.
    moving_bytes: Arc<AtomicU64>,
}

impl Mover {
    fn start(pool: &Pool, node: &str) -> Result<Mover, Failure> {
        let (go, ordered) = channel();
        let (finished, done) = channel();
        let moving_bytes = Arc::new(AtomicU64::new(0));
        let (pool, node, moving) = (pool.clone(), node.to_owned(), Arc::clone(&moving_bytes));
        std::thread::Builder::new()
            .name("farpool-mover".into())
            .spawn(move || {
                while ordered.recv().is_ok() {
                    let (mut file, mut before, mut of_file) = (String::new(), 0, 0);
                    let moved = pool.evacuate(&node, |name, bytes| {
                        if file != name {
                            (file, before) = (name.to_owned(), before + of_file);
                        }
                        of_file = bytes;
                        moving.store(before + of_file, Ordering::Relaxed);
                    });
                    if finished.send(moved).is_err() {
                        return;
                    }
                }
            })
            .map_err(Failure::failed)?;
        let idle_since = Instant::now() - MOVE_AGAIN;
        Ok(Mover { go, done, is_moving: false, idle_since, failure: None, moved_bytes: 0, moving_bytes })
    }

    /// Begins if there is something to move, and takes note of what ended.
    fn look(&mut self, has_files: bool) {
        while let Ok(result) = self.done.try_recv() {
            self.is_moving = false;
            self.idle_since = Instant::now();
            self.moving_bytes.store(0, Ordering::Relaxed);
            match result {
                Ok(bytes) => (self.failure, self.moved_bytes) = (None, self.moved_bytes + bytes),
                Err(error) => self.failure = Some(error),
            }
        }
        if has_files && !self.is_moving && self.idle_since.elapsed() >= MOVE_AGAIN {
            self.is_moving = self.go.send(()).is_ok();
        }
    }

    fn moved_bytes(&self) -> u64 {
        self.moved_bytes + self.moving_bytes.load(Ordering::Relaxed)
    }
}

/// A node on its way to being empty.
struct Drain<'a> {
    args: &'a Args,
    reach: &'a Reach,
    order: &'a DrainNode,
    pool: &'a Pool,
    /// The life of the node that is emptied, and that of the broker that showed it last.
    incarnation: Incarnation,
    term: Term,
    /// Whether the node has said that it is draining.
    has_heard: bool,
    /// Milliseconds since the node was heard of, if that is too long.
    silent_ms: Option<u64>,
    at_first: Held,
    now: Held,
    mover: Mover,
    bar: ProgressBar,
    begun: Instant,
}

impl<'a> Drain<'a> {
    fn begin(
        args: &'a Args,
        reach: &'a Reach,
        order: &'a DrainNode,
        pool: &'a Pool,
    ) -> Result<Drain<'a>, Failure> {
        let report = pool.status()?;
        let Some(node) = report.nodes.iter().find(|node| node.info.name == order.node) else {
            return Err(Failure::Refused(format!("node {} has left the pool", args.node)));
        };
        let at_first = Held::of(node);
        let bar = if args.json { ProgressBar::hidden() } else { ProgressBar::new(at_first.bytes()) };
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {msg}") {
            bar.set_style(style);
        }
        let (incarnation, term) = (node.info.incarnation, report.term);
        let mover = Mover::start(pool, &args.node)?;
        Ok(Drain {
            args,
            reach,
            order,
            pool,
            incarnation,
            term,
            has_heard: false,
            silent_ms: None,
            at_first,
            now: at_first,
            mover,
            bar,
            begun: Instant::now(),
        })
    }

    /// Until nothing is left and, if it was told to end, the node has.
    fn watch(mut self) -> Outcome {
        let timeout = Duration::from_millis(self.args.timeout.into());
        loop {
            if let Some(state) = self.look()? {
                return self.report(state);
            }
            if self.begun.elapsed() >= timeout {
                return self.give_up();
            }
            // Nothing of this process rings when another one moves.
            std::thread::park_timeout(LOOK);
        }
    }

    /// What became of the node, if it is over.
    fn look(&mut self) -> Result<Option<&'static str>, Failure> {
        let name = &self.args.node;
        let report = self.pool.status()?;
        let Some(node) = report.nodes.iter().find(|node| node.info.name == self.order.node) else {
            // The broker forgets a node that has ended as it was told to. One that has just started itself
            // does not know its nodes yet.
            if report.term != self.term {
                return Ok(None);
            }
            self.now = Held::default();
            return Ok(Some("ended"));
        };
        if node.info.incarnation != self.incarnation {
            return Err(Failure::Refused(format!(
                "node {name} was started again meanwhile: its new life is in use, and empty of what lay there"
            )));
        }
        if self.has_heard && !node.draining {
            return Err(Failure::Refused(format!("node {name} was taken back into use meanwhile")));
        }
        if !self.has_heard && report.term != self.term {
            // The broker was started again before the node had heard of it.
            ask(self.args, self.reach, self.order)?;
        }
        self.has_heard |= node.draining;
        self.term = report.term;
        self.silent_ms = (!node.alive).then_some(node.heard_ms_ago);
        self.now = Held::of(node);
        self.mover.look(self.now.named > 0);
        let left = self.now.bytes();
        self.bar.set_length(self.bar.length().unwrap_or(0).max(left));
        self.bar.set_position(self.bar.length().unwrap_or(0) - left);
        self.bar.set_message(format!("left: {}", self.now.shown()));
        // Before it has heard of it, it may still turn a promise into a lease.
        let is_over = left == 0 && (self.has_heard || !node.alive) && !self.mover.is_moving;
        Ok(match (is_over, self.order.stop, node.alive) {
            (true, false, _) => Some("empty"),
            (true, true, false) => Some("ended"),
            _ => None,
        })
    }

    fn figures(&self, state: &str) -> serde_json::Value {
        json!({
            "state": state,
            "leased_bytes_at_first": self.at_first.leased,
            "named_bytes_at_first": self.at_first.named,
            "moved_file_bytes": self.mover.moved_bytes(),
            "leased_bytes": self.now.leased,
            "named_bytes": self.now.named,
            "sessions": self.now.sessions,
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
            show_bytes(self.mover.moved_bytes()),
            format!("{:.1} s", self.begun.elapsed().as_secs_f64()),
        ];
        finish(self.args, &table::lines(&header, &[row]).join("\n"), self.figures(state))
    }

    fn give_up(&self) -> Outcome {
        self.bar.finish_and_clear();
        if self.args.json {
            finish(self.args, "", self.figures("draining"))?;
        }
        let mut why = String::new();
        if let Some(ms) = self.silent_ms {
            why.push_str(&format!("; it has not been heard of for {} s", ms / 1000));
        }
        if let Some(error) = &self.mover.failure {
            why.push_str(&format!("; moving files failed: {error}"));
        }
        Err(Failure::Refused(format!(
            "node {} still holds {} after {:.0} s{why}. It stays draining: run this again to wait on, or with \
             --cancel to take it back into use",
            self.args.node,
            self.now.shown(),
            self.begun.elapsed().as_secs_f64()
        )))
    }
}
