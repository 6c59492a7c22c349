"""Far tables as relations of DuckDB connections, and which ones a connection has.

DuckDB makes a temporary view of what is registered, in which it names the object by a number of its own. By that
number it is known later whether a name still means the far table, or was registered anew as something else.

Never here: rows. `farpool.dataset` has them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import duckdb

import farpool

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

    from farpool.dataset import FarDataset

_VIEW = "SELECT sql FROM duckdb_views() WHERE temporary AND lower(view_name) = lower($1)"
# What a name means in a connection: its own temporary tables and views, and those of the database that it uses.
_MEANINGS = """
    SELECT 'table', '' FROM duckdb_tables() WHERE lower(table_name) = lower($1)
        AND (temporary OR database_name = current_database() AND schema_name = current_schema())
    UNION ALL
    SELECT 'view', sql FROM duckdb_views() WHERE lower(view_name) = lower($1)
        AND (temporary OR database_name = current_database() AND schema_name = current_schema())"""


@dataclass
class _Registered:
    # A far table, or a dataset of pyarrow's over published files.
    relation: FarDataset | Dataset
    # What DuckDB's view of it says.
    view: str


_of_connection: weakref.WeakKeyDictionary[duckdb.DuckDBPyConnection, dict[str, _Registered]] = (
    weakref.WeakKeyDictionary()
)


def register(
    con: duckdb.DuckDBPyConnection,
    pool: farpool.Pool,
    name: str | Iterable[str] | Mapping[str, str] | None = None,
    *,
    as_: str | None = None,
    key: bytes | None = None,
    seal_answers: bool = False,
    placement: str | None = None,
    replace: bool = False,
) -> dict[str, FarDataset]:
    """Makes far tables relations of `con`, and returns what stands behind each, by its name there.

    `name` is a table, several, a mapping of tables to the names that they get, or None for all tables of the pool. One
    table may be given another name by `as_`. Other connections do not know such a name. One that is a table or a view
    of `con` already is refused, unless farpool registered it; with `replace` that is hidden until `unregister`.

    DuckDB hands the columns and most filters of a scan on, and only what they need is read; rows come while the query
    runs. What DuckDB computes itself, such as groups, `sql_pushdown` runs beside the data. Each query reads the table
    that there is then, if it has the same columns. `placement` says where scans run (see `farpool.Scan.collect`); `key` and
    `seal_answers` are those of `Pool.table`.

    Raises ExistsError (a name that is taken, and no `replace`), and what `Pool.scan` raises; then nothing is
    registered.
    """
    dataset = _dataset_type()
    if isinstance(name, str):
        names = {name: name if as_ is None else as_}
    else:
        if as_ is not None:
            raise farpool.InvalidError("as_ names one table: give several tables their names by a mapping")
        if name is None:
            names = {table.name: table.name for table in pool.tables()}
        else:
            names = dict(name) if isinstance(name, Mapping) else {one: one for one in name}
    known: dict[str, str] = {}
    for table, local in names.items():
        if other := known.get(local.lower()):
            raise farpool.InvalidError(f"far tables {other!r} and {table!r} would both be {local!r} in DuckDB")
        known[local.lower()] = table
    made = {
        local: dataset(pool, table, key=key, seal_answers=seal_answers, placement=placement) for table, local in names.items()
    }
    for local in made:
        check_free(con, local, replace)
    for local, one in made.items():
        put(con, local, one)
    return made


def check_free(con: duckdb.DuckDBPyConnection, name: str, replace: bool) -> None:
    """Raises ExistsError if a name means something in `con` that farpool did not register, unless it may be hidden."""
    if replace:
        return
    ours = _of_connection.get(con, {}).get(name.lower())
    meanings = con.sql(_MEANINGS, params=[name]).fetchall()
    # What was hidden by permission is hidden already.
    if not meanings or ours is not None and any(view == ours.view for _, view in meanings):
        return
    raise farpool.ExistsError(
        f"{name!r} is a {meanings[0][0]} of this connection, which it would hide: choose another name by as_, or give "
        "replace=True"
    )


def put(con: duckdb.DuckDBPyConnection, name: str, relation: FarDataset | Dataset) -> None:
    """Has a name mean a relation in `con`, and remembers that."""
    try:
        con.register(name, relation)
    except duckdb.CatalogException as error:
        # DuckDB hides no temporary table.
        raise farpool.ExistsError(f"{name!r} cannot be hidden ({error}): choose another name by as_") from error
    view = con.sql(_VIEW, params=[name]).fetchall()[0][0]
    _of_connection.setdefault(con, {})[name.lower()] = _Registered(relation, view)


def unregister(con: duckdb.DuckDBPyConnection, name: str) -> None:
    """Takes a far table's name away from `con`. Raises InvalidError if it has none of this name."""
    if registered(con, name) is None:
        raise farpool.InvalidError(f"{name!r} is no far table of this connection: {_names(con)} are")
    con.unregister(name)
    del _of_connection[con][name.lower()]


def registered(con: duckdb.DuckDBPyConnection, name: str) -> FarDataset | None:
    """The far table that a name means in a connection."""
    found = _of_connection.get(con, {}).get(name.lower())
    if found is None or not isinstance(found.relation, _dataset_type()):
        return None
    view = con.sql(_VIEW, params=[name]).fetchall()
    return found.relation if view == [(found.view,)] else None


def _names(con: duckdb.DuckDBPyConnection) -> str:
    return ", ".join(repr(name) for name in _of_connection.get(con, {}) if registered(con, name)) or "none"


def _dataset_type() -> type[FarDataset]:
    try:
        from farpool.dataset import FarDataset
    except ImportError as missing:
        raise farpool.InvalidError(f"relations pass through pyarrow, which is not installed: {missing}") from missing
    return FarDataset
