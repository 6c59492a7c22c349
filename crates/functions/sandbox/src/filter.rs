//! Filter of system calls: which calls the sandbox process may make, and with which arguments.
//!
//! The idea: a system call is permitted if running functions needs it and if it reaches nothing but this process and
//! the descriptors that it was given. If a call can reach others as well, its arguments are compared. For example, a
//! process id must be 0 or the process's own, and descriptors must not send signals. Any other call ends the process,
//! and its caller receives signal 31 (`SIGSYS`) as the reason. Calls that libraries try but can do without return an
//! error instead. The filter suffices alone, also where the kernel has neither Landlock nor namespaces.

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};
use std::collections::BTreeMap;
use std::error::Error;

/// Option of `prctl` that reads the auxiliary vector, which the kernel gives every process at its start (Linux 6.4).
const PR_GET_AUXV: u64 = 0x4155_5856;
/// Flag of `clone` that makes a thread and not a process.
const THREAD: u64 = libc::CLONE_THREAD as u64;
/// Flags of `clone` that a thread may not have: new namespaces, and effects that another process would see.
const NOT_BY_CLONE: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_PTRACE
    | libc::CLONE_PARENT
    | libc::CLONE_PIDFD
    | libc::CLONE_VFORK) as u64;
/// Bits that the id of a clock may have if the clock belongs to no process, such as the clock of real time. An id with
/// other bits names the CPU clock of a process.
const CLOCKS: u64 = 0xf;

/// System calls that reach nothing but this process and its descriptors.
const PLAIN: [i64; 45] = [
    // Memory.
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_membarrier,
    libc::SYS_mremap,
    libc::SYS_brk,
    // Connections, and what arrives over them.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_recvmsg,
    libc::SYS_recvfrom,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_shutdown,
    libc::SYS_close,
    // Open files, and files without a name.
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
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_sched_yield,
    libc::SYS_getrandom,
    libc::SYS_nanosleep,
    libc::SYS_restart_syscall,
];

/// System calls that take file names. They fail with `ENOSYS` if the process may not name files ([`Files::None`]).
#[cfg(target_arch = "x86_64")]
const NAMING: [i64; 7] = [
    libc::SYS_openat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_unlinkat,
    libc::SYS_readlinkat,
    libc::SYS_readlink,
    libc::SYS_access,
];
#[cfg(not(target_arch = "x86_64"))]
const NAMING: [i64; 5] =
    [libc::SYS_openat, libc::SYS_renameat, libc::SYS_renameat2, libc::SYS_unlinkat, libc::SYS_readlinkat];

/// Right of the process to name files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// The process may name files: its namespace or Landlock restricts it to files of its own.
    Named,
    /// The process may not name files, and uses the open ones that it was given.
    None,
}

/// Installs the filter for good, on this thread and all that it starts.
pub fn apply(files: Files) -> Result<(), Box<dyn Error>> {
    // The second filter forbids installing others, so it comes last.
    apply_filter(&absent(files)?)?;
    apply_filter(&permitted()?)?;
    Ok(())
}

fn permitted() -> Result<BpfProgram, Box<dyn Error>> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    rules.extend(PLAIN.map(|call| (call, Vec::new())));
    // The filter of `absent`, which was installed first, decides about these two calls and about file names.
    rules.extend([libc::SYS_clone3, libc::SYS_sched_getaffinity].map(|call| (call, Vec::new())));
    rules.extend(NAMING.map(|call| (call, Vec::new())));
    rules.extend(by_argument()?);
    let arch = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, arch)?.try_into()?)
}

/// Permits a call whose argument with this index has one of these values.
fn one_of(argument: u8, values: &[u64]) -> Result<Vec<SeccompRule>, BackendError> {
    values.iter().map(|value| SeccompRule::new(vec![is(argument, *value)?])).collect()
}

/// Makes the condition that a 32-bit argument has this value.
fn is(argument: u8, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

/// Makes the condition that an argument is the null address.
fn is_null(argument: u8) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)
}

/// Makes the condition that an argument has these flags and no others of the mask.
fn has(argument: u8, mask: u64, flags: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(mask), flags)
}

/// Returns the calls that may reach others unless their arguments say otherwise, with the permitted arguments. It
/// must be called in the process that will be filtered, whose id is one of the arguments.
fn by_argument() -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    let all = |conditions: Vec<SeccompCondition>| SeccompRule::new(conditions);
    let plain = [
        libc::F_DUPFD,
        libc::F_DUPFD_CLOEXEC,
        libc::F_GETFD,
        libc::F_SETFD,
        libc::F_GETFL,
        libc::F_ADD_SEALS,
        libc::F_GET_SEALS,
    ];
    // Neither `F_SETOWN`, which names the process that gets the descriptor's signals, nor `O_ASYNC`, which sends them.
    let mut fcntl = one_of(1, &plain.map(|command| command as u64))?;
    fcntl.push(all(vec![is(1, libc::F_SETFL as u64)?, has(2, libc::O_ASYNC as u64, 0)?])?);
    let socket = libc::SOL_SOCKET as u64;
    let option = |level: u64, name: libc::c_int| all(vec![is(1, level)?, is(2, name as u64)?]);
    // A message that opens a TCP connection could reach any address.
    let no_opening = |argument| has(argument, libc::MSG_FASTOPEN as u64, 0);
    Ok(BTreeMap::from([
        // Resource limits: only reading (no new value) those of this process (id 0).
        (libc::SYS_prlimit64, vec![all(vec![is(0, 0)?, is_null(2)?])?]),
        // Time: not the CPU clock of another process. The id of such a clock contains the id of its process.
        (libc::SYS_clock_gettime, vec![all(vec![has(0, !CLOCKS, 0)?])?]),
        (libc::SYS_clock_nanosleep, vec![all(vec![has(0, !CLOCKS, 0)?])?]),
        // Signals: to its own threads.
        (libc::SYS_tgkill, one_of(0, &[std::process::id().into()])?),
        (libc::SYS_clone, vec![all(vec![has(0, THREAD | NOT_BY_CLONE, THREAD)?])?]),
        // Names of threads and of memory, and what the CPU can do.
        (libc::SYS_prctl, one_of(0, &[libc::PR_SET_NAME as u64, libc::PR_SET_VMA as u64, PR_GET_AUXV])?),
        (libc::SYS_ioctl, one_of(1, &[libc::FIONBIO])?),
        (libc::SYS_fcntl, fcntl),
        (libc::SYS_sendto, vec![all(vec![no_opening(3)?, is_null(4)?])?]),
        (libc::SYS_sendmsg, vec![all(vec![no_opening(2)?])?]),
        (libc::SYS_setsockopt, vec![option(libc::IPPROTO_TCP as u64, libc::TCP_NODELAY)?]),
        (libc::SYS_getsockopt, vec![option(socket, libc::SO_ERROR)?, option(socket, libc::SO_TYPE)?]),
    ]))
}

/// Returns a filter that makes some calls fail as on a kernel that does not have them. `clone3` has its arguments in
/// memory, where no filter sees them; the C library uses `clone` instead. The C library also asks for the CPUs of a
/// thread by an id that could be that of any process, and can do without the answer. Libraries look for system files,
/// and can do without them too.
fn absent(files: Files) -> Result<BpfProgram, Box<dyn Error>> {
    let names_one = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, 0)?;
    let mut rules = BTreeMap::from([
        (libc::SYS_clone3, Vec::new()),
        (libc::SYS_sched_getaffinity, vec![SeccompRule::new(vec![names_one])?]),
    ]);
    if files == Files::None {
        rules.extend(NAMING.map(|call| (call, Vec::new())));
    }
    let arch = std::env::consts::ARCH.try_into()?;
    let absent = SeccompAction::Errno(libc::ENOSYS as u32);
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, absent, arch)?.try_into()?)
}
