//! `farpool top`: a live view of a pool in a terminal.
//!
//! [`screen`] is pure: it compares two reports and returns lines. The rest reads keys and draws.

use crate::exit::Failure;
use crate::signals::Stop;
use crate::units::show_bytes;
use crate::{Outcome, exposure, pool_args, status, table, units};
use console::Term;
use farpool::{NodeStatus, StatusReport};
use nix::sys::termios::{self, LocalFlags, SetArg, SpecialCharacterIndices, Termios};
use std::io::{self, IsTerminal, Read, Write};
use std::time::{Duration, Instant};

/// Columns of the bar that shows how full the pool is.
const BAR_COLUMNS: usize = 40;
/// Tenths of a second that reading a key waits, so that signals and refreshes come in time.
const KEY_WAIT_TENTHS: u8 = 1;

/// Show a pool live: memory, traffic per second, sessions and tenants. Needs a terminal.
#[derive(clap::Args)]
#[command(after_help = "Keys:  m, t or n sorts nodes by memory, traffic or name; q or Ctrl-C quits\n\
    Example:  farpool top --pool farpool://127.0.0.1:7700")]
pub(crate) struct Args {
    #[command(flatten)]
    exposure: exposure::ClientArgs,
    /// Time between two refreshes
    #[arg(long, value_name = "TIME", value_parser = units::millis, default_value = "1s")]
    interval: u32,
}

/// Order of the nodes on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    /// Nodes with most memory in use first.
    Memory,
    /// Nodes with most bytes per second first.
    Traffic,
    Name,
}

/// A report, and when it was received.
struct Look {
    at: Instant,
    report: StatusReport,
}

pub(crate) fn run(args: &Args) -> Outcome {
    if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        return Err(Failure::Usage(
            "farpool top needs a terminal; farpool status --watch writes to files and pipes as well".into(),
        ));
    }
    let mut stop = Stop::catch()?;
    let pool = pool_args::open(&args.exposure, "farpool top")?;
    let look = || -> Result<Look, Failure> { Ok(Look { at: Instant::now(), report: pool.status()? }) };
    let interval = Duration::from_millis(args.interval.into());
    let (mut before, mut now) = (None, look()?);
    let mut sort = Sort::Memory;
    let terminal = KeyByKey::enter()?;
    loop {
        terminal.draw(&screen(before.as_ref(), &now, sort, Term::stdout().size()))?;
        let due = now.at + interval;
        loop {
            if stop.has_come() {
                return Ok(());
            }
            match terminal.key()? {
                Some(b'q' | b'Q') => return Ok(()),
                Some(b'm') => sort = Sort::Memory,
                Some(b't') => sort = Sort::Traffic,
                Some(b'n') => sort = Sort::Name,
                _ if Instant::now() < due => continue,
                _ => {
                    before = Some(std::mem::replace(&mut now, look()?));
                }
            }
            break;
        }
    }
}

/// Terminal that passes on each key at once and shows a screen of its own. Dropping it restores what was there.
struct KeyByKey {
    before: Termios,
}

impl KeyByKey {
    fn enter() -> Result<KeyByKey, Failure> {
        let before = termios::tcgetattr(io::stdin()).map_err(Failure::failed)?;
        let mut keys = before.clone();
        // Ctrl-C and Ctrl-Z remain signals.
        keys.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO);
        keys.control_chars[SpecialCharacterIndices::VMIN as usize] = 0;
        keys.control_chars[SpecialCharacterIndices::VTIME as usize] = KEY_WAIT_TENTHS;
        termios::tcsetattr(io::stdin(), SetArg::TCSANOW, &keys).map_err(Failure::failed)?;
        let terminal = KeyByKey { before };
        // The alternate screen, without a cursor.
        terminal.write("\x1b[?1049h\x1b[?25l")?;
        Ok(terminal)
    }

    /// Waits a moment for a key. Returns `None` if there was none.
    fn key(&self) -> io::Result<Option<u8>> {
        let mut key = [0];
        match io::stdin().lock().read(&mut key) {
            Ok(0) => Ok(None),
            Ok(_) => Ok(Some(key[0])),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Replaces what the screen shows. Lines are written over the old ones, so that nothing flickers.
    fn draw(&self, lines: &[String]) -> io::Result<()> {
        let mut text = String::from("\x1b[H");
        for line in lines {
            text.push_str(line);
            text.push_str("\x1b[K\r\n");
        }
        text.push_str("\x1b[J");
        self.write(&text)
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

impl Drop for KeyByKey {
    fn drop(&mut self) {
        // The terminal may be gone, and then nothing has to be restored.
        let _ = self.write("\x1b[?25h\x1b[?1049l");
        let _ = termios::tcsetattr(io::stdin(), SetArg::TCSANOW, &self.before);
    }
}

/// Traffic of one node since the look before.
#[derive(Clone, Copy, Default)]
struct Rates {
    read_bytes: f64,
    write_bytes: f64,
    ops: f64,
    refused_ops: f64,
}

impl Rates {
    /// Returns rates per second; zeros if the node was not there before, or was another life of its process.
    fn of(node: &NodeStatus, before: Option<&Look>, now: Instant) -> Rates {
        let old = before.and_then(|look| {
            let same = |one: &&NodeStatus| one.info.incarnation == node.info.incarnation;
            Some((look.report.nodes.iter().find(same)?, look.at))
        });
        let Some((old, at)) = old else { return Rates::default() };
        let seconds = now.saturating_duration_since(at).as_secs_f64();
        let rate =
            |old: u64, new: u64| if seconds > 0.0 { new.saturating_sub(old) as f64 / seconds } else { 0.0 };
        let (old, new) = (&old.traffic, &node.traffic);
        Rates {
            read_bytes: rate(old.read_bytes, new.read_bytes),
            write_bytes: rate(old.write_bytes, new.write_bytes),
            ops: rate(old.read_ops + old.write_ops, new.read_ops + new.write_ops),
            refused_ops: rate(old.refused_ops, new.refused_ops),
        }
    }
}

/// Bytes of a node's memory that are in use: leased or published.
fn used(node: &NodeStatus) -> u64 {
    (u64::from(node.counts.leased) + u64::from(node.counts.named)) * node.info.region_bytes
}

/// Returns the lines of the screen, at most as many as it has (`size`: lines and columns).
fn screen(before: Option<&Look>, now: &Look, sort: Sort, size: (u16, u16)) -> Vec<String> {
    let (height, columns) = (usize::from(size.0), usize::from(size.1));
    let report = &now.report;
    let alive = || report.nodes.iter().filter(|node| node.alive);
    let sum = |regions: fn(&NodeStatus) -> u32| -> u64 {
        alive().map(|node| u64::from(regions(node)) * node.info.region_bytes).sum()
    };
    let (leased, named, free) =
        (sum(|node| node.counts.leased), sum(|node| node.counts.named), sum(|node| node.counts.free));
    let all = leased + named + free + sum(|node| node.counts.cleaning);
    let filled = (BAR_COLUMNS as u64 * (leased + named)).checked_div(all).unwrap_or(0) as usize;
    let mut lines = vec![
        format!(
            "broker term {} | {} of {} nodes up | {} sessions | {} published files, {}",
            report.term,
            alive().count(),
            report.nodes.len(),
            report.sessions,
            report.files,
            show_bytes(report.file_bytes),
        ),
        format!(
            "memory [{}{}] leased {} | published {} | free {}",
            "#".repeat(filled),
            "-".repeat(BAR_COLUMNS - filled),
            show_bytes(leased),
            show_bytes(named),
            show_bytes(free),
        ),
        String::new(),
    ];
    let mut nodes: Vec<(&NodeStatus, Rates)> =
        report.nodes.iter().map(|node| (node, Rates::of(node, before, now.at))).collect();
    nodes.sort_by(|(one, of_one), (other, of_other)| {
        let by_name = one.info.name.cmp(&other.info.name);
        let bytes = |rates: &Rates| rates.read_bytes + rates.write_bytes;
        match sort {
            Sort::Memory => used(other).cmp(&used(one)).then(by_name),
            Sort::Traffic => bytes(of_other).total_cmp(&bytes(of_one)).then(by_name),
            Sort::Name => by_name,
        }
    });
    let row = |(node, rates): &(&NodeStatus, Rates)| {
        let size = |regions: u32| show_bytes(u64::from(regions) * node.info.region_bytes);
        vec![
            node.info.name.to_string(),
            status::state(node),
            size(node.counts.leased),
            size(node.counts.named),
            size(node.counts.free),
            node.counts.sessions.to_string(),
            format!("{}/s", show_bytes(rates.read_bytes as u64)),
            format!("{}/s", show_bytes(rates.write_bytes as u64)),
            format!("{:.0}", rates.ops),
            format!("{:.0}", rates.refused_ops),
        ]
    };
    let header = [
        "node",
        "state",
        "leased",
        "published",
        "free",
        "sessions",
        "tcp read",
        "tcp written",
        "ops/s",
        "refused/s",
    ];
    match nodes.is_empty() {
        true => lines.push("No node has joined.".into()),
        false => {
            lines.extend(table::lines_within(&header, &nodes.iter().map(row).collect::<Vec<_>>(), columns))
        }
    }
    if !report.tenants.is_empty() {
        lines.push(String::new());
        lines.extend(table::lines_within(&status::TENANTS, &status::tenants(report), columns));
    }
    // The cursor stands below the last line.
    lines.truncate(height.saturating_sub(1));
    lines.iter_mut().for_each(|line| *line = line.chars().take(columns).collect());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use farpool_wire::control::{NodeInfo, RegionCounts, TenantStatus, Traffic};
    use farpool_wire::{Incarnation, List, Name, NodeId, Term, Text};

    fn node(name: &str, life: u64, leased: u32, read_bytes: u64) -> NodeStatus {
        NodeStatus {
            info: NodeInfo {
                node: NodeId(life),
                name: Name::new(name).expect("a name"),
                incarnation: Incarnation(life),
                address: Text::new("127.0.0.1:7701").expect("a text"),
                shm_socket: Text::default(),
                host_boot: 1,
                host_label: Name::new("host").expect("a name"),
                region_bytes: 1 << 20,
            },
            alive: true,
            draining: false,
            heard_ms_ago: 0,
            present_ms: 1,
            counts: RegionCounts { free: 100 - leased, leased, ..RegionCounts::default() },
            traffic: Traffic { read_ops: read_bytes >> 10, read_bytes, ..Traffic::default() },
        }
    }

    fn look(at: Instant, nodes: Vec<NodeStatus>) -> Look {
        let tenants = vec![TenantStatus {
            tenant: Name::new("sales").expect("a name"),
            held_bytes: 1 << 30,
            promised_bytes: 0,
            quota_bytes: 0,
        }];
        let report = StatusReport {
            term: Term(3),
            sessions: 2,
            files: 0,
            file_bytes: 0,
            tickets_open: 0,
            nodes: List::new(nodes).expect("few nodes"),
            tenants: List::new(tenants).expect("few tenants"),
        };
        Look { at, report }
    }

    #[test]
    fn rates_are_of_the_time_between_two_looks() {
        let begun = Instant::now();
        let before = look(begun, vec![node("a", 1, 10, 0), node("b", 2, 90, 0)]);
        let now =
            look(begun + Duration::from_secs(2), vec![node("a", 1, 10, 8 << 20), node("b", 3, 90, 8 << 20)]);
        let lines = screen(Some(&before), &now, Sort::Name, (50, 120));
        assert!(lines[5].contains("4 MiB/s") && lines[5].contains("4096"), "{lines:#?}");
        assert!(lines[6].contains("0 B/s"), "another life of a node has no rates yet: {lines:#?}");
        assert!(lines.last().is_some_and(|line| line.contains("sales")), "{lines:#?}");
    }

    #[test]
    fn nodes_are_sorted_by_each_key() {
        let begun = Instant::now();
        let before = look(begun, vec![node("a", 1, 10, 0), node("b", 2, 90, 0)]);
        let now =
            look(begun + Duration::from_secs(1), vec![node("a", 1, 10, 5 << 20), node("b", 2, 90, 1 << 20)]);
        for (sort, first) in [(Sort::Memory, "b"), (Sort::Traffic, "a"), (Sort::Name, "a")] {
            let lines = screen(Some(&before), &now, sort, (50, 120));
            assert!(lines[5].starts_with(first), "{sort:?}: {lines:#?}");
        }
    }

    #[test]
    fn screen_never_exceeds_the_terminal() {
        let now = look(Instant::now(), (0..30).map(|id| node(&format!("node-{id}"), id, 5, 0)).collect());
        for size in [(24, 80), (10, 40), (1, 1), (0, 0), (60, 200)] {
            let lines = screen(None, &now, Sort::Memory, size);
            assert!(lines.len() < usize::from(size.0).max(1), "{size:?}");
            assert!(lines.iter().all(|line| line.chars().count() <= usize::from(size.1)), "{size:?}");
        }
    }
}
