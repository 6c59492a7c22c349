//! `farpool bench leases`: tickets per second, and the time to set up a lease.
//!
//! A ticket is the broker's promise of memory on a node. With the ticket, the node grants a lease on regions of its
//! memory, which the client may then write. The time of a lease begins with the request for its ticket. Broker and node
//! are separate processes. They get single messages over loopback, without the client library.

use crate::exit::Failure;
use crate::harness::machine::machine;
use crate::harness::pools::wait_quiet;
use crate::harness::processes::{Server, start};
use crate::{Outcome, table};
use farpool_host::Host;
use farpool_transport::shm::ShmSpace;
use farpool_transport::{Dial, Dialer, Exposure, Link, Sockets};
use farpool_wire::control::*;
use farpool_wire::{FileClass, List, MonoNs, Name, Reply, Request};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
#[command(after_help = "Example:  farpool bench leases --tickets 4000")]
pub(crate) struct LeaseArgs {
    /// Tickets to request per round, for one region each
    #[arg(long, default_value_t = 4_000)]
    tickets: u32,
    /// Leases to set up and release per round
    #[arg(long, default_value_t = 1_000)]
    leases: u32,
    /// Rounds; the median is shown
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const TICKETS_MAX: u32 = 4_000;
const REGION_BYTES: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn run(args: &LeaseArgs) -> Outcome {
    if !(1..=TICKETS_MAX).contains(&args.tickets)
        || !(1..=1_000_000).contains(&args.leases)
        || !(1..=100).contains(&args.rounds)
    {
        return Err(Failure::Usage(format!(
            "--tickets {} --leases {} --rounds {}: 1 to {TICKETS_MAX} tickets, 1 to 1000000 leases and 1 to 100 \
             rounds are permitted",
            args.tickets, args.leases, args.rounds
        )));
    }
    let bar = ProgressBar::new(args.rounds as u64 * 3);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    let (mut tickets, mut tcp, mut shm) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        // Each round starts a new pool: the memory of a ticket that was not exchanged for a lease stays reserved until
        // the ticket expires.
        let mut pool = Pool::start(&[])?;
        bar.set_message("leases over tcp");
        pool.wait_quiet()?;
        tcp.extend(pool.leases(args.leases, Over::Tcp)?);
        bar.inc(1);
        bar.set_message("leases over shm");
        pool.wait_quiet()?;
        shm.extend(pool.leases(args.leases, Over::Shm)?);
        bar.inc(1);
        bar.set_message("tickets");
        pool.wait_quiet()?;
        tickets.push(pool.tickets(args.tickets)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    tickets.sort_unstable_by(f64::total_cmp);
    let per_second = tickets[tickets.len() / 2];
    let quantile = |times: &mut Vec<Duration>, share: f64| {
        times.sort_unstable();
        times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6
    };
    let tcp = (quantile(&mut tcp, 0.5), quantile(&mut tcp, 0.99));
    let shm = (quantile(&mut shm, 0.5), quantile(&mut shm, 0.99));
    let mut out = std::io::stdout().lock();
    if args.json {
        let lease = |(p50, p99): (f64, f64)| json!({ "p50_us": p50, "p99_us": p99 });
        let figures = json!({
            "machine": machine(), "rounds": args.rounds, "tickets_per_second": per_second,
            "lease_tcp": lease(tcp), "lease_shm": lease(shm),
        });
        writeln!(out, "{figures}")?;
        return Ok(());
    }
    let row =
        |what: &str, p50: f64, p99: f64| vec![what.to_owned(), format!("{p50:.0}"), format!("{p99:.0}")];
    let rows = [
        row("ticket and lease of 1 MiB, over tcp", tcp.0, tcp.1),
        row("ticket and lease of 1 MiB, over shm", shm.0, shm.1),
    ];
    for line in table::lines(&["set-up", "p50 us", "p99 us"], &rows) {
        writeln!(out, "{line}")?;
    }
    writeln!(out)?;
    writeln!(
        out,
        "{per_second:.0} tickets a second for one asker, median of {} rounds. {}",
        args.rounds,
        machine()
    )?;
    writeln!(
        out,
        "Over shm each lease has a memory file of its own, which the node makes in advance if it can."
    )?;
    Ok(())
}

/// Broker and node that were started for the benchmark, and a session with them. On drop, the node ends before the
/// broker.
pub(crate) struct Pool {
    node: Server,
    _broker: Server,
    host: Arc<dyn Dialer>,
    broker: Box<dyn Link>,
    proof: SessionProof,
}

/// Transport between this process and the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    Tcp,
    /// Shared memory.
    Shm,
}

fn soon(host: &dyn Host) -> MonoNs {
    host.now().plus_ms(10_000)
}

fn asked(link: &mut dyn Link, host: &dyn Host, request: &Request) -> Result<Reply, Failure> {
    link.call(request, soon(host)).map_err(Failure::failed)
}

fn unexpected(reply: &Reply) -> Failure {
    Failure::Failed(format!("an unexpected answer: {:?}", reply.opcode()))
}

impl Pool {
    /// Starts a broker and a node and opens a session. `node_flags` are further flags of the node.
    pub(crate) fn start(node_flags: &[&str]) -> Result<Pool, Failure> {
        let (broker, url) = start(&["broker", "--listen", "127.0.0.1:0"])?;
        // The 4 GiB are only address space: a region takes memory when it is leased.
        let fixed = ["--name", "bench", "--memory", "4GiB", "--region-size", "1MiB", "--no-reserve"];
        let memory = ["--no-prefault", "--no-lock"];
        let (node, _) =
            start(&[&["node", "--broker", &url][..], &fixed[..], &memory[..], node_flags].concat())?;
        let host = Sockets::dialer(Exposure::default());
        let address = url.trim_start_matches("farpool://").to_owned();
        let mut link =
            host.dial(Dial::Broker { address: &address }, soon(&*host)).map_err(Failure::failed)?;
        let label = Name::new("farpool bench").map_err(Failure::failed)?;
        let open = OpenSession { resume: Default::default(), secret: Default::default(), label };
        let proof = match asked(&mut *link, &*host, &Request::OpenSession(open))? {
            Reply::OpenSession(opened) => SessionProof { session: opened.session, secret: opened.secret },
            other => return Err(unexpected(&other)),
        };
        Ok(Pool { node, _broker: broker, host, broker: link, proof })
    }

    /// Waits until the node has prepared memory for coming leases and wiped the released regions. That work takes CPU
    /// time from the broker and this process.
    pub(crate) fn wait_quiet(&self) -> Result<(), Failure> {
        wait_quiet(&[self.node.pid()], PATIENCE)
    }

    fn ticket(&mut self) -> Result<TicketOffer, Failure> {
        let request = RequestTickets {
            session: self.proof.session,
            secret: self.proof.secret,
            bytes: REGION_BYTES,
            class: FileClass::Scratch,
            near: 0,
            avoid: List::default(),
            apart: List::default(),
        };
        match asked(&mut *self.broker, &*self.host, &Request::RequestTickets(request))? {
            Reply::RequestTickets(tickets) => tickets
                .tickets
                .iter()
                .next()
                .cloned()
                .ok_or_else(|| Failure::failed("the broker promised nothing")),
            other => Err(unexpected(&other)),
        }
    }

    /// Requests tickets one after another and never exchanges them for leases. Returns the tickets per second.
    fn tickets(&mut self, count: u32) -> Result<f64, Failure> {
        let begun = Instant::now();
        for _ in 0..count {
            self.ticket()?;
        }
        Ok(f64::from(count) / begun.elapsed().as_secs_f64())
    }

    /// Opens a link to the node.
    pub(crate) fn dial_node(&mut self, over: Over) -> Result<Box<dyn Link>, Failure> {
        let first = self.ticket()?;
        let space: Arc<ShmSpace> = Arc::default();
        let to = match over {
            Over::Shm => Dial::Local { socket: &first.node.shm_socket, space: &space },
            Over::Tcp => Dial::Node { address: &first.node.address, node: first.node.node },
        };
        self.host.dial(to, soon(&*self.host)).map_err(Failure::failed)
    }

    /// Sets up leases and returns the time of each. They are released outside the timed part.
    fn leases(&mut self, count: u32, over: Over) -> Result<Vec<Duration>, Failure> {
        let host = Arc::clone(&self.host);
        let mut node = self.dial_node(over)?;
        let shared = over == Over::Shm;
        let mut times = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let begun = Instant::now();
            let ticket = self.ticket()?.ticket;
            let leased = match asked(&mut *node, &*host, &Request::Lease(Lease { ticket, shared }))? {
                Reply::Lease(leased) => leased,
                other => return Err(unexpected(&other)),
            };
            times.push(begun.elapsed());
            let at = leased.grants.iter().map(|grant| RegionAt { region: grant.region, epoch: grant.epoch });
            let release = Release {
                session: self.proof.session,
                secret: self.proof.secret,
                whole: false,
                regions: List::new(at.collect()).map_err(Failure::failed)?,
            };
            asked(&mut *node, &*host, &Request::Release(release))?;
        }
        Ok(times)
    }
}
