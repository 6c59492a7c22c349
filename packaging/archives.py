"""Archives whose bytes depend on nothing but their content and one time: tar, ar (Debian's packages), and OCI images.

Entries are sorted by path, belong to root unless they say otherwise, and all have the same time. Folders above an entry
are added.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import lzma
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

# Compression of Debian's packages, which their readers of all versions know.
XZ_PRESET = 6


@dataclass(frozen=True)
class Entry:
    # Relative path, without a slash at its end.
    path: str
    # Content of a file; None for a folder or a link.
    content: bytes | None = None
    # Permissions; those of a link do not count.
    mode: int = 0o644
    link: str | None = None
    # Number of the user and the group.
    owner: int = 0


def folder(path: str, mode: int = 0o755, owner: int = 0) -> Entry:
    return Entry(path, None, mode, None, owner)


def file(path: str, source: Path | str, mode: int = 0o644) -> Entry:
    """Returns an entry with the content of a file, or with a text."""
    return Entry(path, source.read_bytes() if isinstance(source, Path) else source.encode(), mode)


def with_folders(entries: Iterable[Entry]) -> list[Entry]:
    """Returns the entries with all folders above them, sorted. Raises ValueError if two have the same path."""
    found: dict[str, Entry] = {}
    for entry in entries:
        if entry.path in found:
            raise ValueError(f"{entry.path} is in the archive twice")
        found[entry.path] = entry
    for path in list(found):
        for parent in Path(path).parents:
            if str(parent) != ".":
                found.setdefault(str(parent), folder(str(parent)))
    return [found[path] for path in sorted(found)]


def tar(entries: Iterable[Entry], epoch: int, prefix: str = "") -> bytes:
    """Returns an uncompressed tar in the format of GNU, which keeps long names."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for entry in with_folders(entries):
            info = tarfile.TarInfo(prefix + entry.path)
            info.mtime, info.mode = epoch, entry.mode
            info.uid = info.gid = entry.owner
            info.uname = info.gname = "" if entry.owner else "root"
            if entry.link is not None:
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.link, 0o777
            elif entry.content is None:
                info.type = tarfile.DIRTYPE
            else:
                info.size = len(entry.content)
            archive.addfile(info, io.BytesIO(entry.content or b""))
    return packed.getvalue()


def gzipped(data: bytes) -> bytes:
    """Returns the bytes compressed, without a time and a name."""
    return gzip.compress(data, compresslevel=9, mtime=0)


def ar(members: Iterable[tuple[str, bytes]], epoch: int) -> bytes:
    """Returns an ar archive, the outer format of Debian's packages."""
    parts = [b"!<arch>\n"]
    for name, data in members:
        parts.append(f"{name:<16}{epoch:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode())
        parts.append(data + b"\n" * (len(data) % 2))
    return b"".join(parts)


def deb(control: Iterable[Entry], data: list[Entry], epoch: int, preset: int = XZ_PRESET) -> bytes:
    """Returns a Debian package. `control` has the files for dpkg, `data` those that are installed."""
    sums = "".join(
        f"{hashlib.md5(entry.content, usedforsecurity=False).hexdigest()}  {entry.path}\n"
        for entry in with_folders(data)
        if entry.content is not None
    )
    packed = lzma.compress(tar(data, epoch, "./"), format=lzma.FORMAT_XZ, preset=preset)
    about = tar([*control, file("md5sums", sums)], epoch, "./")
    members = [("debian-binary", b"2.0\n"), ("control.tar.gz", gzipped(about)), ("data.tar.xz", packed)]
    return ar(members, epoch)


def image(layers: list[list[Entry]], config: dict, epoch: int, tag: str, labels: dict[str, str]) -> bytes:
    """Returns an OCI image for x86-64 as a tar with the image's layout. `config` is how it is run.

    The manifest of `docker load` is in it as well, and names the same blobs.
    """
    blobs: dict[str, bytes] = {}

    def put(data: bytes) -> tuple[str, int]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return digest, len(data)

    def described(kind: str, data: bytes) -> dict:
        digest, size = put(data)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": size}

    def as_json(value: object) -> bytes:
        return json.dumps(value, sort_keys=True).encode()

    plain = [tar(entries, epoch) for entries in layers]
    packed = [described("layer.v1.tar+gzip", gzipped(layer)) for layer in plain]
    created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    description = {
        "created": created,
        "architecture": "amd64",
        "os": "linux",
        "config": config | {"Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in plain]},
        "history": [{"created": created, "created_by": "farpool make dist"} for _ in plain],
    }
    settings = described("config.v1+json", as_json(description))
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": settings,
        "layers": packed,
        "annotations": labels,
    }
    named = described("manifest.v1+json", as_json(manifest))
    named["annotations"] = {
        "org.opencontainers.image.ref.name": tag.rpartition(":")[2],
        "io.containerd.image.name": tag,
    }
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [named]}

    def blob(digest: str) -> str:
        return f"blobs/sha256/{digest.removeprefix('sha256:')}"

    loaded = {"Config": blob(settings["digest"]), "RepoTags": [tag], "Layers": [blob(one["digest"]) for one in packed]}
    entries = [Entry(blob(digest), data) for digest, data in blobs.items()]
    entries.append(Entry("index.json", as_json(index)))
    entries.append(Entry("manifest.json", as_json([loaded])))
    entries.append(Entry("oci-layout", as_json({"imageLayoutVersion": "1.0.0"})))
    return tar(entries, epoch)
