//! Kernel TLS: the kernel encrypts and decrypts records, and the connection is read and written like a plain socket.

use crate::socket::{Socket, Stream};
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, TlsGetRecordType, recvmsg, setsockopt, sockopt};
use rustls::{AlertDescription, ConnectionTrafficSecrets, ExtractedSecrets};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Directions of a connection in which the kernel makes the TLS records: encrypting what is sent, decrypting what is
/// received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Handed {
    pub(super) sending: bool,
    pub(super) receiving: bool,
}

/// Result of a read when the kernel decrypts.
pub(super) enum Incoming {
    /// Number of data bytes; 0 at the end of the connection.
    Data(usize),
    /// An alert, which ends the connection.
    Alert(AlertDescription),
    /// A record of another type.
    Other,
    /// A record that was changed on the way.
    Changed,
}

/// True once the kernel has answered that it has no TLS. It is not asked again; a module that is loaded later is used
/// after a restart.
static IS_ABSENT: AtomicBool = AtomicBool::new(false);

/// Gives the keys of a connection to the kernel after the handshake, for each direction if the kernel can make its
/// records. Only this function decides that.
pub(super) fn hand_over(socket: &Socket, secrets: &ExtractedSecrets) -> Handed {
    let nothing = Handed::default();
    if IS_ABSENT.load(Ordering::Relaxed) {
        return nothing;
    }
    let (Some(sending), Some(receiving)) =
        (crypto_info(secrets.tx.0, &secrets.tx.1), crypto_info(secrets.rx.0, &secrets.rx.1))
    else {
        return nothing;
    };
    match setsockopt(socket, sockopt::TcpUlp::default(), b"tls") {
        Ok(()) => {}
        Err(Errno::ENOENT | Errno::ENOPROTOOPT | Errno::EPERM) => {
            IS_ABSENT.store(true, Ordering::Relaxed);
            return nothing;
        }
        // Any other error concerns this socket only, for example because the peer has closed it. Other connections are
        // still handed to the kernel.
        Err(_) => return nothing,
    }
    // A direction without keys keeps working as before, independently of the other.
    Handed {
        sending: setsockopt(socket, sockopt::TcpTlsTx, &sending).is_ok(),
        receiving: setsockopt(socket, sockopt::TcpTlsRx, &receiving).is_ok(),
    }
}

/// Reads from a connection whose records the kernel decrypts.
pub(super) fn read(socket: &mut Socket, into: &mut [IoSliceMut<'_>]) -> io::Result<Incoming> {
    match socket.read(into) {
        Ok(count) => Ok(Incoming::Data(count)),
        Err(error) if error.raw_os_error() == Some(Errno::EBADMSG as i32) => Ok(Incoming::Changed),
        // The next record is not data. Only a call that can receive the record type gets it.
        Err(error) if error.raw_os_error() == Some(Errno::EIO as i32) => {
            let mut message = [0; 2];
            let mut beside = nix::cmsg_space!(u8);
            let mut slices = [IoSliceMut::new(&mut message)];
            let fd = socket.as_fd().as_raw_fd();
            let received = recvmsg::<()>(fd, &mut slices, Some(&mut beside), MsgFlags::MSG_DONTWAIT)?;
            let is_alert =
                |message| matches!(message, ControlMessageOwned::TlsGetRecordType(TlsGetRecordType::Alert));
            let alert = received.bytes == 2 && received.cmsgs()?.any(is_alert);
            Ok(if alert { Incoming::Alert(message[1].into()) } else { Incoming::Other })
        }
        Err(error) => Err(error),
    }
}

/// Returns the keys of one direction in the kernel's form. The 12-byte IV of TLS 1.3 is split into a salt of 4 bytes
/// and an IV of 8.
fn crypto_info(sequence: u64, secrets: &ConnectionTrafficSecrets) -> Option<sockopt::TlsCryptoInfo> {
    let info = |cipher_type| libc::tls_crypto_info { version: libc::TLS_1_3_VERSION, cipher_type };
    match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => {
            let (salt, iv) = iv.as_ref().split_first_chunk()?;
            Some(sockopt::TlsCryptoInfo::Aes128Gcm(libc::tls12_crypto_info_aes_gcm_128 {
                info: info(libc::TLS_CIPHER_AES_GCM_128),
                iv: iv.try_into().ok()?,
                key: key.as_ref().try_into().ok()?,
                salt: *salt,
                rec_seq: sequence.to_be_bytes(),
            }))
        }
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => {
            let (salt, iv) = iv.as_ref().split_first_chunk()?;
            Some(sockopt::TlsCryptoInfo::Aes256Gcm(libc::tls12_crypto_info_aes_gcm_256 {
                info: info(libc::TLS_CIPHER_AES_GCM_256),
                iv: iv.try_into().ok()?,
                key: key.as_ref().try_into().ok()?,
                salt: *salt,
                rec_seq: sequence.to_be_bytes(),
            }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;
    use rustls::crypto::cipher::{AeadKey, Iv};

    // RFC 8446 counts records from 0 in a big-endian sequence number. The kernel calls the first four bytes of the IV
    // the salt.
    const IV: [u8; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];

    #[test]
    fn keys_of_aes_256_gcm_reach_the_kernel_in_its_form() {
        let key: [u8; 32] = std::array::from_fn(|index| index as u8);
        let secrets = ConnectionTrafficSecrets::Aes256Gcm { key: AeadKey::from(key), iv: Iv::from(IV) };
        let Some(sockopt::TlsCryptoInfo::Aes256Gcm(info)) = crypto_info(0x0102, &secrets) else {
            panic!("AES-256-GCM has a form");
        };
        assert_eq!((info.info.version, info.info.cipher_type), (0x0304, 52));
        assert_eq!((info.salt, info.iv), ([1, 2, 3, 4], [5, 6, 7, 8, 9, 10, 11, 12]));
        assert_eq!((info.key, info.rec_seq), (key, [0, 0, 0, 0, 0, 0, 1, 2]));
    }

    #[test]
    fn keys_of_a_handshake_reach_the_kernel_counted_from_its_first_record() {
        let [client, server] = testing::secrets();
        for (ours, theirs) in [(client.tx, &server.rx), (client.rx, &server.tx)] {
            let (
                Some(sockopt::TlsCryptoInfo::Aes128Gcm(ours)),
                Some(sockopt::TlsCryptoInfo::Aes128Gcm(theirs)),
            ) = (crypto_info(ours.0, &ours.1), crypto_info(theirs.0, &theirs.1))
            else {
                panic!("AES-128-GCM is what is agreed on first");
            };
            assert_eq!((ours.info.version, ours.info.cipher_type), (0x0304, 51));
            assert_eq!(ours.rec_seq, [0; 8]);
            assert_eq!((ours.key, ours.salt, ours.iv), (theirs.key, theirs.salt, theirs.iv));
            assert_ne!(ours.key, [0; 16]);
        }
    }

    #[test]
    fn key_of_another_length_than_the_cipher_has_is_not_handed_over() {
        let key = AeadKey::from([7; 32]);
        let secrets = ConnectionTrafficSecrets::Aes128Gcm { key, iv: Iv::from(IV) };
        assert!(crypto_info(0, &secrets).is_none());
    }

    #[test]
    fn cipher_that_is_not_offered_is_not_handed_over() {
        let key = AeadKey::from([7; 32]);
        let secrets = ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv: Iv::from(IV) };
        assert!(crypto_info(0, &secrets).is_none());
    }
}
