//! Translation of errors of rustls and webpki, and of alerts, into our error texts.

use super::{Identity, TlsError, TlsErrorKind};
use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError};

/// Translates an error of webpki about the certificate `whose`, checked against the CA that `ca` names.
pub(super) fn of_webpki(error: &webpki::Error, whose: &str, ca: &str) -> TlsError {
    use webpki::Error as E;
    match error {
        E::CertExpired { not_after, .. } => expired(whose, *not_after),
        E::CertNotValidYet { not_before, .. } => not_yet_valid(whose, *not_before),
        E::UnknownIssuer | E::InvalidSignatureForPublicKey => other_ca(whose, ca),
        E::CaUsedAsEndEntity => TlsError::new(
            TlsErrorKind::Identity,
            format!("{whose} is a CA's certificate, which identifies nobody: issue a certificate with it"),
        ),
        other => TlsError::new(TlsErrorKind::Handshake, format!("{whose} is not acceptable ({other})")),
    }
}

/// Translates an error of rustls about the certificate of a peer that was dialled as `expected`.
fn of_certificate(error: &CertificateError, expected: Option<&Identity>, ca: &str) -> TlsError {
    use CertificateError as E;
    let whose = match expected {
        Some(identity) => format!("the certificate of {identity}"),
        None => "the peer's certificate".to_owned(),
    };
    match error {
        E::ExpiredContext { not_after, .. } => expired(&whose, *not_after),
        E::NotValidYetContext { not_before, .. } => not_yet_valid(&whose, *not_before),
        E::UnknownIssuer | E::BadSignature => other_ca(&whose, ca),
        E::Revoked => TlsError::new(TlsErrorKind::Identity, format!("{whose} was revoked by its CA")),
        E::UnknownRevocationStatus => TlsError::new(
            TlsErrorKind::Handshake,
            format!("the revocation list is not of the CA that issued {whose}"),
        ),
        E::NotValidForNameContext { presented, .. } => wrong_peer(expected, presented),
        E::NotValidForName | E::ApplicationVerificationFailure => wrong_peer(expected, &[]),
        other => TlsError::new(TlsErrorKind::Handshake, format!("{whose} is not acceptable ({other})")),
    }
}

/// Translates the error that ended a handshake. `own` names our certificate, `ca` the trusted CA.
pub(super) fn of_rustls(error: &rustls::Error, expected: Option<&Identity>, own: &str, ca: &str) -> TlsError {
    use rustls::Error as E;
    match error {
        E::InvalidCertificate(error) => of_certificate(error, expected, ca),
        E::AlertReceived(alert) => of_alert(*alert, own),
        E::NoCertificatesPresented => TlsError::new(
            TlsErrorKind::Identity,
            "the peer sent no certificate: every process of the pool needs one",
        ),
        E::PeerIncompatible(_) => TlsError::new(
            TlsErrorKind::Handshake,
            "the peer does not support TLS 1.3 with AES-GCM, which is needed",
        ),
        other => TlsError::new(TlsErrorKind::Handshake, format!("the TLS handshake failed ({other})")),
    }
}

/// Translates the alert with which the peer rejected us. `own` names our certificate.
pub(super) fn of_alert(alert: AlertDescription, own: &str) -> TlsError {
    let why = match alert {
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "it was not issued by the CA that the peer trusts"
        }
        AlertDescription::CertificateExpired => "it has expired or is not valid yet, by the peer's clock",
        AlertDescription::CertificateRequired => "the peer requires a certificate and got none",
        AlertDescription::AccessDenied => "it does not have exactly one identity of the pool",
        AlertDescription::BadCertificate => "it is for another name than the peer expects",
        AlertDescription::UnsupportedCertificate => "it is not permitted for this side of a connection",
        AlertDescription::CertificateRevoked => "its CA has revoked it",
        AlertDescription::CertificateUnknown => "the peer does not accept it",
        other => {
            let message = format!("the peer ended the TLS connection (alert {})", u8::from(other));
            return TlsError::new(TlsErrorKind::Handshake, message);
        }
    };
    TlsError::new(TlsErrorKind::RefusedByPeer, format!("the peer refused {own}: {why}"))
}

/// Error for a peer with another identity than `expected`. `presented` are the names in its certificate, as rustls
/// shows them.
pub(super) fn wrong_peer(expected: Option<&Identity>, presented: &[String]) -> TlsError {
    // Text from a peer is repeated only if it is an identity of the pool.
    let name = |shown: &String| Identity::from_dns_name(shown.split('"').nth(1).unwrap_or(shown));
    let found = presented.iter().find_map(name);
    let message = match (expected, found) {
        (Some(expected), Some(found)) => format!("the peer is {found}, not {expected}"),
        (Some(expected), None) => {
            format!("the peer's certificate is not that of {expected}")
        }
        (None, _) => "the peer's certificate does not have exactly one identity of the pool".to_owned(),
    };
    TlsError::new(TlsErrorKind::WrongPeer, message)
}

fn expired(whose: &str, not_after: UnixTime) -> TlsError {
    let message = format!("{whose} expired on {}: issue a new one", utc(not_after.as_secs()));
    TlsError::new(TlsErrorKind::Expired, message)
}

fn not_yet_valid(whose: &str, not_before: UnixTime) -> TlsError {
    let from = utc(not_before.as_secs());
    let message = format!("{whose} is not valid before {from}: is a clock wrong?");
    TlsError::new(TlsErrorKind::NotYetValid, message)
}

fn other_ca(whose: &str, ca: &str) -> TlsError {
    TlsError::new(TlsErrorKind::OtherCa, format!("{whose} was not issued by the CA in {ca}"))
}

/// Formats seconds since 1970 as date and time: `2026-11-21 14:05 UTC`.
pub fn utc(seconds: u64) -> String {
    let (mut year, mut day) = (1970, seconds / 86_400);
    // Whole periods of 400 years are skipped first, because a certificate may contain any number.
    year += day / 146_097 * 400;
    day %= 146_097;
    let is_leap = |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let days_of = |year| if is_leap(year) { 366 } else { 365 };
    while day >= days_of(year) {
        day -= days_of(year);
        year += 1;
    }
    let months = [31, if is_leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while day >= months[month] {
        day -= months[month];
        month += 1;
    }
    let (hour, minute) = (seconds / 3_600 % 24, seconds / 60 % 60);
    format!("{year:04}-{:02}-{:02} {hour:02}:{minute:02} UTC", month + 1, day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_is_that_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_868_799, "2000-02-29 23:59 UTC"),
            (1_700_000_000, "2023-11-14 22:13 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
            (253_402_300_799, "9999-12-31 23:59 UTC"),
        ] {
            assert_eq!(utc(seconds), text);
        }
        assert!(utc(u64::MAX).ends_with("UTC"));
    }
}
