//! Functions shipped to far memory: user code that runs where the bytes of a published file lie.
//!
//! The idea: a [`Caller`] keeps call lanes over one file. A lane is a connection on which functions are called, with a
//! window to which the file's bytes are mapped. A call goes to the node that holds most of these bytes. If the function
//! loads bytes that lie elsewhere, the caller's process fetches them and supplies them. Or the function hops to the
//! other node. The first node then goes on with the call there, or the caller does if that fails. The same function can
//! run in a sandbox on the client's machine, over fetched bytes. A function can only compute an output from its window
//! and its arguments, so all of these give the same output.
//!
//! A call that takes longer than nearly all calls of its function is made a second time where other copies are, and the
//! first answer counts. If a node dies or is silent during a call, the call is made again where other copies are, or at
//! other nodes if the bytes can be computed from parity. Otherwise it ends with [`ErrorKind::Lost`], or with
//! [`ErrorKind::Unreachable`] while the death is not certain, unless
//! [`Pool::rebuild_with`](farpool_files::Pool::rebuild_with) was told how to recreate the bytes.
//!
//! Contract: `spec/function.md`.
//!
//! Never in this crate: running code that was sent (a sandbox process does), or types of columns (whoever implements
//! [`Columns`] has them).
#![forbid(unsafe_code)]

mod call;
mod calling;
mod choosing;
mod each;
mod hedging;
mod here;
mod lanes;
mod lists;
mod observed;
mod places;
mod race;
mod retrying;
mod signing;
mod station;
mod stopped;
mod stored;

pub use call::{CallOptions, Called};
pub use calling::{Caller, CallerOptions, Columns};
pub use choosing::{CallPlan, EachPlan};
pub use farpool_files::Ended;
pub use farpool_functions::{SandboxOptions, abi};
pub use farpool_wire::control::{FunctionForm, Outcome};
pub use here::sandbox_program;
pub use observed::{Observed, distance};
pub use signing::SigningKey;
pub use stored::{
    FunctionInfo, FunctionStored, FunctionVersion, drop_function, function_versions, put_function,
    stored_function, stored_functions, tag_function,
};

use farpool_files::{Error, ErrorKind};
use farpool_functions::abi::digest;
use farpool_planner::fingerprint;
use farpool_wire::Name;
use farpool_wire::control::FunctionSignature;
use farpool_wire::limits::FUNCTION_BYTES_MAX;
use std::sync::Arc;

/// A function that can be called: its code and its entry.
#[derive(Clone)]
pub struct Function {
    form: FunctionForm,
    entry: Name,
    digest: [u8; 32],
    bytes: Arc<[u8]>,
    signature: Option<FunctionSignature>,
}

impl Function {
    /// Makes a function that is built into nodes, by its name. All nodes have `walk`, `checksum` and `find`.
    ///
    /// Errors: [`ErrorKind::Invalid`] if the name is not permitted.
    pub fn resident(name: &str) -> Result<Function, Error> {
        Function::new(FunctionForm::Resident, Vec::new(), name, None)
    }

    /// Makes a function of a WebAssembly module and the name of the export to call.
    ///
    /// Errors: [`ErrorKind::Invalid`] if the module is too long or the name is not permitted. The module itself is
    /// validated where it runs.
    pub fn wasm(module: Vec<u8>, entry: &str) -> Result<Function, Error> {
        Function::new(FunctionForm::Wasm, module, entry, None)
    }

    /// Makes a function of a shared object, the symbol to call, and an Ed25519 key with its signature of the object
    /// (see [`abi::signed_text`]).
    ///
    /// Errors: those of [`Function::wasm`].
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
                format!("the function has {} bytes; at most {FUNCTION_BYTES_MAX} are permitted", bytes.len());
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let entry = Name::new(entry).map_err(|error| {
            Error::new(ErrorKind::Invalid, format!("invalid entry {entry:?} of a function: {error}"))
        })?;
        let digest = if form == FunctionForm::Resident { [0; 32] } else { digest(&bytes) };
        Ok(Function { form, entry, digest, bytes: bytes.into(), signature })
    }

    /// Reports whether the function has a signature. Only nodes check whether they trust it.
    pub fn is_signed(&self) -> bool {
        self.signature.is_some()
    }

    /// Returns the form: resident, WebAssembly or native.
    pub fn form(&self) -> FunctionForm {
        self.form
    }

    /// Returns the name of the export, symbol or resident function that is called.
    pub fn entry(&self) -> &str {
        &self.entry
    }

    /// Returns the SHA-256 digest of the code; zeros for a resident function.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// Returns the code; empty for a resident function.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the key under which costs of the function are remembered.
    fn key(&self) -> u64 {
        fingerprint([&self.digest[..], self.entry.as_bytes()])
    }

    /// Returns the reason why functions of this form run at nodes only. `None` if they also run in a client's
    /// sandbox.
    fn why_only_at_nodes(&self) -> Option<&'static str> {
        match self.form {
            FunctionForm::Resident => Some("it is built into nodes"),
            FunctionForm::Wasm => None,
            FunctionForm::Native => Some("it is native code, and only nodes have the keys that verify it"),
        }
    }
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Function({} {}, {} bytes)", self.form.word(), &*self.entry, self.bytes.len())
    }
}
