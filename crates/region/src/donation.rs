//! Kinds of memory that regions are made of, and what this host has of each.
//!
//! The idea: a node that cannot have the memory that was asked for must say so when it starts, with what would help,
//! and not at a later write. So huge pages are counted and devices are measured before anything is taken. Everything
//! that the kernel shows of them is text below `/sys`, so tests use trees of their own.

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, flock, fstat, major, minor};
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Kind of memory that an arena makes its regions of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Donation {
    /// Memory that the host uses for everything. Its pages are taken and given back singly.
    #[default]
    Ordinary,
    /// Huge pages that the host keeps for programs that ask for them (hugetlb). An arena takes all of them when it is
    /// made and keeps them: nobody else could use them for anything but huge pages.
    HugePages {
        /// Bytes of a page, one of the sizes that the host has.
        page_bytes: u64,
    },
    /// DAX device, such as `/dev/dax0.0`: memory that the host uses for nothing else. Regions lie on it from its start.
    /// Clients cannot map them, because the descriptor of a device opens all of it.
    Device(PathBuf),
}

/// Reason why the host cannot give memory of the kind that was asked for.
#[derive(Debug)]
pub enum DonationError {
    /// NUMA node that does not exist or has no memory.
    NoSuchNode {
        /// Number that was asked for.
        node: u32,
        /// Nodes with memory.
        present: Vec<u32>,
    },
    /// More memory than the NUMA node has.
    NodeMemory {
        /// Number of the node.
        node: u32,
        /// Bytes of all regions together.
        wanted_bytes: u64,
        /// Bytes of the node.
        node_bytes: u64,
    },
    /// Pages that lie on another NUMA node than the one asked for.
    Astray {
        /// Number of the node that was asked for.
        node: u32,
        /// Number of pages elsewhere.
        pages: usize,
        /// Number of pages that were looked at.
        looked_at: usize,
    },
    /// Size of huge pages that the host does not have.
    PageBytes {
        /// Bytes of a page that were asked for.
        page_bytes: u64,
        /// Sizes that the host has.
        present: Vec<u64>,
    },
    /// Regions that are smaller than a page, or than the alignment of a device.
    RegionBytes {
        /// Bytes of a region.
        region_bytes: u64,
        /// Least bytes of a region.
        least_bytes: u64,
    },
    /// Fewer huge pages than the regions need.
    HugePages {
        /// Number of pages needed.
        wanted: u64,
        /// Pages that there are, and the file that says how many there should be.
        pool: HugePagePool,
    },
    /// Device that cannot be used.
    Device {
        /// Device that was asked for.
        path: PathBuf,
        /// Reason, as the rest of a sentence.
        why: String,
    },
}

impl fmt::Display for DonationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DonationError::NoSuchNode { node, present } => write!(
                f,
                "NUMA node {node} does not exist or has no memory; nodes with memory: {}",
                listed(present.iter())
            ),
            DonationError::NodeMemory { node, wanted_bytes, node_bytes } => write!(
                f,
                "{wanted_bytes} B of regions are more than the memory of NUMA node {node}, which has {node_bytes} B: \
                 donate less"
            ),
            DonationError::Astray { node, pages, looked_at } => write!(
                f,
                "{pages} of {looked_at} pages are not on NUMA node {node}, although the kernel accepted the request: \
                 is the node among the memory nodes (cpuset.mems) of this process?"
            ),
            DonationError::PageBytes { page_bytes, present } if present.is_empty() => write!(
                f,
                "this host has no huge pages of {page_bytes} B, nor of any other size: its kernel lacks hugetlb"
            ),
            DonationError::PageBytes { page_bytes, present } => write!(
                f,
                "this host has no huge pages of {page_bytes} B; its sizes, in bytes: {}",
                listed(present.iter())
            ),
            DonationError::RegionBytes { region_bytes, least_bytes } => write!(
                f,
                "regions of {region_bytes} B do not fit pages of {least_bytes} B: choose a region size of at least \
                 {least_bytes} B"
            ),
            DonationError::HugePages { wanted, pool } => write!(
                f,
                "{wanted} huge pages of {} B are needed (for all regions, and for one more by which regions are \
                 moved), and {} of {} are free: echo {} > {}",
                pool.page_bytes,
                pool.free,
                pool.total,
                pool.total + wanted.saturating_sub(pool.free),
                pool.file.display()
            ),
            DonationError::Device { path, why } => write!(f, "{}: {why}", path.display()),
        }
    }
}

impl std::error::Error for DonationError {}

/// Lists values for an error, or says that there are none.
fn listed<T: fmt::Display>(all: impl Iterator<Item = T>) -> String {
    let all: Vec<String> = all.map(|one| one.to_string()).collect();
    if all.is_empty() { "none".into() } else { all.join(", ") }
}

/// Huge pages of one size, of the host or of one NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HugePagePool {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Number of pages, used or not.
    pub total: u64,
    /// Number of pages that nobody has or was promised.
    pub free: u64,
    /// File that says how many pages there should be.
    pub file: PathBuf,
}

impl HugePagePool {
    /// Returns the pools of this host, or of one NUMA node, by size.
    pub fn all(numa_node: Option<u32>) -> Vec<HugePagePool> {
        HugePagePool::all_at(Path::new("/sys"), numa_node)
    }

    /// Does the same for a directory with the layout of `/sys`.
    pub fn all_at(sys: &Path, numa_node: Option<u32>) -> Vec<HugePagePool> {
        let folder = match numa_node {
            Some(node) => sys.join(format!("devices/system/node/node{node}/hugepages")),
            None => sys.join("kernel/mm/hugepages"),
        };
        let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
        let mut pools: Vec<HugePagePool> = entries.filter_map(|entry| pool(&entry.path())).collect();
        pools.sort_unstable_by_key(|pool| pool.page_bytes);
        pools
    }
}

/// Reads the pool of a folder such as `hugepages-2048kB`.
fn pool(folder: &Path) -> Option<HugePagePool> {
    let size = folder.file_name()?.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?;
    let file = folder.join("nr_hugepages");
    // Pages of a NUMA node are promised to nobody in particular.
    let promised = number(&folder.join("resv_hugepages")).unwrap_or(0);
    Some(HugePagePool {
        page_bytes: size.parse::<u64>().ok()?.checked_mul(1024)?,
        total: number(&file)?,
        free: number(&folder.join("free_hugepages"))?.saturating_sub(promised),
        file,
    })
}

fn number(file: &Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Checks that there are huge pages for `region_count` regions, and for one more, by which regions are moved.
pub(crate) fn check_huge_pages(
    sys: &Path,
    page_bytes: u64,
    region_bytes: u64,
    region_count: u32,
    numa_node: Option<u32>,
) -> Result<(), DonationError> {
    let pools = HugePagePool::all_at(sys, numa_node);
    let Some(pool) = pools.iter().find(|pool| pool.page_bytes == page_bytes) else {
        return Err(DonationError::PageBytes {
            page_bytes,
            present: pools.iter().map(|pool| pool.page_bytes).collect(),
        });
    };
    if region_bytes < page_bytes {
        return Err(DonationError::RegionBytes { region_bytes, least_bytes: page_bytes });
    }
    let wanted = (u64::from(region_count) + 1) * (region_bytes / page_bytes);
    if pool.free < wanted {
        return Err(DonationError::HugePages { wanted, pool: pool.clone() });
    }
    Ok(())
}

/// DAX device of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaxDevice {
    /// Path of the device, such as `/dev/dax0.0`.
    pub path: PathBuf,
    /// Bytes of the device.
    pub bytes: u64,
    /// Alignment of its mappings in bytes.
    pub align_bytes: u64,
    /// NUMA node that the device is nearest to; `None` if it says none.
    pub numa_node: Option<u32>,
}

impl DaxDevice {
    /// Returns the devices of this host, by path.
    pub fn all() -> Vec<DaxDevice> {
        DaxDevice::all_at(Path::new("/sys"))
    }

    /// Does the same for a directory with the layout of `/sys`.
    pub fn all_at(sys: &Path) -> Vec<DaxDevice> {
        let entries = std::fs::read_dir(sys.join("bus/dax/devices")).into_iter().flatten();
        let device = |entry: std::fs::DirEntry| {
            // A device that is the system's own memory is listed here too, and cannot be opened.
            let driver = std::fs::read_link(entry.path().join("driver")).ok()?;
            let is_open = driver.file_name().is_some_and(|name| name == "device_dax");
            is_open.then(|| described(&entry.path(), Path::new("/dev").join(entry.file_name())))?
        };
        let mut devices: Vec<DaxDevice> = entries.filter_map(|entry| device(entry.ok()?)).collect();
        devices.sort_unstable_by(|one, other| one.path.cmp(&other.path));
        devices
    }
}

/// Reads the description of a device from its folder below `/sys`.
fn described(folder: &Path, path: PathBuf) -> Option<DaxDevice> {
    let node = std::fs::read_to_string(folder.join("numa_node")).ok();
    Some(DaxDevice {
        path,
        bytes: number(&folder.join("size"))?,
        // Kernels before 5.10 do not say it; they all use 2 MiB unless told otherwise.
        align_bytes: number(&folder.join("align")).unwrap_or(2 << 20),
        // -1: none.
        numa_node: node.and_then(|node| node.trim().parse().ok()),
    })
}

/// Opens a device for regions of this size, and takes the lock by which nodes exclude each other. The lock ends with
/// the descriptor.
pub(crate) fn open_device(
    path: &Path,
    region_bytes: u64,
    region_count: u32,
) -> Result<OwnedFd, DonationError> {
    let refused = |why: String| DonationError::Device { path: path.to_owned(), why };
    let present = || {
        format!("DAX devices of this host: {}", listed(DaxDevice::all().iter().map(|one| one.path.display())))
    };
    let fd = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
        .map_err(|errno| refused(format!("{}; {}", io::Error::from(errno), present())))?;
    let stat = fstat(&fd).map_err(|errno| refused(io::Error::from(errno).to_string()))?;
    let folder = format!("/sys/dev/char/{}:{}", major(stat.st_rdev), minor(stat.st_rdev));
    let folder = Path::new(&folder);
    let subsystem = std::fs::read_link(folder.join("subsystem")).unwrap_or_default();
    let is_dax = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
        && subsystem.file_name().is_some_and(|name| name == "dax");
    let device = described(folder, path.to_owned()).filter(|_| is_dax);
    let device = device.ok_or_else(|| refused(format!("this is no DAX device; {}", present())))?;
    if region_bytes < device.align_bytes {
        return Err(DonationError::RegionBytes { region_bytes, least_bytes: device.align_bytes });
    }
    let wanted_bytes = region_bytes * u64::from(region_count);
    if wanted_bytes > device.bytes {
        let why = format!("{wanted_bytes} B of regions are more than its {} B: donate less", device.bytes);
        return Err(refused(why));
    }
    match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(fd),
        Err(Errno::WOULDBLOCK) => Err(refused("another node uses it".into())),
        Err(errno) => Err(refused(format!("it cannot be locked: {}", io::Error::from(errno)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sysfs::tree;

    const MIB: u64 = 1 << 20;

    fn pages() -> tempfile::TempDir {
        tree(&[
            ("kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "100"),
            ("kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "70"),
            ("kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "4"),
            ("kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0"),
            ("kernel/mm/hugepages/hugepages-1048576kB/free_hugepages", "0"),
            ("kernel/mm/hugepages/hugepages-1048576kB/resv_hugepages", "0"),
            ("devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", "40"),
            ("devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages", "40"),
        ])
    }

    #[test]
    fn promised_huge_pages_are_not_free_and_a_numa_node_has_pools_of_its_own() {
        let sys = pages();
        let of = |node| {
            let pools = HugePagePool::all_at(sys.path(), node);
            pools.iter().map(|pool| (pool.page_bytes, pool.free, pool.total)).collect::<Vec<_>>()
        };
        assert_eq!(of(None), [(2 * MIB, 66, 100), (1024 * MIB, 0, 0)]);
        assert_eq!(of(Some(1)), [(2 * MIB, 40, 40)]);
        assert_eq!(of(Some(2)), []);
    }

    #[test]
    fn huge_pages_are_counted_with_one_region_more_and_the_error_says_what_to_do() {
        let sys = pages();
        let check =
            |page, region, count, node| check_huge_pages(sys.path(), page * MIB, region * MIB, count, node);
        assert!(check(2, 64, 1, None).is_ok(), "64 of 66");
        let error = check(2, 64, 2, None).unwrap_err().to_string();
        assert!(error.contains("96 huge pages") && error.contains("echo 130 > "), "{error}");
        assert!(error.ends_with("kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"), "{error}");
        let error = check(2, 64, 1, Some(1)).unwrap_err().to_string();
        assert!(error.contains("echo 64 > ") && error.contains("node1"), "{error}");
        let error = check(1024, 64, 1, None).unwrap_err().to_string();
        assert!(error.contains("at least 1073741824 B"), "{error}");
        let error = check(16, 64, 1, None).unwrap_err().to_string();
        assert!(error.ends_with("its sizes, in bytes: 2097152, 1073741824"), "{error}");
        let error = check(2, 64, 1, Some(7)).unwrap_err().to_string();
        assert!(error.ends_with("its kernel lacks hugetlb"), "{error}");
    }

    #[test]
    fn what_is_no_dax_device_is_refused_with_those_that_are() {
        let refused =
            |path: &str| open_device(Path::new(path), 64 * MIB, 1).expect_err("an error").to_string();
        assert!(
            refused("/dev/null").starts_with("/dev/null: this is no DAX device; DAX devices of this host: ")
        );
        assert!(refused("/dev/dax99.99").starts_with("/dev/dax99.99: No such file or directory"));
        assert!(refused("/proc/self/mem").contains("this is no DAX device"));
    }

    #[test]
    fn devices_that_can_be_opened_are_listed_with_size_and_alignment() {
        let root = tree(&[
            ("bus/dax/devices/dax1.0/size", "1073741824"),
            ("bus/dax/devices/dax1.0/align", "2097152"),
            ("bus/dax/devices/dax1.0/numa_node", "-1"),
            ("bus/dax/devices/dax0.0/size", "536870912"),
            ("bus/dax/devices/dax0.0/numa_node", "1"),
            ("bus/dax/devices/dax2.0/size", "536870912"),
        ]);
        let driver = |device: &str, driver: &str| {
            let link = root.path().join("bus/dax/devices").join(device).join("driver");
            std::os::unix::fs::symlink(Path::new("../drivers").join(driver), link).unwrap();
        };
        driver("dax1.0", "device_dax");
        driver("dax0.0", "device_dax");
        driver("dax2.0", "kmem");
        let found = DaxDevice::all_at(root.path());
        let found: Vec<_> =
            found.iter().map(|one| (one.path.to_str().unwrap(), one.bytes / MIB, one.numa_node)).collect();
        assert_eq!(found, [("/dev/dax0.0", 512, Some(1)), ("/dev/dax1.0", 1024, None)]);
    }
}
