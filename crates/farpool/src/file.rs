//! Far files for users: bytes at offsets, and functions that run over them.

use farpool_calls::{Caller, CallerOptions};
use farpool_files::Error;
use std::ops::Deref;

/// A handle of a far file. Handles are cheap to clone and may be used from many threads at once.
///
/// It dereferences to [`farpool_files::FarFile`] and has all its methods.
#[derive(Clone)]
pub struct FarFile(pub(crate) farpool_files::FarFile);

impl Deref for FarFile {
    type Target = farpool_files::FarFile;
    fn deref(&self) -> &farpool_files::FarFile {
        &self.0
    }
}

impl FarFile {
    /// Makes a caller of functions over this file, which must be published.
    ///
    /// Errors: [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the file is not published, if the range does not
    /// lie in it or is too large, or if the output would be too large.
    pub fn caller(&self, options: CallerOptions) -> Result<Caller, Error> {
        Caller::over(self, options)
    }
}
