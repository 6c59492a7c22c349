"""Runs one query in DuckDB with little memory, and prints its time as a line of JSON.

    python duckdb_query.py '{"query": FILE, "tables": FOLDER, "rows": FILE, "memory": BYTES or null, "threads": 2,
                             "spill": "FOLDER" or "farpool://HOST:PORT" or "null", "protection": "none"}'

With "null", spilled bytes stay in the memory of this process, behind the same hook as far memory. No far memory can be
faster than that.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import duckdb

import farpool
import farpool.duckdb


class HeldFile:
    """Memory of this process with the methods of a far file that the hook uses."""

    protection = "none"

    def __init__(self, name: str):
        self.name = name
        self._bytes = bytearray()

    def __enter__(self) -> HeldFile:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def size(self) -> int:
        return len(self._bytes)

    def read_at(self, offset: int, size: int) -> bytes:
        return bytes(memoryview(self._bytes)[offset : offset + size])

    def read_into(self, offset: int, buffer: memoryview) -> int:
        found = memoryview(self._bytes)[offset : offset + memoryview(buffer).nbytes]
        memoryview(buffer).cast("B")[: found.nbytes] = found
        return found.nbytes

    def write_at(self, offset: int, data: bytes) -> int:
        count = memoryview(data).nbytes
        if offset > len(self._bytes):
            self._bytes.extend(bytes(offset - len(self._bytes)))
        self._bytes[offset : offset + count] = data
        return count

    def truncate(self, size: int) -> None:
        del self._bytes[size:]

    def close(self) -> None:
        pass


class Held:
    """Files in this process, with the methods of a pool that the hook uses."""

    local_folder = ""

    def create(self, name: str, **_: object) -> HeldFile:
        return HeldFile(name)

    def delete(self, name: str) -> None:
        pass

    def rename(self, old: str, new: str) -> None:
        pass

    def status(self) -> dict:
        return {"nodes": [{"host_label": "here", "donated_bytes": 64 << 30, "away_bytes": 0}]}


def written_bytes() -> int:
    """Returns the bytes that this process has passed to write calls."""
    return int(next(line for line in Path("/proc/self/io").read_text().splitlines() if "wchar" in line).split()[1])


def main(told: dict) -> None:
    con = duckdb.connect()
    con.execute(f"SET threads = {told['threads']}")
    for path in sorted(Path(told["tables"]).glob("*.parquet")):
        con.execute(f"CREATE VIEW {path.stem} AS SELECT * FROM '{path}'")
    spill, pool = told["spill"], None
    if told["memory"] is not None:
        con.execute(f"SET memory_limit = '{told['memory']}B'")
    if spill == "null":
        farpool.duckdb.attach(con, Held(), protection="none")
    elif spill.startswith("farpool://"):
        pool = farpool.connect(spill, plaintext=told["plaintext"])
        farpool.duckdb.attach(con, pool, protection=told["protection"])
    else:
        con.execute(f"SET temp_directory = '{spill}'")
    query = Path(told["query"]).read_text()
    before, begun = written_bytes(), time.perf_counter()
    rows = con.execute(query).fetchall()
    seconds = time.perf_counter() - begun
    written = written_bytes() - before
    Path(told["rows"]).write_text("".join(f"{','.join(map(str, row))}\n" for row in rows))
    print(json.dumps({"seconds": seconds, "written": written, "rows": len(rows)}), flush=True)
    con.close()
    if pool:
        pool.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
