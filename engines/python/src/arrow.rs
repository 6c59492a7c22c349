//! Arrow streams in PyCapsules: the Arrow PyCapsule interface, which passes tables between libraries of one process
//! without a copy.
//!
//! The C data interface consists of raw pointers, so the library that hands a stream over is trusted.
#![allow(unsafe_code)]

use crate::errors;
use arrow_array::RecordBatchReader;
use arrow_array::ffi_stream::{ArrowArrayStreamReader, FFI_ArrowArrayStream};
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{DataType, Schema};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::ffi::CStr;

const NAME: &CStr = c"arrow_array_stream";
const SCHEMA_NAME: &CStr = c"arrow_schema";

/// Returns the batches of any object that has `__arrow_c_stream__`, or that `farpool._sources` can read with pyarrow.
pub(crate) fn stream_of(object: &Bound<'_, PyAny>) -> PyResult<ArrowArrayStreamReader> {
    let py = object.py();
    let method = match object.getattr_opt("__arrow_c_stream__")? {
        Some(method) => method,
        None => {
            let stream = py.import("farpool._sources")?.getattr("stream_of")?.call1((object,))?;
            stream.getattr("__arrow_c_stream__")?
        }
    };
    let capsule = method.call0()?.cast_into::<PyCapsule>()?;
    let stream = capsule.pointer_checked(Some(NAME))?.cast::<FFI_ArrowArrayStream>();
    // SAFETY: a capsule of this name holds a stream, which lives as long as the capsule. It is moved out of there, and
    // what is left is marked as released, so that the capsule's destructor leaves it alone.
    unsafe { ArrowArrayStreamReader::from_raw(stream.as_ptr()) }
        .map_err(|error| errors::invalid(py, format!("the Arrow stream cannot be read: {error}")))
}

/// Returns the type of any object that has `__arrow_c_schema__`, as types of pyarrow have.
pub(crate) fn type_of(object: &Bound<'_, PyAny>) -> PyResult<DataType> {
    let py = object.py();
    let Some(method) = object.getattr_opt("__arrow_c_schema__")? else {
        let found = object.get_type().name()?;
        return Err(errors::invalid(
            py,
            format!("{found} is no type of a column; give one of pyarrow, such as pa.int64()"),
        ));
    };
    let capsule = method.call0()?.cast_into::<PyCapsule>()?;
    let schema = capsule.pointer_checked(Some(SCHEMA_NAME))?.cast::<FFI_ArrowSchema>();
    // SAFETY: a capsule of this name holds a schema, which lives as long as the capsule. It is moved out of there, and
    // what is left is marked as released, so that the capsule's destructor leaves it alone.
    let schema = unsafe { FFI_ArrowSchema::from_raw(schema.as_ptr()) };
    DataType::try_from(&schema)
        .map_err(|error| errors::invalid(py, format!("the Arrow type cannot be read: {error}")))
}

/// Returns a capsule with these batches, as `__arrow_c_stream__` must. The requested schema is ignored, which the
/// interface permits.
pub(crate) fn capsule_of<'py>(
    py: Python<'py>,
    _requested_schema: Option<Bound<'py, PyAny>>,
    batches: Box<dyn RecordBatchReader + Send>,
) -> PyResult<Bound<'py, PyCapsule>> {
    PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(batches), NAME)
}

/// Returns a capsule with the names and types of columns.
pub(crate) fn schema_capsule_of<'py>(py: Python<'py>, schema: &Schema) -> PyResult<Bound<'py, PyCapsule>> {
    let schema = FFI_ArrowSchema::try_from(schema)
        .map_err(|error| errors::invalid(py, format!("the schema cannot be exported: {error}")))?;
    PyCapsule::new_with_value(py, schema, SCHEMA_NAME)
}
