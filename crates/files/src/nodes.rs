//! Table of the nodes that a session has used.
//!
//! A node that restarts under its name begins a new *life*, with a new incarnation. The table has one [`NodeLinks`] for
//! each life. [`Nodes::links`] adds an entry: for a life that is new to the session, or for one that was marked lost
//! and answers again. All other methods read the table.
//!
//! Locks: the mutex `beginning` is taken first and is held while a node is contacted. The lock of the table is taken
//! inside it, for each access, and never while a node is contacted. A thread that holds the lock of the session's
//! leases may lock the table; the reverse is not allowed.

use crate::error::{Error, name_and_host};
use crate::node_links::NodeLinks;
use crate::session_core::SessionCore;
use farpool_host::HostMutex;
use farpool_lock::Mutex;
use farpool_wire::control::NodeInfo;
use farpool_wire::{Incarnation, NodeId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Links to every life of every node that this session has used.
pub(crate) struct Nodes {
    base: Arc<SessionCore>,
    this_host: u128,
    links: Mutex<BTreeMap<(NodeId, Incarnation), Arc<NodeLinks>>>,
    /// Lives when [`Nodes::have_changed`] was last called, and whether each could be used.
    known: Mutex<BTreeMap<Incarnation, bool>>,
    /// True if any node has ever been reached through shared memory.
    has_shared: AtomicBool,
    /// Mutex under which a thread adds a node.
    beginning: HostMutex<()>,
}

impl Nodes {
    pub(crate) fn new(base: Arc<SessionCore>) -> Nodes {
        Nodes {
            this_host: base.host.boot_id(),
            base,
            links: Mutex::default(),
            known: Mutex::default(),
            has_shared: AtomicBool::new(false),
            beginning: HostMutex::default(),
        }
    }

    /// Returns the boot id of this machine. 0 if it has none.
    pub(crate) fn this_host(&self) -> u128 {
        self.this_host
    }

    /// Reports whether a node is on this machine.
    pub(crate) fn is_here(&self, node: &NodeLinks) -> bool {
        node.is_shared() || (self.this_host != 0 && node.info.host_boot == self.this_host)
    }

    pub(crate) fn has_shared(&self) -> bool {
        self.has_shared.load(Ordering::Relaxed)
    }

    /// Returns the links to one life of a node. If that life was marked lost and answers again, new links replace the
    /// old ones. `release_former` is called first, with the old and the new links, to give up what was leased over the
    /// old ones.
    pub(crate) fn links(
        &self,
        info: &NodeInfo,
        release_former: impl FnOnce(&Arc<NodeLinks>, &NodeLinks) -> Result<(), Error>,
    ) -> Result<Arc<NodeLinks>, Error> {
        let key = (info.node, info.incarnation);
        let is_good = |links: &Arc<NodeLinks>| !links.is_lost() || links.is_barred();
        let known = || self.links.lock().get(&key).cloned();
        if let Some(links) = known().filter(is_good) {
            return Ok(links);
        }
        // Only one thread replaces links. A second one would give up regions that the first has leased meanwhile.
        let _beginning = self.beginning.take(&*self.base.host);
        let former = known();
        if let Some(links) = former.as_ref().filter(|links| is_good(links)) {
            return Ok(Arc::clone(links));
        }
        // `NodeLinks::new` may connect, so the table is not locked here. Renewals read it meanwhile.
        let host = Arc::clone(&self.base.host);
        let fresh = NodeLinks::new(host, info.clone(), &self.base.options, self.this_host)?;
        if let Some(former) = former {
            release_former(&former, &fresh)?;
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

    /// Returns the links to all lives, ordered by node id.
    pub(crate) fn all(&self) -> Vec<Arc<NodeLinks>> {
        self.links.lock().values().cloned().collect()
    }

    /// Returns the name and host of a node.
    pub(crate) fn shown(&self, id: NodeId) -> Option<String> {
        let links = self.links.lock();
        let links = links.iter().find(|((node, _), _)| *node == id)?.1;
        Some(name_and_host(&links.info))
    }

    /// Reports whether nodes were lost, fell silent or are back since this was last called.
    pub(crate) fn have_changed(&self) -> bool {
        let can_use = |links: &Arc<NodeLinks>| !links.is_lost() && !links.is_suspect();
        let now: BTreeMap<Incarnation, bool> =
            self.links.lock().values().map(|links| (links.info.incarnation, can_use(links))).collect();
        let mut before = self.known.lock();
        std::mem::replace(&mut *before, now.clone()) != now
    }

    /// Reports whether this life of a node is known to be over.
    pub(crate) fn has_lost(&self, node: NodeId, life: Incarnation) -> bool {
        self.links.lock().get(&(node, life)).is_some_and(|links| links.is_lost())
    }

    /// Reports whether a life of a node is known to be over.
    pub(crate) fn is_over(&self, life: Incarnation) -> bool {
        self.links.lock().values().any(|links| links.info.incarnation == life && links.is_lost())
    }

    /// Returns the nodes that must get no new extents: they are being drained (emptied), or `is_good` refuses them.
    pub(crate) fn unfit(&self, is_good: impl Fn(&NodeLinks) -> bool) -> BTreeSet<NodeId> {
        let links = self.links.lock();
        let unfit = links.values().filter(|node| !node.is_lost() && (node.is_draining() || !is_good(node)));
        unfit.map(|node| node.info.node).collect()
    }

    /// Returns the lives (runs) of nodes on which the broker should grant no tickets (promises of memory).
    pub(crate) fn lives_to_avoid(&self) -> Vec<Incarnation> {
        // Lost lives are left out. If the broker still reports such a life, the node was only out of reach and is
        // back.
        let is_unfit = |links: &&Arc<NodeLinks>| {
            links.is_barred() || !links.is_lost() && (links.is_suspect() || links.is_draining())
        };
        self.links.lock().values().filter(is_unfit).map(|links| links.info.incarnation).collect()
    }

    /// Returns the part of an error message that names lost nodes, as the reason why there is less memory. Empty if
    /// none is lost.
    pub(crate) fn lost_shown(&self) -> String {
        let links = self.links.lock();
        let (lost, living): (Vec<&Arc<NodeLinks>>, Vec<_>) = links.values().partition(|node| node.is_lost());
        let is_back = |name: &&str| living.iter().any(|node| *node.info.name == **name);
        let mut lost: Vec<&str> =
            lost.iter().map(|node| &*node.info.name).filter(|name| !is_back(name)).collect();
        lost.sort_unstable();
        lost.dedup();
        if lost.is_empty() { String::new() } else { format!("; lost nodes: {}", lost.join(", ")) }
    }
}
