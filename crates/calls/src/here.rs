//! Running functions on the client's machine: in its own sandbox processes, over bytes that were fetched.

use crate::lanes::OpenLane;
use farpool_files::beneath::Session;
use farpool_files::{Error, ErrorKind, FarFile, PoolOptions, ReadRange};
use farpool_functions::abi::Part;
use farpool_functions::setup::{LaneWindow, WindowRange};
use farpool_functions::{Owner, SandboxOptions, Sandboxes};
use farpool_lock::Mutex;
use farpool_transport::{LinkError, local_lane};
use farpool_wire::limits::FUNCTION_PIECE_BYTES;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Name of the program that runs functions.
const PROGRAM: &str = "farpool-sandbox";
/// Environment variable that names the program if it is not beside this one.
const PROGRAM_VARIABLE: &str = "FARPOOL_SANDBOX";
/// Bytes that are fetched with one request.
const FETCH_BYTES: u64 = 8 << 20;
/// Bytes of a piece of a window, the unit that is fetched.
const PIECE: u64 = FUNCTION_PIECE_BYTES as u64;

/// Sandbox processes of this client, started when they are first needed.
#[derive(Default)]
pub(crate) struct LocalSandboxes {
    sandboxes: OnceLock<Sandboxes>,
    /// Path of the program, or `None` if there was none at the first look. Later calls do not search again.
    program: OnceLock<Option<PathBuf>>,
}

/// Returns the program that runs functions: the one that the environment variable `FARPOOL_SANDBOX` names, otherwise
/// `farpool-sandbox` beside this program or in a folder of `PATH`. A path in the variable is returned as it is; a
/// bare name is searched in `PATH`. `None` if nothing is found.
pub fn sandbox_program() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(PROGRAM_VARIABLE) {
        return located(named.into());
    }
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(PROGRAM));
    beside.filter(|file| file.is_file()).or_else(|| located(PROGRAM.into()))
}

/// Returns a path with folders as it is. For a bare name, returns the first file of that name in the folders of
/// `PATH`.
fn located(named: PathBuf) -> Option<PathBuf> {
    if named.components().count() > 1 {
        return Some(named);
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).map(|folder| folder.join(&named)).find(|file| file.is_file())
}

impl LocalSandboxes {
    /// Returns the program, if it exists on this machine.
    fn program(&self, options: &PoolOptions) -> Option<&Path> {
        let find = || options.sandbox.clone().map_or_else(sandbox_program, located);
        self.program.get_or_init(|| find().filter(|file| file.is_file())).as_deref()
    }

    /// Reports whether the program that runs functions exists on this machine.
    pub(crate) fn has_program(&self, options: &PoolOptions) -> bool {
        self.program(options).is_some()
    }

    /// Returns the program, or an error that says where it was searched.
    pub(crate) fn check_program(&self, options: &PoolOptions) -> Result<&Path, Error> {
        self.program(options).ok_or_else(|| {
            let named =
                options.sandbox.clone().or_else(|| std::env::var_os(PROGRAM_VARIABLE).map(Into::into));
            let looked = match named {
                Some(named) => format!("{} does not exist", named.display()),
                None => format!("{PROGRAM} is neither beside this program nor in a folder of PATH"),
            };
            let message = format!(
                "functions cannot run on this machine: {looked}; build it with `make sandbox`, or name it in \
                 {PROGRAM_VARIABLE}"
            );
            Error::new(ErrorKind::Refused, message)
        })
    }

    fn sandboxes(&self, options: &PoolOptions) -> Result<&Sandboxes, Error> {
        if let Some(sandboxes) = self.sandboxes.get() {
            return Ok(sandboxes);
        }
        let program = self.check_program(options)?;
        let started = Sandboxes::start(SandboxOptions::new(program.to_owned())).map_err(|error| {
            let message = format!(
                "functions cannot run on this machine: the thread that watches sandbox processes could not be \
                 started: {error}"
            );
            Error::new(ErrorKind::Refused, message)
        })?;
        Ok(self.sandboxes.get_or_init(|| started))
    }

    /// Opens a call lane over bytes in a memory file of this machine.
    pub(crate) fn lane(
        &self,
        options: &PoolOptions,
        bytes: u64,
        output_bytes: u32,
        fetched: &Fetched,
    ) -> Result<OpenLane, Error> {
        let refused = |error: std::io::Error| {
            Error::new(ErrorKind::Refused, format!("opening a call lane on this machine: {error}"))
        };
        let file = fetched.file.as_fd().try_clone_to_owned().map_err(refused)?;
        let window = LaneWindow {
            window_bytes: bytes,
            output_bytes,
            ranges: vec![WindowRange { file: 0, offset: 0, part: Part { first: 0, bytes } }],
            fences: Vec::new(),
            words: None,
            files: vec![file],
        };
        let owner = Owner { caller: "here".to_owned(), tenant: "here".to_owned() };
        let successor = self.sandboxes(options)?.lane(&owner, window);
        let successor = successor.map_err(|refusal| {
            Error::of_link("the sandbox of this machine", &LinkError::Refused { index: 0, refusal })
        })?;
        let (link, handed) = local_lane().map_err(refused)?;
        successor.take(handed).map_err(refused)?;
        Ok(OpenLane::over(link))
    }
}

/// Bytes of a window that were fetched, in a memory file.
pub(crate) struct Fetched {
    file: Arc<OwnedFd>,
    bytes: u64,
    /// True for each piece of the window that was fetched. The lock is held while pieces are fetched, so that another
    /// thread that needs the same ones waits for them.
    pieces: Mutex<Vec<bool>>,
    is_whole: AtomicBool,
}

impl Fetched {
    /// Makes an empty file of the size of a window.
    pub(crate) fn empty(bytes: u64) -> Result<Fetched, Error> {
        let refused = |error| no_memory(bytes, error);
        let file = memfd_create("farpool-fetched", MemfdFlags::CLOEXEC).map_err(refused)?;
        ftruncate(&file, bytes).map_err(refused)?;
        let pieces = Mutex::new(vec![false; bytes.div_ceil(PIECE) as usize]);
        Ok(Fetched { file: Arc::new(file), bytes, pieces, is_whole: AtomicBool::new(false) })
    }

    /// Reports whether the whole window was fetched.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole.load(Ordering::Acquire)
    }

    /// Fetches the pieces of a range of the window that are missing. Returns the number of bytes that were fetched.
    /// `start` is the offset of the window in the file.
    pub(crate) fn fetch_missing(
        &self,
        session: &Session,
        file: &FarFile,
        start: u64,
        range: Range<u64>,
    ) -> Result<u64, Error> {
        session.check_open()?;
        let mut pieces = self.pieces.lock();
        let (mut at, end) =
            ((range.start / PIECE) as usize, range.end.min(self.bytes).div_ceil(PIECE) as usize);
        let (mut buffer, mut brought) = (Vec::new(), 0);
        while at < end {
            let most = end.min(at + (FETCH_BYTES / PIECE) as usize);
            let missing = pieces[at..most].iter().take_while(|is_here| !**is_here).count();
            if missing == 0 {
                at += 1;
                continue;
            }
            let (from, to) = (at as u64 * PIECE, ((at + missing) as u64 * PIECE).min(self.bytes));
            buffer.resize((to - from) as usize, 0);
            file.read_batch(&mut [ReadRange { offset: start + from, into: &mut buffer }])?;
            let mut written = 0;
            while written < buffer.len() {
                let wrote = rustix::io::pwrite(&self.file, &buffer[written..], from + written as u64);
                written += wrote.map_err(|error| no_memory(self.bytes, error))?;
            }
            pieces[at..at + missing].fill(true);
            at += missing;
            brought += buffer.len() as u64;
        }
        if pieces.iter().all(|is_here| *is_here) {
            self.is_whole.store(true, Ordering::Release);
        }
        Ok(brought)
    }
}

fn no_memory(bytes: u64, error: rustix::io::Errno) -> Error {
    Error::new(ErrorKind::Exhausted, format!("allocating {bytes} bytes for the window: {error}"))
}
