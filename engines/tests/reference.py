"""Makes the folder that the SQL tests read: tables, queries, and the answers of DuckDB to them.

    python reference.py FOLDER                        the tables of suite/, TPC-H at scale 0.05, 200,000 hits
    python reference.py FOLDER --scale 1 --hits 5000000
    python reference.py FOLDER --datafusion           also asks DataFusion; needs `pip install datafusion==55.0.0`

    FOLDER/suite/NAME.arrow          the tables of suite/tables.py; their answers are in suite/*.slt
    FOLDER/{tpch,hits}/data/NAME.parquet
    FOLDER/{tpch,hits}/queries/qNN.sql
    FOLDER/{tpch,hits}/answers/qNN.parquet
    FOLDER/refreshes/{new_orders,new_lineitem,old_keys}.parquet           what TPC-H's refresh functions add and delete
    FOLDER/refreshes/{inserted,deleted}/{queries,answers}/                TPC-H after the first function, and after both

The idea: far tables are put from the same Parquet files that DuckDB reads for its answers, so the rows cannot differ
for any other reason. A part that exists already, from the same sources, sizes and versions, is kept. A part that was
interrupted is made again. Answers keep the order of their query, which is total.

TPC-H is made by tpchgen-cli, as for `farpool demo`. hits/table.sql describes the hits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from suite import tables

HERE = Path(__file__).parent
TPCH_TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
# Relative difference that two sums of floats in different orders may have.
TOLERANCE = 1e-9
MADE = "made.json"


def write_tpch(folder: Path, scale: float) -> None:
    folder.mkdir(parents=True)
    for table in TPCH_TABLES:
        command = [_generator(), "parquet", "--scale-factor", f"{scale:g}", "--tables", table]
        command += ["--output-dir", str(folder), "--no-progress", "--quiet"]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"tpchgen-cli failed for table {table} at scale {scale:g}: {done.stderr.strip()}")


def _generator() -> str:
    beside_python = Path(sysconfig.get_path("scripts"), "tpchgen-cli")
    found = str(beside_python) if beside_python.exists() else shutil.which("tpchgen-cli")
    if not found:
        raise RuntimeError("tpchgen-cli not found: pip install tpchgen-cli")
    return found


def write_hits(folder: Path, rows: int) -> None:
    folder.mkdir(parents=True)
    with duckdb.connect() as con:
        con.execute((HERE / "hits" / "table.sql").read_text().replace("{rows}", str(rows)))
        con.execute(f"COPY hits TO '{folder}/hits.parquet' (FORMAT parquet, COMPRESSION zstd)")


def queries(kind: str, scale: float) -> dict[str, str]:
    # Formatted as a decimal: Python would write such a small float with an exponent.
    fraction = f"{Decimal('0.0001') / Decimal(str(scale)):f}"
    paths = sorted((HERE / kind).glob("q*.sql"))
    return {path.stem: path.read_text().replace("{fraction}", fraction) for path in paths}


def write_answers(con: duckdb.DuckDBPyConnection, folder: Path, statements: dict[str, str]) -> None:
    for name in ("queries", "answers"):
        (folder / name).mkdir(parents=True)
    for name, sql in statements.items():
        (folder / "queries" / f"{name}.sql").write_text(sql)
        pq.write_table(con.sql(sql).to_arrow_table(), folder / "answers" / f"{name}.parquet")


def over_data(folder: Path) -> duckdb.DuckDBPyConnection:
    """Connects to a database that has the Parquet files of a folder as views."""
    con = duckdb.connect()
    con.execute("SET TimeZone = 'UTC'")
    for path in sorted(folder.glob("*.parquet")):
        con.execute(f"CREATE VIEW {path.stem} AS FROM read_parquet('{path}')")
    return con


def write_refreshes(folder: Path, data: Path, statements: dict[str, str]) -> None:
    """Does what the refresh functions of TPC-H do, with one order of two hundred, and writes the answers after each."""
    folder.mkdir(parents=True)
    with over_data(data) as con:
        for table in ("orders", "lineitem"):
            con.execute(
                f"CREATE TABLE now_{table} AS FROM {table}; DROP VIEW {table}; "
                f"ALTER TABLE now_{table} RENAME TO {table}"
            )
        con.execute(
            "CREATE TABLE places AS SELECT o_orderkey, row_number() OVER (ORDER BY o_orderkey) AS place FROM orders"
        )
        # TPC-H uses the first 8 of 32 keys, so the keys of new orders are free.
        chosen = "IN (SELECT o_orderkey FROM places WHERE place % 200 = 0)"
        rows = {
            "new_orders": f"SELECT * REPLACE (o_orderkey + 8 AS o_orderkey) FROM orders WHERE o_orderkey {chosen}",
            "new_lineitem": f"SELECT * REPLACE (l_orderkey + 8 AS l_orderkey) FROM lineitem WHERE l_orderkey {chosen}",
            "old_keys": "SELECT o_orderkey FROM places WHERE place % 200 = 100",
        }
        for name, sql in rows.items():
            con.execute(f"CREATE TABLE {name} AS {sql} ORDER BY ALL")
            pq.write_table(con.sql(f"FROM {name}").to_arrow_table(), folder / f"{name}.parquet")
        con.execute("INSERT INTO orders FROM new_orders; INSERT INTO lineitem FROM new_lineitem")
        (distinct,) = con.sql("SELECT count(*) = count(DISTINCT o_orderkey) FROM orders").fetchall()[0]
        if not distinct:
            raise RuntimeError(f"{data}: keys of new orders are taken: TPC-H uses more than the first 8 of 32")
        write_answers(con, folder / "inserted", statements)
        con.execute("DELETE FROM orders WHERE o_orderkey IN (FROM old_keys)")
        con.execute("DELETE FROM lineitem WHERE l_orderkey IN (FROM old_keys)")
        write_answers(con, folder / "deleted", statements)


def make(folder: Path, what: dict[str, object], write: Callable[[Path], None]) -> bool:
    """Fills the folder with `write`, unless it was filled for the same `what`. Reports whether it did."""
    made = json.dumps(what, sort_keys=True)
    if (folder / MADE).exists() and (folder / MADE).read_text() == made:
        return False
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="making-", dir=folder.parent) as directory:
        new = Path(directory, folder.name)
        write(new)
        (new / MADE).write_text(made)
        if folder.exists():
            shutil.rmtree(folder)
        new.rename(folder)
    return True


def digest(*paths: Path) -> str:
    sources = hashlib.sha256()
    for path in paths:
        sources.update(path.read_bytes())
    return sources.hexdigest()


def is_alike(one: object, other: object) -> bool:
    """Reports whether two values are equal. Floats may differ by `TOLERANCE`. A decimal beside a float may differ in
    its last digit."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=TOLERANCE)
    for exact, rounded in ((one, other), (other, one)):
        if isinstance(exact, Decimal) and isinstance(rounded, float):
            unit = float(Decimal((0, (1,), int(exact.as_tuple().exponent))))
            return abs(float(exact) - rounded) <= max(unit, TOLERANCE * abs(rounded))
    if isinstance(one, int | Decimal) and isinstance(other, int | Decimal):
        return one == other
    if isinstance(one, date) and isinstance(other, date):
        return isinstance(one, datetime) == isinstance(other, datetime) and one == other
    return type(one) is type(other) and one == other


def difference(found: pa.Table, wanted: pa.Table) -> str | None:
    if found.shape != wanted.shape:
        return f"{found.shape} rows and columns, not {wanted.shape}"
    for column in range(wanted.num_columns):
        values = zip(found.column(column).to_pylist(), wanted.column(column).to_pylist(), strict=True)
        for row, (one, other) in enumerate(values):
            if not is_alike(one, other):
                return f"row {row}, column {wanted.column_names[column]}: {one!r}, not {other!r}"
    return None


def ask_datafusion(folder: Path) -> int:
    """Returns the number of answers that differ from stock DataFusion's. Prints the names of these queries."""
    from datafusion import SessionContext

    context = SessionContext()
    for path in sorted((folder / "data").glob("*.parquet")):
        context.register_parquet(path.stem, str(path))
    faults = 0
    for path in sorted((folder / "queries").glob("*.sql")):
        wanted = pq.read_table(folder / "answers" / f"{path.stem}.parquet")
        try:
            why = difference(context.sql(path.read_text()).to_arrow_table(), wanted)
        except Exception as error:  # Any exception is its answer.
            why = str(error)
        if why:
            faults += 1
            print(f"{folder.name} {path.stem}: {why}", file=sys.stderr)
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scale", type=float, default=0.05, help="scale factor of TPC-H, 0.001 to 100 [default: 0.05]")
    parser.add_argument("--hits", type=int, default=200_000, help="rows of hits, 1 to 1,000,000,000 [default: 200000]")
    parser.add_argument("--datafusion", action="store_true", help="compare DataFusion's answers")
    arguments = parser.parse_args()
    if not 0.001 <= arguments.scale <= 100:
        parser.error(f"scale {arguments.scale:g}: 0.001 to 100 are permitted")
    if not 1 <= arguments.hits <= 1_000_000_000:
        parser.error(f"{arguments.hits} hits: 1 to 1000000000 are permitted")

    folder: Path = arguments.folder
    versions = {"duckdb": duckdb.__version__, "pyarrow": pa.__version__, "program": digest(Path(__file__))}
    tables_path = HERE / "suite" / "tables.py"
    make(folder / "suite", {**versions, "tables": digest(tables_path)}, tables.write)

    def write(kind: str, write_data: Callable[[Path], None]) -> Callable[[Path], None]:
        def into(new: Path) -> None:
            write_data(new / "data")
            with over_data(new / "data") as con:
                write_answers(con, new, queries(kind, arguments.scale))

        return into

    sizes: dict[str, tuple[float, Callable[[Path], None]]] = {
        "tpch": (arguments.scale, lambda into: write_tpch(into, arguments.scale)),
        "hits": (arguments.hits, lambda into: write_hits(into, arguments.hits)),
    }
    faults = 0
    for kind, (size, write_data) in sizes.items():
        what = {**versions, "size": size, "sources": digest(*sorted((HERE / kind).glob("*.sql")))}
        was_made = make(folder / kind, what, write(kind, write_data))
        print(f"{folder / kind}: {'made' if was_made else 'found'}, size {size}")
        if arguments.datafusion:
            faults += ask_datafusion(folder / kind)
    tpch = {**versions, "size": arguments.scale, "sources": digest(*sorted((HERE / "tpch").glob("*.sql")))}
    make(
        folder / "refreshes",
        tpch,
        lambda into: write_refreshes(into, folder / "tpch" / "data", queries("tpch", arguments.scale)),
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
