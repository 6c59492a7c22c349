//! Keys that sign native functions: Ed25519, in PKCS #8.

use crate::{Function, abi};
use aws_lc_rs::pkcs8::Document;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use farpool_files::Error;
use std::io;

/// A private key.
pub struct SigningKey(Ed25519KeyPair);

impl SigningKey {
    /// Makes a key, and what a file of it holds.
    pub fn generate() -> io::Result<(SigningKey, Document)> {
        let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).ok();
        let made = made.and_then(|kept| Some((SigningKey::of_pkcs8(kept.as_ref())?, kept)));
        made.ok_or_else(|| io::Error::other("no key could be made"))
    }

    /// Reads a key. `None`: it is no such key.
    pub fn of_pkcs8(bytes: &[u8]) -> Option<SigningKey> {
        Ed25519KeyPair::from_pkcs8(bytes).ok().map(SigningKey)
    }

    /// Returns its public key in hexadecimal digits, as nodes read it.
    pub fn public_hex(&self) -> String {
        abi::hex(self.0.public_key().as_ref())
    }

    /// Signs a shared object.
    pub fn sign(&self, object: Vec<u8>, entry: &str) -> Result<Function, Error> {
        let (mut key, mut signature) = ([0; 32], [0; 64]);
        key.copy_from_slice(self.0.public_key().as_ref());
        signature.copy_from_slice(self.0.sign(&abi::signed_text(&abi::digest(&object))).as_ref());
        Function::native(object, entry, key, signature)
    }
}
