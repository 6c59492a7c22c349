//! Identity of a peer, from its certificate: a DNS name in the private zone `farpool`.
//!
//! Every PKI can issue DNS names and every verifier can check them. Nothing else about the certificates is special to
//! Farpool.

use super::{TlsError, TlsErrorKind};
use farpool_wire::{Name, NodeId, TENANT_ADMIN, TENANT_LOCAL};
use rustls::pki_types::CertificateDer;
use std::fmt;

const ZONE: &str = ".farpool";
const BROKER: &str = "broker.farpool";
const ADMIN: &str = "admin.farpool";
const NODE_ZONE: &str = ".node.farpool";
const TENANT_ZONE: &str = ".tenant.farpool";
/// Limit of a DNS label, in bytes (RFC 1035, 2.3.4).
const LABEL_BYTES_MAX: usize = 63;

/// Identity that a certificate proves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// The pool's broker: `broker.farpool`.
    Broker,
    /// One memory node: `n-<16 hexadecimal digits>.node.farpool`.
    Node(NodeId),
    /// A tenant, whose clients share a quota: `<tenant>.tenant.farpool`.
    Tenant(Name),
    /// The administrator of the pool: `admin.farpool`.
    Admin,
}

impl Identity {
    /// Makes the identity of a tenant. Its name has 1 to 63 characters of `a` to `z`, `0` to `9` and `-`, and `-` is
    /// neither first nor last.
    pub fn tenant(name: &str) -> Result<Identity, TlsError> {
        let is_label = (1..=LABEL_BYTES_MAX).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            && !name.starts_with('-')
            && !name.ends_with('-')
            // A tenant of this name would count as the administrator, or as a process of this machine.
            && name != TENANT_ADMIN
            && name != TENANT_LOCAL;
        match Name::new(name) {
            Ok(name) if is_label => Ok(Identity::Tenant(name)),
            _ => Err(TlsError::new(
                TlsErrorKind::Identity,
                format!(
                    "invalid tenant name {name:?}; use 1 to {LABEL_BYTES_MAX} of a to z, 0 to 9 and -, without - at \
                     the beginning or end, and not {TENANT_ADMIN} or {TENANT_LOCAL}"
                ),
            )),
        }
    }

    /// Returns the tenant for which the peer acts: its own name, or the administrator's. `None` for brokers and nodes.
    pub fn tenant_name(&self) -> Option<Name> {
        match self {
            Identity::Tenant(tenant) => Some(tenant.clone()),
            Identity::Admin => Name::new(TENANT_ADMIN).ok(),
            Identity::Broker | Identity::Node(_) => None,
        }
    }

    /// Returns the DNS name of the identity.
    pub fn dns_name(&self) -> String {
        match self {
            Identity::Broker => BROKER.to_owned(),
            Identity::Node(node) => format!("n-{:016x}{NODE_ZONE}", node.0),
            Identity::Tenant(tenant) => format!("{tenant}{TENANT_ZONE}"),
            Identity::Admin => ADMIN.to_owned(),
        }
    }

    /// Parses a DNS name. `None` if it is not an identity of the zone. Upper and lower case are equal, as in all of
    /// DNS.
    pub fn from_dns_name(name: &str) -> Option<Identity> {
        let name = name.to_ascii_lowercase();
        match name.as_str() {
            BROKER => return Some(Identity::Broker),
            ADMIN => return Some(Identity::Admin),
            _ => {}
        }
        if let Some(label) = name.strip_suffix(NODE_ZONE) {
            let digits = label.strip_prefix("n-").filter(|digits| {
                digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
            })?;
            return u64::from_str_radix(digits, 16).ok().map(|id| Identity::Node(NodeId(id)));
        }
        Identity::tenant(name.strip_suffix(TENANT_ZONE)?).ok()
    }

    /// Returns the identity of a certificate. The certificate must have exactly one name in the zone, and that name
    /// must be an identity; with two names the identity would be ambiguous. Names outside the zone are ignored. `whose`
    /// names the certificate in errors.
    pub fn of_certificate(certificate: &CertificateDer<'_>, whose: &str) -> Result<Identity, TlsError> {
        let names = names_in_zone(certificate);
        if let [name] = &names[..]
            && let Some(identity) = Identity::from_dns_name(name)
        {
            return Ok(identity);
        }
        let found = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        Err(TlsError::new(
            TlsErrorKind::Identity,
            format!(
                "{whose} must have exactly one DNS name in the zone farpool: {BROKER}, {ADMIN}, \
                 n-<16 hexadecimal digits>{NODE_ZONE} or <tenant>{TENANT_ZONE}; found: {found}"
            ),
        ))
    }
}

/// Returns the DNS names of a certificate that lie in the zone, in lower case. They are printable, because webpki
/// passes only characters that DNS permits.
fn names_in_zone(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = webpki::EndEntityCert::try_from(certificate) else { return Vec::new() };
    let names = certificate.valid_dns_names().map(str::to_ascii_lowercase);
    names.filter(|name| name.ends_with(ZONE)).collect()
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.dns_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_and_its_name_are_each_other() {
        let tenant = Identity::tenant("team-7").expect("a tenant");
        for (identity, name) in [
            (Identity::Broker, "broker.farpool"),
            (Identity::Admin, "admin.farpool"),
            (Identity::Node(NodeId(0x7d26_e74c_b88b_6b67)), "n-7d26e74cb88b6b67.node.farpool"),
            (Identity::Node(NodeId(1)), "n-0000000000000001.node.farpool"),
            (tenant, "team-7.tenant.farpool"),
        ] {
            assert_eq!(identity.dns_name(), name);
            assert_eq!(Identity::from_dns_name(name), Some(identity.clone()));
            assert_eq!(Identity::from_dns_name(&name.to_uppercase()), Some(identity));
        }
    }

    #[test]
    fn name_that_is_nearly_an_identity_is_none() {
        for name in [
            "",
            "farpool",
            "broker",
            "broker.farpool.",
            "broker.farpool.example",
            "x.broker.farpool",
            "n-7d26e74cb88b6b6.node.farpool",
            "n-7d26e74cb88b6b677.node.farpool",
            "n-+d26e74cb88b6b67.node.farpool",
            "7d26e74cb88b6b67.node.farpool",
            "*.node.farpool",
            "n-7d26e74cb88b6b67.x.node.farpool",
            ".tenant.farpool",
            "tenant.farpool",
            "-a.tenant.farpool",
            "a-.tenant.farpool",
            "a.b.tenant.farpool",
            "a_b.tenant.farpool",
            "*.tenant.farpool",
        ] {
            assert_eq!(Identity::from_dns_name(name), None, "{name}");
        }
    }

    #[test]
    fn tenant_name_is_held_to_a_dns_label() {
        assert!(Identity::tenant(&"a".repeat(63)).is_ok());
        for name in ["", "A", "a.b", "-a", "a-", "a b", "ä", &"a".repeat(64)] {
            let error = Identity::tenant(name).expect_err(name);
            assert!(error.to_string().contains("1 to 63"), "{error}");
        }
    }
}
