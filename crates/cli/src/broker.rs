//! `farpool broker`.

use crate::exit::Failure;
use crate::signals::Stop;
use crate::{Outcome, loopback, units};
use farpool_broker::stores::{MemoryStore, RedbStore, Store};
use farpool_broker::{Broker, LeaseSettings};
use std::io::Write;
use std::path::Path;

/// Run the broker: admits sessions, grants memory, keeps the names of published files.
#[derive(clap::Args)]
#[command(after_help = "Example:  farpool broker --listen 127.0.0.1:7700 --store broker.redb")]
pub(crate) struct Args {
    /// Where to serve; port 0 picks a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7700")]
    listen: String,
    /// What must survive: a file, or "memory" for nothing
    #[arg(long, value_name = "FILE|memory", default_value = "memory")]
    store: String,
    /// A lease not renewed for this long expires (300ms to 10m)
    #[arg(long, value_name = "TIME", value_parser = units::millis, default_value = "5s")]
    ttl: u32,
    /// An expired lease keeps its bytes, unusable, for this long
    #[arg(long, value_name = "TIME", value_parser = units::millis, default_value = "2s")]
    grace: u32,
    /// Serve beyond this machine without encryption or authentication
    #[arg(long)]
    plaintext: bool,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let stop = Stop::catch()?;
    let address = loopback::resolve("--listen", &args.listen, args.plaintext)?;
    let settings = LeaseSettings { lease_ttl_ms: args.ttl, grace_ms: args.grace, ..LeaseSettings::default() };
    if let Some(mistake) = settings.mistakes().first() {
        return Err(Failure::Usage(format!("--ttl {} ms --grace {} ms: {mistake}", args.ttl, args.grace)));
    }
    let store: Box<dyn Store> = match args.store.as_str() {
        "memory" => Box::new(MemoryStore::default()),
        path => Box::new(RedbStore::open(Path::new(path)).map_err(Failure::failed)?),
    };
    let broker = Broker::start(address, settings, store).map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => Failure::Failed(format!(
            "--listen {address}: in use by another process; choose another port, or 0 for a free one"
        )),
        _ => Failure::Failed(format!("--listen {address}: {error}")),
    })?;
    writeln!(std::io::stdout(), "ready farpool://{}", broker.address())?;
    stop.wait();
    Ok(())
}
