"""`python -m farpool.demo`: arguments, the order of the runs, and the exit code.

Exit codes: 0 if all answers are equal and nothing is left behind, 1 if not, 2 for wrong arguments, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import duckdb
from rich.console import Console

import farpool
from farpool.demo.cluster import Cluster
from farpool.demo.data import database_path, default_data_dir, ensure_database, warm_page_cache
from farpool.demo.pod import CappedDisk, NotHere, Pods
from farpool.demo.queries import QUERIES
from farpool.demo.report import WIDTH, QueryResult, Setting, as_json, file_system_of, machine_line, print_report
from farpool.demo.run import CLOUD_VOLUME, DISK, MODES, Mode, Outcome, Runner, Task
from farpool.demo.steps import Step, Steps

# Hash+Sort spills the most: about 1.3 GB at a time per scale factor, over two nodes.
NODE_MEMORY_BASE_BYTES = 512 << 20
NODE_MEMORY_PER_SCALE_BYTES = 1 << 30
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
# Memory of a pod beyond DuckDB's limit, for the process itself, the files that it reads and the page cache of its
# spill.
POD_MARGIN_BYTES = 256 << 20
CAPPED_DISK_BYTES = 8 << 30  # bytes of a sparse file, by scale


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
    data_dir = Path(arguments.data_dir) if arguments.keep_data else work_dir
    database = database_path(data_dir, arguments.scale)
    steps = Steps(data_dir / "demo-steps")

    with steps.step(f"TPC-H data, scale {arguments.scale:g}", f"data {arguments.scale:g} {database.exists()}") as step:
        ensure_database(database, arguments.scale, step.now)
        warm_page_cache(database)

    with Pods() as pods, _cloud_volume(pods, arguments, spill_dir) as cloud:
        # A run that is compared with others keeps the memory that it began with.
        with Cluster(arguments.farpool_bin, node_memory_bytes, node_arguments=("--no-reserve",)) as cluster:
            runs = Runs(arguments.threads, database, spill_dir, pods, cloud, cluster.url)
            try:
                for number in range(arguments.repeat):
                    for result in results:
                        title = result.query.title
                        if arguments.repeat > 1:
                            title += f", run {number + 1} of {arguments.repeat}"
                        key = f"{result.query.name} {arguments.scale:g} {'all' if cloud.folder else 'no cloud'}"
                        with steps.step(title, key) as step:
                            runs.run_all_modes(result, step)
            finally:
                runs.runner.stop()
            left = cluster.what_is_left()
            left += cluster.stop()

    shutil.rmtree(_spill_folder(spill_dir), ignore_errors=True)
    shutil.rmtree(work_dir)
    left += [line for result in results for line in result.leftovers()]
    problems = [line for result in results for line in result.problems()]

    setting = Setting(
        scale=arguments.scale,
        threads=arguments.threads,
        repeat=arguments.repeat,
        node_memory_bytes=node_memory_bytes,
        pod_margin_bytes=POD_MARGIN_BYTES,
        why_no_pods=pods.why_not,
        why_no_cloud_volume=cloud.why_not,
        cloud_volume=cloud.how,
        spill_folder=f"{spill_dir} on {file_system_of(spill_dir.parent)}",
    )
    output = Console(width=WIDTH)
    print_report(output, results, setting)
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
            "setting": asdict(setting),
            "machine": machine_line(),
            "duckdb": duckdb.__version__,
            "queries": as_json(results),
            "problems": problems,
            "left_behind": left,
        }
        Path(arguments.json).write_text(json.dumps(document, indent=2) + "\n")
    return 1 if problems or left else 0


@dataclass
class CloudVolume:
    """A folder with the rates of a cloud volume, or the reason why there is none."""

    folder: Path | None = None
    is_pod_throttled: bool = False  # the pod limits the rates, not the folder's file system
    how: str = ""
    why_not: str = ""


@contextlib.contextmanager
def _cloud_volume(pods: Pods, arguments: argparse.Namespace, spill_dir: Path) -> Iterator[CloudVolume]:
    try:
        pods.check_slow_volume(spill_dir)
    except NotHere as why:
        reason = str(why)
    else:
        yield CloudVolume(spill_dir, True, "this machine's disk behind the io controller of cgroups")
        return
    with contextlib.ExitStack() as stack:
        volume = CloudVolume(why_not=reason)
        if arguments.capped_disk:
            size_bytes = round(CAPPED_DISK_BYTES * max(arguments.scale, 1))
            try:
                disk = stack.enter_context(CappedDisk(Path(arguments.capped_disk), size_bytes, spill_dir))
                volume = CloudVolume(disk.path, False, "this machine's disk behind a throttle of the block layer")
            except NotHere as why:
                volume.why_not = str(why)
        yield volume


@dataclass
class Runs:
    """State that all runs of queries share."""

    threads: int
    database: Path
    spill_dir: Path
    pods: Pods
    cloud: CloudVolume
    pool_url: str
    runner: Runner = field(default_factory=Runner)

    def run_all_modes(self, result: QueryResult, step: Step) -> None:
        """Runs a query in each mode once. The disk comes first, because its spill determines the size of the small
        volume."""
        for mode in [DISK, *(mode for mode in MODES.values() if mode is not DISK)]:
            if mode is CLOUD_VOLUME and not self.cloud.folder:
                continue
            step.now(mode.title)
            result.outcomes.setdefault(mode.name, []).append(self._run(result, mode))

    def _run(self, result: QueryResult, mode: Mode) -> Outcome:
        folder = self.cloud.folder if mode is CLOUD_VOLUME else self.spill_dir
        task = Task(
            mode=mode.name,
            sql=result.query.sql,
            database=str(self.database),
            threads=self.threads,
            limit_bytes=result.limit_bytes,
            spill_directory=str(_spill_folder(folder)),
            spill_limit_bytes=max((run.spill_peak_bytes for run in result.outcomes.get(DISK.name, [])), default=0)
            // 10,
            pool_url=self.pool_url,
        )
        if not (mode.is_limited and self.pods.can_limit_memory):
            return self.runner.run(task, None)
        slow_folder = folder if mode is CLOUD_VOLUME and self.cloud.is_pod_throttled else None
        pod = self.pods.make(result.limit_bytes + POD_MARGIN_BYTES, slow_folder)
        try:
            return self.runner.run(task, pod)
        finally:
            self.runner.stop()
            pod.remove()


def _spill_folder(folder: Path) -> Path:
    return folder / f"spill-{os.getpid()}"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m farpool.demo",
        description="Runs DuckDB queries that do not fit in the memory of their pod: without spill, with spill to a "
        "small volume, a cloud volume, this machine's disk, far memory over TCP and shared memory, and with enough "
        "memory; compares all rows.",
    )
    parser.add_argument("--scale", type=_positive_float, default=1.0, help="TPC-H scale factor (default: 1)")
    parser.add_argument(
        "--memory-limit", type=_size, help="limit of every query, such as 200MB (default: set per query)"
    )
    parser.add_argument(
        "--threads", type=_positive_int, default=min(2, os.cpu_count() or 1), help="threads of DuckDB (default: 2)"
    )
    parser.add_argument("--repeat", type=_positive_int, default=1, help="runs of each query; medians are reported")
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
    parser.add_argument("--data-dir", default=default_data_dir(), help="folder for the database (default: %(default)s)")
    parser.add_argument("--spill-dir", help="folder to spill to on disk (default: in the temporary directory)")
    parser.add_argument(
        "--capped-disk",
        default=os.environ.get("FARPOOL_CAPPED_DISK", ""),
        metavar="SCRIPT",
        help="bench/capped-disk.sh of the source tree, for a cloud volume where cgroups cannot throttle writes",
    )
    parser.add_argument("--json", metavar="FILE", help="also write the results to FILE, as JSON")
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
