//! Protocol between client and server: headers of fixed length, each followed by the number of bytes that it contains.
//!
//! A connection begins with a hello: the client sends the length of its file, and the server sends the same length back
//! once the file exists.

/// Bytes of a hello: the length of the file as a number of 64 bits.
pub(crate) const HELLO_BYTES: usize = 8;
/// Bytes of the header of a request: number, offset, length, kind.
pub(crate) const REQUEST_BYTES: usize = 24;
/// Bytes of the header of a reply: number, length of the bytes that follow.
pub(crate) const REPLY_BYTES: usize = 16;

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
}

/// Header of a request. The bytes of a write follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) number: u64,
    pub(crate) offset: u64,
    pub(crate) length: u32,
    pub(crate) kind: Kind,
}

/// Header of a reply. The bytes of a read follow it.
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
