//! `farpool sql worker`: a process that runs parts of other sessions' queries.

use farpool::monitoring::MonitoredSession;
use farpool::{Pool, PoolOptions};
use farpool_command::exit::Failure;
use farpool_command::{exposure, monitoring, supervisor};
use farpool_distributed::{check_listener, serve};
use farpool_transport::Exposure;
use std::io::Write;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// Longest name of a memory node in bytes.
const NAME_BYTES_MAX: usize = 255;

/// Flags of a worker.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Address to receive plans at; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7800")]
    listen: String,
    /// A memory node on this host, whose row groups this worker should read; may be given several times
    #[arg(long, value_name = "NODE", value_parser = name)]
    near: Vec<String>,
    /// Listen beyond this machine without certificates: whoever reaches the port can run plans over every table, and
    /// rows travel unencrypted
    #[arg(long)]
    insecure_listen: bool,
    #[command(flatten)]
    monitoring: monitoring::Args,
    #[command(flatten)]
    exposure: exposure::ClientArgs,
}

fn name(text: &str) -> Result<String, String> {
    let is_name = !text.is_empty() && text.len() <= NAME_BYTES_MAX;
    match is_name && !text.chars().any(|letter| letter == ',' || letter.is_control()) {
        true => Ok(text.to_owned()),
        false => {
            Err(format!("1 to {NAME_BYTES_MAX} bytes are permitted, without commas and control characters"))
        }
    }
}

/// Serves plans of other sessions until SIGINT or SIGTERM.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let exposure = args.exposure.exposure()?;
    let endpoint = args.monitoring.endpoint(exposure.tls.as_ref())?;
    let options = PoolOptions {
        label: Some("farpool sql worker".into()),
        tls: exposure.tls.clone(),
        plaintext: exposure.plaintext,
        ..PoolOptions::default()
    };
    let pool = Pool::connect_with(&args.exposure.pool, options)?;
    let monitored = Arc::new(MonitoredSession::new("sql worker", &pool, None));
    let _server = monitoring::serve(endpoint, monitored)?;
    let exposure = Exposure { tls: exposure.tls, plaintext: args.insecure_listen };
    let served = runtime.block_on(async {
        let listen = |error| Failure::Usage(format!("--listen {}: {error}", args.listen));
        let listener = TcpListener::bind(&args.listen).await.map_err(listen)?;
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let address = listener.local_addr()?;
        let scheme = if exposure.tls.is_some() { "https" } else { "http" };
        // It is ready only if it may be, so that nobody waits for a worker that ends.
        let ready = if check_listener(address, &exposure).is_ok() {
            writeln!(std::io::stdout(), "ready {scheme}://{address}")?;
            let threads = tokio::runtime::Handle::current();
            // Needs one of the threads that run plans.
            let check = move || {
                let _ = threads.block_on(threads.spawn(async {}));
            };
            Some(supervisor::ready(&format!("serving {scheme}://{address}"), check)?)
        } else {
            None
        };
        let stop = async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        let served = serve(listener, &pool, &args.near, &exposure, stop).await;
        drop(ready);
        served.map_err(|error| match error.kind() {
            std::io::ErrorKind::PermissionDenied => {
                Failure::Refused(format!("--listen {}: {error}", args.listen))
            }
            _ => Failure::failed(error),
        })
    });
    runtime.shutdown_background();
    served
}
