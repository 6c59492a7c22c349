"""Real brokers and nodes for the tests: the binary named by FARPOOL_BIN, and no stand-in for it.

Leases and answers may take as long here as a machine with much other work needs: what a test is not about must not
fail it. Every test that asks for a `cluster` is also a test that nothing is left in it: see the end of the fixture.
"""

import functools
import os
import time
from collections.abc import Callable, Iterator

import duckdb
import pytest

import farpool
from farpool.demo.cluster import Cluster

# Long for a client that is late to renew, and short for a test that waits for what a killed one held.
LEASE_TTL = "30s"
PATIENT_TIMEOUT = "300s"
PATIENCE_SECONDS = 300
NODE_MEMORY_BYTES = 512 << 20
TRANSPORTS = ("tcp", "shm", "embedded")


@pytest.fixture(scope="session")
def farpool_binary() -> str:
    path = os.environ.get("FARPOOL_BIN", "")
    if not os.access(path, os.X_OK):
        pytest.fail(f"FARPOOL_BIN='{path}' is not an executable file: build the binary and set it", pytrace=False)
    return path


@pytest.fixture(scope="session", autouse=True)
def patient_sessions() -> Iterator[None]:
    """Sessions wait long for an answer, unless their test says how long."""
    connect = farpool.connect

    @functools.wraps(connect)
    def patient(*arguments: object, timeout: str = PATIENT_TIMEOUT, **options: object) -> farpool.Pool:
        return connect(*arguments, timeout=timeout, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(farpool, "connect", patient)
        yield


def start_cluster(binary: str, hosts: bool = False, ttl: str = LEASE_TTL) -> Cluster:
    return Cluster(binary, NODE_MEMORY_BYTES, hosts=hosts, broker_arguments=("--ttl", ttl, "--grace", "2s"))


def stop_cluster(cluster: Cluster) -> None:
    left = cluster.what_is_left() if cluster.is_running("broker") else []
    left += cluster.stop()
    assert left == []


@pytest.fixture
def cluster(farpool_binary: str) -> Iterator[Cluster]:
    """A broker and two nodes for one test, which may kill them."""
    with start_cluster(farpool_binary) as cluster:
        yield cluster
        stop_cluster(cluster)


@pytest.fixture
def short_lease_cluster(farpool_binary: str) -> Iterator[Cluster]:
    """A broker and two nodes for one test, which kills clients: nodes have back within seconds what these held."""
    with start_cluster(farpool_binary, ttl="5s") as cluster:
        yield cluster
        stop_cluster(cluster)


@pytest.fixture(scope="session")
def shared_cluster(farpool_binary: str) -> Iterator[Cluster]:
    """A broker and two nodes for all tests that leave them as they are, and kill no client of theirs."""
    with start_cluster(farpool_binary) as cluster:
        yield cluster
        stop_cluster(cluster)


@pytest.fixture(params=TRANSPORTS)
def pool(request: pytest.FixtureRequest) -> Iterator[farpool.Pool]:
    """A session with a pool, over each transport in turn."""
    if request.param == "embedded":
        opened = farpool.embedded("512MiB", nodes=2)
    else:
        opened = farpool.connect(request.getfixturevalue("shared_cluster").url, transport=request.param)
    with opened as pool:
        yield pool


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory, with a limit under which `SPILLING_QUERY` must spill."""
    with duckdb.connect(config={"threads": 2, "memory_limit": "100MB"}) as con:
        yield con


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Waits for a condition; fails the test if it does not come."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > give_up:
            pytest.fail(f"not within {PATIENCE_SECONDS} s: {what}")
        time.sleep(0.01)
