"""The project's Python environment and programs, in which some of the papers' experiments run.

The scripts can be started with any Python from 3.11 on. This module builds missing parts with `make wheel` and starts
the script again in the environment.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("CACHE", Path.home() / ".cache" / "farpool"))
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", CACHE / "target"))
# Folder of the programs to measure: the release build, unless FARPOOL_PROGRAMS names another.
PROGRAMS = Path(os.environ.get("FARPOOL_PROGRAMS", TARGET / "release"))
# Engines run on one thread each. Polars reads the first variable when it is loaded, pyarrow the second.
ONE_THREAD = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}


def program(name: str) -> str:
    """Returns the path of a program of this checkout."""
    return str(PROGRAMS / name)


def folder() -> Path:
    """Returns the folder in which the Makefile keeps the environment. Its name depends on the packages in it."""
    wanted = (ROOT / "engines" / "python" / "pyproject.toml").read_bytes()
    return CACHE / f"venv-{hashlib.sha256(wanted).hexdigest()[:12]}"


def python() -> str:
    """Returns the path of the environment's Python."""
    return str(folder() / "bin" / "python")


def build(*packages: str) -> None:
    """Builds the wheel, the programs of the given packages, and the environment."""
    print("building the wheel and the programs ...", file=sys.stderr)
    places = os.environ | {"CACHE": str(CACHE), "CARGO_TARGET_DIR": str(TARGET)}
    named = [word for package in packages for word in ("--package", package)]
    for command in (["make", "--silent", "wheel"], ["cargo", "build", "--quiet", "--release", "--locked", *named]):
        subprocess.run(command, check=True, cwd=ROOT, env=places, stdout=sys.stderr)


def enter() -> None:
    """Returns if this Python is that of the environment. Otherwise starts this script again with that Python."""
    if Path(sys.prefix).resolve() == folder().resolve() and ONE_THREAD.items() <= os.environ.items():
        return
    if not Path(python()).exists():
        sys.exit(f"there is no {python()}: without --no-build it is made")
    os.execve(python(), [python(), *sys.argv], os.environ | ONE_THREAD)
