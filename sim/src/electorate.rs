//! Simulated cluster by which the brokers of some worlds elect a leader. It has etcd's semantics and stores its data
//! on the world's disk.
//!
//! The idea: it promises no more than etcd does. A lease may end early or late, or be prolonged when the cluster
//! changes its own leader. The leader's key may vanish while its lease lives on. The cluster may not answer at all,
//! or not answer some machines. A transaction may take so long that another broker leads when it is executed. Only
//! revisions are reliable: a broker that was elected by an earlier revision writes nothing.

use crate::kernel::{MachineId, ProcessId, World, rest, world};
use farpool_broker::election::{Electorate, Leadership, Victory};
use farpool_broker::stores::StoreError;
use std::collections::BTreeMap;

const MS: u64 = 1_000_000;
/// Time that a broker waits for an answer of the cluster that elects the leader, in ns.
const PATIENCE_NS: u64 = 3_000 * MS;

/// Keys and leases of the simulated etcd cluster that concern the election of the leading broker.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    /// Lease that the leader's key is bound to. `None` if there is no such key, so nobody leads.
    key: Option<u64>,
    /// End of each lease, in ns of the world's time.
    leases: BTreeMap<u64, u64>,
    next_lease: u64,
    /// Time until which the cluster answers nobody, in ns of the world's time.
    stalled_until: u64,
    /// Machines that the cluster does not answer.
    isolated: Vec<MachineId>,
}

/// Faults of the cluster that elects the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// All leases end at once.
    LeasesEnd,
    /// The leader's key vanishes, and its lease lives on.
    KeyGoes,
    /// All leases start over, as if they had just been renewed.
    LeasesBeginAnew,
    /// The cluster answers nobody for this many nanoseconds.
    Stalls(u64),
    /// The cluster does not answer this machine.
    Isolates(MachineId),
    /// The cluster answers this machine again.
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
            Trouble::Isolates(machine) => self.isolated.push(machine),
            Trouble::Mends(machine) => self.isolated.retain(|isolated| *isolated != machine),
        }
        self.tidy(now);
    }

    /// Ends all faults: the cluster answers everybody again.
    pub(crate) fn heal(&mut self) {
        self.stalled_until = 0;
        self.isolated.clear();
    }
}

/// Spends the time that a request to the cluster and its answer take. Fails after [`PATIENCE_NS`] if the cluster is
/// stalled or does not answer this process's machine.
pub(crate) fn ask(process: ProcessId) -> Result<(), StoreError> {
    rest(world(|world| world.random.skewed(20_000, world.plan.commit_ns_max)));
    let wait = |world: &mut World| {
        let (now, machine) = (world.now(), world.process(process).machine);
        let cluster = &world.parties.cluster;
        let stalled = cluster.stalled_until.saturating_sub(now);
        if cluster.isolated.contains(&machine) { PATIENCE_NS } else { stalled.min(PATIENCE_NS) }
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

/// Connection of one broker to the cluster.
pub(crate) struct SimElectorate(pub(crate) ProcessId);

impl Electorate for SimElectorate {
    fn campaign(&self) -> Result<Option<Victory>, StoreError> {
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
            let (opening, machine) = (store.opening(), world.process(process).machine);
            world.disk_opened(opening, machine);
            world.tally.operation("election", true);
            world.note(process, "is elected", [opening, 0, 0]);
            let lives = world.parties.brokers.iter_mut();
            lives.filter(|life| life.process == process).for_each(|life| life.opening = opening);
            Some(Victory { lead: Box::new(SimLeadership { process, lease }), store: Box::new(store) })
        }))
    }
}

struct SimLeadership {
    process: ProcessId,
    lease: u64,
}

impl Leadership for SimLeadership {
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
