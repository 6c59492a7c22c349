//! The process that runs what clients ship: WebAssembly modules, and signed shared objects.
//!
//! The idea: everything in here may be taken over by what it runs, so there is nothing in here. A node starts the
//! program with one end of a socket pair as its standard input, hands it connections of one tenant and descriptors to
//! read that tenant's regions with, and may kill it at any time. Before it sees any of that, the process gives up
//! whatever it does not need ([`namespaces`], [`lockdown`]). Each connection is a [`lane`] with a thread of its own;
//! functions run in [`space`]s.
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

/// What all lanes share.
pub struct Process {
    engines: Engines,
    objects: Objects,
    heap_bytes: u64,
    keys: Vec<[u8; 32]>,
    cache: Option<OwnedFd>,
    status: Status,
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

/// Returns true if the node has ended, or has no use for this process any more: nobody is there to be told.
fn is_alone(error: &(dyn Error + 'static)) -> bool {
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    matches!(kind, Some(ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset))
}

fn run() -> Result<ExitCode, Box<dyn Error>> {
    let control = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    if control.peer_addr().is_err() {
        return Err(
            "this program is started by a farpool node, which talks to it; it does nothing by itself".into(),
        );
    }
    let niceness = std::env::args().nth(1).ok_or("its niceness is missing")?;
    lockdown::stand_back(niceness.parse()?)?;
    // Looks at control groups by their files, which are not there later.
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

/// Runs functions until the node has no more lanes to hand over.
fn serve(control: &UnixStream, confinement: Confinement) -> Result<(), Box<dyn Error>> {
    // While nobody waits yet: what takes time, and what the lockdown would not permit.
    let engines = Engines::new()?;
    faults::install()?;
    waiting::spin_budget_ns();
    let Some(Start { heap_bytes, waiting: how, keys, status, cache }) = Start::receive(control)? else {
        return Ok(());
    };
    waiting::choose(how);
    if !keys.is_empty() {
        Objects::warm_up();
    }
    let status = Status::of(status)?;
    let is_held_to_cache = lockdown::lock_down(cache.as_ref(), heap_bytes, confinement)?;
    // From its folder others could be reached.
    let cache = cache.filter(|_| is_held_to_cache);
    let object_files = match (confinement.files, is_held_to_cache) {
        (true, _) => ObjectFiles::InRoot,
        (false, true) => ObjectFiles::InMemory,
        (false, false) => ObjectFiles::Nowhere,
    };
    let (objects, lanes) = (Objects::new(object_files), Lanes::default());
    let process = Arc::new(Process { engines, objects, heap_bytes, keys, cache, status, lanes });
    let watching = Arc::clone(&process);
    std::thread::Builder::new()
        .name("farpool-look".into())
        .spawn(move || watching.lanes.watch(&watching.engines, &watching.status))?;
    while let Some(setup) = LaneSetup::receive(control)? {
        let process = Arc::clone(&process);
        std::thread::Builder::new().name("farpool-lane".into()).spawn(move || {
            // How it ended is for its caller to see.
            let _ = lane::serve(&process, setup);
        })?;
    }
    Ok(())
}
