"""Sessions belong to one process: a forked child is refused, a spawned one makes its own."""

import multiprocessing
import os
from pathlib import Path

import pyarrow
import pytest

import farpool


def exit_code_of_forked(child) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = child()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_is_refused_and_its_parent_goes_on(pool):
    with pool.create("fork") as file:
        file.write_at(0, b"parent")

        def child() -> int:
            for operation in (lambda: file.read_at(0, 1), lambda: file.write_at(0, b"x"), lambda: pool.create("c")):
                try:
                    operation()
                    return 2
                except farpool.ForkError:
                    pass
            return 0

        assert exit_code_of_forked(child) == 0
        assert file.read_at(0, 6) == b"parent"
    pool.delete("fork")


def test_a_forked_child_leaves_the_transaction_of_its_parent_alone(pool):
    pool.put_table("fork", pyarrow.table({"n": [1]}))
    with pool.transaction() as both:
        both.append("fork", pyarrow.table({"n": [2]}))

        def child() -> int:
            for operation in (both.commit, lambda: both.snapshots, lambda: both.was_made_before):
                try:
                    operation()
                    return 2
                except farpool.ForkError:
                    pass
            return 0

        assert exit_code_of_forked(child) == 0
    assert both.snapshots == {"fork": 1}
    assert pool.table("fork").num_rows == 2
    pool.drop_table("fork")


def write_in_own_session(url: str) -> tuple[int, bool]:
    with farpool.connect(url) as pool, pool.create("spawn") as file:
        return file.write_at(0, b"child"), pool.exists("parent-only")


def test_a_spawned_child_gets_a_session_of_its_own(shared_cluster):
    with farpool.connect(shared_cluster.url) as pool:
        pool.create("parent-only").close()
        with multiprocessing.get_context("spawn").Pool(1) as children:
            assert children.apply(write_in_own_session, (shared_cluster.url,)) == (5, False)
        assert not pool.exists("spawn")


def test_a_closed_session_has_no_memory_of_nodes_mapped(shared_cluster):
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:farpool-")

    before = mapped()
    with farpool.connect(shared_cluster.url, transport="shm") as pool:
        pool.put_table("mapped", pyarrow.table({"item": [1, 2, 3]}))
        assert pool.table("mapped").to_arrow()["item"].to_pylist() == [1, 2, 3]
        pool.drop_table("mapped")
        assert mapped() > before
    assert mapped() == before


def test_a_session_cannot_be_sent_to_another_process(pool):
    with pytest.raises(TypeError):
        multiprocessing.get_context("spawn").SimpleQueue().put(pool)


def test_everything_public_explains_itself():
    things = [farpool.connect, farpool.embedded, farpool.Pool, farpool.File]
    for kind in (farpool.Pool, farpool.File):
        things += [getattr(kind, name) for name in vars(kind) if not name.startswith("_")]
    assert [thing for thing in things if not (thing.__doc__ or "").strip()] == []
