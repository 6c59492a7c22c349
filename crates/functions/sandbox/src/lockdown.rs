//! What the process gives up before it sees anything of its tenant's: files but those of its cache, the network, other
//! processes, and all system calls but those that running functions takes ([`crate::filter`]).

use crate::filter::{self, Files};
use farpool_wire::limits::{FUNCTION_PIECE_BYTES, WINDOW_BYTES_MAX};
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::process::{Resource, Rlimit, Signal, set_parent_process_death_signal, setrlimit};
use rustix::thread::set_no_new_privs;
use std::error::Error;
use std::os::fd::OwnedFd;

/// Bytes of a file: what was supplied to a window lies in one as long as the window.
const FILE_BYTES_MAX: u64 = WINDOW_BYTES_MAX + FUNCTION_PIECE_BYTES as u64;
/// Descriptors: windows of many regions have one for each.
const DESCRIPTORS_MAX: u64 = 1 << 18;
/// What the process takes besides heaps: its own memory, call areas, outputs, stacks.
const OWN_BYTES: u64 = 8 << 30;

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
    filter::apply(if opens { Files::Named } else { Files::None })?;
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
