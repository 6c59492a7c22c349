//! Bytes over a TLS connection after the handshake. The kernel encrypts and decrypts if it can; otherwise this module
//! does.
//!
//! The record layer of TLS 1.3 (RFC 8446, 5.2) consists of a header of five bytes, a sequence number that both sides
//! count, and a cipher. Counting and headers are done here. The cipher is called through rustls, which also makes and
//! checks the content of a record. The gain over a buffered connection: records are encrypted straight from the
//! caller's slices, one call receives many records, they are decrypted in place, and the only copy is the one into the
//! caller's buffers.
//!
//! Invariants: a sequence number is used once in each direction; at most `RECORDS_MAX` records are encrypted under one
//! key; ciphertext of bytes that were accepted is sent before anything that is encrypted later.

use super::causes;
use super::kernel::{self, Incoming};
use crate::socket::{Interest, Socket, Stream};
use farpool_wire::MonoNs;
use rustls::crypto::cipher::{
    AeadKey, InboundOpaqueMessage, Iv, MessageDecrypter, MessageEncrypter, OutboundChunks,
    OutboundPlainMessage,
};
use rustls::{
    AlertDescription, Connection, ConnectionTrafficSecrets, ContentType, ProtocolVersion, Tls13CipherSuite,
};
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

/// Bytes of a record's header.
pub(super) const RECORD_HEADER_BYTES: usize = 5;
/// Limit of the bytes that follow the header of a record (RFC 8446, 5.2).
pub(super) const RECORD_BODY_BYTES_MAX: usize = RECORD_PLAIN_BYTES_MAX + 256;
/// Limit of the plaintext bytes of one record (RFC 8446, 5.1).
const RECORD_PLAIN_BYTES_MAX: usize = 16 << 10;
/// Records that are encrypted before the first of them is sent. The peer decrypts them while this side encrypts the
/// next.
const GROUP_RECORDS: usize = 8;
/// Limit of the bytes received by one call, once the peer sends much.
const INPUT_BYTES_MAX: usize = 128 << 10;
const INPUT_BYTES_START: usize = RECORD_HEADER_BYTES + RECORD_BODY_BYTES_MAX;
/// Limit of records under one key. AES-GCM stays safe for 2^24.5 full records (RFC 8446, 5.5). Keys are not changed
/// within a connection, so the connection is abandoned before that.
const RECORDS_MAX: u64 = 1 << 24;
/// Records sent or received after which a client replaces the connection between two conversations: half of
/// `RECORDS_MAX`, so that a conversation that has begun can end.
const RECORDS_WORN: u64 = 1 << 23;

const _: () = assert!(INPUT_BYTES_START <= INPUT_BYTES_MAX);

/// TLS connection after its handshake.
pub struct TlsStream {
    socket: Socket,
    /// Encrypts outgoing bytes. `None` if the kernel does.
    encryption: Option<Encryption>,
    /// Decrypts incoming bytes. `None` if the kernel does.
    decryption: Option<Decryption>,
    /// Numbers of records sent and received. Upper bounds if the kernel makes the records.
    sent_records: u64,
    received_records: u64,
    /// Description of our certificate, for the error if the peer rejects it.
    own: String,
}

impl TlsStream {
    /// Takes a connection over from its handshake. Each direction is handed to the kernel if it can take it, and is
    /// handled here otherwise.
    pub(super) fn begin(socket: Socket, connection: Connection, own: String) -> io::Result<TlsStream> {
        let suite = connection.negotiated_cipher_suite().and_then(|suite| suite.tls13());
        let suite = suite.ok_or_else(|| io::Error::other("a handshake without a TLS 1.3 cipher"))?;
        let secrets = connection.dangerous_extract_secrets().map_err(io::Error::other)?;
        let handed = kernel::hand_over(&socket, &secrets);
        let encryption = (!handed.sending).then(|| Encryption::new(suite, secrets.tx.1));
        let decryption = (!handed.receiving).then(|| Decryption::new(suite, secrets.rx.1));
        Ok(TlsStream {
            socket,
            encryption: encryption.transpose()?,
            decryption: decryption.transpose()?,
            sent_records: secrets.tx.0,
            received_records: secrets.rx.0,
            own,
        })
    }

    fn check_sendable(&self) -> io::Result<()> {
        if self.sent_records >= RECORDS_MAX {
            return Err(io::Error::other(
                "the connection has encrypted as many records as its keys permit; reconnect",
            ));
        }
        Ok(())
    }
}

impl Stream for TlsStream {
    fn read(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match &mut self.decryption {
            Some(decryption) => {
                decryption.read(&mut self.socket, &mut self.received_records, into, &self.own)
            }
            None => match kernel::read(&mut self.socket, into)? {
                Incoming::Data(count) => {
                    self.received_records += records_of(count);
                    Ok(count)
                }
                Incoming::Alert(alert) => ended_by(alert, self.received_records == 0, &self.own).map(|()| 0),
                Incoming::Other => Err(broken(NEITHER)),
                Incoming::Changed => Err(broken(CHANGED)),
            },
        }
    }

    fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        self.check_sendable()?;
        match &mut self.encryption {
            Some(encryption) => encryption.write(&mut self.socket, &mut self.sent_records, from),
            None => {
                let count = self.socket.write(from)?;
                self.sent_records += records_of(count);
                Ok(count)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.encryption {
            Some(encryption) => encryption.flush(&mut self.socket),
            None => Ok(()),
        }
    }

    fn wait(&mut self, interest: Interest, deadline: MonoNs) -> io::Result<()> {
        self.socket.wait(interest, deadline)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn is_readable(&mut self) -> bool {
        let has_bytes =
            |decryption: &Decryption| !decryption.plain.is_empty() || !decryption.ciphertext.is_empty();
        self.decryption.as_ref().is_some_and(has_bytes) || self.socket.is_readable()
    }

    fn rest(&mut self) {
        self.socket.rest();
    }

    fn never_spin(&mut self) {
        self.socket.never_spin();
    }

    fn is_encrypted(&self) -> bool {
        true
    }

    fn is_worn(&self) -> bool {
        self.sent_records.max(self.received_records) >= RECORDS_WORN
    }
}

/// Returns an upper bound of the records that the kernel makes of this many bytes.
fn records_of(bytes: usize) -> u64 {
    (bytes / RECORD_PLAIN_BYTES_MAX) as u64 + 1
}

fn cipher_of(secrets: ConnectionTrafficSecrets) -> io::Result<(AeadKey, Iv)> {
    match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } | ConnectionTrafficSecrets::Aes256Gcm { key, iv } => {
            Ok((key, iv))
        }
        _ => Err(io::Error::other("a handshake with a cipher that was not offered")),
    }
}

/// Encryption of outgoing records. It keeps those that the socket has not accepted yet.
struct Encryption {
    encrypter: Box<dyn MessageEncrypter>,
    records: VecDeque<Vec<u8>>,
    /// Bytes of the first record that have been sent.
    sent: usize,
}

impl Encryption {
    fn new(suite: &Tls13CipherSuite, secrets: ConnectionTrafficSecrets) -> io::Result<Encryption> {
        let (key, iv) = cipher_of(secrets)?;
        let records = VecDeque::with_capacity(GROUP_RECORDS);
        Ok(Encryption { encrypter: suite.aead_alg.encrypter(key, iv), records, sent: 0 })
    }

    /// Encrypts and sends as long as the socket accepts bytes. The returned number of bytes has been encrypted; the
    /// last records may still have to be flushed.
    fn write(&mut self, socket: &mut Socket, sequence: &mut u64, from: &[IoSlice<'_>]) -> io::Result<usize> {
        self.flush(socket)?;
        let mut slices = from.iter();
        let mut rest: &[u8] = &[];
        let mut chunks: Vec<&[u8]> = Vec::new();
        let mut written = 0;
        loop {
            while self.records.len() < GROUP_RECORDS && *sequence < RECORDS_MAX {
                chunks.clear();
                let mut length = 0;
                while length < RECORD_PLAIN_BYTES_MAX {
                    if rest.is_empty() {
                        let Some(next) = slices.next() else { break };
                        rest = next;
                    }
                    let (chunk, behind) = rest.split_at(rest.len().min(RECORD_PLAIN_BYTES_MAX - length));
                    length += chunk.len();
                    rest = behind;
                    chunks.push(chunk);
                }
                if length == 0 {
                    break;
                }
                let message = OutboundPlainMessage {
                    typ: ContentType::ApplicationData,
                    version: ProtocolVersion::TLSv1_2,
                    payload: OutboundChunks::new(&chunks),
                };
                let encrypted = self.encrypter.encrypt(message, *sequence).map_err(io::Error::other)?;
                *sequence += 1;
                self.records.push_back(encrypted.encode());
                written += length;
            }
            if self.records.is_empty() {
                return Ok(written);
            }
            match self.flush(socket) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(written),
                Err(error) => return Err(error),
            }
        }
    }

    fn flush(&mut self, socket: &mut Socket) -> io::Result<()> {
        while let Some(first) = self.records.front() {
            let mut slices = [IoSlice::new(&[]); GROUP_RECORDS];
            slices[0] = IoSlice::new(&first[self.sent..]);
            for (slice, record) in slices[1..].iter_mut().zip(self.records.iter().skip(1)) {
                *slice = IoSlice::new(record);
            }
            let mut count = match socket.write(&slices) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            while let Some(first) = self.records.front() {
                let left = first.len() - self.sent;
                if count < left {
                    self.sent += count;
                    break;
                }
                count -= left;
                self.sent = 0;
                self.records.pop_front();
            }
        }
        Ok(())
    }
}

/// Decryption of incoming records, in the buffer that received them.
struct Decryption {
    decrypter: Box<dyn MessageDecrypter>,
    buffer: Vec<u8>,
    /// Received bytes that are not decrypted yet.
    ciphertext: Range<usize>,
    /// Decrypted bytes that are not read yet. They lie before `ciphertext`.
    plain: Range<usize>,
    /// True if the peer announced the end of its bytes.
    is_closed: bool,
}

impl Decryption {
    fn new(suite: &Tls13CipherSuite, secrets: ConnectionTrafficSecrets) -> io::Result<Decryption> {
        let (key, iv) = cipher_of(secrets)?;
        Ok(Decryption {
            decrypter: suite.aead_alg.decrypter(key, iv),
            buffer: vec![0; INPUT_BYTES_START],
            ciphertext: 0..0,
            plain: 0..0,
            is_closed: false,
        })
    }

    /// Reads decrypted bytes into the slices. Decrypts further records that were received whole if there is room, and
    /// receives from the socket only if there is nothing to read or decrypt.
    fn read(
        &mut self,
        socket: &mut Socket,
        sequence: &mut u64,
        into: &mut [IoSliceMut<'_>],
        own: &str,
    ) -> io::Result<usize> {
        let mut total = 0;
        let mut slices = into.iter_mut();
        let mut room: &mut [u8] = &mut [];
        loop {
            loop {
                if room.is_empty() {
                    let Some(next) = slices.next() else { return Ok(total) };
                    room = next;
                    continue;
                }
                if self.plain.is_empty() {
                    break;
                }
                let (target, behind) = room.split_at_mut(room.len().min(self.plain.len()));
                target.copy_from_slice(&self.buffer[self.plain.start..][..target.len()]);
                self.plain.start += target.len();
                total += target.len();
                room = behind;
            }
            if self.is_closed {
                return Ok(total);
            }
            if self.decrypt(sequence, own)? {
                continue;
            }
            if total > 0 {
                return Ok(total);
            }
            if self.receive(socket)? == 0 {
                return Ok(0);
            }
        }
    }

    /// Decrypts the next record if all of it has been received. Reports whether it has.
    fn decrypt(&mut self, sequence: &mut u64, own: &str) -> io::Result<bool> {
        let Some(body) = self.whole_record()? else { return Ok(false) };
        self.ciphertext.start = body.end;
        let (start, record) = (body.start, &mut self.buffer[body]);
        let message =
            InboundOpaqueMessage::new(ContentType::ApplicationData, ProtocolVersion::TLSv1_2, record);
        let decrypted = self.decrypter.decrypt(message, *sequence);
        let decrypted = decrypted.map_err(|_| broken(CHANGED))?;
        *sequence += 1;
        match (decrypted.typ, decrypted.payload) {
            // Empty records could be sent for ever without any progress.
            (ContentType::ApplicationData, []) => Err(broken("a record without bytes")),
            (ContentType::ApplicationData, bytes) => {
                self.plain = start..start + bytes.len();
                Ok(true)
            }
            (ContentType::Alert, [_, alert]) => {
                self.is_closed = true;
                ended_by(AlertDescription::from(*alert), *sequence == 1, own).map(|()| true)
            }
            _ => Err(broken(NEITHER)),
        }
    }

    /// Returns the range of the next record's body, if all of it has been received.
    fn whole_record(&self) -> io::Result<Option<Range<usize>>> {
        let waiting = &self.buffer[self.ciphertext.clone()];
        let Some(head) = waiting.first_chunk::<RECORD_HEADER_BYTES>() else { return Ok(None) };
        let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
        // Only data is expected. Encrypted alerts have the same type.
        if head[0] != u8::from(ContentType::ApplicationData) || head[1] != 3 || length > RECORD_BODY_BYTES_MAX
        {
            return Err(broken("bytes that are not a TLS record"));
        }
        let start = self.ciphertext.start + RECORD_HEADER_BYTES;
        Ok((waiting.len() - RECORD_HEADER_BYTES >= length).then(|| start..start + length))
    }

    /// Receives more bytes. All decrypted bytes have been read before.
    fn receive(&mut self, socket: &mut Socket) -> io::Result<usize> {
        let is_full = self.ciphertext.end == self.buffer.len();
        if is_full && self.buffer.len() < INPUT_BYTES_MAX {
            // One call did not receive everything: the peer sends much.
            self.buffer.resize(INPUT_BYTES_MAX, 0);
        }
        if self.ciphertext.is_empty() {
            self.ciphertext = 0..0;
        } else if self.ciphertext.start + INPUT_BYTES_START > self.buffer.len() {
            self.buffer.copy_within(self.ciphertext.clone(), 0);
            self.ciphertext = 0..self.ciphertext.len();
        }
        self.plain = 0..0;
        let count = socket.read(&mut [IoSliceMut::new(&mut self.buffer[self.ciphertext.end..])])?;
        self.ciphertext.end += count;
        Ok(count)
    }
}

const CHANGED: &str = "a record that was changed in transit";
const NEITHER: &str = "a TLS message that is neither data nor an alert";

/// Turns an alert into the end of the stream or an error. An alert before any other record is the peer's reaction to
/// our certificate. A later one ends a connection that was trusted, and requests sent over it may or may not have been
/// executed.
fn ended_by(alert: AlertDescription, is_first: bool, own: &str) -> io::Result<()> {
    if alert == AlertDescription::CloseNotify {
        return Ok(());
    }
    let error = causes::of_alert(alert, own);
    Err(if is_first {
        io::Error::new(io::ErrorKind::PermissionDenied, error)
    } else {
        io::Error::new(io::ErrorKind::ConnectionAborted, error.to_string())
    })
}

/// Error for a TLS connection that the peer, or somebody between, has broken. Callers treat it as a connection that
/// ended.
fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the TLS connection is broken: received {what}"))
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;
    use crate::socket::{read_full, write_full};
    use farpool_host::clock;
    use proptest::prelude::*;

    fn soon() -> MonoNs {
        clock::now().plus_ms(10_000)
    }

    /// Writes with one end while the other reads into slices of these lengths. Returns the bytes read.
    fn pass(from: &mut TlsStream, to: &mut TlsStream, written: &[Vec<u8>], lengths: &[usize]) -> Vec<u8> {
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut slices: Vec<IoSlice<'_>> = written.iter().map(|bytes| IoSlice::new(bytes)).collect();
                write_full(from, &mut slices, soon()).expect("written");
            });
            let mut left: usize = written.iter().map(Vec::len).sum();
            let mut buffers = Vec::new();
            for length in lengths.iter().chain(std::iter::repeat(&usize::MAX)) {
                buffers.push(vec![0; left.min(*length)]);
                left -= left.min(*length);
                if left == 0 {
                    break;
                }
            }
            let mut slices: Vec<IoSliceMut<'_>> =
                buffers.iter_mut().map(|one| IoSliceMut::new(one)).collect();
            read_full(to, &mut slices, soon()).expect("read");
            buffers.concat()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn bytes_split_anyhow_arrive_as_they_were_written_in_both_directions(
            sizes in prop::collection::vec(0usize..50_000, 1..12),
            lengths in prop::collection::vec(0usize..40_000, 0..12),
            large in prop::bool::ANY,
        ) {
            let (mut client, mut server) = testing::pair();
            let mut next = 0u32;
            let mut written: Vec<Vec<u8>> = sizes
                .iter()
                .map(|length| (0..*length).map(|_| { next = next.wrapping_add(1); (next % 253) as u8 }).collect())
                .collect();
            if large {
                // More bytes than the sockets and both queues hold.
                written.push((0..9_000_000u32).map(|at| (at % 247) as u8).collect());
            }
            let all = written.concat();
            prop_assert!(pass(&mut client, &mut server, &written, &lengths) == all);
            prop_assert!(pass(&mut server, &mut client, &written, &lengths) == all);
        }
    }

    #[test]
    fn stream_that_encrypted_what_its_keys_are_good_for_encrypts_no_more() {
        let (mut client, _server) = testing::pair();
        assert!(client.is_encrypted() && !client.is_worn());
        client.sent_records = RECORDS_WORN;
        assert!(client.is_worn(), "retired between two conversations");
        client.sent_records = RECORDS_MAX;
        assert!(client.write(&[IoSlice::new(b"one more")]).is_err());
        // The limit also holds inside one write.
        client.sent_records = RECORDS_MAX - 2;
        if client.encryption.is_some() {
            let bytes = vec![0; 10 * RECORD_PLAIN_BYTES_MAX];
            assert_eq!(
                client.write(&[IoSlice::new(&bytes)]).expect("two records"),
                2 * RECORD_PLAIN_BYTES_MAX
            );
            assert!(client.write(&[IoSlice::new(&bytes)]).is_err());
        }
    }

    #[test]
    fn stream_whose_peer_has_received_much_is_worn_too() {
        let (mut client, _server) = testing::pair();
        client.received_records = RECORDS_WORN;
        assert!(client.is_worn());
    }

    /// Encrypts one record by hand, which may be one that our peers never send.
    fn encrypted(peer: &mut TlsStream, typ: ContentType, payload: &[u8]) -> Vec<u8> {
        let encryption = peer.encryption.as_mut().expect("this kernel has no TLS");
        let message = OutboundPlainMessage {
            typ,
            version: ProtocolVersion::TLSv1_2,
            payload: OutboundChunks::Single(payload),
        };
        let record = encryption.encrypter.encrypt(message, peer.sent_records).expect("encrypted").encode();
        peer.sent_records += 1;
        record
    }

    /// Sends raw bytes from the peer and returns the result of reading them.
    fn read_of(stream: &mut TlsStream, peer: &mut TlsStream, bytes: &[u8]) -> io::Result<Vec<u8>> {
        write_full(&mut peer.socket, &mut [IoSlice::new(bytes)], soon()).expect("sent");
        let mut into = vec![0; 64];
        loop {
            match stream.read(&mut [IoSliceMut::new(&mut into)]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    stream.wait(Interest::Readable, soon()).expect("something comes");
                }
                Ok(count) => return Ok(into[..count].to_vec()),
                Err(error) => return Err(error),
            }
        }
    }

    #[test]
    fn record_is_taken_if_it_is_data_and_ends_the_stream_if_it_is_anything_else() {
        let data = ContentType::ApplicationData;
        let fatal = u8::from(AlertDescription::CertificateRequired);
        for (typ, payload, kind) in [
            (data, &b"bytes"[..], None),
            (data, b"", Some(io::ErrorKind::InvalidData)),
            (ContentType::Handshake, &[24, 0, 0, 1, 0], Some(io::ErrorKind::InvalidData)),
            (ContentType::ChangeCipherSpec, &[1], Some(io::ErrorKind::InvalidData)),
            (ContentType::Alert, &[2], Some(io::ErrorKind::InvalidData)),
            (ContentType::Alert, &[2, fatal], Some(io::ErrorKind::PermissionDenied)),
        ] {
            let (mut client, mut server) = testing::pair();
            let record = encrypted(&mut server, typ, payload);
            match (read_of(&mut client, &mut server, &record), kind) {
                (Ok(found), None) => assert_eq!(found, payload),
                (Err(error), Some(kind)) => assert_eq!(error.kind(), kind, "{typ:?}: {error}"),
                (other, _) => panic!("{typ:?} {payload:?}: {other:?}"),
            }
        }
        // Every alert after the first record ends the connection.
        let (mut client, mut server) = testing::pair();
        let records =
            [encrypted(&mut server, data, b"bytes"), encrypted(&mut server, ContentType::Alert, &[2, fatal])];
        assert_eq!(read_of(&mut client, &mut server, &records[0]).expect("data"), b"bytes");
        let error = read_of(&mut client, &mut server, &records[1]).expect_err("the end");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted, "{error}");
        // A close alert ends the stream without an error.
        let (mut client, mut server) = testing::pair();
        let record = encrypted(&mut server, ContentType::Alert, &[1, 0]);
        assert_eq!(read_of(&mut client, &mut server, &record).expect("the end"), b"");
    }

    #[test]
    fn bytes_that_are_no_record_of_this_connection_are_refused() {
        let (mut client, mut server) = testing::pair();
        let good = encrypted(&mut server, ContentType::ApplicationData, b"bytes");
        let mut changed = good.clone();
        changed[7] ^= 1;
        let oversize = [&[23, 3, 3, 0xff, 0xff][..], &[0; 64]].concat();
        let short = [23, 3, 3, 0, 3, 1, 2, 3];
        for bytes in
            [&changed[..], &oversize, &short, &[21, 3, 3, 0, 2, 2, 40], &[0; 16], b"FPW1 in plaintext"]
        {
            let (mut client, mut server) = testing::pair();
            let error = read_of(&mut client, &mut server, bytes).expect_err("refused");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{bytes:02x?}: {error}");
        }
        // A replayed record is refused, because its sequence number has passed.
        assert_eq!(read_of(&mut client, &mut server, &good).expect("the first time"), b"bytes");
        assert!(read_of(&mut client, &mut server, &good).is_err());
    }
}
