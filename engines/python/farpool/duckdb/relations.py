"""Registers far tables as relations of DuckDB connections, and keeps track of them.

DuckDB makes a temporary view for each registered object, and the view's SQL contains a number of that object. By this
number the module can tell whether a name still refers to the far table or was registered again as something else.

Never here: rows. `farpool.dataset` reads them.
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
# Tables and views that a name refers to in a connection: its temporary ones, and those of the current schema.
_MEANINGS = """
    SELECT 'table', '' FROM duckdb_tables() WHERE lower(table_name) = lower($1)
        AND (temporary OR database_name = current_database() AND schema_name = current_schema())
    UNION ALL
    SELECT 'view', sql FROM duckdb_views() WHERE lower(view_name) = lower($1)
        AND (temporary OR database_name = current_database() AND schema_name = current_schema())"""


@dataclass
class _Registered:
    # A far table, or a dataset of pyarrow over published files.
    relation: FarDataset | Dataset
    # SQL of DuckDB's temporary view.
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
    encrypt_answers: bool = False,
    snapshot: int | None = None,
    placement: str | None = None,
    replace: bool = False,
) -> dict[str, FarDataset]:
    """Registers far tables as relations of `con`, and returns their datasets by their names in DuckDB.

    `name` is a table, several tables, a mapping of tables to names in DuckDB, or None for all tables of the pool. `as_`
    gives one table another name. Other connections do not see the names. If a name is a table or view of `con` already,
    it is refused, unless farpool registered it. With `replace` that table or view is hidden until `unregister`.

    DuckDB pushes the columns and most filters of a scan down, and only the data that they need is read. Rows arrive
    while the query runs. DuckDB computes everything else itself, such as groups; use `sql_pushdown` to run that beside
    the data. Each query reads the current table of that name, if it has the same columns; with `snapshot` that snapshot
    of a single table. `placement` is that of scans (see `farpool.Scan.collect`; default "auto"). `key` and
    `encrypt_answers` are those of `Pool.table`. `Pool.append` and `Pool.put_table` take relations of DuckDB.

    Raises ExistsError (a name is taken, and no `replace`), InvalidError (two tables with one name, a snapshot of
    several), and the errors of `Pool.scan`. Then no table is registered.

        farpool.duckdb.register(con, pool, "sales")
        con.sql("SELECT max(price) FROM sales WHERE year = 2026")
        farpool.duckdb.register(con, pool, "sales", snapshot=7, as_="sales_before")
        pool.append("sales", con.sql("FROM read_csv('new.csv')"))
    """
    dataset = _dataset_type()
    if isinstance(name, str):
        names = {name: name if as_ is None else as_}
    else:
        if as_ is not None:
            raise farpool.InvalidError("as_ renames a single table: pass a mapping to rename several tables")
        if name is None:
            names = {table.name: table.name for table in pool.tables()}
        else:
            names = dict(name) if isinstance(name, Mapping) else {one: one for one in name}
    if snapshot is not None and len(names) != 1:
        raise farpool.InvalidError(f"snapshot is {snapshot}, of {len(names)} tables: name a single one")
    known: dict[str, str] = {}
    for table, local in names.items():
        if other := known.get(local.lower()):
            raise farpool.InvalidError(f"far tables {other!r} and {table!r} would both be {local!r} in DuckDB")
        known[local.lower()] = table
    made = {
        local: dataset(pool, table, key=key, encrypt_answers=encrypt_answers, snapshot=snapshot, placement=placement)
        for table, local in names.items()
    }
    for local in made:
        check_free(con, local, replace)
    for local, one in made.items():
        put(con, local, one)
    return made


def check_free(con: duckdb.DuckDBPyConnection, name: str, replace: bool) -> None:
    """Raises ExistsError if a name refers to something in `con` that farpool did not register. Does nothing with
    `replace`."""
    if replace:
        return
    ours = _of_connection.get(con, {}).get(name.lower())
    meanings = con.sql(_MEANINGS, params=[name]).fetchall()
    # If farpool's view is among them, an earlier `replace` hid the others already.
    if not meanings or ours is not None and any(view == ours.view for _, view in meanings):
        return
    raise farpool.ExistsError(
        f"{name!r} is a {meanings[0][0]} of this connection and would be hidden: choose another name with as_, or "
        "pass replace=True"
    )


def put(con: duckdb.DuckDBPyConnection, name: str, relation: FarDataset | Dataset) -> None:
    """Registers a relation in `con` under a name, and records it."""
    try:
        con.register(name, relation)
    except duckdb.CatalogException as error:
        # DuckDB cannot hide a temporary table.
        raise farpool.ExistsError(f"{name!r} cannot be hidden ({error}): choose another name with as_") from error
    view = con.sql(_VIEW, params=[name]).fetchall()[0][0]
    _of_connection.setdefault(con, {})[name.lower()] = _Registered(relation, view)


def unregister(con: duckdb.DuckDBPyConnection, name: str) -> None:
    """Removes a far table from `con`. Raises InvalidError if `con` has no far table of this name."""
    if registered(con, name) is None:
        raise farpool.InvalidError(f"{name!r} is not a far table of this connection; its far tables: {_names(con)}")
    con.unregister(name)
    del _of_connection[con][name.lower()]


def registered(con: duckdb.DuckDBPyConnection, name: str) -> FarDataset | None:
    """Returns the far table that a name refers to in a connection. `None` if there is none."""
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
        raise farpool.InvalidError(f"far relations need pyarrow, which is not installed: {missing}") from missing
    return FarDataset
