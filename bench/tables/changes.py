"""Changes and readers of far tables, as the programs that measure them call them: one function for each call."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

import farpool

# Beginning of the hidden names of the files of tables: files with rows, and pages of manifests.
PARTS = ".parts/"


def put(pool: farpool.Pool, name: str, data, **options) -> None:
    pool.put_table(name, data, **options)


def append(pool: farpool.Pool, name: str, data, **options) -> int:
    """Returns the number of the snapshot that has the rows."""
    return pool.append(name, data, **options)


def put_in_parts(pool: farpool.Pool, name: str, parts: Iterable[pa.Table], **options) -> None:
    """Puts the first part and appends the others."""
    first, *others = parts
    put(pool, name, first, **options)
    for part in others:
        append(pool, name, part, **options)


def opened(pool: farpool.Pool, name: str, snapshot: int | None = None) -> farpool.Table:
    return pool.table(name, snapshot=snapshot)


def number_of(table: farpool.Table) -> int:
    """Returns the number of the snapshot that was opened, 0 if the table was not changed since it was put."""
    return table.snapshot or 0


def kept_snapshots(pool: farpool.Pool, name: str) -> list[int]:
    """Returns the numbers of the snapshots that can be read, the latest first."""
    return [entry.snapshot for entry in pool.history(name) if entry.kept]


def part_files(pool: farpool.Pool) -> tuple[int, int]:
    """Returns the number of the files of all tables that were changed, and their bytes. Roots do not count."""
    sizes = [file.size for file in pool.list(PARTS)]
    return len(sizes), sum(sizes)


def drop(pool: farpool.Pool, name: str) -> None:
    pool.drop_table(name)
