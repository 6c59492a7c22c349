"""Protection of scratch files and rebuilding of published files, from Python."""

import ast
import gc
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pyarrow
import pytest
from conftest import NODE_ARGUMENTS, NODE_MEMORY_BYTES, start_cluster, stop_cluster, wait_until
from spilling import answer_in_memory, spilling_query

import farpool
import farpool.duckdb
from farpool.demo.cluster import Cluster

MIB = 1 << 20
ROWS = 1_500_000


@pytest.fixture
def two_hosts(farpool_binary) -> Iterator[Cluster]:
    """Starts a broker and two nodes with different host labels."""
    with start_cluster(farpool_binary, hosts=True) as cluster:
        yield cluster
        stop_cluster(cluster)


def max_temp_directory_bytes(con: duckdb.DuckDBPyConnection) -> float:
    (text,) = con.execute("SELECT current_setting('max_temp_directory_size')").fetchone()
    number, unit = text.split()
    return float(number) * {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}[unit]


def test_the_default_protection_is_what_the_pool_has(shared_cluster, two_hosts):
    with farpool.connect(shared_cluster.url) as pool, pool.create("a") as file:
        assert file.protection == "local"
    with farpool.connect(two_hosts.url) as pool, pool.create("a") as file:
        assert file.protection == "mirror"
        with pool.create("b", protection="local") as other, pool.create("c", file_class="pinned") as pinned:
            assert (other.protection, pinned.protection) == ("local", "mirror")
        with pool.create("d", file_class="pinned", protection="none") as other:
            assert other.protection == "none"
    with farpool.connect(two_hosts.url, protection="none") as pool, pool.create("a") as file:
        assert file.protection == "none"
    with farpool.embedded("64MiB") as pool, pool.create("a") as file:
        assert file.protection == "none"


def test_a_protection_that_is_none_of_the_three_is_refused(pool):
    for wrong in ("both", "", "Mirror"):
        with pytest.raises(farpool.InvalidError, match="none, mirror, local or rs"):
            pool.create("a", protection=wrong)
        with pytest.raises(farpool.InvalidError, match="none, mirror, local or rs"):
            farpool.connect(pool.url, protection=wrong)
    with pytest.raises(farpool.InvalidError, match="not possible for files of class cache; use none"):
        pool.create("a", file_class="cache", protection="local")
    with pytest.raises(farpool.InvalidError, match="2 hosts, and the pool has 1"):
        pool.put_table("t", pyarrow.table({"a": [1]}), protection="mirror")


def test_a_table_and_a_file_with_a_mirror_are_read_when_a_node_is_lost(two_hosts, con):
    rows = pyarrow.table({"item": range(300_000), "kind": [0, 1, 2] * 100_000})
    with farpool.connect(two_hosts.url) as pool:
        pool.put_table("items", rows, protection="mirror")
        with pytest.raises(farpool.InvalidError, match="none, mirror or rs"):
            pool.put_table("others", rows, protection="local")
        with pool.create("bytes", file_class="pinned", protection="mirror") as file:
            file.write_at(0, b"forty-two" * MIB)
        pool.publish("bytes")
        farpool.duckdb.register(con, pool, "items")
        two_hosts.kill("node-1")
        total = "SELECT kind, sum(item), count(*) FROM items GROUP BY kind ORDER BY kind"
        expected = [(kind, sum(range(kind, 300_000, 3)), 100_000) for kind in range(3)]
        assert con.sql(total).fetchall() == expected
        assert pool.scan("items").to_arrow().sort_by("item").equals(rows)
        assert pool.open("bytes").read_at(0, 9 * MIB) == b"forty-two" * MIB
    with farpool.connect(two_hosts.url) as pool:
        assert pool.table("items").to_arrow().equals(rows)
        pool.drop_table("items")
        pool.delete("bytes")


def test_a_table_and_a_file_with_parity_are_read_when_as_many_nodes_are_lost_as_it_has_parts(farpool_binary, con):
    rows = pyarrow.table({"item": range(600_000), "kind": [0, 1, 2] * 200_000})
    total = "SELECT kind, sum(item), count(*) FROM items GROUP BY kind ORDER BY kind"
    expected = [(kind, sum(range(kind, 600_000, 3)), 200_000) for kind in range(3)]
    with (
        Cluster(farpool_binary, NODE_MEMORY_BYTES, 4, node_arguments=NODE_ARGUMENTS, hosts=True) as cluster,
        farpool.connect(cluster.url) as pool,
    ):
        with pytest.raises(farpool.InvalidError, match=r"rs\(4,2\) needs memory nodes on 6 hosts, and the pool has 4"):
            pool.put_table("items", rows, protection="rs(4,2)")
        pool.put_table("items", rows, protection="rs(2,2)")
        assert pool.table("items").protection == "rs(2,2)"
        pool.put_table("few", rows.slice(0, 10), protection="rs(3,1)")
        assert pool.table("few").protection == "mirror"
        with pool.create("bytes", file_class="pinned", protection="rs(2,2)") as file:
            assert file.protection == "rs(2,2)"
            file.write_at(0, b"forty-two" * MIB)
        pool.publish("bytes")
        assert pool.open("bytes").protection == "rs(2,2)"
        farpool.duckdb.register(con, pool, "items")
        for lost in ["node-3", "node-1"]:
            cluster.kill(lost)
            assert con.sql(total).fetchall() == expected
            assert pool.scan("items").to_arrow().sort_by("item").equals(rows)
            assert pool.open("bytes").read_at(0, 9 * MIB) == b"forty-two" * MIB
        with farpool.connect(cluster.url) as other:
            assert other.table("items").to_arrow().equals(rows)


def test_what_protection_costs_is_measured_and_every_scan_compared(farpool_binary, tmp_path):
    script = Path(__file__).resolve().parents[3] / "bench" / "protection" / "measure.py"
    found = tmp_path / "found.json"
    command = [sys.executable, script, "--size", "8MiB", "--rounds", "1", "--scans", "1", "--json", found]
    shown = subprocess.run(
        command, env={**os.environ, "FARPOOL_BIN": farpool_binary}, capture_output=True, text=True, timeout=600
    )
    assert shown.returncode == 0, shown.stderr
    assert set(json.loads(found.read_text())["figures"]["put"]) == {"none", "mirror", "rs(4,2)"}
    assert "memory" in shown.stdout


def run(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def test_copies_that_are_lost_with_a_node_are_made_again_over_tls_and_the_status_says_so(farpool_binary, tmp_path):
    certs = str(tmp_path / "certs")
    run([farpool_binary, "certs", "init", certs, "--node=node-[1-3]", "--tenant=analytics"])
    tls, tenant = ("--certs", certs), {"certs": certs, "tenant": "analytics"}
    cluster = Cluster(
        farpool_binary,
        NODE_MEMORY_BYTES,
        3,
        ("--ttl", "5s", "--grace", "1s", *tls),
        (*NODE_ARGUMENTS, *tls),
        hosts=True,
    )
    rows = pyarrow.table({"item": range(300_000)})

    def lacks() -> int:
        return status()["repairs"]["endangered_files"]

    def status() -> dict:
        return json.loads(
            run([farpool_binary, "status", "--json", "--pool", cluster.url, *tls, "--tenant", "analytics"])
        )

    def is_copied() -> bool:
        now = status()
        [silent] = [node["heard_ms_ago"] for node in now["nodes"] if node["name"] == "node-1"]
        # Its copies count as lost when it has been silent for longer than leases last.
        return silent > 7_000 and now["repairs"]["endangered_files"] == 0

    with cluster:
        with farpool.connect(cluster.url, **tenant) as pool:
            pool.put_table("items", rows)
        wait_until(lambda: lacks() == 0, "the table has its copies")
        cluster.kill("node-1")
        wait_until(is_copied, "the copies of the first node are made again at the third")
        cluster.kill("node-2")
        wait_until(lambda: lacks() > 0, "one host is left, which cannot have both copies")
        with farpool.connect(cluster.url, **tenant) as pool:
            assert pool.table("items").to_arrow().equals(rows)
            pool.drop_table("items")


def test_a_local_folder_that_is_missing_is_named_when_a_database_is_attached(con, tmp_path):
    nowhere = tmp_path / "nowhere"
    with farpool.embedded("64MiB", protection="local", local_folder=nowhere) as pool:
        with pytest.raises(farpool.InvalidError, match=str(nowhere)):
            farpool.duckdb.attach(con, pool)
        farpool.duckdb.attach(con, pool, protection="none")


def test_every_counter_is_declared_and_every_declared_counter_is_there(pool):
    declared = ast.parse(Path(farpool.__file__).with_name("_stats.pyi").read_text())
    [stats] = [node for node in declared.body if isinstance(node, ast.ClassDef) and node.name == "PoolStats"]
    names = [node.target.id for node in stats.body if isinstance(node, ast.AnnAssign)]
    assert list(pool.stats()) == names


def test_a_local_copy_reaches_the_disk_and_a_mirror_takes_twice_the_memory(two_hosts, tmp_path):
    with farpool.connect(two_hosts.url, local_folder=tmp_path) as pool:
        assert pool.local_folder == str(tmp_path)
        with pool.create("mirrored") as file:
            file.write_at(0, bytes(8 * MIB))
        assert pool.stats()["used_bytes"] == 16 * MIB
        with pool.create("local", protection="local") as file:
            file.write_at(0, bytes(8 * MIB))
        wait_until(lambda: pool.stats()["disk_bytes_written"] == 8 * MIB, "the local copy is on the disk")
        assert pool.stats()["used_bytes"] == 24 * MIB
        assert pool.stats()["unprotected_bytes"] == 0
    assert list(tmp_path.iterdir()) == []


def test_a_database_may_spill_what_its_protection_leaves_room_for(two_hosts, con, tmp_path):
    for protection in ("none", "mirror", "local"):
        with farpool.connect(two_hosts.url, local_folder=tmp_path) as pool, duckdb.connect() as con:
            donated = pool.status()["donated_bytes"]
            assert donated == 2 * NODE_MEMORY_BYTES
            farpool.duckdb.attach(con, pool, protection=protection)
            found = max_temp_directory_bytes(con)
            if protection == "local":
                assert found >= donated * 0.99
            else:
                assert found == pytest.approx(donated if protection == "none" else donated / 2, rel=0.01)


def test_max_size_may_be_text(pool, con):
    farpool.duckdb.attach(con, pool, max_size="3GiB")
    assert max_temp_directory_bytes(con) == 3 << 30
    for wrong in ("3 apples", "", -1, 1.5):
        with duckdb.connect() as other, pytest.raises(farpool.InvalidError, match="max_size"):
            farpool.duckdb.attach(other, pool, max_size=wrong)


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_what_finds_no_room_in_the_pool_spills_to_the_local_disk(con, tmp_path, transport):
    rows = 2 * ROWS
    pool = farpool.embedded(
        "64MiB", region_size="16MiB", transport=transport, protection="local", local_folder=tmp_path
    )
    with pool:
        farpool.duckdb.attach(con, pool)
        assert con.execute(spilling_query(rows)).fetchall() == answer_in_memory(rows)
        stats = pool.stats()
        assert stats["leased_bytes_total"] <= 64 * MIB < stats["disk_bytes_written"]
        assert stats["disk_bytes_read"] > 0
    con.close()


def publish(pool: farpool.Pool, name: str, content: bytes) -> None:
    with pool.create(name, file_class="pinned") as file:
        file.write_at(0, content)
    pool.publish(name, replace=True)


def test_a_published_file_is_built_anew_by_whoever_opens_or_reads_it(cluster):
    content = bytes(range(256)) * 1000
    built = []

    def rebuild(pool: farpool.Pool, name: str) -> None:
        built.append((pool, name))
        publish(pool, name, content)

    with farpool.connect(cluster.url) as pool:
        publish(pool, "views/a", content)
        pool.rebuild_with("views/", rebuild)
        reader = pool.open("views/a")
        [holder] = [node["name"] for node in pool.status()["nodes"] if node["leased_bytes"]]
        cluster.kill(holder)
        # A handle that was opened before finds the bytes lost, and then finds them in the new file. If several threads
        # need them at once, one of them rebuilds them.
        with ThreadPoolExecutor(4) as executor:
            found = executor.map(lambda _: reader.read_at(0, len(content)), range(4))
            assert list(found) == [content] * 4
        assert built == [(pool, "views/a")]
        with pool.open("views/a") as file:
            assert file.read_at(0, len(content)) == content
        pool.delete("views/a")


def test_what_a_rebuild_function_raises_is_in_the_error(cluster):
    def rebuild(pool: farpool.Pool, name: str) -> None:
        raise ValueError(f"no source for {name} today")

    with farpool.connect(cluster.url) as pool:
        publish(pool, "views/a", b"content")
        pool.rebuild_with("views/", rebuild)
        reader = pool.open("views/a")
        [holder] = [node["name"] for node in pool.status()["nodes"] if node["leased_bytes"]]
        cluster.kill(holder)
        with pytest.raises(farpool.LostError, match=f"{holder}.*ValueError: no source for views/a today"):
            reader.read_at(0, 7)
        pool.delete("views/a")


def test_a_rebuild_function_is_something_to_call(pool):
    with pytest.raises(farpool.InvalidError, match="function is 7"):
        pool.rebuild_with("views/", 7)


def test_a_pool_held_by_its_own_rebuild_function_is_collected():
    pools = [farpool.embedded("64MiB")]
    pools[0].rebuild_with("", lambda _pool, _name, held=pools[0]: held)
    gone = weakref.ref(pools.pop())
    gc.collect()
    assert gone() is None


def test_an_address_beyond_this_machine_is_refused_by_an_error_of_its_own():
    with pytest.raises(farpool.RefusedError, match="not a loopback address"):
        farpool.connect("farpool://192.0.2.1:7700", timeout="100ms")
    assert not issubclass(farpool.RefusedError, farpool.UnreachableError)


def test_sizes_are_shown_as_people_read_them(pool):
    with pool.create("shown") as file:
        file.write_at(0, bytes(3 * MIB // 2))
        assert "1.5 MiB" in repr(file)
    pool.delete("shown")
