//! Keys that sign functions: Ed25519, in PKCS #8.

use crate::{Function, abi};
use aws_lc_rs::pkcs8::Document;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use farpool_files::Error;
use farpool_wire::control::FunctionSignature;
use std::io;

/// Private key that signs functions.
pub struct SigningKey(Ed25519KeyPair);

impl SigningKey {
    /// Generates a key. Returns it with the document to store in a file.
    pub fn generate() -> io::Result<(SigningKey, Document)> {
        let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).ok();
        let made = made.and_then(|kept| Some((SigningKey::of_pkcs8(kept.as_ref())?, kept)));
        made.ok_or_else(|| io::Error::other("the key could not be generated"))
    }

    /// Reads a key from a PKCS #8 document. `None` if it is not an Ed25519 key.
    pub fn of_pkcs8(bytes: &[u8]) -> Option<SigningKey> {
        Ed25519KeyPair::from_pkcs8(bytes).ok().map(SigningKey)
    }

    /// Returns the public key.
    pub fn public(&self) -> [u8; 32] {
        let mut key = [0; 32];
        key.copy_from_slice(self.0.public_key().as_ref());
        key
    }

    /// Returns the public key in hexadecimal digits, the form that nodes read.
    pub fn public_hex(&self) -> String {
        abi::hex(&self.public())
    }

    /// Returns the signature of a shared object or a module.
    pub fn signature(&self, object: &[u8]) -> [u8; 64] {
        let mut signature = [0; 64];
        signature.copy_from_slice(self.0.sign(&abi::signed_text(&abi::digest(object))).as_ref());
        signature
    }

    /// Signs a WebAssembly function, for nodes that run no others. Its signature is not checked anywhere else.
    pub fn sign_wasm(&self, function: Function) -> Function {
        let signature = FunctionSignature { key: self.public(), signature: self.signature(&function.bytes) };
        Function { signature: Some(signature), ..function }
    }

    /// Makes a native function of a shared object, with its signature.
    pub fn sign(&self, object: Vec<u8>, entry: &str) -> Result<Function, Error> {
        let signature = self.signature(&object);
        Function::native(object, entry, self.public(), signature)
    }
}
