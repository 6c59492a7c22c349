"""Runs SQLite's own tests on its own file system and on the extension, and compares the failures with a list.

A test that fails on the extension and passes on SQLite's own file system must be listed in differences.txt. A test that
is listed there must fail in this way. Each file runs in its own process and folder.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
# Each of these test files runs many others. SQLite's test/permutations.test leaves out the same ones.
DRIVERS = set(
    "all async extraquick fts3 full mallocAll memleak permutations quick rbu rtree session soak veryquick".split()
)
# Names of failures that concern a whole test file.
LATE, UNFINISHED, LEFT_OPEN, UNFREED = "(deadline)", "(no summary)", "(files left open)", "(unfreed memory)"
# Some tests remove permissions of files and expect errors. Root must drop these capabilities to get the errors.
UNPRIVILEGED = [
    "setpriv",
    "--inh-caps",
    "-dac_override,-dac_read_search",
    "--bounding-set",
    "-dac_override,-dac_read_search",
]
SUMMARY = re.compile(r"^(\d+) errors out of (\d+) tests", re.MULTILINE)
FAILED = re.compile(r"^!Failures on these tests:(.*)$", re.MULTILINE)


@dataclass
class Outcome:
    """Result of a test file on one of the two file systems."""

    tests: int = 0
    failed: set[str] = field(default_factory=set)
    seconds: float = 0.0


def outcome(told: str, seconds: float, is_late: bool) -> Outcome:
    """Parses the output of a test file's process."""
    summary = SUMMARY.search(told)
    failed = FAILED.search(told)
    names = set(failed.group(1).split()) if failed else set()
    if is_late:
        names.add(LATE)
    elif summary is None:
        names.add(UNFINISHED)
    if re.search(r"^\d+ files were left open$", told, re.MULTILINE):
        names.add(LEFT_OPEN)
    if re.search(r"^Unfreed memory: ", told, re.MULTILINE):
        names.add(UNFREED)
    return Outcome(int(summary.group(2)) if summary else 0, names, seconds)


def run(command: list[str], environment: dict[str, str], log: Path, deadline: float) -> Outcome:
    """Runs a test file in a temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="sqlite-suite-"))
    began = time.monotonic()
    is_late = False
    try:
        with log.open("wb") as into:
            process = subprocess.Popen(
                [*(UNPRIVILEGED if os.geteuid() == 0 else []), *command],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=into,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(deadline)
            except subprocess.TimeoutExpired:
                is_late = True
            finally:
                # Some tests start processes, which would outlive them.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
                process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome(log.read_text(errors="replace"), time.monotonic() - began, is_late)


def known_differences() -> dict[str, dict[str, str]]:
    """Reads differences.txt. Returns, by file, the tests that fail on the extension only, with the reason."""
    known: dict[str, dict[str, str]] = {}
    reason = ""
    for line in (HERE / "differences.txt").read_text().splitlines():
        if line.startswith("#") or not line.strip():
            continue
        if not line.startswith(" "):
            reason = line
            continue
        file, *tests = line.split()
        for test in tests:
            if known.setdefault(file, {}).setdefault(test, reason) != reason:
                sys.exit(f"differences.txt: {file} {test} is listed twice")
    return known


@contextlib.contextmanager
def pool(farpool: Path) -> Iterator[str]:
    """Starts a pool with one node of 6 GiB, because tests sort more than 2 GiB. Yields its URL."""
    processes: list[subprocess.Popen] = []

    def start(*arguments: str) -> str:
        process = subprocess.Popen([farpool, *arguments], stdout=subprocess.PIPE, text=True)
        processes.append(process)
        line = process.stdout.readline()
        if not line.startswith("ready "):
            sys.exit(f"farpool {arguments[0]} did not start")
        return line.removeprefix("ready ").strip()

    try:
        url = start("broker", "--listen", "127.0.0.1:0", "--store", "memory")
        start("node", "--name", "sqlite-suite", "--broker", url, "--memory", "6GiB")
        yield url
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> None:
    """Runs the tests, prints a table, and fails if the result differs from differences.txt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", type=Path, required=True, help="the folder that build.sh made")
    parser.add_argument("--extension", type=Path, required=True, help="libfarpool_sqlite.so")
    parser.add_argument("--farpool", type=Path, required=True, help="the farpool command")
    parser.add_argument("--deadline", type=float, default=1800, help="seconds for a file on one of the file systems")
    parser.add_argument("--jobs", type=int, default=2, help="files that run at once")
    parser.add_argument(
        "--only", choices=("stock", "farpool"), help="run on one of the file systems, and compare nothing"
    )
    parser.add_argument("files", nargs="*", help="names of files in SQLite's test folder [default: all]")
    arguments = parser.parse_args()

    tests = arguments.suite / "source" / "test"
    fixture = str(arguments.suite / "testfixture")
    logs = arguments.suite / "logs"
    logs.mkdir(exist_ok=True)
    there = sorted(path.stem for path in tests.glob("*.test") if path.stem not in DRIVERS)
    files = arguments.files or there
    if strange := set(files) - set(there):
        parser.error(f"no such test: {', '.join(sorted(strange))}; those that there are lie in {tests}")

    kinds = (arguments.only,) if arguments.only else ("stock", "farpool")
    with pool(arguments.farpool) if "farpool" in kinds else contextlib.nullcontext() as url:
        flags = f"--pool {url} --local-cache 64KiB --cache 256MiB --protection none"
        environment = {**os.environ, "FARPOOL_SQLITE": flags}
        prelude = {"stock": [], "farpool": [str(HERE / "prelude.tcl"), str(arguments.extension)]}

        def one(task: tuple[str, str]) -> Outcome:
            file, kind = task
            command = [fixture, *prelude[kind], str(tests / f"{file}.test")]
            return run(command, environment, logs / f"{file}.{kind}", arguments.deadline)

        tasks = [(file, kind) for file in files for kind in kinds]
        with ThreadPoolExecutor(arguments.jobs) as executor:
            outcomes = dict(zip(tasks, executor.map(one, tasks), strict=True))
    report(files, outcomes, kinds)


def compare(file: str, stock: Outcome, far: Outcome, listed: set[str]) -> list[str]:
    """Returns a line for each failure on the extension only that is not listed, and for each listed one that did not
    occur."""
    alone = far.failed - stock.failed
    new = (f"{file} {test}: fails on the extension alone, and is not listed" for test in sorted(alone - listed))
    gone = (f"{file} {test}: is listed, and does not fail on the extension alone" for test in sorted(listed - alone))
    return [*new, *gone]


def report(files: list[str], outcomes: dict[tuple[str, str], Outcome], kinds: tuple[str, ...]) -> None:
    """Prints a table of the files with failures. Ends with exit code 1 if a difference is new or gone."""
    known = known_differences()
    print(f"{'file':<20}" + "".join(f"{kind + ' tests':>16}{'failed':>8}{'seconds':>9}" for kind in kinds))
    for file in files:
        of = [outcomes[file, kind] for kind in kinds]
        if any(one.failed for one in of):
            row = (f"{one.tests:>16}{len(one.failed):>8}{one.seconds:>9.1f}" for one in of)
            print(f"{file:<20}{''.join(row)}")
    for kind in kinds:
        of = [outcomes[file, kind] for file in files]
        failed = sum(len(one.failed) for one in of)
        print(f"{kind}: {sum(one.tests for one in of)} tests in {len(files)} files, {failed} failed")
    if len(kinds) < 2:
        return
    both = {file: (outcomes[file, "stock"], outcomes[file, "farpool"]) for file in files}
    wrong = [line for file in files for line in compare(file, *both[file], set(known.get(file, {})))]
    for line in wrong:
        print(line)
    alone = sum(len(far.failed - stock.failed) for stock, far in both.values())
    tests = sum(far.tests for _, far in both.values())
    print(
        f"sqlite-suite: {tests} tests on the extension, {alone} fail there alone, {len(wrong)} unexpected differences"
    )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
