"""A pool with TLS: who is admitted, and which errors others get."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import NODE_ARGUMENTS, PATIENCE_SECONDS

import farpool
import farpool.duckdb
from farpool.demo.cluster import read_line

READY_SECONDS = 300


@pytest.fixture(scope="module")
def certs(farpool_binary, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    command = [farpool_binary, "certs", "init", str(folder), "--node", "n1"]
    command += ["--tenant", "analytics", "--tenant", "others"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE_SECONDS)
    return folder


@pytest.fixture(scope="module")
def url(farpool_binary, certs) -> Iterator[str]:
    """Starts a broker and a node with certificates."""
    started = []

    def start(*arguments: str) -> str:
        command = [farpool_binary, *arguments, "--certs", str(certs)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0))
        line = read_line(started[-1], READY_SECONDS)
        assert line.startswith("ready "), line
        return line.split()[1]

    try:
        url = start("broker", "--listen", "127.0.0.1:0")
        start("node", "--name", "n1", "--memory", "128MiB", "--region-size", "4MiB", "--broker", url, *NODE_ARGUMENTS)
        yield url
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()
            process.stdout.close()


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_tenant_reads_what_it_wrote(url, certs, transport):
    with (
        farpool.connect(url, certs=certs, tenant="analytics", transport=transport) as pool,
        pool.create("f") as file,
    ):
        file.write_at(5, b"encrypted on the way" * 10_000)
        assert file.read_at(5, 20) == b"encrypted on the way"


def test_certificates_may_be_named_one_by_one(url, certs):
    files = {"ca": certs / "ca.pem", "cert": str(certs / "admin.pem"), "key": certs / "admin.key"}
    with farpool.connect(url, **files) as pool:
        assert [node["name"] for node in pool.status()["nodes"]] == ["n1"]


def test_whoever_has_no_certificate_is_told_what_is_missing(url):
    with pytest.raises(farpool.RefusedError, match="TLS"):
        farpool.connect(url)


def test_a_node_has_no_session(url, certs):
    with pytest.raises(farpool.RefusedError, match="may not ask"):
        farpool.connect(url, ca=certs / "ca.pem", cert=certs / "node-n1.pem", key=certs / "node-n1.key")


@pytest.mark.parametrize(
    "arguments",
    [{"ca": "ca.pem"}, {"ca": "a", "cert": "b"}, {"tenant": "a"}, {"certs": "d", "ca": "a", "cert": "b", "key": "c"}],
)
def test_half_of_the_arguments_is_refused(arguments):
    with pytest.raises(farpool.InvalidError, match="together"):
        farpool.connect("farpool://127.0.0.1:1", **arguments)


def test_a_file_that_is_not_there_is_named(certs):
    with pytest.raises(farpool.InvalidError, match=r"tenant-nobody\.pem"):
        farpool.connect("farpool://127.0.0.1:1", certs=certs, tenant="nobody")


@pytest.fixture(scope="module")
def worker(url, certs) -> Iterator[str]:
    """Starts a DuckDB beside the data, as the tenant `analytics`. Yields its address."""
    command = [sys.executable, "-m", "farpool.duckdb_worker", "--pool", url, "--listen", "127.0.0.1:0"]
    command += ["--certs", str(certs), "--tenant", "analytics"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        try:
            yield read_line(process, READY_SECONDS).removeprefix("ready ").strip()
        finally:
            process.terminate()
            assert process.wait(PATIENCE_SECONDS) == 0


def test_queries_of_its_tenant_reach_a_duckdb_with_certificates(url, certs, worker):
    assert worker.startswith("grpc+tls://127.0.0.1:")
    rows = pa.table({"id": range(300_000)})
    with farpool.connect(url, certs=certs, tenant="analytics") as pool:
        pool.put_table("numbers", rows)
        assert farpool.duckdb.ship(worker, "SELECT * FROM numbers ORDER BY id", pool).read_all() == rows
        with pytest.raises(farpool.InvalidError, match="no_such_table"):
            farpool.duckdb.ship(worker, "SELECT * FROM no_such_table", pool)
        readers = [farpool.duckdb.ship(worker, "SELECT sum(id) FROM numbers", pool) for _ in range(3)]
        assert [reader.read_all()[0][0].as_py() for reader in readers] == [299_999 * 150_000] * 3
        pool.drop_table("numbers")


def test_duckdb_with_certificates_serves_nobody_but_its_tenant(url, certs, worker):
    for tenant in ["others", None]:
        with (
            farpool.connect(url, certs=certs, tenant=tenant) as pool,
            pytest.raises(farpool.RefusedError, match="the peer is analytics.tenant.farpool"),
        ):
            farpool.duckdb.ship(worker, "SELECT 1", pool)
    with pytest.raises(farpool.RefusedError, match="certificates"):
        farpool.duckdb.ship(worker, "SELECT 1")
    with pytest.raises((farpool.UnreachableError, farpool.InvalidError)):
        farpool.duckdb.ship(worker.replace("grpc+tls", "grpc"), "SELECT 1")


def test_session_with_certificates_asks_no_worker_without(url, certs):
    with farpool.connect(url, certs=certs) as pool, pytest.raises(farpool.RefusedError, match="--certs"):
        farpool.duckdb.ship("grpc://127.0.0.1:1", "SELECT 1", pool)


def test_duckdb_with_certificates_that_does_not_answer_is_unreachable(url, certs):
    with farpool.connect(url, certs=certs) as pool, pytest.raises(farpool.UnreachableError, match="127.0.0.1:1"):
        farpool.duckdb.ship("grpc+tls://127.0.0.1:1", "SELECT 1", pool)
