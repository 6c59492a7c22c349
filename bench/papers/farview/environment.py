"""The Python environment and the programs that the figures need, made once and kept in the cache folder.

The script may be started by any Python from 3.11 on: it makes a private environment of pinned packages, builds the
command, the wheel and RCPU from this checkout, and goes on inside of it.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
CACHE = Path(os.environ.get("CACHE", Path.home() / ".cache" / "farpool"))
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", CACHE / "target"))
# Engines run on one thread each; Polars reads this when it is loaded, and pyarrow knows OMP's variable.
ONE_THREAD = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}


def program(name: str) -> str:
    """The path of a program of this checkout."""
    return str(TARGET / "release" / name)


def folder() -> Path:
    """Of the environment: keyed by what it must hold, so that checkouts with other needs do not disturb each other."""
    wanted = (HERE / "requirements.txt").read_bytes()
    return CACHE / f"farview-venv-{hashlib.sha256(wanted).hexdigest()[:12]}"


def call(*command: object) -> None:
    subprocess.run(
        [str(word) for word in command], check=True, cwd=ROOT, env=os.environ | {"CARGO_TARGET_DIR": str(TARGET)}
    )


def prepare(build: bool) -> None:
    """Returns inside of the environment, which it makes if need be; outside of it, starts this script there."""
    environment = folder()
    python = environment / "bin" / "python"
    if Path(sys.prefix).resolve() == environment.resolve():
        return
    if not (environment / ".ready").exists():
        print(f"making {environment.name} ...", file=sys.stderr)
        call(sys.executable, "-m", "venv", "--clear", environment)
        call(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", HERE / "requirements.txt")
        (environment / ".ready").touch()
        build = True
    if build:
        print("building the farpool command, RCPU and the wheel ...", file=sys.stderr)
        packages = ["--package", "farpool-cli", "--package", "farpool-farview-rcpu"]
        call("cargo", "build", "--quiet", "--release", "--locked", *packages)
        wheels = TARGET / "wheels"
        wheel = ["--quiet", "--release", "--locked", "--manifest-path", ROOT / "python" / "Cargo.toml", "--out", wheels]
        call(environment / "bin" / "maturin", "build", "--interpreter", python, *wheel)
        install = ["--quiet", "--disable-pip-version-check", "--force-reinstall", "--no-deps", "--no-index"]
        call(python, "-m", "pip", "install", *install, "--find-links", wheels, "farpool")
    os.execve(python, [str(python), *sys.argv], os.environ | ONE_THREAD)
