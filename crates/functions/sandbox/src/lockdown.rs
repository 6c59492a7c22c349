//! What the process gives up before it sees anything of its tenant's: files but those of its cache, the network, other
//! processes, and all system calls but those that running functions takes.
//!
//! A system call that is not listed ends the process: its caller is told of signal 31 (`SIGSYS`).

use farpool_wire::limits::{FUNCTION_PIECE_BYTES, WINDOW_BYTES_MAX};
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::process::{Resource, Rlimit, Signal, set_parent_process_death_signal, setrlimit};
use rustix::thread::set_no_new_privs;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};
use std::collections::BTreeMap;
use std::error::Error;
use std::os::fd::OwnedFd;

/// Bytes of a file: what was supplied to a window lies in one as long as the window.
const FILE_BYTES_MAX: u64 = WINDOW_BYTES_MAX + FUNCTION_PIECE_BYTES as u64;
/// Descriptors: windows of many regions have one for each.
const DESCRIPTORS_MAX: u64 = 1 << 18;
/// What the process takes besides heaps: its own memory, call areas, outputs, stacks.
const OWN_BYTES: u64 = 8 << 30;

/// Linux 6.4: what the kernel tells every process at its start.
const PR_GET_AUXV: u64 = 0x4155_5856;

/// How far it stands back: where CPUs are short, those who wait for the node itself come first.
const NICENESS: i32 = 10;

/// Stands back, and ends with whoever started it. The first thing to be done: that one may be gone already, which its closed end tells.
pub fn follow_parent() -> Result<(), Box<dyn Error>> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    set_no_new_privs(true)?;
    rustix::process::nice(NICENESS)?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    Ok(())
}

/// Gives up the rest. Whether files can be opened at all: only where the kernel can hold them to the cache.
pub fn lock_down(cache: Option<&OwnedFd>, heap_bytes: u64) -> Result<bool, Box<dyn Error>> {
    for (resource, most) in [
        (Resource::Fsize, FILE_BYTES_MAX),
        (Resource::Data, OWN_BYTES.saturating_add(4 * heap_bytes)),
        (Resource::Nofile, DESCRIPTORS_MAX),
    ] {
        // A limit that is lower already stays.
        let most = rustix::process::getrlimit(resource).maximum.map_or(most, |maximum| maximum.min(most));
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    let opens = restrict_files(cache)?;
    // The last one permits no other.
    apply_filter(&no_clone3()?)?;
    apply_filter(&filter(opens)?)?;
    Ok(opens)
}

/// Whether files are restricted to the cache.
fn restrict_files(cache: Option<&OwnedFd>) -> Result<bool, Box<dyn Error>> {
    let abi = ABI::V6;
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(abi))?
        .handle_access(AccessNet::from_all(abi))?
        .scope(Scope::from_all(abi))?
        .create()?;
    let ruleset = match cache {
        Some(cache) => {
            ruleset.add_rule(PathBeneath::new(cache, AccessFs::from_all(ABI::V1) & !AccessFs::Execute))?
        }
        None => ruleset,
    };
    let status = ruleset.restrict_self()?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

fn filter(opens: bool) -> Result<BpfProgram, Box<dyn Error>> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    let listed = [
        // Memory.
        libc::SYS_mmap,
        libc::SYS_munmap,
        libc::SYS_mprotect,
        libc::SYS_madvise,
        libc::SYS_mincore,
        libc::SYS_membarrier,
        libc::SYS_mremap,
        libc::SYS_brk,
        // Its connections, and what comes over them.
        libc::SYS_read,
        libc::SYS_readv,
        libc::SYS_write,
        libc::SYS_writev,
        libc::SYS_recvmsg,
        libc::SYS_recvfrom,
        libc::SYS_sendmsg,
        libc::SYS_sendto,
        libc::SYS_poll,
        libc::SYS_ppoll,
        libc::SYS_getsockname,
        libc::SYS_getpeername,
        libc::SYS_setsockopt,
        libc::SYS_getsockopt,
        libc::SYS_shutdown,
        libc::SYS_fcntl,
        libc::SYS_close,
        // Files that it has, or makes without a name.
        libc::SYS_memfd_create,
        libc::SYS_ftruncate,
        libc::SYS_fallocate,
        libc::SYS_pread64,
        libc::SYS_pwrite64,
        libc::SYS_lseek,
        libc::SYS_fstat,
        libc::SYS_newfstatat,
        libc::SYS_statx,
        // Threads, signals, time.
        libc::SYS_clone3,
        libc::SYS_futex,
        libc::SYS_set_robust_list,
        libc::SYS_rseq,
        libc::SYS_set_tid_address,
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_gettid,
        libc::SYS_getpid,
        libc::SYS_tgkill,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_sigaltstack,
        libc::SYS_sched_yield,
        libc::SYS_sched_getaffinity,
        libc::SYS_prlimit64,
        libc::SYS_getrandom,
        libc::SYS_clock_gettime,
        libc::SYS_clock_nanosleep,
        libc::SYS_nanosleep,
        libc::SYS_restart_syscall,
    ];
    rules.extend(listed.map(|call| (call, Vec::new())));
    if opens {
        let files = [
            libc::SYS_openat,
            libc::SYS_renameat,
            libc::SYS_renameat2,
            libc::SYS_unlinkat,
            libc::SYS_readlinkat,
        ];
        rules.extend(files.map(|call| (call, Vec::new())));
        #[cfg(target_arch = "x86_64")]
        rules.extend([libc::SYS_readlink, libc::SYS_access].map(|call| (call, Vec::new())));
    }
    // Threads, not processes.
    let thread = libc::CLONE_THREAD as u64;
    let is_thread =
        SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(thread), thread)?;
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![is_thread])?]);
    // Names of threads and of memory, and what the CPU can do.
    let harmless = [libc::PR_SET_NAME as u64, libc::PR_SET_VMA as u64, PR_GET_AUXV].map(|option| {
        let is_it = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, option)?;
        SeccompRule::new(vec![is_it])
    });
    rules.insert(libc::SYS_prctl, harmless.into_iter().collect::<Result<_, _>>()?);
    let nonblocking = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, libc::FIONBIO)?;
    rules.insert(libc::SYS_ioctl, vec![SeccompRule::new(vec![nonblocking])?]);
    let arch = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, arch)?.try_into()?)
}

/// What `clone3` is asked for lies in memory, where no filter sees it: it is not there, and `clone` is used instead.
fn no_clone3() -> Result<BpfProgram, Box<dyn Error>> {
    let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let arch = std::env::consts::ARCH.try_into()?;
    let absent = SeccompAction::Errno(libc::ENOSYS as u32);
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, absent, arch)?.try_into()?)
}
