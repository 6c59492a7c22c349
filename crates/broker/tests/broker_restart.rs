//! A broker with a store in a file stops and starts again, while it is asked over loopback (invariant I5: a published
//! name survives a crash of the broker).

use farpool_broker::stores::RedbStore;
use farpool_broker::{Broker, LeaseSettings};
use farpool_host::clock;
use farpool_lease::ticket::node_id;
use farpool_transport::{Exposure, Identity, Link, LinkError, tcp};
use farpool_wire::control::*;
use farpool_wire::limits::REGION_BYTES_MIN;
use farpool_wire::*;
use std::path::Path;

fn start(path: &Path) -> Broker {
    let store = RedbStore::open(path).expect("the store opens");
    let loopback = ([127, 0, 0, 1], 0).into();
    Broker::start(loopback, &Exposure::default(), LeaseSettings::default(), Box::new(store))
        .expect("the broker starts")
}

struct Asker(Box<dyn Link>);

impl Asker {
    fn of(broker: &Broker) -> Asker {
        let (address, deadline) = (broker.address().to_string(), clock::now().plus_ms(5_000));
        Asker(tcp::connect(&Exposure::default(), &address, &Identity::Broker, deadline).expect("connects"))
    }

    fn ask(&mut self, request: Request) -> Result<Reply, Code> {
        self.0.call(&request, clock::now().plus_ms(5_000)).map_err(|error| match error {
            LinkError::Refused { refusal, .. } => refusal.code,
            other => panic!("{other}"),
        })
    }

    fn open_session(&mut self, resume: SessionId, secret: Secret) -> Result<SessionOpened, Code> {
        let label = Name::new("client").expect("a name");
        match self.ask(Request::OpenSession(OpenSession { resume, secret, label }))? {
            Reply::OpenSession(opened) => Ok(opened),
            other => panic!("{other:?}"),
        }
    }

    fn open_name(&mut self, name: &Name) -> Result<Opened, Code> {
        match self.ask(Request::OpenName(ByName { name: name.clone() }))? {
            Reply::OpenName(opened) => Ok(opened),
            other => panic!("{other:?}"),
        }
    }

    /// Reports to the broker as a node with two regions: one that belongs to `owner`, and one that the session `by` is
    /// about to publish. Returns the broker's ruling: which regions the node keeps, and which it drops.
    fn present_node(&mut self, owner: RegionOwner, by: SessionId) -> Ruling {
        let name = Name::new("donor").expect("a name");
        let info = NodeInfo {
            node: node_id("donor"),
            name: name.clone(),
            incarnation: Incarnation(1),
            address: Text::default(),
            shm_socket: Text::default(),
            host_boot: 0,
            host_label: name,
            region_bytes: REGION_BYTES_MIN,
        };
        self.ask(Request::Offer(Offer { info, ticket_key: [1; 32] })).expect("taken in");
        let owned = |region, owner| OwnedRegion { region: RegionIndex(region), epoch: Epoch(2), owner };
        let on_its_way = RegionOwner::Sealing(by);
        let inventory = Inventory {
            node: node_id("donor"),
            incarnation: Incarnation(1),
            counts: RegionCounts { free: 3, named: 1, ..RegionCounts::default() },
            draining: false,
            traffic: Traffic::default(),
            spent: List::default(),
            owned: List::new(vec![owned(0, owner), owned(1, on_its_way)]).expect("two"),
            tenants: List::default(),
        };
        match self.ask(Request::Inventory(inventory)).expect("known") {
            Reply::Inventory(ruling) => ruling,
            other => panic!("{other:?}"),
        }
    }
}

fn extent() -> NamedExtent {
    NamedExtent {
        node: node_id("donor"),
        incarnation: Incarnation(1),
        region: RegionIndex(0),
        epoch: Epoch(2),
        handle: Handle(77),
        region_offset: 0,
        bytes: 4096,
    }
}

#[test]
fn broker_restarted_keeps_published_names_and_session_secrets_and_takes_a_new_term() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("broker.redb");
    let name = Name::new("lineitem").expect("a name");

    let broker = start(&path);
    let first_term = broker.term().expect("it leads");
    let mut asker = Asker::of(&broker);
    let SessionOpened { session, secret, .. } = asker.open_session(SessionId(0), Secret(0)).expect("opened");
    asker.present_node(RegionOwner::Sealing(session), session);
    let extents = List::new(vec![extent()]).expect("one");
    let (class, replace) = (FileClass::Pinned, false);
    let publish = Publish { session, secret, name: name.clone(), class, replace, moved: FileId(0), extents };
    let Ok(Reply::Publish(published)) = asker.ask(Request::Publish(publish.clone())) else {
        panic!("published")
    };
    let before = asker.open_name(&name).expect("there");
    drop((asker, broker));

    let broker = start(&path);
    assert!(broker.term().expect("it leads") > first_term);
    let mut asker = Asker::of(&broker);
    // The node has not come back yet. That is not reported as a loss.
    assert_eq!(asker.open_name(&name).expect_err("too early"), Code::NoNodes);
    let request = RequestTickets {
        session,
        secret,
        bytes: REGION_BYTES_MIN,
        class,
        near: 0,
        avoid: List::default(),
        apart: List::default(),
    };
    let asked = asker.ask(Request::RequestTickets(request.clone()));
    assert_eq!(asked, Err(Code::NotReported), "nor is the pool full");
    let ruling = asker.present_node(RegionOwner::Orphan, session);
    assert!(asker.ask(Request::RequestTickets(request)).is_ok(), "the node has three free regions");
    assert_eq!((ruling.adopt.len(), ruling.drop.len()), (1, 0), "the bytes are still the name's");
    assert_eq!(asker.open_name(&name), Ok(before));

    let resumed = asker.open_session(session, secret).expect("resumed");
    assert_eq!(
        (resumed.session, resumed.secret, resumed.term),
        (session, secret, broker.term().expect("it leads"))
    );
    assert_eq!(asker.open_session(session, Secret(secret.0 ^ 1)), Err(Code::WrongSecret));
    let again = asker.ask(Request::Publish(publish)).expect("the same answer, had the first been lost");
    assert_eq!(again, Reply::Publish(published.clone()));

    let other = Name::new("orders").expect("a name");
    let extents = List::new(vec![NamedExtent { region: RegionIndex(1), ..extent() }]).expect("one");
    let publish = Publish { session, secret, name: other, class, replace, moved: FileId(0), extents };
    let Ok(Reply::Publish(next)) = asker.ask(Request::Publish(publish)) else { panic!("published") };
    assert!(next.file > published.file, "an id is never given twice");
}
