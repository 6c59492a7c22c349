#!/usr/bin/env python3
"""A memory donor and a workload in one memory cgroup: whether the workload gets its memory, and how soon.

    bench/pressure/run.py                       # 20 ramps beside a node, and one each beside the other donors
    bench/pressure/run.py --rate 1e11           # as fast as the kernel provides memory
    bench/pressure/run.py --ramps 200 --json FILE

In each ramp, a donor is started, and then the workload takes memory at a rate and ends. The workload and the donor
together need more than the cgroup's limit. Donors: `farpool node`; the same with --no-reserve; a file on tmpfs of the
same size; none, at intervals between the ramps beside a node. The results are in docs/measurements/memory-pressure.md.

Needs Linux, root, cgroups with memory (version 1 or 2), Python from 3.11 on, and a built farpool command (FARPOOL_BIN,
or the one below CARGO_TARGET_DIR).
"""

import argparse
import contextlib
import itertools
import json
import mmap
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from memory_group import Group, why_not

MIB = 1 << 20
STEP = 4 * MIB
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", Path.home() / ".cache" / "farpool" / "target"))
FARPOOL = Path(os.environ.get("FARPOOL_BIN", TARGET / "release" / "farpool"))
CHUNK = b"\1" * STEP


def workload(bytes_wanted: int, rate: float) -> None:
    """Takes memory at a rate, prints the time of each step, and ends. Runs in its own process."""
    memory = mmap.mmap(-1, bytes_wanted)
    times, begun = [], time.monotonic()
    for at in range(0, bytes_wanted - STEP + 1, STEP):
        due = begun + at / rate
        while (now := time.monotonic()) < due:
            time.sleep(min(due - now, 0.001))
        step = time.monotonic()
        memory[at : at + STEP] = CHUNK
        times.append(time.monotonic() - step)
    print(json.dumps({"times": times, "seconds": time.monotonic() - begun}), flush=True)


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else float("nan")


def ready(process: subprocess.Popen) -> str:
    if not select.select([process.stdout], [], [], 30)[0]:
        sys.exit("a server did not start")
    return process.stdout.readline().decode().split()[-1]


class Donor:
    """A process or file that holds memory in the cgroup."""

    def __init__(self, kind: str, group: Group, args: argparse.Namespace):
        self.processes, self.file = [], None
        if kind == "nobody":
            return
        if kind == "tmpfs":
            # The memory of the file is charged to the process that writes it.
            self.file = tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="farpool-pressure-")
            fill = "import sys; f = open(sys.argv[1], 'wb'); [f.write(bytes(1 << 20)) for _ in range(int(sys.argv[2]))]"
            command = [sys.executable, "-c", fill, self.file.name, str(args.donate // MIB)]
            subprocess.run(command, preexec_fn=group.join, check=True)
            return
        broker = subprocess.Popen([FARPOOL, "broker", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE)
        self.processes.append(broker)
        command = [FARPOOL, "node", "--name", "n1", "--memory", str(args.donate), "--broker", ready(broker)]
        command += ["--no-reserve"] if kind == "node, static" else ["--reserve", str(args.reserve)]
        node = subprocess.Popen(
            [*command, "--no-functions"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=group.join
        )
        self.processes.append(node)
        ready(node)

    def is_alive(self) -> bool:
        return all(process.poll() is None for process in self.processes)

    def close(self) -> None:
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            process.wait()
        if self.file:
            self.file.close()


def settled(group: Group, least: int) -> None:
    """Waits until the donor has touched its memory."""
    until = time.monotonic() + 120
    while group.usage_bytes() < least:
        if time.monotonic() > until:
            sys.exit(f"the donor holds {group.usage_bytes() >> 20} MiB, not {least >> 20}")
        time.sleep(0.05)


class Watch:
    """Samples the memory of a node and the free memory of its group every millisecond, until it is closed."""

    def __init__(self, pid: int, group: Group, args: argparse.Namespace):
        self.pid, self.group, self.args = pid, group, args
        self.samples: list[tuple[float, int, int]] = []
        self.is_over = False
        self.thread = threading.Thread(target=self.look)
        self.thread.start()

    def look(self) -> None:
        page = os.sysconf("SC_PAGE_SIZE")
        with open(f"/proc/{self.pid}/statm") as file:
            while not self.is_over:
                file.seek(0)
                held = int(file.read().split()[1]) * page
                self.samples.append((time.monotonic(), held, self.args.limit - self.group.usage_bytes()))
                time.sleep(0.001)

    def close(self) -> dict:
        """Ends the sampling. Returns the milliseconds from the moment when less than the reserve was free until the
        node had returned memory (negative if it returned memory earlier, `None` if one of the two did not happen), and
        the bytes and rate of the largest burst."""
        self.is_over = True
        self.thread.join()
        # The node returns whole regions. Smaller changes are its own memory.
        first = next((at for (_, a, _), (at, b, _) in itertools.pairwise(self.samples) if a - b >= MIB), None)
        short = next((at for at, _, left in self.samples if left < self.args.reserve), None)
        best, begun = (0, float("nan")), None
        for (before, a, _), (at, b, _) in itertools.pairwise(self.samples):
            if a - b < MIB:
                begun = None
                continue
            begun = begun or (before, a)
            if begun[1] - b > best[0]:
                best = (begun[1] - b, (begun[1] - b) / (at - begun[0]))
        waited = (first - short) * 1e3 if first and short else None
        return {"waited_ms": waited, "burst_bytes": best[0], "burst_rate": best[1]}


def ramp(group: Group, wanted: int, rate: float) -> dict:
    """Runs one ramp. Returns the times of the workload's steps, and whether it finished."""
    command = [sys.executable, __file__, "--workload", str(wanted), str(rate)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=group.join)
    said, _ = process.communicate()
    found = json.loads(said) if said else {"times": [], "seconds": float("nan")}
    return found | {"survived": process.returncode == 0}


def once(kind: str, args: argparse.Namespace) -> dict:
    """Runs one ramp beside a new donor, in its own group."""
    with Group("pressure", args.limit) as group, contextlib.closing(Donor(kind, group, args)) as donor:
        if kind != "nobody":
            settled(group, min(args.donate, args.limit - args.reserve) * 9 // 10)
        watch = Watch(donor.processes[-1].pid, group, args) if kind == "node" else None
        found = ramp(group, args.take, args.rate)
        given_back = watch.close() if watch else {}
        survived = found["survived"] and donor.is_alive()
        return {"times": found["times"], "survived": survived, "oom_kills": group.oom_kills()} | given_back


def summary(kind: str, ramps: list[dict]) -> dict:
    """Summarises the ramps beside one kind of donor."""
    found = {"donor": kind, "ramps": len(ramps)}
    for name in ("survived", "oom_kills"):
        found[name] = sum(one[name] for one in ramps)
    for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99)):
        found[name] = statistics.median(quantile(one["times"], share) * 1e3 for one in ramps)
    watched = [one for one in ramps if "burst_bytes" in one]
    if watched:
        waited = [one["waited_ms"] for one in watched if one["waited_ms"] is not None]
        found["short"] = len(waited)
        found["waited_p50_ms"] = statistics.median(waited) if waited else None
        found["waited_most_ms"] = max(waited, default=None)
        for name in ("burst_bytes", "burst_rate"):
            found[name] = statistics.median(one[name] for one in watched)
    return found


def swapped_out() -> int:
    """Returns the number of pages that this machine has swapped out since its start."""
    lines = Path("/proc/vmstat").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("pswpout ")), 0)


def size(text: str) -> int:
    units = {"MiB": MIB, "GiB": 1 << 30}
    number = text.removesuffix(text[-3:])
    if text[-3:] not in units or not number.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: such as 512MiB or 3GiB")
    return int(number) * units[text[-3:]]


def main() -> None:
    if sys.argv[1:2] == ["--workload"]:
        return workload(int(sys.argv[2]), float(sys.argv[3]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ramps", type=int, default=20, help="beside the node that gives back [default: 20]")
    parser.add_argument("--limit", type=size, default="3GiB", help="memory limit of the cgroup [default: 3GiB]")
    parser.add_argument("--donate", type=size, default="2GiB", help="memory that the donor donates [default: 2GiB]")
    parser.add_argument("--take", type=size, default="2GiB", help="memory that the workload takes [default: 2GiB]")
    parser.add_argument("--reserve", type=size, default="512MiB", help="reserve of the node [default: 512MiB]")
    parser.add_argument("--rate", type=float, default=1e9, help="bytes a second that the workload takes [default: 1e9]")
    parser.add_argument("--json", metavar="FILE", help="also write the results to this file, as JSON")
    args = parser.parse_args()
    if why := why_not():
        sys.exit(why)
    swapped, ramps = swapped_out(), {"nobody": [], "node": []}
    for number in range(args.ramps):
        # Interleaved, so that both run under the same conditions of the machine.
        if number * 20 // args.ramps != (number - 1) * 20 // args.ramps:
            ramps["nobody"].append(once("nobody", args))
        ramps["node"].append(once("node", args))
        print(f"\r{number + 1} of {args.ramps} ramps", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    ramps |= {kind: [once(kind, args)] for kind in ("node, static", "tmpfs")}
    found = [summary(kind, several) for kind, several in ramps.items()]
    swapped = swapped_out() - swapped
    print(f"| donor | ramps | both live on | kills | a step of {STEP >> 20} MiB, p50 | p99 | beside nobody |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for one in found:
        over = one["p99_ms"] / found[0]["p99_ms"]
        print(
            f"| {one['donor']} | {one['ramps']} | {one['survived']} | {one['oom_kills']} | {one['p50_ms']:.2f} ms "
            f"| {one['p99_ms']:.2f} ms | {over:.2f} |"
        )
    node = found[1]
    if node["short"]:
        print(
            f"\nless than the reserve was left in {node['short']} ramps; from then to the node's first byte: ", end=""
        )
        print(f"{node['waited_p50_ms']:.0f} ms (median; at most {node['waited_most_ms']:.0f} ms; less than 0: before)")
    else:
        print("\nless than the reserve was left in no ramp")
    print(f"its largest burst: {node['burst_bytes'] / MIB:.0f} MiB at {node['burst_rate'] / 2**30:.1f} GiB/s (medians)")
    print(f"{swapped} pages were swapped out meanwhile")
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
