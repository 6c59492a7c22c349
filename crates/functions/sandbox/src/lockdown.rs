//! Lockdown: the rights that the sandbox process gives up before it sees anything of its tenant. It keeps the files of
//! its cache of compiled code, and the system calls that are needed to run functions ([`crate::filter`]). It gives up
//! other files, the network, other processes and all other system calls.

use crate::filter::{self, Files};
use crate::namespaces;
use farpool_functions::confinement::Confinement;
use farpool_wire::limits::{FUNCTION_PIECE_BYTES, WINDOW_BYTES_MAX};
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Resource, Rlimit, Signal, set_parent_process_death_signal, setrlimit};
use rustix::thread::set_no_new_privs;
use std::error::Error;
use std::os::fd::OwnedFd;

/// Largest size of a file that the process may write, in bytes. The largest one has the size of a window (the range of
/// far memory that functions see), and holds the bytes of it that lie at other nodes and that callers have sent.
const FILE_BYTES_MAX: u64 = WINDOW_BYTES_MAX + FUNCTION_PIECE_BYTES as u64;
/// Largest number of open file descriptors. A window has one for each of its regions.
const DESCRIPTORS_MAX: u64 = 1 << 18;
/// Bytes of memory besides heaps: the process's own data, call areas, outputs, stacks.
const OWN_BYTES: u64 = 8 << 30;

/// Lowers the process's priority, and gives up privileges of programs that it would start, core dumps, and the mask
/// of file modes.
pub fn lower_priority(niceness: u8) -> Result<(), Box<dyn Error>> {
    set_no_new_privs(true)?;
    rustix::process::nice(niceness.into())?;
    // Files are to be created with exactly the mode that is asked for.
    rustix::process::umask(Mode::empty());
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    Ok(())
}

/// Makes the kernel end this process when its parent ends. If the parent has ended already, this process notices it by
/// the closed control socket. The kernel drops this setting whenever the process changes its user, so it must be set
/// again afterwards.
pub fn follow_parent() -> Result<(), Box<dyn Error>> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Gives up all rights but those to its cache, its own root and the system calls of [`crate::filter`]. Returns true if
/// Landlock restricts the process to the files of its cache and of its own root.
pub fn lock_down(
    cache: Option<&OwnedFd>,
    heap_bytes: u64,
    confinement: Confinement,
) -> Result<bool, Box<dyn Error>> {
    namespaces::wait_alone()?;
    for (resource, most) in [
        (Resource::Fsize, FILE_BYTES_MAX),
        (Resource::Data, OWN_BYTES.saturating_add(4 * heap_bytes)),
        (Resource::Nofile, DESCRIPTORS_MAX),
    ] {
        // A limit that is lower already is kept.
        let most = rustix::process::getrlimit(resource).maximum.map_or(most, |maximum| maximum.min(most));
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    let root =
        confinement.files.then(|| open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())).transpose()?;
    let is_held = restrict_files(cache.into_iter().chain(&root))?;
    namespaces::silence()?;
    // File names are permitted without Landlock only if the process has an empty root of its own.
    filter::apply(if is_held || confinement.files { Files::Named } else { Files::None })?;
    Ok(is_held)
}

/// Restricts file access to these folders, by Landlock. Returns true if the kernel enforces it.
fn restrict_files<'f>(mut folders: impl Iterator<Item = &'f OwnedFd>) -> Result<bool, Box<dyn Error>> {
    let abi = ABI::V6;
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(abi))?
        .handle_access(AccessNet::from_all(abi))?
        .scope(Scope::from_all(abi))?
        .create()?;
    let rights = AccessFs::from_all(ABI::V1) & !AccessFs::Execute;
    let ruleset =
        folders.try_fold(ruleset, |ruleset, folder| ruleset.add_rule(PathBeneath::new(folder, rights)))?;
    let status = ruleset.restrict_self()?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}
