"""Fixtures that start real brokers and nodes, with the binary that FARPOOL_BIN names.

Leases and timeouts are long, so that a test does not fail because the machine is busy with other work. Every test that
uses `cluster` also checks that no memory stays leased: see the end of the fixture.
"""

import functools
import os
import signal
import time
from collections.abc import Callable, Iterator

import duckdb
import pytest

import farpool
from farpool.demo.cluster import Cluster

# Long enough for a client that renews late. Short enough for a test that waits until the memory of a killed client is
# free.
LEASE_TTL = "30s"
PATIENT_TIMEOUT = "300s"
PATIENCE_SECONDS = 300
NODE_MEMORY_BYTES = 512 << 20
TRANSPORTS = ("tcp", "shm", "embedded")
# Nodes keep their memory, however little the other tests of this machine leave: a test counts on all of it.
NODE_ARGUMENTS = ("--no-reserve",)


@pytest.fixture(scope="session")
def farpool_binary() -> str:
    path = os.environ.get("FARPOOL_BIN", "")
    if not os.access(path, os.X_OK):
        pytest.fail(f"FARPOOL_BIN='{path}' is not an executable file: build the binary and set it", pytrace=False)
    return path


@pytest.fixture(scope="session", autouse=True)
def patient_sessions() -> Iterator[None]:
    """Gives sessions a long timeout, unless a test sets its own."""
    connect = farpool.connect

    @functools.wraps(connect)
    def patient(*arguments: object, timeout: str = PATIENT_TIMEOUT, **options: object) -> farpool.Pool:
        return connect(*arguments, timeout=timeout, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(farpool, "connect", patient)
        yield


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Has SIGINT raise KeyboardInterrupt. A shell starts what runs in its background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def start_cluster(binary: str, hosts: bool = False, ttl: str = LEASE_TTL) -> Cluster:
    times = ("--ttl", ttl, "--grace", "2s")
    return Cluster(binary, NODE_MEMORY_BYTES, hosts=hosts, broker_arguments=times, node_arguments=NODE_ARGUMENTS)


def stop_cluster(cluster: Cluster) -> None:
    left = cluster.what_is_left() if cluster.is_running("broker") else []
    left += cluster.stop()
    assert left == []


@pytest.fixture
def cluster(farpool_binary: str) -> Iterator[Cluster]:
    """Starts a broker and two nodes for one test, which may kill them."""
    with start_cluster(farpool_binary) as cluster:
        yield cluster
        stop_cluster(cluster)


@pytest.fixture
def short_lease_cluster(farpool_binary: str) -> Iterator[Cluster]:
    """Starts a broker and two nodes for one test that kills clients. Nodes have the memory of killed clients back
    within seconds."""
    with start_cluster(farpool_binary, ttl="5s") as cluster:
        yield cluster
        stop_cluster(cluster)


@pytest.fixture(scope="session")
def shared_cluster(farpool_binary: str) -> Iterator[Cluster]:
    """Starts a broker and two nodes for all tests that kill neither them nor their clients."""
    with start_cluster(farpool_binary) as cluster:
        yield cluster
        stop_cluster(cluster)


@pytest.fixture(params=TRANSPORTS)
def pool(request: pytest.FixtureRequest) -> Iterator[farpool.Pool]:
    """Connects to a pool, over each transport in turn."""
    if request.param == "embedded":
        opened = farpool.embedded("512MiB", nodes=2)
    else:
        opened = farpool.connect(request.getfixturevalue("shared_cluster").url, transport=request.param)
    with opened as pool:
        yield pool


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """Opens an in-memory database with a memory limit at which `SPILLING_QUERY` must spill."""
    with duckdb.connect(config={"threads": 2, "memory_limit": "100MB"}) as con:
        yield con


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Waits until a condition is true. Fails the test if it does not become true."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > give_up:
            pytest.fail(f"not within {PATIENCE_SECONDS} s: {what}")
        time.sleep(0.01)
