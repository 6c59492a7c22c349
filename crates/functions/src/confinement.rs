//! Namespaces of sandbox processes: what a process has of them, and what node and process say to each other until it
//! does.
//!
//! The idea: the process makes namespaces of its own before it is told anything. It cannot choose whose rights it has
//! in them: that is for its parent to write. So node and process take turns, a byte each, over the socket that is all
//! they share: the node says that its process is in its control groups; the process, that it has a user namespace; the
//! node, which user that maps to; the process, what has come of it all. Where namespaces are refused, as container
//! runtimes do by default, there are none, and the filter of system calls stands alone.

use rustix::process::{getegid, geteuid};
use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

/// The number of a process's user and group in its own namespace: nobody's, by custom.
pub const INSIDE_ID: u32 = 65_534;
/// The first number of users and groups of single processes. Distributions and systemd give out lower ones.
const OWN_IDS: u32 = 1_900_000_000;

/// The things that a process has for itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Confinement {
    /// Processes, network, IPC and capabilities: no other process can be named from inside.
    pub namespaces: bool,
    /// Files: its root is an empty folder in memory.
    pub files: bool,
    /// A user of its own, where an administrator has started the node.
    pub user: bool,
}

impl Confinement {
    /// Tells the node.
    pub fn send(self, to: &UnixStream) -> io::Result<()> {
        let bits = [self.namespaces, self.files, self.user];
        tell(to, bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit)))
    }

    fn receive(from: &UnixStream) -> io::Result<Confinement> {
        let byte = hear(from)?;
        let bit = |index: u8| byte >> index & 1 == 1;
        Ok(Confinement { namespaces: bit(0), files: bit(1), user: bit(2) })
    }

    /// Returns whether the process has all that it can have.
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
                "shipped functions run without {} of their own, for this system does not permit it; what keeps them from other \
                 processes is the filter of system calls, and from files Landlock, where the kernel has it",
                lacks.join(", ")
            ),
        }
    }
}

/// The rights outside that a process in a user namespace has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Rights {
    /// The rights of a user of its own.
    Own,
    /// The rights of the node's user.
    Nodes,
    /// None: the node could not give it any.
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

/// Returns the user and group of one process alone. Process numbers have at most 22 bits.
pub fn own_id(process: u32) -> u32 {
    OWN_IDS + process
}

/// Takes the node's turns, for a process that it has started and put into its control groups. Returns what has come of
/// it.
pub fn confine(control: &UnixStream, process: u32) -> io::Result<Confinement> {
    tell(control, 1)?;
    if hear(control)? == 1 {
        tell(control, map_users(process).unwrap_or(Rights::None) as u8)?;
    }
    Confinement::receive(control)
}

/// Gives a process, in its new user namespace, the rights of one user and group of this system: of its own if this
/// process may say so, or else of this process.
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
    // Only root may map a group for a process that could leave groups.
    write("setgroups", "deny".to_owned())?;
    maps(geteuid().as_raw(), getegid().as_raw())?;
    Ok(Rights::Nodes)
}
