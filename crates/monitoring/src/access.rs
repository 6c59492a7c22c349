//! Who may ask: everybody on this machine, the administrator by certificate, or whoever has the token.

use farpool_transport::{Identity, Tls};
use std::fmt;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Permitted length of a token in bytes. The least one has 96 bits, if its characters are random.
pub const TOKEN_BYTES: RangeInclusive<usize> = 16..=1024;
/// Permissions that a file with a token must not have: writing by its group, and anything by others.
const FORBIDDEN_MODE: u32 = 0o027;

/// Rules for who may ask.
#[derive(Clone, Default)]
pub struct Access {
    token: Option<Vec<u8>>,
    /// Certificates of this process, used beyond loopback.
    tls: Option<Tls>,
}

/// Reason why an endpoint cannot be protected as asked.
#[derive(Debug)]
pub enum AccessError {
    /// The file of the token cannot be used.
    Token(PathBuf, String),
    /// The address can be reached from other machines, and nobody would have to prove anything.
    Open(SocketAddr),
}

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AccessError::Token(path, why) => write!(f, "{}: {why}", path.display()),
            AccessError::Open(address) => write!(
                f,
                "{} is not a loopback address, so scrapers must prove who they are: give this process certificates \
                 or a token, or choose an address such as 127.0.0.1",
                address.ip()
            ),
        }
    }
}

impl std::error::Error for AccessError {}

/// Refusal of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// The request proves nothing.
    Unproven,
    /// The token is wrong.
    WrongToken,
    /// The certificate is not the administrator's.
    WrongCertificate,
}

impl Access {
    /// Makes rules without a token. Certificates of clients are not used, because nobody accepts them from a server.
    pub fn new(tls: Option<Tls>) -> Access {
        let is_of_server = |tls: &Tls| matches!(tls.identity(), Identity::Broker | Identity::Node(_));
        Access { token: None, tls: tls.filter(is_of_server) }
    }

    /// Adds the token of a file. Others than its owner and group must not be able to read the file.
    pub fn with_token_file(mut self, path: &Path) -> Result<Access, AccessError> {
        let wrong = |why: String| AccessError::Token(path.to_owned(), why);
        let failed = |error: io::Error| wrong(error.to_string());
        let file = std::fs::File::open(path).map_err(failed)?;
        let facts = file.metadata().map_err(failed)?;
        let mode = facts.permissions().mode() & 0o777;
        if facts.is_file() && mode & FORBIDDEN_MODE != 0 {
            return Err(wrong(format!(
                "its permissions are {mode:03o}, so others can read or change the token; chmod 600 it"
            )));
        }
        let mut text = Vec::new();
        file.take(*TOKEN_BYTES.end() as u64 + 16).read_to_end(&mut text).map_err(failed)?;
        let token = text.trim_ascii();
        let is_token = token.iter().all(|byte| byte.is_ascii_graphic());
        if !TOKEN_BYTES.contains(&token.len()) || !is_token {
            let (least, most) = (TOKEN_BYTES.start(), TOKEN_BYTES.end());
            return Err(wrong(format!(
                "its token has {} bytes; {least} to {most} printable ASCII characters without spaces are permitted; \
                 openssl rand -hex 32 makes one",
                token.len()
            )));
        }
        self.token = Some(token.to_owned());
        Ok(self)
    }

    /// Returns the certificates for connections to an address. `None`: they are not encrypted.
    pub(crate) fn tls(&self, address: SocketAddr) -> Option<Tls> {
        self.tls.clone().filter(|_| !address.ip().is_loopback())
    }

    /// Checks that an address may be served.
    pub(crate) fn check(&self, address: SocketAddr) -> Result<(), AccessError> {
        let is_protected = self.tls.is_some() || self.token.is_some();
        if is_protected || address.ip().is_loopback() { Ok(()) } else { Err(AccessError::Open(address)) }
    }

    /// Decides about a request with this `Authorization` header, of a peer with this certificate.
    pub(crate) fn admits(
        &self,
        address: SocketAddr,
        identity: Option<&Identity>,
        authorization: Option<&[u8]>,
    ) -> Result<(), Denied> {
        if identity == Some(&Identity::Admin) {
            return Ok(());
        }
        match (&self.token, bearer(authorization)) {
            (None, _) if address.ip().is_loopback() => Ok(()),
            (Some(token), Some(given)) => {
                // The time that this takes shows nothing of the token but its length.
                let is_equal = aws_lc_rs::constant_time::verify_slices_are_equal(token, given).is_ok();
                if is_equal { Ok(()) } else { Err(Denied::WrongToken) }
            }
            _ if identity.is_some() => Err(Denied::WrongCertificate),
            _ => Err(Denied::Unproven),
        }
    }

    /// Returns what a refused peer has to do.
    pub(crate) fn advice(&self, denied: Denied) -> String {
        let what = match denied {
            Denied::Unproven => "this request proves nothing",
            Denied::WrongToken => "this token is not the one of this process",
            Denied::WrongCertificate => "this certificate is not the administrator's (admin.farpool)",
        };
        let token = "send the header Authorization: Bearer TOKEN, with the token of its --http-token file";
        let certificate = "connect with the certificate of the administrator";
        match (&self.token, &self.tls) {
            (Some(_), Some(_)) => format!("{what}; {token}, or {certificate}"),
            (Some(_), None) => format!("{what}; {token}"),
            (None, _) => format!("{what}; {certificate}"),
        }
    }
}

/// Returns the token of an `Authorization` header.
fn bearer(authorization: Option<&[u8]>) -> Option<&[u8]> {
    let (scheme, token) = authorization?.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;

    const TOKEN: &str = "0123456789abcdef";
    const HERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);
    const BEYOND: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 1);

    fn with_token() -> Access {
        Access { token: Some(TOKEN.into()), tls: None }
    }

    fn file(name: &str, text: &str, mode: u32) -> PathBuf {
        let path = std::env::temp_dir().join(format!("farpool-token-{}-{name}", std::process::id()));
        std::fs::write(&path, text).expect("written");
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).expect("permissions");
        path
    }

    #[test]
    fn loopback_is_open_and_other_addresses_need_proof() {
        let open = Access::default();
        assert!(open.check(HERE).is_ok() && open.admits(HERE, None, None).is_ok());
        assert!(matches!(open.check(BEYOND), Err(AccessError::Open(_))));
        assert!(with_token().check(BEYOND).is_ok());
    }

    #[test]
    fn token_counts_wherever_the_address_is() {
        let access = with_token();
        for address in [HERE, BEYOND] {
            assert_eq!(access.admits(address, None, None), Err(Denied::Unproven));
            for wrong in ["Bearer 0123456789abcdeg", "Bearer 0123456789abcde", "Bearer "] {
                assert_eq!(access.admits(address, None, Some(wrong.as_bytes())), Err(Denied::WrongToken));
            }
            for wrong in ["Basic 0123456789abcdef", "0123456789abcdef", ""] {
                assert_eq!(access.admits(address, None, Some(wrong.as_bytes())), Err(Denied::Unproven));
            }
            for right in ["Bearer 0123456789abcdef", "bearer  0123456789abcdef "] {
                assert_eq!(access.admits(address, None, Some(right.as_bytes())), Ok(()), "{right}");
            }
        }
    }

    #[test]
    fn certificate_of_the_administrator_is_enough_and_others_are_not() {
        let tenant = Identity::tenant("sales").expect("a tenant");
        for access in [Access::default(), with_token()] {
            assert_eq!(access.admits(BEYOND, Some(&Identity::Admin), None), Ok(()));
            assert_eq!(access.admits(BEYOND, Some(&tenant), None), Err(Denied::WrongCertificate));
        }
        let right = format!("Bearer {TOKEN}");
        assert_eq!(with_token().admits(BEYOND, Some(&tenant), Some(right.as_bytes())), Ok(()));
    }

    #[test]
    fn token_file_must_be_private_and_hold_a_token() {
        let load = |path: &Path| Access::default().with_token_file(path);
        let good = file("good", "0123456789abcdef\n", 0o640);
        assert_eq!(load(&good).expect("a token").token.as_deref(), Some(TOKEN.as_bytes()));
        for (name, text, mode, says) in [
            ("open", TOKEN, 0o644, "644"),
            ("writable", TOKEN, 0o620, "620"),
            ("short", "0123456789abcde", 0o600, "15 bytes; 16 to 1024"),
            ("empty", "", 0o600, "0 bytes"),
            ("spaces", "0123456789 abcdef", 0o600, "without spaces"),
            ("long", &"a".repeat(1_025), 0o600, "16 to 1024"),
        ] {
            let path = file(name, text, mode);
            let error = load(&path).err().expect("refused").to_string();
            assert!(error.contains(says) && error.contains(name), "{error}");
            std::fs::remove_file(path).expect("removed");
        }
        std::fs::remove_file(&good).expect("removed");
        assert!(load(&good).err().expect("refused").to_string().contains("No such file"));
    }
}
