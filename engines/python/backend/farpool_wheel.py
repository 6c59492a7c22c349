"""Builds the wheel: the module built by maturin, and the programs `farpool` and `farpool-sandbox`.

This is a build backend of PEP 517, so `pip install ./engines/python` installs all of it. Cargo builds the programs,
unless the environment variable FARPOOL_PROGRAMS names a folder with them. They are copied to the folder from which
maturin takes a wheel's scripts. With `--config-settings sql=yes`, the wheel has `farpool-sql` too, which takes most of
the time to build.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import maturin

PYTHON = Path(__file__).resolve().parents[1]
SCRIPTS = PYTHON / "farpool.data" / "scripts"
# Names of the programs, by cargo package.
PROGRAMS = {"farpool-cli": "farpool", "farpool-sandbox": "farpool-sandbox"}
SQL = {"farpool-sql": "farpool-sql"}

get_requires_for_build_wheel = maturin.get_requires_for_build_wheel
get_requires_for_build_editable = maturin.get_requires_for_build_editable


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    SCRIPTS.mkdir(parents=True, exist_ok=True)
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    bring_programs(config_settings)
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    bring_programs(config_settings)
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


def bring_programs(config_settings: dict | None) -> None:
    wanted = (config_settings or {}).get("sql", "no")
    if wanted not in ("yes", "no"):
        raise ValueError(f"--config-settings sql={wanted}: yes or no is permitted")
    programs = PROGRAMS | SQL if wanted == "yes" else PROGRAMS
    built = os.environ.get("FARPOOL_PROGRAMS")
    folder = Path(built) if built else build_programs(programs)
    # A program of an earlier build with other settings must not be in this wheel.
    shutil.rmtree(SCRIPTS, ignore_errors=True)
    SCRIPTS.mkdir(parents=True)
    for name in programs.values():
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"no {name} in {folder}, which FARPOOL_PROGRAMS names: `make sandbox sql` builds it"
            )
        shutil.copy2(folder / name, SCRIPTS / name)
        # Symbols are half of their size. Without `strip` the programs are only larger.
        if strip := shutil.which("strip"):
            subprocess.run([strip, SCRIPTS / name], check=True)


def build_programs(programs: dict[str, str]) -> Path:
    """Builds the programs and returns cargo's output folder."""
    packages = [word for package in programs for word in ("--package", package)]
    subprocess.run(["cargo", "build", "--release", "--locked", *packages], cwd=PYTHON.parent, check=True)
    told = subprocess.run(
        ["cargo", "metadata", "--format-version=1", "--no-deps", "--locked"],
        cwd=PYTHON.parent,
        check=True,
        stdout=subprocess.PIPE,
    )
    return Path(json.loads(told.stdout)["target_directory"]) / "release"
