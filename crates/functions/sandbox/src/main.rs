//! The sandbox process, which runs what clients ship: WebAssembly modules and signed shared objects.
//!
//! The idea: whatever runs in this process may take it over, so the process has nothing worth taking. A node starts
//! the program with one end of a socket pair as its standard input. The node hands over connections of one tenant's
//! caller and descriptors for reading that tenant's regions, and may kill the process at any time. Before the process
//! receives any of that, it gives up every right that it does not need ([`namespaces`], [`lockdown`]). Each
//! connection is a call [`lane`] with a thread of its own, and functions run in address [`space`]s.
//!
//! Never in this crate: a right that a node did not hand over, or trust in what a lane's caller sends.
#![deny(unsafe_code)]

mod engines;
mod faults;
mod fences;
mod filter;
mod lane;
mod lockdown;
mod module;
mod namespaces;
mod native;
mod space;
mod watched;

use engines::Engines;
use farpool_functions::confinement::Confinement;
use farpool_functions::setup::{LaneSetup, Start};
use farpool_functions::status::Status;
use farpool_host::waiting;
use native::{ObjectFiles, Objects};
use std::error::Error;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use watched::Lanes;

/// State that all lanes of the process share.
pub struct Process {
    /// Compilers of Wasm modules, and their caches.
    engines: Engines,
    /// Shared objects with native functions that were loaded.
    objects: Objects,
    /// Largest size of a function's heap, in bytes.
    heap_bytes: u64,
    /// Ed25519 public keys by which native functions must be signed.
    keys: Vec<[u8; 32]>,
    /// True if WebAssembly functions must be signed as well.
    signed_alone: bool,
    /// Folder of the tenant's compiled code; `None` if nothing is cached in files.
    cache: Option<OwnedFd>,
    /// Memory that is shared with the node, in which each lane shows what it is doing.
    status: Status,
    /// The open lanes, for the thread that watches them.
    lanes: Lanes,
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) if is_alone(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("farpool-sandbox: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Reports whether the error means that the node has ended or does not need this process. Then there is nobody to
/// report the error to.
fn is_alone(error: &(dyn Error + 'static)) -> bool {
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    matches!(kind, Some(ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset))
}

fn run() -> Result<ExitCode, Box<dyn Error>> {
    let control = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    if control.peer_addr().is_err() {
        return Err("this program is started by Farpool nodes and clients and cannot be run by hand".into());
    }
    let niceness = std::env::args().nth(1).ok_or("the argument niceness is missing")?;
    lockdown::lower_priority(niceness.parse()?)?;
    // Reads the number of CPUs now: it takes files of control groups, which cannot be opened later.
    waiting::cpus();
    let confinement = namespaces::enter(&control)?;
    lockdown::follow_parent()?;
    if let Some(second) = namespaces::split()? {
        return Ok(namespaces::supervise(second, &control)?);
    }
    lockdown::follow_parent()?;
    confinement.send(&control)?;
    serve(&control, confinement)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs functions until the node closes its end of the socket.
fn serve(control: &UnixStream, confinement: Confinement) -> Result<(), Box<dyn Error>> {
    // Does everything slow, and everything that the lockdown forbids, before a caller waits.
    let engines = Engines::new()?;
    faults::install()?;
    waiting::spin_budget_ns();
    let Some(Start { heap_bytes, waiting: how, keys, signed_alone, status, cache }) =
        Start::receive(control)?
    else {
        return Ok(());
    };
    waiting::choose(how);
    if !keys.is_empty() {
        Objects::warm_up();
    }
    let status = Status::of(status)?;
    let is_held_to_cache = lockdown::lock_down(cache.as_ref(), heap_bytes, confinement)?;
    // If Landlock does not hold the process to the cache's folder, the process could reach other files through it.
    let cache = cache.filter(|_| is_held_to_cache);
    let object_files = match (confinement.files, is_held_to_cache) {
        (true, _) => ObjectFiles::InRoot,
        (false, true) => ObjectFiles::InMemory,
        (false, false) => ObjectFiles::Nowhere,
    };
    let (objects, lanes) = (Objects::new(object_files), Lanes::default());
    let process =
        Arc::new(Process { engines, objects, heap_bytes, keys, signed_alone, cache, status, lanes });
    let watching = Arc::clone(&process);
    std::thread::Builder::new()
        .name("farpool-look".into())
        .spawn(move || watching.lanes.watch(&watching.engines, &watching.status))?;
    while let Some(setup) = LaneSetup::receive(control)? {
        let process = Arc::clone(&process);
        std::thread::Builder::new().name("farpool-lane".into()).spawn(move || {
            // The caller learns from its connection how the lane ended.
            let _ = lane::serve(&process, setup);
        })?;
    }
    Ok(())
}
