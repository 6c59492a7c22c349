//! CA in memory that issues any certificate a test needs, including invalid ones.

use farpool_node::node_id;
use farpool_transport::{Exposure, Identity, Tls};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, date_time_ymd,
};
use std::time::{Duration, SystemTime};

const DAY: Duration = Duration::from_secs(86_400);

pub struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

/// Names and validity of a certificate to issue.
pub struct Wish<'n> {
    pub names: &'n [&'n str],
    /// Start and end of its validity, in days from now.
    pub days: (i32, i32),
}

/// Certificate and key, in PEM.
pub struct Issued {
    pub cert: String,
    pub key: String,
}

impl Ca {
    pub fn new() -> Ca {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.distinguished_name = DistinguishedName::new();
        // All test CAs have the same name, so that only their keys tell them apart.
        params.distinguished_name.push(DnType::CommonName, "Farpool test CA");
        let pem = params.self_signed(&key).expect("signed").pem();
        Ca { issuer: Issuer::new(params, key), pem }
    }

    pub fn issue(&self, wish: &Wish<'_>) -> Issued {
        let names: Vec<String> = wish.names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        let now = date_time_ymd(1970, 1, 1) + Duration::from_secs(since.as_secs());
        let at = |days: i32| {
            let apart = DAY * days.unsigned_abs();
            if days < 0 { now - apart } else { now + apart }
        };
        (params.not_before, params.not_after) = (at(wish.days.0), at(wish.days.1));
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.issuer).expect("signed").pem();
        Issued { cert, key: key.serialize_pem() }
    }

    /// Issues a certificate for this identity, valid from yesterday to tomorrow, as the settings of a TLS peer.
    pub fn tls(&self, identity: &Identity) -> Tls {
        let Issued { cert, key } = self.issue(&Wish { names: &[&identity.dns_name()], days: (-1, 1) });
        Tls::from_pem(&self.pem, &cert, &key).expect("a good certificate")
    }

    /// Issues a certificate that only clients may use, as those of tenants once were.
    pub fn client_alone(&self, identity: &Identity) -> Tls {
        let mut params = CertificateParams::new(vec![identity.dns_name()]).expect("a name");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.issuer).expect("signed").pem();
        Tls::from_pem(&self.pem, &cert, &key.serialize_pem()).expect("a good certificate")
    }

    pub fn broker(&self) -> Tls {
        self.tls(&Identity::Broker)
    }

    pub fn node(&self, name: &str) -> Tls {
        self.tls(&Identity::Node(node_id(name)))
    }

    pub fn tenant(&self, name: &str) -> Tls {
        self.tls(&Identity::tenant(name).expect("a tenant"))
    }

    pub fn exposure(tls: Tls) -> Exposure {
        Exposure { tls: Some(tls), plaintext: false }
    }
}
