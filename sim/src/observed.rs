//! Wrappers that show the oracle what brokers and nodes answer, before the answers are sent.

use crate::kernel::{ProcessId, World, world};
use crate::memory::SimMemory;
use crate::oracle::session_of;
use farpool_node::NodeService;
use farpool_transport::{Intent, Peer, Service, Shared};
use farpool_wire::control::Attach;
use farpool_wire::data::Span;
use farpool_wire::{Incarnation, NodeId, Refusal, Reply, Request};
use std::sync::Arc;

/// Node whose requests and answers the oracle sees.
pub(crate) struct ObservedNode {
    pub(crate) process: ProcessId,
    pub(crate) node: NodeId,
    pub(crate) incarnation: Incarnation,
    service: Arc<NodeService<SimMemory>>,
}

impl ObservedNode {
    pub(crate) fn new(
        process: ProcessId,
        node: NodeId,
        incarnation: Incarnation,
        service: Arc<NodeService<SimMemory>>,
    ) -> ObservedNode {
        ObservedNode { process, node, incarnation, service }
    }

    fn moved(&self, span: &Span, intent: Intent, result: &Result<(), Refusal>) {
        world(|world| {
            let clock = world.clock_of(self.process);
            world.oracle.node_moved(self.incarnation, clock, span, intent, result);
            let code = result.as_ref().err().map_or(0, |refusal| refusal.code as u64);
            let what = if intent == Intent::Write { "writes" } else { "reads" };
            world.note(self.process, what, [span.region.0.into(), span.epoch.0, code]);
            if result.is_ok() {
                world.node_let_in(self.incarnation, span, intent);
            }
        });
    }

    /// Answers a request, be it a client's or a replay of one.
    pub(crate) fn answer(&self, peer: &Peer, request: Request) -> Result<Reply, Refusal> {
        let known = world(|world| world.oracle.node_called(self.incarnation, &request));
        let asked = request.clone();
        // A step of a scan catches panics.
        let catches = matches!(asked, Request::NextChunk(_));
        world(|world| world.is_uninterrupted = catches);
        let answer = self.service.call(peer, request);
        world(|world| {
            world.is_uninterrupted = false;
            let clock = world.clock_of(self.process);
            world.oracle.node_answers(self.incarnation, clock, known, &asked, &answer);
            let code = answer.as_ref().err().map_or(0, |refusal| refusal.code as u64);
            let session = session_of(&asked).map_or(0, |session| session.0);
            world.note(self.process, "answers", [asked.opcode() as u64, code, session]);
        });
        answer
    }
}

impl Service for ObservedNode {
    fn call(&self, peer: &Peer, request: Request) -> Result<Reply, Refusal> {
        world(|world| world.node_was_asked(self.node, peer, &request));
        self.answer(peer, request)
    }

    fn read(&self, span: &Span, into: &mut [u8]) -> Result<(), Refusal> {
        let result = self.service.read(span, into);
        self.moved(span, Intent::Read, &result);
        result
    }

    fn write(&self, span: &Span, from: &[u8]) -> Result<(), Refusal> {
        let result = self.service.write(span, from);
        self.moved(span, Intent::Write, &result);
        result
    }

    fn share(&self, attach: &Attach) -> Result<Shared, Refusal> {
        let result = self.service.share(attach);
        world(|world| {
            let code = result.as_ref().err().map_or(0, |refusal| refusal.code as u64);
            world.note(self.process, "shares", [attach.region.0.into(), attach.epoch.0, code]);
        });
        result
    }
}

/// Broker whose requests and answers the oracle sees.
pub(crate) struct ObservedBroker {
    pub(crate) process: ProcessId,
    service: Arc<dyn Service>,
}

impl ObservedBroker {
    pub(crate) fn new(process: ProcessId, service: Arc<dyn Service>) -> ObservedBroker {
        ObservedBroker { process, service }
    }

    /// Answers a request, be it a client's or a replay of one.
    pub(crate) fn answer(&self, peer: &Peer, request: Request) -> Result<Reply, Refusal> {
        let asked = request.clone();
        let opening_of = |world: &World| {
            world.parties.brokers.iter().find(|life| life.process == self.process).map(|life| life.opening)
        };
        let is_heard = world(|world| {
            world.oracle.broker_called(&asked);
            let by = opening_of(world);
            by.is_some_and(|by| world.oracle.session_asks(by, peer.connection, &asked))
        });
        let answer = self.service.call(peer, request);
        world(|world| {
            if let Some(by) = opening_of(world).filter(|_| is_heard) {
                let now = world.moment();
                world.oracle.session_is_told(by, now, &asked, &answer);
            }
            let disk = world.parties.disk.clone();
            world.oracle.broker_answers(&asked, &answer, &disk);
            let at = world.clock_of(self.process);
            let mut brokers = world.parties.brokers.iter_mut();
            if let Some(life) = brokers.find(|life| life.process == self.process && answer.is_ok()) {
                life.note_done(&asked, at);
            }
            if let (Request::EndRepair(_), Ok(Reply::EndRepair(ended))) = (&asked, &answer) {
                world.tally.operation("list a copy made by a node", ended.runs > 0);
            }
            let code = answer.as_ref().err().map_or(0, |refusal| refusal.code as u64);
            world.note(self.process, "answers", [asked.opcode() as u64, code, 0]);
        });
        answer
    }
}

impl Service for ObservedBroker {
    fn call(&self, peer: &Peer, request: Request) -> Result<Reply, Refusal> {
        world(|world| world.broker_was_asked(peer, &request));
        self.answer(peer, request)
    }
}
