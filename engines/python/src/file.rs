//! `farpool.File`.

use crate::buffers::{Source, Target};
use crate::{errors, forks, units};
use farpool::{FarFile, ReadRange, WriteRange};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::atomic::{AtomicBool, Ordering};

/// A far file. Offsets need no alignment. Operations on different ranges may run at the same time.
#[pyclass(name = "File", module = "farpool", frozen)]
pub(crate) struct PyFile {
    file: FarFile,
    is_closed: AtomicBool,
    forks: u64,
}

impl PyFile {
    pub(crate) fn new(file: FarFile) -> PyFile {
        PyFile { file, is_closed: AtomicBool::new(false), forks: forks() }
    }

    pub(crate) fn usable(&self, py: Python<'_>) -> PyResult<&FarFile> {
        if self.forks != forks() {
            return Err(errors::forked(py));
        }
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(errors::closed(py, "this handle on the far file is closed"));
        }
        Ok(&self.file)
    }
}

/// Converts a Python number to an offset or count, which must not be negative.
fn natural(py: Python<'_>, what: &str, number: i64) -> PyResult<u64> {
    u64::try_from(number)
        .map_err(|_| errors::invalid(py, format!("{what} is {number}; 0 or more is permitted")))
}

#[pymethods]
impl PyFile {
    /// Name of the file.
    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<String> {
        if self.forks != forks() {
            return Err(errors::forked(py));
        }
        Ok(self.file.name())
    }

    /// Length of the file in bytes.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.usable(py)?.length())
    }

    /// True if this handle was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Class of the file: `scratch`, `cache` or `pinned`.
    #[getter]
    fn file_class(&self) -> &'static str {
        self.file.class().word()
    }

    /// Protection of the file against the loss of a node: `none`, `mirror`, `rs(DATA,PARITY)` or `local`.
    #[getter]
    fn protection(&self) -> String {
        self.file.protection().to_string()
    }

    /// True if the file is encrypted and authenticated before it leaves this process.
    #[getter]
    fn encrypted(&self) -> bool {
        self.file.is_encrypted()
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) {
        self.close();
    }

    fn __repr__(&self) -> String {
        if self.forks != forks() || self.closed() {
            return "<farpool.File, closed>".into();
        }
        let size = units::_size_text(self.file.length());
        format!("<farpool.File {:?}, {}, {size}>", self.file.name(), self.file.class())
    }

    /// Returns `n` bytes from `offset`, or fewer at the end of the file. Bytes that were never written are zeros.
    ///
    /// Raises LostError, LeaseError, UnreachableError, ClosedError, InvalidError (negative argument).
    ///
    /// >>> with pool.open("runs/0") as file:
    /// ...     file.read_at(0, 4), file.read_at(27, 100)
    /// (b'more', b'hold')
    fn read_at<'py>(&self, py: Python<'py>, offset: i64, n: i64) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.usable(py)?;
        let offset = natural(py, "offset", offset)?;
        let left = file.length().saturating_sub(offset);
        let count = natural(py, "n", n)?.min(left) as usize;
        let mut read = count;
        let bytes = PyBytes::new_with(py, count, |into| {
            let done = py.detach(|| file.read_at(offset, into));
            read = done.map_err(|error| errors::of(py, &error))?;
            Ok(())
        })?;
        // Fewer bytes were read only if the file was truncated meanwhile.
        if read < count { Ok(PyBytes::new(py, &bytes.as_bytes()[..read])) } else { Ok(bytes) }
    }

    /// Fills a writable, contiguous buffer from `offset`. Returns the number of bytes read. Raises the errors of
    /// `read_at`.
    ///
    /// >>> buffer = bytearray(4)
    /// >>> with pool.open("runs/0") as file:
    /// ...     file.read_into(5, buffer), bytes(buffer)
    /// (4, b'than')
    fn read_into(&self, py: Python<'_>, offset: i64, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let file = self.usable(py)?;
        let offset = natural(py, "offset", offset)?;
        let mut target = Target::of(buffer)?;
        let into = target.bytes();
        py.detach(|| file.read_at(offset, into)).map_err(|error| errors::of(py, &error))
    }

    /// Writes all of a contiguous buffer at `offset`, and grows the file as needed. Returns the number of bytes
    /// written.
    ///
    /// Raises ExhaustedError, LostError, LeaseError, UnreachableError, ClosedError, InvalidError
    /// (buffer not contiguous, negative offset, published file). After an error the range must be
    /// written again before it can be read.
    ///
    /// >>> with pool.create("runs/1") as file:
    /// ...     file.write_at(1 << 20, memoryview(b"anything contiguous"))
    /// 19
    fn write_at(&self, py: Python<'_>, offset: i64, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let file = self.usable(py)?;
        let offset = natural(py, "offset", offset)?;
        let source = Source::of(buffer)?;
        let from = source.bytes();
        py.detach(|| file.write_at(offset, from)).map_err(|error| errors::of(py, &error))?;
        Ok(from.len())
    }

    /// Does `read_into` for many ranges, and waits only once. Returns the number of bytes of each.
    ///
    /// >>> first, second = bytearray(4), bytearray(4)
    /// >>> with pool.open("runs/0") as file:
    /// ...     file.read_batch([(0, first), (5, second)])
    /// [4, 4]
    fn read_batch(&self, py: Python<'_>, requests: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
        let file = self.usable(py)?;
        let mut targets = Vec::new();
        for request in requests.try_iter()? {
            let (offset, buffer): (i64, Bound<'_, PyAny>) = request?.extract()?;
            targets.push((natural(py, "offset", offset)?, Target::of(&buffer)?));
        }
        let length = file.length();
        let mut counts = Vec::with_capacity(targets.len());
        let mut ranges = Vec::with_capacity(targets.len());
        for (offset, target) in &mut targets {
            let into = target.bytes();
            let count = length.saturating_sub(*offset).min(into.len() as u64) as usize;
            counts.push(count);
            if count > 0 {
                ranges.push(ReadRange { offset: *offset, into: &mut into[..count] });
            }
        }
        py.detach(|| file.read_batch(&mut ranges)).map_err(|error| errors::of(py, &error))?;
        Ok(counts)
    }

    /// Does `write_at` for many ranges, and waits only once. Returns the number of bytes of each. Ranges should not
    /// overlap.
    ///
    /// >>> with pool.create("runs/2") as file:
    /// ...     file.write_batch([(0, b"one"), (3, b"two")])
    /// [3, 3]
    fn write_batch(&self, py: Python<'_>, requests: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
        let file = self.usable(py)?;
        let mut sources = Vec::new();
        for request in requests.try_iter()? {
            let (offset, buffer): (i64, Bound<'_, PyAny>) = request?.extract()?;
            sources.push((natural(py, "offset", offset)?, Source::of(&buffer)?));
        }
        let ranges: Vec<WriteRange<'_>> = sources
            .iter()
            .map(|(offset, source)| WriteRange { offset: *offset, from: source.bytes() })
            .collect();
        py.detach(|| file.write_batch(&ranges)).map_err(|error| errors::of(py, &error))?;
        Ok(ranges.iter().map(|range| range.from.len()).collect())
    }

    /// Sets the size. Memory that is freed is given back; bytes that are added read as zeros.
    ///
    /// >>> with pool.create("runs/3") as file:
    /// ...     file.truncate(2)
    /// ...     file.read_at(0, 9)
    /// b'\x00\x00'
    fn truncate(&self, py: Python<'_>, size: i64) -> PyResult<()> {
        let file = self.usable(py)?;
        let size = natural(py, "size", size)?;
        py.detach(|| file.truncate(size)).map_err(|error| errors::of(py, &error))
    }

    /// Closes this handle. The file stays in the pool until it is deleted or the session ends.
    fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }
}
