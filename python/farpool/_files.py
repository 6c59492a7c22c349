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

# What a name means in a database before anything is registered by it.
_TAKEN = """
    SELECT 'table' FROM duckdb_tables() WHERE lower(table_name) = lower($1) AND NOT temporary
        AND database_name = current_database() AND schema_name = current_schema()
    UNION ALL
    SELECT 'view' FROM duckdb_views() WHERE lower(view_name) = lower($1) AND NOT temporary
        AND database_name = current_database() AND schema_name = current_schema()"""
_FORMATS = {".parquet": "parquet", ".arrow": "ipc", ".feather": "ipc", ".ipc": "ipc"}


def register_file(con: duckdb.DuckDBPyConnection, pool: farpool.Pool, name: str, *, as_: str) -> Dataset:
    """Makes a published file a relation of `con` by the name `as_`, and returns what stands behind it.

    The format is told by the end of its name: .parquet, or .arrow, .feather and .ipc (Arrow's IPC file format). A name
    that others continue behind a slash stands for all of them, which must be of one format and one schema:
    `register_file(con, pool, "sales", as_="sales")` has "sales/2025.parquet" and "sales/2026.parquet".

    DuckDB hands the columns and most filters of a scan on. Of Parquet files only these columns are read, in the row
    groups that filters leave by their statistics; of Arrow files only these columns. The file is another one when it
    was replaced: register it again. `con.unregister(as_)` takes the name away.

    Raises NotFoundError if there is no such file, and InvalidError for other formats and for a name that a table or
    a view of the database has.
    """
    try:
        from pyarrow import dataset
    except ImportError as missing:
        raise farpool.InvalidError(f"relations pass through pyarrow, which is not installed: {missing}") from missing
    from farpool.fs import FarpoolFileSystem

    if not as_:
        raise farpool.InvalidError("as_ is empty: give the file a name for queries, such as 'sales'")
    # DuckDB itself would hide it without a word.
    if taken := con.sql(_TAKEN, params=[as_]).fetchall():
        raise farpool.InvalidError(f"as_ is {as_!r}, which is a {taken[0][0]} of this database: choose another name")
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
    try:
        con.register(as_, found)
    except duckdb.CatalogException as error:
        raise farpool.InvalidError(f"as_ is {as_!r}: {error}; choose another name") from error
    return found
