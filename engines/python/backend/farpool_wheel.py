"""Builds the wheel: what maturin makes, and beside it the programs `farpool` and `farpool-sandbox`.

A backend of PEP 517, so that `pip install ./engines/python` brings all of it. Cargo builds the programs unless the
environment variable FARPOOL_PROGRAMS names a folder that has them; they are put where maturin takes a wheel's scripts
from.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import maturin

PYTHON = Path(__file__).resolve().parents[1]
SCRIPTS = PYTHON / "farpool.data" / "scripts"
# Of these packages, the programs of these names.
PROGRAMS = {"farpool-cli": "farpool", "farpool-sandbox": "farpool-sandbox"}

get_requires_for_build_wheel = maturin.get_requires_for_build_wheel
get_requires_for_build_editable = maturin.get_requires_for_build_editable


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    SCRIPTS.mkdir(parents=True, exist_ok=True)
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    bring_programs()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    bring_programs()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


def bring_programs() -> None:
    built = os.environ.get("FARPOOL_PROGRAMS")
    folder = Path(built) if built else build_programs()
    SCRIPTS.mkdir(parents=True, exist_ok=True)
    for name in PROGRAMS.values():
        if not (folder / name).is_file():
            raise FileNotFoundError(f"no {name} in {folder}, which FARPOOL_PROGRAMS names: `make sandbox` builds it")
        shutil.copy2(folder / name, SCRIPTS / name)
        # Symbols are half of them. Without the tool they are just larger.
        if strip := shutil.which("strip"):
            subprocess.run([strip, SCRIPTS / name], check=True)


def build_programs() -> Path:
    """The folder where cargo puts them."""
    packages = [word for package in PROGRAMS for word in ("--package", package)]
    subprocess.run(["cargo", "build", "--release", "--locked", *packages], cwd=PYTHON.parent, check=True)
    told = subprocess.run(
        ["cargo", "metadata", "--format-version=1", "--no-deps", "--locked"],
        cwd=PYTHON.parent,
        check=True,
        stdout=subprocess.PIPE,
    )
    return Path(json.loads(told.stdout)["target_directory"]) / "release"
