//! `farpool broker`: runs the broker of a pool.

use crate::exit::Failure;
use crate::input::{self, KEYS_BYTES_MAX};
use crate::monitored::MonitoredBroker;
use crate::signals::Stop;
use crate::{Outcome, exposure, monitoring, supervisor, units};
use farpool_broker::stores::{MemoryStore, Rebuilt, RedbStore, Store};
use farpool_broker::{Broker, BrokerSettings, LeaseSettings, Quotas, SnapshotSettings};
use farpool_etcd::{Etcd, EtcdAddress, EtcdTls};
use farpool_wire::Name;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Run the broker of a pool: it admits sessions, grants memory and keeps the names of published files.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  farpool broker --listen 127.0.0.1:7700 --store broker.redb\n  \
                        farpool broker --listen 127.0.0.1:7700 --store etcd://127.0.0.1:2379,127.0.0.1:2479")]
pub(crate) struct Args {
    /// Address to listen on; port 0 picks a free port
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7700")]
    listen: String,
    /// Where the broker keeps its state: a file; "memory" (lost when the broker ends); or an etcd cluster,
    /// etcd://HOST:PORT,HOST:PORT/PREFIX (etcds:// for TLS), which lets several brokers take over from each other
    #[arg(long, value_name = "FILE|memory|etcd://..", default_value = "memory")]
    store: String,
    /// Rebuild a damaged --store file from its intact records. The damaged file is kept under another name. Names with
    /// damaged records are lost, and the nodes free their memory
    #[arg(long)]
    rebuild_store: bool,
    /// Leader failover timeout, with several brokers: a leader that is silent this long is replaced; 1s to 60s, whole
    /// seconds
    #[arg(long, value_name = "TIME", value_parser = failover_seconds, default_value = "3s")]
    failover_timeout: u64,
    /// CA that signed the certificates of the etcd cluster (PEM)
    #[arg(long, value_name = "FILE")]
    etcd_ca: Option<PathBuf>,
    /// Client certificate for the etcd cluster, if it requires one (PEM)
    #[arg(long, value_name = "FILE", requires = "etcd_key", requires = "etcd_ca")]
    etcd_cert: Option<PathBuf>,
    /// Private key of the client certificate for the etcd cluster (PEM)
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    etcd_key: Option<PathBuf>,
    /// Lease timeout: a lease that is not renewed for this long expires (300ms to 10m)
    #[arg(long, value_name = "TIME", value_parser = units::millis, default_value = "5s")]
    ttl: u32,
    /// How long an expired lease keeps its data; the data is unusable until the lease is renewed
    #[arg(long, value_name = "TIME", value_parser = units::millis, default_value = "2s")]
    grace: u32,
    /// Limit for the memory that a tenant holds or was promised; may be given several times
    #[arg(long = "quota", value_name = "TENANT=SIZE", value_parser = tenant_quota)]
    quotas: Vec<(Name, u64)>,
    /// Limit for each tenant without a --quota, except the administrator [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    default_quota: Option<u64>,
    /// How many snapshots of a far table are kept beside the latest one
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    snapshots_kept: u32,
    /// How long a snapshot of a far table is kept after another one has replaced it
    #[arg(long, value_name = "TIME", value_parser = units::millis, default_value = "10m")]
    snapshot_age: u32,
    /// How long it is kept if a reader still uses it
    #[arg(long, value_name = "TIME", value_parser = units::millis, default_value = "24h")]
    snapshot_hold: u32,
    #[command(flatten)]
    monitoring: monitoring::Args,
    #[command(flatten)]
    exposure: exposure::Args,
}

/// Reads `TENANT=SIZE`: a tenant and its quota in bytes.
fn tenant_quota(text: &str) -> Result<(Name, u64), String> {
    let (tenant, size) = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} is not a quota; write TENANT=SIZE, such as sales=4GiB"))?;
    let tenant = Name::new(tenant).map_err(|error| format!("the tenant {tenant:?}: {error}"))?;
    Ok((tenant, units::bytes(size)?))
}

/// Returns the quotas of `--quota` and `--default-quota`. A tenant with two quotas is an error.
fn quotas_of(args: &Args) -> Result<Quotas, Failure> {
    let mut by_tenant = BTreeMap::new();
    for (tenant, bytes) in &args.quotas {
        if let Some(before) = by_tenant.insert(tenant.clone(), *bytes) {
            let message = format!("--quota: {tenant} has two quotas, {before} B and {bytes} B; give one");
            return Err(Failure::Usage(message));
        }
    }
    let quotas = Quotas { default_bytes: args.default_quota, by_tenant };
    match quotas.mistakes().first() {
        Some(mistake) => Err(Failure::Usage(format!("--quota, --default-quota: {mistake}"))),
        None => Ok(quotas),
    }
}

/// Parses a value of `--failover-timeout` into seconds. Leases of etcd last whole seconds.
fn failover_seconds(text: &str) -> Result<u64, String> {
    match units::millis(text)? {
        ms @ 1_000..=60_000 if ms % 1_000 == 0 => Ok(u64::from(ms / 1_000)),
        _ => Err(format!("{text:?} is not permitted: whole seconds from 1s to 60s are")),
    }
}

/// Reads the TLS files of etcd. `None` without `--etcd-ca`.
fn etcd_tls(args: &Args) -> Result<Option<EtcdTls>, Failure> {
    let Some(ca) = &args.etcd_ca else { return Ok(None) };
    let read = |flag: &str, file: &Path| {
        input::file(file, KEYS_BYTES_MAX)
            .map_err(|error| Failure::Failed(format!("{flag} {}: {error}", file.display())))
    };
    let identity = match (&args.etcd_cert, &args.etcd_key) {
        (Some(cert), Some(key)) => Some((read("--etcd-cert", cert)?, read("--etcd-key", key)?)),
        _ => None,
    };
    Ok(Some(EtcdTls { ca: read("--etcd-ca", ca)?, identity }))
}

/// Rebuilds a damaged store from its intact records, and reports on standard error how many names are left.
fn rebuild(path: &Path) -> Result<RedbStore, Failure> {
    let Rebuilt { store, aside, names, why } = RedbStore::rebuild(path).map_err(Failure::failed)?;
    let line = format!(
        "farpool broker: {} was damaged ({why}) and was rebuilt with {names} published names; the damaged file is {}",
        path.display(),
        aside.display()
    );
    writeln!(std::io::stderr(), "{}", farpool::shown(&line))?;
    Ok(store)
}

pub(crate) fn run(args: &Args) -> Outcome {
    let stop = Stop::catch()?;
    let exposure = args.exposure.exposure("broker")?;
    let address = exposure::resolve("--listen", &args.listen, &exposure)?;
    let lease = LeaseSettings { lease_ttl_ms: args.ttl, grace_ms: args.grace, ..LeaseSettings::default() };
    if let Some(mistake) = lease.mistakes().first() {
        return Err(Failure::Usage(format!("--ttl {} ms --grace {} ms: {mistake}", args.ttl, args.grace)));
    }
    let snapshots = SnapshotSettings {
        count_max: args.snapshots_kept,
        age_ms_max: args.snapshot_age.into(),
        hold_ms_max: args.snapshot_hold.into(),
    };
    if let Some(mistake) = snapshots.mistakes().first() {
        return Err(Failure::Usage(format!("--snapshot-age, --snapshot-hold: {mistake}")));
    }
    let settings = BrokerSettings { lease, quotas: quotas_of(args)?, snapshots, ..BrokerSettings::default() };
    let endpoint = args.monitoring.endpoint(exposure.tls.as_ref())?;
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AddrInUse => Failure::Failed(format!(
            "--listen {address}: in use by another process; choose another port, or 0 for a free one"
        )),
        std::io::ErrorKind::InvalidInput => Failure::Failed(format!("broker: {error}")),
        _ => Failure::Failed(format!("--listen {address}: {error}")),
    };
    let cluster = EtcdAddress::parse(&args.store);
    if args.rebuild_store && (cluster.is_some() || args.store == "memory") {
        return Err(Failure::Usage(format!("--rebuild-store needs a file as --store, not {}", args.store)));
    }
    let broker = match cluster {
        Some(cluster) => {
            let wrong = |error: String| Failure::Usage(format!("--store {}: {error}", args.store));
            let cluster = cluster.map_err(wrong)?;
            let etcd = Etcd::new(&cluster, etcd_tls(args)?.as_ref(), &args.listen);
            let etcd = etcd.map_err(|error| wrong(error.to_string()))?.lasts_seconds(args.failover_timeout);
            Broker::stand(address, &exposure, settings, Box::new(etcd)).map_err(failed)?
        }
        None => {
            if args.etcd_ca.is_some() {
                return Err(Failure::Usage(format!(
                    "--etcd-ca needs an etcd cluster as --store, not {}",
                    args.store
                )));
            }
            let store: Box<dyn Store> = match args.store.as_str() {
                "memory" => Box::new(MemoryStore::default()),
                path if args.rebuild_store => Box::new(rebuild(Path::new(path))?),
                path => Box::new(RedbStore::open(Path::new(path)).map_err(Failure::failed)?),
            };
            Broker::start(address, &exposure, settings, store).map_err(failed)?
        }
    };
    let broker = Arc::new(broker);
    let _server = monitoring::serve(endpoint, Arc::new(MonitoredBroker(Arc::clone(&broker))))?;
    writeln!(std::io::stdout(), "ready farpool://{}", broker.address())?;
    let asked = Arc::clone(&broker);
    // Needs the lock of the broker's records.
    let ready = supervisor::ready(&format!("serving farpool://{}", broker.address()), move || {
        let _ = asked.term();
    })?;
    stop.wait();
    drop(ready);
    Ok(())
}
