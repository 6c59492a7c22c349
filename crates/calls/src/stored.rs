//! Functions that a pool stores by name, with all their versions: published files whose names begin with `functions/`.
//!
//! A file has a head, which lists the versions and the tags that name some of them, and then the code of each version:
//! `spec/function.md`, "Stored functions". A version never changes. To add or remove one, or to move a tag, a new file
//! replaces the one that was read, and only that one; so of two clients that do so at once, neither undoes the other's
//! change.

use crate::Function;
use farpool_files::beneath::{delete_private, id_of, session_of_pool};
use farpool_files::{
    CreateOptions, Error, ErrorKind, FarFile, FileClass, FileInfo, IfTaken, PUTS_MAX, Pool, Protection,
};
use farpool_functions::abi::digest;
use farpool_wire::codec::{Cursor, Field, Text};
use farpool_wire::control::{FunctionForm, FunctionSignature};
use farpool_wire::ids::TENANT_LOCAL;
use farpool_wire::limits::FUNCTION_BYTES_MAX;
use farpool_wire::{FileId, List, Name, WireError};
use std::time::SystemTime;

/// Prefix of the names of stored functions.
const PREFIX: &str = "functions/";
const MAGIC: [u8; 8] = *b"FPFUNC02";
/// Beginning of a file of the format before, which has one version and nothing about it.
const MAGIC_BEFORE: [u8; 8] = *b"FPFUNC01";
/// Digest of a version in a file of the format before, which does not name it.
const UNKNOWN: [u8; 32] = [0; 32];
/// Largest number of versions of a function, and of tags.
const VERSIONS_MAX: usize = 64;
/// Number of bytes from the beginning of a file in which its head lies.
const HEAD_BYTES_MAX: u64 = 128 << 10;
/// Number of times that a change is made again because another client has changed the function meanwhile.
const TRIES_MAX: u32 = 32;

/// Entry of a list of stored functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionInfo {
    /// Name of the function.
    pub name: String,
    /// Size of its file in bytes, with all versions.
    pub bytes: u64,
    /// True if some of its bytes are lost with a node.
    pub is_lost: bool,
}

/// A version of a stored function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionVersion {
    /// Number of the version. The first is 1, and none is given twice.
    pub version: u32,
    /// Time at which it was stored, in seconds since 1970, by the clock of the client. 0 if it is not known.
    pub stored_s: u64,
    /// Tenant that stored it. In a pool without certificates, the name of the client's user, which nobody checks.
    pub owner: String,
    /// Form of the code.
    pub form: FunctionForm,
    /// Name of the export or symbol that is called.
    pub entry: String,
    /// SHA-256 of the code.
    pub digest: [u8; 32],
    /// Size of the code in bytes.
    pub bytes: u32,
    /// True if it has a signature.
    pub is_signed: bool,
    /// Tags that name this version.
    pub tags: Vec<String>,
}

/// Version and protection of a function that was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionStored {
    /// Number of its version.
    pub version: u32,
    /// Protection of all its versions.
    pub protection: Protection,
}

/// Version of a function that a name asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted<'n> {
    Newest,
    Version(u32),
    Tag(&'n str),
}

/// Splits `NAME`, `NAME@VERSION` or `NAME@TAG`.
fn split(name: &str) -> (&str, Wanted<'_>) {
    match name.rsplit_once('@') {
        None => (name, Wanted::Newest),
        Some((name, wanted)) => (name, wanted.parse().map_or(Wanted::Tag(wanted), Wanted::Version)),
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message.into())
}

fn file_name(name: &str) -> Result<String, Error> {
    let file = format!("{PREFIX}{name}");
    match Name::new(file.clone()) {
        Ok(_) if !name.is_empty() && !name.contains('@') => Ok(file),
        _ => Err(invalid(format!("{name:?} cannot be the name of a function; it may not contain @"))),
    }
}

/// Head of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Version {
    number: u32,
    stored_s: u64,
    owner: Text,
    form: FunctionForm,
    entry: Name,
    signature: List<FunctionSignature, 1>,
    digest: [u8; 32],
    bytes: u32,
}

impl Field for Version {
    const BYTES_MIN: usize = 4 + 8 + Text::BYTES_MIN + 1 + Name::BYTES_MIN + 4 + 32 + 4;
    fn put(&self, out: &mut Vec<u8>) {
        self.number.put(out);
        self.stored_s.put(out);
        self.owner.put(out);
        self.form.put(out);
        self.entry.put(out);
        self.signature.put(out);
        self.digest.put(out);
        self.bytes.put(out);
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, WireError> {
        Ok(Version {
            number: Field::take(from)?,
            stored_s: Field::take(from)?,
            owner: Field::take(from)?,
            form: Field::take(from)?,
            entry: Field::take(from)?,
            signature: Field::take(from)?,
            digest: Field::take(from)?,
            bytes: Field::take(from)?,
        })
    }
}

/// A tag, and the number of the version that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Tag {
    name: Name,
    version: u32,
}

impl Field for Tag {
    const BYTES_MIN: usize = Name::BYTES_MIN + 4;
    fn put(&self, out: &mut Vec<u8>) {
        self.name.put(out);
        self.version.put(out);
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, WireError> {
        Ok(Tag { name: Field::take(from)?, version: Field::take(from)? })
    }
}

/// Head of the file of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Head {
    /// Number of the next version.
    next: u32,
    /// Versions, the oldest first.
    versions: Vec<Version>,
    tags: Vec<Tag>,
}

impl Head {
    fn encode(&self) -> Result<Vec<u8>, WireError> {
        let mut bytes = MAGIC.to_vec();
        self.next.put(&mut bytes);
        List::<Version, VERSIONS_MAX>::new(self.versions.clone())?.put(&mut bytes);
        List::<Tag, VERSIONS_MAX>::new(self.tags.clone())?.put(&mut bytes);
        Ok(bytes)
    }

    /// Reads a head from the first bytes of a file of `length` bytes. Returns also where the code begins.
    fn decode(bytes: &[u8], length: u64) -> Result<(Head, u64), WireError> {
        let mut cursor = Cursor::new(bytes);
        let magic = <[u8; 8]>::take(&mut cursor)?;
        let begins = |cursor: &Cursor<'_>| (bytes.len() - cursor.left()) as u64;
        if magic == MAGIC_BEFORE {
            let form = Field::take(&mut cursor)?;
            let entry = Field::take(&mut cursor)?;
            let signature = Field::take(&mut cursor)?;
            let begins = begins(&cursor);
            let bytes = u32::try_from(length - begins.min(length)).unwrap_or(u32::MAX);
            let (owner, digest) = (Text::default(), UNKNOWN);
            let version = Version { number: 1, stored_s: 0, owner, form, entry, signature, digest, bytes };
            return Ok((Head { next: 2, versions: vec![version], tags: Vec::new() }, begins));
        }
        if magic != MAGIC {
            return Err(WireError::Text { what: "the beginning of a stored function" });
        }
        let next = Field::take(&mut cursor)?;
        let versions = List::<Version, VERSIONS_MAX>::take(&mut cursor)?.into_vec();
        let tags = List::<Tag, VERSIONS_MAX>::take(&mut cursor)?.into_vec();
        let begins = begins(&cursor);
        let code: u64 = versions.iter().map(|version| u64::from(version.bytes)).sum();
        if begins.checked_add(code) != Some(length) {
            return Err(WireError::Value { what: "the length of a stored function", found: length });
        }
        Ok((Head { next, versions, tags }, begins))
    }

    /// Returns the index of the version that is wanted.
    fn find(&self, wanted: Wanted<'_>) -> Result<usize, Error> {
        let number = match wanted {
            Wanted::Newest => self.versions.last().map(|version| version.number),
            Wanted::Version(number) => Some(number),
            Wanted::Tag(tag) => self.tags.iter().find(|known| *known.name == *tag).map(|tag| tag.version),
        };
        let index = self.versions.iter().position(|version| Some(version.number) == number);
        index.ok_or_else(|| {
            let versions: Vec<String> =
                self.versions.iter().map(|version| version.number.to_string()).collect();
            let tags: Vec<&str> = self.tags.iter().map(|tag| &*tag.name).collect();
            let mut message = format!("there is no such version; there are {}", versions.join(", "));
            if !tags.is_empty() {
                message += &format!(", and the tags {}", tags.join(", "));
            }
            Error::new(ErrorKind::NotFound, message)
        })
    }

    fn describe(&self, version: &Version) -> FunctionVersion {
        let tags = self.tags.iter().filter(|tag| tag.version == version.number);
        FunctionVersion {
            version: version.number,
            stored_s: version.stored_s,
            owner: version.owner.to_string(),
            form: version.form,
            entry: version.entry.to_string(),
            digest: version.digest,
            bytes: version.bytes,
            is_signed: !version.signature.is_empty(),
            tags: tags.map(|tag| tag.name.to_string()).collect(),
        }
    }
}

/// A stored function that is opened.
struct Stored {
    file: FarFile,
    head: Head,
    /// Where the code of the first version begins.
    begins: u64,
}

impl Stored {
    /// Opens a stored function, and takes from it what is wanted. If another client puts or drops a version meanwhile,
    /// the file that was opened is gone, and the one in its place is opened.
    fn open<T>(pool: &Pool, name: &str, take: impl Fn(Stored) -> Result<T, Error>) -> Result<T, Error> {
        let file_name = file_name(name)?;
        let mut tries = 1;
        loop {
            let file = pool.open(&file_name)?;
            let opened = id_of(&file);
            let is_replaced = || match pool.open(&file_name) {
                Ok(now) => id_of(&now) != opened,
                Err(error) => error.kind() == ErrorKind::NotFound,
            };
            match Stored::of(file).and_then(&take) {
                Err(error) if error.kind() == ErrorKind::Lost && tries < TRIES_MAX && is_replaced() => {
                    tries += 1;
                }
                taken => return taken,
            }
        }
    }

    fn of(file: FarFile) -> Result<Stored, Error> {
        let length = file.length();
        let mut bytes = vec![0; length.min(HEAD_BYTES_MAX) as usize];
        file.read_at(0, &mut bytes)?;
        let (head, begins) = Head::decode(&bytes, length)
            .map_err(|error| invalid(format!("the file is not a function: {error}")))?;
        let mut stored = Stored { file, head, begins };
        for index in 0..stored.head.versions.len() {
            if stored.head.versions[index].digest == UNKNOWN {
                stored.head.versions[index].digest = digest(&stored.code(index)?);
            }
        }
        Ok(stored)
    }

    /// Reads the code of a version.
    fn code(&self, index: usize) -> Result<Vec<u8>, Error> {
        let version = &self.head.versions[index];
        let before = self.head.versions[..index].iter().map(|version| u64::from(version.bytes));
        if version.bytes as usize > FUNCTION_BYTES_MAX {
            let bytes = version.bytes;
            return Err(invalid(format!(
                "the file is not a function: it has {bytes} bytes, more than one can have"
            )));
        }
        let mut code = vec![0; version.bytes as usize];
        self.file.read_at(self.begins + before.sum::<u64>(), &mut code)?;
        Ok(code)
    }

    fn function(&self, index: usize) -> Result<Function, Error> {
        let Version { form, entry, signature, digest, .. } = self.head.versions[index].clone();
        let signature = signature.into_vec().pop();
        let function = Function::new(form, self.code(index)?, &entry, signature)
            .map_err(|error| invalid(format!("the file is not a function: {error}")))?;
        if digest != function.digest {
            return Err(invalid("its code is not that which was stored; store it again"));
        }
        Ok(function)
    }
}

/// Function that is about to be stored.
struct Changed {
    head: Head,
    /// Code of each version.
    code: Vec<Vec<u8>>,
    /// Protection that it has. `None` if it is new.
    had: Option<Protection>,
    /// Protection that it is to have; `None` for a mirror if the pool has room on two hosts. At first it is that which
    /// keeps what it has.
    protection: Option<Protection>,
}

/// Changes a stored function, again if another client changes it or a node fails meanwhile. `change` gets what is
/// stored, which has no version if there is no such function, and returns a result, and whether it has changed
/// anything. Returns the result and the protection of what is stored.
fn change<T>(
    pool: &Pool,
    name: &str,
    change: impl Fn(&mut Changed) -> Result<(T, bool), Error>,
) -> Result<(T, Protection), Error> {
    let file_name = file_name(name)?;
    let mut tries = 1;
    loop {
        let whole = |stored: Stored| {
            let code = (0..stored.head.versions.len()).map(|index| stored.code(index));
            let code = code.collect::<Result<_, _>>()?;
            let had = stored.file.protection();
            // A pool that gave a mirror may have one host now.
            let protection = (had == Protection::None).then_some(had);
            Ok((Changed { head: stored.head, code, had: Some(had), protection }, id_of(&stored.file)))
        };
        let (mut changed, had) = match Stored::open(pool, name, whole) {
            Ok(stored) => stored,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let head = Head { next: 1, versions: Vec::new(), tags: Vec::new() };
                (Changed { head, code: Vec::new(), had: None, protection: None }, None)
            }
            Err(error) => return Err(error),
        };
        let (result, is_changed) = change(&mut changed)?;
        if !is_changed {
            return Ok((result, changed.had.unwrap_or(Protection::None)));
        }
        let mut bytes = changed.head.encode().map_err(|error| invalid(error.to_string()))?;
        if bytes.len() as u64 > HEAD_BYTES_MAX {
            return Err(invalid("the names of its versions and tags are too long"));
        }
        changed.code.iter().for_each(|code| bytes.extend_from_slice(code));
        match publish(pool, &file_name, &bytes, changed.protection, had) {
            Err(error)
                if tries < TRIES_MAX && matches!(error.kind(), ErrorKind::Exists | ErrorKind::NotFound)
                    || tries < PUTS_MAX && error.is_worth_putting_again() =>
            {
                tries += 1;
            }
            published => return published.map(|protection| (result, protection)),
        }
    }
}

/// Publishes the file of a function in place of the file `replaced`, or under a name that is free. Returns its
/// protection. By default that is a mirror if the pool has room on two hosts, otherwise none.
fn publish(
    pool: &Pool,
    file_name: &str,
    bytes: &[u8],
    protection: Option<Protection>,
    replaced: Option<FileId>,
) -> Result<Protection, Error> {
    let if_taken = replaced.map_or(IfTaken::Refuse, IfTaken::ReplaceOnly);
    let options = CreateOptions { size_hint: bytes.len() as u64, protection, ..CreateOptions::default() };
    let file = pool.create(file_name, FileClass::Pinned, options)?;
    let put = file.write_at(0, bytes).and_then(|()| pool.publish(file_name, if_taken));
    if put.is_err() {
        // Deletes the file, which is private to this session because it was not published.
        let _was_there = delete_private(pool, file_name);
    }
    // Parity of too few bytes became a mirror when the file was published.
    put.map(|()| file.protection())
}

/// Returns who stores a function with this session.
fn owner(pool: &Pool) -> Text {
    let tenant = session_of_pool(pool).tenant();
    if **tenant != *TENANT_LOCAL {
        return Text::new(tenant.to_string()).unwrap_or_default();
    }
    let user = ["USER", "LOGNAME"].into_iter().find_map(|variable| std::env::var(variable).ok());
    user.and_then(|user| Text::new(user).ok()).unwrap_or_default()
}

/// Stores a function in the pool under a name, for all clients. If there is one of this name and it may be replaced, it
/// becomes its next version, unless it is the same as the newest. All its versions get this protection; with `None`
/// a mirror if the pool has room on two hosts, otherwise none.
///
/// Errors: [`ErrorKind::Invalid`] if the function is resident, so that nodes have it already, if the name is not
/// permitted, if the pool's hosts cannot give the protection, or if there are too many versions;
/// [`ErrorKind::Exists`] if the name is in use and should not be replaced; [`ErrorKind::Exhausted`] if the pool has no
/// room.
pub fn put_function(
    pool: &Pool,
    name: &str,
    function: &Function,
    if_taken: IfTaken,
    protection: Option<Protection>,
) -> Result<FunctionStored, Error> {
    let during = |error: Error| error.during(format_args!("putting function {name:?}"));
    if function.form == FunctionForm::Resident {
        return Err(during(invalid("a resident function is built into nodes and cannot be stored")));
    }
    let signature = List::new(function.signature.iter().cloned().collect());
    let signature = signature.map_err(|error| during(invalid(error.to_string())))?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let added = Version {
        number: 0,
        stored_s: now.as_secs(),
        owner: owner(pool),
        form: function.form,
        entry: function.entry.clone(),
        signature,
        digest: function.digest,
        bytes: function.bytes.len() as u32,
    };
    let add = |changed: &mut Changed| {
        changed.protection = protection;
        let is_protected_anew = protection.is_some_and(|wanted| changed.had != Some(wanted));
        let Changed { head, code, .. } = changed;
        let newest = head.versions.last();
        if newest.is_some() && if_taken == IfTaken::Refuse {
            let message = "there is a function of this name; replace it to add a version";
            return Err(Error::new(ErrorKind::Exists, message));
        }
        let is_same = |newest: &&Version| {
            (newest.form, &newest.entry, &newest.signature) == (added.form, &added.entry, &added.signature)
                && code.last().is_some_and(|code| **code == *function.bytes)
        };
        if let Some(newest) = newest.filter(is_same) {
            return Ok((newest.number, is_protected_anew));
        }
        if head.versions.len() == VERSIONS_MAX {
            let oldest = head.versions[0].number;
            let message = format!(
                "it has {VERSIONS_MAX} versions, the most permitted: remove one, such as {name}@{oldest}"
            );
            return Err(invalid(message));
        }
        let number = head.next;
        head.next += 1;
        head.versions.push(Version { number, ..added.clone() });
        code.push(function.bytes.to_vec());
        Ok((number, true))
    };
    let (version, protection) = change(pool, name, add).map_err(during)?;
    Ok(FunctionStored { version, protection })
}

/// Lets a tag name a version of a stored function, and no other one. `name` is `NAME`, for the newest version,
/// `NAME@VERSION`, or `NAME@TAG` of another tag. Returns the number of the version.
///
/// Errors: [`ErrorKind::NotFound`] if there is no such function or version; [`ErrorKind::Invalid`] if the tag is a
/// number or not permitted, or if there are too many.
pub fn tag_function(pool: &Pool, name: &str, tag: &str) -> Result<u32, Error> {
    let during = |error: Error| error.during(format_args!("tagging function {name:?}"));
    let (plain, wanted) = split(name);
    let is_good = !tag.is_empty() && !tag.contains('@') && tag.parse::<u32>().is_err();
    let tag = Name::new(tag).ok().filter(|_| is_good).ok_or_else(|| {
        during(invalid(format!("{tag:?} cannot be a tag; it may not be a number or contain @")))
    })?;
    let move_tag = |changed: &mut Changed| {
        if changed.head.versions.is_empty() {
            return Err(no_function(plain));
        }
        let version = changed.head.versions[changed.head.find(wanted)?].number;
        let tags = &mut changed.head.tags;
        let moved = Tag { name: tag.clone(), version };
        if tags.contains(&moved) {
            return Ok((version, false));
        }
        tags.retain(|known| known.name != tag);
        if tags.len() == VERSIONS_MAX {
            return Err(invalid(format!("it has {VERSIONS_MAX} tags, the most permitted")));
        }
        tags.push(moved);
        Ok((version, true))
    };
    change(pool, plain, move_tag).map(|(version, _)| version).map_err(during)
}

fn no_function(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("the pool has no function {name:?}"))
}

/// Reads a stored function: its newest version (`NAME`), or that of a number (`NAME@VERSION`) or a tag (`NAME@TAG`).
///
/// Errors: [`ErrorKind::NotFound`] if there is no such name or version; [`ErrorKind::Lost`] if its bytes are lost;
/// [`ErrorKind::Invalid`] if the file of this name is not a function.
pub fn stored_function(pool: &Pool, name: &str) -> Result<Function, Error> {
    let (plain, wanted) = split(name);
    Stored::open(pool, plain, |stored| stored.function(stored.head.find(wanted)?))
        .map_err(|error| error.during(format_args!("function {name:?}")))
}

/// Returns the versions of a stored function, the newest first.
///
/// Errors: those of [`stored_function`].
pub fn function_versions(pool: &Pool, name: &str) -> Result<Vec<FunctionVersion>, Error> {
    let head = Stored::open(pool, name, |stored| Ok(stored.head));
    let head = head.map_err(|error| error.during(format_args!("function {name:?}")))?;
    Ok(head.versions.iter().rev().map(|version| head.describe(version)).collect())
}

/// Returns the stored functions, ordered by name.
pub fn stored_functions(pool: &Pool) -> Result<Vec<FunctionInfo>, Error> {
    let describe = |info: FileInfo| {
        let name = info.name.strip_prefix(PREFIX)?.to_owned();
        info.is_published.then_some(FunctionInfo { name, bytes: info.bytes, is_lost: info.is_lost })
    };
    Ok(pool.list(PREFIX)?.into_iter().filter_map(describe).collect())
}

/// Deletes a stored function (`NAME`), a version of it with its tags (`NAME@VERSION`), or a tag (`NAME@TAG`).
///
/// Errors: [`ErrorKind::NotFound`] if there is no such name, version or tag; [`ErrorKind::Invalid`] for the only
/// version.
pub fn drop_function(pool: &Pool, name: &str) -> Result<(), Error> {
    let during = |error: Error| error.during(format_args!("dropping function {name:?}"));
    let (plain, wanted) = split(name);
    let remove = |changed: &mut Changed| {
        let Changed { head, code, .. } = changed;
        if head.versions.is_empty() {
            return Err(no_function(plain));
        }
        let index = head.find(wanted)?;
        if let Wanted::Tag(tag) = wanted {
            head.tags.retain(|known| *known.name != *tag);
            return Ok(((), true));
        }
        if head.versions.len() == 1 {
            return Err(invalid(format!("it is the only version; drop {plain} instead")));
        }
        let number = head.versions.remove(index).number;
        code.remove(index);
        head.tags.retain(|tag| tag.version != number);
        Ok(((), true))
    };
    match wanted {
        Wanted::Newest => pool.delete(&file_name(plain)?).map_err(during),
        _ => change(pool, plain, remove).map(drop).map_err(during),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(number: u32, code: &[u8]) -> Version {
        let function = Function::native(code.to_vec(), "entry", [7; 32], [9; 64]).unwrap();
        Version {
            number,
            stored_s: 1_700_000_000,
            owner: Text::new("ann").unwrap(),
            form: function.form,
            entry: function.entry.clone(),
            signature: List::new(function.signature.into_iter().collect()).unwrap(),
            digest: function.digest,
            bytes: code.len() as u32,
        }
    }

    #[test]
    fn head_is_read_back_and_anything_else_is_refused() {
        let tags = vec![Tag { name: Name::new("stable").unwrap(), version: 2 }];
        let head = Head { next: 7, versions: vec![version(2, b"two"), version(6, b"seven bytes")], tags };
        let bytes = head.encode().unwrap();
        let length = bytes.len() as u64 + 14;
        assert_eq!(Head::decode(&bytes, length).unwrap(), (head, bytes.len() as u64));
        for cut in 0..bytes.len() {
            assert!(Head::decode(&bytes[..cut], length).is_err(), "{cut}");
        }
        assert!(Head::decode(&bytes, length - 1).is_err() && Head::decode(&bytes, length + 1).is_err());
        assert!(Head::decode(b"FPTABLE1 and more", 17).is_err());
    }

    #[test]
    fn file_of_the_format_before_is_a_function_of_one_version() {
        let mut bytes = MAGIC_BEFORE.to_vec();
        FunctionForm::Wasm.put(&mut bytes);
        Name::new("walk").unwrap().put(&mut bytes);
        List::<FunctionSignature, 1>::default().put(&mut bytes);
        let (head, begins) = Head::decode(&bytes, bytes.len() as u64 + 4).unwrap();
        let found = head.describe(&head.versions[0]);
        assert_eq!((found.version, found.bytes, &*found.entry, head.next), (1, 4, "walk", 2));
        assert_eq!(begins, bytes.len() as u64);
    }

    #[test]
    fn names_ask_for_versions() {
        assert_eq!(split("walk"), ("walk", Wanted::Newest));
        assert_eq!(split("walk@3"), ("walk", Wanted::Version(3)));
        assert_eq!(split("walk@stable"), ("walk", Wanted::Tag("stable")));
        let head = Head { next: 4, versions: vec![version(1, b"a"), version(3, b"b")], tags: Vec::new() };
        assert_eq!((head.find(Wanted::Newest).unwrap(), head.find(Wanted::Version(1)).unwrap()), (1, 0));
        let error = head.find(Wanted::Version(2)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("there are 1, 3"), "{error}");
    }
}
