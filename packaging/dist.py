#!/usr/bin/env python3
"""Builds the packages of a release: `make dist`.

    dist.py [--out DIR] [--target DIR] [--only KIND,..]     builds all packages, or some: wheel, tarball, deb, image
    dist.py --compare [--out DIR]                           builds all again elsewhere, and compares the bytes

The programs are linked by zig with glibc 2.28, so that they run wherever manylinux_2_28 does. Two builds of one commit
give the same bytes: all times are that of the commit, archives are sorted, and folders of this machine appear nowhere.

Needs the tools of requirements.txt in PATH, readelf, and git or the variables FARPOOL_COMMIT and SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import contents
import inventory
import wheels
from contents import GLIBC, PROGRAMS, ROOT, Release

TRIPLE = inventory.TARGET
PLATFORM = "manylinux_2_28"
KINDS = ("wheel", "tarball", "deb", "image")
# PyPI takes no larger file.
WHEEL_BYTES_MAX = 100 << 20
# Debian package with the glibc of the image.
LIBC = "libc6"


class Refused(Exception):
    """A package that must not be published, or a tool that is missing."""


def run(command: list[str | Path], **more) -> str:
    """Runs a program and returns its output."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, **more)
    if done.returncode != 0:
        raise Refused(f"{' '.join(map(str, command))}: exit code {done.returncode}")
    return done.stdout


def commit() -> tuple[str, int]:
    """Returns the commit that is built, and its time in s since 1970."""
    named, at = os.environ.get("FARPOOL_COMMIT"), os.environ.get("SOURCE_DATE_EPOCH")
    if not named or not at:
        told = run(["git", "log", "-1", "--format=%H %ct"], cwd=ROOT).split()
        named, at = named or told[0], at or told[1]
    return named, int(at)


def environment(target: Path, sources: Path, named: str, epoch: int) -> dict[str, str]:
    """Returns the variables with which compilers write no path of this machine into programs."""
    cargo = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    sysroot = Path(run(["rustc", "--print", "sysroot"]).strip())
    folders = {cargo: "/cargo", sources: "/farpool", target: "/target", sysroot: "/rust"}
    rust = [f"--remap-path-prefix={folder}={name}" for folder, name in folders.items()]
    c = [f"-ffile-prefix-map={folder}={name}" for folder, name in folders.items()]
    flags = {"CARGO_ENCODED_RUSTFLAGS": "\x1f".join(rust), "CFLAGS": " ".join(c), "CXXFLAGS": " ".join(c)}
    told = {"FARPOOL_COMMIT": named, "SOURCE_DATE_EPOCH": str(epoch), "CARGO_TARGET_DIR": str(target)}
    # The wrapper that checks lints would compile all crates once more.
    kept = {name: value for name, value in os.environ.items() if name not in ("RUSTFLAGS", "RUSTC_WORKSPACE_WRAPPER")}
    return kept | flags | told


def build_programs(sources: Path, target: Path, variables: dict[str, str]) -> Path:
    """Builds the programs and returns their folder."""
    names = ("farpool-cli", "farpool-csi", "farpool-sandbox", "farpool-sql")
    packages = [word for name in names for word in ("--package", name)]
    command = ["cargo", "zigbuild", "--profile", "dist", "--locked", "--target", f"{TRIPLE}.{GLIBC}", *packages]
    run([*command, *(word for name in PROGRAMS for word in ("--bin", name))], cwd=sources, env=variables)
    return target / TRIPLE / "dist"


def build_wheel(sources: Path, out: Path, release: Release, variables: dict[str, str]) -> Path:
    """Builds the wheel into a folder: the module, and the programs."""
    given = {
        "FARPOOL_PROGRAMS": str(release.programs),
        "MATURIN_PEP517_ARGS": f"--zig --target {TRIPLE} --compatibility {PLATFORM} --locked --profile dist",
    }
    built = out / "wheel"
    shutil.rmtree(built, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-build-isolation", "--config-settings", "sql=yes", "--wheel-dir", built, "./engines/python"]
    run(command, cwd=sources, env=variables | given)
    [path] = built.glob("*.whl")
    texts = {
        "licenses/THIRD-PARTY-LICENSES.txt": release.licences.encode(),
        "licenses/LICENSE": (ROOT / "LICENSE").read_bytes(),
        "sboms/farpool.cdx.json": release.bill.encode(),
    }
    wheel = out / path.name
    wheel.write_bytes(wheels.with_files(path.read_bytes(), texts, release.epoch))
    shutil.rmtree(built)
    return wheel


def check_wheel(wheel: Path) -> None:
    """Checks that the wheel may be published for its platform."""
    size = wheel.stat().st_size
    if size > WHEEL_BYTES_MAX:
        raise Refused(f"{wheel.name} has {size:,} bytes; {WHEEL_BYTES_MAX:,} are permitted")
    if PLATFORM not in wheel.name:
        raise Refused(f"{wheel.name} is not for {PLATFORM}")
    told = run([sys.executable, "-m", "auditwheel", "show", wheel])
    print(told.strip())
    found = re.search(r'platform\s+tag:\s+"manylinux_2_(\d+)_x86_64"', told)
    if not found or int(found[1]) > int(GLIBC.split(".")[1]):
        raise Refused(f"auditwheel finds that {wheel.name} does not run on {PLATFORM}")


def check_glibc(programs: Path) -> None:
    """Checks that no program needs a newer glibc than it was linked for. Prints what each needs."""
    for name in PROGRAMS:
        newest = contents.newest_glibc(programs / name)
        size = (programs / name).stat().st_size
        print(f"{name}: {size / 1e6:.1f} MB, newest symbol GLIBC_{newest}")
        if [int(part) for part in newest.split(".")] > [int(part) for part in GLIBC.split(".")]:
            raise Refused(f"{name} needs GLIBC_{newest}; {GLIBC} is permitted")


def libraries(folder: Path) -> tuple[Path, str]:
    """Fetches Debian's glibc from where this machine's packages come from. Returns the folder of its libraries, and its
    version."""
    if not list(folder.glob("*.deb")):
        folder.mkdir(parents=True, exist_ok=True)
        run(["apt-get", "download", "--quiet", LIBC], cwd=folder)
    [package] = folder.glob("*.deb")
    unpacked = folder / "root"
    run(["dpkg-deb", "-x", package, unpacked])
    found = unpacked / contents.LIBRARIES
    shutil.copy(unpacked / "usr/share/doc" / LIBC / "copyright", found / "copyright")
    version = run(["dpkg-deb", "--field", package, "Version"]).strip()
    return found, f"debian:{LIBC}={version}"


def build(sources: Path, out: Path, target: Path, kinds: tuple[str, ...]) -> list[Path]:
    """Builds packages into a folder, with their digests, and returns their paths."""
    begun = time.monotonic()
    named, epoch = commit()
    variables = environment(target, sources, named, epoch)
    out.mkdir(parents=True, exist_ok=True)
    # The inventory reads all crates, and asks no registry.
    run(["cargo", "fetch", "--quiet", "--locked"], cwd=ROOT)
    found = [*inventory.crates(), inventory.standard_library()]
    version = contents.version()
    bill = inventory.bill_of_materials(version, epoch, found)
    programs = build_programs(sources, target, variables)
    check_glibc(programs)
    manual = contents.manual(programs / PROGRAMS[0])
    release = Release(version, named, epoch, programs, inventory.notices(found), bill, manual)
    made = {f"farpool-{version}.cdx.json": bill.encode(), "THIRD-PARTY-LICENSES.txt": release.licences.encode()}
    if "tarball" in kinds:
        made[f"farpool-{version}-x86_64.tar.gz"] = contents.tarball(release)
    if "deb" in kinds:
        made[f"farpool_{version}_amd64.deb"] = contents.debian(release)
    if "image" in kinds:
        made[f"farpool-{version}-x86_64.oci.tar"] = contents.image(release, *libraries(target / "libc"))
    for name, data in made.items():
        (out / name).write_bytes(data)
    paths = [out / name for name in made]
    if "wheel" in kinds:
        wheel = build_wheel(sources, out, release, variables)
        check_wheel(wheel)
        paths.append(wheel)
    paths.sort()
    digests = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in paths)
    (out / "SHA256SUMS").write_text(digests)
    for path in paths:
        print(f"{path.stat().st_size / 1e6:8.1f} MB  {path.name}")
    print(f"built in {time.monotonic() - begun:.0f} s from commit {named}")
    return paths


def differences(one: bytes, other: bytes) -> str:
    """Says where two files differ."""
    if len(one) != len(other):
        return f"{len(one):,} bytes and {len(other):,} bytes"
    places = [at for at in range(len(one)) if one[at] != other[at]]
    return f"{len(places):,} bytes differ, the first at {places[0]:,}, the last at {places[-1]:,}"


def compare(packages: Path, target: Path) -> None:
    """Builds everything again, from a clean copy of the commit in another folder, and compares with the packages."""
    first = {path.name: path.read_bytes() for path in packages.iterdir()} if packages.is_dir() else {}
    if "SHA256SUMS" not in first:
        raise Refused(f"{packages} has no SHA256SUMS; `make dist` builds the packages first")
    named, epoch = commit()
    os.environ |= {"FARPOOL_COMMIT": named, "SOURCE_DATE_EPOCH": str(epoch)}
    place = target / "built-again"
    shutil.rmtree(place, ignore_errors=True)
    (place / "sources").mkdir(parents=True)
    archive = subprocess.run(["git", "archive", named], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "--extract", "--directory", place / "sources"], input=archive, check=True)
    build(place / "sources", place / "out", place / "target", KINDS)
    second = {path.name: path.read_bytes() for path in (place / "out").iterdir()}
    same = True
    for name in sorted(first | second):
        if first.get(name) == second.get(name):
            print(f"same  {name}")
        else:
            same = False
            print(f"OTHER {name}: {differences(first.get(name, b''), second.get(name, b''))}")
    if not same:
        raise Refused(f"{packages} and a second build of commit {named} differ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the packages")
    parser.add_argument("--target", type=Path, required=True, help="folder for what is built on the way")
    parser.add_argument("--only", default=",".join(KINDS), help="kinds of packages, separated by commas")
    parser.add_argument("--compare", action="store_true", help="build all again and compare with the packages in --out")
    args = parser.parse_args()
    kinds = tuple(args.only.split(","))
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"--only {','.join(sorted(unknown))}: {', '.join(KINDS)} are permitted")
    try:
        if args.compare:
            compare(args.out.resolve(), args.target.resolve())
        else:
            build(ROOT, args.out.resolve(), args.target.resolve(), kinds)
    except (Refused, inventory.Missing) as error:
        sys.exit(f"dist: {error}")


if __name__ == "__main__":
    main()
