"""The packages without a build of a release: their formats, what they name, and the units, with the programs that tests
have. `make dist-test` installs the real ones.

FARPOOL_BIN names the command; its folder has the other programs. FARPOOL_WHEELS is the folder of the wheel.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

sys.path.insert(0, str(Path(__file__).parent))
import archives  # noqa: E402
import bare  # noqa: E402
import contents  # noqa: E402
import inventory  # noqa: E402
import wheels  # noqa: E402

EPOCH = 1_790_000_000
HERE = Path(__file__).resolve().parent
SECONDS = 300
# Highest exposure of a unit, on systemd's scale from 0 to 10.
EXPOSURE_MAX = 3.0


def run(*command: str | Path, **more) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, **more)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


@pytest.fixture(scope="module")
def crates() -> list[inventory.Crate]:
    return [*inventory.crates(), inventory.standard_library()]


@pytest.fixture(scope="module")
def release(crates, tmp_path_factory) -> contents.Release:
    """Returns a release with the real texts, and programs that do nothing."""
    programs = tmp_path_factory.mktemp("programs")
    for name in contents.PROGRAMS:
        shutil.copy("/bin/true", programs / name)
    bill = inventory.bill_of_materials(contents.version(), EPOCH, crates)
    manual = contents.manual(Path(os.environ["FARPOOL_BIN"]))
    return contents.Release(contents.version(), "0" * 40, EPOCH, programs, inventory.notices(crates), bill, manual)


def test_bill_of_materials_keeps_its_schema_and_names_every_crate_with_its_licence(crates, release):
    error = JsonStrictValidator(SchemaVersion.V1_5).validate_str(release.bill)
    assert error is None, error
    bill = json.loads(release.bill)
    named = {(one["name"], one["version"]): one for one in bill["components"]}
    assert named.keys() == {one.key for one in crates} and len(named) > 300
    assert all(one["licenses"][0]["expression"] for one in named.values())
    # The heaviest parts of each program, and nothing that only builds or tests need.
    names = {name for name, _ in named}
    assert {"farpool-cli", "datafusion", "wasmtime", "pyo3", "aws-lc-sys", "rust-std"} <= names
    assert not names & {"proptest", "tempfile-macros", "farpool-tests", "syn", "xtask"}
    references = {one["bom-ref"] for one in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
    assert all(needed in references for one in bill["dependencies"] for needed in [one["ref"], *one["dependsOn"]])
    # Crates of a registry have the digest that Cargo.lock has.
    assert all(
        "hashes" in one
        for one in bill["components"]
        if not one["name"].startswith(("farpool", "rust-std", "protobuf-src"))
    )


def test_notices_have_a_licence_text_of_every_crate(crates, release):
    for one in crates:
        assert f"\n{one.name} {one.version} ({one.licence})\n" in release.licences, one.name
    # C code that a crate bundles has licences of its own.
    assert "OpenSSL" in release.licences and "Facebook" in release.licences


def test_crate_without_a_licence_text_is_an_error_that_names_it():
    odd = inventory.Crate("odd", "1.0.0", "Odd-1.0", (), None, HERE / "nowhere", "00", ())
    with pytest.raises(inventory.Missing, match=r"odd 1\.0\.0 \(Odd-1\.0\).*MIT"):
        inventory.notices([odd])


def test_archives_depend_on_nothing_but_their_content():
    entries = [archives.file("b/two", "2"), archives.file("a", "1", 0o755), archives.Entry("b/link", link="two")]
    assert archives.tar(entries, EPOCH) == archives.tar(reversed(entries), EPOCH)
    with tarfile.open(fileobj=io.BytesIO(archives.tar(entries, EPOCH))) as packed:
        listed = [(one.name, one.mode, one.mtime, one.uid) for one in packed]
    assert listed == [
        ("a", 0o755, EPOCH, 0),
        ("b", 0o755, EPOCH, 0),
        ("b/link", 0o777, EPOCH, 0),
        ("b/two", 0o644, EPOCH, 0),
    ]
    with pytest.raises(ValueError, match="twice"):
        archives.tar([archives.file("a", ""), archives.file("a", "")], EPOCH)


def test_debian_package_is_read_by_dpkg_and_has_what_a_service_needs(release, tmp_path):
    package = tmp_path / "farpool.deb"
    package.write_bytes(contents.debian(release))
    assert package.read_bytes() == contents.debian(release)
    fields = run("dpkg-deb", "--field", package)
    for field in ("Package: farpool", f"Version: {release.version}", "Architecture: amd64", "Depends: libc6 (>= 2.28)"):
        assert field in fields.splitlines() or field in fields, fields
    listed = {line.split(maxsplit=5)[5]: line for line in run("dpkg-deb", "--contents", package).splitlines()}
    wanted = [*(f"./usr/bin/{name}" for name in contents.PROGRAMS), "./etc/farpool/farpool.toml"]
    wanted += [f"./usr/lib/systemd/system/{unit.name}" for unit in (HERE / "systemd").iterdir()]
    wanted += ["./sbin/mount.farpool -> /usr/bin/farpool", "./usr/share/doc/farpool/copyright"]
    pages = ("farpool", "farpool-node", "farpool-sql-worker", "farpool-csi-driver")
    wanted += [f"./usr/share/man/man1/{page}.1.gz" for page in pages]
    wanted += [f"./{path}" for path in contents.SHELLS.values()]
    assert set(wanted) <= listed.keys(), listed.keys()
    assert all("root/root" in line for line in listed.values())
    unpacked = tmp_path / "unpacked"
    run("dpkg-deb", "--raw-extract", package, unpacked)
    sums = (unpacked / "DEBIAN/md5sums").read_text()
    run("md5sum", "--check", "--quiet", "--strict", "-", cwd=unpacked, input=sums)
    assert sums.count("\n") == sum(path.is_file() and not path.is_symlink() for path in unpacked.rglob("*")) - len(
        list((unpacked / "DEBIAN").iterdir())
    )
    for script in ("postinst", "prerm", "postrm"):
        assert os.access(unpacked / "DEBIAN" / script, os.X_OK)
        run("sh", "-n", unpacked / "DEBIAN" / script)


def test_tarball_has_one_folder_with_units_for_where_it_is_unpacked(release):
    with tarfile.open(fileobj=io.BytesIO(contents.tarball(release))) as packed:
        top = f"farpool-{release.version}-x86_64"
        assert {one.name.split("/")[0] for one in packed} == {top}
        assert packed.getmember(f"{top}/sbin/mount.farpool").linkname == "../bin/farpool"
        unit = packed.extractfile(f"{top}/lib/systemd/system/farpool-node.service").read().decode()
        assert "ExecStart=/usr/local/bin/farpool node" in unit and "/usr/bin" not in unit
        assert "Environment=FARPOOL_CONFIG=/usr/local/etc/farpool/farpool.toml" in unit.splitlines()
        assert packed.getmember(f"{top}/etc/farpool/farpool.toml").isfile()
        assert packed.getmember(f"{top}/bin/farpool").mode == 0o755


def test_image_runs_as_its_user_with_a_root_file_system_that_is_read_only(release, tmp_path):
    program = Path(os.environ["FARPOOL_BIN"])
    run("strip", "-o", release.programs / "farpool", program)
    for name in contents.PROGRAMS[1:]:
        shutil.copy("/bin/true", release.programs / name)
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for line in [*run("ldd", program).splitlines(), *run("ldd", "/bin/true").splitlines()]:
        if found := re.search(r"(/\S+)", line):
            shutil.copy(found[1], libraries)
    archive = tmp_path / "image.tar"
    archive.write_bytes(contents.image(release, libraries, "test"))
    with tarfile.open(archive) as image:
        for one in image:
            if one.name.startswith("blobs/sha256/") and one.isfile():
                assert hashlib.sha256(image.extractfile(one).read()).hexdigest() == Path(one.name).name
        read = {name: json.load(image.extractfile(name)) for name in ("index.json", "manifest.json", "oci-layout")}
    assert read["oci-layout"] == {"imageLayoutVersion": "1.0.0"}
    assert read["manifest.json"][0]["RepoTags"] == [f"farpool:{release.version}"]
    place = tmp_path / "image"
    config = bare.unpack_image(archive, place)
    assert config["User"] == "65532:65532" and config["Entrypoint"] == ["/usr/bin/farpool"]
    told = run(*bare.container(place, config, ["/usr/bin/farpool", "--version"]))
    assert told.startswith("farpool ")
    # It may write to its volume, as its user.
    ready = run(*bare.container(place, config, ["/usr/bin/farpool", "certs", "init", "certs"]))
    assert "ca.key" in ready
    refused = subprocess.run(
        bare.container(place, config, ["/usr/bin/farpool", "certs", "init", "/etc/farpool/certs"]),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert refused.returncode == 2 and "Read-only file system" in refused.stderr, refused


def test_wheel_with_more_files_has_a_record_of_all(tmp_path):
    given = io.BytesIO()
    with zipfile.ZipFile(given, "w") as archive:
        archive.writestr("farpool/__init__.py", "pass")
        archive.writestr("farpool-1.dist-info/RECORD", "farpool/__init__.py,sha256=x,4\nfarpool-1.dist-info/RECORD,,\n")
    made = wheels.with_files(given.getvalue(), {"sboms/farpool.cdx.json": b"{}"}, EPOCH)
    assert made == wheels.with_files(made, {"sboms/farpool.cdx.json": b"{}"}, EPOCH)
    with zipfile.ZipFile(io.BytesIO(made)) as archive:
        record = "farpool-1.dist-info/RECORD"
        assert archive.namelist()[-1] == record and archive.testzip() is None
        rows = list(csv.reader(archive.read(record).decode().splitlines()))
        assert [name for name, *_ in rows] == archive.namelist()
        for name, digest, size in rows[:-1]:
            data = archive.read(name)
            expected = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert (digest, int(size)) == (f"sha256={expected}", len(data))


def test_wheel_permits_ranges_of_its_optional_dependencies():
    [wheel] = Path(os.environ["FARPOOL_WHEELS"]).glob("farpool-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        told = archive.read(name).decode()
    needed = re.findall(r"^Requires-Dist: (.*)$", told, re.MULTILINE)
    assert len(needed) > 5 and not [one for one in needed if "==" in one.split(";")[0]], needed
    assert set(re.findall(r"^Provides-Extra: (.*)$", told, re.MULTILINE)) == {"demo", "duckdb", "fs"}


@pytest.mark.parametrize("unit", sorted((HERE / "systemd").glob("*.service")), ids=lambda unit: unit.name)
def test_unit_is_valid_for_systemd_and_closed(unit, tmp_path):
    # The programs are not installed where the unit expects them.
    text = unit.read_text().replace("/usr/bin/farpool", os.environ["FARPOOL_BIN"])
    copy = tmp_path / unit.name
    copy.write_text(text)
    checked = tmp_path / unit.name.replace("@.", "@tmp.")
    if checked != copy:
        checked.symlink_to(copy)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", checked], capture_output=True, text=True, timeout=SECONDS
    )
    about_it = [line for line in done.stderr.splitlines() if "farpool" in line]
    assert done.returncode == 0 and not about_it, done.stderr
    told = run("systemd-analyze", "security", "--offline=true", "--no-pager", copy)
    exposure = float(re.search(r"Overall exposure level for \S+: ([0-9.]+)", told)[1])
    assert exposure <= EXPOSURE_MAX, told


def served(command: list[str | Path], **more) -> tuple[subprocess.Popen, str]:
    """Starts a server and waits until it is ready. Returns it, and what follows `ready` in its line."""
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **more)
    line = server.stdout.readline()
    assert line.startswith("ready "), (command, line)
    return server, line.split()[-1]


def test_sql_worker_tells_systemd_that_it_is_ready_alive_and_stopping(tmp_path):
    """The other servers are tested in tests/it/supervisor.rs."""
    farpool = Path(os.environ["FARPOOL_BIN"])
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(SECONDS)
        broker, pool = served([farpool, "broker", "--listen", "127.0.0.1:0"])
        told = os.environ | {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "30000"}
        # The command becomes the worker, so the service keeps its process.
        worker, address = served([farpool, "sql", "worker", "--listen", "127.0.0.1:0", "--pool", pool], env=told)
        try:
            assert manager.recv(4096).decode() == f"STATUS=serving {address}\nREADY=1\n"
            assert manager.recv(4096) == manager.recv(4096) == b"WATCHDOG=1\n"
            worker.send_signal(signal.SIGTERM)
            while (message := manager.recv(4096)) == b"WATCHDOG=1\n":
                pass
            assert message == b"STOPPING=1\n"
            assert worker.wait(timeout=SECONDS) == 0
        finally:
            for server in (worker, broker):
                server.kill()
                server.wait()
