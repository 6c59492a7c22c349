//! Flags for the HTTP server on which a long-running command shows its metrics, health and state.

use crate::exit::Failure;
use farpool_host::{Event, Host, Machine};
use farpool_monitoring::{Access, Endpoint, HttpError, Monitored, Server};
use farpool_transport::Tls;
use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::sync::Arc;

/// Flags of every command that can be monitored.
#[derive(clap::Args)]
pub struct Args {
    /// Address to serve metrics, health and state on over HTTP; port 0 picks a free port. Beyond this machine, requests
    /// need the administrator's certificate or the token of --http-token
    #[arg(long, value_name = "HOST:PORT")]
    http: Option<String>,
    /// File with a token that every request over HTTP must carry, as Authorization: Bearer TOKEN
    #[arg(long, value_name = "FILE", requires = "http")]
    http_token: Option<PathBuf>,
}

impl Args {
    /// Binds the address of `--http`, before anything else of the command starts. `None` without that flag. `tls` are
    /// the certificates of the command.
    pub fn endpoint(&self, tls: Option<&Tls>) -> Result<Option<Endpoint>, Failure> {
        let Some(asked) = &self.http else { return Ok(None) };
        let usage = |why: String| {
            Failure::Usage(format!("--http {asked}: {why}; HOST:PORT is permitted, such as 127.0.0.1:9700"))
        };
        let mut found = asked.to_socket_addrs().map_err(|error| usage(error.to_string()))?;
        let address = found.next().ok_or_else(|| usage("it resolves to no address".into()))?;
        let mut access = Access::new(tls.cloned());
        if let Some(path) = &self.http_token {
            let wrong = |error| Failure::Failed(format!("--http-token {error}"));
            access = access.with_token_file(path).map_err(wrong)?;
        }
        let bound = Endpoint::bind(address, access, tls.cloned());
        bound.map(Some).map_err(|error| match error {
            HttpError::Access(_) => {
                Failure::Refused(format!("--http {asked}: {error} (--certs, --http-token)"))
            }
            HttpError::Bind(..) => Failure::Failed(format!("--http {asked}: {error}")),
        })
    }
}

/// Serves a bound address, and logs where. Returns `None` if there is none.
pub fn serve(endpoint: Option<Endpoint>, monitored: Arc<dyn Monitored>) -> Result<Option<Server>, Failure> {
    let Some(endpoint) = endpoint else { return Ok(None) };
    let server = endpoint.serve(monitored).map_err(Failure::failed)?;
    let message = format!("metrics, health and state are served at {}", server.address());
    Machine.log(&Event::info("http_serves", message));
    Ok(Some(server))
}
