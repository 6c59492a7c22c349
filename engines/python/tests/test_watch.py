"""Watching far tables from Python: each change is told as it is made."""

import _thread
import datetime
import threading
import time

import pyarrow as pa
import pytest

import farpool


def rows(count: int) -> pa.Table:
    return pa.table({"id": pa.array(range(count), pa.int64())})


def test_each_change_is_told_in_order_while_others_go_on(pool):
    pool.put_table("watched", rows(3))
    with pool.watch("watched", timeout="600s") as watch:
        # The thread needs the interpreter while this one waits.
        writer = threading.Thread(target=lambda: [pool.append("watched", rows(i)) for i in range(1, 11)])
        writer.start()
        changes = [next(watch) for _ in range(10)]
        writer.join(timeout=600)
        assert [change.snapshot for change in changes] == list(range(1, 11))
        assert {change.kind for change in changes} == {"snapshot"}
        assert [change.summary for change in changes] == [f"append {i} rows" for i in range(1, 11)]
        assert all(change.time.tzinfo is datetime.UTC for change in changes)
        history = pool.history("watched")
        assert [(entry.snapshot, entry.time, entry.session) for entry in reversed(history)] == [
            (change.snapshot, change.time, change.session) for change in changes
        ]
        pool.drop_table("watched")
        assert next(watch) == farpool.TableChange("dropped", None, None, None, "")
        pool.put_table("watched", rows(3))
        assert next(watch).kind == "file"
    assert list(watch) == [], "it was closed"
    pool.drop_table("watched")


def test_iteration_ends_once_nothing_has_come_in_time(pool):
    pool.put_table("quiet", rows(1))
    watch = pool.watch("quiet", timeout="30ms")
    assert list(watch) == []
    pool.append("quiet", rows(2))
    assert [change.snapshot for change in watch] == [1], "it goes on where it was"
    pool.drop_table("quiet")


def test_interrupt_ends_a_wait(pool, interruptible):
    pool.put_table("waiting", rows(1))
    watch = pool.watch("waiting")

    def interrupt():
        time.sleep(0.3)
        _thread.interrupt_main()

    thread = threading.Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt):
        thread.start()
        next(watch)
    thread.join(timeout=600)
    pool.append("waiting", rows(1))
    assert next(watch).snapshot == 1, "the watch can be used after it"
    pool.drop_table("waiting")


def test_closing_a_watch_ends_the_iteration_of_another_thread(pool):
    pool.put_table("closing", rows(1))
    watch, found = pool.watch("closing"), []
    thread = threading.Thread(target=lambda: found.append(list(watch)))
    thread.start()
    watch.close()
    thread.join(timeout=600)
    assert found == [[]]
    pool.drop_table("closing")


def test_what_cannot_be_watched_is_refused(pool):
    with pytest.raises(farpool.NotFoundError, match="no table of this name"):
        pool.watch("missing")
    pool.put_table("there", rows(1))
    with pytest.raises(farpool.InvalidError, match="timeout"):
        pool.watch("there", timeout="soon")
    pool.drop_table("there")
