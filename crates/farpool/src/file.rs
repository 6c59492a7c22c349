//! A far file as its user sees it: bytes at offsets, and a window that functions run over.

use farpool_calls::{Caller, CallerOptions};
use farpool_files::Error;
use std::ops::Deref;

/// A handle on a far file. Handles are cheap, may be cloned and used from many threads at once.
///
/// It is a [`farpool_files::FarFile`], and has the methods of that.
#[derive(Clone)]
pub struct FarFile(pub(crate) farpool_files::FarFile);

impl Deref for FarFile {
    type Target = farpool_files::FarFile;
    fn deref(&self) -> &farpool_files::FarFile {
        &self.0
    }
}

impl FarFile {
    /// Lanes over this file, which must be published.
    ///
    /// Errors: [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if it is not, if the range is not in it or too large,
    /// or if the output is to be too large.
    pub fn caller(&self, options: CallerOptions) -> Result<Caller, Error> {
        Caller::over(self, options)
    }
}
