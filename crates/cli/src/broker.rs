//! `farpool broker`.

use crate::exit::Failure;
use crate::signals::Stop;
use crate::{Outcome, reach, units};
use farpool_broker::stores::{MemoryStore, RedbStore, Store};
use farpool_broker::{Broker, BrokerSettings, LeaseSettings, Quotas};
use farpool_wire::Name;
use std::collections::BTreeMap;
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
    /// The most that a tenant may hold and be promised; may be given for several
    #[arg(long = "quota", value_name = "TENANT=SIZE", value_parser = tenant_quota)]
    quotas: Vec<(Name, u64)>,
    /// The same for each tenant without a quota of its own, except the administrator; without it: no limit
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    default_quota: Option<u64>,
    #[command(flatten)]
    reach: reach::Args,
}

/// Reads `TENANT=SIZE`.
fn tenant_quota(text: &str) -> Result<(Name, u64), String> {
    let (tenant, size) = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} is no quota; TENANT=SIZE is, such as sales=4GiB"))?;
    let tenant = Name::new(tenant).map_err(|error| format!("the tenant {tenant:?}: {error}"))?;
    Ok((tenant, units::bytes(size)?))
}

/// The quotas asked for, each tenant once.
fn quotas_of(args: &Args) -> Result<Quotas, Failure> {
    let mut by_tenant = BTreeMap::new();
    for (tenant, bytes) in &args.quotas {
        if let Some(before) = by_tenant.insert(tenant.clone(), *bytes) {
            let message = format!("--quota: {tenant} has two, {before} B and {bytes} B; one is permitted");
            return Err(Failure::Usage(message));
        }
    }
    let quotas = Quotas { default_bytes: args.default_quota, by_tenant };
    match quotas.mistakes().first() {
        Some(mistake) => Err(Failure::Usage(format!("--quota, --default-quota: {mistake}"))),
        None => Ok(quotas),
    }
}

pub(crate) fn run(args: &Args) -> Outcome {
    let stop = Stop::catch()?;
    let reach = args.reach.reach("broker")?;
    let address = reach::resolve("--listen", &args.listen, &reach)?;
    let lease = LeaseSettings { lease_ttl_ms: args.ttl, grace_ms: args.grace, ..LeaseSettings::default() };
    if let Some(mistake) = lease.mistakes().first() {
        return Err(Failure::Usage(format!("--ttl {} ms --grace {} ms: {mistake}", args.ttl, args.grace)));
    }
    let settings = BrokerSettings { lease, quotas: quotas_of(args)? };
    let store: Box<dyn Store> = match args.store.as_str() {
        "memory" => Box::new(MemoryStore::default()),
        path => Box::new(RedbStore::open(Path::new(path)).map_err(Failure::failed)?),
    };
    let broker = Broker::start(address, &reach, settings, store).map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => Failure::Failed(format!(
            "--listen {address}: in use by another process; choose another port, or 0 for a free one"
        )),
        std::io::ErrorKind::InvalidInput => Failure::Failed(format!("broker: {error}")),
        _ => Failure::Failed(format!("--listen {address}: {error}")),
    })?;
    writeln!(std::io::stdout(), "ready farpool://{}", broker.address())?;
    stop.wait();
    Ok(())
}
