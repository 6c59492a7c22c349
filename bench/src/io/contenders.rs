//! Contenders of `farpool bench io`, which are measured and compared: local memory, far files over each transport, and
//! rival systems such as Redis.

use super::rivals::{Ready, Rival, memory};
use crate::exit::Failure;
use crate::harness::bursts::Means;
use crate::harness::measure::{Client, Servers};
use crate::harness::pools::{Cluster, Room, Way, wait_quiet};
use crate::harness::processes::Told;
use farpool::TransportChoice;
use farpool_host::waiting::chosen;
use farpool_transport::shaped::LinkShape;
use std::path::Path;

/// System, or path to far memory, that is measured and compared with the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contender {
    /// Name in tables.
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Memory of this process, with which all others are compared. None is expected to be faster.
    Memory,
    /// Far file, in a pool with or without TLS.
    Far { way: Way, with_tls: bool },
    /// Rival system.
    Other(Rival),
}

impl Contender {
    /// Reports whether memory nodes are used. Only then does their number matter.
    pub(crate) fn has_nodes(&self) -> bool {
        matches!(self.kind, Kind::Far { .. })
    }
}

/// Flags of the command that select what is measured. `shape` is the latency and bandwidth of an emulated link.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    /// True if an existing pool is measured. It may be on another machine, so only TCP is measured then.
    pub(crate) is_existing: bool,
    pub(crate) with_tls: bool,
    pub(crate) encrypted: bool,
    pub(crate) shape: Option<LinkShape>,
}

/// Returns all selected transports and systems. Local memory is always the first.
pub(crate) fn contenders(asked: Asked, rivals: &[Rival]) -> Vec<Contender> {
    let (shm, tcp) = (TransportChoice::Shm, TransportChoice::Tcp);
    let far = |name, transport, with_tls, is_encrypted, shape| Contender {
        name,
        kind: Kind::Far { way: Way { transport, is_encrypted, shape }, with_tls },
    };
    let mut all = vec![Contender { name: "memcpy", kind: Kind::Memory }];
    let mut add = |is_wanted: bool, contender| {
        if is_wanted {
            all.push(contender);
        }
    };
    let Asked { is_existing, with_tls, encrypted, shape } = asked;
    add(!is_existing, far("shm", shm, false, false, None));
    add(true, far("tcp", tcp, false, false, None));
    add(shape.is_some(), far("tcp, emulated", tcp, false, false, shape));
    add(with_tls, far("tcp+tls", tcp, true, false, None));
    add(encrypted && !is_existing, far("shm, encrypted", shm, false, true, None));
    add(encrypted, far("tcp, encrypted", tcp, false, true, None));
    add(encrypted && with_tls, far("tcp+tls, encrypted", tcp, true, true, None));
    all.extend(rivals.iter().map(|rival| Contender { name: rival.name(), kind: Kind::Other(*rival) }));
    all
}

/// Pools and rival servers that run during the whole benchmark.
pub(crate) struct Stage {
    /// Pools, by number of nodes: that number, a pool without TLS, and a pool with TLS if `--tls` was given.
    clusters: Vec<(u64, Cluster, Option<Cluster>)>,
    rivals: Vec<Ready>,
}

/// Clients of one transport or system that is measured, and the processes that serve them.
pub(crate) struct Cast {
    pub(crate) clients: Vec<Client>,
    /// Process ids of clients that run outside this process.
    pub(crate) client_pids: Vec<u32>,
    pub(crate) servers: Servers,
    /// True for a key-value store. Its blocks can only be read in the size in which they were written.
    pub(crate) is_by_key: bool,
    /// Server that serves only these clients. The field follows `clients`, so the server ends after them.
    _served_by: Option<Told>,
}

impl Stage {
    /// Wraps an existing pool.
    pub(crate) fn existing(cluster: Cluster, nodes: u64) -> Stage {
        Stage { clusters: vec![(nodes, cluster, None)], rivals: Vec::new() }
    }

    /// Starts the pools: one for each number of nodes, and another one with TLS if that was asked for.
    pub(crate) fn start(bytes: u64, clients: u64, nodes: &[u64], asked: Asked) -> Result<Stage, Failure> {
        let mut clusters = Vec::new();
        for nodes in nodes {
            let room = Room { bytes, clients, nodes: *nodes };
            // The nodes wait in the same mode as this process.
            let waiting = ["--waiting".to_owned(), chosen().word().to_owned()];
            let plain = Cluster::start(room, &waiting)?;
            let secured = if asked.with_tls { Some(Cluster::start_with_tls(room, &waiting)?) } else { None };
            clusters.push((*nodes, plain, secured));
        }
        Ok(Stage { clusters, rivals: Vec::new() })
    }

    /// Starts rivals with room for `bytes` of files each.
    pub(crate) fn add_rivals(&mut self, rivals: &[Rival], bytes: u64, disk: &Path) -> Result<(), Failure> {
        for rival in rivals {
            self.rivals.push(Ready::start(*rival, bytes, disk)?);
        }
        Ok(())
    }

    /// Waits until the nodes are idle.
    pub(crate) fn wait_quiet(&self) -> Result<(), Failure> {
        let all = self.clusters.iter().flat_map(|(_, plain, secured)| [Some(plain), secured.as_ref()]);
        all.flatten().try_for_each(|cluster| wait_quiet(cluster.pids(), cluster.patience()))
    }

    /// Opens a file of `bytes` for each client of a transport or system. A far file is opened in the pool with `nodes`
    /// nodes.
    pub(crate) fn open(
        &self,
        contender: &Contender,
        nodes: u64,
        clients: usize,
        bytes: u64,
    ) -> Result<Cast, Failure> {
        let mut cast = Cast {
            clients: Vec::new(),
            client_pids: Vec::new(),
            servers: Servers::default(),
            is_by_key: false,
            _served_by: None,
        };
        let mut add = |client: usize, means| cast.clients.push(Client::new(means, bytes, client as u64));
        match contender.kind {
            Kind::Memory => (0..clients).for_each(|client| add(client, memory(bytes))),
            Kind::Far { way, with_tls } => {
                let found = self.clusters.iter().find(|(count, ..)| *count == nodes);
                let (_, plain, secured) = found.ok_or_else(|| Failure::failed("no such pool"))?;
                let cluster = if with_tls { secured.as_ref() } else { Some(plain) };
                let cluster = cluster.ok_or_else(|| Failure::failed("no pool with TLS"))?;
                for client in 0..clients {
                    add(client, Means::Calls(Box::new(cluster.open(way, bytes)?)));
                }
                cast.servers.pids = cluster.pids().to_vec();
            }
            Kind::Other(rival) => {
                let found = self.rivals.iter().find(|ready| ready.rival == rival);
                let ready = found.ok_or_else(|| Failure::failed("no such rival"))?;
                let (served_by, address) = ready.serve(bytes * clients as u64)?.unzip();
                for client in 0..clients {
                    let opened = ready.open(client, bytes, address.as_deref().unwrap_or_default())?;
                    add(client, opened.means);
                    cast.client_pids.extend(opened.pid);
                }
                let pids = ready.pid().into_iter().chain(served_by.as_ref().map(Told::pid));
                cast.servers = Servers { pids: pids.collect(), never_rest: ready.never_rests() };
                cast.is_by_key = ready.is_by_key();
                cast._served_by = served_by;
            }
        }
        Ok(cast)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ceiling_comes_first_and_only_what_was_asked_follows() {
        let names =
            |asked| -> Vec<&str> { contenders(asked, &[]).iter().map(|contender| contender.name).collect() };
        assert_eq!(names(Asked::default()), ["memcpy", "shm", "tcp"]);
        let there = Asked { is_existing: true, encrypted: true, ..Asked::default() };
        assert_eq!(names(there), ["memcpy", "tcp", "tcp, encrypted"]);
        let both = Asked { with_tls: true, encrypted: true, ..Asked::default() };
        assert_eq!(names(both).last(), Some(&"tcp+tls, encrypted"));
    }
}
