//! Mounts that this process sees: `/proc/self/mountinfo` (proc_pid_mountinfo(5)).

use crate::NAME;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Mounts in the order of the kernel's list. A later mount at a path hides earlier ones.
#[derive(Debug, PartialEq, Eq)]
pub struct MountTable(Vec<KernelMount>);

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelMount {
    /// Number of the mount in this mount namespace, as `mnt_id` in `/proc/self/fdinfo` has it.
    pub number: u64,
    /// Number of the device of its file system, such as `0:39`. All mounts of one file system have the same.
    pub device: String,
    /// Canonical path at which it is mounted.
    pub at: PathBuf,
    /// True if it shows the whole file system, and not a folder of it.
    pub is_whole: bool,
    /// True if nothing can be written through this mount.
    pub is_read_only: bool,
    kind: OsString,
    source: OsString,
}

impl MountTable {
    /// Reads the table of this process.
    pub fn read() -> io::Result<MountTable> {
        std::fs::read("/proc/self/mountinfo").map(|bytes| MountTable::parse(&bytes))
    }

    fn parse(bytes: &[u8]) -> MountTable {
        MountTable(bytes.split(|byte| *byte == b'\n').filter_map(KernelMount::of_line).collect())
    }

    /// Returns the mount at a canonical path that can be seen there.
    pub fn at(&self, place: &Path) -> Option<&KernelMount> {
        self.0.iter().rfind(|mount| mount.at == place)
    }

    /// Returns the mount with a number.
    pub fn numbered(&self, number: u64) -> Option<&KernelMount> {
        self.0.iter().find(|mount| mount.number == number)
    }

    /// Returns all mounts of the file system with this device.
    pub fn of_device<'t>(&'t self, device: &'t str) -> impl Iterator<Item = &'t KernelMount> {
        self.0.iter().filter(move |mount| mount.device == device)
    }
}

impl KernelMount {
    /// Reports whether this crate made the file system. The source decides, because the type is only `fuse` if root
    /// mounted the folder.
    pub fn is_ours(&self) -> bool {
        let source = self.source.as_bytes().strip_prefix(NAME.as_bytes());
        let is_from_us = source.is_some_and(|rest| rest.is_empty() || rest.starts_with(b":"));
        is_from_us && self.kind.as_bytes().starts_with(b"fuse")
    }

    fn of_line(line: &[u8]) -> Option<KernelMount> {
        let mut fields = line.split(|byte| *byte == b' ');
        let text = |field: &[u8]| str::from_utf8(field).map(str::to_owned).ok();
        let number = text(fields.next()?)?.parse().ok()?;
        let (_parent, device, root) = (fields.next()?, text(fields.next()?)?, fields.next()?);
        let at = PathBuf::from(unescaped(fields.next()?));
        let is_read_only = fields.next()?.split(|byte| *byte == b',').any(|option| option == b"ro");
        // Optional fields end with a dash; type and source follow it.
        let mut last = fields.skip_while(|field| *field != b"-").skip(1);
        Some(KernelMount {
            number,
            device,
            at,
            is_whole: root == b"/",
            is_read_only,
            kind: unescaped(last.next()?),
            source: unescaped(last.next()?),
        })
    }
}

/// Shows type and source.
impl fmt::Display for KernelMount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |text: &OsStr| text.display().to_string();
        write!(f, "{} of {}", shown(&self.kind), shown(&self.source))
    }
}

/// Decodes a field of `/proc/self/mountinfo`, in which `\` and three octal digits stand for a space, tab, line feed or
/// backslash.
fn unescaped(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, behind)) = rest.split_first() {
        let code = behind.first_chunk::<3>().filter(|_| *first == b'\\');
        let code = code.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(code.unwrap_or(*first));
        rest = &behind[if code.is_some() { 3 } else { 0 }..];
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = br"27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
42 27 0:39 / /srv/far rw,relatime shared:7 master:3 - fuse.sshfs farpools: rw
43 42 0:40 / /srv/far rw,relatime - fuse.farpool farpool rw
44 27 0:41 / /srv/far/below rw - tmpfs farpool rw
45 27 0:42 / /srv/two\040words\134 rw - fuse farpool:/a\040b rw
46 27 0:43 / /srv/-\040- rw - fuse.sshfs farpools: rw
47 27 0:40 / /pods/one ro,relatime - fuse.farpool farpool rw
cut short";

    #[test]
    fn mount_of_a_folder_is_the_last_one_at_that_very_path_and_ours_by_its_source() {
        let mounts = MountTable::parse(TABLE);
        let cases = [
            ("/srv/far", "fuse.farpool of farpool", true),
            ("/srv/far/below", "tmpfs of farpool", false),
            (r"/srv/two words\", "fuse of farpool:/a b", true),
            ("/srv/- -", "fuse.sshfs of farpools:", false),
        ];
        for (place, shown, is_ours) in cases {
            let mount = mounts.at(Path::new(place)).expect("it is mounted");
            assert_eq!((mount.to_string().as_str(), mount.is_ours()), (shown, is_ours), "{place}");
        }
        assert_eq!(mounts.at(Path::new("/srv")), None);
        assert_eq!(mounts.numbered(45).map(ToString::to_string).as_deref(), Some("fuse of farpool:/a b"));
        assert_eq!(mounts.numbered(4), None);
    }

    #[test]
    fn mounts_of_one_file_system_are_found_by_its_device() {
        let mounts = MountTable::parse(TABLE);
        let found: Vec<(&Path, bool)> =
            mounts.of_device("0:40").map(|mount| (mount.at.as_path(), mount.is_read_only)).collect();
        assert_eq!(found, [(Path::new("/srv/far"), false), (Path::new("/pods/one"), true)]);
    }
}
