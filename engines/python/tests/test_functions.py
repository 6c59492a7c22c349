"""Functions called from Python that run on real nodes."""

import datetime
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import pytest

import farpool
from farpool.demo.cluster import Cluster

COUNT = 10_000


def words(*values: int) -> bytes:
    return numpy.array(values, dtype="<u8").tobytes()


@pytest.fixture
def pool(shared_cluster: Cluster) -> Iterator[farpool.Pool]:
    with farpool.connect(shared_cluster.url) as pool:
        yield pool


@pytest.fixture
def nodes(pool: farpool.Pool) -> Iterator[numpy.ndarray]:
    """Publishes a linked list of nodes of 64 bytes. Each points to the node three places behind it."""
    nodes = numpy.zeros((COUNT, 8), dtype="<u8")
    nodes[:, 0] = (numpy.arange(COUNT) + 3) % COUNT * 64
    nodes[:, 1] = numpy.arange(COUNT) * 5
    pool.create("list", file_class="pinned").write_at(0, nodes.tobytes())
    pool.publish("list")
    yield nodes
    pool.delete("list")


def walked(nodes: numpy.ndarray, first: int, steps: int) -> list[int]:
    at, total = first, 0
    for _ in range(steps):
        total += int(nodes[at // 64, 1])
        at = int(nodes[at // 64, 0])
    return [at, total]


def test_function_resident_at_nodes_gives_what_python_computes(pool: farpool.Pool, nodes: numpy.ndarray) -> None:
    for on in ("list", pool.open("list")):
        called = pool.run("resident:walk", on, words(64, 500, 0))
        assert called.numpy("<u8").tolist() == walked(nodes, 64, 500)
        assert called.node is not None and called.hops == 0


@pytest.mark.parametrize("placement", ["ship", "fetch", "auto"])
def test_function_in_c_gives_what_python_computes_wherever_it_runs(
    pool: farpool.Pool, nodes: numpy.ndarray, placement: str
) -> None:
    module = Path(os.environ["FARPOOL_FUNCTIONS"], "walk.wasm").read_bytes()
    walk = farpool.Function.wasm(module, "walk")
    for _ in range(3):
        called = pool.run(walk, "list", words(64, 500, 0), placement=placement)
        assert called.numpy("<u8").tolist() == walked(nodes, 64, 500)
        assert (called.node is None) == (placement == "fetch") or placement == "auto"
    with pytest.raises(farpool.FunctionError, match=r"failed with code 1"):
        pool.run(walk, "list", b"too short", placement=placement)


def test_place_fetch_without_the_sandbox_program_says_where_it_was_looked_for(
    shared_cluster: Cluster, nodes: numpy.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARPOOL_SANDBOX", "/nowhere/farpool-sandbox")
    walk = farpool.Function.wasm(Path(os.environ["FARPOOL_FUNCTIONS"], "walk.wasm").read_bytes(), "walk")
    with farpool.connect(shared_cluster.url) as pool:
        with pytest.raises(farpool.RefusedError, match="/nowhere/farpool-sandbox does not exist.*FARPOOL_SANDBOX"):
            pool.run(walk, "list", words(64, 5, 0), placement="fetch")
        called = pool.run(walk, "list", words(64, 5, 0))
        assert called.numpy("<u8").tolist() == walked(nodes, 64, 5)
        assert called.node is not None


def test_function_that_does_not_end_well_raises_with_how(pool: farpool.Pool, nodes: numpy.ndarray) -> None:
    with pytest.raises(farpool.FunctionError, match=r"failed with code 1"):
        pool.run("resident:walk", "list", b"too short")
    with pytest.raises(farpool.FunctionError, match=r"out of bounds"):
        pool.run("resident:walk", "list", words(1 << 40, 1, 0))
    with pytest.raises(farpool.RefusedError, match="the node does not know this function"):
        pool.run("resident:nothing", "list")


def test_bad_arguments_are_named(pool: farpool.Pool, nodes: numpy.ndarray) -> None:
    for wrong, match in [
        ({"placement": "moon"}, '"moon" is not a placement: auto, fetch, ship and split are permitted'),
        ({"deadline": "2h"}, "3600000 ms"),
        ({"output_size": "1GiB"}, "251658240"),
        ({"columns": ["a"]}, "a far file has none"),
    ]:
        with pytest.raises(farpool.InvalidError, match=match):
            pool.run("resident:walk", "list", words(0, 1, 0), **wrong)  # type: ignore[arg-type]
    with pytest.raises(farpool.NotFoundError):
        pool.run("never put", "list")
    with pytest.raises(farpool.InvalidError, match="published"):
        pool.create("private", file_class="pinned").write_at(0, b"1")
        pool.run("resident:walk", "private", words(0, 1, 0))


def test_function_kept_by_the_pool_is_listed_until_it_is_dropped(pool: farpool.Pool) -> None:
    function = farpool.Function.wasm(b"\0asm\1\0\0\0", "nothing")
    pool.put_function("empty", function)
    with pytest.raises(farpool.ExistsError):
        pool.put_function("empty", function)
    assert pool.put_function("empty", function, replace=True) == 1
    assert pool.put_function("empty", function, replace=True, protection="none") == 1
    with pytest.raises(farpool.InvalidError, match="none, mirror, local or rs"):
        pool.put_function("empty", function, replace=True, protection="raid")
    assert pool.functions() == ["empty"]
    back = pool.function("empty")
    assert (back.form, back.entry, back.digest) == ("wasm", "nothing", function.digest)
    pool.drop_function("empty")
    assert pool.functions() == []


def test_stored_function_keeps_its_versions_and_tags_move(pool: farpool.Pool) -> None:
    functions = [farpool.Function.wasm(b"\0asm\1\0\0\0" + bytes([0, 2, 1, number]), "f") for number in range(3)]
    for number, function in enumerate(functions, start=1):
        assert pool.put_function("f", function, replace=True) == number
    assert pool.tag_function("f@2", "stable") == 2
    assert pool.function("f").digest == functions[2].digest
    for name, number in [("f@1", 1), ("f@2", 2), ("f@3", 3), ("f@stable", 2)]:
        assert pool.function(name).digest == functions[number - 1].digest
    listed = pool.function_versions("f")
    assert [(one.version, one.digest, one.tags) for one in listed] == [
        (3, functions[2].digest, []),
        (2, functions[1].digest, ["stable"]),
        (1, functions[0].digest, []),
    ]
    assert all(abs((datetime.datetime.now(datetime.UTC) - one.stored).days) < 1 for one in listed)
    assert pool.tag_function("f", "stable") == 3
    pool.drop_function("f@3")
    with pytest.raises(farpool.NotFoundError, match="there are 1, 2"):
        pool.function("f@stable")
    assert pool.put_function("f", functions[2], replace=True) == 4, "no number is given twice"
    for name, tag in [("f", "7"), ("f", "a@b"), ("f", "")]:
        with pytest.raises(farpool.InvalidError, match="cannot be a tag"):
            pool.tag_function(name, tag)
    with pytest.raises(farpool.InvalidError, match="may not contain @"):
        pool.put_function("f@5", functions[0])
    with pytest.raises(farpool.NotFoundError):
        pool.tag_function("g", "stable")
    pool.drop_function("f")
    assert pool.functions() == []


def test_of_clients_that_store_versions_at_once_none_undoes_the_change_of_another(shared_cluster: Cluster) -> None:
    def store(client: int) -> list[int]:
        with farpool.connect(shared_cluster.url) as pool:
            modules = [b"\0asm\1\0\0\0" + bytes([0, 3, 1, client, number]) for number in range(5)]
            return [pool.put_function("g", farpool.Function.wasm(one, "g"), replace=True) for one in modules]

    with ThreadPoolExecutor(4) as executor:
        numbers = sorted(number for stored in executor.map(store, range(4)) for number in stored)
    assert numbers == list(range(1, 21))
    with farpool.connect(shared_cluster.url) as pool:
        assert len({one.digest for one in pool.function_versions("g")}) == 20
        pool.drop_function("g")
