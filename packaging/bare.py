#!/usr/bin/env python3
"""Installs each package on a bare system, and runs a pool and a DuckDB query that spills there: `make dist-test`.

    bare.py --packages DIR --cache DIR

The system is a root file system of Debian 11, whose glibc (2.31) is the oldest that Debian's mirrors still have, with
Python 3.11 built from Debian's sources, because Debian 11 has 3.9. It has no compiler, no sources, and no network. The
commands are those that a user types, at most five for each package, and the limit is a minute.

Needs root, mmdebstrap, and the mirrors of Debian and PyPI when it makes the root for the first time.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SUITE = "bullseye"
SOURCES = ("python3.11", ROOT / "engines" / "debian-source.sh")
# Packages that Python needs to be built, and to run.
TO_BUILD = "gcc,make,libc6-dev,zlib1g-dev,libssl-dev,libffi-dev,libbz2-dev,libexpat1-dev,liblzma-dev"
TO_RUN = "libexpat1,libffi7,libssl1.1"
# Packages that the query needs beside the wheel.
CLIENT = ("duckdb==2.0.0", "fsspec==2026.9.0", "pyarrow==26.0.1")
COMPILERS = ("cc", "gcc", "clang", "cargo", "rustc", "zig")
COMMANDS_MAX = 5
SECONDS_MAX = 60.0
# How long one command may take before it is ended.
PATIENCE_SECONDS = 300
POOL = "farpool://127.0.0.1:7700"
USER = 65532
PYTHON = "/opt/python/bin/python3.11"
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin:/opt/python/bin",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
}
BROKER = "farpool broker --listen 127.0.0.1:7700"
NODE = f"farpool node --name n1 --memory 1GiB --no-reserve --broker {POOL}"


class Failed(Exception):
    """A package that does not do what it should on the bare system."""


def run(command: list[str | Path], **more) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))}: exit code {done.returncode}: {done.stdout[-2000:]}")
    return done.stdout


def archive() -> str:
    """Returns the archive that this machine takes Debian's packages from."""
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)"], check=True, capture_output=True, text=True
    )
    return next(address for address in listed.stdout.split() if "security" not in address)


def system(cache: Path, name: str, packages: str) -> Path:
    """Returns a root file system of the suite with some packages more, as a tar. Makes it if there is none."""
    made = cache / f"{SUITE}-{name}.tar"
    if not made.is_file():
        partial = cache / f"{SUITE}-{name}.partial.tar"
        source = f"deb {archive()} {SUITE} main"
        run(["mmdebstrap", "--variant=minbase", "--mode=root", f"--include={packages}", SUITE, partial, source])
        partial.rename(made)
    return made


def python(cache: Path) -> Path:
    """Returns Python 3.11 for the bare system as a tar of /opt/python. Builds it in a root of the same suite."""
    made = cache / f"{SUITE}-python.tar"
    if made.is_file():
        return made
    builder = system(cache, "builder", TO_BUILD)
    with tempfile.TemporaryDirectory(dir=cache) as place:
        root = Path(place, "root")
        root.mkdir()
        run(["tar", "--extract", "--file", builder, "--directory", root])
        package, fetch = SOURCES
        # The newest version is not on every mirror as source.
        told = run(["apt-cache", "madison", package])
        versions = list(dict.fromkeys(line.split("|")[1].strip() for line in told.splitlines()))
        for version in versions:
            if subprocess.run([fetch, f"{package}={version}", root / "source"]).returncode == 0:
                break
        else:
            raise Failed(f"none of the versions {versions} of {package} can be had as source")
        # Debian's sources have no expat, and the module that uses the system's needs this definition.
        modules = "pyexpat pyexpat.c -DPy_BUILD_CORE_MODULE -lexpat\n"
        (root / "source/Modules/Setup.local").write_text(f"*shared*\n{modules}")
        for step in (
            "./configure --quiet --prefix=/opt/python --with-ensurepip=no --with-system-expat",
            "make --quiet -j2",
            "make --quiet install",
        ):
            run(["chroot", root, "sh", "-c", f"cd /source && {step}"], env=ENVIRONMENT)
        shutil.rmtree(root / "opt/python/lib/python3.11/test")
        run(["tar", "--create", "--file", made.with_suffix(".partial"), "--directory", root, "opt/python"])
    made.with_suffix(".partial").rename(made)
    return made


def wheels(cache: Path) -> Path:
    """Returns a folder with the wheels that the query needs beside ours."""
    folder = cache / "wheels"
    if not folder.is_dir():
        partial = cache / "wheels.partial"
        shutil.rmtree(partial, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        run([*command, "--only-binary=:all:", "--python-version", "3.11", "--dest", partial, *CLIENT])
        partial.rename(folder)
    return folder


class System:
    """The bare system in its namespaces. Only root's side of them is used: this process is in them too."""

    def __init__(self, root: Path):
        self.root = root
        self.servers: list[subprocess.Popen] = []
        self.commands = 0
        self.begun = time.monotonic()

    def enter(self, command: str) -> list[str | Path]:
        return ["chroot", self.root, "bash", "-c", command]

    def type(self, command: str) -> str:
        """Runs a command as a user would type it, counts it, and prints its time."""
        self.commands += 1
        begun = time.monotonic()
        told = self.also(command)
        print(f"  {self.commands}. {command}   ({time.monotonic() - begun:.1f} s)")
        return told

    def also(self, command: str) -> str:
        """Runs a command that is no part of what a user types."""
        return run(self.enter(command), env=ENVIRONMENT, timeout=PATIENCE_SECONDS)

    def serve(self, command: str, given: list[str | Path] | None = None) -> str:
        """Starts a server, counts it, and waits until it is ready. Returns what it said."""
        self.commands += 1
        begun = time.monotonic()
        given = given or self.enter(f"exec {command}")
        server = subprocess.Popen(given, env=ENVIRONMENT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        self.servers.append(server)
        signal.alarm(PATIENCE_SECONDS)
        said = server.stdout.readline()
        signal.alarm(0)
        if not said.startswith("ready "):
            raise Failed(f"{command}: said {said!r} instead of being ready")
        print(f"  {self.commands}. {command} &   ({time.monotonic() - begun:.1f} s)")
        return said

    def again(self) -> None:
        """Starts to count commands and time."""
        self.commands, self.begun = 0, time.monotonic()

    def done(self, name: str) -> None:
        """Checks that the package took few commands and little time."""
        seconds = time.monotonic() - self.begun
        if self.commands > COMMANDS_MAX or seconds > SECONDS_MAX:
            raise Failed(
                f"{name}: {self.commands} commands and {seconds:.0f} s; "
                f"{COMMANDS_MAX} and {SECONDS_MAX:.0f} s are permitted"
            )
        print(f"{name}: from the package to a query that spilled in {self.commands} commands and {seconds:.1f} s")

    def end(self) -> None:
        """Ends the servers, and checks that each ends in good order."""
        for server in reversed(self.servers):
            # The parent of a process in namespaces ignores the signal.
            children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
            is_parent = server.args[0] == "unshare"
            os.kill(int(children[0]) if is_parent else server.pid, signal.SIGTERM)
            if server.wait(timeout=PATIENCE_SECONDS) != 0:
                raise Failed(f"{server.args}: exit code {server.returncode} after SIGTERM")
        self.servers = []


def check_bare(system: System) -> None:
    """Checks that the system has no compiler and no network."""
    for name in COMPILERS:
        if (
            subprocess.run(system.enter(f"command -v {name}"), env=ENVIRONMENT, stdout=subprocess.DEVNULL).returncode
            == 0
        ):
            raise Failed(f"the bare system has {name}")
    devices = [line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    if devices != ["lo"]:
        raise Failed(f"the bare system has a network: {devices}")
    glibc, name = (
        system.also("ldd --version").splitlines()[0],
        system.also(". /etc/os-release; echo $PRETTY_NAME").strip(),
    )
    print(f"bare system: {name}, {glibc}, {system.also(PYTHON + ' --version').strip()}")


def with_wheel(system: System) -> None:
    system.type(f"{PYTHON} -m venv /opt/farpool")
    system.type("/opt/farpool/bin/pip install --quiet --no-index --find-links /packages 'farpool[duckdb]'")
    system.serve(f"/opt/farpool/bin/{BROKER}")
    system.serve(f"/opt/farpool/bin/{NODE}")
    system.type("/opt/farpool/bin/python /packages/query.py")
    system.done("wheel")
    system.also(f"/opt/farpool/bin/farpool sql --pool {POOL} -c 'SELECT 1'")
    system.end()


def with_tarball(system: System) -> None:
    system.type("tar -xzf /packages/farpool-*-x86_64.tar.gz -C /usr/local --strip-components 1")
    system.serve(BROKER)
    system.serve(NODE)
    system.type("/opt/farpool/bin/python /packages/query.py")
    system.done("tarball")
    system.also(f"farpool sql --pool {POOL} -c 'SELECT 1'")
    system.end()
    system.also(
        "cd /packages && tar -tzf farpool-*-x86_64.tar.gz | cut -d/ -f2- | grep -v '/$' | (cd /usr/local && xargs rm)"
    )


def with_deb(system: System) -> None:
    system.type("dpkg --install /packages/farpool_*_amd64.deb")
    system.serve(f"setpriv --reuid farpool --regid farpool --clear-groups {BROKER}")
    system.serve(f"setpriv --reuid farpool --regid farpool --clear-groups {NODE}")
    system.type("/opt/farpool/bin/python /packages/query.py")
    system.done("deb")
    system.also(f"farpool sql --pool {POOL} -c 'SELECT 1'")
    # mount(8) and fstab(5) know the type. The user of the services is there.
    system.also("mkdir /far && echo 'farpool /far farpool allow_other,protection=none 0 0' >> /etc/fstab && mount /far")
    system.also(
        "id farpool && echo far > /far/file && grep -q far /far/file && grep ' /far fuse' /proc/mounts && mount --all"
    )
    if system.also("grep -c ' /far fuse' /proc/mounts").strip() != "1":
        raise Failed("mount --all mounted /far again")
    system.also("umount /far")
    system.end()
    system.also("dpkg --purge farpool && ! command -v farpool && ! ls /etc/farpool /var/lib/farpool")


def with_image(system: System) -> None:
    """Runs the image as a container runtime would: unpacked, as its user, with a root file system that is read only."""
    [archive] = system.root.glob("packages/*.oci.tar")
    place = system.root.parent / "image"
    begun = time.monotonic()
    config = unpack_image(archive, place)
    system.commands += 1
    print(f"  {system.commands}. (a runtime loads the image)   ({time.monotonic() - begun:.1f} s)")
    entry = config["Entrypoint"]
    for arguments in (BROKER, NODE):
        system.serve(f"(image) {arguments}", container(place, config, [*entry, *arguments.split()[1:]]))
    system.type("/opt/farpool/bin/python /packages/query.py")
    system.done("image")
    told = run(container(place, config, [*entry, "sql", "--pool", POOL, "-c", "SELECT 1"]), timeout=PATIENCE_SECONDS)
    if "1" not in told:
        raise Failed(f"farpool sql of the image said {told}")
    system.end()


def unpack_image(archive: Path, place: Path) -> dict:
    """Unpacks the layers of an image into a folder. Returns how it is run."""
    with tarfile.open(archive) as image:

        def blob(digest: str) -> bytes:
            return image.extractfile(f"blobs/sha256/{digest.removeprefix('sha256:')}").read()

        index = json.load(image.extractfile("index.json"))
        manifest = json.loads(blob(index["manifests"][0]["digest"]))
        place.mkdir()
        for layer in manifest["layers"]:
            run(["tar", "--extract", "--gzip", "--directory", place], input=None, stdin=spooled(blob(layer["digest"])))
        return json.loads(blob(manifest["config"]["digest"]))["config"]


def spooled(data: bytes):
    held = tempfile.TemporaryFile()
    held.write(data)
    held.seek(0)
    return held


def container(place: Path, config: dict, command: list[str]) -> list[str | Path]:
    """Returns the command that runs a command in an image, in namespaces of its own for mounts and processes."""
    user, group = config["User"].split(":")
    volumes = " ".join(config["Volumes"])
    script = f"""set -e
        cd {place}
        mount --bind . . && cd {place}
        mount -t proc proc proc
        mount --bind /dev dev
        for volume in {volumes}; do mount -t tmpfs -o uid={user},gid={group},mode=750 tmpfs .$volume; done
        mount -o remount,bind,ro .
        ! touch ./written 2> /dev/null || {{ echo "the root file system can be written to"; exit 1; }}
        exec unshare --root=. --wd={config["WorkingDir"]} --setgid={group} --setuid={user} -- "$@" """
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child=TERM", "sh", "-c", script, "sh", *command]


KINDS = {"wheel": with_wheel, "tarball": with_tarball, "deb": with_deb, "image": with_image}


def make_network() -> None:
    """Gives the loopback device of this network namespace its address."""
    set_address, set_flags, up_and_running = 0x8916, 0x8914, 0x41
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        address = struct.pack("16sH2x4s8x", b"lo", socket.AF_INET, socket.inet_aton("127.0.0.1"))
        fcntl.ioctl(any_socket, set_address, address)
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sH22x", b"lo", up_and_running))


def make_devices(root: Path) -> None:
    for name in ("null", "zero", "full", "random", "urandom", "tty", "fuse"):
        device = Path("/dev", name)
        if device.exists():
            target = root / "dev" / name
            target.touch()
            run(["mount", "--bind", device, target])
    run(["mount", "-t", "proc", "proc", root / "proc"])
    run(["mount", "-t", "tmpfs", "tmpfs", root / "tmp"])


def inside(root: Path, kinds: list[str]) -> None:
    """Does everything in the namespaces."""
    make_network()
    make_devices(root)
    system = System(root)
    check_bare(system)
    for kind in kinds:
        system.again()
        KINDS[kind](system)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", type=Path, required=True, help="folder of the packages")
    parser.add_argument("--cache", type=Path, required=True, help="folder for what is fetched and built once")
    parser.add_argument("--only", default=",".join(KINDS), help="kinds of packages, separated by commas")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    # The other packages bring no Python module: the wheel is their client.
    kinds = list(dict.fromkeys(["wheel", *args.only.split(",")]))
    try:
        if args.inside:
            return inside(args.inside, kinds)
        cache = args.cache.resolve()
        cache.mkdir(parents=True, exist_ok=True)
        parts = [system(cache, "bare", TO_RUN), python(cache)]
        others = wheels(cache)
        with tempfile.TemporaryDirectory(dir=cache) as place:
            root = Path(place, "root")
            (root / "packages").mkdir(parents=True)
            for part in parts:
                run(["tar", "--extract", "--file", part, "--directory", root])
            for path in [*args.packages.iterdir(), *others.iterdir(), HERE / "query.py"]:
                if path.is_file():
                    shutil.copy(path, root / "packages")
            own = [
                "unshare",
                "--mount",
                "--pid",
                "--net",
                "--fork",
                "--kill-child",
                "--mount-proc",
                sys.executable,
                __file__,
            ]
            more = ["--packages", args.packages, "--cache", cache, "--only", args.only, "--inside", root]
            if code := subprocess.run([*own, *more]).returncode:
                sys.exit(code)
    except Failed as error:
        sys.exit(f"dist-test: {error}")


if __name__ == "__main__":
    main()
