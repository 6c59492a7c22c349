//! Functions shipped to far memory: user code that runs where the bytes of a published file lie.
//!
//! The idea: a [`Caller`] keeps lanes over one file: connections on which functions are called, each with a window that
//! the file's bytes are mapped to. A call goes to the node that has most of them. Bytes that lie elsewhere are fetched
//! by this process when the function loads them, or the function hops to their node, its state passing through here.
//! The same function can run in a sandbox on this machine, over bytes that were fetched. Functions have no authority
//! and keep nothing, so all of these give the same output. A call whose node dies ends with [`ErrorKind::Lost`], or
//! with [`ErrorKind::Unreachable`] as long as that is not certain. It is made once more only where the file's bytes are
//! somewhere else by then: they were moved, or [`Pool::rebuild_with`](farpool_files::Pool::rebuild_with) says how to
//! build them anew.
//!
//! Contract: `spec/function.md`.
//!
//! Never in this crate: code that was sent (a sandbox process runs it), or columns of any type: [`Columns`] has them.
#![forbid(unsafe_code)]

mod calling;
mod choosing;
mod here;
mod lanes;
mod lists;
mod observed;
mod places;
mod signing;
mod stopped;
mod stored;

pub use calling::{CallOptions, Called, Caller, CallerOptions, Columns};
pub use choosing::{CallPlan, EachPlan};
pub use farpool_files::Ended;
pub use farpool_functions::{SandboxOptions, abi};
pub use farpool_wire::control::{FunctionForm, Outcome};
pub use here::sandbox_program;
pub use observed::{Observed, reach};
pub use signing::SigningKey;
pub use stored::{FunctionInfo, drop_function, put_function, stored_function, stored_functions};

use farpool_files::{Error, ErrorKind};
use farpool_functions::abi::digest;
use farpool_wire::Name;
use farpool_wire::control::FunctionSignature;
use farpool_wire::limits::FUNCTION_BYTES_MAX;
use std::sync::Arc;

/// A function to be called: what it is, and its entry.
#[derive(Clone)]
pub struct Function {
    form: FunctionForm,
    entry: Name,
    digest: [u8; 32],
    bytes: Arc<[u8]>,
    signature: Option<FunctionSignature>,
}

impl Function {
    /// One that nodes were built with, by its name: `walk`, `checksum` and `find` are everywhere.
    ///
    /// Errors: [`ErrorKind::Invalid`] if it is no name.
    pub fn resident(name: &str) -> Result<Function, Error> {
        Function::new(FunctionForm::Resident, Vec::new(), name, None)
    }

    /// A WebAssembly module, and which of its exports to call.
    ///
    /// Errors: [`ErrorKind::Invalid`] if it is too long, or the entry is no name. What the module must be like is
    /// looked at where it runs.
    pub fn wasm(module: Vec<u8>, entry: &str) -> Result<Function, Error> {
        Function::new(FunctionForm::Wasm, module, entry, None)
    }

    /// A shared object, which of its symbols to call, and the Ed25519 key and signature that vouch for it: see
    /// [`abi::signed_text`].
    ///
    /// Errors: as [`Function::wasm`].
    pub fn native(
        object: Vec<u8>,
        entry: &str,
        key: [u8; 32],
        signature: [u8; 64],
    ) -> Result<Function, Error> {
        Function::new(FunctionForm::Native, object, entry, Some(FunctionSignature { key, signature }))
    }

    fn new(
        form: FunctionForm,
        bytes: Vec<u8>,
        entry: &str,
        signature: Option<FunctionSignature>,
    ) -> Result<Function, Error> {
        if bytes.len() > FUNCTION_BYTES_MAX {
            let message =
                format!("a function of {} bytes; up to {FUNCTION_BYTES_MAX} are permitted", bytes.len());
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let entry = Name::new(entry).map_err(|error| {
            Error::new(ErrorKind::Invalid, format!("a function's entry {entry:?}: {error}"))
        })?;
        let digest = if form == FunctionForm::Resident { [0; 32] } else { digest(&bytes) };
        Ok(Function { form, entry, digest, bytes: bytes.into(), signature })
    }

    /// What it is.
    pub fn form(&self) -> FunctionForm {
        self.form
    }

    /// What it is called by where it runs.
    pub fn entry(&self) -> &str {
        &self.entry
    }

    /// SHA-256 of its bytes; zeros for a resident one.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// Its bytes; none for a resident one.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns why functions of this form run at nodes alone; nothing for those that also run in a client's own
    /// sandbox.
    fn why_only_at_nodes(&self) -> Option<&'static str> {
        match self.form {
            FunctionForm::Resident => Some("it is built into nodes"),
            FunctionForm::Wasm => None,
            FunctionForm::Native => {
                Some("it is native, and only nodes hold keys that vouch for such functions")
            }
        }
    }
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Function({} {}, {} bytes)", self.form.word(), &*self.entry, self.bytes.len())
    }
}
