"""The project's Python environment and programs, which some of the papers' experiments run in.

The scripts may be started by any Python from 3.11 on: this builds what is missing by `make wheel`, and starts them
again inside of the environment.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("CACHE", Path.home() / ".cache" / "farpool"))
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", CACHE / "target"))
# The programs of a release, unless others are to be looked at.
PROGRAMS = Path(os.environ.get("FARPOOL_PROGRAMS", TARGET / "release"))
# Engines run on one thread each; Polars reads this when it is loaded, and pyarrow knows OMP's variable.
ONE_THREAD = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}


def program(name: str) -> str:
    """Returns the path of a program of this checkout."""
    return str(PROGRAMS / name)


def folder() -> Path:
    """Returns where the Makefile keeps the environment: its name depends on what it must hold."""
    wanted = (ROOT / "engines" / "python" / "pyproject.toml").read_bytes()
    return CACHE / f"venv-{hashlib.sha256(wanted).hexdigest()[:12]}"


def python() -> str:
    """Returns the path of the environment's Python."""
    return str(folder() / "bin" / "python")


def build(*packages: str) -> None:
    """Builds the wheel, the programs of the packages that are named, and the environment."""
    print("building the wheel and the programs ...", file=sys.stderr)
    places = os.environ | {"CACHE": str(CACHE), "CARGO_TARGET_DIR": str(TARGET)}
    named = [word for package in packages for word in ("--package", package)]
    for command in (["make", "--silent", "wheel"], ["cargo", "build", "--quiet", "--release", "--locked", *named]):
        subprocess.run(command, check=True, cwd=ROOT, env=places, stdout=sys.stderr)


def enter() -> None:
    """Returns inside of the environment; outside of it, starts this script again there."""
    if Path(sys.prefix).resolve() == folder().resolve() and ONE_THREAD.items() <= os.environ.items():
        return
    if not Path(python()).exists():
        sys.exit(f"there is no {python()}: without --no-build it is made")
    os.execve(python(), [python(), *sys.argv], os.environ | ONE_THREAD)
