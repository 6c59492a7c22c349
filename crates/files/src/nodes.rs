//! The nodes that a session has used: the links to each life of each, and how a life is begun with.
//!
//! Methods of two kinds. Most look at the table and say what they found, as of now: nodes come and go. [`Nodes::links`]
//! begins with a life that is not there yet, or was given up as lost and is there after all.
//!
//! Two locks. The turn to begin with a node is taken first, and held while the node is asked; the table is locked
//! within, for a look each time and never while a node is asked. Whoever holds the lock of what the session holds may
//! look at the table, not the other way round.

use crate::base::Base;
use crate::error::{Error, name_and_host};
use crate::node_links::NodeLinks;
use farpool_host::Turn;
use farpool_lock::Mutex;
use farpool_wire::control::NodeInfo;
use farpool_wire::{Incarnation, NodeId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module.
pub(crate) struct Nodes {
    base: Arc<Base>,
    this_host: u128,
    links: Mutex<BTreeMap<(NodeId, Incarnation), Arc<NodeLinks>>>,
    /// Whether one of them has ever been reached through shared memory.
    has_shared: AtomicBool,
    /// One thread at a time begins with a node.
    beginning: Turn<()>,
}

impl Nodes {
    pub(crate) fn new(base: Arc<Base>) -> Nodes {
        Nodes {
            this_host: base.host.boot_id(),
            base,
            links: Mutex::default(),
            has_shared: AtomicBool::new(false),
            beginning: Turn::default(),
        }
    }

    /// The boot id of this machine.
    pub(crate) fn this_host(&self) -> u128 {
        self.this_host
    }

    /// Whether a node is on this machine.
    pub(crate) fn is_here(&self, node: &NodeLinks) -> bool {
        node.is_shared() || (self.this_host != 0 && node.info.host_boot == self.this_host)
    }

    pub(crate) fn has_shared(&self) -> bool {
        self.has_shared.load(Ordering::Relaxed)
    }

    /// The links to a life of a node. One that was given up as lost, and is there after all, is begun anew with, once
    /// `leave_behind` has seen to what was held there: it is given the former links and the new ones.
    pub(crate) fn links(
        &self,
        info: &NodeInfo,
        leave_behind: impl FnOnce(&Arc<NodeLinks>, &NodeLinks) -> Result<(), Error>,
    ) -> Result<Arc<NodeLinks>, Error> {
        let key = (info.node, info.incarnation);
        let is_good = |links: &Arc<NodeLinks>| !links.is_lost() || links.is_barred();
        let known = || self.links.lock().get(&key).cloned();
        if let Some(links) = known().filter(is_good) {
            return Ok(links);
        }
        // One thread at a time begins anew with a node, or it would leave behind what another has leased since.
        let _beginning = self.beginning.take(&*self.base.host);
        let former = known();
        if let Some(links) = former.as_ref().filter(|links| is_good(links)) {
            return Ok(Arc::clone(links));
        }
        // It may try a connection, so the table is not locked meanwhile: renewals look there.
        let host = Arc::clone(&self.base.host);
        let fresh = NodeLinks::new(host, info.clone(), &self.base.options, self.this_host)?;
        if let Some(former) = former {
            leave_behind(&former, &fresh)?;
        }
        let mut all = self.links.lock();
        for (_, former) in
            all.iter().filter(|((node, life), _)| *node == info.node && *life != info.incarnation)
        {
            former.mark_lost("it has restarted");
        }
        let fresh = Arc::new(fresh);
        self.has_shared.fetch_or(fresh.is_shared(), Ordering::Relaxed);
        all.insert(key, Arc::clone(&fresh));
        Ok(fresh)
    }

    /// All of them, in the order of their ids.
    pub(crate) fn all(&self) -> Vec<Arc<NodeLinks>> {
        self.links.lock().values().cloned().collect()
    }

    /// The name and host of a node.
    pub(crate) fn shown(&self, id: NodeId) -> Option<String> {
        let links = self.links.lock();
        let links = links.iter().find(|((node, _), _)| *node == id)?.1;
        Some(name_and_host(&links.info))
    }

    /// Whether this life of a node is known to be gone.
    pub(crate) fn has_lost(&self, node: NodeId, life: Incarnation) -> bool {
        self.links.lock().get(&(node, life)).is_some_and(|links| links.is_lost())
    }

    /// Those there that nothing new goes to: they are being emptied, or not good.
    pub(crate) fn unfit(&self, is_good: impl Fn(&NodeLinks) -> bool) -> BTreeSet<NodeId> {
        let links = self.links.lock();
        let unfit = links.values().filter(|node| !node.is_lost() && (node.is_draining() || !is_good(node)));
        unfit.map(|node| node.info.node).collect()
    }

    /// Lives of nodes that the broker need not send anybody to.
    pub(crate) fn lives_to_avoid(&self) -> Vec<Incarnation> {
        // A lost one is not among them: if the broker knows it in that life, it was out of reach and is back.
        let is_unfit = |links: &&Arc<NodeLinks>| {
            links.is_barred() || !links.is_lost() && (links.is_suspect() || links.is_draining())
        };
        self.links.lock().values().filter(is_unfit).map(|links| links.info.incarnation).collect()
    }

    /// What to say of nodes that were lost: why there may be less memory than there was.
    pub(crate) fn lost_shown(&self) -> String {
        let links = self.links.lock();
        let lost: Vec<&str> =
            links.values().filter(|node| node.is_lost()).map(|node| &*node.info.name).collect();
        if lost.is_empty() { String::new() } else { format!("; it lost {}", lost.join(", ")) }
    }
}
