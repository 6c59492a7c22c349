//! Replays of requests and of data operations: requests that were answered already, perhaps by an earlier life of the
//! broker or node, and operations whose rights have ended or never existed.
//!
//! The idea: within a connection nothing is repeated, but a client that lost an answer retries, on a new connection
//! and at any later time. `spec/lease.md` says that every request may be sent twice and that an old right is refused
//! for ever. This module therefore sends copies of the clients' requests under the identity of their senders, and
//! discards the answers. The oracle sees these requests like all others, and reports what must not be admitted.

use crate::faults::Chore;
use crate::kernel::{World, world};
use crate::observed::{ObservedBroker, ObservedNode};
use crate::parties::Phase;
use farpool_transport::{Intent, Peer, Service};
use farpool_wire::data::Span;
use farpool_wire::{Handle, Incarnation, NodeId, Request};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Request or operation to replay.
#[derive(Debug)]
pub(crate) enum Replayed {
    /// Request to the broker that runs when it is replayed.
    OfBroker(Peer, Request),
    /// Request to the life of the node that runs when it is replayed.
    OfNode(NodeId, Peer, Request),
    /// Operation on the bytes of a node.
    OnBytes(Incarnation, Span, Intent),
}

/// Replays that are scheduled, by the number that their chore carries.
#[derive(Debug, Default)]
pub(crate) struct UnderWay {
    waiting: BTreeMap<u64, Replayed>,
    next: u64,
}

/// Returns how many of a million requests of a kind are replayed: none of the requests that change nothing, and none of
/// those whose replay would take resources that the sender would not know of.
fn per_million(request: &Request) -> u32 {
    match request {
        Request::Lease(_) | Request::Seal(_) | Request::SealRanges(_) | Request::PublishPlaces(_) => 60_000,
        Request::DropName(_) | Request::RenameName(_) | Request::CloseSession(_) => 30_000,
        // Ids of commits, and places that were published once, keep them from being carried out again.
        Request::CommitTables(_) => 100_000,
        Request::AddParts(_) => 50_000,
        Request::Release(_) => 20_000,
        Request::Offer(_) => 20_000,
        Request::Renew(_) => 5_000,
        _ => 0,
    }
}

/// Returns the same peer as if it had opened another connection.
fn anew(peer: &Peer) -> Peer {
    Peer { connection: 0, ..peer.clone() }
}

/// Share of data operations that are replayed, in millionths.
const OPERATIONS_PER_MILLION: u32 = 1_500;

impl World {
    fn comes_again(&mut self, per_million: u32, again: impl FnOnce() -> Replayed) {
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

    /// Schedules, by chance, a replay of a request that a broker answered.
    pub(crate) fn broker_was_asked(&mut self, peer: &Peer, request: &Request) {
        self.comes_again(per_million(request), || Replayed::OfBroker(anew(peer), request.clone()));
    }

    /// Schedules, by chance, a replay of a request that a node answered.
    pub(crate) fn node_was_asked(&mut self, node: NodeId, peer: &Peer, request: &Request) {
        self.comes_again(per_million(request), || Replayed::OfNode(node, anew(peer), request.clone()));
    }

    /// Schedules, by chance, a replay of a read or write that a node admitted.
    pub(crate) fn node_let_in(&mut self, incarnation: Incarnation, span: &Span, intent: Intent) {
        self.comes_again(OPERATIONS_PER_MILLION, || Replayed::OnBytes(incarnation, *span, intent));
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

/// Replays the request or operation of this number, unless the faults are over. The chore that was scheduled for it
/// calls this.
pub(crate) fn ask(number: u64) {
    world(|world| {
        let Some(again) = world.parties.again.waiting.remove(&number) else { return };
        if world.parties.phase != Phase::Faulty {
            return;
        }
        match again {
            Replayed::OfBroker(peer, request) => {
                let Some(broker) = world.observed_broker() else { return };
                world.tally.fault("request came again");
                let process = broker.process;
                world.spawn(process, Box::new(move || drop(broker.answer(&peer, request))));
            }
            Replayed::OfNode(id, peer, request) => {
                let Some(node) = world.observed_node(|node| node.node == id) else { return };
                world.tally.fault("request came again");
                let process = node.process;
                world.spawn(process, Box::new(move || drop(node.answer(&peer, request))));
            }
            Replayed::OnBytes(incarnation, span, intent) => {
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
    /// Returns 16 bytes of the span, to be accessed under a handle that is not valid: the span's own if its right has
    /// ended, else a random one. If the region has a newer epoch, may combine the old handle with that epoch.
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
