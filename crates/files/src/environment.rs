//! The pool that the environment of this process names, for clients that were given none. The variables are those of
//! the command's flags.

use crate::error::{Error, ErrorKind};
use crate::options::PoolOptions;
use farpool_transport::{Tls, TlsFiles};
use std::ffi::OsString;
use std::path::PathBuf;

/// Variable with the address of the pool.
pub const POOL_VARIABLE: &str = "FARPOOL_POOL";

/// Returns the address in `FARPOOL_POOL`, and the options completed by what the environment says about connections:
/// `FARPOOL_CERTS` with `FARPOOL_TENANT`; `FARPOOL_TLS_CA`, `FARPOOL_TLS_CERT`, `FARPOOL_TLS_KEY` and
/// `FARPOOL_TLS_CRL`; or `FARPOOL_PLAINTEXT`. Options that name certificates or plaintext themselves stay as they are.
pub(crate) fn pool_of_environment(options: PoolOptions) -> Result<(String, PoolOptions), Error> {
    // An empty variable counts as not set, as in the command.
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let url = address(&variable)?;
    if options.tls.is_some() || options.plaintext {
        return Ok((url, options));
    }
    let connection = connection(&variable)?;
    // A list in the folder of FARPOOL_CERTS may be missing; one that is named may not.
    if let Some(crl) = variable("FARPOOL_TLS_CRL").map(PathBuf::from).filter(|crl| !crl.is_file()) {
        let message = format!("FARPOOL_TLS_CRL {}: there is no such file", crl.display());
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let tls = connection.files.map(|files| Tls::load(&files)).transpose();
    let tls = tls.map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
    Ok((url, PoolOptions { tls, plaintext: connection.plaintext, ..options }))
}

#[derive(Debug, Default)]
struct Connection {
    files: Option<TlsFiles>,
    plaintext: bool,
}

/// Returns the value of a variable, or `None` for one that is not set.
type Variable<'v> = &'v dyn Fn(&str) -> Option<OsString>;

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

fn text(variable: Variable<'_>, name: &str) -> Result<Option<String>, Error> {
    let value = variable(name).map(OsString::into_string).transpose();
    value.map_err(|value| invalid(format!("{name} is {value:?}, which is not UTF-8")))
}

fn address(variable: Variable<'_>) -> Result<String, Error> {
    text(variable, POOL_VARIABLE)?.ok_or_else(|| {
        invalid(format!(
            "no address of a pool was given and {POOL_VARIABLE} is not set: give one, such as farpool://127.0.0.1:7700"
        ))
    })
}

fn connection(variable: Variable<'_>) -> Result<Connection, Error> {
    let text = |name: &str| text(variable, name);
    let path = |name: &str| variable(name).map(PathBuf::from);
    let plaintext = match text("FARPOOL_PLAINTEXT")?.as_deref() {
        None | Some("false" | "0") => false,
        Some("true" | "1") => true,
        Some(other) => {
            return Err(invalid(format!(
                "FARPOOL_PLAINTEXT is {other:?}; true, 1, false and 0 are permitted"
            )));
        }
    };
    let names = ["FARPOOL_TLS_CA", "FARPOOL_TLS_CERT", "FARPOOL_TLS_KEY"];
    let crl = path("FARPOOL_TLS_CRL");
    let files = match (path("FARPOOL_CERTS"), names.map(path), text("FARPOOL_TENANT")?) {
        (Some(folder), [None, None, None], tenant) if crl.is_none() => {
            let stem = tenant.map_or("admin".to_owned(), |tenant| format!("tenant-{tenant}"));
            Some(TlsFiles::in_folder(&folder, &stem))
        }
        (None, [Some(ca), Some(cert), Some(key)], None) => Some(TlsFiles { ca, cert, key, crl }),
        (None, [None, None, None], None) if crl.is_none() => None,
        _ => {
            return Err(invalid(format!(
                "of the variables of certificates, FARPOOL_CERTS with or without FARPOOL_TENANT is permitted, or {} \
                 together, with or without FARPOOL_TLS_CRL",
                names.join(", ")
            )));
        }
    };
    if plaintext && files.is_some() {
        let message = "FARPOOL_PLAINTEXT is true and certificates are named: unset the one or the others";
        return Err(invalid(message.to_owned()));
    }
    Ok(Connection { files, plaintext })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Result<(String, Connection), Error> {
        let variable: Variable<'_> =
            &|name| pairs.iter().find(|(found, _)| *found == name).map(|(_, value)| value.into());
        Ok((address(variable)?, connection(variable)?))
    }

    const POOL: (&str, &str) = (POOL_VARIABLE, "farpool://10.0.0.1:7700");

    #[test]
    fn environment_without_a_pool_is_refused_with_the_variable() {
        let error = of(&[("FARPOOL_CERTS", "folder")]).expect_err("no pool");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("FARPOOL_POOL is not set"), "{error}");
    }

    #[test]
    fn certificates_are_those_of_the_folder_and_of_the_tenant() {
        let (url, connection) = of(&[POOL]).expect("a pool");
        assert!(url == POOL.1 && connection.files.is_none() && !connection.plaintext);
        let cert = |pairs: &[(&str, &str)]| of(pairs).expect("a pool").1.files.expect("files").cert;
        assert_eq!(cert(&[POOL, ("FARPOOL_CERTS", "f")]), PathBuf::from("f/admin.pem"));
        let tenant = [POOL, ("FARPOOL_CERTS", "f"), ("FARPOOL_TENANT", "x")];
        assert_eq!(cert(&tenant), PathBuf::from("f/tenant-x.pem"));
        let [ca, pair, key] = [("FARPOOL_TLS_CA", "a"), ("FARPOOL_TLS_CERT", "b"), ("FARPOOL_TLS_KEY", "c")];
        assert_eq!(cert(&[POOL, ca, pair, key]), PathBuf::from("b"));
        let crl = ("FARPOOL_TLS_CRL", "d");
        let files = of(&[POOL, ca, pair, key, crl]).expect("a pool").1.files.expect("files");
        assert_eq!(files.crl, Some(PathBuf::from("d")));
        for wrong in [
            &[POOL, ca, pair][..],
            &[POOL, ("FARPOOL_TENANT", "x")],
            &[tenant[1], POOL, ca],
            // A list of revoked certificates that nobody looks at would be worse than an error.
            &[POOL, crl],
            &[tenant[1], POOL, crl],
        ] {
            assert!(of(wrong).is_err_and(|error| error.to_string().contains("FARPOOL_TLS_KEY")), "{wrong:?}");
        }
    }

    #[test]
    fn plaintext_is_true_or_false_and_excludes_certificates() {
        assert!(of(&[POOL, ("FARPOOL_PLAINTEXT", "true")]).is_ok_and(|(_, connection)| connection.plaintext));
        assert!(of(&[POOL, ("FARPOOL_PLAINTEXT", "0")]).is_ok_and(|(_, connection)| !connection.plaintext));
        let error = of(&[POOL, ("FARPOOL_PLAINTEXT", "yes")]).expect_err("yes");
        assert!(error.to_string().contains("\"yes\""), "{error}");
        assert!(of(&[POOL, ("FARPOOL_PLAINTEXT", "1"), ("FARPOOL_CERTS", "f")]).is_err());
    }
}
