//! Running functions on this machine: in a sandbox of this process's own, over bytes that were fetched.

use super::lanes::OpenLane;
use crate::error::{Error, ErrorKind};
use crate::file::{FarFile, ReadRange};
use crate::options::PoolOptions;
use crate::session::Session;
use farpool_functions::abi::Part;
use farpool_functions::setup::{LaneWindow, Piece};
use farpool_functions::{Owner, SandboxOptions, Sandboxes};
use farpool_transport::local_lane;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// The program that runs functions.
const PROGRAM: &str = "farpool-sandbox";
/// Names it, where it is not beside this program.
const PROGRAM_VARIABLE: &str = "FARPOOL_SANDBOX";
/// Bytes that are fetched at once.
const FETCH_BYTES: usize = 8 << 20;

/// The sandboxes of this process: started when they are first needed.
#[derive(Default)]
pub(crate) struct Here(OnceLock<Sandboxes>);

/// Where the program is: as the environment says, beside this one, or on the path.
pub fn sandbox_program() -> PathBuf {
    if let Some(named) = std::env::var_os(PROGRAM_VARIABLE) {
        return named.into();
    }
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(PROGRAM));
    beside.filter(|file| file.is_file()).unwrap_or_else(|| PROGRAM.into())
}

impl Here {
    fn sandboxes(&self, options: &PoolOptions) -> Result<&Sandboxes, Error> {
        if let Some(sandboxes) = self.0.get() {
            return Ok(sandboxes);
        }
        let program = options.sandbox.clone().unwrap_or_else(sandbox_program);
        let started = Sandboxes::start(SandboxOptions::new(program.clone())).map_err(|error| {
            let message = format!(
                "functions cannot run here: {} cannot be started: {error} (build it with `make sandbox`, or name it in \
                 {PROGRAM_VARIABLE})",
                program.display()
            );
            Error::new(ErrorKind::Refused, message)
        })?;
        Ok(self.0.get_or_init(|| started))
    }

    /// A lane over bytes that lie in a file of this machine's memory.
    pub(super) fn lane(
        &self,
        options: &PoolOptions,
        bytes: u64,
        output_bytes: u32,
        fetched: &Fetched,
    ) -> Result<OpenLane, Error> {
        let refused = |error: std::io::Error| Error::new(ErrorKind::Refused, format!("a lane here: {error}"));
        let file = fetched.file.as_fd().try_clone_to_owned().map_err(refused)?;
        let window = LaneWindow {
            window_bytes: bytes,
            output_bytes,
            pieces: vec![Piece { file: 0, offset: 0, part: Part { first: 0, bytes } }],
            fences: Vec::new(),
            words: None,
            files: vec![file],
        };
        let owner = Owner { caller: "here".to_owned(), tenant: "here".to_owned() };
        let successor = self.sandboxes(options)?.lane(&owner, window);
        let successor =
            successor.map_err(|refusal| Error::of_refusal("the sandbox of this machine", refusal))?;
        let (link, handed) = local_lane().map_err(refused)?;
        successor.take(handed).map_err(refused)?;
        Ok(OpenLane::over(link))
    }
}

/// Bytes of a file that were fetched.
pub(super) struct Fetched {
    file: Arc<OwnedFd>,
}

impl Fetched {
    /// Fetches a range. Calls `progress` with the bytes so far.
    pub(super) fn fetch(session: &Session, file: &FarFile, range: Range<u64>) -> Result<Fetched, Error> {
        session.check_open()?;
        let refused = |error: rustix::io::Errno| {
            Error::new(ErrorKind::Exhausted, format!("memory for {} bytes: {error}", range.end - range.start))
        };
        let memory = memfd_create("farpool-fetched", MemfdFlags::CLOEXEC).map_err(refused)?;
        ftruncate(&memory, range.end - range.start).map_err(refused)?;
        let mut buffer = vec![0; FETCH_BYTES.min((range.end - range.start) as usize)];
        let mut at = range.start;
        while at < range.end {
            let count = buffer.len().min((range.end - at) as usize);
            file.read_batch(&mut [ReadRange { offset: at, into: &mut buffer[..count] }])?;
            let mut written = 0;
            while written < count {
                let to = at - range.start + written as u64;
                written += rustix::io::pwrite(&memory, &buffer[written..count], to).map_err(refused)?;
            }
            at += count as u64;
        }
        Ok(Fetched { file: Arc::new(memory) })
    }
}
