"""`python -m farpool.demo`: arguments, the order of the runs, and the exit code.

Exit codes: 0 if all answers are equal and nothing is left behind, 1 if not, 2 for wrong arguments,
130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import duckdb
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import farpool
from farpool.demo.cluster import Cluster
from farpool.demo.data import STEPS, database_path, default_data_dir, ensure_database, warm_page_cache
from farpool.demo.queries import QUERIES
from farpool.demo.report import QueryResult, as_json, file_system_of, machine_line, print_report
from farpool.demo.run import MODES, Runner, Task

# Hash+Sort writes the most: about 1.3 GB at a time per scale factor, over two nodes.
NODE_MEMORY_BASE_BYTES = 512 << 20
NODE_MEMORY_PER_SCALE_BYTES = 1 << 30
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
REPORT_COLUMNS_MIN = 180  # a narrower terminal, or none, would break the cells of the table


def main() -> int:
    arguments = _parse()
    console = Console(stderr=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up like Ctrl-C
    work_dir = Path(tempfile.mkdtemp(prefix="farpool-demo-"))
    try:
        return _demonstrate(arguments, console, work_dir)
    except KeyboardInterrupt:
        console.print("interrupted; broker, nodes and temporary files are gone")
        return 130
    except (RuntimeError, farpool.Error, duckdb.Error, OSError) as error:
        console.print(f"[red]the demonstration failed:[/red] {error}", highlight=False)
        return 1
    finally:
        shutil.rmtree(work_dir, ignore_errors=True)


def _demonstrate(arguments: argparse.Namespace, console: Console, work_dir: Path) -> int:
    node_memory_bytes = NODE_MEMORY_BASE_BYTES + round(NODE_MEMORY_PER_SCALE_BYTES * arguments.scale)
    _check_room(2 * node_memory_bytes)
    spill_dir = Path(arguments.spill_dir) if arguments.spill_dir else work_dir
    spill_dir.mkdir(parents=True, exist_ok=True)
    results = [
        QueryResult(QUERIES[name], arguments.memory_limit or QUERIES[name].limit_bytes(arguments.scale))
        for name in arguments.queries
    ]
    if arguments.keep_data:
        database = database_path(Path(arguments.data_dir), arguments.scale)
    else:
        database = database_path(work_dir, arguments.scale)

    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}")
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        data_task = progress.add_task("TPC-H data", total=STEPS)
        ensure_database(
            database,
            arguments.scale,
            lambda what, steps: progress.update(data_task, description=what, advance=steps),
        )
        progress.update(data_task, description=f"TPC-H data, scale {arguments.scale:g}")
        warm_page_cache(database)

        runs_task = progress.add_task("starting the pool", total=arguments.repeat * len(results) * len(MODES))
        runner = Runner()
        with Cluster(arguments.farpool_bin, node_memory_bytes) as cluster:
            try:
                for _ in range(arguments.repeat):
                    for result in results:
                        for mode in MODES.values():
                            progress.update(runs_task, description=f"{result.query.name}, {mode.title}")
                            task = Task(
                                mode=mode.name,
                                sql=result.query.sql,
                                database=str(database),
                                threads=arguments.threads,
                                limit_bytes=result.limit_bytes,
                                spill_directory=str(spill_dir / f"spill-{os.getpid()}"),
                                pool_url=cluster.url,
                            )
                            result.outcomes.setdefault(mode.name, []).append(runner.run(task))
                            progress.update(runs_task, advance=1)
            finally:
                runner.stop()
            progress.update(runs_task, description="checking that nothing is left")
            left = cluster.what_is_left()
            left += cluster.stop()
            progress.update(runs_task, description="queries")

    shutil.rmtree(spill_dir / f"spill-{os.getpid()}", ignore_errors=True)
    shutil.rmtree(work_dir)
    left += [line for result in results for line in result.leftovers()]
    problems = [line for result in results for line in result.problems()]

    setting = (
        f"TPC-H scale {arguments.scale:g}, DuckDB {duckdb.__version__}, {arguments.threads} threads, "
        f"2 nodes of {node_memory_bytes / (1 << 30):.2f} GiB, medians of {arguments.repeat}"
    )
    output = Console()
    output.width = max(output.width, REPORT_COLUMNS_MIN)
    print_report(output, results, setting, f"{spill_dir} on {file_system_of(spill_dir.parent)}")
    for line in problems:
        output.print(f"[red]wrong:[/red] {line}", highlight=False)
    for line in left:
        output.print(f"[red]left behind:[/red] {line}", highlight=False)
    if not problems:
        output.print("All answers are equal, row for row.")
    if not left:
        output.print("Nothing is left: no leased byte, no far file, no process, no temporary directory.")
    if arguments.json:
        document = {
            "setting": setting,
            "machine": machine_line(),
            "scale": arguments.scale,
            "threads": arguments.threads,
            "repeat": arguments.repeat,
            "queries": as_json(results),
            "problems": problems,
            "left_behind": left,
        }
        Path(arguments.json).write_text(json.dumps(document, indent=2) + "\n")
    return 1 if problems or left else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m farpool.demo",
        description="Runs DuckDB queries that do not fit in memory: without spill, with spill to local disk, "
        "with spill to far memory over TCP and shared memory, and with enough memory; compares all rows.",
    )
    parser.add_argument("--scale", type=_positive_float, default=1.0, help="TPC-H scale factor (default: 1)")
    parser.add_argument("--memory-limit", type=_size, help="for every query, such as 200MB (default: one per query)")
    parser.add_argument(
        "--threads", type=_positive_int, default=min(2, os.cpu_count() or 1), help="of DuckDB (default: 2)"
    )
    parser.add_argument("--repeat", type=_positive_int, default=1, help="runs of everything; medians are reported")
    parser.add_argument(
        "--queries",
        type=_queries,
        default=list(QUERIES),
        metavar="NAME,...",
        help=f"a selection of {','.join(QUERIES)} (default: all)",
    )
    parser.add_argument(
        "--keep-data",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep the generated database for the next time (default: yes)",
    )
    parser.add_argument("--data-dir", default=default_data_dir(), help="where to keep it (default: %(default)s)")
    parser.add_argument("--spill-dir", help="where to spill to local disk (default: in the temporary directory)")
    parser.add_argument("--json", metavar="FILE", help="write all figures to FILE as well")
    parser.add_argument(
        "--farpool-bin",
        default=os.environ.get("FARPOOL_BIN") or shutil.which("farpool"),
        metavar="PATH",
        help="the farpool binary (default: $FARPOOL_BIN, or from $PATH)",
    )
    arguments = parser.parse_args()
    if not arguments.farpool_bin:
        parser.error("no farpool binary: give --farpool-bin PATH or set FARPOOL_BIN")
    if not os.access(arguments.farpool_bin, os.X_OK):
        parser.error(f"--farpool-bin {arguments.farpool_bin} is not an executable file")
    return arguments


def _check_room(needed_bytes: int) -> None:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available_bytes = int(line.split()[1]) * 1024
            if needed_bytes > available_bytes:
                raise RuntimeError(
                    f"the two memory nodes need {needed_bytes >> 20} MiB and this machine has "
                    f"{available_bytes >> 20} MiB available: choose a smaller --scale"
                )


def _positive_float(text: str) -> float:
    value = float(text)
    if not 0 < value < 100_000:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 100000")
    return value


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if not match or match[2].upper() not in UNITS:
        raise argparse.ArgumentTypeError(f"'{text}' is not a size such as 200MB or 1.5GiB")
    return round(float(match[1]) * UNITS[match[2].upper()])


def _queries(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in QUERIES]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"'{text}' is not a selection of {', '.join(QUERIES)}")
    return list(dict.fromkeys(names))


if __name__ == "__main__":
    sys.exit(main())
