#!/usr/bin/env python3
"""Runs jobs that exceed their memory in a pod with a small volume: without Farpool, and with it.

    make demo-pod                                   # every job in every way, TPC-H at scale 1
    make demo-pod POD="duckdb:sort --scale 0.1"     # one job, less data
    make demo-pod POD="duckdb:sort --scale 0.3 --losses"    # ten pods at once, while nodes are killed and drained
    make demo-pod POD="--ways other --other DIR"            # temporary files in a directory, such as one of NFS

A pod has 512 MiB of memory, in which the page cache counts, and 1 GiB of ephemeral storage or of a volume. Engines are
told to keep within a part of the memory, except in the first way. Each job runs first without a pod, and every result
is compared with that. Exit code: 1 if a job with Farpool did not complete, if a result differs, or if a job completed
in a pod for which it is known to be too large: the limits then do not limit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from csi_client import CsiMachine
from emulated import Ended, Limits, Mount, PodRunner, check_machine, loop_volume
from rich.console import Console
from rich.table import Table

import farpool
from farpool.demo.cluster import Cluster
from farpool.demo.data import ensure_database
from farpool.demo.pod import CappedDisk, Pods

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
# DuckDB's queries of the demonstration and jobs of other engines, with the ways that are too small for each at scale 1
# in 512 MiB of memory and 1 GiB of ephemeral storage or volume. Others may be, as it happens: DuckDB may be killed or
# not without a limit, and a pod that is evicted must have been over its limit when the kubelet looks. Q18 and Q21 do
# not spill.
JOBS = {
    "duckdb:aggregate": set(),
    "duckdb:sort": set(),
    "duckdb:hash-sort": {"volume"},
    "duckdb:q18": set(),
    "duckdb:q21": set(),
    "datafusion": {"as-it-is", "volume"},
    "polars": {"as-it-is"},
    "sqlite": {"volume"},
    "sort": {"volume"},
}
SCRATCH, DATA, CODE, PYTHON = "/scratch", "/data", "/code", "/opt/venv"
# Address of the pool, which pods reach through their networks.
ADDRESS = "10.205.0.1"
# Memory of each of two nodes by scale: the largest job writes 1.5 GB of temporary files, in two copies.
NODE_BYTES, NODE_BYTES_PER_SCALE = 512 * MIB, 2560 * MIB
# Nodes and pods of --losses. Two nodes that are left have room for all copies.
LOSS_NODES, LOSS_PODS = 4, 10
LOSS_NODE_BYTES = 4096 * MIB
# Memory that each pod leases, with both copies, before a node is lost.
SPILLED_BYTES = 128 * MIB


@dataclass(frozen=True)
class Way:
    """Where the job's temporary files are."""

    name: str
    title: str
    is_far: bool = False
    engines: tuple[str, ...] = ("duckdb", "datafusion", "polars", "sqlite", "sort")


WAYS = {
    way.name: way
    for way in (
        Way("as-it-is", "emptyDir, no memory limit set", engines=("duckdb", "datafusion", "polars")),
        Way("emptydir", "emptyDir"),
        Way("volume", "small volume"),
        Way("cloud", "cloud volume, large enough"),
        Way("other", "directory of --other"),
        Way("attach", "far memory, attach()", is_far=True, engines=("duckdb",)),
        Way("csi", "far memory, CSI volume", is_far=True),
    )
}


def main() -> int:
    args = _parse()
    check_machine()
    # Mounts, namespaces and processes of this program end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    console = Console(stderr=True, highlight=False)
    data = _data(args, console)
    scale_bytes = round(NODE_BYTES_PER_SCALE * args.scale)
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="farpool-pod-", dir=args.folder)))
        work.chmod(0o755)
        pods = stack.enter_context(Pods())
        if not pods.can_limit_memory:
            sys.exit(pods.why_not)
        console.print(f"pods are control groups of version {2 if pods.is_v2 else 1}")
        certs = _certificates(args, work)
        stack.enter_context(_address())
        tls = ("--certs", str(certs))
        flags = ("--no-lock", "--no-prefault", "--no-reserve", *tls)
        program, memory = str(args.programs / "farpool"), LOSS_NODE_BYTES if args.losses else NODE_BYTES + scale_bytes
        count = LOSS_NODES if args.losses else 2
        cluster = stack.enter_context(Cluster(program, memory, count, tls, flags, hosts=True, address=ADDRESS))
        machine = CsiMachine(args.programs / "farpool", cluster.url, Path(tempfile.mkdtemp(dir=work)))
        stack.callback(machine.stop)
        # A volume of the largest size that has room for all its copies.
        volume_bytes = memory * count // (2 if args.protection == "mirror" else 1)
        bench = Bench(args, data, work, PodRunner(pods, work), cluster, machine, volume_bytes, console)
        if args.losses:
            return bench.lose_nodes()
        results = [bench.result(job) for job in args.jobs]
    _print(args, results)
    unlimited = {result.job: result.unlimited(args.too_small[result.job]) for result in results}
    for result in results:
        for way, outcome in result.failures().items():
            print(f"FAILED {result.job}, {WAYS[way].title}: {outcome} {result.ended[way].why}")
    for job, ways in unlimited.items():
        for way in ways:
            print(f"FAILED {job}, {WAYS[way].title}: completed, so the pod's limits do not limit")
    return 1 if any(result.failures() for result in results) or any(unlimited.values()) else 0


@dataclass
class Result:
    job: str
    reference: dict
    ended: dict[str, Ended]

    def outcome(self, way: str) -> str:
        ended = self.ended[way]
        if ended.how != "completed":
            return ended.how
        answer = json.loads(ended.output.splitlines()[-1])
        same = all(answer[key] == self.reference[key] for key in ("rows", "digest"))
        return f"{answer['seconds']:.1f} s" if same else "WRONG ROWS"

    def failures(self) -> dict[str, str]:
        """Returns how the job ended in each way that has wrong rows, or has far memory and did not complete."""
        outcomes = {way: self.outcome(way) for way in self.ended}
        completed = {way for way, outcome in outcomes.items() if outcome.endswith(" s")}
        return {
            way: outcome
            for way, outcome in outcomes.items()
            if outcome == "WRONG ROWS" or (WAYS[way].is_far and way not in completed)
        }

    def unlimited(self, too_small: set[str]) -> set[str]:
        """Returns the ways of `too_small` in which the job completed nevertheless."""
        return {way for way in too_small & self.ended.keys() if self.ended[way].how == "completed"}


@dataclass
class Bench:
    args: argparse.Namespace
    data: Path
    work: Path
    runner: PodRunner
    cluster: Cluster
    machine: CsiMachine
    volume_bytes: int
    console: Console

    def lose_nodes(self) -> int:
        """Runs ten pods at once, each over a volume with mirrors, while one node is killed and another is drained."""
        job = self.args.jobs[0]
        reference = self._reference(job)

        def run(_: int) -> str:
            with self._scratch("csi") as (mounts, flags, environment):
                result = Result(job, reference, {"csi": self._run(job, mounts, flags, environment)})
            return result.outcome("csi") + (f" ({why})" if (why := result.ended["csi"].why) else "")

        with ThreadPoolExecutor(LOSS_PODS) as executor:
            running = [executor.submit(run, number) for number in range(LOSS_PODS)]
            self._wait_for_spill()
            self.cluster.kill("node-1")
            at_kill = sum(not one.done() for one in running)
            self.console.print(f"node-1 is killed, with {at_kill} pods at work")
            drain = [self.args.programs / "farpool", "drain", "node-2", "--pool", self.cluster.url]
            drained = subprocess.run(drain, capture_output=True, text=True)
            self.console.print(drained.stdout.strip() or drained.stderr.strip())
            at_work = sum(not one.done() for one in running)
            outcomes = [one.result() for one in running]
        failed = [outcome for outcome in outcomes if not outcome.endswith(" s")]
        print(
            f"{LOSS_PODS} pods, {at_kill} of them at work when node-1 was killed and {at_work} when node-2 was empty: "
            f"{len(failed)} failed"
        )
        for outcome in failed:
            print(f"  {outcome}")
        return 1 if failed or drained.returncode or at_kill < LOSS_PODS or not at_work else 0

    def _wait_for_spill(self) -> None:
        """Waits until the pods have spilled enough that each node has some of it."""
        wanted = LOSS_PODS * SPILLED_BYTES
        give_up = time.monotonic() + self.args.seconds
        with farpool.connect(self.cluster.url, certs=self.work / "certs", tenant="pods") as pool:
            while (leased := pool.status()["leased_bytes"]) < wanted:
                if time.monotonic() > give_up:
                    raise RuntimeError(f"the pods lease only {leased >> 20} MiB after {self.args.seconds:.0f} s")
                time.sleep(0.1)

    def _reference(self, job: str) -> dict:
        """Runs a job without a pod."""
        self.console.print(f"{job}: without a pod")
        with tempfile.TemporaryDirectory(dir=self.work) as scratch:
            command = [sys.executable, str(ROOT / "bench/pod/jobs.py"), job, "--data", str(self.data)]
            command += ["--scratch", scratch]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        return json.loads(done.stdout.splitlines()[-1])

    def result(self, job: str) -> Result:
        result = Result(job, self._reference(job), {})
        for way in self.args.ways:
            if job.split(":")[0] not in WAYS[way].engines:
                continue
            _forget_pages(self.data)
            with self._scratch(way) as (mounts, flags, environment):
                result.ended[way] = self._run(job, mounts, flags, environment)
            ended = result.ended[way]
            self.console.print(f"{job}, {WAYS[way].title}: {result.outcome(way)} {ended.why}", highlight=False)
        return result

    @contextlib.contextmanager
    def _scratch(self, way: str) -> Iterator[tuple[list[Mount], list[str], dict[str, str]]]:
        """Yields mounts, flags and variables for a way."""
        folder = Path(tempfile.mkdtemp(dir=self.work))
        limited = ["--memory", str(self.args.memory)]
        with contextlib.ExitStack() as stack:
            if way in ("as-it-is", "emptydir"):
                folder.chmod(0o777)
                yield [Mount(folder, SCRATCH, is_ephemeral=True)], [] if way == "as-it-is" else limited, {}
            elif way == "volume":
                yield [Mount(stack.enter_context(loop_volume(folder / "loop", self.args.volume)), SCRATCH)], limited, {}
            elif way == "cloud":
                disk = CappedDisk(ROOT / "bench/capped-disk.sh", 16 << 30, self.args.folder)
                yield [Mount(stack.enter_context(disk).path, SCRATCH)], limited, {}
            elif way == "other":
                other = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=self.args.other)))
                other.chmod(0o777)
                yield [Mount(other, SCRATCH)], limited, {}
            elif way == "attach":
                variables = {"FARPOOL_POOL": self.cluster.url, "FARPOOL_CERTS": "/certs", "FARPOOL_TENANT": "pods"}
                yield [Mount(self.work / "tenant", "/certs", is_read_only=True)], ["--attach"], variables
            else:
                volume = stack.enter_context(self.machine.volume(self.volume_bytes, self.args.protection))
                yield [Mount(volume, SCRATCH)], limited, {}

    def _run(self, job: str, mounts: list[Mount], flags: list[str], environment: dict[str, str]) -> Ended:
        always = [
            Mount(self.data, DATA, is_read_only=True),
            Mount(ROOT / "bench/pod", CODE, is_read_only=True),
            Mount(Path(sys.prefix), PYTHON, is_read_only=True),
            # The environment leads to its interpreter by an absolute path.
            Mount(Path(sys.base_prefix), sys.base_prefix, is_read_only=True),
        ]
        command = [f"{PYTHON}/bin/python", f"{CODE}/jobs.py", job, "--data", DATA, "--scratch", SCRATCH, *flags]
        variables = {"TMPDIR": SCRATCH, "SQLITE_TMPDIR": SCRATCH, **environment}
        limits = Limits(self.args.memory, self.args.volume)
        return self.runner.run(command, limits, [*always, *mounts], variables, self.args.seconds)


def _forget_pages(folder: Path) -> None:
    """Drops the tables from the page cache. Pages count against whoever reads them first, which must be the pod."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def _address() -> Iterator[None]:
    subprocess.run(["ip", "addr", "replace", f"{ADDRESS}/32", "dev", "lo"], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "addr", "del", f"{ADDRESS}/32", "dev", "lo"], check=True)


def _certificates(args: argparse.Namespace, work: Path) -> Path:
    """Makes the certificates of the pool, and a copy of the tenant's that pods may read. Returns their folder."""
    certs, tenant = work / "certs", work / "tenant"
    command = [args.programs / "farpool", "certs", "init", certs, "--node", "node-[0-9]", "--tenant", "pods"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    tenant.mkdir()
    for name in ("ca.pem", "tenant-pods.pem", "tenant-pods.key"):
        shutil.copy(certs / name, tenant)
        (tenant / name).chmod(0o644)
    os.environ["FARPOOL_CERTS"] = str(certs)
    return certs


def _data(args: argparse.Namespace, console: Console) -> Path:
    """Makes the tables once per scale, in a folder that everybody may read."""
    folder = args.data / f"pod-data-{args.scale:g}"
    database = folder / "tpch.duckdb"
    if not (folder / "complete").exists():
        import duckdb

        console.print(f"making TPC-H data at scale {args.scale:g}")
        folder.mkdir(parents=True, exist_ok=True)
        ensure_database(database, args.scale, lambda text: None)
        with duckdb.connect(str(database), read_only=True) as con:
            con.execute(f"COPY lineitem TO '{folder}/lineitem.parquet'")
            con.execute(f"COPY lineitem TO '{folder}/lineitem.csv'")
        (folder / "complete").touch()
    return folder


def _print(args: argparse.Namespace, results: list[Result]) -> None:
    if args.json:
        rows = [{**asdict(one), "outcomes": {way: one.outcome(way) for way in one.ended}} for one in results]
        print(json.dumps(rows, indent=2))
        return
    limits = f"{args.memory // MIB} MiB of memory and {args.volume // MIB} MiB of emptyDir or small volume"
    table = Table(title=f"TPC-H at scale {args.scale:g} in pods with {limits}")
    table.add_column("job")
    for way in args.ways:
        table.add_column(WAYS[way].title, justify="right")
    for result in results:
        table.add_row(result.job, *(result.outcome(way) if way in result.ended else "-" for way in args.ways))
    Console(width=120).print(table)
    print(f"pods: {len(results)} jobs, {sum(not result.failures() for result in results)} of them well with far memory")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"default: {' '.join(JOBS)}")
    parser.add_argument("--programs", type=Path, required=True, help="folder with farpool and farpool-csi")
    parser.add_argument("--ways", nargs="+", choices=WAYS, help="default: all, and `other` only with --other")
    parser.add_argument("--other", type=Path, help="a directory for temporary files, such as a mounted one of NFS")
    parser.add_argument("--scale", type=float, default=1.0, help="scale of TPC-H [default: 1]")
    parser.add_argument("--memory", type=int, default=512 * MIB, help="bytes of the pod's memory [default: 512 MiB]")
    parser.add_argument("--volume", type=int, default=1024 * MIB, help="bytes of its volume [default: 1 GiB]")
    parser.add_argument("--protection", choices=["none", "mirror", "local"], default="mirror")
    parser.add_argument("--seconds", type=float, default=1800, help="longest time of a job [default: 1800]")
    parser.add_argument("--data", type=Path, default=Path("/var/tmp/farpool"), help="folder for the tables")
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"), help="folder for volumes and layers")
    parser.add_argument("--losses", action="store_true", help="run ten pods at once, and lose nodes meanwhile")
    parser.add_argument("--quick", action="store_true", help="one small job in three ways, as `make test` does")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    args = parser.parse_args()
    if args.quick:
        args.jobs, args.ways = ["duckdb:hash-sort"], ["emptydir", "volume", "attach", "csi"]
        args.scale, args.memory, args.volume = 0.1, 256 * MIB, 24 * MIB
        args.too_small = {"duckdb:hash-sort": {"volume"}}
    elif (args.scale, args.memory, args.volume) == (1.0, 512 * MIB, 1024 * MIB):
        args.too_small = JOBS
    else:
        args.too_small = dict.fromkeys(JOBS, set())
    args.ways = args.ways or [way for way in WAYS if way != "other" or args.other]
    if "other" in args.ways and not args.other:
        parser.error("--ways other takes --other DIR")
    args.jobs = args.jobs or list(JOBS)
    if unknown := [job for job in args.jobs if job not in JOBS]:
        parser.error(f"no job {', '.join(unknown)}; there are {' '.join(JOBS)}")
    args.folder.mkdir(parents=True, exist_ok=True)
    return args


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
