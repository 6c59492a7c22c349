//! Certificates that are renewed while the process runs: the files are read again when they have changed.
//!
//! The thread that begins a handshake looks at the files, at most once a second in all. Connections that exist keep the
//! keys that they agreed upon. If the new files cannot be used, the old certificate stays in use.

use super::{Loaded, TlsError, TlsErrorKind, TlsFiles};
use farpool_host::{Event, Host, Machine};
use farpool_lock::Mutex;
use farpool_wire::MonoNs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Least time between two looks at the files, in ms.
const LOOK_MS: u64 = 1_000;

/// Inode, bytes and time of the last change (ns since 1970) of a file. They change when it is replaced or written.
/// `None` if there is no file.
type Stamp = Option<(u64, u64, i128)>;

/// Files that are looked at.
pub(super) struct Watched {
    files: TlsFiles,
    state: Mutex<State>,
}

struct State {
    looked: MonoNs,
    /// Stamps of the files that are in use: CA, certificate, key, revocation list.
    used: [Stamp; 4],
    /// Stamps of files that could not be used at the last look. They may have been replaced one by one, and not all of
    /// them yet, so this is logged only if they are still the same at the next look.
    refused: Option<[Stamp; 4]>,
    is_reported: bool,
}

fn stamp(path: &Path) -> Stamp {
    let of = path.metadata().ok()?;
    Some((of.ino(), of.len(), i128::from(of.mtime()) * 1_000_000_000 + i128::from(of.mtime_nsec())))
}

fn stamps(files: &TlsFiles) -> [Stamp; 4] {
    let crl = files.crl.as_ref().and_then(|path| stamp(path));
    [stamp(&files.ca), stamp(&files.cert), stamp(&files.key), crl]
}

impl Watched {
    /// Reads the files.
    pub(super) fn load(files: &TlsFiles) -> Result<(Watched, Loaded), TlsError> {
        // Taken before the files are read, so that a change meanwhile is noticed.
        let used = stamps(files);
        let loaded = Loaded::read(files)?;
        let state = State { looked: Machine.now(), used, refused: None, is_reported: false };
        Ok((Watched { files: files.clone(), state: Mutex::new(state) }, loaded))
    }

    /// Returns what the files contain now, if they have changed since the last look and can be used in place of
    /// `before`. Another thread that looks at the same time gets `None`.
    pub(super) fn look(&self, before: &Loaded) -> Option<Loaded> {
        let mut state = self.state.try_lock()?;
        let now = Machine.now();
        if now < state.looked.plus_ms(LOOK_MS) {
            return None;
        }
        state.looked = now;
        let found = stamps(&self.files);
        if found == state.used {
            return None;
        }
        match Loaded::read(&self.files).and_then(|loaded| same_identity(before, loaded)) {
            Ok(loaded) => {
                (state.used, state.refused, state.is_reported) = (found, None, false);
                let until = super::utc(loaded.not_after);
                let message = format!("{} was read again; it is valid until {until}", loaded.own());
                Machine.log(&Event::info("certificate_read_again", message));
                Some(loaded)
            }
            Err(error) => {
                if state.refused == Some(found) && !state.is_reported {
                    state.is_reported = true;
                    let message =
                        format!("the certificate was not renewed, the old one stays in use: {error}");
                    Machine.log(&Event::warn("certificate_not_renewed", message));
                }
                if state.refused != Some(found) {
                    (state.refused, state.is_reported) = (Some(found), false);
                }
                None
            }
        }
    }
}

fn same_identity(before: &Loaded, loaded: Loaded) -> Result<Loaded, TlsError> {
    if loaded.identity == before.identity {
        return Ok(loaded);
    }
    let message = format!("it belongs to {}, and this process is {}", loaded.identity, before.identity);
    Err(TlsError::new(TlsErrorKind::Identity, message))
}
