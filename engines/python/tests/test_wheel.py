"""The wheel in an environment of its own: its contents, and which versions of peers it refuses."""

import os
import re
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import NODE_ARGUMENTS, PATIENCE_SECONDS

import farpool
from farpool.demo.cluster import Cluster

HEADER = struct.Struct("<4sBBHQIIQHH")
VERSION_MISMATCH = 20


def run(command: list[str | Path], variables: dict[str, str] | None = None) -> str:
    """Runs a program and returns its output."""
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """Makes an environment that contains only the wheel."""
    wheels = os.environ.get("FARPOOL_WHEELS")
    if wheels is None:
        pytest.fail("FARPOOL_WHEELS names the folder of the wheel: `make test-python` builds it", pytrace=False)
    folder = tmp_path_factory.mktemp("fresh") / "env"
    run([sys.executable, "-m", "venv", "--without-pip", folder])
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet"]
    pip += ["--disable-pip-version-check", "--no-deps", "--no-index", "--find-links", wheels, "farpool"]
    run(pip)
    return folder / "bin"


def test_the_wheel_brings_the_command_with_which_a_pool_is_run(environment):
    assert run([environment / "farpool", "--version"]).startswith("farpool ")
    write = "import sys, farpool\nwith farpool.connect(sys.argv[1]) as pool, pool.create('a') as file:\n"
    write += "    file.write_at(0, b'far memory'); print(file.read_at(4, 6).decode())"
    with Cluster(str(environment / "farpool"), 64 << 20, node_count=1, node_arguments=NODE_ARGUMENTS) as cluster:
        assert run([environment / "python", "-c", write, cluster.url]) == "memory\n"
    assert os.access(environment / "farpool-sandbox", os.X_OK), "nodes find it beside them"


def test_functions_run_here_in_an_environment_that_is_not_activated(environment):
    """The interpreter of a virtual environment is a link into another folder, which has no sandbox program beside
    it."""
    calls = """if True:
        import pathlib, sys, farpool
        walk = farpool.Function.wasm(pathlib.Path(sys.argv[2]).read_bytes(), "walk")
        words = lambda *values: b"".join(value.to_bytes(8, "little") for value in values)
        with farpool.connect(sys.argv[1]) as pool:
            pool.create("list", file_class="pinned").write_at(0, words(0, 5))
            pool.publish("list")
            for placement in ("fetch", "auto"):
                called = pool.run(walk, "list", words(0, 1, 0), placement=placement)
                assert called.output == words(0, 5), called
                print(placement, "here" if called.node is None else "at a node")
        """
    module = Path(os.environ["FARPOOL_FUNCTIONS"], "walk.wasm")
    # The program can only be found through the wheel's list of files.
    variables = {name: value for name, value in os.environ.items() if name not in ("FARPOOL_SANDBOX", "PATH")}
    with Cluster(str(environment / "farpool"), 128 << 20, node_count=1, node_arguments=NODE_ARGUMENTS) as cluster:
        told = run([environment / "python", "-c", calls, cluster.url, module], variables | {"PATH": "/usr/bin:/bin"})
    assert told.startswith("fetch here\n"), told


def crc32c(data: bytes) -> int:
    crc = 0xFFFF_FFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F6_3B78 if crc & 1 else 0)
    return crc ^ 0xFFFF_FFFF


@pytest.mark.parametrize("asker", ["session", "node"])
def test_a_peer_of_another_version_is_refused_by_both_numbers_and_what_helps(farpool_binary, asker):
    """A refused greeting names the newest version that the peer supports (spec/wire.md)."""

    def answer() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                asked = connection.recv(HEADER.size + 4 + 10, socket.MSG_WAITALL)
                magic, version, _, opcode, request, *_ = HEADER.unpack_from(asked)
                header = HEADER.pack(magic, version, 1, opcode, request, 0, 0, 7, VERSION_MISMATCH, 0)
                connection.sendall(header + struct.pack("<I", crc32c(header)))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        try:
            if asker == "session":
                with pytest.raises(farpool.Error) as caught:
                    farpool.connect(f"farpool://{address}")
                told = str(caught.value)
            else:
                command = [
                    farpool_binary,
                    "node",
                    "--name",
                    "a",
                    "--memory",
                    "64MiB",
                    "--broker",
                    f"farpool://{address}",
                ]
                # The node keeps retrying, because the broker may be upgraded.
                with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as node:
                    told = next(line for line in node.stderr if address in line)
                    node.kill()
        finally:
            # Wakes a thread that waits in `accept`.
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
    assert re.search("speaks up to 7, this side 1 to [0-9]+; upgrade this side", told), told
    assert address in told
