//! Namespaces of the process: inside them no other process, network, file or IPC object has a name, and no right has
//! an effect outside.
//!
//! The idea: the program that a node starts becomes two processes. The first one creates the namespaces, starts the
//! second one in them, and then only waits. It ends when the second one has ended, and it ends the second one when
//! the node closes its end of the socket. The second process has number 1 in its namespace and an empty folder as its
//! root, and runs the functions. If the system refuses namespaces there are two processes nevertheless, so that the
//! node ends them in the same way.
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

/// Mount options of the root folder, with its largest size. Loaded shared objects lie in it.
const ROOT: &CStr = c"mode=0700,size=256m,nr_inodes=8192";
/// Longest time to wait until the kernel has removed threads that were joined.
const PATIENCE: Duration = Duration::from_secs(5);
/// Exit status of the second process if it was aborted. As the first process of its namespace it is not ended by
/// signals that it sends to itself.
pub const ABORTED: i32 = 128 + libc::SIGABRT;

/// Creates namespaces with the help of the node at the other end of `control`, or does without them where the system
/// refuses. The caller must be the only thread.
pub fn enter(control: &UnixStream) -> io::Result<Confinement> {
    let mut confinement = Confinement::default();
    hear(control)?;
    let all = UnshareFlags::NEWUSER
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWNET
        | UnshareFlags::NEWNS
        | UnshareFlags::NEWIPC;
    let was_root = geteuid().is_root();
    // SAFETY: descriptors are not among the things that are unshared, and the caller promises that this is the only
    // thread.
    confinement.namespaces = unsafe { unshare_unsafe(all) }.is_ok();
    tell(control, confinement.namespaces.into())?;
    if confinement.namespaces {
        let rights = hear(control)?;
        confinement.user = rights == Rights::Own as u8;
        // A process without the rights of any user cannot create files, and needs none.
        confinement.files =
            rights != Rights::None as u8 && become_user(INSIDE_ID).and_then(|()| empty_root()).is_ok();
    } else if was_root {
        confinement.user = become_user(own_id(std::process::id())).is_ok();
    }
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    // Forbids other processes of the same user to trace this process or to read its memory.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(confinement)
}

/// Waits until this is the only thread: threads that were joined may still be ending. It is an error if others stay,
/// because they would keep the rights that this thread gives up.
pub fn wait_alone() -> io::Result<()> {
    let give_up = Instant::now() + PATIENCE;
    loop {
        // SAFETY: with this flag alone the kernel unshares nothing. It only fails if there is another thread.
        if unsafe { libc::unshare(libc::CLONE_THREAD) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINVAL) if Instant::now() < give_up => std::thread::yield_now(),
            Some(libc::EINVAL) => {
                return Err(io::Error::other("another thread was running before the lockdown"));
            }
            // A system that forbids `unshare` does not say whether there are threads.
            Some(libc::EPERM | libc::ENOSYS) => return Ok(()),
            _ => return Err(error),
        }
    }
}

/// Makes this thread run as the user and the group with this id, and leave all other groups.
fn become_user(id: u32) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(id), Gid::from_raw(id));
    // A node that is not run by root may be unable to let the process leave groups. They give no right to anything
    // that has a name in these namespaces.
    let _ = set_thread_groups(&[]);
    set_thread_res_gid(group, group, group)?;
    Ok(set_thread_res_uid(user, user, user)?)
}

/// Replaces the file system by an empty folder in memory.
fn empty_root() -> io::Result<()> {
    // Uses `/proc` because it surely exists: the node has just written to files in it. Any folder would do.
    let place = c"/proc";
    mount(c"/", None, libc::MS_REC | libc::MS_PRIVATE, None)?;
    mount(place, Some(c"tmpfs"), libc::MS_NOSUID | libc::MS_NODEV, Some(ROOT))?;
    let pivoted = rustix::process::chdir(place).and_then(|()| pivot_root(c".", c"."));
    // The old root is now mounted over the new one, and is unmounted. If the root could not be changed, the new mount
    // is unmounted, because it hides files.
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
    // SAFETY: all arguments are C strings or null, and the data of these kinds of mounts is text.
    match unsafe { libc::mount(c"none".as_ptr(), at.as_ptr(), pointer(kind), flags, pointer(data).cast()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Starts the second process. Returns its id in the first process, and `None` in the second. The caller must be the
/// only thread.
pub fn split() -> io::Result<Option<Pid>> {
    // SAFETY: the caller promises that this is the only thread, so the new process finds no lock held and nothing half
    // done.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        id => Ok(Pid::from_raw(id)),
    }
}

/// Waits until the second process has ended or the node has closed its end of the socket, and then ends the second
/// process. Returns the exit status for the node: the number of the signal that ended the second process, or 0.
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
    // An error means that the second process has ended by itself.
    let _ = kill_process(second, Signal::KILL);
    let status = waitpid(Some(second), WaitOptions::empty())?.map(|(_, status)| status);
    let signal = status.and_then(|status| match status.exit_status() {
        Some(ABORTED) => Some(libc::SIGABRT),
        _ => status.terminating_signal(),
    });
    Ok(ExitCode::from(signal.unwrap_or(0) as u8))
}

/// Redirects standard error to `/dev/null`, where standard output goes already. Until then standard error is that of
/// the node, which may be a terminal or a log.
pub fn silence() -> io::Result<()> {
    // SAFETY: the process was started with both descriptors, and no Rust value owns them.
    match unsafe { libc::dup2(libc::STDOUT_FILENO, libc::STDERR_FILENO) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
