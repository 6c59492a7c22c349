//! Tests of permissions: a node sends reports only about itself, and only tenants and administrators open sessions.

use crate::certificates::Ca;
use crate::raw_client::*;
use farpool_node::node_id;
use farpool_transport::{Identity, Link, LinkError, Tls, tcp};
use farpool_wire::control::*;
use farpool_wire::{Code, Incarnation, Name, NodeId, Reply, Request, Text};

fn broker_link(pool: &OneNode, tls: Tls) -> Box<dyn Link> {
    let address = pool.broker.address().to_string();
    tcp::connect(&Ca::exposure(tls), &address, &Identity::Broker, soon()).expect("a link")
}

fn offer(node: NodeId, name: &str) -> Request {
    let info = NodeInfo {
        node,
        name: Name::new(name).expect("a name"),
        incarnation: Incarnation(1),
        address: Text::default(),
        shm_socket: Text::default(),
        host_boot: 0,
        host_label: Name::new("host").expect("a label"),
        region_bytes: MIB,
    };
    Request::Offer(Offer { info, ticket_key: [7; 32] })
}

fn inventory(node: NodeId) -> Request {
    Request::Inventory(Inventory {
        node,
        incarnation: Incarnation(1),
        counts: Default::default(),
        traffic: Default::default(),
        spent: Default::default(),
        owned: Default::default(),
        draining: false,
        tenants: Default::default(),
    })
}

fn memory(node: NodeId) -> Request {
    Request::OfferMemory(NodeMemory {
        node,
        kind: MemoryKind::Device,
        page_bytes: 0,
        numa_node: Default::default(),
        device: Text::default(),
    })
}

fn open_session() -> Request {
    let label = Name::new("client").expect("a label");
    Request::OpenSession(OpenSession { resume: Default::default(), secret: Default::default(), label })
}

fn by_name() -> ByName {
    ByName { name: Name::new("file").expect("a name") }
}

fn status() -> Request {
    Request::Status(Done {})
}

/// Asserts that the request is refused because this sender may not make it, and that the link still works.
fn not_permitted(link: &mut dyn Link, request: &Request) {
    match link.call(request, soon()) {
        Err(LinkError::Refused { refusal, .. }) => {
            assert_eq!(refusal.code, Code::NotPermitted, "{request:?}");
            assert_eq!(refusal.detail, request.opcode() as u64, "{request:?}");
        }
        other => panic!("{request:?} is answered by {other:?}"),
    }
}

#[test]
fn tenant_cannot_offer_itself_as_a_node() {
    let (pool, ca) = one_tls_node(1, lasting_leases());
    for tls in [ca.tenant("intruder"), ca.tls(&Identity::Admin), ca.broker()] {
        let mut link = broker_link(&pool, tls);
        not_permitted(&mut *link, &offer(node_id(NODE), NODE));
        not_permitted(&mut *link, &inventory(node_id(NODE)));
        not_permitted(&mut *link, &memory(node_id(NODE)));
    }
    // The tenant's offer in the name of the node had no effect: the node still works.
    let grants = pool.session().lease(&pool, &mut *pool.link(farpool_transport::Transport::Tcp), 1);
    assert_eq!(grants.expect("a lease").len(), 1);
}

#[test]
fn node_speaks_for_itself_only_and_has_no_session() {
    let (pool, ca) = one_tls_node(1, lasting_leases());
    let mut link = broker_link(&pool, ca.node("other"));
    not_permitted(&mut *link, &offer(node_id(NODE), NODE));
    not_permitted(&mut *link, &inventory(node_id(NODE)));
    not_permitted(&mut *link, &memory(node_id(NODE)));
    // The broker would show a node with its own id but the name of another as that other node.
    not_permitted(&mut *link, &offer(node_id("other"), NODE));
    not_permitted(&mut *link, &open_session());
    not_permitted(&mut *link, &Request::OpenName(by_name()));
    not_permitted(&mut *link, &Request::DropName(by_name()));
    let list = ListNames { prefix: Text::default(), after: Text::default() };
    not_permitted(&mut *link, &Request::ListNames(list));
    let offered = link.call(&offer(node_id("other"), "other"), soon());
    assert!(matches!(offered, Ok(Reply::Offer(_))), "{offered:?}");
    let ruled = link.call(&inventory(node_id("other")), soon());
    assert!(matches!(ruled, Ok(Reply::Inventory(_))), "{ruled:?}");
    let told = link.call(&memory(node_id("other")), soon());
    assert!(matches!(told, Ok(Reply::OfferMemory(_))), "{told:?}");
}

#[test]
fn everybody_with_an_identity_may_see_the_status_and_tenants_and_admins_open_sessions() {
    let (pool, ca) = one_tls_node(1, lasting_leases());
    for (tls, has_sessions) in [
        (ca.tenant("a"), true),
        (ca.tls(&Identity::Admin), true),
        (ca.node("other"), false),
        (ca.broker(), false),
    ] {
        let mut link = broker_link(&pool, tls);
        assert!(matches!(link.call(&status(), soon()), Ok(Reply::Status(_))));
        let listed = link.call(&Request::ListMemory(Done {}), soon());
        assert!(matches!(listed, Ok(Reply::ListMemory(_))), "{listed:?}");
        if has_sessions {
            assert!(matches!(link.call(&open_session(), soon()), Ok(Reply::OpenSession(_))));
        } else {
            not_permitted(&mut *link, &open_session());
        }
    }
}

#[test]
fn node_grants_leases_to_no_other_node() {
    let (pool, ca) = one_tls_node(1, lasting_leases());
    let address = pool.node.info().address.to_string();
    let session = pool.session();
    for tls in [ca.node("other"), ca.broker()] {
        let exposure = Ca::exposure(tls);
        let mut link =
            tcp::connect(&exposure, &address, &Identity::Node(node_id(NODE)), soon()).expect("a link");
        not_permitted(&mut *link, &Request::Renew(session.proof.clone()));
        let release = Release {
            session: session.proof.session,
            secret: session.proof.secret,
            whole: true,
            regions: Default::default(),
        };
        not_permitted(&mut *link, &Request::Release(release));
    }
}
