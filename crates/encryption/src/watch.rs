//! Report of the nonces that tables are encrypted with. It exists only with the feature `watched`, which only the
//! simulator enables, to count them: AES-GCM protects nothing once a nonce was used twice with one key.

use crate::keys::KEY_BYTES;
use aws_lc_rs::aead::NONCE_LEN;
use std::cell::Cell;

/// Key of a file of a table.
pub type FileKey = [u8; KEY_BYTES];
/// Nonce with which something was encrypted.
pub type Nonce = [u8; NONCE_LEN];
/// Function that is told of each key and nonce.
pub type Watcher = fn(&FileKey, &Nonce);

thread_local! {
    static WATCHER: Cell<Option<Watcher>> = const { Cell::new(None) };
}

/// Sets the function that is told which nonces this thread uses from now on; `None`: nobody is told.
pub fn watch(watcher: Option<Watcher>) {
    WATCHER.set(watcher);
}

pub(crate) fn used(key: &FileKey, nonce: &Nonce) {
    if let Some(watcher) = WATCHER.get() {
        watcher(key, nonce);
    }
}
