#!/usr/bin/env python3
"""Runs the units of the packages under a systemd that boots in a QEMU guest: a part of `make guest-test`.

guest.py PROGRAMS       the folder with farpool, farpool-sandbox and farpool-sql
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import contents

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).resolve().parent


def main(built: Path) -> int:
    with tempfile.TemporaryDirectory(dir=built) as place:
        programs = Path(place, "programs")
        programs.mkdir()
        for name in contents.PROGRAMS:
            subprocess.run(["strip", "-o", programs / name, built / name], check=True)
        release = contents.Release(contents.version(), "0" * 40, 1_790_000_000, programs, "", "")
        package = Path(place, "farpool.deb")
        package.write_bytes(contents.debian(release, preset=0))
        unpacked = Path(place, "unpacked")
        subprocess.run(["dpkg-deb", "--raw-extract", package, unpacked], check=True)
        command = [ROOT / "bench" / "guest" / "run.sh", "--systemd", "bash", HERE / "guest.sh", unpacked]
        return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
