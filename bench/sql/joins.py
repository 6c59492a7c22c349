"""A join whose build side does not fit into memory: DataFusion's hash join, its sort-merge join and FarHashJoinExec.

    python bench/sql/joins.py --sql target/release/farpool-sql --pool shm=farpool://127.0.0.1:7700

Both sides are local Parquet, made in --data once. Keys are 1..N in random order, from which the probe side draws
evenly. Each row has a payload. The files are neither compressed nor dictionary-encoded. The memory pool is a quarter of
the build side's bytes. Each of these ways runs in turn in its own session, once to warm up and then `--rounds` times:

    enough      DataFusion's hash join with enough memory
    hash join   the same in the small pool: fails
    merge       DataFusion's sort-merge join, spilling to the local disk
    disk        FarHashJoinExec, its partitions in files on the local disk
    NAME        FarHashJoinExec, its partitions in the pool of that name; --pool may be given several times

Every answer is compared with NumPy's. `--tpch DIR` also runs the joins of TPC-H (DIR as made by
engines/tests/reference.py), in a memory pool of --tpch-memory. Over a shaped link: `MEASURE=joins bench/netns.sh
target/release/farpool --sql ..`. Needs numpy and pyarrow.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

QUERY = "SELECT count(*), sum(r.v + s.v) FROM r JOIN s ON r.k = s.k"
UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
HASH, MERGE = "hash join", "merge"
# Each sort reserves 10 MiB for its merge by default. The join would fail with that in such a small pool.
MERGE_SETTINGS = [
    "SET datafusion.optimizer.prefer_hash_join = false",
    "SET datafusion.execution.sort_spill_reservation_bytes = 1048576",
]
# Queries of TPC-H that join a table that does not fit into the pool.
TPCH = (3, 4, 5, 7, 8, 9, 10, 12, 13, 14, 18, 21)


def rows(text: str) -> int:
    unit = UNITS.get(text[-2:])
    return int(text[:-2]) * unit if unit else int(text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sql", required=True, help="the program farpool-sql")
    parser.add_argument("--pool", action="append", required=True, metavar="NAME=farpool://HOST:PORT")
    parser.add_argument(
        "--plaintext", action="store_true", help="connect to the pool without TLS, even on another machine"
    )
    parser.add_argument("--build", type=rows, default=16 << 20, help="rows of the build side; default 16Mi")
    parser.add_argument("--probe", type=rows, default=64 << 20, help="rows of the probe side; default 64Mi")
    parser.add_argument("--memory", help="size of DataFusion's small memory pool; default a quarter of the build side")
    parser.add_argument("--data", default=None, help="where the Parquet files are kept; default a temporary folder")
    parser.add_argument("--tpch", help="folder made by reference.py; adds joins of TPC-H")
    parser.add_argument("--tpch-memory", default="32MiB")
    parser.add_argument(
        "--protection", default="none", help="protection of temporary files in far memory; default none"
    )
    parser.add_argument("--only", type=lambda text: text.split(","), help="run only these ways")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="also write the results to this file, as JSON")
    return parser.parse_args()


def make(folder: Path, build: int, probe: int) -> tuple[list[str], str]:
    """Writes both sides as Parquet, and returns the row that every way must return."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = folder / f"{build}-{probe}.txt"
    paths = {name: folder / f"{name}-{build}-{probe}.parquet" for name in ("r", "s")}
    if not wanted.exists():
        print(f"making {build} and {probe} rows in {folder}", file=sys.stderr)
        random = np.random.default_rng(7)
        keys = random.permutation(build).astype(np.int64) + 1
        values = np.arange(build, dtype=np.int64)
        by_key = np.empty(build + 1, dtype=np.int64)
        by_key[keys] = values
        pq.write_table(pa.table({"k": keys, "v": values}), paths["r"], compression="NONE", use_dictionary=False)
        total = 0
        schema = pa.schema({"k": pa.int64(), "v": pa.int64()})
        with pq.ParquetWriter(paths["s"], schema, compression="NONE", use_dictionary=False) as writer:
            for start in range(0, probe, 1 << 20):
                count = min(1 << 20, probe - start)
                drawn = random.integers(1, build + 1, count)
                numbers = np.arange(start, start + count, dtype=np.int64)
                total += int(by_key[drawn].sum() + numbers.sum())
                writer.write_table(pa.table({"k": drawn, "v": numbers}))
        wanted.write_text(f"{probe},{total}")
    return [f"--parquet={name}={path}" for name, path in paths.items()], wanted.read_text()


def session(args: argparse.Namespace, way: str, memory: str) -> tuple[list[str], list[str]]:
    """Returns the flags and settings of a way."""
    pools = dict(pool.split("=", 1) for pool in args.pool)
    flags = [args.sql, *(["--plaintext"] if args.plaintext else []), "--quiet"]
    flags += ["--pool", pools.get(way, next(iter(pools.values())))]
    if way != "enough":
        flags += ["--memory", memory, "--spill", "far" if way in pools else "disk"]
        flags += ["--protection", args.protection] if way in pools else []
    settings = {HASH: ["SET farpool.spill_joins = false"], MERGE: MERGE_SETTINGS}
    return flags, settings.get(way, [])


def run(args: argparse.Namespace, way: str, memory: str, tables: list[str], query: str) -> tuple[dict, list[str]] | str:
    """Returns the output and rows of one run, or the reason why it failed."""
    flags, settings = session(args, way, memory)
    with tempfile.TemporaryDirectory() as folder:
        out, script = Path(folder, "rows.csv"), Path(folder, "script.sql")
        script.write_text(";\n".join([*settings, query]))
        flags = [*flags, *tables, "--explain", "--json", "--format", "csv", "--output", str(out), "--file", str(script)]
        done = subprocess.run(flags, capture_output=True, text=True)
        if done.returncode:
            return done.stderr.strip().splitlines()[-1]
        told = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")][-1]
        return told, sorted(out.read_text().splitlines()[-told["rows"] :])


def measure(
    args: argparse.Namespace, ways: list[str], memory: str, tables: list[str], query: str, wanted: list[str] | None
) -> dict:
    seen: dict[str, dict] = {way: {"all": []} for way in ways}
    for turn in range(args.rounds + 1):
        for shift in range(len(ways)):
            way = ways[(turn + shift) % len(ways)]
            if "failed" in seen[way]:
                continue
            done = run(args, way, memory, tables, query)
            if isinstance(done, str):
                # The division of a small pool among operators differs from run to run. A query may fail once and pass
                # the next time.
                seen[way]["failures"] = seen[way].get("failures", 0) + 1
                seen[way]["why"] = done
                if turn and seen[way]["failures"] > turn:
                    seen[way]["failed"] = done
                continue
            told, left = done
            wanted = left if wanted is None else wanted
            if left != wanted and not alike(left, wanted):
                sys.exit(f"{way} returns {left[:3]}, not {wanted[:3]}")
            if turn:
                seen[way]["all"].append(told["seconds"])
            seen[way] |= {"spills": told["spills"], "files": told["temporary_files"]}
            print(f"{way}: {told['seconds']:.2f} s", file=sys.stderr)
    for one in seen.values():
        if one["all"]:
            one["seconds"] = statistics.median(one["all"])
    return seen


def alike(left: list[str], wanted: list[str]) -> bool:
    """Reports whether two values are equal, apart from the last digits of floats."""

    def same(one: str, other: str) -> bool:
        try:
            return abs(float(one) - float(other)) <= 1e-9 * abs(float(other))
        except ValueError:
            return one == other

    pairs = [(one.split(","), other.split(",")) for one, other in zip(left, wanted, strict=False)]
    return len(left) == len(wanted) and all(len(a) == len(b) and all(map(same, a, b)) for a, b in pairs)


def main() -> None:
    args = arguments()
    names = [pool.split("=", 1)[0] for pool in args.pool]
    ways = [way for way in ["enough", HASH, MERGE, "disk", *names] if not args.only or way in args.only]
    told: dict = {"protection": args.protection, "build_rows": args.build, "probe_rows": args.probe, "queries": {}}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.data or temporary)
        folder.mkdir(exist_ok=True)
        tables, wanted = make(folder, args.build, args.probe)
        memory = args.memory or f"{args.build * 16 // 4}B"
        name = f"{args.build:,} x {args.probe:,}"
        told["queries"][name] = measure(args, ways, memory, tables, QUERY, [wanted])
    if args.tpch:
        base = Path(args.tpch) / "tpch"
        tables = [f"--parquet={path.stem}={path}" for path in sorted(base.glob("data/*.parquet"))]
        for number in TPCH:
            query = (base / f"queries/q{number:02}.sql").read_text().strip().rstrip(";")
            told["queries"][f"TPC-H {number}"] = measure(args, ways, args.tpch_memory, tables, query, None)
    if args.json:
        Path(args.json).write_text(json.dumps(told, indent=1) + "\n")
    show(ways, names, told)


def show(ways: list[str], names: list[str], told: dict) -> None:
    ratios = [f"merge/{name}" for name in names if MERGE in ways and name in ways]
    ratios += [f"{name}/enough" for name in names if "enough" in ways and name in ways]
    lines = [["query", *ways, *ratios, "MiB spilled"]]
    for query, seen in told["queries"].items():
        cells = [f"{seen[way]['seconds']:.2f}" if "seconds" in seen[way] else "fails" for way in ways]
        for ratio in ratios:
            above, below = (seen[way].get("seconds") for way in ratio.split("/"))
            cells.append(f"{above / below:.2f}" if above and below else "-")
        spills = [one for name in names if name in seen for one in [seen[name].get("files", {}).get("far_bytes", 0)]]
        lines.append([query, *cells, f"{max(spills, default=0) / 2**20:.0f}"])
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    for line in lines:
        cells = enumerate(zip(line, widths, strict=True))
        print("  ".join(cell.rjust(width) if at else cell.ljust(width) for at, (cell, width) in cells))
    for query, seen in told["queries"].items():
        for way in ways:
            if "failures" in seen[way]:
                print(f"{query}: {way} failed {seen[way]['failures']} times: {seen[way]['why'][:200]}")


if __name__ == "__main__":
    main()
