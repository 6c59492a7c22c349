//! Certificates that last as long as a run and are never written to a disk.

use crate::certs::Authority;
use crate::exit::Failure;
use farpool::{Identity, Tls, TlsFiles};
use std::io::Write;
use std::os::fd::AsRawFd;

/// PEM text in memory, under a path that the processes of this user can open for as long as we run.
struct MemoryFile {
    file: std::fs::File,
}

impl MemoryFile {
    fn new(text: &str) -> Result<MemoryFile, Failure> {
        let fd = rustix::fs::memfd_create("farpool-bench", rustix::fs::MemfdFlags::CLOEXEC);
        let mut file = std::fs::File::from(fd.map_err(Failure::failed)?);
        file.write_all(text.as_bytes())?;
        Ok(MemoryFile { file })
    }

    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }
}

/// A certificate that lasts as long as its user, as flags of our own commands.
pub(super) struct Certificate {
    files: [MemoryFile; 3],
}

impl Certificate {
    /// Makes one; nothing of it is written to a disk.
    pub(super) fn issue(authority: &Authority, identity: &Identity) -> Result<Certificate, Failure> {
        let issued = authority.issue(identity, 1)?;
        let files = [&authority.pem, &issued.cert, &issued.key];
        let [ca, cert, key] = files.map(|text| MemoryFile::new(text));
        Ok(Certificate { files: [ca?, cert?, key?] })
    }

    /// The flags of our commands that take it.
    pub(super) fn flags(&self) -> Vec<String> {
        let named = ["--tls-ca", "--tls-cert", "--tls-key"].into_iter().zip(&self.files);
        named.flat_map(|(flag, file)| [flag.to_owned(), file.path()]).collect()
    }

    /// For a session of this process.
    pub(super) fn load(&self) -> Result<Tls, Failure> {
        let [ca, cert, key] = &self.files;
        let files = TlsFiles { ca: ca.path().into(), cert: cert.path().into(), key: key.path().into() };
        Tls::load(&files).map_err(Failure::failed)
    }
}
