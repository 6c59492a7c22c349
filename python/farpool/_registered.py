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
    from farpool.dataset import FarDataset

_VIEW = "SELECT sql FROM duckdb_views() WHERE temporary AND lower(view_name) = lower($1)"


@dataclass
class _Registered:
    dataset: FarDataset
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
    mode: str | None = None,
) -> dict[str, FarDataset]:
    """Makes far tables relations of `con`, and returns what stands behind each, by its name there.

    `name` is a table, several, a mapping of tables to the names that they get, or None for all tables of the pool. One
    table may be given another name by `as_`. Such a name hides a table of the database until `unregister`, and other
    connections do not know it.

    DuckDB hands the columns and most filters of a scan on, and only what they need is read; rows come while the query
    runs. What DuckDB computes itself, such as groups, `sql_pushdown` runs beside the data. Each query reads the table
    that there is then, if it has the same columns. `mode` says where scans run (see `farpool.Scan.collect`); `key` and
    `seal_answers` are those of `Pool.table`.

    Raises what `Pool.scan` raises; then nothing is registered.
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
        local: dataset(pool, table, key=key, seal_answers=seal_answers, mode=mode) for table, local in names.items()
    }
    for local, one in made.items():
        con.register(local, one)
        view = con.sql(_VIEW, params=[local]).fetchall()[0][0]
        _of_connection.setdefault(con, {})[local.lower()] = _Registered(one, view)
    return made


def unregister(con: duckdb.DuckDBPyConnection, name: str) -> None:
    """Takes a far table's name away from `con`. Raises InvalidError if it has none of this name."""
    if registered(con, name) is None:
        raise farpool.InvalidError(f"{name!r} is no far table of this connection: {_names(con)} are")
    con.unregister(name)
    del _of_connection[con][name.lower()]


def registered(con: duckdb.DuckDBPyConnection, name: str) -> FarDataset | None:
    """The far table that a name means in a connection."""
    found = _of_connection.get(con, {}).get(name.lower())
    if found is None:
        return None
    view = con.sql(_VIEW, params=[name]).fetchall()
    return found.dataset if view == [(found.view,)] else None


def _names(con: duckdb.DuckDBPyConnection) -> str:
    return ", ".join(repr(name) for name in _of_connection.get(con, {})) or "none"


def _dataset_type() -> type[FarDataset]:
    try:
        from farpool.dataset import FarDataset
    except ImportError as missing:
        raise farpool.InvalidError(f"relations pass through pyarrow, which is not installed: {missing}") from missing
    return FarDataset
