//! Primitives of all messages: little-endian integers, bounded lists and checked text.

use crate::ids::*;
use crate::limits::*;
use std::fmt;

/// Fault of bytes that are no well-formed frame or message: the first one found.
#[allow(missing_docs)] // each variant says what its fields are
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WireError {
    /// First four bytes that are not `FPW1`.
    Magic { found: [u8; 4] },
    /// Protocol version outside `VERSION_MIN..=VERSION_MAX`.
    Version { found: u8 },
    /// Checksum of the header that does not match.
    HeaderChecksum,
    /// Checksum of the body that does not match.
    BodyChecksum,
    /// Reserved field or flag that is not 0.
    Reserved { field: &'static str },
    /// Number that is no opcode.
    Opcode { found: u16 },
    /// Number of bytes, entries or characters above its limit.
    TooMany { what: &'static str, found: u64, max: u64 },
    /// Body that ends inside a field.
    Truncated { needed: usize, left: usize },
    /// Bytes behind the last field.
    Trailing { left: usize },
    /// Value that its field cannot have.
    Value { what: &'static str, found: u64 },
    /// Text that is not UTF-8, is empty where it must not be, or has control characters.
    Text { what: &'static str },
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireError::Magic { found } => {
                write!(f, "not a Farpool frame: it starts with {found:02x?}, expected \"FPW1\"")
            }
            WireError::Version { found } => {
                write!(
                    f,
                    "protocol version {found} is not supported (supported: {VERSION_MIN} to {VERSION_MAX})"
                )
            }
            WireError::HeaderChecksum => f.write_str("the checksum of a frame header does not match"),
            WireError::BodyChecksum => f.write_str("the checksum of a frame body does not match"),
            WireError::Reserved { field } => write!(f, "reserved field {field} is not zero"),
            WireError::Opcode { found } => write!(f, "unknown opcode {found}"),
            WireError::TooMany { what, found, max } => write!(f, "too many {what}: {found}, at most {max}"),
            WireError::Truncated { needed, left } => {
                write!(f, "the message ends early: a field needs {needed} bytes, {left} are left")
            }
            WireError::Trailing { left } => write!(f, "{left} bytes are left over after the last field"),
            WireError::Value { what, found } => write!(f, "{what} cannot be {found}"),
            WireError::Text { what } => write!(f, "{what} is not valid text"),
        }
    }
}

impl std::error::Error for WireError {}

/// Reader of a body, from front to back.
pub struct Cursor<'a> {
    left: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// Returns a reader at the front of `body`.
    pub fn new(body: &'a [u8]) -> Self {
        Cursor { left: body }
    }

    /// Takes the next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        match self.left.split_at_checked(count) {
            Some((taken, left)) => {
                self.left = left;
                Ok(taken)
            }
            None => Err(WireError::Truncated { needed: count, left: self.left.len() }),
        }
    }

    /// Returns the bytes not read yet, and ends the reading.
    pub fn rest(self) -> &'a [u8] {
        self.left
    }

    /// Returns the number of bytes not read yet.
    pub fn left(&self) -> usize {
        self.left.len()
    }

    /// Ends the reading. It is an error if bytes are left over.
    pub fn finish(self) -> Result<(), WireError> {
        if self.left.is_empty() { Ok(()) } else { Err(WireError::Trailing { left: self.left.len() }) }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N)?);
        Ok(out)
    }
}

/// Value with one byte-exact form.
pub trait Field: Sized {
    /// Fewest bytes that a value takes. A list's count is checked against it before memory is allocated.
    const BYTES_MIN: usize;
    /// Appends the value.
    fn put(&self, out: &mut Vec<u8>);
    /// Reads the value from the front of `from`.
    fn take(from: &mut Cursor<'_>) -> Result<Self, WireError>;
}

macro_rules! integers {
    ($($int:ty),*) => {$(
        impl Field for $int {
            const BYTES_MIN: usize = size_of::<$int>();
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn take(from: &mut Cursor<'_>) -> Result<Self, WireError> {
                Ok(<$int>::from_le_bytes(from.array()?))
            }
        }
    )*};
}
integers!(u8, u16, u32, u64, u128);

macro_rules! newtypes {
    ($($name:ident($inner:ty)),*) => {$(
        impl Field for $name {
            const BYTES_MIN: usize = <$inner>::BYTES_MIN;
            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }
            fn take(from: &mut Cursor<'_>) -> Result<Self, WireError> {
                Ok($name(<$inner>::take(from)?))
            }
        }
    )*};
}
newtypes!(
    NodeId(u64),
    Incarnation(u64),
    Term(u64),
    SessionId(u64),
    ClientId(u64),
    TicketId(u64),
    FileId(u64),
    TableId(u64),
    CommitId(u64),
    RegionIndex(u32),
    Epoch(u64),
    Handle(u128),
    Secret(u128)
);

impl Field for bool {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, WireError> {
        match u8::take(from)? {
            0 => Ok(false),
            1 => Ok(true),
            found => Err(WireError::Value { what: "a boolean", found: found.into() }),
        }
    }
}

impl<const N: usize> Field for [u8; N] {
    const BYTES_MIN: usize = N;
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, WireError> {
        from.array()
    }
}

impl Field for FileClass {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(match self {
            FileClass::Cache => 1,
            FileClass::Scratch => 2,
            FileClass::Pinned => 3,
        });
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, WireError> {
        match u8::take(from)? {
            1 => Ok(FileClass::Cache),
            2 => Ok(FileClass::Scratch),
            3 => Ok(FileClass::Pinned),
            found => Err(WireError::Value { what: "a file class", found: found.into() }),
        }
    }
}

/// List of at most `MAX` entries, whether built or received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T, const MAX: usize>(Vec<T>);

impl<T, const MAX: usize> List<T, MAX> {
    /// Takes `items`; an error if there are more than `MAX`.
    pub fn new(items: Vec<T>) -> Result<Self, WireError> {
        if items.len() > MAX {
            return Err(WireError::TooMany {
                what: "entries in a list",
                found: items.len() as u64,
                max: MAX as u64,
            });
        }
        Ok(List(items))
    }

    /// Returns the items.
    pub fn into_vec(self) -> Vec<T> {
        self.0
    }
}

impl<T, const MAX: usize> std::ops::DerefMut for List<T, MAX> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl<T, const MAX: usize> Default for List<T, MAX> {
    fn default() -> Self {
        List(Vec::new())
    }
}

impl<T, const MAX: usize> std::ops::Deref for List<T, MAX> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: Field, const MAX: usize> Field for List<T, MAX> {
    const BYTES_MIN: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        // `new` keeps the length at most MAX, and every MAX is far below u32::MAX.
        (self.0.len() as u32).put(out);
        for item in &self.0 {
            item.put(out);
        }
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, WireError> {
        let count = u32::take(from)? as usize;
        if count > MAX {
            return Err(WireError::TooMany {
                what: "entries in a list",
                found: count as u64,
                max: MAX as u64,
            });
        }
        let needed = count.saturating_mul(T::BYTES_MIN);
        if needed > from.left() {
            return Err(WireError::Truncated { needed, left: from.left() });
        }
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(T::take(from)?);
        }
        Ok(List(items))
    }
}

/// Byte string of at most `MAX` bytes, whether built or received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytes<const MAX: usize>(Vec<u8>);

impl<const MAX: usize> Bytes<MAX> {
    /// Takes `bytes`; an error if there are more than `MAX`.
    pub fn new(bytes: Vec<u8>) -> Result<Self, WireError> {
        match bytes.len() <= MAX {
            true => Ok(Bytes(bytes)),
            false => {
                let found = bytes.len() as u64;
                Err(WireError::TooMany { what: "bytes of a field", found, max: MAX as u64 })
            }
        }
    }

    /// Returns the bytes.
    pub fn into_vec(self) -> Vec<u8> {
        self.0
    }
}

impl<const MAX: usize> std::ops::Deref for Bytes<MAX> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<const MAX: usize> Field for Bytes<MAX> {
    const BYTES_MIN: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        // `new` keeps the length at most MAX, and every MAX is far below u32::MAX.
        (self.0.len() as u32).put(out);
        out.extend_from_slice(&self.0);
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, WireError> {
        let count = u32::take(from)? as usize;
        if count > MAX {
            let (found, max) = (count as u64, MAX as u64);
            return Err(WireError::TooMany { what: "bytes of a field", found, max });
        }
        Ok(Bytes(from.bytes(count)?.to_vec()))
    }
}

/// Byte string of at most `MAX` bytes that has the wire form of [`Bytes`]. Its sender need not copy its buffers
/// together.
#[derive(Clone, Debug)]
pub enum Payload<const MAX: usize> {
    /// Bytes in one buffer.
    Whole(Vec<u8>),
    /// Buffers whose bytes follow each other, and the number of bytes in all.
    Slices(Vec<bytes::Bytes>, usize),
}

impl<const MAX: usize> Default for Payload<MAX> {
    fn default() -> Self {
        Payload::Whole(Vec::new())
    }
}

impl<const MAX: usize> PartialEq for Payload<MAX> {
    /// Reports whether both have the same wire form.
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.slices().flatten().eq(other.slices().flatten())
    }
}

impl<const MAX: usize> Eq for Payload<MAX> {}

impl<const MAX: usize> Payload<MAX> {
    fn within(bytes: usize) -> Result<(), WireError> {
        let (found, max) = (bytes as u64, MAX as u64);
        if bytes <= MAX { Ok(()) } else { Err(WireError::TooMany { what: "bytes of a field", found, max }) }
    }

    /// Takes one buffer; an error if it has more than `MAX` bytes.
    pub fn new(bytes: Vec<u8>) -> Result<Self, WireError> {
        Self::within(bytes.len()).map(|()| Payload::Whole(bytes))
    }

    /// Takes several buffers; an error if they have more than `MAX` bytes together.
    pub fn of(slices: Vec<bytes::Bytes>) -> Result<Self, WireError> {
        let bytes = slices.iter().map(bytes::Bytes::len).fold(0, usize::saturating_add);
        Self::within(bytes).map(|()| Payload::Slices(slices, bytes))
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Payload::Whole(bytes) => bytes.len(),
            Payload::Slices(_, bytes) => *bytes,
        }
    }

    /// Reports whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes, buffer by buffer.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let (whole, slices) = match self {
            Payload::Whole(bytes) => (Some(&bytes[..]), &[][..]),
            Payload::Slices(slices, _) => (None, &slices[..]),
        };
        whole.into_iter().chain(slices.iter().map(|slice| &slice[..]))
    }

    /// Returns the bytes in one buffer.
    pub fn into_vec(self) -> Vec<u8> {
        match self {
            Payload::Whole(bytes) => bytes,
            Payload::Slices(slices, _) => slices.concat(),
        }
    }
}

impl<const MAX: usize> Field for Payload<MAX> {
    const BYTES_MIN: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        // `new` and `of` keep the length at most MAX, and every MAX is far below u32::MAX.
        (self.len() as u32).put(out);
        self.slices().for_each(|slice| out.extend_from_slice(slice));
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, WireError> {
        Bytes::<MAX>::take(from).map(|bytes| Payload::Whole(bytes.into_vec()))
    }
}

/// Text of at most `TEXT_BYTES_MAX` bytes without control characters. It may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text(String);

/// Name of a file, node, host or client: 1 to 255 bytes of text without control characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

fn check_text(text: &str, min: usize, max: usize, what: &'static str) -> Result<(), WireError> {
    if text.len() > max {
        return Err(WireError::TooMany { what, found: text.len() as u64, max: max as u64 });
    }
    if text.len() < min || text.chars().any(char::is_control) {
        return Err(WireError::Text { what });
    }
    Ok(())
}

impl Text {
    /// Takes a text; an error if it is too long or has control characters.
    pub fn new(text: impl Into<String>) -> Result<Self, WireError> {
        let text = text.into();
        check_text(&text, 0, TEXT_BYTES_MAX, "bytes of text")?;
        Ok(Text(text))
    }
}

impl Name {
    /// Takes a name; an error if it is empty, too long or has control characters.
    pub fn new(name: impl Into<String>) -> Result<Self, WireError> {
        let name = name.into();
        check_text(&name, 1, NAME_BYTES_MAX, "bytes of a name")?;
        Ok(Name(name))
    }

    /// Takes a name that this crate has made of few printable characters.
    pub(crate) fn of_printable(name: String) -> Self {
        debug_assert!(Name::new(name.clone()).is_ok(), "{name:?} is no name");
        Name(name)
    }
}

macro_rules! texts {
    ($($name:ident),*) => {$(
        impl std::ops::Deref for $name {
            type Target = str;
            fn deref(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl Field for $name {
            const BYTES_MIN: usize = 2;
            fn put(&self, out: &mut Vec<u8>) {
                (self.0.len() as u16).put(out);
                out.extend_from_slice(self.0.as_bytes());
            }
            fn take(from: &mut Cursor<'_>) -> Result<Self, WireError> {
                let count = u16::take(from)? as usize;
                let bytes = from.bytes(count)?;
                let text = std::str::from_utf8(bytes).map_err(|_| WireError::Text { what: stringify!($name) })?;
                $name::new(text)
            }
        }
    )*};
}
texts!(Text, Name);

/// Declares a message or a group of its fields. The fields follow each other in wire order, with nothing between
/// them.
macro_rules! wire_struct {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type),* }

        impl $crate::codec::Field for $name {
            const BYTES_MIN: usize = 0 $(+ <$type as $crate::codec::Field>::BYTES_MIN)*;
            #[allow(unused_variables)]
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::codec::Field::put(&self.$field, out);)*
            }
            #[allow(unused_variables)]
            fn take(from: &mut $crate::codec::Cursor<'_>) -> Result<Self, $crate::codec::WireError> {
                Ok($name { $($field: $crate::codec::Field::take(from)?),* })
            }
        }
    };
}
pub(crate) use wire_struct;
