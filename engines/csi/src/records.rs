//! Records of volumes, one file each. A record is there before anything is done for its volume, and goes last.

use crate::spec::VolumeSpec;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use tonic::Status;

/// Longest id of a volume in bytes, which is also the longest name that CSI permits.
const ID_BYTES_MAX: usize = 128;
/// End of the name of a record's file.
const SUFFIX: &str = ".json";
/// Extension of a record that is being written.
const UNFINISHED: &str = "new";

/// Who made a volume, and when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Origin {
    /// A claim. The volume ends when it is deleted.
    Claim,
    /// A pod. The volume ends with the pod.
    Pod,
}

/// Record of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VolumeRecord {
    pub(crate) origin: Origin,
    pub(crate) spec: VolumeSpec,
    /// Path at which the volume was last put into a pod. `None` if no pod has had it yet.
    pub(crate) last_target: Option<String>,
    /// True if that pod could only read it.
    pub(crate) is_read_only: bool,
    /// Namespace and name of that pod.
    pub(crate) pod: Option<String>,
}

impl VolumeRecord {
    /// Makes the record of a volume that no pod has had yet.
    pub(crate) fn new(origin: Origin, spec: VolumeSpec) -> VolumeRecord {
        VolumeRecord { origin, spec, last_target: None, is_read_only: false, pod: None }
    }
}

/// Folder of records.
#[derive(Debug)]
pub(crate) struct Records {
    folder: PathBuf,
}

impl Records {
    /// Opens the folder, and makes it if it does not exist.
    pub(crate) fn open(folder: &Path) -> io::Result<Records> {
        fs::create_dir_all(folder)?;
        if let Some(above) = folder.parent().filter(|above| !above.as_os_str().is_empty()) {
            File::open(above)?.sync_all()?;
        }
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            // A driver was killed while it wrote this record.
            if path.extension().is_some_and(|extension| extension == UNFINISHED) {
                fs::remove_file(path)?;
            }
        }
        Ok(Records { folder: folder.to_owned() })
    }

    /// Returns the record of a volume. `None` if there is none.
    pub(crate) fn load(&self, volume: &str) -> Result<Option<VolumeRecord>, Status> {
        let path = self.path(volume);
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| {
                Status::data_loss(format!(
                    "the record of volume {volume} is damaged ({}: {error}); end its pod, or delete its claim",
                    path.display()
                ))
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(&path, &error)),
        }
    }

    /// Writes the record of a volume. After a crash there is the old one, or the new one.
    pub(crate) fn store(&self, volume: &str, record: &VolumeRecord) -> Result<(), Status> {
        let path = self.path(volume);
        let fresh = self.folder.join(format!("{volume}.{UNFINISHED}"));
        let written = || -> io::Result<()> {
            let mut file = File::create(&fresh)?;
            serde_json::to_writer_pretty(&mut file, record)?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            fs::rename(&fresh, &path)?;
            self.sync()
        };
        written().map_err(|error| failed(&path, &error))
    }

    /// Removes the record of a volume, if there is one.
    pub(crate) fn remove(&self, volume: &str) -> Result<(), Status> {
        let path = self.path(volume);
        let removed = match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            // A driver that was killed may have removed it, and not made sure that it stays removed.
            _ => self.sync(),
        };
        removed.map_err(|error| failed(&path, &error))
    }

    /// Returns the ids of all volumes with a record.
    pub(crate) fn all(&self) -> io::Result<Vec<String>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            found.extend(name.to_str().and_then(|name| name.strip_suffix(SUFFIX)).map(str::to_owned));
        }
        found.sort_unstable();
        Ok(found)
    }

    fn path(&self, volume: &str) -> PathBuf {
        self.folder.join(format!("{volume}{SUFFIX}"))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }
}

fn failed(path: &Path, error: &io::Error) -> Status {
    Status::internal(format!("{}: {error}", path.display()))
}

/// Reports whether a text can be the id of a volume, which is also the name of a file and of a folder.
pub(crate) fn is_id(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_first = text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
    is_first && text.len() <= ID_BYTES_MAX && text.bytes().all(is_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> VolumeRecord {
        let spec = VolumeSpec {
            size_bytes: 1 << 30,
            protection: Some("mirror".into()),
            encrypted: true,
            transport: None,
            pool: None,
        };
        VolumeRecord::new(Origin::Claim, spec)
    }

    #[test]
    fn record_is_there_until_it_is_removed_and_may_be_written_and_removed_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let records = Records::open(&folder.path().join("deep")).expect("opened");
        assert_eq!(records.load("pvc-1").expect("read"), None);
        records.store("pvc-1", &record()).expect("stored");
        let other = VolumeRecord { pod: Some("jobs/sort".into()), ..record() };
        records.store("pvc-1", &other).expect("stored");
        let again = Records::open(&folder.path().join("deep")).expect("opened");
        assert_eq!(again.load("pvc-1").expect("read"), Some(other));
        assert_eq!(again.all().expect("listed"), ["pvc-1"]);
        again.remove("pvc-1").expect("removed");
        again.remove("pvc-1").expect("removed already");
        assert!(again.all().expect("listed").is_empty());
    }

    #[test]
    fn record_that_is_damaged_is_refused_with_its_path() {
        let folder = tempfile::tempdir().expect("a folder");
        let records = Records::open(folder.path()).expect("opened");
        fs::write(folder.path().join("v.json"), b"{\"origin\":").expect("written");
        let status = records.load("v").expect_err("damaged");
        assert!(status.message().contains("v.json"), "{}", status.message());
    }

    #[test]
    fn ids_lead_nowhere_else() {
        assert!(is_id("pvc-0b7e") && is_id(&"a".repeat(128)));
        for text in ["", ".", "..", "../x", "a/b", "-x", "a b", "a\0", &"a".repeat(129)] {
            assert!(!is_id(text), "{text:?}");
        }
    }
}
