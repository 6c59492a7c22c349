"""The crates that are part of the shipped programs: as an SBOM (CycloneDX), and with the texts of their licences.

Cargo says which crates these are, from Cargo.lock and offline. Build scripts and macros run at build time only and are
not listed. The standard library of Rust is not a crate of Cargo.lock, but it is part of every program, so it is added.

Never here: whether a licence is permitted. `cargo xtask licenses` checks that.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tomllib
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = "x86_64-unknown-linux-gnu"
# Packages whose programs and library are shipped.
SHIPPED = ("farpool-cli", "farpool-csi", "farpool-sandbox", "farpool-sql", "farpool-python")
STANDARD_LIBRARY = "rust-std"
LICENCE_FILE = re.compile(r"^(licen[cs]es?|copying|notice|copyright|unlicense)([-_.].*)?$", re.IGNORECASE)
# Depth of folders below a crate in which C code that it bundles has its own licence.
DEPTH = 2
# Texts of licences for crates that state one and carry no file of it.
TEXTS = ROOT / "packaging" / "licences"


class Missing(Exception):
    """Something that cargo did not say."""


@dataclass(frozen=True)
class Crate:
    name: str
    version: str
    # SPDX expression.
    licence: str
    authors: tuple[str, ...]
    repository: str | None
    # Folder of its sources.
    folder: Path
    # SHA-256 of the package in the registry. None for a crate of this repository.
    checksum: str | None
    # Names and versions of the crates that it needs.
    needs: tuple[tuple[str, str], ...]

    @property
    def key(self) -> tuple[str, str]:
        return (self.name, self.version)

    @property
    def purl(self) -> str:
        return f"pkg:cargo/{self.name}@{self.version.replace('+', '%2B')}"


def cargo(*arguments: str) -> str:
    command = ["cargo", *arguments, "--locked", "--offline"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise Missing(f"{' '.join(command)}: {done.stderr.strip()} (try `cargo fetch --locked` first)")
    return done.stdout


def crates(shipped: tuple[str, ...] = SHIPPED) -> list[Crate]:
    """Returns the crates of which code is in the shipped programs, sorted by name and version."""
    packages = [word for name in shipped for word in ("--package", name)]
    edges = ["--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}"]
    tree = cargo("tree", *packages, "--target", TARGET, *edges)
    used = set()
    for line in filter(None, tree.splitlines()):
        name, version, *_ = line.split()
        used.add((name, version.removeprefix("v")))
    metadata = json.loads(cargo("metadata", "--format-version", "1", "--filter-platform", TARGET))
    by_id = {package["id"]: (package["name"], package["version"]) for package in metadata["packages"]}
    needs = {by_id[node["id"]]: [by_id[one["pkg"]] for one in node["deps"]] for node in metadata["resolve"]["nodes"]}
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    checksums = {(one["name"], one["version"]): one.get("checksum") for one in lock["package"]}
    found = []
    for package in metadata["packages"]:
        key = (package["name"], package["version"])
        if key not in used:
            continue
        if not package["license"]:
            raise Missing(f"{key[0]} {key[1]} states no licence")
        found.append(
            Crate(
                *key,
                # `MIT/Apache-2.0` is an old form of OR.
                licence=package["license"].replace("/", " OR "),
                authors=tuple(package["authors"]),
                repository=package["repository"],
                folder=Path(package["manifest_path"]).parent,
                checksum=checksums.get(key),
                needs=tuple(sorted(set(needs[key]) & used)),
            )
        )
    missing = used - {one.key for one in found}
    if missing:
        raise Missing(f"cargo metadata does not have {sorted(missing)}")
    return sorted(found, key=lambda one: one.key)


def standard_library() -> Crate:
    """Returns Rust's standard library as a crate."""
    told = subprocess.run(["rustc", "-vV"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    version = next(line.split()[1] for line in told.splitlines() if line.startswith("release:"))
    # Its documentation has the licences as web pages only, so the standard text stands for them.
    nowhere = TEXTS / "none"
    return Crate(
        STANDARD_LIBRARY, version, "MIT OR Apache-2.0", (), "https://github.com/rust-lang/rust", nowhere, None, ()
    )


def bill_of_materials(version: str, epoch: int, found: list[Crate]) -> str:
    """Returns the SBOM as JSON of CycloneDX 1.5. The same crates at the same time give the same text."""
    own = f"pkg:generic/farpool@{version}"
    roots = [one.purl for one in found if one.name in SHIPPED]
    components, edges = [], [{"ref": own, "dependsOn": roots}]
    for one in found:
        component = {
            "type": "library",
            "bom-ref": one.purl,
            "name": one.name,
            "version": one.version,
            "licenses": [{"expression": one.licence}],
            "purl": one.purl,
        }
        if one.checksum:
            component["hashes"] = [{"alg": "SHA-256", "content": one.checksum}]
        if one.repository:
            component["externalReferences"] = [{"type": "vcs", "url": one.repository}]
        components.append(component)
        needed = [f"pkg:cargo/{name}@{of.replace('+', '%2B')}" for name, of in one.needs]
        edges.append({"ref": one.purl, "dependsOn": needed})
    content = json.dumps([components, edges], sort_keys=True)
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, own + content)}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": "farpool",
                "version": version,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "purl": own,
            },
        },
        "components": components,
        "dependencies": edges,
    }
    return json.dumps(bill, indent=1) + "\n"


def licence_files(folder: Path) -> list[Path]:
    """Returns the files with licences in a folder and, for bundled code, those below it."""
    found = [path for depth in range(DEPTH + 1) for path in folder.glob("*/" * depth + "*")]
    return sorted(path for path in found if LICENCE_FILE.match(path.name) and path.is_file())


def notices(found: list[Crate]) -> str:
    """Returns the texts of all licences, each once, with its crates. Raises Missing if a crate has none."""
    crates_of: dict[str, list[str]] = {}
    texts: dict[str, str] = {}
    for one in found:
        is_ours = one.checksum is None and one.name != STANDARD_LIBRARY
        files = [ROOT / "LICENSE"] if is_ours else licence_files(one.folder)
        for text in [path.read_text(errors="replace") for path in files] or [standard_text(one)]:
            text = text.replace("\r\n", "\n").strip("\n")
            digest = hashlib.sha256(" ".join(text.split()).encode()).hexdigest()
            texts.setdefault(digest, text)
            named = f"{one.name} {one.version} ({one.licence})"
            if named not in crates_of.setdefault(digest, []):
                crates_of[digest].append(named)
    parts = ["Farpool's programs contain the software below, each under the licence that follows its name.\n"]
    rule = "-" * 100
    for digest, named in sorted(crates_of.items(), key=lambda item: item[1]):
        parts.append("\n".join([rule, *named, rule, "", texts[digest], ""]))
    return "\n".join(parts)


def standard_text(one: Crate) -> str:
    """Returns the licence of a crate that carries no file of it: its authors, and the standard text."""
    names = re.findall(r"[A-Za-z0-9.-]+", one.licence)
    holder = f"Copyright (c) {', '.join(one.authors) or f'the authors of {one.name}'}"
    if "Apache-2.0" in names:
        texts = [(ROOT / "LICENSE").read_text()]
        texts += [(TEXTS / "LLVM-exception.txt").read_text()] if "LLVM-exception" in names else []
        return "\n".join(texts)
    for name in names:
        path = TEXTS / f"{name}.txt"
        if path.is_file():
            return f"{holder}\n\n{path.read_text()}"
    known = ["Apache-2.0", *sorted(path.stem for path in TEXTS.glob("*.txt"))]
    raise Missing(
        f"{one.name} {one.version} ({one.licence}) carries no licence text; packaging/licences has {known}: add it"
    )
