"""Sources of far tables that do not export Arrow streams: files and datasets, read by pyarrow or DuckDB."""

import os
from typing import Any

from farpool._farpool import InvalidError

# pyarrow's name of the file format, by the end of the file's name.
_FORMS = {".parquet": "parquet", ".csv": "csv", ".arrow": "ipc", ".feather": "feather"}


def stream_of(data: Any) -> Any:
    """Returns an object with `__arrow_c_stream__` that has the rows of `data`. Raises InvalidError."""
    if isinstance(data, str | os.PathLike):
        return _of_path(os.fspath(data))
    if hasattr(data, "scanner"):  # pyarrow.dataset.Dataset
        return data.scanner().to_reader()
    if hasattr(data, "to_reader"):  # pyarrow.dataset.Scanner
        return data.to_reader()
    if hasattr(data, "iter_batches") and hasattr(data, "schema_arrow"):  # pyarrow.parquet.ParquetFile
        return _pyarrow("pyarrow").RecordBatchReader.from_batches(data.schema_arrow, data.iter_batches())
    if hasattr(data, "to_arrow_reader"):  # duckdb.DuckDBPyConnection, after execute
        return data.to_arrow_reader()
    if hasattr(data, "collect") and type(data).__module__.partition(".")[0] == "polars":  # polars.LazyFrame
        return data.collect()
    raise InvalidError(
        f"cannot read rows from an object of type {type(data).__name__}: objects with __arrow_c_stream__ (tables "
        "of pyarrow, Polars, DuckDB and pandas), datasets and Parquet files of pyarrow, and paths are permitted"
    )


def _pyarrow(name: str) -> Any:
    try:
        return __import__(name, fromlist=["_"])
    except ImportError as missing:
        raise InvalidError(f"reading files needs pyarrow, which is not installed: {missing}") from missing


def _of_path(path: str) -> Any:
    stem, ending = os.path.splitext(path)
    if ending == ".gz":
        ending = os.path.splitext(stem)[1]
    form = _FORMS.get(ending.lower())
    if os.path.isdir(path):
        form = "parquet"
    if form is None:
        known = ", ".join(_FORMS)
        raise InvalidError(f"{path!r} has an unknown format: {known}, .csv.gz and folders of .parquet are permitted")
    if not os.path.exists(path):
        raise InvalidError(f"{path!r} does not exist")
    try:
        return _pyarrow("pyarrow.dataset").dataset(path, format=form).scanner().to_reader()
    except (OSError, ValueError) as error:
        raise InvalidError(f"{path!r} cannot be read as {form}: {error}") from error
