"""SQL over far tables, with each placement and the planner's choice, in turns within one session.

    python bench/sql/run.py tpch --sql target/release/farpool-sql --pool farpool://127.0.0.1:7700 --data DIR
    python bench/sql/run.py cases ...       kinds of queries that similar systems push down, beside DataFusion over
                                            local Parquet

DIR was made by `engines/tests/reference.py DIR --scale 1`. Tables are put first, unless --no-put. All placements of a
query must return the same rows. `--floor FILE` is the --json output of a run without a link (shared memory). No
placement can be faster than that, so the time of fetching divided by it is an upper bound of the gain (Amdahl's law).

Over a shaped link: `MEASURE=sql bench/netns.sh target/release/farpool tpch --sql .. --data ..`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PLACEMENTS = ("fetch", "ship", "split", "auto")
LOCAL = "local"

# Queries by name. The first is the case that LiquidCache is known for: an aggregate without groups under a selective
# filter.
CASES = {
    "sum under a filter of 2 %": "SELECT sum(l_extendedprice * l_discount), count(*) FROM lineitem "
    "WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01' "
    "AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24",
    "count under a pattern": "SELECT count(*) FROM lineitem WHERE l_comment LIKE '%special%'",
    "4 groups of all rows": "SELECT l_returnflag, l_linestatus, sum(l_quantity), avg(l_extendedprice), count(*) "
    "FROM lineitem GROUP BY l_returnflag, l_linestatus",
    "10,000 groups": "SELECT l_suppkey, sum(l_quantity), count(*) FROM lineitem GROUP BY l_suppkey",
    "200,000 groups": "SELECT l_partkey, sum(l_quantity), count(*) FROM lineitem GROUP BY l_partkey",
    "1.5 million groups": "SELECT l_orderkey, sum(l_quantity), count(*) FROM lineitem GROUP BY l_orderkey",
    "distinct, 4 values": "SELECT DISTINCT l_shipmode, l_shipinstruct FROM lineitem",
    "distinct, 200,000 values": "SELECT count(*) FROM (SELECT DISTINCT l_partkey FROM lineitem)",
    "top 100": "SELECT l_orderkey, l_linenumber, l_extendedprice FROM lineitem "
    "ORDER BY l_extendedprice DESC, l_orderkey, l_linenumber LIMIT 100",
    "join, build side of 1,400 rows": "SELECT sum(l_extendedprice), count(*) FROM lineitem, part "
    "WHERE p_partkey = l_partkey AND p_brand = 'Brand#23' AND p_container LIKE 'MED%'",
    "join, build side of 57,000 rows": "SELECT sum(l_extendedprice), count(*) FROM lineitem, orders "
    "WHERE o_orderkey = l_orderkey AND o_orderdate >= DATE '1993-10-01' AND o_orderdate < DATE '1994-01-01'",
    "rows, 1 %": "SELECT sum(l_orderkey % 97), sum(l_linenumber % 3), count(*) FROM lineitem WHERE l_partkey <= 2000",
    "rows, 25 %": "SELECT sum(l_orderkey % 97), sum(l_linenumber % 3), count(*) FROM lineitem WHERE l_partkey <= 50000",
    "all rows of 2 columns": "SELECT sum(a), sum(b) FROM "
    "(SELECT l_orderkey + 0 AS a, l_partkey % 7 AS b FROM lineitem)",
}


@dataclass
class Seen:
    """Results of one query with one placement."""

    seconds: list[float] = field(default_factory=list)
    link_bytes: int = 0
    ran: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def main() -> None:
    args = arguments()
    queries = dict(CASES) if args.what == "cases" else tpch(args)
    if not args.no_put:
        put(args)
    seen = {(name, placement): Seen() for name in queries for placement in args.placements}
    run(args, queries, args.placements, seen, [])
    if args.local:
        seen |= {(name, LOCAL): Seen() for name in queries}
        parquet = [f"--parquet={path.stem}={path}" for path in tables(args)]
        run(args, queries, [LOCAL], seen, parquet)
    floor = json.loads(Path(args.floor).read_text()) if args.floor else None
    told = summary(args, queries, seen, floor)
    if args.json:
        Path(args.json).write_text(json.dumps(told, indent=1) + "\n")
    show(args, told)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tpch", "cases"])
    parser.add_argument("--sql", required=True, help="the program farpool-sql")
    parser.add_argument("--pool", required=True)
    parser.add_argument(
        "--plaintext", action="store_true", help="connect to the pool without TLS, even on another machine"
    )
    parser.add_argument("--data", required=True, help="folder made by reference.py")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--queries", help="queries of TPC-H to run, such as 1,6,14; default all")
    parser.add_argument("--placements", type=lambda text: text.split(","), default=list(PLACEMENTS))
    parser.add_argument("--local", action="store_true", help="also run DataFusion over local Parquet")
    parser.add_argument("--no-put", action="store_true", help="do not put the tables; the pool has them already")
    parser.add_argument("--floor", help="file that --json wrote for the same run without a link")
    parser.add_argument("--json", help="also write the results to this file, as JSON")
    return parser.parse_args()


def tpch(args: argparse.Namespace) -> dict[str, str]:
    chosen = [int(number) for number in args.queries.split(",")] if args.queries else range(1, 23)
    folder = Path(args.data) / "tpch/queries"
    return {f"q{n:02}": (folder / f"q{n:02}.sql").read_text().strip().rstrip(";") for n in chosen}


def tables(args: argparse.Namespace) -> list[Path]:
    found = sorted((Path(args.data) / "tpch/data").glob("*.parquet"))
    if not found:
        sys.exit(f"no tables in {args.data}/tpch/data: engines/tests/reference.py makes them")
    return found


def command(args: argparse.Namespace) -> list[str]:
    return [args.sql, "--pool", args.pool, *(["--plaintext"] if args.plaintext else []), "--quiet"]


def put(args: argparse.Namespace) -> None:
    for path in tables(args):
        print(f"putting {path.stem}", file=sys.stderr)
        statement = f'CREATE OR REPLACE TABLE "{path.stem}" AS SELECT * FROM local'
        subprocess.run([*command(args), f"--parquet=local={path}", "-c", statement], check=True)


def run(
    args: argparse.Namespace,
    queries: dict[str, str],
    placements: list[str],
    seen: dict[tuple[str, str], Seen],
    flags: list[str],
) -> None:
    """Runs everything in one session: each query with each placement, in turns, and once before to warm up."""
    steps: list[tuple[str, str, bool]] = []
    for turn in range(args.rounds + 1):
        for name in queries:
            for shift in range(len(placements)):
                # The first run of a round has colder caches, so the placements take turns in being the first.
                steps.append((name, placements[(shift + turn) % len(placements)], turn > 0))
    asked = [(f"{name} {placement}", placement, queries[name]) for name, placement, _ in steps]
    first: dict[str, list[str]] = {}
    for (name, placement, counts), (one, rows) in zip(steps, answers([*command(args), *flags], asked), strict=True):
        check(name, placement, first.setdefault(name, rows), rows)
        if counts:
            note(seen[name, placement], one)


def answers(command: list[str], steps: list[tuple[str, str, str]]) -> Iterator[tuple[dict, list[str]]]:
    """Runs steps in one session. Each has a name, a placement and a query. Yields for each what farpool-sql tells of
    it, and its rows as lines of CSV behind their header. The first is yielded when all have run."""
    script = []
    for _, placement, query in steps:
        if placement != LOCAL:
            script.append(f"SET farpool.placement = '{placement}'")
        script.append(query)
    with tempfile.TemporaryDirectory() as folder:
        file, rows = Path(folder, "script.sql"), Path(folder, "rows.csv")
        file.write_text(";\n".join(script) + ";\n")
        flags = ["--explain", "--json", "--format", "csv", "--output", str(rows), "--file", str(file)]
        with subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, text=True) as process:
            told = []
            for line in process.stderr:
                if not line.startswith("{"):
                    sys.exit(f"farpool sql: {line.strip()}")
                one = json.loads(line)
                if one["columns"] > 0:
                    told.append(one)
                    print(f"\r{len(told)}/{len(steps)} {steps[len(told) - 1][0]}      ", end="", file=sys.stderr)
        print(file=sys.stderr)
        if len(told) != len(steps):
            sys.exit(f"farpool sql ended after {len(told)} of {len(steps)} queries")
        with rows.open() as lines:
            for one in told:
                yield one, [next(lines) for _ in range(one["rows"] + 1)]


def note(seen: Seen, one: dict) -> None:
    seen.seconds.append(one["seconds"])
    actual = [scan["actual"] for scan in one["scans"] if scan["actual"]]
    seen.link_bytes = sum(scan["link_bytes"] for scan in actual)
    shipped = sum(scan["row_groups_shipped"] for scan in actual)
    fetched = sum(scan["row_groups_fetched"] for scan in actual)
    seen.ran = f"{shipped}/{shipped + fetched}"


def check(name: str, placement: str, wanted: list[str], found: list[str]) -> None:
    """Checks that the rows are the same, apart from the last digits of floats and the order if none was requested."""

    def value(text: str) -> object:
        try:
            return float(text)
        except ValueError:
            return text

    def same(left: str, right: str) -> bool:
        a, b = value(left), value(right)
        if isinstance(a, float) and isinstance(b, float):
            return math.isclose(a, b, rel_tol=1e-9)
        return a == b

    if wanted == found or sorted(wanted) == sorted(found):
        return
    pairs = zip(sorted(wanted), sorted(found), strict=True) if len(wanted) == len(found) else []
    cells = [(one.strip().split(","), other.strip().split(",")) for one, other in pairs]
    if not cells or not all(len(one) == len(other) and all(map(same, one, other)) for one, other in cells):
        sys.exit(f"{name}: {placement} returns other rows")


def summary(args: argparse.Namespace, queries: dict[str, str], seen: dict, floor: dict | None) -> dict:
    told = {"what": args.what, "pool": args.pool, "rounds": args.rounds, "queries": {}}
    for name in queries:
        row = {
            placement: {"seconds": one.median, "all": one.seconds, "link_bytes": one.link_bytes, "shipped": one.ran}
            for (of, placement), one in seen.items()
            if of == name
        }
        told["queries"][name] = row
        if floor and "fetch" in row:
            least = min(one["seconds"] for placement, one in floor["queries"][name].items() if placement != LOCAL)
            row["bound"] = max(row["fetch"]["seconds"] / least, 1.0)
    return told


def show(args: argparse.Namespace, told: dict) -> None:
    columns = [*args.placements, *([LOCAL] if args.local else [])]
    header = ["query", *columns, "fetch/auto", "auto/best", "MiB fetched", "MiB auto", "shipped"]
    rows = []
    gains, bounds, best = [], [], []
    for name, row in told["queries"].items():
        cells = [name, *(f"{row[column]['seconds'] * 1e3:.1f}" for column in columns)]
        if "fetch" in row and "auto" in row:
            forced = min(row[placement]["seconds"] for placement in args.placements if placement != "auto")
            gains.append(row["fetch"]["seconds"] / row["auto"]["seconds"])
            best.append(row["auto"]["seconds"] / forced)
            cells += [f"{gains[-1]:.2f}", f"{best[-1]:.2f}"]
            cells += [f"{row[placement]['link_bytes'] / 2**20:.1f}" for placement in ("fetch", "auto")]
            cells.append(row["auto"]["shipped"])
            if "bound" in row:
                bounds.append(row["bound"])
                cells.append(f"{row['bound']:.2f}")
        rows.append(cells)
    if bounds:
        header.append("bound")
    widths = [max(len(row[at]) for row in [header, *rows] if at < len(row)) for at in range(len(header))]
    for row in [header, ["-" * width for width in widths], *rows]:
        cells = zip(row, widths, strict=False)
        aligned = [cell.rjust(width) if at else cell.ljust(width) for at, (cell, width) in enumerate(cells)]
        print("  ".join(aligned))
    mean = lambda values: math.exp(statistics.fmean(map(math.log, values)))  # noqa: E731
    if gains:
        print(f"milliseconds, medians of {args.rounds}; geometric mean of fetch/auto: {mean(gains):.2f}", end="")
        print(f", of its bound: {mean(bounds):.2f}" if bounds else "", end="")
        print(f"; least fetch/auto: {min(gains):.2f}; auto/best: {mean(best):.2f}, at most {max(best):.2f}")


if __name__ == "__main__":
    main()
