//! The library libfabric, with which `farpool bench io` compares far memory. The benchmark compiles a C program when it
//! runs, so building the benchmark does not need the headers of libfabric.

use crate::exit::Failure;
use crate::harness::processes::find_program;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Provider of libfabric that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Provider {
    /// TCP, directly. Newer versions of libfabric have this in the provider `tcp`.
    Net,
    /// TCP by messages, with the layer `ofi_rxm` on top.
    Rxm,
    /// Shared memory of one host.
    Shm,
}

impl Provider {
    /// Returns libfabric's name of the provider.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Provider::Net => "net",
            Provider::Rxm => "tcp;ofi_rxm",
            Provider::Shm => "shm",
        }
    }
}

const SOURCE: &str = include_str!("../../../rivals/libfabric.c");
const PACKAGE: &str = "the Debian package libfabric-dev has it (apt-get install libfabric-dev)";

/// Compiles the program, which is both server and client, in a directory. Returns its path.
pub(crate) fn compile(folder: &Path) -> Result<PathBuf, Failure> {
    let compiler = find_program("cc", "gcc")?;
    let (source, program) = (folder.join("libfabric.c"), folder.join("libfabric"));
    let failed = |path: &Path, error| Failure::Failed(format!("{}: {error}", path.display()));
    std::fs::write(&source, SOURCE).map_err(|error| failed(&source, error))?;
    let output = Command::new(&compiler)
        .args(["-O2", "-pthread", "-o"])
        .args([&program, &source])
        .arg("-lfabric")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(&compiler, error))?;
    if output.status.success() {
        return Ok(program);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let lacks = |text: &str| said.lines().any(|line| line.contains(text));
    Err(Failure::Failed(if lacks("rdma/fabric.h") {
        format!("libfabric's header rdma/fabric.h is not there; {PACKAGE}")
    } else if lacks("-lfabric") {
        format!("the library libfabric.so is not there; {PACKAGE}")
    } else {
        format!("cc does not compile the client of libfabric: {}", said.trim())
    }))
}
