//! Tests of tickets that must not be redeemed. Each is brought over TCP to a node in a process of its own. The node
//! refuses it with the code of its reason; this changes nothing, and the next valid ticket works.

use crate::processes::Process;
use crate::programs::PATIENCE;
use crate::raw_client::*;
use farpool_broker::stores::MemoryStore;
use farpool_broker::{Broker, LeaseSettings};
use farpool_transport::{Exposure, Identity, Link, Tls, TlsFiles, tcp};
use farpool_wire::control::*;
use farpool_wire::*;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const REGIONS: u64 = 8;

/// Way to a pool as one client sees it: the broker's address, and TLS settings.
struct Client {
    broker: String,
    exposure: Exposure,
}

impl Lessor for Client {
    fn broker_link(&self) -> Box<dyn Link> {
        tcp::connect(&self.exposure, &self.broker, &Identity::Broker, soon()).expect("the broker")
    }
}

impl Client {
    fn plain(url: &str) -> Client {
        Client { broker: url.trim_start_matches("farpool://").to_owned(), exposure: Exposure::default() }
    }

    fn of_tenant(url: &str, tls: Tls) -> Client {
        Client { exposure: Exposure { tls: Some(tls), plaintext: false }, ..Client::plain(url) }
    }

    fn status(&self) -> StatusReport {
        match self.broker_link().call(&Request::Status(Done {}), soon()) {
            Ok(Reply::Status(status)) => status,
            other => panic!("a status is answered by {other:?}"),
        }
    }

    fn node(&self, name: &str) -> NodeStatus {
        let status = self.status();
        let node = status.nodes.iter().find(|node| &*node.info.name == name);
        node.unwrap_or_else(|| panic!("{name} is in the pool: {status:?}")).clone()
    }

    fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}; {:?}", self.status());
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    fn link(&self, name: &str) -> Box<dyn Link> {
        let info = self.node(name).info;
        tcp::connect(&self.exposure, &info.address, &Identity::Node(info.node), soon()).expect("the node")
    }

    /// Returns the node's current counts of regions by state. Provokes a refusal first: once the node has reported that
    /// refusal, it has also reported everything before it.
    fn counts(&self, name: &str) -> RegionCounts {
        let before = self.node(name).traffic.refused_ops;
        let nobody =
            Grant { region: Default::default(), epoch: Default::default(), handle: Default::default() };
        let refusal = refused(read(&mut *self.link(name), &nobody, 0, 1));
        assert!(matches!(refusal, Code::StaleEpoch | Code::WrongHandle), "{refusal:?}");
        self.until("the node reports", || self.node(name).traffic.refused_ops > before);
        // The number of regions locked in memory changes by itself, so it is not compared.
        RegionCounts { locked: 0, ..self.node(name).counts }
    }

    /// Asserts that a node refuses these tickets with this code, and that its counts of regions do not change.
    fn is_refused(&self, name: &str, tickets: &[Ticket], code: Code) {
        let before = self.counts(name);
        let mut link = self.link(name);
        for ticket in tickets {
            assert_eq!(refused(redeem(&mut *link, ticket)), code, "{ticket:?}");
        }
        assert_eq!(self.counts(name), before, "a refusal costs nothing");
    }

    /// Checks that a valid ticket still works: leases a region with it, writes, reads, and releases it.
    fn good_ticket_works(&self, name: &str) {
        let before = self.counts(name);
        let (session, mut link) = (RawSession::open(self), self.link(name));
        let ticket = self.ticket_of(&session, name);
        let grants = redeem(&mut *link, &ticket).expect("a good ticket");
        write(&mut *link, &grants[0], 5, b"good").expect("a write");
        assert_eq!(read(&mut *link, &grants[0], 5, 4).expect("a read"), b"good");
        session.release_all(&mut *link).expect("given back");
        let counts = || RegionCounts { locked: 0, ..self.node(name).counts };
        self.until("all is as before", || counts() == before);
    }

    /// Returns a ticket for a region of this node. The broker chooses the node of a ticket, so it is asked until it
    /// chooses this one.
    fn ticket_of(&self, session: &RawSession, name: &str) -> Ticket {
        let (wanted, mut broker) = (self.node(name).info.node, self.broker_link());
        let ticket = (0..REGIONS).find_map(|_| {
            let ticket = session.ticket(&mut *broker, 1).expect("a ticket");
            (ticket.node == wanted).then_some(ticket)
        });
        ticket.unwrap_or_else(|| panic!("{REGIONS} tickets, and none for {name}"))
    }
}

fn node_at(name: &str, url: &str, more: &[&str]) -> Process {
    let memory = format!("{REGIONS}MiB");
    let args = ["node", "--name", name, "--memory", &memory, "--region-size", "1MiB", "--broker", url];
    Process::start(&[&args, more].concat())
}

fn one_node(more: &[&str]) -> (Process, Process, Client) {
    let broker = Process::start(&[&["broker", "--listen", "127.0.0.1:0"], more].concat());
    let (node, client) = (node_at("one", &broker.ready, &[]), Client::plain(&broker.ready));
    (broker, node, client)
}

/// Returns `count` copies of the ticket. In each, `turn` has flipped another bit of one number.
fn bits(ticket: &Ticket, count: u32, turn: impl Fn(&mut Ticket, u32)) -> Vec<Ticket> {
    let turned = (0..count).map(|bit| {
        let mut ticket = ticket.clone();
        turn(&mut ticket, bit);
        ticket
    });
    turned.collect()
}

#[test]
fn ticket_with_any_bit_turned_over_is_forged_and_the_one_it_was_made_from_is_good() {
    let (_broker, _node, client) = one_node(&[]);
    let (session, mut link) = (RawSession::open(&client), client.link("one"));
    let good = client.ticket_of(&session, "one");
    let other_class = FileClass::ALL.into_iter().filter(|class| *class != good.class);
    let other_tenant =
        ["loca", "locak", "locall", "red", "admin"].map(|name| Name::new(name).expect("a name"));
    for forged in [
        bits(&good, 64, |ticket, bit| ticket.id.0 ^= 1 << bit),
        bits(&good, 64, |ticket, bit| ticket.term.0 ^= 1 << bit),
        bits(&good, 64, |ticket, bit| ticket.session.0 ^= 1 << bit),
        bits(&good, 128, |ticket, bit| ticket.secret_digest ^= 1 << bit),
        bits(&good, 64, |ticket, bit| ticket.node.0 ^= 1 << bit),
        bits(&good, 32, |ticket, bit| ticket.region_count ^= 1 << bit),
        other_class.map(|class| Ticket { class, ..good.clone() }).collect(),
        other_tenant.map(|tenant| Ticket { tenant, ..good.clone() }).to_vec(),
        bits(&good, 64, |ticket, bit| ticket.not_after_ms ^= 1 << bit),
        bits(&good, 256, |ticket, bit| ticket.mac[bit as usize / 8] ^= 1 << (bit % 8)),
    ] {
        client.is_refused("one", &forged, Code::TicketForged);
    }
    // The incarnation is checked before the signature, because another life of the node has another key.
    let other_life = bits(&good, 64, |ticket, bit| ticket.incarnation.0 ^= 1 << bit);
    client.is_refused("one", &other_life, Code::WrongIncarnation);
    client.good_ticket_works("one");
    assert_eq!(redeem(&mut *link, &good).expect("nobody has spent it").len(), 1);
}

#[test]
fn ticket_for_another_node_is_forged_here_and_good_there() {
    let (broker, _one, client) = one_node(&[]);
    let _two = node_at("two", &broker.ready, &[]);
    client.until("both are there", || client.status().nodes.iter().filter(|node| node.alive).count() == 2);
    for (meant, other) in [("one", "two"), ("two", "one")] {
        let session = RawSession::open(&client);
        let ticket = client.ticket_of(&session, meant);
        client.is_refused(other, std::slice::from_ref(&ticket), Code::TicketForged);
        let relabelled = Ticket { node: client.node(other).info.node, ..ticket.clone() };
        client.is_refused(other, &[relabelled], Code::WrongIncarnation);
        let as_its_own = Ticket {
            node: client.node(other).info.node,
            incarnation: client.node(other).info.incarnation,
            ..ticket.clone()
        };
        client.is_refused(other, &[as_its_own], Code::TicketForged);
        client.good_ticket_works(other);
        assert_eq!(redeem(&mut *client.link(meant), &ticket).expect("where it belongs").len(), 1);
    }
}

#[test]
fn ticket_redeemed_twice_gives_the_same_region_and_is_spent_once_that_is_given_back() {
    let (_broker, _node, client) = one_node(&[]);
    let (session, mut link) = (RawSession::open(&client), client.link("one"));
    let ticket = client.ticket_of(&session, "one");
    let grants = redeem(&mut *link, &ticket).expect("the first time");
    write(&mut *link, &grants[0], 0, b"mine").expect("a write");
    assert_eq!(client.counts("one").leased, 1);
    // The answer may have been lost: the ticket comes again, over the same connection and over another.
    assert_eq!(redeem(&mut *link, &ticket).expect("the second time"), grants);
    assert_eq!(redeem(&mut *client.link("one"), &ticket).expect("the third time"), grants);
    assert_eq!(client.counts("one").leased, 1);
    assert_eq!(read(&mut *link, &grants[0], 0, 4).expect("it holds on"), b"mine");
    // The ticket stays spent even when its region is free again.
    session.release_all(&mut *link).expect("given back");
    client.until("it is free", || u64::from(client.node("one").counts.free) == REGIONS);
    client.is_refused("one", &[ticket], Code::TicketSpent);
    client.good_ticket_works("one");
}

#[test]
fn ticket_of_an_earlier_life_of_the_node_says_so() {
    let (broker, node, client) = one_node(&[]);
    let session = RawSession::open(&client);
    let ticket = client.ticket_of(&session, "one");
    let before = client.node("one").info;
    node.kill();
    let _again = node_at("one", &broker.ready, &["--listen", &before.address]);
    let now = client.node("one").info;
    assert_eq!((now.node, &now.address), (before.node, &before.address));
    assert_ne!(now.incarnation, before.incarnation);
    client.is_refused("one", std::slice::from_ref(&ticket), Code::WrongIncarnation);
    client.is_refused("one", &[Ticket { incarnation: now.incarnation, ..ticket }], Code::TicketForged);
    client.good_ticket_works("one");
}

#[test]
fn ticket_of_a_dead_broker_is_good_until_the_node_has_heard_of_its_successor() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path().join("broker.redb").display().to_string();
    let (broker, _node, client) = one_node(&["--store", &store]);
    let session = RawSession::open(&client);
    let [first, second] = [(), ()].map(|()| client.ticket_of(&session, "one"));
    let (mut link, url) = (client.link("one"), broker.ready.clone());
    broker.kill();
    assert_eq!(redeem(&mut *link, &first).expect("nobody needs the broker for this").len(), 1);
    session.release_all(&mut *link).expect("given back");

    let listen = url.trim_start_matches("farpool://");
    let _again = Process::start(&["broker", "--listen", listen, "--store", &store]);
    client.until("the node has come back", || {
        let status = client.status();
        status.term > first.term && status.nodes.iter().any(|node| node.alive)
    });
    client.is_refused("one", &[second, first], Code::OldTerm);
    client.good_ticket_works("one");
}

#[test]
fn ticket_whose_time_is_over_is_expired() {
    let settings = LeaseSettings { ticket_ttl_ms: 300, heartbeat_ms: 100, ..LeaseSettings::default() };
    let (loopback, store) = (([127, 0, 0, 1], 0).into(), Box::new(MemoryStore::default()));
    // This broker runs in the test's process because it needs a shorter time to live of tickets. The command gives each
    // ticket 10 s.
    let broker = Broker::start(loopback, &Exposure::default(), settings, store).expect("a broker");
    let url = format!("farpool://{}", broker.address());
    let (_node, client) = (node_at("one", &url, &[]), Client::plain(&url));
    let session = RawSession::open(&client);
    let ticket = client.ticket_of(&session, "one");
    // Waits until the broker counts the ticket as expired. A node that was asked earlier would redeem it.
    client.until("the ticket's time is over", || client.status().tickets_open == 0);
    client.is_refused("one", std::slice::from_ref(&ticket), Code::TicketExpired);
    client.good_ticket_works("one");
    client.is_refused("one", &[ticket], Code::TicketExpired);
}

fn tls_of(folder: &Path, stem: &str) -> Tls {
    Tls::load(&TlsFiles::in_folder(folder, stem)).expect("a good certificate")
}

#[test]
fn ticket_of_another_tenant_is_refused_and_stays_good_for_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().display().to_string();
    let init = ["certs", "init", &dir, "--node", "one", "--tenant", "red", "--tenant", "blue"];
    let made = crate::programs::output(Command::new(crate::processes::binary()).args(init));
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let broker = Process::start(&["broker", "--listen", "127.0.0.1:0", "--certs", &dir]);
    let _node = node_at("one", &broker.ready, &["--certs", &dir]);
    let [red, blue] = ["tenant-red", "tenant-blue"]
        .map(|stem| Client::of_tenant(&broker.ready, tls_of(folder.path(), stem)));
    let session = RawSession::open(&blue);
    let ticket = blue.ticket_of(&session, "one");
    assert_eq!(&*ticket.tenant, "blue");
    red.is_refused("one", std::slice::from_ref(&ticket), Code::WrongTenant);
    // A ticket whose tenant was changed does not match its signature any more.
    let renamed = Ticket { tenant: Name::new("red").expect("a name"), ..ticket.clone() };
    red.is_refused("one", &[renamed], Code::TicketForged);
    // Not even the administrator can redeem the ticket of a tenant.
    let admin = Client::of_tenant(&broker.ready, tls_of(folder.path(), "admin"));
    admin.is_refused("one", std::slice::from_ref(&ticket), Code::WrongTenant);
    red.good_ticket_works("one");
    let mut link = blue.link("one");
    let grants = redeem(&mut *link, &ticket).expect("its own");
    // A tenant cannot use another's session, even if it knows the secret.
    let mut theirs = red.link("one");
    assert_eq!(refused(session.renew(&mut *theirs)), Code::WrongTenant);
    assert_eq!(refused(session.release_all(&mut *theirs)), Code::WrongTenant);
    write(&mut *link, &grants[0], 0, b"blue").expect("it holds on");
}
