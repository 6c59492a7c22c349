//! What comes a second time, or from somebody who may not: requests that were answered and arrive again, perhaps
//! at another life of the broker or node, and operations under rights that are over or were never given.
//!
//! The idea: inside a connection nothing is repeated, but whoever lost an answer asks again, on a new connection
//! and at any time later. `spec/lease.md` says that every question may be asked twice and that an old right is
//! refused for ever, so whatever a client once asked is asked again here under its own identity, and nobody
//! hears the answer. What must not be let in, the oracle notices as with any other operation.

use crate::faults::Chore;
use crate::kernel::{World, world};
use crate::observed::{ObservedBroker, ObservedNode};
use crate::parties::Phase;
use farpool_transport::{Intent, Peer, Service};
use farpool_wire::data::Span;
use farpool_wire::{Handle, Incarnation, NodeId, Request};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Something to be asked again.
#[derive(Debug)]
pub(crate) enum Again {
    /// Of whichever broker is there then.
    OfBroker(Peer, Request),
    /// Of whichever life of the node is there then.
    OfNode(NodeId, Peer, Request),
    /// An operation on a node's bytes.
    OnBytes(Incarnation, Span, Intent),
}

/// Those under way, each known to its chore by a number.
#[derive(Debug, Default)]
pub(crate) struct UnderWay {
    waiting: BTreeMap<u64, Again>,
    next: u64,
}

/// Of a million requests of a kind, how many come again. Those that change nothing, and those whose sender asks
/// for what others then have not, do not.
fn per_million(request: &Request) -> u32 {
    match request {
        Request::Lease(_) | Request::Seal(_) | Request::Publish(_) => 60_000,
        Request::DropName(_) | Request::RenameName(_) | Request::CloseSession(_) => 30_000,
        Request::Release(_) => 20_000,
        Request::Offer(_) => 20_000,
        Request::Renew(_) => 5_000,
        _ => 0,
    }
}

/// The same peer over another connection.
fn anew(peer: &Peer) -> Peer {
    Peer { connection: 0, ..peer.clone() }
}

const OPERATIONS_PER_MILLION: u32 = 1_500;

impl World {
    fn comes_again(&mut self, per_million: u32, again: impl FnOnce() -> Again) {
        let may = self.plan.asks_again && self.parties.phase == Phase::Faulty;
        if !may || !self.random.happens(per_million) {
            return;
        }
        let most = 2 * self.plan.life_ns();
        let after = self.random.skewed(10_000, most);
        self.parties.again.next += 1;
        let number = self.parties.again.next;
        self.parties.again.waiting.insert(number, again());
        self.chore_in(after, Chore::AskAgain(number));
    }

    /// A request was answered by a broker.
    pub(crate) fn broker_was_asked(&mut self, peer: &Peer, request: &Request) {
        self.comes_again(per_million(request), || Again::OfBroker(anew(peer), request.clone()));
    }

    /// A request was answered by a node.
    pub(crate) fn node_was_asked(&mut self, node: NodeId, peer: &Peer, request: &Request) {
        self.comes_again(per_million(request), || Again::OfNode(node, anew(peer), request.clone()));
    }

    /// An operation was let in by a node.
    pub(crate) fn node_let_in(&mut self, incarnation: Incarnation, span: &Span, intent: Intent) {
        self.comes_again(OPERATIONS_PER_MILLION, || Again::OnBytes(incarnation, *span, intent));
    }

    fn observed_broker(&mut self) -> Option<ObservedBroker> {
        let ready: Vec<ObservedBroker> = self
            .parties
            .brokers
            .iter()
            .filter_map(|life| Some(ObservedBroker::new(life.process, Arc::clone(life.service.as_ref()?))))
            .collect();
        let which = self.random.below(ready.len().max(1) as u64) as usize;
        ready.into_iter().nth(which)
    }

    fn observed_node(&self, is_it: impl Fn(&ObservedNode) -> bool) -> Option<ObservedNode> {
        let lives = self.parties.nodes.iter().filter_map(|place| place.life.as_ref());
        lives
            .map(|life| {
                ObservedNode::new(life.process, life.node, life.incarnation, Arc::clone(&life.service))
            })
            .find(is_it)
    }
}

/// The time of a request has come again.
pub(crate) fn ask(number: u64) {
    world(|world| {
        let Some(again) = world.parties.again.waiting.remove(&number) else { return };
        if world.parties.phase != Phase::Faulty {
            return;
        }
        match again {
            Again::OfBroker(peer, request) => {
                let Some(broker) = world.observed_broker() else { return };
                world.tally.fault("request came again");
                let process = broker.process;
                world.spawn(process, Box::new(move || drop(broker.answer(&peer, request))));
            }
            Again::OfNode(id, peer, request) => {
                let Some(node) = world.observed_node(|node| node.node == id) else { return };
                world.tally.fault("request came again");
                let process = node.process;
                world.spawn(process, Box::new(move || drop(node.answer(&peer, request))));
            }
            Again::OnBytes(incarnation, span, intent) => {
                let Some(node) = world.observed_node(|node| node.incarnation == incarnation) else { return };
                let span = world.without_right(incarnation, span);
                world.tally.fault("operation without a right");
                let process = node.process;
                let operate = move || match intent {
                    Intent::Read => drop(node.read(&span, &mut [0; 16])),
                    Intent::Write => drop(node.write(&span, &[0xBD; 16])),
                };
                world.spawn(process, Box::new(operate));
            }
        }
    });
}

impl World {
    /// The same span under a right that is over: as it was if it is over by now, otherwise with another handle.
    /// Whoever guesses epochs shows his old handle at the present one.
    fn without_right(&mut self, incarnation: Incarnation, span: Span) -> Span {
        let span = Span { bytes: 16, offset: span.offset & !15, ..span };
        let Some((epoch, handle)) = self.oracle.right_of(incarnation, span.region) else { return span };
        if handle == span.handle {
            let guessed = u128::from(self.random.draw()) << 64 | u128::from(self.random.draw());
            return Span { handle: Handle(guessed), ..span };
        }
        let epoch = if self.random.one_in(2) { epoch } else { span.epoch };
        Span { epoch, ..span }
    }
}
