"""The pool that the environment names, and the grammar of sizes and times."""

import duckdb
import pytest

import farpool
import farpool.duckdb

VARIABLES = ("POOL", "CERTS", "TENANT", "PLAINTEXT", "TLS_CA", "TLS_CERT", "TLS_KEY", "TLS_CRL")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Takes the settings of this machine away."""
    for name in VARIABLES:
        monkeypatch.delenv(f"FARPOOL_{name}", raising=False)
    return monkeypatch


def test_connect_without_an_address_takes_the_pool_of_the_environment(shared_cluster, environment):
    environment.setenv("FARPOOL_POOL", shared_cluster.url)
    with farpool.connect() as pool:
        assert len(pool.status()["nodes"]) == 2


@pytest.mark.parametrize("value", [None, ""])
def test_connect_without_an_address_and_without_the_variable_names_embedded(environment, value):
    if value is not None:
        environment.setenv("FARPOOL_POOL", value)
    with pytest.raises(farpool.InvalidError, match=r"FARPOOL_POOL is not set.*farpool\.embedded\(\)"):
        farpool.connect()


def test_connect_takes_certificates_of_the_environment(environment, tmp_path):
    environment.setenv("FARPOOL_POOL", "farpool://127.0.0.1:1")
    environment.setenv("FARPOOL_CERTS", str(tmp_path))
    environment.setenv("FARPOOL_TENANT", "x")
    with pytest.raises(farpool.InvalidError, match="ca.pem|tenant-x.pem"):
        farpool.connect()
    environment.setenv("FARPOOL_TLS_CA", str(tmp_path / "ca.pem"))
    with pytest.raises(farpool.InvalidError, match="FARPOOL_CERTS with or without FARPOOL_TENANT"):
        farpool.connect()


def test_attach_without_a_pool_takes_that_of_the_environment_and_ends_its_session(shared_cluster, environment):
    environment.setenv("FARPOOL_POOL", shared_cluster.url)
    with duckdb.connect(config={"threads": 2, "memory_limit": "100MB"}) as con:
        fs = farpool.duckdb.attach(con)
        con.execute("CREATE TEMP TABLE t AS SELECT range AS n, repeat('x', 100) AS word FROM range(2_000_000)")
        assert fs.pool.stats()["bytes_written"] > 0
        farpool.duckdb.detach(con)
    with pytest.raises(farpool.ClosedError):
        fs.pool.status()


@pytest.mark.parametrize("wrong", ["4GB", "4G", "1.5GiB", "", "-1", -1, 1.5])
def test_size_that_is_none_is_refused_with_an_example(wrong):
    with pytest.raises(farpool.InvalidError, match=f'memory: "{wrong}" is not a size: .* such as 4GiB'):
        farpool.embedded(wrong)


@pytest.mark.parametrize("wrong", ["5", "0.5s", "5 hours", "-1s"])
def test_time_that_is_none_is_refused_with_an_example(wrong):
    with pytest.raises(farpool.InvalidError, match=f'timeout: "{wrong}" is not a time: .* such as 250ms or 5s'):
        farpool.connect("farpool://127.0.0.1:1", timeout=wrong)
