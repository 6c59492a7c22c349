//! Copies of published files that nodes of the cluster test make, by orders of the broker.

use super::*;

/// Work of a node on copies.
#[derive(Default)]
pub(super) enum Copies {
    #[default]
    Idle,
    /// It copies by an order to a region.
    Copying(Box<RepairOrder>, RegionAt),
    /// It has made the copy, and has no answer to its report yet. True once an inventory over its present connection
    /// has shown the region.
    Made(Box<EndRepair>, bool),
}

impl Node {
    /// Notes that the broker has decided about the copy that was reported.
    pub(super) fn copies_known(&mut self) {
        if let Copies::Made(report, _) = std::mem::take(&mut self.copies) {
            self.arbiter.copies_known(report.region, report.epoch);
        }
    }
}

impl World<'_> {
    /// Reads what an order names from one of its sources, and makes the copy.
    pub(super) fn copy(&mut self, index: usize) {
        let Copies::Copying(order, at) = &self.nodes[index].copies else { return };
        let (order, at) = (order.clone(), at.clone());
        self.nodes[index].copies = Copies::Idle;
        assert_eq!(order.signed.runs.len(), 1, "each run has a region of its own");
        let source = self.random.pick(&order.sources[0]).expect("it names one");
        let source = &order.regions[source.region as usize];
        let from = &self.nodes[source.node.0 as usize - 1];
        let content = match from.arbiter.incarnation() == source.incarnation {
            true => from.arbiter.read(source.region, source.epoch, source.handle),
            false => None,
        };
        let node = &mut self.nodes[index];
        let Some(content) = content else {
            node.arbiter.abandon_copying(&at);
            self.tally.add("source of a copy is gone");
            return;
        };
        if let Ok(Grant { region, epoch, handle }) = node.arbiter.end_copying(&at, content) {
            let copied = List::new(vec![0]).expect("one");
            let report = EndRepair { order: order.signed, copied, region, epoch, handle };
            node.copies = Copies::Made(Box::new(report), false);
        }
    }
}
