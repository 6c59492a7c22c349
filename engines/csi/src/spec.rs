//! Parameters of a volume: its size, and how its data is kept. Storage classes state them for volumes that are created,
//! and pods for volumes that live and end with them (inline ephemeral volumes).

use crate::csi;
use crate::volumes::VolumeOptions;
use farpool_command::settings::declared::nearest;
use farpool_files::units::{bytes, show_bytes};
use farpool_files::{Pool, Protection, TransportChoice};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use tonic::Status;

/// Smallest volume in bytes.
pub(crate) const SIZE_MIN: u64 = 1 << 20;
/// Largest volume in bytes, for sizes are signed in CSI.
pub(crate) const SIZE_MAX: u64 = i64::MAX as u64;

/// Prefix of what Kubernetes adds to the parameters of a storage class and of a pod.
const KUBERNETES: &str = "csi.storage.k8s.io/";
/// Attribute with which Kubernetes says that a volume lives and ends with its pod.
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";

/// Who states the parameters of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stater {
    /// An administrator, in a storage class.
    StorageClass,
    /// Whoever may start a pod. The pool is not theirs to choose: it is an address that the machine connects to.
    Pod,
}

impl Stater {
    fn keys(self) -> &'static [&'static str] {
        match self {
            Stater::StorageClass => &["protection", "encrypted", "transport", "pool"],
            Stater::Pod => &["size", "protection", "encrypted", "transport"],
        }
    }
}

/// A volume, apart from its contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VolumeSpec {
    /// Most bytes of all its files together.
    pub(crate) size_bytes: u64,
    /// Protection of its files. `None` is as the pool allows.
    pub(crate) protection: Option<String>,
    /// True if its data is encrypted before it leaves the machine.
    pub(crate) encrypted: bool,
    /// Transport to the nodes. `None` is the one that suits.
    pub(crate) transport: Option<String>,
    /// Address of its pool. `None` is that of the volume server.
    pub(crate) pool: Option<String>,
}

impl VolumeSpec {
    /// Reads parameters. `size_bytes` is the size if they name none.
    pub(crate) fn read(
        stater: Stater,
        parameters: &HashMap<String, String>,
        size_bytes: u64,
    ) -> Result<VolumeSpec, Status> {
        let mut spec =
            VolumeSpec { size_bytes, protection: None, encrypted: false, transport: None, pool: None };
        for (key, value) in parameters {
            let wrong = |why: String| Status::invalid_argument(format!("parameter {key}: {why}"));
            match key.as_str() {
                key if key.starts_with(KUBERNETES) => {}
                key if !stater.keys().contains(&key) => return Err(unknown(stater, key)),
                "size" => spec.size_bytes = size_of(value).map_err(wrong)?,
                "protection" => {
                    let known: Result<Protection, _> = value.parse();
                    known.map_err(|_| wrong(format!("{value:?}: none, mirror and local are permitted")))?;
                    spec.protection = Some(value.clone());
                }
                "encrypted" => {
                    spec.encrypted = value
                        .parse()
                        .map_err(|_| wrong(format!("{value:?}: true and false are permitted")))?;
                }
                "transport" => {
                    let known: Result<TransportChoice, _> = value.parse();
                    known.map_err(|_| wrong(format!("{value:?}: auto, tcp and shm are permitted")))?;
                    spec.transport = Some(value.clone());
                }
                _ => {
                    Pool::check_url(value).map_err(|error| wrong(error.to_string()))?;
                    spec.pool = Some(value.clone());
                }
            }
        }
        check_size(spec.size_bytes).map_err(Status::invalid_argument)?;
        Ok(spec)
    }

    /// Returns the number of copies of its data in a pool whose nodes are on so many hosts.
    pub(crate) fn copies(&self, hosts: usize) -> u64 {
        match self.protection.as_deref() {
            Some("mirror") => 2,
            // A pool protects by mirrors where it can.
            None if hosts > 1 => 2,
            _ => 1,
        }
    }

    /// Returns the options for the volume server.
    pub(crate) fn options(&self) -> VolumeOptions {
        VolumeOptions {
            size_bytes: self.size_bytes,
            protection: self.protection.clone().unwrap_or_default(),
            encrypted: self.encrypted,
            transport: self.transport.clone().unwrap_or_default(),
            pool: self.pool.clone().unwrap_or_default(),
        }
    }
}

fn unknown(stater: Stater, key: &str) -> Status {
    let meant = nearest(key, stater.keys().iter().copied());
    let hint = match (stater, key, meant) {
        (Stater::Pod, "pool", _) => {
            "; the pool is chosen by the storage class, or by the volume server".to_owned()
        }
        (Stater::StorageClass, "size", _) => "; the size is that of the claim".to_owned(),
        (.., Some(meant)) => format!("; did you mean {meant}?"),
        (.., None) => String::new(),
    };
    Status::invalid_argument(format!(
        "unknown parameter {key:?}{hint} ({} are permitted)",
        stater.keys().join(", ")
    ))
}

/// Parses the size of a volume, as a flag has it.
pub(crate) fn size_of_volume(text: &str) -> Result<u64, String> {
    let size = bytes(text)?;
    check_size(size).map(|()| size)
}

fn check_size(size_bytes: u64) -> Result<(), String> {
    match size_bytes {
        SIZE_MIN..=SIZE_MAX => Ok(()),
        other => Err(format!(
            "a volume of {}: {} to {} are permitted",
            show_bytes(other),
            show_bytes(SIZE_MIN),
            show_bytes(SIZE_MAX)
        )),
    }
}

/// Parses a size as Farpool writes it (`4GiB`) or as Kubernetes does (`4Gi`).
fn size_of(text: &str) -> Result<u64, String> {
    let with_unit = if text.ends_with('i') { format!("{text}B") } else { text.to_owned() };
    bytes(&with_unit).map_err(|_| {
        format!("{text:?} is not a size: a whole number of bytes, Ki, Mi, Gi or Ti is permitted, such as 4Gi")
    })
}

/// Reports whether these attributes are of a volume that lives and ends with its pod.
pub(crate) fn is_inline(attributes: &HashMap<String, String>) -> bool {
    attributes.get(EPHEMERAL).is_some_and(|value| value == "true")
}

/// Returns namespace and name of the pod, if Kubernetes says them.
pub(crate) fn pod_of(attributes: &HashMap<String, String>) -> Option<String> {
    let get = |key: &str| attributes.get(&format!("{KUBERNETES}pod.{key}"));
    Some(format!("{}/{}", get("namespace")?, get("name")?))
}

/// Chooses a size within the range that is asked for. `otherwise` is the size if any will do.
pub(crate) fn size_in(range: Option<&csi::CapacityRange>, otherwise: u64) -> Result<u64, Status> {
    let range = range.copied().unwrap_or_default();
    let number = |what: &str, bytes: i64| {
        u64::try_from(bytes)
            .map_err(|_| Status::invalid_argument(format!("{what} of {bytes} bytes is negative")))
    };
    let (least, most) =
        (number("a required size", range.required_bytes)?, number("a limit", range.limit_bytes)?);
    let most = if most == 0 { SIZE_MAX } else { most };
    let size = match least {
        0 => otherwise.min(most),
        least => least.max(SIZE_MIN),
    };
    if !(SIZE_MIN..=most).contains(&size) {
        return Err(Status::out_of_range(format!(
            "a volume of at least {} and at most {}: {} or more are permitted",
            show_bytes(least),
            show_bytes(most),
            show_bytes(SIZE_MIN)
        )));
    }
    Ok(size)
}

/// Checks that a volume can be used in the way that is asked for: as a directory, on one machine.
pub(crate) fn check_use(asked: Option<&csi::VolumeCapability>) -> Result<(), Status> {
    use csi::volume_capability::access_mode::Mode;
    use csi::volume_capability::{AccessMode, AccessType};
    let asked = asked.ok_or_else(|| Status::invalid_argument("the request names no volume capability"))?;
    match &asked.access_type {
        Some(AccessType::Mount(mount)) => {
            if let Some(flag) = mount.mount_flags.first() {
                return Err(Status::invalid_argument(format!(
                    "mount option {flag:?}: volumes have no mount options; leave mountOptions out"
                )));
            }
            if !mount.fs_type.is_empty() {
                return Err(Status::invalid_argument(format!(
                    "file system {:?}: a volume is one by itself; leave fsType out",
                    mount.fs_type
                )));
            }
        }
        Some(AccessType::Block(_)) => {
            return Err(Status::invalid_argument(
                "block volumes are not served: volumeMode: Filesystem is permitted",
            ));
        }
        None => return Err(Status::invalid_argument("the volume capability has no access type")),
    }
    let mode = asked.access_mode.as_ref().map_or(Mode::Unknown, AccessMode::mode);
    match mode {
        Mode::SingleNodeWriter
        | Mode::SingleNodeReaderOnly
        | Mode::SingleNodeSingleWriter
        | Mode::SingleNodeMultiWriter => Ok(()),
        Mode::Unknown => Err(Status::invalid_argument("the volume capability has no access mode")),
        other => Err(Status::invalid_argument(format!(
            "access mode {}: a volume is on one machine, so ReadWriteOnce and ReadWriteOncePod are permitted",
            other.as_str_name()
        ))),
    }
}

/// Reports whether the volume is only to be read.
pub(crate) fn is_only_to_read(asked: &csi::VolumeCapability) -> bool {
    use csi::volume_capability::{AccessMode, access_mode::Mode};
    asked.access_mode.as_ref().map(AccessMode::mode) == Some(Mode::SingleNodeReaderOnly)
}

/// Reports whether no other pod may have the volume meanwhile.
pub(crate) fn is_for_one_pod(asked: &csi::VolumeCapability) -> bool {
    use csi::volume_capability::{AccessMode, access_mode::Mode};
    asked.access_mode.as_ref().map(AccessMode::mode) == Some(Mode::SingleNodeSingleWriter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    fn read(stater: Stater, pairs: &[(&str, &str)]) -> Result<VolumeSpec, Status> {
        let parameters = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        VolumeSpec::read(stater, &parameters, 1 << 30)
    }

    #[test]
    fn what_a_storage_class_and_a_pod_may_state_is_read() {
        let spec = read(
            Stater::StorageClass,
            &[
                ("protection", "mirror"),
                ("encrypted", "true"),
                ("pool", "farpool://broker:7700"),
                ("csi.storage.k8s.io/pvc/name", "scratch"),
            ],
        );
        let spec = spec.expect("all of it is permitted");
        assert_eq!((spec.size_bytes, spec.copies(1), spec.encrypted), (1 << 30, 2, true));
        assert_eq!(spec.pool.as_deref(), Some("farpool://broker:7700"));
        for size in ["3Gi", "3GiB", "3221225472"] {
            let spec = read(Stater::Pod, &[("size", size)]).expect("a size");
            assert_eq!((spec.size_bytes, spec.copies(1), spec.copies(2)), (3 << 30, 1, 2), "{size}");
        }
    }

    #[test]
    fn what_is_not_permitted_is_named_with_what_is() {
        let cases: &[(Stater, &str, &str, &str)] = &[
            (Stater::StorageClass, "protecton", "mirror", "did you mean protection?"),
            (Stater::StorageClass, "protection", "raid", "none, mirror and local"),
            (Stater::StorageClass, "size", "1Gi", "that of the claim"),
            (Stater::StorageClass, "pool", "http://broker", "farpool://HOST:PORT"),
            (Stater::StorageClass, "pool", "farpool://", "HOST:PORT"),
            (Stater::Pod, "pool", "farpool://elsewhere:7700", "chosen by the storage class"),
            (Stater::Pod, "size", "1G", "such as 4Gi"),
            (Stater::Pod, "size", "1Ki", "1 MiB to"),
            (Stater::Pod, "encrypted", "yes", "true and false"),
            (Stater::Pod, "transport", "rdma", "auto, tcp and shm"),
        ];
        for (stater, key, value, said) in cases {
            let status = read(*stater, &[(key, value)]).expect_err("it is not permitted");
            assert_eq!(status.code(), Code::InvalidArgument, "{key}={value}");
            assert!(status.message().contains(said), "{key}={value}: {}", status.message());
        }
    }

    #[test]
    fn size_is_the_least_that_the_range_permits() {
        let range = |required_bytes, limit_bytes| csi::CapacityRange { required_bytes, limit_bytes };
        let size = |range: csi::CapacityRange| size_in(Some(&range), 1 << 30).map_err(|status| status.code());
        assert_eq!(size_in(None, 7 << 20).map_err(|status| status.code()), Ok(7 << 20));
        assert_eq!(size(range(0, 0)), Ok(1 << 30));
        assert_eq!(size(range(0, 5 << 20)), Ok(5 << 20));
        assert_eq!(size(range(2 << 30, 0)), Ok(2 << 30));
        assert_eq!(size(range(1, 0)), Ok(SIZE_MIN));
        assert_eq!(size(range(1, 1 << 10)), Err(Code::OutOfRange));
        assert_eq!(size(range(2 << 30, 1 << 30)), Err(Code::OutOfRange));
        assert_eq!(size(range(-1, 0)), Err(Code::InvalidArgument));
    }
}
