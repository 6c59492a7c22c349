"""Published far files of known formats as relations of DuckDB connections.

Parquet and Arrow files that anybody wrote, such as through `farpool.fs`; far tables, whose scans run beside the data,
are in `relations`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb

import farpool
from farpool.duckdb.relations import check_free, put

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

_FORMATS = {".parquet": "parquet", ".arrow": "ipc", ".feather": "ipc", ".ipc": "ipc"}


def register_file(
    con: duckdb.DuckDBPyConnection, pool: farpool.Pool, name: str, *, as_: str, replace: bool = False
) -> Dataset:
    """Makes a published file a relation of `con` by the name `as_`, and returns what stands behind it.

    The format is told by the end of its name: .parquet, or .arrow, .feather and .ipc (Arrow's IPC file format). A name
    that others continue behind a slash stands for all of them, which must be of one format and one schema:
    `register_file(con, pool, "sales", as_="sales")` has "sales/2025.parquet" and "sales/2026.parquet".

    DuckDB hands the columns and most filters of a scan on. Of Parquet files only these columns are read, in the row
    groups that filters leave by their statistics; of Arrow files only these columns. The file is another one when it
    was replaced: register it again. `con.unregister(as_)` takes the name away. A name that is a table or a view of
    `con` already is refused, unless farpool registered it; with `replace` that is hidden meanwhile.

    Raises NotFoundError (there is no such file), ExistsError (the name is taken, and no `replace`), InvalidError
    (another format, no name).
    """
    try:
        from pyarrow import dataset
    except ImportError as missing:
        raise farpool.InvalidError(f"relations pass through pyarrow, which is not installed: {missing}") from missing
    from farpool.fs import FarpoolFileSystem

    if not as_:
        raise farpool.InvalidError("as_ is empty: give the file a name for queries, such as 'sales'")
    check_free(con, as_, replace)
    fs = FarpoolFileSystem(pool.url.removeprefix("farpool://"), pool=pool)
    names = fs.find(name)
    if not names:
        raise farpool.NotFoundError(f"no published file {name!r}, and none below it")
    formats = {one: _FORMATS.get(one[one.rfind(".") :].lower()) for one in names}
    for one, known in formats.items():
        if known is None:
            raise farpool.InvalidError(
                f"{one!r} is of no known format: {', '.join(_FORMATS)} are, by the end of the name"
            )
    if len(set(formats.values())) > 1:
        raise farpool.InvalidError(f"the files below {name!r} are of different formats: {', '.join(map(repr, names))}")
    found = dataset.dataset(names, filesystem=fs, format=formats[names[0]])
    put(con, as_, found)
    return found
