"""Published far files of known formats as relations of DuckDB connections.

Parquet and Arrow files that anybody wrote, such as through `farpool.fs`; far tables, whose scans run beside the data,
are in `_registered`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb

import farpool

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

_FORMATS = {".parquet": "parquet", ".arrow": "ipc", ".feather": "ipc", ".ipc": "ipc"}


def register_file(con: duckdb.DuckDBPyConnection, pool: farpool.Pool, name: str, *, as_: str) -> Dataset:
    """Makes a published file a relation of `con` by the name `as_`, and returns what stands behind it.

    The format is told by the end of its name: .parquet, or .arrow, .feather and .ipc (Arrow's IPC file format). A name
    that others continue behind a slash stands for all of them, which must be of one format and one schema:
    `register_file(con, pool, "sales", as_="sales")` has "sales/2025.parquet" and "sales/2026.parquet".

    DuckDB hands the columns and most filters of a scan on. Of Parquet files only these columns are read, in the row
    groups that filters leave by their statistics; of Arrow files only these columns. The file is another one when it
    was replaced: register it again. `con.unregister(as_)` takes the name away.

    Raises NotFoundError if there is no such file, and InvalidError for other formats.
    """
    try:
        from pyarrow import dataset
    except ImportError as missing:
        raise farpool.InvalidError(f"relations pass through pyarrow, which is not installed: {missing}") from missing
    from farpool.fs import FarpoolFileSystem

    fs = FarpoolFileSystem(pool.url.removeprefix("farpool://"), pool=pool, skip_instance_cache=True)
    names = fs.find(name)
    if not names:
        raise farpool.NotFoundError(f"no published file '{name}', and none below it")
    formats = {one: _FORMATS.get(one[one.rfind(".") :].lower()) for one in names}
    for one, known in formats.items():
        if known is None:
            raise farpool.InvalidError(
                f"'{one}' is of no known format: {', '.join(_FORMATS)} are, by the end of the name"
            )
    if len(set(formats.values())) > 1:
        raise farpool.InvalidError(f"the files below '{name}' are of different formats: {', '.join(names)}")
    found = dataset.dataset(names, filesystem=fs, format=formats[names[0]])
    con.register(as_, found)
    return found
