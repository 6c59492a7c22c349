//! Native functions: shared objects with a trusted signature, which are loaded into this process and stay loaded.
#![allow(unsafe_code)]

use crate::space::AddressSpace;
use farpool_functions::abi::{CALL_AT, hex, signed_text};
use farpool_lock::Mutex;
use farpool_wire::control::{FunctionFault, FunctionSignature};
use farpool_wire::{Code, Refusal};
use rustix::fs::{AtFlags, CWD, MemfdFlags, Mode, OFlags, memfd_create, openat, unlinkat};
use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Address of an entry: a function that a loaded object exports.
#[derive(Clone, Copy, Debug)]
pub struct Entry(usize);

impl Entry {
    /// Calls the entry with the address of the call record (where arguments, window and output lie), which the caller
    /// has written to the space's call area. The signer is responsible for what the code does.
    pub fn call(self, space: &AddressSpace) -> i64 {
        // SAFETY: the address is that of a symbol of an object that its signer vouches for and that is never
        // unloaded. The type of entries is part of the contract that was signed. The record lies in the space's call
        // area, which is mapped as long as the space exists.
        let entry: extern "C" fn(*mut u8) -> i64 = unsafe { std::mem::transmute(self.0) };
        entry(space.at(CALL_AT))
    }
}

/// An object that is loaded in this process.
struct Loaded {
    /// Handle that `dlopen` has returned.
    handle: usize,
    /// File that `handle` was loaded from. The loader identifies objects by their files, so it stays open.
    _file: OwnedFd,
}

/// Place for the files that objects are loaded from. The loader needs a file name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectFiles {
    /// The root folder, which no other process sees.
    InRoot,
    /// Memory files, by the names that `/proc` gives their descriptors.
    InMemory,
    /// No place, so no object can be loaded: this process may not name files, because nothing would keep it from those
    /// of other users.
    Nowhere,
}

/// Loaded shared objects, by their SHA-256 hash.
pub struct Objects {
    loaded: Mutex<BTreeMap<[u8; 32], Loaded>>,
    files: ObjectFiles,
}

/// Checks that one of these keys has signed the object or module with this hash.
pub fn check_signature(
    hash: &[u8; 32],
    by: Option<&FunctionSignature>,
    keys: &[[u8; 32]],
) -> Result<(), Refusal> {
    let not_trusted = Refusal::new(Code::NotTrusted, keys.len() as u64);
    let by = by.filter(|by| keys.contains(&by.key)).ok_or(not_trusted)?;
    let key = aws_lc_rs::signature::UnparsedPublicKey::new(&aws_lc_rs::signature::ED25519, by.key);
    key.verify(&signed_text(hash), &by.signature).map_err(|_| not_trusted)
}

impl Objects {
    /// Makes an empty set whose object files lie in this place.
    pub fn new(files: ObjectFiles) -> Objects {
        Objects { loaded: Mutex::default(), files }
    }

    /// Creates a file for an object. Returns it with the name under which the loader finds it.
    fn file(&self, hash: &[u8; 32]) -> io::Result<(OwnedFd, String)> {
        match self.files {
            ObjectFiles::InRoot => {
                let path = format!("/{}.so", hex(hash));
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                Ok((openat(CWD, &*path, flags, Mode::RUSR)?, path))
            }
            ObjectFiles::InMemory => {
                let file = memfd_create("farpool-function", MemfdFlags::CLOEXEC)?;
                let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                Ok((file, path))
            }
            ObjectFiles::Nowhere => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Initialises the signature library before a caller waits for it.
    pub fn warm_up() {
        let nobody = FunctionSignature { key: [0; 32], signature: [0; 64] };
        // The check fails, because no key signed this. Only the initialisation counts that its first use triggers.
        let _ = check_signature(&[0; 32], Some(&nobody), &[[0; 32]]);
    }

    /// Loads the object with this hash. Its signature must have been checked.
    pub fn load(&self, hash: &[u8; 32], bytes: &[u8]) -> Result<(), FunctionFault> {
        let mut loaded = self.loaded.lock();
        if loaded.contains_key(hash) {
            return Ok(());
        }
        let (file, path) = self.file(hash).map_err(|_| FunctionFault::NotLoaded)?;
        let handle = write(&file, bytes).ok().and_then(|()| open_object(&path));
        let Some(handle) = handle else {
            if self.files == ObjectFiles::InRoot {
                let _ = unlinkat(CWD, &*path, AtFlags::empty());
            }
            return Err(FunctionFault::NotLoaded);
        };
        loaded.insert(*hash, Loaded { handle, _file: file });
        Ok(())
    }

    /// Looks up an entry of a loaded object. `None` if the object is not loaded.
    pub fn entry(&self, hash: &[u8; 32], entry: &str) -> Option<Result<Entry, FunctionFault>> {
        let loaded = self.loaded.lock();
        let handle = loaded.get(hash)?.handle as *mut c_void;
        let Ok(name) = CString::new(entry) else { return Some(Err(FunctionFault::NoEntry)) };
        // SAFETY: the handle came from `dlopen` and is never closed.
        let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
        Some(if symbol.is_null() { Err(FunctionFault::NoEntry) } else { Ok(Entry(symbol as usize)) })
    }
}

fn write(file: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    let mut written = 0;
    while written < bytes.len() {
        match rustix::io::write(file, &bytes[written..])? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => written += count,
        }
    }
    Ok(())
}

/// Loads an object for good, and returns its handle.
fn open_object(path: &str) -> Option<usize> {
    let path = CString::new(path).ok()?;
    // SAFETY: the path is a C string. Constructors of the object run here; whoever signed it vouches for them.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    (!handle.is_null()).then_some(handle as usize)
}
