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

    /// Returns its public key.
    pub fn public(&self) -> [u8; 32] {
        let mut key = [0; 32];
        key.copy_from_slice(self.0.public_key().as_ref());
        key
    }

    /// Returns its public key in hexadecimal digits, as nodes read it.
    pub fn public_hex(&self) -> String {
        abi::hex(&self.public())
    }

    /// Returns what vouches for a shared object.
    pub fn signature(&self, object: &[u8]) -> [u8; 64] {
        let mut signature = [0; 64];
        signature.copy_from_slice(self.0.sign(&abi::signed_text(&abi::digest(object))).as_ref());
        signature
    }

    /// Makes a function of a shared object, and signs it.
    pub fn sign(&self, object: Vec<u8>, entry: &str) -> Result<Function, Error> {
        let signature = self.signature(&object);
        Function::native(object, entry, self.public(), signature)
    }
}
