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

# Roughly how the time of generating and of loading is shared out, for the progress bar.
TABLE_WEIGHTS = {
    "lineitem": 70,
    "orders": 16,
    "partsupp": 7,
    "customer": 3,
    "part": 2,
    "supplier": 1,
    "nation": 1,
    "region": 1,
}
STEPS = 2 * sum(TABLE_WEIGHTS.values())


def default_data_dir() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "farpool"


def database_path(data_dir: Path, scale: float) -> Path:
    return data_dir / f"tpch-sf{scale:g}-duckdb-{duckdb.__version__}.duckdb"


def ensure_database(path: Path, scale: float, advance: Callable[[str, int], None]) -> None:
    """Makes `path` exist. An interrupted call leaves nothing behind; `advance(what, steps)` reports progress."""
    if path.exists():
        advance("TPC-H data: found", STEPS)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tpch-", dir=path.parent) as directory:
        database = Path(directory, "tpch.duckdb")
        for table, weight in TABLE_WEIGHTS.items():
            advance(f"generating {table}", 0)
            _generate(table, scale, directory)
            advance(f"generating {table}", weight)
        with duckdb.connect(str(database)) as con:
            for table, weight in TABLE_WEIGHTS.items():
                advance(f"loading {table}", 0)
                con.execute(f"CREATE TABLE {table} AS FROM read_parquet('{directory}/{table}.parquet')")
                advance(f"loading {table}", weight)
        database.rename(path)


def warm_page_cache(path: Path) -> None:
    """Reads the file once, so that the mode which runs first does not pay for the disk."""
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
