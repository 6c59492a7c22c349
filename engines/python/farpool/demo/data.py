"""TPC-H data as a DuckDB database, generated once per scale and kept in the user's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path

import duckdb

TABLES = ("lineitem", "orders", "partsupp", "customer", "part", "supplier", "nation", "region")


def default_data_dir() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "farpool"


def database_path(data_dir: Path, scale: float) -> Path:
    return data_dir / f"tpch-sf{scale:g}-duckdb-{duckdb.__version__}.duckdb"


def ensure_database(path: Path, scale: float, now: Callable[[str], None]) -> None:
    """Generates the database `path` if it is missing. An interrupted call leaves no file. Calls `now(text)` to report
    progress."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tpch-", dir=path.parent) as directory:
        database = Path(directory, "tpch.duckdb")
        for table in TABLES:
            now(f"generating {table}")
            _generate(table, scale, directory)
        with duckdb.connect(str(database)) as con:
            for table in TABLES:
                now(f"loading {table}")
                con.execute(f"CREATE TABLE {table} AS FROM read_parquet('{directory}/{table}.parquet')")
        database.rename(path)


def warm_page_cache(path: Path) -> None:
    """Reads the file once, so that the mode that runs first does not pay for the disk."""
    buffer = bytearray(16 << 20)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def _generate(table: str, scale: float, directory: str) -> None:
    command = [_generator(), "parquet", "--scale-factor", f"{scale:g}", "--tables", table]
    command += ["--output-dir", directory, "--no-progress", "--quiet"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"tpchgen-cli failed for table {table} at scale {scale:g}: {done.stderr.strip()}")


def _generator() -> str:
    beside_python = Path(sysconfig.get_path("scripts"), "tpchgen-cli")
    found = str(beside_python) if beside_python.exists() else shutil.which("tpchgen-cli")
    if not found:
        raise RuntimeError("tpchgen-cli not found: pip install 'farpool[demo]'")
    return found
