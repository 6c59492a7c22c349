//! Calibration (measured rates of the memory tiers), kept in a file of the user's cache directory.
//!
//! The name of the file is a fingerprint of CPU model, threads and NUMA nodes. On another machine, or with other nodes,
//! there is no file of that name, and the rates are measured again. An unreadable file is ignored, because a cache must
//! never be an error.

use crate::calibrate::Calibration;
use crate::plan::traffic::TierRates;
use crate::topology::Topology;
use serde_json::{Value, json};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Version of the file format. Files of another version are ignored.
const FORM: u64 = 1;

/// Returns `$XDG_CACHE_HOME/farpool/tiers` or, without that variable, `$HOME/.cache/farpool/tiers`; `None` if neither
/// variable is set.
pub fn folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(cache.join("farpool").join("tiers"))
}

/// Returns the path of this machine's file within a directory.
pub fn path(folder: &Path, topology: &Topology, threads: usize) -> PathBuf {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find(|line| line.starts_with("model name")).unwrap_or_default();
    let mut parts = vec![model.to_owned(), threads.to_string()];
    for node in &topology.nodes {
        // The size of a node is left out, because it changes on virtual machines.
        parts.push(format!("{} {:?} {:?}", node.id, node.cpus, node.distances));
    }
    folder.join(format!("{:016x}.json", fingerprint(&parts)))
}

/// Returns a hash: FNV-1a, 64 bits. The length before each text keeps ("ab", "c") apart from ("a", "bc").
fn fingerprint(texts: &[String]) -> u64 {
    let byte = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let text = |hash, text: &String| {
        (text.len() as u64).to_le_bytes().iter().chain(text.as_bytes()).fold(hash, byte)
    };
    texts.iter().fold(0xcbf2_9ce4_8422_2325, text)
}

/// Returns the calibration in a file; `None` if there is no file, or it is invalid.
pub fn read(path: &Path) -> Option<Calibration> {
    of_json(&serde_json::from_str(&fs::read_to_string(path).ok()?).ok()?)
}

/// Writes the file by renaming a new one. Readers see a whole file or none.
pub fn write(path: &Path, calibration: &Calibration) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let beside = path.with_extension(format!("{}.new", std::process::id()));
    fs::write(&beside, to_json(calibration).to_string())?;
    fs::rename(&beside, path)
}

/// Returns the calibration as JSON; rates are in bytes a second.
pub fn to_json(calibration: &Calibration) -> Value {
    let rates = |rates: &TierRates| json!({ "read": rates.read, "write": rates.write, "both": rates.both });
    json!({
        "form": FORM, "threads": calibration.threads, "near": rates(&calibration.near),
        "far": calibration.far.as_ref().map(|(far, _)| rates(far)),
        "together": calibration.far.map(|(_, together)| together),
    })
}

fn of_json(value: &Value) -> Option<Calibration> {
    let rate = |value: &Value| value.as_f64().filter(|rate| rate.is_finite() && *rate > 0.0);
    let rates = |value: &Value| {
        Some(TierRates {
            read: rate(&value["read"])?,
            write: rate(&value["write"])?,
            both: rate(&value["both"])?,
        })
    };
    if value["form"].as_u64() != Some(FORM) {
        return None;
    }
    let far = match &value["far"] {
        Value::Null => None,
        far => Some((rates(far)?, rate(&value["together"])?)),
    };
    let threads = usize::try_from(value["threads"].as_u64()?).ok()?;
    Some(Calibration { near: rates(&value["near"])?, far, threads })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_again_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b.json");
        assert_eq!(read(&path), None);
        let rates = TierRates { read: 3e10, write: 2e10, both: 4e10 };
        for far in [None, Some((TierRates::shared(1e10), 4.5e10))] {
            let calibration = Calibration { near: rates, far, threads: 2 };
            write(&path, &calibration).unwrap();
            assert_eq!(read(&path), Some(calibration));
        }
        for text in ["", "{}", r#"{"form":1,"threads":2,"near":{"read":0,"write":1,"both":1},"far":null}"#] {
            fs::write(&path, text).unwrap();
            assert_eq!(read(&path), None, "{text}");
        }
    }
}
