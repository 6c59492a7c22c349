//! Protocol between client and server. A message is a header of fixed length. The header of a write request, and that
//! of the reply to a read, are followed by data; the header has its length.
//!
//! A connection begins with a hello: the client sends the length of its file, and the server sends the same length back
//! once the file exists.

/// Bytes of the first message of each side: the length of the file in bytes, as a little-endian number of 64 bits.
pub(crate) const HELLO_BYTES: usize = 8;
/// Bytes of the header of a request: its number, the offset in the file, the length, and the kind.
pub(crate) const REQUEST_BYTES: usize = 24;
/// Bytes of the header of a reply: the number of its request, and the length of the data that follows.
pub(crate) const REPLY_BYTES: usize = 16;

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
}

/// Header of a request to read or write `length` bytes of the file. The data of a write follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) number: u64,
    pub(crate) offset: u64,
    pub(crate) length: u32,
    pub(crate) kind: Kind,
}

/// Header of the reply to the request with the same number. The data of a read follows it. The length is 0 for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) number: u64,
    pub(crate) length: u64,
}

fn word<const BYTES: usize>(from: &[u8], at: usize) -> [u8; BYTES] {
    let mut word = [0; BYTES];
    word.copy_from_slice(&from[at..at + BYTES]);
    word
}

impl Request {
    pub(crate) fn encode(self) -> [u8; REQUEST_BYTES] {
        let mut header = [0; REQUEST_BYTES];
        header[..8].copy_from_slice(&self.number.to_le_bytes());
        header[8..16].copy_from_slice(&self.offset.to_le_bytes());
        header[16..20].copy_from_slice(&self.length.to_le_bytes());
        header[20..].copy_from_slice(&u32::from(self.kind == Kind::Write).to_le_bytes());
        header
    }

    /// Decodes a header. `None` if its kind is unknown.
    pub(crate) fn decode(header: &[u8; REQUEST_BYTES]) -> Option<Request> {
        let kind = match u32::from_le_bytes(word(header, 20)) {
            0 => Kind::Read,
            1 => Kind::Write,
            _ => return None,
        };
        Some(Request {
            number: u64::from_le_bytes(word(header, 0)),
            offset: u64::from_le_bytes(word(header, 8)),
            length: u32::from_le_bytes(word(header, 16)),
            kind,
        })
    }
}

impl Reply {
    pub(crate) fn encode(self) -> [u8; REPLY_BYTES] {
        let mut header = [0; REPLY_BYTES];
        header[..8].copy_from_slice(&self.number.to_le_bytes());
        header[8..].copy_from_slice(&self.length.to_le_bytes());
        header
    }

    pub(crate) fn decode(header: &[u8; REPLY_BYTES]) -> Reply {
        Reply { number: u64::from_le_bytes(word(header, 0)), length: u64::from_le_bytes(word(header, 8)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_as_they_were() {
        for kind in [Kind::Read, Kind::Write] {
            let request = Request { number: 7, offset: 1 << 40, length: 8192, kind };
            assert_eq!(Request::decode(&request.encode()), Some(request));
        }
        let reply = Reply { number: u64::MAX, length: 8192 };
        assert_eq!(Reply::decode(&reply.encode()), reply);
        assert_eq!(Request::decode(&[9; REQUEST_BYTES]), None);
    }
}
