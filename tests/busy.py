#!/usr/bin/env python3
"""Runs all tests many times on a busy machine, and prints which ones failed or hung, and how long each took.

    make test-busy                                    # every test binary and pytest suite, ten times beside four hogs
    make test-busy BUSY="--runs 3 --only lease"       # some of them

Runs the tests that `make test` has built, two suites at a time, in the same environment. A hog is a process that only
counts. Prints a message if the machine leaves a process without a CPU for more than 5 s. Exit code: 1 if a test failed
or took longer than it may. When it is interrupted, it prints the table of the runs that have ended.
"""

import argparse
import json
import shlex
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
HOG = "while True: pass"
# Linux 6.18 left process sessions without a CPU for up to 60 s while another session had both. This happened with
# autogroups (kernel.sched_autogroup_enabled=1). A test then waits that much longer.
WATCH = """
import time
while True:
    begun = time.monotonic()
    time.sleep(0.5)
    late = time.monotonic() - begun - 0.5
    if late > 5:
        print(f"{time.strftime('%T')}: a process that could run has waited {late:.0f} s for a CPU", flush=True)
"""
HUNG = 124  # Exit code of tests/run.py for a test that hangs.


@dataclass
class Suite:
    """A test binary, or a suite of pytest."""

    name: str
    command: list[str]
    folder: Path
    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def run(self, log: Path, stopped: threading.Event) -> None:
        """Runs the suite once, under tests/run.py. Keeps the output in `log` if it fails. A run that is stopped does
        not count."""
        begun = time.monotonic()
        with log.open("wb") as out:
            done = subprocess.Popen(
                [sys.executable, ROOT / "tests" / "run.py", *self.command],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
            while done.poll() is None:
                if stopped.wait(0.1):
                    done.terminate()
                    done.wait()
                    return
        self.seconds.append(time.monotonic() - begun)
        if done.returncode == 0:
            log.unlink()
        else:
            how = "hung" if done.returncode == HUNG else f"exit code {done.returncode}"
            self.failures.append(f"{how}: {log}")


def binaries(cargo_flags: list[str]) -> list[Suite]:
    """Builds the test binaries with cargo and returns them."""
    command = ["cargo", "test", *cargo_flags, "--no-run", "--message-format=json"]
    said = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    suites = []
    for message in map(json.loads, said.stdout.splitlines()):
        if message.get("executable") and message["profile"]["test"]:
            folder = Path(message["manifest_path"]).parent
            target = message["target"]
            name = f"{folder.relative_to(ROOT)}: {'/'.join(target['kind'])} {target['name']}"
            suites.append(Suite(name, [message["executable"]], folder))
    return sorted(suites, key=lambda suite: suite.name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="runs of each suite [default: 10]")
    parser.add_argument("--hogs", type=int, default=4, help="processes that count, beside the tests [default: 4]")
    parser.add_argument("--jobs", type=int, default=2, help="suites that run at once [default: 2]")
    parser.add_argument("--only", default="", help="run only suites whose name contains this text")
    parser.add_argument("--logs", type=Path, required=True, help="a folder for the output of runs that fail")
    parser.add_argument("--cargo", action="append", default=[], help="flags of cargo test that choose packages")
    parser.add_argument("--pytest", default="pytest", help="how pytest is run [default: pytest]")
    parser.add_argument("python", nargs="*", help="suites of Python: a path, and flags of pytest behind it")
    args = parser.parse_args()
    args.logs.mkdir(parents=True, exist_ok=True)

    suites = [suite for flags in args.cargo for suite in binaries(flags.split())]
    suites += [Suite(f"pytest {words}", [*args.pytest.split(), *shlex.split(words)], ROOT) for words in args.python]
    suites = [suite for suite in suites if args.only in suite.name]
    if not suites:
        parser.error(f"--only {args.only}: no suite has this in its name")
    hogs = [subprocess.Popen([sys.executable, "-c", HOG]) for _ in range(args.hogs)]
    watch = subprocess.Popen([sys.executable, "-c", WATCH], start_new_session=True)
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    try:
        for run in range(1, args.runs + 1):
            begun = time.monotonic()
            # The longest suite runs first, so that no CPU is left to the hogs at the end.
            suites.sort(key=lambda suite: -suite.seconds[-1] if suite.seconds else 0)

            def one(suite: Suite, run: int = run) -> None:
                if stopped.is_set():
                    return
                failed = len(suite.failures)
                suite.run(args.logs / f"{suite.name.replace('/', '-').replace(' ', '_')}-{run}.log", stopped)
                for failure in suite.failures[failed:]:
                    print(f"run {run}: {suite.name}: {failure}", flush=True)

            with ThreadPoolExecutor(args.jobs) as executor:
                list(executor.map(one, suites))
            if stopped.is_set():
                print(f"stopped in run {run} of {args.runs}")
                break
            print(f"run {run} of {args.runs}: {time.monotonic() - begun:.0f} s", flush=True)
    finally:
        for beside in [*hogs, watch]:
            beside.kill()
            beside.wait()

    width = max(len(suite.name) for suite in suites)
    print(f"\n{'suite':{width}}  runs  failed  median s   worst s")
    for suite in sorted((suite for suite in suites if suite.seconds), key=lambda suite: -median(suite.seconds)):
        runs, failed, worst = len(suite.seconds), len(suite.failures), max(suite.seconds)
        print(f"{suite.name:{width}}  {runs:4}  {failed:6}  {median(suite.seconds):8.1f}  {worst:8.1f}")
    failed = sum(len(suite.failures) for suite in suites)
    print(f"{sum(len(suite.seconds) for suite in suites)} runs beside {args.hogs} hogs, {failed} failed")
    return 1 if failed or stopped.is_set() else 0


if __name__ == "__main__":
    sys.exit(main())
