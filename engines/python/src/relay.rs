//! Relays of the certificates of a pool, for servers and clients in Python that speak another protocol.

use crate::errors;
use crate::pool::PyPool;
use farpool::Relay;
use farpool_lock::Mutex;
use pyo3::prelude::*;
use std::net::TcpListener;
use std::path::PathBuf;

/// A running relay. It ends with `close`.
#[pyclass(name = "_Relay", module = "farpool._farpool", frozen)]
pub(crate) struct PyRelay {
    relay: Mutex<Option<Relay>>,
    /// Port at which it accepts TLS. None for the side of the client.
    #[pyo3(get)]
    port: Option<u16>,
}

impl PyRelay {
    fn new(relay: Relay) -> PyRelay {
        let port = relay.local_address().map(|address| address.port());
        PyRelay { relay: Mutex::new(Some(relay)), port }
    }
}

#[pymethods]
impl PyRelay {
    /// Ends the connections of the relay.
    fn close(&self, py: Python<'_>) {
        let relay = self.relay.lock().take();
        // The threads of its connections end, which may take a moment.
        py.detach(|| drop(relay));
    }
}

/// Accepts TLS from sessions of the pool's own identity at `address` ("HOST:PORT"), and connects them to the Unix
/// socket `behind`.
#[pyfunction]
pub(crate) fn _relay_to(py: Python<'_>, pool: &PyPool, address: &str, behind: PathBuf) -> PyResult<PyRelay> {
    let listener = TcpListener::bind(address);
    let listener =
        listener.map_err(|error| errors::invalid(py, format!("cannot listen at {address}: {error}")))?;
    pool.run(py, |pool| pool.relay_to(listener, &behind)).map(PyRelay::new)
}

/// Listens on the Unix socket `before` and carries its connections to `address` ("HOST:PORT") over TLS.
#[pyfunction]
pub(crate) fn _relay_from(
    py: Python<'_>,
    pool: &PyPool,
    before: PathBuf,
    address: &str,
) -> PyResult<PyRelay> {
    pool.run(py, |pool| pool.relay_from(&before, address)).map(PyRelay::new)
}

/// Reports whether the session of a pool has certificates.
#[pyfunction]
pub(crate) fn _has_certificates(py: Python<'_>, pool: &PyPool) -> PyResult<bool> {
    pool.run(py, |pool| Ok(pool.has_certificates()))
}
