//! Namespaces of its own: no other process, network, file or IPC object has a name in them, and no right counts
//! outside.
//!
//! The idea: the program that a node starts becomes two processes. The first one makes the namespaces, starts the
//! second in them, and then only waits: it ends when the second one has ended, and ends that one when the node says so,
//! by closing its end of the socket. The second is number 1 in its namespace, has an empty folder for its root, and
//! runs the functions. Where namespaces are refused there are two processes all the same, so that a node ends them in
//! one way.
#![allow(unsafe_code)]

use farpool_functions::confinement::{Confinement, INSIDE_ID, Rights, hear, own_id, tell};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Gid, Uid};
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, Signal, WaitOptions, geteuid, kill_process, pidfd_open, pivot_root,
    set_dumpable_behavior, waitpid,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, UnshareFlags, set_capabilities, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid, unshare_unsafe,
};
use std::ffi::CStr;
use std::io;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The options of the root folder's mount, with its largest size: shared objects that are loaded lie in it.
const ROOT: &CStr = c"mode=0700,size=256m,nr_inodes=8192";
/// The time within which threads that were joined are gone.
const PATIENCE: Duration = Duration::from_secs(5);
/// The exit status by which the second process says that it was aborted. A signal of its own does not end it, as it is
/// the first process of its namespace.
pub const ABORTED: i32 = 128 + libc::SIGABRT;

/// Makes namespaces with the node's help, or does without where they are refused. To be called while there is one
/// thread.
pub fn enter(control: &UnixStream) -> io::Result<Confinement> {
    let mut confinement = Confinement::default();
    hear(control)?;
    let all = UnshareFlags::NEWUSER
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWNET
        | UnshareFlags::NEWNS
        | UnshareFlags::NEWIPC;
    let was_root = geteuid().is_root();
    // SAFETY: descriptors are not among what is unshared, and there is one thread.
    confinement.namespaces = unsafe { unshare_unsafe(all) }.is_ok();
    tell(control, confinement.namespaces.into())?;
    if confinement.namespaces {
        let rights = hear(control)?;
        confinement.user = rights == Rights::Own as u8;
        // Without the rights of any user it makes no files, and needs none.
        confinement.files =
            rights != Rights::None as u8 && become_user(INSIDE_ID).and_then(|()| empty_root()).is_ok();
    } else if was_root {
        confinement.user = become_user(own_id(std::process::id())).is_ok();
    }
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    // Nobody of the same user traces it, or reads its memory.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(confinement)
}

/// Waits until the thread that asks is the only one: those that have been joined may still be on their way out. An
/// error if others stay: what this thread gives up they would keep.
pub fn wait_alone() -> io::Result<()> {
    let give_up = Instant::now() + PATIENCE;
    loop {
        // SAFETY: nothing is unshared: it is an error if there is another thread.
        if unsafe { libc::unshare(libc::CLONE_THREAD) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINVAL) if Instant::now() < give_up => std::thread::yield_now(),
            Some(libc::EINVAL) => return Err(io::Error::other("a thread is there before the lockdown")),
            // A system that refuses to unshare anything does not say either.
            Some(libc::EPERM | libc::ENOSYS) => return Ok(()),
            _ => return Err(error),
        }
    }
}

/// Takes on a user and its group, and leaves all others.
fn become_user(id: u32) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(id), Gid::from_raw(id));
    // A node that is not root's may not let it leave groups. They give no right to anything that has a name here.
    let _ = set_thread_groups(&[]);
    set_thread_res_gid(group, group, group)?;
    Ok(set_thread_res_uid(user, user, user)?)
}

/// Puts an empty folder in memory in the place of all files.
fn empty_root() -> io::Result<()> {
    // Any folder will do, and this one is there: the node has just written to files in it.
    let place = c"/proc";
    mount(c"/", None, libc::MS_REC | libc::MS_PRIVATE, None)?;
    mount(place, Some(c"tmpfs"), libc::MS_NOSUID | libc::MS_NODEV, Some(ROOT))?;
    let pivoted = rustix::process::chdir(place).and_then(|()| pivot_root(c".", c"."));
    // The old root lies over the new one now, and goes. Without a new root its mount goes, which hides files.
    unmount(if pivoted.is_ok() { c"." } else { place })?;
    pivoted?;
    Ok(rustix::process::chdir(c"/")?)
}

fn unmount(at: &CStr) -> io::Result<()> {
    // SAFETY: the path is a C string.
    match unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn mount(at: &CStr, kind: Option<&CStr>, flags: libc::c_ulong, data: Option<&CStr>) -> io::Result<()> {
    let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: all of them are C strings or null, and the data of these kinds of mounts is text.
    match unsafe { libc::mount(c"none".as_ptr(), at.as_ptr(), pointer(kind), flags, pointer(data).cast()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Starts the second process. Returns its number in the first process, and nothing in the second. To be called while
/// there is one thread.
pub fn split() -> io::Result<Option<Pid>> {
    // SAFETY: there is one thread, so that the new process finds no lock taken and nothing half done.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        id => Ok(Pid::from_raw(id)),
    }
}

/// Waits until the second process has ended, and ends it once the node has closed its end of the socket. Returns the
/// exit status that says how: the number of the signal, or 0.
pub fn supervise(second: Pid, control: &UnixStream) -> io::Result<ExitCode> {
    let process = pidfd_open(second, PidfdFlags::empty())?;
    loop {
        let mut polled =
            [PollFd::new(&process, PollFlags::IN), PollFd::new(control, PollFlags::RDHUP | PollFlags::HUP)];
        match poll(&mut polled, None) {
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    // It may have ended by itself.
    let _ = kill_process(second, Signal::KILL);
    let status = waitpid(Some(second), WaitOptions::empty())?.map(|(_, status)| status);
    let signal = status.and_then(|status| match status.exit_status() {
        Some(ABORTED) => Some(libc::SIGABRT),
        _ => status.terminating_signal(),
    });
    Ok(ExitCode::from(signal.unwrap_or(0) as u8))
}

/// Redirects standard error, which is the node's and may be a terminal or a log, to where standard output goes:
/// nowhere.
pub fn silence() -> io::Result<()> {
    // SAFETY: both are descriptors that this process was started with, and nothing of Rust's owns them.
    match unsafe { libc::dup2(libc::STDOUT_FILENO, libc::STDERR_FILENO) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
