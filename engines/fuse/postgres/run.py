"""Runs PostgreSQL's own regression tests with all of its files on a scratch mount, and then on a cached mount."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "python" / "tests"))

import postgres

# Seconds within which all tests on one kind of mount must end: on a busy machine of two cores they took 587 s.
SUITE_SECONDS = 3_600
PG_REGRESS = Path("/usr/lib/postgresql/15/lib/pgxs/src/test/regress/pg_regress")
# The tests expect the locale of a new server. In C.UTF-8 text is sorted by its bytes.
os.environ["LC_ALL"] = "C.UTF-8"


def start(stack: ExitStack, *command: str) -> str:
    """Starts a process of Farpool, which ends with the `ExitStack`, and returns the address from its "ready" line."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    stack.callback(process.wait)
    stack.callback(process.kill)
    line = process.stdout.readline()
    if not line.startswith("ready "):
        sys.exit(f"{' '.join(command)}: it did not start")
    return line.removeprefix("ready ").strip()


def run(kind: str, farpool: str, suite: Path, tests: list[str]) -> bool:
    """Runs the tests on one kind of mount. Reports whether all passed."""
    with ExitStack() as stack:
        # PostgreSQL's user may enter this folder.
        folder = Path(tempfile.mkdtemp(prefix="farpool-pg-suite-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        pool = start(stack, farpool, "broker", "--listen", "127.0.0.1:0", "--store", "memory")
        start(stack, farpool, "node", "--name", "postgres-suite", "--broker", pool, "--memory", "4GiB")
        for name in ("data", "kept", "told"):
            (folder / name).mkdir(mode=0o700)
            shutil.chown(folder / name, postgres.USER, postgres.USER)
        at = str(folder / "data")
        sizes = ["--size", "1GiB", "--local-cache", "0B"]
        where = {
            "scratch": ["scratch", at, "--pool", pool, "--protection", "none"],
            "cached": ["cache", str(folder / "kept"), at, "--pool", pool, *sizes, "--exclusive"],
        }
        mount = postgres.Mount(farpool, *where[kind])
        stack.callback(mount.stop)
        server = postgres.Postgres(folder, max_prepared_transactions=2)
        stack.callback(server.stop, "immediate")
        server.patience_seconds = SUITE_SECONDS
        for name in ("regress", "libraries"):
            shutil.copytree(suite / name, folder / name)
        began = time.monotonic()
        done = server.tool(
            str(PG_REGRESS),
            f"--inputdir={folder / 'regress'}",
            f"--outputdir={folder / 'told'}",
            f"--dlpath={folder / 'libraries'}",
            f"--bindir={Path(postgres.tool('psql')).parent}",
            f"--host={folder}",
            f"--user={postgres.USER}",
            *(tests or [f"--schedule={folder / 'regress' / 'parallel_schedule'}", "--max-connections=8"]),
            check=False,
        )
        failed = re.findall(r"^(?:test|    ) ?(\S+) +\.\.\. FAILED", done.stdout, re.MULTILINE)
        count = len(re.findall(r"\.\.\. (?:ok|FAILED)", done.stdout))
        print(
            f"postgres-suite: {kind} mount: {count} tests, {len(failed)} failed, {time.monotonic() - began:.0f} s",
            flush=True,
        )
        if done.returncode != 0:
            print(done.stdout, done.stderr)
            differences = folder / "told" / "regression.diffs"
            print(differences.read_text() if differences.is_file() else server.log())
        return done.returncode == 0 and count > 0


def main() -> None:
    """Runs the tests on both kinds of mount. Fails if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", type=Path, required=True, help="the folder that build.sh made")
    parser.add_argument("--farpool", required=True, help="the farpool command")
    parser.add_argument("tests", nargs="*", help="names of tests [default: all]")
    arguments = parser.parse_args()
    kinds = ("scratch", "cached")
    passed = [run(kind, arguments.farpool, arguments.suite, arguments.tests) for kind in kinds]
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
