//! libfabric as a rival: a program in C that this run compiles, because nothing else here wants its headers.

use crate::exit::Failure;
use crate::harness::processes::find_program;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// By which of its ways libfabric reaches the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Provider {
    /// Over TCP, directly; newer versions of libfabric have it in `tcp`.
    Net,
    /// Over TCP, by messages with the layer `ofi_rxm` above.
    Rxm,
    /// Between processes of one host.
    Shm,
}

impl Provider {
    /// As libfabric calls it.
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

/// Compiles it into a folder; where it lies.
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
