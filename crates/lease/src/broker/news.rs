//! Changes of the pool for an operator: nodes that join, fall silent, come back or end, and the files that are lost.

use super::{BrokerLeases, NamedFile};
use farpool_wire::Name;
use farpool_wire::ids::*;
use std::collections::BTreeMap;

/// Names of lost files that [`News::NodeReplaced`] lists at most.
const NAMES_MAX: usize = 5;

/// Change of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// A node offers its memory for the first time since the broker started.
    NodeJoined {
        /// Name of the node.
        node: Name,
        /// Published files whose bytes an earlier life of the node has lost.
        lost: LostFiles,
    },
    /// A node has been silent for so long that its regions are not granted any more.
    NodeLost {
        /// Name of the node.
        node: Name,
        /// Time since its last message, in ms.
        silent_ms: u64,
        /// Number of published files that have bytes there, and nowhere else.
        files: usize,
    },
    /// A silent node is heard of again. It has kept its memory.
    NodeBack {
        /// Name of the node.
        node: Name,
    },
    /// A node has started again. What its earlier life held is lost.
    NodeReplaced {
        /// Name of the node.
        node: Name,
        /// Published files that had bytes there.
        lost: LostFiles,
    },
    /// A node has ended as it was ordered, with nothing left in it.
    NodeEnded {
        /// Name of the node.
        node: Name,
    },
    /// A session has been silent for longer than its leases last.
    SessionLost {
        /// The session.
        session: SessionId,
        /// Tenant of the session.
        tenant: Name,
    },
}

/// Published files that have lost bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostFiles {
    /// Number of the files.
    pub count: usize,
    /// Names of the first of them.
    pub first: Vec<Name>,
}

/// Nodes as the news reported them last.
pub(super) type ToldNodes = BTreeMap<NodeId, ToldNode>;

#[derive(Clone, Debug)]
pub(super) struct ToldNode {
    name: Name,
    incarnation: Incarnation,
    is_alive: bool,
}

impl BrokerLeases {
    /// Returns what has changed since the last call.
    pub fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// Adds news of each node that has joined, fallen silent, come back, started again or ended since the last call.
    pub(super) fn note_nodes(&mut self, now: MonoNs) {
        let mut told = ToldNodes::new();
        for (id, node) in &self.nodes {
            let before = self.told_nodes.get(id);
            let is_alive = self.is_alive(now, node);
            let (name, incarnation) = (node.info.name.clone(), node.info.incarnation);
            if before.is_none() && !is_alive {
                continue;
            }
            let news = match before {
                None => Some(News::NodeJoined { node: name.clone(), lost: self.lost_with(*id, incarnation) }),
                Some(before) if before.incarnation != incarnation => {
                    Some(News::NodeReplaced { node: name.clone(), lost: self.lost_with(*id, incarnation) })
                }
                Some(before) if before.is_alive && !is_alive => {
                    let silent_ms = now.ms_since(node.heard);
                    let files = self.files_at(*id, |_| true);
                    let files = files.filter(|(_, file)| !self.has_copies_alive(now, file)).count();
                    Some(News::NodeLost { node: name.clone(), silent_ms, files })
                }
                Some(before) if !before.is_alive && is_alive => Some(News::NodeBack { node: name.clone() }),
                Some(_) => None,
            };
            self.news.extend(news);
            told.insert(*id, ToldNode { name, incarnation, is_alive });
        }
        let ended = self.told_nodes.iter().filter(|(id, _)| !told.contains_key(id));
        self.news.extend(ended.map(|(_, node)| News::NodeEnded { node: node.name.clone() }));
        self.told_nodes = told;
    }

    /// Returns the published files that have bytes on a node, in one of the lives that `of` accepts.
    fn files_at(
        &self,
        node: NodeId,
        of: impl Fn(Incarnation) -> bool,
    ) -> impl Iterator<Item = (&Name, &NamedFile)> {
        let is_there = move |file: &NamedFile| {
            file.places.regions.iter().any(|region| region.node == node && of(region.incarnation))
        };
        self.durable.names.iter().filter(move |(_, file)| is_there(file))
    }

    /// Returns the published files whose bytes were lost with the earlier lives of a node.
    fn lost_with(&self, node: NodeId, present: Incarnation) -> LostFiles {
        let mut lost = LostFiles::default();
        let files = self.files_at(node, |life| life != present).filter(|(_, file)| self.is_lost(file));
        for (name, _) in files {
            if lost.first.len() < NAMES_MAX {
                lost.first.push(name.clone());
            }
            lost.count += 1;
        }
        lost
    }
}
