#!/usr/bin/env python3
"""Puts and appends real bytes of a table that is larger than the old limits of 16 GiB and 16,384 row groups.

    make large-table                                    # 17 GiB, on a machine with 21 GiB of free memory
    make large-table LARGE="--size 2GiB --transport shm"

Rows have two integers: their number, and one that is computed from it. One half is put, the other is appended in some
parts, without protection. Then the table is read again, a range of rows at a time: by fetching, where every row is
compared, and beside the data, where sums are. At last the number of all rows, the sum, the least and the greatest value
are computed in each placement.

The times of puts and appends contain that of making the rows, which is shown as well.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from changes import append, number_of, opened, part_files, put
from measuring import Memory, check, lines_of, machine, mib, write_json

import farpool
from farpool import col
from farpool._farpool import _size_bytes, _size_text
from farpool.demo.cluster import Cluster

NAME = "large"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.int64(), nullable=False)])
ROW_BYTES = 16
BATCH_ROWS = 1 << 20
GIB = 1 << 30
# An odd number, so that no two rows have the same product. Values have 40 bits, so that those of a batch can be added.
MULTIPLIER, SHIFT = 0x9E37_79B9_7F4A_7C15, 24
OLD_BYTES_MAX, OLD_GROUPS_MAX = 16 * GIB, 16_384
PLACEMENTS = ("ship", "fetch", "split", "auto")
REGION = "16MiB"
# Part of the table's size that the node has beside it, for regions that are not full. The machine needs some more.
SPARE_PART, SPARE_BYTES_MIN, MACHINE_BYTES = 17, 256 << 20, 2 * GIB
# Seconds in which a node prepares a GiB of its memory.
SETTLE_SECONDS = 1.0


@dataclass
class Sums:
    """Sums over values of rows."""

    rows: int = 0
    total: int = 0
    least: int = 1 << 63
    most: int = 0

    def add(self, values: np.ndarray) -> None:
        self.rows += len(values)
        self.total += int(values.sum(dtype=np.uint64))
        self.least, self.most = min(self.least, int(values.min())), max(self.most, int(values.max()))


class Rows:
    """Maker of rows. Knows the sums over those that it has made, and the seconds that this took."""

    def __init__(self) -> None:
        self.sums, self.seconds = Sums(), 0.0

    def reader(self, first: int, last: int) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(SCHEMA, self._batches(first, last))

    def _batches(self, first: int, last: int) -> Iterator[pa.RecordBatch]:
        for at in range(first, last, BATCH_ROWS):
            begun = time.perf_counter()
            ids, values = columns_of(at, min(at + BATCH_ROWS, last))
            self.sums.add(values)
            batch = pa.record_batch([pa.array(ids), pa.array(values)], schema=SCHEMA)
            self.seconds += time.perf_counter() - begun
            yield batch


def columns_of(first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of rows and their values."""
    ids = np.arange(first, last, dtype=np.uint64)
    return ids.astype(np.int64), ((ids * np.uint64(MULTIPLIER)) >> np.uint64(SHIFT)).astype(np.int64)


def one_row(scan: farpool.Scan, placement: str) -> tuple[dict, dict]:
    """Returns the sums over the rows of a scan, and what was reported of it."""
    value = col("value")
    sums = scan.select(rows=farpool.len(), total=value.sum(), least=value.min(), most=value.max())
    found = sums.collect(placement=placement)
    (row,) = found.to_arrow().to_pylist()
    return {name: int(number) for name, number in row.items()}, found.report


class Measured:
    """Operations, with their seconds and bytes."""

    def __init__(self) -> None:
        self.done: list[dict] = []

    def add(self, what: str, seconds: float, rows: int) -> None:
        self.done.append({"what": what, "seconds": seconds, "rows": rows, "gb_per_s": rows * ROW_BYTES / seconds / 1e9})

    def lines(self) -> list[str]:
        rows = [[one["what"], f"{one['seconds']:.3f}", f"{one['gb_per_s']:.2f}"] for one in self.done]
        return lines_of(["", "seconds", "GB/s"], rows)


def write(pool: farpool.Pool, rows: int, appends: int, measured: Measured) -> Rows:
    """Puts half of the rows and appends the others. Returns their maker."""
    made = Rows()
    bounds = [0, *(rows // 2 + (rows - rows // 2) * at // appends for at in range(appends + 1))]
    for at, (first, last) in enumerate(zip(bounds, bounds[1:], strict=False)):
        begun, made_before = time.perf_counter(), made.seconds
        (append if at else put)(pool, NAME, made.reader(first, last), protection="none")
        seconds = time.perf_counter() - begun
        measured.add(f"append {at} of {appends}" if at else "put", seconds, last - first)
        measured.add("    making its rows", made.seconds - made_before, last - first)
    return made


def read_ranges(pool: farpool.Pool, rows: int, ranges: int, measured: Measured) -> None:
    """Reads all rows in ranges, and compares them."""
    fetching = shipping = 0.0
    bounds = [rows * at // ranges for at in range(ranges + 1)]
    for first, last in zip(bounds, bounds[1:], strict=False):
        scan = pool.scan(NAME).filter(col("id").between(first, last - 1))
        wanted, at, checking = Sums(), first, 0.0
        begun = time.perf_counter()
        for batch in pa.RecordBatchReader.from_stream(scan.stream(placement="fetch")):
            found = time.perf_counter()
            columns = columns_of(at, at + batch.num_rows)
            for name, numbers in zip(SCHEMA.names, columns, strict=True):
                is_same = np.array_equal(batch.column(name).to_numpy(), numbers)
                check(f"{name} of rows {at} to {at + batch.num_rows}", is_same, True)
            wanted.add(columns[1])
            at += batch.num_rows
            checking += time.perf_counter() - found
        fetching += time.perf_counter() - begun - checking
        check(f"last row of the range from {first}", at, last)
        begun = time.perf_counter()
        found_sums, _ = one_row(scan, "ship")
        shipping += time.perf_counter() - begun
        check(f"sums of rows {first} to {last}", found_sums, vars(wanted))
    measured.add(f"{ranges} ranges, every row fetched", fetching, rows)
    measured.add(f"{ranges} ranges, sums beside the data", shipping, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="17GiB", help="bytes of the table; default 17GiB")
    parser.add_argument("--appends", type=int, default=4, help="parts of the second half; default 4")
    parser.add_argument("--ranges", type=int, help="ranges that are read; default one for each GiB")
    parser.add_argument("--transport", choices=["tcp", "shm"], default="tcp", help="default tcp")
    parser.add_argument("--json", help="also write the results to this file")
    args = parser.parse_args()
    size = _size_bytes("--size", args.size)
    rows = size // ROW_BYTES
    ranges = args.ranges or max(1, size // GIB)
    if not 1 <= args.appends <= 1000 or not 1 <= ranges <= 10_000 or rows < 2 * args.appends or rows < ranges:
        parser.error("1 to 1000 --appends and 1 to 10000 --ranges are permitted, and a row for each at least")
    memory = size + max(size // SPARE_PART, SPARE_BYTES_MIN)
    available = 1024 * int(next(line for line in Path("/proc/meminfo").open() if "MemAvailable" in line).split()[1])
    if memory + MACHINE_BYTES > available:
        need = f"{_size_text(memory + MACHINE_BYTES)} of free memory, and this machine has {_size_text(available)}"
        parser.error(f"--size {args.size} takes {need}")
    measured = Measured()
    # The node keeps its memory, however little the machine has left.
    arguments = ("--no-reserve", "--no-lock", "--region-size", REGION)
    with Cluster(os.environ["FARPOOL_BIN"], memory, 1, node_arguments=arguments) as cluster:
        processes = {"broker": cluster.process_id("broker"), "node": cluster.process_id("node-1")}
        with Memory(**processes) as peaks, farpool.connect(cluster.url, transport=args.transport) as pool:
            time.sleep(memory / GIB * SETTLE_SECONDS)
            made = write(pool, rows, args.appends, measured)
            files, file_bytes = part_files(pool)
            with farpool.connect(cluster.url, transport=args.transport) as session:
                begun = time.perf_counter()
                table = opened(session, NAME)
                measured.add("opening in a new session", time.perf_counter() - begun, 0)
                check("rows of the table", table.num_rows, rows)
                check("each append has a snapshot", number_of(table) >= args.appends, True)
                bytes_of_table = table.nbytes
            read_ranges(pool, rows, ranges, measured)
            groups = 0
            for placement in PLACEMENTS:
                begun = time.perf_counter()
                found, report = one_row(pool.scan(NAME), placement)
                measured.add(f"count, sum, min, max: {placement}", time.perf_counter() - begun, rows)
                check(f"sums of all rows, {placement}", found, vars(made.sums))
                groups = report["row_groups"]
            leased = pool.status()["leased_bytes"]
    print("\n".join(measured.lines()) + "\n")
    facts = {
        "bytes of rows": size,
        "bytes of the table": bytes_of_table,
        "bytes of its files": file_bytes,
        "bytes leased": leased,
        "rows": rows,
        "row groups": groups,
        "files": files,
    }
    for what, number in facts.items():
        print(f"{what:20} {number:>20,}" + (f"  {mib(number)} MiB" if "bytes" in what else ""))
    for what, is_past in (("16 GiB", size > OLD_BYTES_MAX), ("16,384 row groups", groups > OLD_GROUPS_MAX)):
        print(f"past {what:15} {'yes' if is_past else 'no':>20}")
    over = {"tcp": "loopback", "shm": "shared memory"}[args.transport]
    print("\n" + "\n".join(peaks.lines()))
    print(f"\nOne node of {_size_text(memory)} over {over}. Every row was compared. {machine()}")
    told = {"machine": machine(), "transport": args.transport, "node bytes": memory, **facts}
    write_json(args.json, told | {"operations": measured.done, "memory": peaks.peaks})


if __name__ == "__main__":
    main()
