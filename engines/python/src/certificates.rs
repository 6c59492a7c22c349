//! Arguments of `farpool.connect` that name certificates.

use crate::errors;
use farpool::{Tls, TlsFiles};
use pyo3::prelude::*;
use std::path::PathBuf;

/// Loads the certificates that the arguments name. `None` if they name none.
pub(crate) fn tls(
    py: Python<'_>,
    [ca, cert, key]: [Option<PathBuf>; 3],
    certs: Option<PathBuf>,
    tenant: Option<&str>,
) -> PyResult<Option<Tls>> {
    let files = match (ca, cert, key, certs) {
        (None, None, None, None) if tenant.is_none() => return Ok(None),
        (Some(ca), Some(cert), Some(key), None) if tenant.is_none() => TlsFiles { ca, cert, key, crl: None },
        (None, None, None, Some(folder)) => {
            let name = tenant.map_or("admin".to_owned(), |tenant| format!("tenant-{tenant}"));
            TlsFiles::in_folder(&folder, &name)
        }
        _ => {
            let permitted = "ca, cert and key together, or certs, or certs and tenant are permitted";
            return Err(errors::invalid(py, permitted.to_owned()));
        }
    };
    Tls::load(&files).map(Some).map_err(|error| errors::invalid(py, error.to_string()))
}
