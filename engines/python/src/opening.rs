//! `farpool.connect` and `farpool.embedded`.

use crate::pool::{PyPool, protection as protection_of};
use crate::{certificates, errors, function, units};
use farpool::monitoring::{Access, Endpoint};
use farpool::{EmbeddedOptions, POOL_VARIABLE, Pool, PoolOptions, TransportChoice};
use pyo3::prelude::*;
use std::net::ToSocketAddrs;
use std::path::PathBuf;

fn transport(py: Python<'_>, word: &str) -> PyResult<TransportChoice> {
    word.parse().map_err(|error| errors::of(py, &error))
}

fn local_folder(folder: Option<PathBuf>) -> PathBuf {
    folder.unwrap_or_else(|| PoolOptions::default().local_folder)
}

/// Starts a session with the pool at `url`, such as "farpool://127.0.0.1:7700".
///
/// If `url` is missing, the environment names the pool (`FARPOOL_POOL`) and, unless arguments do, its certificates
/// (`FARPOOL_CERTS`, `FARPOOL_TENANT` and so on, as for the command). `transport="auto"` uses shared memory to nodes on
/// this machine and TCP to all others. `reserve` bytes are leased before this returns.
///
/// Connections to other machines are encrypted, and both sides prove their identity by certificates. Pass `ca`, `cert`
/// and `key` (PEM files); or pass `certs`, a folder made by `farpool certs init`, which uses the administrator's
/// certificate or that of `tenant`. Without certificates, brokers and nodes on other machines are refused, unless you
/// set `plaintext`. Then everybody on the network may read and change what is stored.
///
/// `protection` is the default for scratch files: "mirror" (copies on two nodes of different host labels), "local" (a
/// copy in `local_folder`, by default the system's folder for temporary files) or "none". If it is not given: "mirror"
/// if the pool has nodes of two host labels, otherwise "local". With `encrypted`, scratch
/// files are encrypted and authenticated before they leave this process: memory nodes can neither read them nor change
/// them unnoticed. Local copies are not encrypted.
///
/// If `http` is an address, such as "127.0.0.1:9710" (port 0 picks a free one), metrics and state of the session are
/// served there over HTTP until it is closed. Requests need the token of the file `http_token`, if one is given;
/// addresses of other machines need one.
///
/// Raises UnreachableError, RefusedError (on another machine without certificates, or one side does not trust the
/// other), InvalidError (url, transport, timeout, protection, certificates, http), ExhaustedError (reserve).
///
/// >>> with farpool.connect("farpool://127.0.0.1:7700") as pool:     # doctest: +SKIP
/// ...     pool.reserve("1GiB")
#[pyfunction]
#[pyo3(signature = (
    url=None, *, transport="auto", timeout="5s", reserve=None, ca=None, cert=None, key=None, certs=None,
    tenant=None, plaintext=false, protection=None, local_folder=None, encrypted=false, http=None, http_token=None
))]
#[allow(clippy::too_many_arguments)]
pub(crate) fn connect(
    py: Python<'_>,
    url: Option<&str>,
    transport: &str,
    timeout: &str,
    reserve: Option<&Bound<'_, PyAny>>,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    certs: Option<PathBuf>,
    tenant: Option<&str>,
    plaintext: bool,
    protection: Option<&str>,
    local_folder: Option<PathBuf>,
    encrypted: bool,
    http: Option<&str>,
    http_token: Option<PathBuf>,
) -> PyResult<PyPool> {
    let options = PoolOptions {
        tls: certificates::tls(py, [ca, cert, key], certs, tenant)?,
        transport: self::transport(py, transport)?,
        request_timeout_ms: units::millis(py, "timeout", timeout)?,
        reserve_bytes: reserve.map_or(Ok(0), |reserve| units::bytes("reserve", reserve))?,
        plaintext,
        protection: protection_of(py, protection)?,
        local_folder: self::local_folder(local_folder),
        encrypt_scratch: encrypted,
        sandbox: function::installed_sandbox(py),
        ..PoolOptions::default()
    };
    let local_folder = options.local_folder.clone();
    let endpoint = http.map(|address| endpoint(py, address, http_token)).transpose()?;
    let opened = match url {
        Some(url) => py.detach(|| Pool::connect_with(url, options)),
        None if std::env::var_os(POOL_VARIABLE).is_none_or(|url| url.is_empty()) => {
            let message = format!(
                "no url was given and {POOL_VARIABLE} is not set: give the address of a pool, such as \
                 'farpool://127.0.0.1:7700', or start a pool in this process with farpool.embedded()"
            );
            return Err(errors::invalid(py, message));
        }
        None => py.detach(|| Pool::connect_from_environment(options)),
    };
    let pool = opened.map_err(|error| errors::of(py, &error))?;
    let served = endpoint.map(|endpoint| pool.serve_http(endpoint)).transpose()?;
    Ok(PyPool::new(pool, local_folder, served))
}

/// Binds the address at which a session is served over HTTP.
fn endpoint(py: Python<'_>, asked: &str, token: Option<PathBuf>) -> PyResult<Endpoint> {
    let wrong = |why: String| errors::invalid(py, format!("http {asked:?}: {why}"));
    let found = asked.to_socket_addrs().map_err(|error| wrong(format!("{error}; write HOST:PORT")))?;
    let address = found.into_iter().next().ok_or_else(|| wrong("it resolves to no address".into()))?;
    let mut access = Access::default();
    if let Some(path) = token {
        let loaded = access.with_token_file(&path);
        access = loaded.map_err(|error| errors::invalid(py, format!("http_token {error}")))?;
    }
    Endpoint::bind(address, access, None).map_err(|error| wrong(error.to_string()))
}

/// Starts a broker and `nodes` memory nodes inside this process, with `memory` bytes in total.
///
/// Use it for tests and to try things out: the memory is that of this process, and stays in the pool when the machine
/// runs short of it. The nodes end with this process and share one host, so `protection` is "none" unless given (see
/// `connect`).
///
/// >>> with farpool.embedded("128MiB", nodes=2) as small:
/// ...     [node["donated_bytes"] >> 20 for node in small.status()["nodes"]]
/// [64, 64]
#[pyfunction]
#[pyo3(signature = (
    memory=None, *, nodes=1, region_size=None, transport="auto", protection=None, local_folder=None
))]
pub(crate) fn embedded(
    py: Python<'_>,
    memory: Option<&Bound<'_, PyAny>>,
    nodes: u32,
    region_size: Option<&Bound<'_, PyAny>>,
    transport: &str,
    protection: Option<&str>,
    local_folder: Option<PathBuf>,
) -> PyResult<PyPool> {
    let pool = PoolOptions {
        transport: self::transport(py, transport)?,
        protection: protection_of(py, protection)?,
        local_folder: self::local_folder(local_folder),
        sandbox: function::installed_sandbox(py),
        ..PoolOptions::default()
    };
    let options = EmbeddedOptions {
        node_count: nodes,
        region_bytes: region_size.map(|value| units::bytes("region_size", value)).transpose()?,
        pool,
        ..EmbeddedOptions::new(memory.map_or(Ok(1 << 30), |memory| units::bytes("memory", memory))?)
    };
    let local_folder = options.pool.local_folder.clone();
    let opened = py.detach(|| Pool::embedded(options));
    opened.map(|pool| PyPool::new(pool, local_folder, None)).map_err(|error| errors::of(py, &error))
}
