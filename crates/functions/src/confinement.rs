//! Confinement of sandbox processes: which namespaces a process has, and how it and the node that started it set them
//! up together.
//!
//! The idea: a process creates its own namespaces before it receives anything. It cannot choose by itself whose
//! rights it has in a new user namespace; its parent must write that. Node and process therefore exchange single bytes
//! over their socket:
//!
//! 1. The node reports that the process is in its control groups.
//! 2. The process reports that it has a user namespace.
//! 3. The node reports which user the namespace maps to ([`Rights`]).
//! 4. The process reports which confinement it has reached ([`Confinement`]).
//!
//! Where the system refuses namespaces, as container runtimes do by default, the process runs without them, confined
//! by its filter of system calls.

use rustix::process::{getegid, geteuid};
use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

/// Id of the process's user and group inside its namespace: that of `nobody`, by convention.
pub const INSIDE_ID: u32 = 65_534;
/// First of the ids of users and groups that each belong to one process. Distributions and systemd assign lower ids.
const OWN_IDS: u32 = 1_900_000_000;

/// Parts of the system that a sandbox process has for itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Confinement {
    /// True if it has namespaces for processes, network, IPC and capabilities, so that it cannot name another
    /// process.
    pub namespaces: bool,
    /// True if its root is an empty folder in memory.
    pub files: bool,
    /// True if it has a user of its own. That takes a node that was started by root.
    pub user: bool,
}

impl Confinement {
    /// Reports the confinement to the node.
    pub fn send(self, to: &UnixStream) -> io::Result<()> {
        let bits = [self.namespaces, self.files, self.user];
        tell(to, bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit)))
    }

    fn receive(from: &UnixStream) -> io::Result<Confinement> {
        let byte = hear(from)?;
        let bit = |index: u8| byte >> index & 1 == 1;
        Ok(Confinement { namespaces: bit(0), files: bit(1), user: bit(2) })
    }

    /// Reports whether the process has all the confinement that it can have. A user of its own is possible only if this
    /// program is run by root.
    pub fn is_whole(self) -> bool {
        self.namespaces && self.files && (self.user || !geteuid().is_root())
    }
}

impl fmt::Display for Confinement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lacks: Vec<&str> = [
            (self.namespaces, "namespaces for processes, network and IPC"),
            (self.files, "an empty root folder"),
            (self.user || !geteuid().is_root(), "a user"),
        ]
        .iter()
        .filter(|(has, _)| !has)
        .map(|(_, what)| *what)
        .collect();
        match lacks[..] {
            [] => f.write_str("shipped functions run in namespaces of their own"),
            _ => write!(
                f,
                "shipped functions run without {} of their own, because this system does not permit them; the filter \
                 of system calls keeps them from other processes, and Landlock, if the kernel has it, from files",
                lacks.join(", ")
            ),
        }
    }
}

/// Rights that a process has outside of its user namespace: those of the user to which the namespace is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Rights {
    /// The rights of a user that only this process has.
    Own,
    /// The rights of the node's user.
    Nodes,
    /// No rights: the node could not map any user.
    None,
}

/// Sends one byte.
pub fn tell(mut to: &UnixStream, byte: u8) -> io::Result<()> {
    to.write_all(&[byte])
}

/// Waits for one byte.
pub fn hear(mut from: &UnixStream) -> io::Result<u8> {
    let mut byte = [0];
    from.read_exact(&mut byte)?;
    Ok(byte[0])
}

/// Returns the id of a user and of a group that no process but the one with this id has. Ids of processes have at most
/// 22 bits.
pub fn own_id(process: u32) -> u32 {
    OWN_IDS + process
}

/// Confines a process that this node has started and put into its control groups: does the node's part of the exchange
/// of bytes over this socket. Returns the confinement that the process has reached.
pub fn confine(control: &UnixStream, process: u32) -> io::Result<Confinement> {
    tell(control, 1)?;
    if hear(control)? == 1 {
        tell(control, map_users(process).unwrap_or(Rights::None) as u8)?;
    }
    Confinement::receive(control)
}

/// Maps the user namespace of a process to one user and group of the system: to its own if this node may do that,
/// otherwise to the node's.
fn map_users(process: u32) -> io::Result<Rights> {
    let write = |file: &str, text: String| fs::write(format!("/proc/{process}/{file}"), text);
    let maps = |user: u32, group: u32| {
        write("uid_map", format!("{INSIDE_ID} {user} 1"))?;
        write("gid_map", format!("{INSIDE_ID} {group} 1"))
    };
    let own = own_id(process);
    if geteuid().is_root() && maps(own, own).is_ok() {
        return Ok(Rights::Own);
    }
    // The kernel lets only root map a group while the process may still leave groups.
    write("setgroups", "deny".to_owned())?;
    maps(geteuid().as_raw(), getegid().as_raw())?;
    Ok(Rights::Nodes)
}
