"""Contents of each package, made of the programs and of the files of this folder.

One list of installed files serves the Debian package, the tarball and the image, so that they cannot differ. The
programs come from wherever the caller built them.
"""

from __future__ import annotations

import gzip
import re
import subprocess
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

import archives
from archives import Entry, file, folder

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).resolve().parent
SHELLS = {
    "bash": "usr/share/bash-completion/completions/farpool",
    "fish": "usr/share/fish/vendor_completions.d/farpool.fish",
    "zsh": "usr/share/zsh/vendor-completions/_farpool",
}
PROGRAMS = ("farpool", "farpool-csi", "farpool-sandbox", "farpool-sql")
# Oldest glibc with which the programs run: that of manylinux_2_28.
GLIBC = "2.28"
# User of the image. Not in any range that systems assign.
IMAGE_USER = 65532
IMAGE = "farpool"
# Folder of the image's loader and libraries, and of the loader's name in the programs.
LIBRARIES = "lib/x86_64-linux-gnu"


@dataclass(frozen=True)
class Release:
    version: str
    commit: str
    # Time of the commit, in s since 1970. Every file has it.
    epoch: int
    # Folder with the programs.
    programs: Path
    # Texts for people who pass the programs on.
    licences: str
    bill: str
    # Manual pages and completions.
    manual: tuple[Entry, ...] = ()


def version() -> str:
    return tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]


def manual(program: Path) -> tuple[Entry, ...]:
    """Returns manual pages and completions, as the program writes them. Those of `farpool sql` are among them if
    farpool-sql is beside the program."""
    with tempfile.TemporaryDirectory() as place:
        subprocess.run([program, "man", place], check=True)
        pages = [
            Entry(f"usr/share/man/man1/{page.name}.gz", gzip.compress(page.read_bytes(), 9, mtime=0))
            for page in Path(place).iterdir()
        ]
    told = {
        path: subprocess.run([program, "completions", shell], check=True, stdout=subprocess.PIPE).stdout
        for shell, path in SHELLS.items()
    }
    return (*pages, *(Entry(path, script) for path, script in told.items()))


def installed(release: Release) -> list[Entry]:
    """Returns the files of the Debian package."""
    about = "usr/share/doc/farpool"
    entries = [Entry(f"usr/bin/{name}", (release.programs / name).read_bytes(), 0o755) for name in PROGRAMS]
    entries += [
        file(f"usr/lib/systemd/system/{unit.name}", unit) for unit in sorted((HERE / "systemd").glob("*.service"))
    ]
    # mount(8) looks for helpers in /sbin alone.
    entries.append(Entry("sbin/mount.farpool", link="/usr/bin/farpool"))
    entries.append(file("etc/farpool/farpool.toml", HERE / "farpool.toml"))
    entries += [file(f"{about}/{name}", ROOT / name) for name in ("CHANGELOG.md", "README.md", "SECURITY.md")]
    entries.append(file(f"{about}/copyright", copyright_file()))
    entries.append(file(f"{about}/THIRD-PARTY-LICENSES.txt", release.licences))
    entries.append(file(f"{about}/farpool.cdx.json", release.bill))
    return [*entries, *release.manual]


def copyright_file() -> str:
    return (
        "Copyright: The Farpool authors\nLicense: Apache-2.0, whose text follows. The licences of the libraries in the "
        "programs are in THIRD-PARTY-LICENSES.txt.\n\n" + (ROOT / "LICENSE").read_text()
    )


def debian(release: Release, preset: int = archives.XZ_PRESET) -> bytes:
    """Returns the Debian package."""
    data = installed(release)
    size_kib = sum(len(entry.content or b"") for entry in data) // 1024
    about = f"""Package: farpool
Version: {release.version}
Architecture: amd64
Maintainer: The Farpool authors <farpool@localhost>
Installed-Size: {size_kib}
Depends: libc6 (>= {GLIBC}), passwd
Recommends: fuse3
Section: database
Priority: optional
Description: far memory for database engines
 Nodes lend idle RAM of their machines to a pool, a broker decides who gets
 how much, and engines such as DuckDB, DataFusion, SQLite and PostgreSQL use
 it as files. This package has the programs, and systemd units for broker,
 node, mount and SQL worker, none of which is started.
"""
    control = [file("control", about), file("conffiles", "/etc/farpool/farpool.toml\n")]
    control += [file(script.name, script, 0o755) for script in sorted((HERE / "debian").iterdir())]
    return archives.deb(control, data, release.epoch, preset)


def tarball(release: Release) -> bytes:
    """Returns the tarball: the files of the Debian package, to be unpacked in /usr/local or wherever one likes."""
    entries = []
    for entry in installed(release):
        path = entry.path.removeprefix("usr/")
        content = entry.content
        if path.endswith(".service") and content is not None:
            content = content.replace(b"/usr/bin/", b"/usr/local/bin/")
            settings = b"[Service]\nEnvironment=FARPOOL_CONFIG=/usr/local/etc/farpool/farpool.toml\n"
            content = content.replace(b"[Service]\n", settings)
        link = None if entry.link is None else entry.link.replace("/usr/bin/", "../bin/")
        entries.append(Entry(path, content, entry.mode, link, entry.owner))
    return archives.gzipped(archives.tar(entries, release.epoch, f"farpool-{release.version}-x86_64/"))


def needed(program: Path) -> set[str]:
    """Returns the names of the libraries that a program is linked with."""
    told = subprocess.run(
        ["readelf", "--dynamic", "--wide", program], check=True, capture_output=True, text=True
    ).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", told))


def newest_glibc(program: Path) -> str:
    """Returns the newest version of glibc of which a program needs a symbol."""
    told = subprocess.run(["readelf", "--version-info", "--wide", program], check=True, capture_output=True, text=True)
    found = re.findall(r"Name: GLIBC_([0-9.]+)", told.stdout)
    return max(found, key=lambda one: [int(part) for part in one.split(".")], default="none")


def image(release: Release, libraries: Path, origin: str) -> bytes:
    """Returns the OCI image. `libraries` is a folder with glibc, whose origin the image names."""
    wanted = set().union(*(needed(release.programs / name) for name in PROGRAMS)) | {
        "ld-linux-x86-64.so.2",
        "libc.so.6",
    }
    if missing := sorted(name for name in wanted if not (libraries / name).is_file()):
        raise ValueError(f"the programs need {', '.join(missing)}, which {origin} does not have")
    base = [Entry(f"{LIBRARIES}/{name}", (libraries / name).read_bytes(), 0o755) for name in sorted(wanted)]
    base += [
        Entry("lib64/ld-linux-x86-64.so.2", link=f"/{LIBRARIES}/ld-linux-x86-64.so.2"),
        file("etc/passwd", f"root:x:0:0::/:/none\nfarpool:x:{IMAGE_USER}:{IMAGE_USER}::/var/lib/farpool:/none\n"),
        file("etc/group", f"root:x:0:\nfarpool:x:{IMAGE_USER}:\n"),
        file("etc/nsswitch.conf", "hosts: files dns\n"),
        # Mount points, which a read-only root file system must have.
        *(folder(name) for name in ("dev", "proc", "sys", "etc/farpool")),
        folder("tmp", 0o1777),
        folder("var/lib/farpool", 0o750, IMAGE_USER),
    ]
    notice = libraries / "copyright"
    if notice.is_file():
        base.append(file("usr/share/doc/libc6/copyright", notice))
    programs = [entry for entry in installed(release) if entry.path.startswith(("usr/bin/", "usr/share/doc/"))]
    config = {
        "User": f"{IMAGE_USER}:{IMAGE_USER}",
        "Env": ["PATH=/usr/bin"],
        "Entrypoint": ["/usr/bin/farpool"],
        "Cmd": ["--help"],
        "WorkingDir": "/var/lib/farpool",
        "Volumes": {"/var/lib/farpool": {}},
        "StopSignal": "SIGTERM",
    }
    labels = {
        "org.opencontainers.image.title": "farpool",
        "org.opencontainers.image.version": release.version,
        "org.opencontainers.image.revision": release.commit,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.base.name": origin,
    }
    return archives.image([base, programs], config, release.epoch, f"{IMAGE}:{release.version}", labels)
