//! `farpool doctor`: looks at what this machine offers to nodes, mounts and functions, and says what to change.
//!
//! The idea: everything is read first ([`Facts`]), and then judged by a pure function. So a judgement can be tested
//! without such a machine.

use crate::exit::Failure;
use crate::units::show_bytes;
use crate::{Outcome, table};
use farpool::function;
use farpool_command::json::JsonLine;
use farpool_command::programs;
use farpool_host::clock;
use farpool_node::{DaxDevice, HostMemory, HugePagePool, MemorySource};
use farpool_tiers::topology::Topology;
use rustix::process::{Resource, getrlimit};
use serde_json::json;
use std::fs;
use std::io::Write;
use std::path::Path;

/// Check what this machine offers to Farpool, and say what to change.
#[derive(clap::Args)]
#[command(after_help = "Example:  farpool doctor\n\nExit code: 1 if something does not work, else 0")]
pub(crate) struct Args {
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing to do.
    Good,
    /// Farpool works on this machine as it is, and would work better if the advice were followed.
    Advice,
    /// Something does not work.
    Fails,
}

/// One line of the report: a check of this machine, and its result.
#[derive(Debug)]
struct Finding {
    check: &'static str,
    state: State,
    found: String,
    /// Advice to the user; empty if there is nothing to do.
    advice: String,
}

/// Facts of this machine. A fact that could not be read is `None`.
#[derive(Clone, Debug, Default)]
struct Facts {
    kernel: String,
    is_root: bool,
    /// Hard limit of locked memory in bytes; `u64::MAX` if there is no limit.
    memlock_bytes: u64,
    open_files_max: u64,
    /// Total and available bytes of the space with the least: the host, or a control group of this process.
    memory: Option<(u64, u64)>,
    has_swap: bool,
    cgroup: Option<&'static str>,
    has_pressure: bool,
    clock_is_set: Option<bool>,
    /// Error of opening /dev/fuse; empty if it can be opened, so that mounts work.
    fuse: Option<String>,
    has_fusermount: bool,
    /// Chosen word of /sys/kernel/mm/transparent_hugepage/enabled.
    huge_pages: Option<String>,
    user_namespaces_max: Option<u64>,
    has_landlock: bool,
    has_kernel_tls: bool,
    sandbox: Option<String>,
    sql: Option<String>,
    /// Number and bytes of each NUMA node, and true if the node has CPUs.
    numa: Vec<(u32, u64, bool)>,
    /// Reserved huge pages by size.
    huge_page_pools: Vec<HugePagePool>,
    dax: Vec<DaxDevice>,
}

impl Facts {
    fn read() -> Facts {
        let text = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let spaces = HostMemory::find().sample().map(|sample| sample.spaces).unwrap_or_default();
        let tightest = spaces.iter().min_by_key(|space| space.available_bytes);
        let limit = |resource| getrlimit(resource).current.unwrap_or(u64::MAX);
        let hard = |resource| getrlimit(resource).maximum.unwrap_or(u64::MAX);
        let shown = |path: std::path::PathBuf| path.display().to_string();
        let fuse = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
        Facts {
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            is_root: rustix::process::geteuid().is_root(),
            memlock_bytes: limit(Resource::Memlock),
            open_files_max: hard(Resource::Nofile),
            memory: tightest.map(|space| (space.total_bytes, space.available_bytes)),
            has_swap: text("/proc/swaps").is_some_and(|swaps| swaps.lines().count() > 1),
            cgroup: match (
                Path::new("/sys/fs/cgroup/cgroup.controllers").exists(),
                Path::new("/sys/fs/cgroup/memory").exists(),
            ) {
                (true, _) => Some("version 2"),
                (_, true) => Some("version 1"),
                _ => None,
            },
            has_pressure: Path::new("/proc/pressure/memory").exists(),
            clock_is_set: clock::is_synchronized(),
            fuse: fuse.err().map(|error| error.to_string()),
            has_fusermount: programs::in_path("fusermount3").is_some(),
            huge_pages: text("/sys/kernel/mm/transparent_hugepage/enabled").and_then(|all| chosen(&all)),
            user_namespaces_max: text("/proc/sys/user/max_user_namespaces").and_then(|max| max.parse().ok()),
            has_landlock: text("/sys/kernel/security/lsm")
                .is_some_and(|all| all.split(',').any(|one| one == "landlock")),
            has_kernel_tls: text("/proc/sys/net/ipv4/tcp_available_ulp")
                .is_some_and(|all| all.contains("tls")),
            sandbox: function::sandbox_program().filter(|path| path.is_file()).map(shown),
            sql: programs::own("farpool-sql", "sql").ok().map(shown),
            numa: Topology::read().map_or(Vec::new(), |topology| {
                topology.nodes.iter().map(|node| (node.id, node.bytes, !node.is_cpu_less())).collect()
            }),
            huge_page_pools: HugePagePool::all(None),
            dax: DaxDevice::all(),
        }
    }
}

/// Returns the word in brackets: the setting that applies, in a file such as `always [madvise] never`.
fn chosen(all: &str) -> Option<String> {
    let (_, rest) = all.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word.to_owned())
}

/// Number of open files that a cached mount of a large folder may need. A lower hard limit is reported.
const OPEN_FILES: u64 = 65_536;

/// Judges the facts of this machine: returns a finding for each check.
fn judge(facts: &Facts) -> Vec<Finding> {
    let mut all = Vec::new();
    let mut add = |check, state, found: String, advice: &str| {
        all.push(Finding { check, state, found, advice: advice.to_owned() });
    };
    let kernel_tls = if facts.has_kernel_tls { "with TLS in the kernel" } else { "TLS in this process" };
    add("kernel", State::Good, format!("{}, {kernel_tls}", facts.kernel), "");

    match facts.memory {
        Some((total, available)) => {
            let found = format!("{} available of {}", show_bytes(available), show_bytes(total));
            let is_short = available < total / 10;
            let advice = "a node keeps a tenth of the memory free for the host: donate less, or free memory";
            add(
                "memory",
                if is_short { State::Advice } else { State::Good },
                found,
                if is_short { advice } else { "" },
            );
        }
        None => add(
            "memory",
            State::Advice,
            "unknown".into(),
            "/proc/meminfo cannot be read; start nodes with --no-reserve",
        ),
    }
    let may_lock = facts.is_root || facts.memlock_bytes == u64::MAX;
    let locked = match may_lock {
        true => "any amount may be locked".to_owned(),
        false => format!("{} may be locked", show_bytes(facts.memlock_bytes)),
    };
    let is_swapped = !may_lock && facts.has_swap;
    let advice = if is_swapped {
        "donated memory can be swapped out: set LimitMEMLOCK=infinity (systemd) or ulimit -l unlimited"
    } else if may_lock {
        ""
    } else {
        "there is no swap, so this matters only to latency: LimitMEMLOCK=infinity (systemd)"
    };
    add(
        "locked memory",
        if is_swapped {
            State::Fails
        } else if may_lock {
            State::Good
        } else {
            State::Advice
        },
        locked,
        advice,
    );

    let (state, advice) = match facts.huge_pages.as_deref() {
        Some("always" | "madvise") => (State::Good, ""),
        _ => (
            State::Advice,
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled makes large copies faster",
        ),
    };
    add("transparent huge pages", state, facts.huge_pages.clone().unwrap_or_else(|| "none".into()), advice);

    let cgroup = facts.cgroup.map_or("none".to_owned(), |version| format!("control groups of {version}"));
    let pressure = if facts.has_pressure { "pressure is reported" } else { "pressure is not reported" };
    let advice =
        if facts.has_pressure { "" } else { "boot with psi=1, so that nodes see when tasks wait for memory" };
    add(
        "limits",
        if facts.has_pressure { State::Good } else { State::Advice },
        format!("{cgroup}; {pressure}"),
        advice,
    );

    match facts.clock_is_set {
        Some(true) => add("clock", State::Good, "synchronized".into(), ""),
        Some(false) => add(
            "clock",
            State::Advice,
            "not synchronized".into(),
            "leases need no clock, but certificates and logs do: run chrony or systemd-timesyncd",
        ),
        None => {
            add("clock", State::Advice, "unknown".into(), "the system call adjtimex is not permitted here")
        }
    }

    match &facts.fuse {
        Some(error) => add(
            "mounts (FUSE)",
            State::Fails,
            format!("/dev/fuse: {error}"),
            "farpool mount does not work: load the module fuse, and give containers the device /dev/fuse",
        ),
        None if !facts.is_root && !facts.has_fusermount => {
            add("mounts (FUSE)", State::Fails, "no fusermount3".into(), "install fuse3, or mount as root");
        }
        None => add("mounts (FUSE)", State::Good, "possible".into(), ""),
    }
    let few = facts.open_files_max < OPEN_FILES;
    add(
        "open files",
        if few { State::Advice } else { State::Good },
        format!("at most {}", facts.open_files_max),
        if few { "each file of a cached mount needs one: set LimitNOFILE=1048576 (systemd)" } else { "" },
    );

    let confined = match (facts.user_namespaces_max, facts.has_landlock) {
        (Some(1..), true) => (State::Good, "user namespaces and Landlock", ""),
        (Some(1..), false) => (State::Good, "user namespaces", ""),
        (_, true) => (State::Advice, "Landlock, no user namespaces", "sysctl user.max_user_namespaces=10000"),
        (_, false) => {
            (State::Advice, "a filter of system calls only", "sysctl user.max_user_namespaces=10000")
        }
    };
    match &facts.sandbox {
        Some(path) => add("functions", confined.0, format!("{path}; confined by {}", confined.1), confined.2),
        None => add(
            "functions",
            State::Advice,
            "farpool-sandbox was not found".into(),
            "nodes run no functions of clients: install farpool-sandbox beside farpool",
        ),
    }
    match &facts.sql {
        Some(path) => add("SQL", State::Good, path.clone(), ""),
        None => add(
            "SQL",
            State::Advice,
            "farpool-sql was not found".into(),
            "install it beside farpool for farpool sql",
        ),
    }
    donations(facts, &mut add);
    all
}

/// Says which memory a node can donate on this machine, by which flag.
fn donations(facts: &Facts, add: &mut impl FnMut(&'static str, State, String, &str)) {
    let far: Vec<_> = facts.numa.iter().filter(|(_, bytes, has_cpus)| *bytes > 0 && !has_cpus).collect();
    let count = match facts.numa.len() {
        0 => "unknown".to_owned(),
        1 => "one".to_owned(),
        count => count.to_string(),
    };
    let without =
        far.iter().map(|(id, bytes, _)| format!("; node {id} has {} and no CPUs", show_bytes(*bytes)));
    let found = std::iter::once(count).chain(without).collect();
    let advice = far.first().map(|(id, ..)| {
        format!("farpool node --memory-node {id} donates memory that programs of this machine rarely use")
    });
    add("NUMA nodes", State::Good, found, &advice.unwrap_or_default());

    let pools = &facts.huge_page_pools;
    let free = |pool: &HugePagePool| {
        format!("{} of {} free of {}", pool.free, pool.total, show_bytes(pool.page_bytes))
    };
    let found = match pools.is_empty() {
        true => "none: the kernel lacks hugetlb".to_owned(),
        false => pools.iter().map(free).collect::<Vec<_>>().join(", "),
    };
    // They are a choice, so that a machine without any needs no advice.
    let some = pools.iter().find(|pool| pool.free > 0);
    let advice = some.map(|pool| {
        let size = show_bytes(pool.page_bytes).replace(' ', "");
        format!("farpool node --huge-pages {size} donates them; more: echo NUMBER > {}", pool.file.display())
    });
    add("reserved huge pages", State::Good, found, &advice.unwrap_or_default());

    let device = |one: &DaxDevice| format!("{} of {}", one.path.display(), show_bytes(one.bytes));
    let found = match facts.dax.is_empty() {
        true => "none".to_owned(),
        false => facts.dax.iter().map(device).collect::<Vec<_>>().join(", "),
    };
    let advice = facts.dax.first().map(|one| format!("farpool node --dax {} donates it", one.path.display()));
    add("DAX devices", State::Good, found, &advice.unwrap_or_default());
}

pub(crate) fn run(args: &Args) -> Outcome {
    let findings = judge(&Facts::read());
    let mut out = std::io::stdout().lock();
    let word = |state| match state {
        State::Good => "ok",
        State::Advice => "advice",
        State::Fails => "FAILS",
    };
    if args.json {
        let all: Vec<_> = findings
            .iter()
            .map(|one| {
                let state = word(one.state).to_lowercase();
                json!({ "check": one.check, "state": state, "found": one.found, "advice": one.advice })
            })
            .collect();
        writeln!(out, "{}", JsonLine(&json!({ "checks": all })))?;
    } else {
        let rows: Vec<Vec<String>> = findings
            .iter()
            .map(|one| vec![one.check.to_owned(), word(one.state).to_owned(), one.found.clone()])
            .collect();
        table::lines(&["check", "state", "found"], &rows)
            .iter()
            .try_for_each(|line| writeln!(out, "{line}"))?;
        for one in findings.iter().filter(|one| !one.advice.is_empty()) {
            writeln!(out, "\n{}: {}", one.check, one.advice)?;
        }
    }
    out.flush()?;
    match findings.iter().filter(|one| one.state == State::Fails).count() {
        0 => Ok(()),
        count => Err(Failure::Refused(format!("{count} of {} checks fail on this machine", findings.len()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Facts {
        Facts {
            kernel: "6.12.0".into(),
            memlock_bytes: u64::MAX,
            open_files_max: 1 << 20,
            memory: Some((64 << 30, 32 << 30)),
            cgroup: Some("version 2"),
            has_pressure: true,
            clock_is_set: Some(true),
            has_fusermount: true,
            huge_pages: Some("madvise".into()),
            user_namespaces_max: Some(10_000),
            has_landlock: true,
            sandbox: Some("/usr/bin/farpool-sandbox".into()),
            sql: Some("/usr/bin/farpool-sql".into()),
            numa: vec![(0, 64 << 30, true)],
            ..Facts::default()
        }
    }

    fn of(facts: &Facts, check: &str) -> Finding {
        let found = judge(facts).into_iter().find(|one| one.check == check);
        found.unwrap_or_else(|| panic!("there is a check {check}"))
    }

    #[test]
    fn machine_with_everything_needs_no_advice() {
        for one in judge(&good()) {
            assert_eq!((one.state, one.advice.as_str()), (State::Good, ""), "{one:?}");
        }
    }

    #[test]
    fn each_lack_has_advice() {
        let lacks: [(&str, State, Facts); 9] = [
            ("memory", State::Advice, Facts { memory: Some((64 << 30, 1 << 30)), ..good() }),
            ("locked memory", State::Fails, Facts { memlock_bytes: 8 << 20, has_swap: true, ..good() }),
            ("locked memory", State::Advice, Facts { memlock_bytes: 8 << 20, ..good() }),
            ("transparent huge pages", State::Advice, Facts { huge_pages: Some("never".into()), ..good() }),
            ("limits", State::Advice, Facts { has_pressure: false, ..good() }),
            ("clock", State::Advice, Facts { clock_is_set: Some(false), ..good() }),
            ("mounts (FUSE)", State::Fails, Facts { fuse: Some("No such file".into()), ..good() }),
            ("mounts (FUSE)", State::Fails, Facts { has_fusermount: false, ..good() }),
            ("open files", State::Advice, Facts { open_files_max: 1024, ..good() }),
        ];
        for (check, state, facts) in lacks {
            let one = of(&facts, check);
            assert!(one.state == state && !one.advice.is_empty(), "{one:?}");
        }
        assert_eq!(of(&Facts { sandbox: None, ..good() }, "functions").state, State::Advice);
        assert_eq!(of(&Facts { user_namespaces_max: Some(0), ..good() }, "functions").state, State::Advice);
    }

    #[test]
    fn memory_that_a_node_can_donate_is_listed_with_its_flag() {
        let pool = |free| HugePagePool { page_bytes: 2 << 20, total: 100, free, file: "/sys/nr".into() };
        let facts = Facts {
            numa: vec![(0, 64 << 30, true), (2, 128 << 30, false)],
            huge_page_pools: vec![pool(70)],
            dax: vec![DaxDevice {
                path: "/dev/dax0.0".into(),
                bytes: 32 << 30,
                align_bytes: 2 << 20,
                numa_node: None,
            }],
            ..good()
        };
        for (check, found, flag) in [
            ("NUMA nodes", "node 2", "--memory-node 2"),
            ("reserved huge pages", "70 of 100", "--huge-pages 2"),
            ("DAX devices", "/dev/dax0.0", "--dax /dev/dax0.0"),
        ] {
            let one = of(&facts, check);
            assert!(one.found.contains(found) && one.advice.contains(flag), "{one:?}");
        }
        let used = Facts { huge_page_pools: vec![pool(0)], ..good() };
        assert_eq!(of(&used, "reserved huge pages").advice, "", "nothing to donate");
    }

    #[test]
    fn chosen_word_is_the_one_in_brackets() {
        assert_eq!(chosen("always [madvise] never").as_deref(), Some("madvise"));
        assert_eq!(chosen("always madvise"), None);
    }
}
