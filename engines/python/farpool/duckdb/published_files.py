"""Published far files of known formats as relations of DuckDB connections.

These are Parquet and Arrow files, written for example through `farpool.fs`. Far tables, whose scans run beside the
data, are in `relations`.
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
    """Makes a published file a relation of `con` with the name `as_`, and returns its dataset.

    The end of the file's name gives the format: .parquet, or .arrow, .feather and .ipc (Arrow's IPC file format). If
    `name` is a prefix of several names, up to a slash, the relation has the rows of all these files. They must have the
    same format and schema: `register_file(con, pool, "sales", as_="sales")` reads "sales/2025.parquet" and
    "sales/2026.parquet".

    DuckDB pushes the columns and most filters of a scan down. Of Parquet files only these columns are read, and only
    row groups that can pass the filters according to their statistics. Of Arrow files only these columns are read.
    After a file was replaced, register it again. `con.unregister(as_)` removes the relation.

    If `as_` is a table or view of `con` already, it is refused, unless farpool registered it. With `replace` the
    relation hides that table or view.

    Raises NotFoundError (there is no such file), ExistsError (the name is taken, and no `replace`), InvalidError
    (unknown format, empty `as_`).
    """
    try:
        from pyarrow import dataset
    except ImportError as missing:
        raise farpool.InvalidError(f"far relations need pyarrow, which is not installed: {missing}") from missing
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
                f"{one!r} has an unknown format: its name must end in one of {', '.join(_FORMATS)}"
            )
    if len(set(formats.values())) > 1:
        raise farpool.InvalidError(f"the files below {name!r} are of different formats: {', '.join(map(repr, names))}")
    found = dataset.dataset(names, filesystem=fs, format=formats[names[0]])
    put(con, as_, found)
    return found
