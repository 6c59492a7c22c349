//! What the brokers of some worlds agree by: a cluster with etcd's semantics, over the disk of the world.
//!
//! The idea: it gives no more than etcd does. A lease ends early, or late, or is prolonged by a change of the cluster's
//! own leader; the key of a leader may go while its lease lives on; the cluster does not answer, or not everybody; a
//! transaction takes so long that another leads when it is carried out. What it does keep to is its revisions: whoever
//! was elected by an earlier one writes nothing.

use crate::kernel::{MachineId, ProcessId, World, rest, world};
use farpool_broker::election::{Electorate, Lead, Won};
use farpool_broker::stores::StoreError;
use std::collections::BTreeMap;

const MS: u64 = 1_000_000;
/// Whoever asks the cluster waits so long for an answer.
const PATIENCE_NS: u64 = 3_000 * MS;

/// The keys and leases of a cluster that have to do with leading.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    /// The lease of the leader's key; nothing: there is no such key.
    key: Option<u64>,
    /// When leases end, by the world's time.
    leases: BTreeMap<u64, u64>,
    next_lease: u64,
    /// It answers nobody until then.
    stalled_until: u64,
    /// Machines that it does not answer.
    cut: Vec<MachineId>,
}

/// What may befall a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// All leases end now.
    LeasesEnd,
    /// The leader's key goes, and its lease lives on.
    KeyGoes,
    /// All leases begin anew, as if they had just been kept.
    LeasesBeginAnew,
    /// Nobody is answered for so many nanoseconds.
    Stalls(u64),
    /// A machine is not answered.
    Cuts(MachineId),
    /// It is again.
    Mends(MachineId),
}

impl Cluster {
    fn tidy(&mut self, now: u64) {
        self.leases.retain(|_, until| now < *until);
        self.key = self.key.filter(|lease| self.leases.contains_key(lease));
    }

    pub(crate) fn befall(&mut self, now: u64, lasts_ns: u64, trouble: Trouble) {
        match trouble {
            Trouble::LeasesEnd => self.leases.clear(),
            Trouble::KeyGoes => self.key = None,
            Trouble::LeasesBeginAnew => self.leases.values_mut().for_each(|until| *until = now + lasts_ns),
            Trouble::Stalls(ns) => self.stalled_until = now + ns,
            Trouble::Cuts(machine) => self.cut.push(machine),
            Trouble::Mends(machine) => self.cut.retain(|cut| *cut != machine),
        }
        self.tidy(now);
    }

    /// Answers everybody again.
    pub(crate) fn heal(&mut self) {
        self.stalled_until = 0;
        self.cut.clear();
    }
}

/// A question's way to the cluster, and the answer's back: it takes its time, or there is no answer.
pub(crate) fn ask(process: ProcessId) -> Result<(), StoreError> {
    rest(world(|world| world.random.skewed(20_000, world.plan.commit_ns_max)));
    let wait = |world: &mut World| {
        let (now, machine) = (world.now(), world.process(process).machine);
        let cluster = &world.parties.cluster;
        let stalled = cluster.stalled_until.saturating_sub(now);
        if cluster.cut.contains(&machine) { PATIENCE_NS } else { stalled.min(PATIENCE_NS) }
    };
    let ns = world(wait);
    if ns > 0 {
        rest(ns);
        if world(wait) > 0 {
            return Err(StoreError("the cluster does not answer".to_owned()));
        }
    }
    Ok(())
}

/// A broker's way to the cluster.
pub(crate) struct SimElectorate(pub(crate) ProcessId);

impl Electorate for SimElectorate {
    fn campaign(&self) -> Result<Option<Won>, StoreError> {
        ask(self.0)?;
        let process = self.0;
        Ok(world(|world| {
            let (now, lasts_ms) = (world.now(), world.plan.lead_ms);
            let cluster = &mut world.parties.cluster;
            cluster.tidy(now);
            if cluster.key.is_some() {
                return None;
            }
            let lease = cluster.next_lease;
            cluster.next_lease += 1;
            cluster.key = Some(lease);
            cluster.leases.insert(lease, now + lasts_ms * MS);
            let store = world.parties.disk.open();
            let opening = store.opening();
            world.oracle.disk_opened();
            world.tally.operation("election", true);
            world.note(process, "is elected", [opening, 0, 0]);
            let lives = world.parties.brokers.iter_mut();
            lives.filter(|life| life.process == process).for_each(|life| life.opening = opening);
            Some(Won { lead: Box::new(SimLead { process, lease }), store: Box::new(store) })
        }))
    }
}

struct SimLead {
    process: ProcessId,
    lease: u64,
}

impl Lead for SimLead {
    fn lasts_ms(&self) -> u64 {
        world(|world| world.plan.lead_ms)
    }

    fn keep(&mut self) -> Result<bool, StoreError> {
        ask(self.process)?;
        Ok(world(|world| {
            let (now, lasts_ns) = (world.now(), world.plan.lead_ms * MS);
            let cluster = &mut world.parties.cluster;
            cluster.tidy(now);
            let is_ours = cluster.key == Some(self.lease);
            let lease = cluster.leases.get_mut(&self.lease).filter(|_| is_ours);
            lease.map(|until| *until = now + lasts_ns).is_some()
        }))
    }

    fn resign(&mut self) {
        if ask(self.process).is_ok() {
            world(|world| {
                let now = world.now();
                world.parties.cluster.leases.remove(&self.lease);
                world.parties.cluster.tidy(now);
            });
        }
    }
}
