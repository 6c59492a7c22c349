//! Sessions and names of several tenants at one broker, case by case. The random schedules of
//! `cluster` and `quota` mix them.

use farpool_lease::broker::Durable;
use farpool_lease::ticket::node_id;
use farpool_lease::{BrokerLeases, BrokerSettings, LeaseSettings, Quotas};
use farpool_wire::control::*;
use farpool_wire::limits::{REGION_BYTES_MIN, TENANT_BYTES_MAX};
use farpool_wire::*;
use std::collections::BTreeMap;

const LIFE: Incarnation = Incarnation(2);
/// Number of the connection between each node and the broker.
const CONNECTION: u64 = 1;
const START: MonoNs = MonoNs(1_000_000_000);

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn code<T>(answer: Result<T, Refusal>) -> Result<T, Code> {
    answer.map_err(|refusal| refusal.code)
}

/// Broker with one node of some free regions, and the contents of its store.
struct Pool {
    broker: BrokerLeases,
    durable: Durable,
    sealed: Vec<OwnedRegion>,
    uses: Vec<TenantUse>,
}

impl Pool {
    fn new(quotas: Quotas) -> Pool {
        let settings = BrokerSettings { quotas, ..BrokerSettings::default() };
        let (mut durable, records) = (Durable::default(), &mut Vec::new());
        let broker = BrokerLeases::start(START, settings, durable.clone(), [4; 32], records);
        records.drain(..).for_each(|record| durable.apply(record));
        let mut pool = Pool { broker, durable, sealed: Vec::new(), uses: Vec::new() };
        pool.join();
        pool
    }

    fn join(&mut self) {
        let info = NodeInfo {
            node: node_id("n"),
            name: name("n"),
            incarnation: LIFE,
            address: Text::default(),
            shm_socket: Text::default(),
            host_boot: 0,
            host_label: name("h"),
            region_bytes: REGION_BYTES_MIN,
        };
        self.broker.offer(START, CONNECTION, Offer { info, ticket_key: [3; 32] }).expect("taken in");
        self.report();
    }

    fn report(&mut self) -> Ruling {
        let inventory = Inventory {
            node: node_id("n"),
            incarnation: LIFE,
            draining: false,
            counts: RegionCounts { free: 100, ..RegionCounts::default() },
            traffic: Traffic::default(),
            spent: List::default(),
            owned: List::new(self.sealed.clone()).expect("few"),
            tenants: List::new(self.uses.clone()).expect("few"),
        };
        self.broker.inventory(START, CONNECTION, inventory).expect("known")
    }

    fn session(&mut self, tenant: &str, id: u64) -> SessionProof {
        let open = OpenSession { resume: SessionId(0), secret: Secret(0), label: name("c") };
        let opened = self.broker.open_session(START, &name(tenant), &open, SessionId(id)).expect("opened");
        assert_eq!(opened.tenant, name(tenant));
        SessionProof { session: opened.session, secret: opened.secret }
    }

    /// Reports a region as sealed by a session, and counted as this tenant's.
    fn seal(&mut self, tenant: &str, by: &SessionProof, region: u32) -> NamedExtent {
        let owner = RegionOwner::Sealing(by.session);
        self.sealed.push(OwnedRegion { region: RegionIndex(region), epoch: Epoch(2), owner });
        match self.uses.iter_mut().find(|has| *has.tenant == *tenant) {
            Some(has) => has.regions += 1,
            None => self.uses.push(TenantUse { tenant: name(tenant), regions: 1 }),
        }
        self.report();
        NamedExtent {
            node: node_id("n"),
            incarnation: LIFE,
            region: RegionIndex(region),
            epoch: Epoch(2),
            handle: Handle(region.into()),
            region_offset: 0,
            bytes: REGION_BYTES_MIN,
        }
    }

    fn publish(&mut self, tenant: &str, publish: &Publish) -> Result<FileId, Code> {
        let records = &mut Vec::new();
        let answer = self.broker.publish_extents(START, &name(tenant), publish, records);
        records.drain(..).for_each(|record| self.durable.apply(record));
        code(answer).map(|published| published.file)
    }

    fn listed(&self, tenant: &str) -> Vec<(String, String)> {
        let all = ListNames { prefix: Text::default(), after: Text::default() };
        let listed = self.broker.list_names(&name(tenant), &all);
        listed.names.iter().map(|info| (info.name.to_string(), info.tenant.to_string())).collect()
    }

    fn ask(&mut self, tenant: &str, proof: &SessionProof, bytes: u64) -> Result<u64, Refusal> {
        let request = RequestTickets {
            session: proof.session,
            secret: proof.secret,
            bytes,
            class: FileClass::Scratch,
            near: 0,
            avoid: List::default(),
            apart: List::default(),
        };
        let tickets = self.broker.request_tickets(START, &name(tenant), &request)?;
        Ok(tickets.tickets.iter().map(|offer| u64::from(offer.ticket.region_count) * REGION_BYTES_MIN).sum())
    }
}

fn publication(by: &SessionProof, extents: &[&NamedExtent]) -> Publish {
    Publish {
        session: by.session,
        secret: by.secret,
        name: name("view"),
        class: FileClass::Pinned,
        replace: false,
        moved: FileId(0),
        extents: List::new(extents.iter().copied().cloned().collect()).expect("few"),
    }
}

#[test]
fn session_shown_by_another_tenant_is_refused_as_anothers() {
    let mut pool = Pool::new(Quotas::default());
    let red = pool.session("red", 9);
    assert_eq!(code(pool.broker.keep_session(START, &name("red"), &red)).map(|_| ()), Ok(()));
    for other in ["blue", "admin", "local"] {
        assert_eq!(code(pool.broker.keep_session(START, &name(other), &red)), Err(Code::WrongTenant));
    }
    let wrong = SessionProof { secret: Secret(red.secret.0 ^ 1), ..red.clone() };
    assert_eq!(code(pool.broker.keep_session(START, &name("blue"), &wrong)), Err(Code::WrongSecret));
}

#[test]
fn session_is_its_tenants_in_the_next_life_of_the_broker_too() {
    let mut pool = Pool::new(Quotas::default());
    let red = pool.session("red", 9);
    let durable = pool.durable.clone();
    pool.broker = BrokerLeases::start(START, LeaseSettings::default(), durable, [5; 32], &mut Vec::new());
    // The broker has not heard of the session in this life, so it knows only that the asker is not its tenant.
    assert_eq!(code(pool.broker.keep_session(START, &name("blue"), &red)), Err(Code::WrongSecret));
    assert!(pool.broker.keep_session(START, &name("red"), &red).is_ok());
    assert_eq!(code(pool.broker.keep_session(START, &name("blue"), &red)), Err(Code::WrongTenant));
}

#[test]
fn name_of_another_tenant_is_not_there_but_taken() {
    let mut pool = Pool::new(Quotas::default());
    let (red, blue) = (pool.session("red", 9), pool.session("blue", 10));
    let (first, second) = (pool.seal("red", &red, 0), pool.seal("blue", &blue, 1));
    pool.publish("red", &publication(&red, &[&first])).expect("published");
    let view = name("view");

    let replacing = Publish { replace: true, ..publication(&blue, &[&second]) };
    assert_eq!(pool.publish("blue", &replacing), Err(Code::NameTaken));
    // The name is refused even for its very own extents: success would show the file's id.
    assert_eq!(pool.publish("blue", &publication(&blue, &[&first])), Err(Code::NameTaken));
    assert_eq!(pool.listed("blue"), []);
    let (blue, records) = (name("blue"), &mut Vec::new());
    assert_eq!(code(pool.broker.open_places(&blue, &view)), Err(Code::NoSuchName));
    assert_eq!(code(pool.broker.drop_name(&blue, &view, records)), Err(Code::NoSuchName));
    let rename = Rename { from: view.clone(), to: name("mine") };
    assert_eq!(code(pool.broker.rename(&blue, &rename, records)), Err(Code::NoSuchName));
    let report = pool.broker.status(START, &blue);
    assert_eq!((report.files, report.file_bytes), (0, 0));
    assert!(report.tenants.iter().all(|has| *has.tenant == *blue), "{report:?}");

    for sees in ["red", "admin"] {
        assert_eq!(pool.listed(sees), [("view".to_owned(), "red".to_owned())]);
        assert!(pool.broker.open_places(&name(sees), &view).is_ok());
    }
    assert!(pool.broker.drop_name(&name("admin"), &view, records).is_ok());
}

#[test]
fn region_sealed_by_another_session_is_not_published() {
    let mut pool = Pool::new(Quotas::default());
    let (red, blue) = (pool.session("red", 9), pool.session("blue", 10));
    let sealed = pool.seal("red", &red, 0);
    assert_eq!(pool.publish("blue", &publication(&blue, &[&sealed])), Err(Code::WrongSecret));
    assert!(pool.publish("red", &publication(&red, &[&sealed])).is_ok());
}

/// A version before emptied a node in this way.
#[test]
fn client_does_not_move_a_file() {
    let mut pool = Pool::new(Quotas::default());
    let red = pool.session("red", 9);
    let (first, second) = (pool.seal("red", &red, 0), pool.seal("red", &red, 1));
    let file = pool.publish("red", &publication(&red, &[&first])).expect("published");
    let moving = Publish { moved: file, ..publication(&red, &[&second]) };
    assert_eq!(pool.publish("red", &moving), Err(Code::Unsupported));
}

#[test]
fn quota_is_shared_by_the_sessions_of_a_tenant_and_refused_with_what_is_left() {
    let by_tenant = BTreeMap::from([(name("red"), 5 * REGION_BYTES_MIN + 7)]);
    let mut pool = Pool::new(Quotas { default_bytes: Some(2 * REGION_BYTES_MIN), by_tenant });
    let (first, second) = (pool.session("red", 9), pool.session("red", 10));
    pool.seal("red", &first, 0);
    assert_eq!(pool.ask("red", &first, 2 * REGION_BYTES_MIN), Ok(2 * REGION_BYTES_MIN));
    // One region is held and two are promised. The quota's last 7 bytes are no whole region, so they cannot be
    // leased.
    let over = Refusal::new(Code::OverQuota, 2 * REGION_BYTES_MIN);
    assert_eq!(pool.ask("red", &second, 3 * REGION_BYTES_MIN), Err(over));
    assert_eq!(pool.ask("red", &second, 2 * REGION_BYTES_MIN + 1), Err(over));
    assert_eq!(pool.ask("red", &second, 2 * REGION_BYTES_MIN), Ok(2 * REGION_BYTES_MIN));
    assert_eq!(pool.ask("red", &first, 1), Err(Refusal::new(Code::OverQuota, 0)));
    // The default quota holds for everybody else, but not for the administrator.
    let (blue, admin) = (pool.session("blue", 11), pool.session("admin", 12));
    let over = Refusal::new(Code::OverQuota, 2 * REGION_BYTES_MIN);
    assert_eq!(pool.ask("blue", &blue, 3 * REGION_BYTES_MIN), Err(over));
    assert_eq!(pool.ask("admin", &admin, 50 * REGION_BYTES_MIN), Ok(50 * REGION_BYTES_MIN));
    let report = pool.broker.status(START, &name("local"));
    let red = report.tenants.iter().find(|has| *has.tenant == *"red").expect("listed");
    assert_eq!(
        (red.held_bytes, red.promised_bytes, red.quota_bytes),
        (REGION_BYTES_MIN, 4 * REGION_BYTES_MIN, 5 * REGION_BYTES_MIN + 7)
    );
}

#[test]
fn quota_that_cannot_be_meant_is_named() {
    let long = "t".repeat(TENANT_BYTES_MAX + 1);
    let by_tenant = BTreeMap::from([(name("red"), 0), (name(&long), REGION_BYTES_MIN)]);
    let mistakes = Quotas { default_bytes: Some(1), by_tenant }.mistakes();
    assert_eq!(mistakes.len(), 3, "{mistakes:?}");
    assert!(mistakes.iter().any(|mistake| mistake.contains("red") && mistake.contains("0 B")));
    assert!(
        Quotas { default_bytes: Some(REGION_BYTES_MIN), by_tenant: BTreeMap::new() }.mistakes().is_empty()
    );
}

/// The broker adds and multiplies a node's counts of regions; refusing those that are too large avoids an overflow.
#[test]
fn inventory_that_counts_more_regions_than_a_node_can_have_is_refused() {
    let mut pool = Pool::new(Quotas::default());
    let uses = ["red", "blue"].map(|tenant| TenantUse { tenant: name(tenant), regions: u32::MAX });
    let inventory = Inventory {
        node: node_id("n"),
        incarnation: LIFE,
        draining: false,
        counts: RegionCounts::default(),
        traffic: Traffic::default(),
        spent: List::default(),
        owned: List::default(),
        tenants: List::new(uses.to_vec()).expect("two"),
    };
    assert_eq!(code(pool.broker.inventory(START, CONNECTION, inventory)), Err(Code::Malformed));
}
