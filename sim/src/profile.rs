//! Plan of a simulated world, drawn from its seed: how many processes it has, its timeouts, and its faults.

use crate::random::Random;
use farpool_broker::{BrokerSettings, LeaseSettings, Quotas};
use farpool_lease::SnapshotSettings;
use farpool_wire::TENANT_LOCAL;
use farpool_wire::limits::REGION_BYTES_MIN;
use std::str::FromStr;

/// Severity of the faults of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Profile {
    /// No faults at all: no operation may fail.
    Still,
    /// Few faults, as in a data centre in a quiet week.
    Calm,
    /// Faults all the time, one or two at once.
    Rough,
    /// Many faults at once.
    Hell,
    /// One of the other profiles for each world, drawn from its seed.
    Mixed,
}

impl Profile {
    /// Returns its name on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Profile::Still => "still",
            Profile::Calm => "calm",
            Profile::Rough => "rough",
            Profile::Hell => "hell",
            Profile::Mixed => "mixed",
        }
    }
}

impl FromStr for Profile {
    type Err = String;
    fn from_str(word: &str) -> Result<Profile, String> {
        [Profile::Still, Profile::Calm, Profile::Rough, Profile::Hell, Profile::Mixed]
            .into_iter()
            .find(|profile| profile.word() == word)
            .ok_or_else(|| format!("profile {word:?}; still, calm, rough, hell or mixed are permitted"))
    }
}

/// Machines that the faults of a world may hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Theme {
    /// All machines.
    Everybody,
    /// The host of one node and its paths to others, and nothing else: all protected files must stay readable and
    /// writable.
    OneNode(usize),
    /// Clients and their paths to others: nodes and broker must then work without any failure.
    Clients,
}

/// Properties of one world. Times are in ns unless the name says otherwise.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) profile: Profile,
    pub(crate) theme: Theme,
    pub(crate) settings: LeaseSettings,
    /// Times of snapshots of tables.
    pub(crate) snapshots: SnapshotSettings,
    /// Most appends that a client makes in a row: in a few worlds so many that manifests get pages.
    pub(crate) appends_max: u64,
    /// True if the peers of connections show certificates.
    pub(crate) has_identities: bool,
    /// Tenants; clients are assigned to them in turn.
    pub(crate) tenants: Vec<&'static str>,
    /// Quota of each tenant in bytes. `None` if there is none.
    pub(crate) quota_bytes: Option<u64>,
    /// True if the administrator drains nodes now and then.
    pub(crate) drains: bool,
    pub(crate) nodes: usize,
    pub(crate) clients: usize,
    /// Host on which each node runs. Some hosts have two nodes.
    pub(crate) host_of_node: Vec<usize>,
    pub(crate) regions_of_node: Vec<u32>,
    /// Node on whose machine a client runs, for each client. `None` if the client has a machine of its own.
    pub(crate) client_with_node: Vec<Option<usize>>,
    /// Time between two ticks of a node, in ms. In a tick it checks its leases.
    pub(crate) tick_ms: u64,
    pub(crate) renew_ms_max: u64,
    pub(crate) repair_bytes_per_second: u64,
    pub(crate) request_timeout_ms: u64,
    pub(crate) broker_patience_ms: u64,
    /// Duration of the phase with faults.
    pub(crate) faulty_ns: u64,
    /// Mean time between faults; 0 for no faults.
    pub(crate) fault_every_ns: u64,
    /// Mean pause of a client between bursts of operations.
    pub(crate) think_ns: u64,
    /// Latency of one direction: least and most.
    pub(crate) latency_ns: (u64, u64),
    pub(crate) byte_ns: u64,
    /// Longest delay between the moment at which a task may run and the one at which it does.
    pub(crate) schedule_ns_max: u64,
    /// Probability of a pause at each point where a memory operation may be interrupted, in millionths.
    pub(crate) interrupts_per_million: u32,
    /// Longest of these pauses.
    pub(crate) interrupt_ns_max: u64,
    pub(crate) commit_ns_max: u64,
    pub(crate) drifting_clocks: bool,
    /// True if requests that were answered are sent once more, later.
    pub(crate) asks_again: bool,
    /// True if the world has two brokers that elect a leader; false for one broker.
    pub(crate) stands: bool,
    /// Time after which a leader without a sign of life is replaced, in ms.
    pub(crate) lead_ms: u64,
}

impl Plan {
    pub(crate) fn draw(seed: u64, asked: Profile) -> Plan {
        let mut random = Random::new(seed ^ 0x05ee_d0fa_901d);
        let random = &mut random;
        let profile = match asked {
            Profile::Mixed => *random.pick(&[
                Profile::Still,
                Profile::Calm,
                Profile::Rough,
                Profile::Rough,
                Profile::Hell,
                Profile::Hell,
            ]),
            other => other,
        };
        let nodes = random.range(1, 5) as usize;
        // A pool of two nodes has two hosts.
        let mut host_of_node: Vec<usize> = (0..nodes).collect();
        if nodes > 2 && random.one_in(3) {
            host_of_node[nodes - 1] = random.below(nodes as u64 - 1) as usize;
        }
        let clients = random.range(1, 4) as usize;
        let theme = match random.below(6) {
            0 if nodes >= 2 => Theme::OneNode(random.below(nodes as u64) as usize),
            1 => Theme::Clients,
            _ => Theme::Everybody,
        };
        // A session renews its leases at one node after the other. If one node hangs, the leases at the next nodes must
        // not end meanwhile, so they live for 3 s at least.
        let is_strict = matches!(theme, Theme::OneNode(_));
        let lease_ttl_ms = random.skewed(if is_strict { 3_000 } else { 300 }, 600_000) as u32;
        let grace_ms =
            if random.one_in(8) { 0 } else { random.skewed(100, u64::from(lease_ttl_ms) * 2) as u32 };
        let grace_ms = grace_ms.min(600_000);
        // A pool with long leases sends few heartbeats.
        let heartbeat_ms = (u64::from(lease_ttl_ms) / 8).clamp(100, 15_000) as u32;
        let settings = LeaseSettings {
            lease_ttl_ms,
            grace_ms,
            ticket_ttl_ms: (random.skewed(500, 4 * u64::from(lease_ttl_ms.max(2_500))) as u32)
                .max(2 * heartbeat_ms),
            heartbeat_ms,
            node_silence_ms: heartbeat_ms * random.range(2, 8) as u32,
        };
        let life_ms = u64::from(lease_ttl_ms) + u64::from(grace_ms);
        let age_ms_max = random.skewed(200, 2 * life_ms);
        let snapshots = SnapshotSettings {
            count_max: random.skewed(1, 30) as u32,
            age_ms_max,
            hold_ms_max: age_ms_max + random.skewed(1_000, 40 * life_ms),
        };
        let lives = random.range(25, 70);
        let faulty_ns = (life_ms * lives).max(20_000) * 1_000_000;
        let fault_every_ns = match profile {
            Profile::Still | Profile::Mixed => 0,
            Profile::Calm => life_ms * 2_000_000,
            Profile::Rough => life_ms * random.range(250_000, 800_000),
            Profile::Hell => life_ms * random.range(50_000, 250_000),
        };
        let still = profile == Profile::Still;
        let regions_of_node: Vec<u32> = (0..nodes).map(|_| random.range(3, 12) as u32).collect();
        // Where quotas can be checked exactly, certificates are more frequent: a world without them has only one
        // tenant.
        let is_exact = theme == Theme::Clients || still;
        let has_identities = random.one_in(2) || is_exact && random.one_in(2);
        let tenants = match (has_identities, random.one_in(2)) {
            (false, _) => vec![TENANT_LOCAL],
            (true, false) => vec!["red"],
            (true, true) => vec!["red", "blue"],
        };
        let all_bytes = u64::from(regions_of_node.iter().sum::<u32>()) * REGION_BYTES_MIN;
        let most = if is_exact { all_bytes / 2 } else { all_bytes };
        let quota_bytes = (has_identities && (is_exact || random.one_in(2)))
            .then(|| random.range(2 * REGION_BYTES_MIN, most.max(3 * REGION_BYTES_MIN)));
        let request_timeout_ms = match is_strict {
            true => random.skewed(200, u64::from(lease_ttl_ms) / 10).min(5_000),
            false => random.skewed(200, 5_000).max(if still { 2_000 } else { 0 }),
        };
        let interrupt_ns_max = life_ms * random.range(1_000, 100_000);
        let interrupt_ns_max = if is_strict { interrupt_ns_max.min(5_000_000) } else { interrupt_ns_max };
        Plan {
            profile,
            theme,
            has_identities,
            tenants,
            quota_bytes,
            drains: random.one_in(3),
            nodes,
            clients,
            regions_of_node,
            client_with_node: (0..clients)
                .map(|_| random.one_in(2).then(|| random.below(nodes as u64) as usize))
                .map(|with| {
                    with.filter(|node| match theme {
                        Theme::Everybody => true,
                        Theme::OneNode(one) => host_of_node[one] != host_of_node[*node],
                        Theme::Clients => false,
                    })
                })
                .collect(),
            host_of_node,
            tick_ms: (u64::from(lease_ttl_ms) / 64).clamp(50, 5_000),
            renew_ms_max: match random.below(4) {
                0 => 250.max(u64::from(lease_ttl_ms) / 40),
                // Renewals as frequent as this make a node trusted again while earlier requests to it are still in
                // flight.
                1 | 2 => (request_timeout_ms / 8).max(u64::from(lease_ttl_ms) / 100).max(25),
                _ => 600_000,
            },
            repair_bytes_per_second: *random.pick(&[1 << 20, 1 << 20, 1 << 28]),
            request_timeout_ms,
            broker_patience_ms: random.skewed(500, 10_000).max(request_timeout_ms),
            faulty_ns,
            fault_every_ns,
            think_ns: life_ms * random.range(20_000, 200_000),
            latency_ns: (random.range(5_000, 100_000), random.range(100_000, 2_000_000)),
            byte_ns: random.below(10),
            schedule_ns_max: random.skewed(1_000, 200_000),
            interrupts_per_million: if still { 0 } else { random.range(0, 60_000) as u32 },
            interrupt_ns_max,
            commit_ns_max: random.skewed(100_000, 20_000_000),
            drifting_clocks: !still,
            asks_again: !still,
            stands: theme == Theme::Everybody && !still && random.one_in(2),
            lead_ms: random.skewed(500, 20_000),
            settings,
            snapshots,
            appends_max: if random.one_in(12) { 150 } else { 6 },
        }
    }

    /// Returns the settings of the broker.
    pub(crate) fn broker_settings(&self) -> BrokerSettings {
        let quotas = Quotas { default_bytes: self.quota_bytes, ..Quotas::default() };
        let snapshots = self.snapshots;
        BrokerSettings { lease: self.settings, quotas, snapshots, ..BrokerSettings::default() }
    }

    /// Returns the tenant of a client.
    pub(crate) fn tenant_of(&self, client: usize) -> &'static str {
        self.tenants[client % self.tenants.len()]
    }

    /// Returns the time in ns after which a silent session's leases have ended: the sum of TTL and grace.
    pub(crate) fn life_ns(&self) -> u64 {
        (u64::from(self.settings.lease_ttl_ms) + u64::from(self.settings.grace_ms)) * 1_000_000
    }
}
