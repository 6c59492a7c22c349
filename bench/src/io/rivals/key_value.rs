//! Small client of Redis (RESP) and memcached (text protocol). It stores each block of a file under a key of its own,
//! and sends all requests of a batch before it reads the replies. The length of every reply is checked. A missing key
//! is an error, because a miss would be faster than a read.

use crate::exit::Failure;
use crate::harness::bursts::Target;
use farpool::{ReadRange, WriteRange};
use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::net::TcpStream;

/// Protocol of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Redis,
    Memcached,
}

/// Longest line that the server may send, in bytes.
const LINE_BYTES_MAX: u64 = 512;
/// Size of the buffer for replies, in bytes. Larger blocks are received directly into their destination.
const READER_BYTES: usize = 64 << 10;

impl Dialect {
    /// Appends a request for a block.
    fn get(self, key: &str, out: &mut Vec<u8>) {
        let request = match self {
            Dialect::Redis => format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()),
            Dialect::Memcached => format!("get {key}\r\n"),
        };
        out.extend_from_slice(request.as_bytes());
    }

    /// Returns the head of a request that stores a block. The block follows, then `\r\n`.
    fn set(self, key: &str, bytes: usize) -> String {
        match self {
            Dialect::Redis => {
                format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${bytes}\r\n", key.len())
            }
            Dialect::Memcached => format!("set {key} 0 0 {bytes}\r\n"),
        }
    }

    /// Reads the reply to a request of [`Self::get`].
    fn got(self, from: &mut impl BufRead, key: &str, into: &mut [u8]) -> Result<(), Failure> {
        let header = line(from)?;
        let length = match self {
            Dialect::Redis => header.strip_prefix('$').and_then(|length| length.parse::<usize>().ok()),
            Dialect::Memcached => {
                let length = header.strip_prefix("VALUE ").and_then(|rest| rest.strip_prefix(key));
                length.and_then(|rest| rest.strip_prefix(" 0 ")).and_then(|length| length.parse().ok())
            }
        };
        if length != Some(into.len()) {
            return Err(unexpected(&format!("{} bytes of {key}", into.len()), &header));
        }
        from.read_exact(into)?;
        expect(from, "")?;
        match self {
            Dialect::Redis => Ok(()),
            Dialect::Memcached => expect(from, "END"),
        }
    }

    /// Reads the reply to a request of [`Self::set`].
    fn stored(self, from: &mut impl BufRead) -> Result<(), Failure> {
        match self {
            Dialect::Redis => expect(from, "+OK"),
            Dialect::Memcached => expect(from, "STORED"),
        }
    }
}

fn unexpected(wanted: &str, found: &str) -> Failure {
    Failure::Failed(format!("the server answered {found:?}, not {wanted}"))
}

/// Reads a line and removes its end.
fn line(from: &mut impl BufRead) -> Result<String, Failure> {
    let mut line = Vec::new();
    from.take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    let text = line.strip_suffix(b"\r\n").and_then(|line| std::str::from_utf8(line).ok());
    text.map(str::to_owned).ok_or_else(|| unexpected("a line", &String::from_utf8_lossy(&line)))
}

fn expect(from: &mut impl BufRead, wanted: &str) -> Result<(), Failure> {
    let found = line(from)?;
    if found == wanted { Ok(()) } else { Err(unexpected(&format!("{wanted:?}"), &found)) }
}

/// Connection with which one client reads and writes the blocks of its file.
pub(crate) struct KeyValue {
    dialect: Dialect,
    client: usize,
    reader: BufReader<TcpStream>,
    out: Vec<u8>,
}

impl KeyValue {
    /// Connects to a server on this machine.
    pub(crate) fn connect(dialect: Dialect, port: u16, client: usize) -> Result<KeyValue, Failure> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        let reader = BufReader::with_capacity(READER_BYTES, stream);
        Ok(KeyValue { dialect, client, reader, out: Vec::new() })
    }
}

fn key(client: usize, offset: u64) -> String {
    format!("{client}:{offset:x}")
}

impl Target for KeyValue {
    fn read(&mut self, ranges: &mut [ReadRange<'_>]) -> Result<(), Failure> {
        self.out.clear();
        for range in ranges.iter() {
            self.dialect.get(&key(self.client, range.offset), &mut self.out);
        }
        self.reader.get_mut().write_all(&self.out)?;
        ranges.iter_mut().try_for_each(|range| {
            self.dialect.got(&mut self.reader, &key(self.client, range.offset), range.into)
        })
    }

    fn write(&mut self, ranges: &[WriteRange<'_>]) -> Result<(), Failure> {
        let headers: Vec<String> = ranges
            .iter()
            .map(|range| self.dialect.set(&key(self.client, range.offset), range.from.len()))
            .collect();
        let mut slices: Vec<IoSlice<'_>> = headers
            .iter()
            .zip(ranges)
            .flat_map(|(header, range)| [header.as_bytes(), range.from, b"\r\n"])
            .map(IoSlice::new)
            .collect();
        write_all(self.reader.get_mut(), &mut slices)?;
        ranges.iter().try_for_each(|_| self.dialect.stored(&mut self.reader))
    }
}

fn write_all(out: &mut impl Write, mut slices: &mut [IoSlice<'_>]) -> Result<(), Failure> {
    while !slices.is_empty() {
        let count = out.write_vectored(slices)?;
        if count == 0 {
            return Err(Failure::failed("the server takes no more"));
        }
        IoSlice::advance_slices(&mut slices, count);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_those_of_the_protocols() {
        let get = |dialect: Dialect| {
            let mut out = Vec::new();
            dialect.get("0:2000", &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(get(Dialect::Redis), "*2\r\n$3\r\nGET\r\n$6\r\n0:2000\r\n");
        assert_eq!(get(Dialect::Memcached), "get 0:2000\r\n");
        assert_eq!(Dialect::Redis.set("0:0", 8192), "*3\r\n$3\r\nSET\r\n$3\r\n0:0\r\n$8192\r\n");
        assert_eq!(Dialect::Memcached.set("0:0", 8192), "set 0:0 0 0 8192\r\n");
    }

    #[test]
    fn answers_are_read_one_after_another() {
        let mut into = [0; 4];
        let mut redis = &b"$4\r\nabcd\r\n$4\r\n\r\n\r\n\r\n+OK\r\n"[..];
        Dialect::Redis.got(&mut redis, "k", &mut into).unwrap();
        assert_eq!(&into, b"abcd");
        Dialect::Redis.got(&mut redis, "k", &mut into).unwrap();
        assert_eq!(&into, b"\r\n\r\n");
        Dialect::Redis.stored(&mut redis).unwrap();
        let mut memcached = &b"VALUE k 0 4\r\nabcd\r\nEND\r\nSTORED\r\n"[..];
        Dialect::Memcached.got(&mut memcached, "k", &mut into).unwrap();
        Dialect::Memcached.stored(&mut memcached).unwrap();
        assert!(redis.is_empty() && memcached.is_empty());
    }

    #[test]
    fn miss_wrong_length_wrong_key_and_broken_answer_are_errors() {
        let fails = |dialect: Dialect, mut answer: &[u8]| {
            assert!(dialect.got(&mut answer, "k", &mut [0; 4]).is_err(), "{answer:?}");
        };
        for answer in
            [&b"$-1\r\n"[..], b"$5\r\nabcde\r\n", b"$4\r\nabc", b"$4\r\nabcdXX", b"-ERR no\r\n", b""]
        {
            fails(Dialect::Redis, answer);
        }
        for answer in [
            &b"END\r\n"[..],
            b"VALUE k 0 5\r\nabcde\r\nEND\r\n",
            b"VALUE x 0 4\r\nabcd\r\nEND\r\n",
            b"VALUE k 0 4\r\nabcd\r\nOK\r\n",
            b"SERVER_ERROR out of memory\r\n",
        ] {
            fails(Dialect::Memcached, answer);
        }
        assert!(Dialect::Redis.stored(&mut &b"-OOM\r\n"[..]).is_err());
        assert!(Dialect::Memcached.stored(&mut &b"NOT_STORED\r\n"[..]).is_err());
        assert!(Dialect::Redis.stored(&mut &[b'x'; 4_000][..]).is_err(), "a line without end");
    }

    #[test]
    fn vectored_write_goes_on_after_a_part() {
        struct Slow(Vec<u8>);
        impl Write for Slow {
            fn write(&mut self, from: &[u8]) -> std::io::Result<usize> {
                let count = from.len().min(3);
                self.0.extend_from_slice(&from[..count]);
                Ok(count)
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let mut slow = Slow(Vec::new());
        write_all(&mut slow, &mut [IoSlice::new(b"first "), IoSlice::new(b""), IoSlice::new(b"second")])
            .unwrap();
        assert_eq!(slow.0, b"first second");
    }
}
