//! Native functions: shared objects whose signature is trusted, loaded into this process for good.
#![allow(unsafe_code)]

use crate::space::Space;
use farpool_functions::abi::{CALL_AT, signed_text};
use farpool_wire::control::{FunctionFault, FunctionSignature};
use farpool_wire::{Code, Refusal};
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

/// An entry of a loaded object.
#[derive(Clone, Copy, Debug)]
pub struct Entry(usize);

impl Entry {
    /// Calls it with the record that was written to a space's call area. What it does is its signer's responsibility.
    pub fn call(self, space: &Space) -> i64 {
        // SAFETY: the address is that of a symbol of an object whose signer vouches for it, and which is never unloaded;
        // the type of entries is part of the contract it was signed under. The record lies in the space's call area, which
        // is mapped as long as the space is.
        let entry: extern "C" fn(*mut u8) -> i64 = unsafe { std::mem::transmute(self.0) };
        entry(space.at(CALL_AT))
    }
}

/// An object in this process.
struct Loaded {
    handle: usize,
    /// What `handle` was loaded from: the loader knows objects by it.
    _file: OwnedFd,
}

/// The objects that were loaded, by their hash.
#[derive(Default)]
pub struct Objects(Mutex<BTreeMap<[u8; 32], Loaded>>);

/// Whether one of these keys vouches for what has this hash.
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
    /// Has the library of signatures ready, before anybody waits for it.
    pub fn warm_up() {
        let nobody = FunctionSignature { key: [0; 32], signature: [0; 64] };
        // It vouches for nothing.
        let _ = check_signature(&[0; 32], Some(&nobody), &[[0; 32]]);
    }

    /// Loads an object, of this hash, whose signature was checked.
    pub fn load(&self, hash: &[u8; 32], bytes: &[u8]) -> Result<(), FunctionFault> {
        let mut loaded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if loaded.contains_key(hash) {
            return Ok(());
        }
        let file =
            memfd_create("farpool-function", MemfdFlags::CLOEXEC).map_err(|_| FunctionFault::NotLoaded)?;
        let mut written = 0;
        while written < bytes.len() {
            match rustix::io::write(&file, &bytes[written..]) {
                Ok(count) if count > 0 => written += count,
                _ => return Err(FunctionFault::NotLoaded),
            }
        }
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))
            .map_err(|_| FunctionFault::NotLoaded)?;
        // SAFETY: the path is a C string. Constructors of the object run here: whoever signed it vouches for them.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(FunctionFault::NotLoaded);
        }
        loaded.insert(*hash, Loaded { handle: handle as usize, _file: file });
        Ok(())
    }

    /// An entry of a loaded object. Nothing: there is no such object.
    pub fn entry(&self, hash: &[u8; 32], entry: &str) -> Option<Result<Entry, FunctionFault>> {
        let loaded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = loaded.get(hash)?.handle as *mut c_void;
        let Ok(name) = CString::new(entry) else { return Some(Err(FunctionFault::NoEntry)) };
        // SAFETY: the handle is one that `dlopen` gave and that is never closed.
        let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
        Some(if symbol.is_null() { Err(FunctionFault::NoEntry) } else { Ok(Entry(symbol as usize)) })
    }
}
