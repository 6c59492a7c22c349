"""Real brokers and nodes for the tests: the binary named by FARPOOL_BIN, and no stand-in for it.

Leases are short here (TTL 1 s, grace 0.5 s) so that loss is seen soon. Every test that asks for a
`cluster` is also a test that nothing is left in it: see the end of the fixture.
"""

import os
import time
from collections.abc import Callable, Iterator

import duckdb
import pytest

import farpool
from farpool.demo.cluster import Cluster

TTL_SECONDS = 1.0
GRACE_SECONDS = 0.5
NODE_MEMORY_BYTES = 512 << 20
TRANSPORTS = ("tcp", "shm", "embedded")


@pytest.fixture(scope="session")
def farpool_binary() -> str:
    path = os.environ.get("FARPOOL_BIN", "")
    if not os.access(path, os.X_OK):
        pytest.fail(f"FARPOOL_BIN='{path}' is not an executable file: build the binary and set it", pytrace=False)
    return path


def start_cluster(binary: str, node_memory_bytes: int, hosts: bool = False) -> Cluster:
    return Cluster(
        binary,
        node_memory_bytes,
        hosts=hosts,
        broker_arguments=("--ttl", f"{TTL_SECONDS * 1000:.0f}ms", "--grace", f"{GRACE_SECONDS * 1000:.0f}ms"),
    )


def stop_cluster(cluster: Cluster) -> None:
    left = cluster.what_is_left() if cluster.is_running("broker") else []
    left += cluster.stop()
    assert left == []


@pytest.fixture
def cluster(farpool_binary: str) -> Iterator[Cluster]:
    """A broker and two nodes for one test, which may kill them."""
    with start_cluster(farpool_binary, NODE_MEMORY_BYTES) as cluster:
        yield cluster
        stop_cluster(cluster)


@pytest.fixture(scope="session")
def shared_cluster(farpool_binary: str) -> Iterator[Cluster]:
    """A broker and two nodes for all tests that leave them as they are."""
    with start_cluster(farpool_binary, NODE_MEMORY_BYTES) as cluster:
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


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> float:
    """Waits for a condition and returns how long it took; fails the test if it takes too long."""
    start = time.monotonic()
    while not condition():
        elapsed = time.monotonic() - start
        if elapsed > seconds:
            pytest.fail(f"not within {seconds} s: {what}")
        time.sleep(0.01)
    return time.monotonic() - start
