"""Far files behave like an array of bytes that grows, over every transport."""

import random

import numpy as np
import pytest

import farpool

KIB = 1 << 10
MIB = 1 << 20


def as_bytes(data: bytes) -> bytes:
    return data


def as_bytearray(data: bytes) -> bytearray:
    return bytearray(data)


def as_memoryview(data: bytes) -> memoryview:
    return memoryview(b"<" + data + b">")[1:-1]


def as_numpy_slice(data: bytes) -> np.ndarray:
    return np.frombuffer(b"<<<" + data + b">", dtype=np.uint8)[3:-1]


BUFFERS = [as_bytes, as_bytearray, as_memoryview, as_numpy_slice]


@pytest.mark.parametrize("seed", range(3))
def test_random_operations_agree_with_a_bytearray(pool, seed):
    rng = random.Random(seed)
    model = bytearray()
    with pool.create(f"model/{seed}") as file:
        for step in range(400):
            offset = rng.choice([rng.randrange(0, 512 * KIB), len(model), rng.randrange(0, len(model) + 1)])
            length = rng.choice([0, 1, rng.randrange(5000), rng.randrange(200 * KIB)])
            operation = rng.choice(["write", "write", "write", "read", "read_into", "truncate"])
            if operation == "write":
                data = rng.randbytes(length)
                assert file.write_at(offset, rng.choice(BUFFERS)(data)) == length
                if length:
                    model.extend(bytes(max(0, offset - len(model))))
                    model[offset : offset + length] = data
            elif operation == "read":
                assert file.read_at(offset, length) == bytes(model[offset : offset + length]), step
            elif operation == "read_into":
                buffer = bytearray(b"\xee" * length)
                count = file.read_into(offset, buffer)
                expected = model[offset : offset + length]
                assert (count, buffer[:count]) == (len(expected), expected), step
            elif rng.random() < 0.3:
                size = rng.randrange(0, 600 * KIB)
                file.truncate(size)
                del model[size:]
                model.extend(bytes(size - len(model)))
            assert file.size == len(model), step
        assert file.read_at(0, len(model) + 1) == bytes(model)
    pool.delete(f"model/{seed}")


def test_bytes_across_region_boundaries_come_back(pool):
    data = random.Random(7).randbytes(3 * MIB)
    with pool.create("wide") as file:
        for boundary in (64 * MIB, 128 * MIB):
            file.write_at(boundary - MIB, data)
            assert file.read_at(boundary - MIB, len(data)) == data
    pool.delete("wide")


def test_a_batch_does_what_its_parts_would(pool):
    rng = random.Random(3)
    parts = [(index * 70 * KIB, rng.randbytes(rng.randrange(1, 70 * KIB))) for index in range(40)]
    rng.shuffle(parts)
    with pool.create("batch") as file:
        assert list(file.write_batch(parts)) == [len(data) for _, data in parts]
        buffers = [(offset, bytearray(len(data))) for offset, data in parts]
        assert list(file.read_batch(buffers)) == [len(data) for _, data in parts]
        assert [bytes(buffer) for _, buffer in buffers] == [data for _, data in parts]
    pool.delete("batch")


def test_numpy_arrays_of_any_type_are_written_as_their_bytes(pool):
    values = np.arange(100_000, dtype=np.int64)
    with pool.create("numpy") as file:
        assert file.write_at(0, values[10:20_000]) == 8 * 19_990
        back = np.zeros(19_990, dtype=np.int64)
        assert file.read_into(0, back) == back.nbytes
        assert np.array_equal(back, values[10:20_000])
    pool.delete("numpy")


def test_a_buffer_with_gaps_is_refused(pool):
    with pool.create("gaps") as file:
        with pytest.raises(farpool.InvalidError):
            file.write_at(0, np.arange(100, dtype=np.uint8)[::2])
        with pytest.raises(farpool.InvalidError):
            file.read_into(0, memoryview(bytearray(100))[::2])
        assert file.size == 0
    pool.delete("gaps")


def test_reading_into_a_buffer_that_cannot_be_written_is_refused(pool):
    with pool.create("readonly") as file:
        file.write_at(0, b"data")
        with pytest.raises(farpool.InvalidError):
            file.read_into(0, b"1234")
    pool.delete("readonly")


def test_a_closed_file_refuses_every_operation_and_stays_in_the_pool(pool):
    with pool.create("closed") as file:
        file.write_at(0, b"kept")
    assert file.closed
    for operation in (
        lambda: file.read_at(0, 1),
        lambda: file.read_into(0, bytearray(1)),
        lambda: file.write_at(0, b"x"),
        lambda: file.truncate(0),
    ):
        with pytest.raises(farpool.ClosedError):
            operation()
    file.close()
    with pool.open("closed") as again:
        assert again.read_at(0, 10) == b"kept"
    pool.delete("closed")


def test_a_closed_pool_refuses_every_operation_of_itself_and_of_its_files():
    with farpool.embedded("128MiB") as pool:
        file = pool.create("a")
        file.write_at(0, b"data")
    assert pool.closed
    with pytest.raises(farpool.ClosedError):
        file.read_at(0, 4)
    with pytest.raises(farpool.ClosedError):
        pool.create("b")
    pool.close()


def test_names_are_created_renamed_and_deleted_once(pool):
    pool.create("names/a").close()
    with pytest.raises(farpool.ExistsError):
        pool.create("names/a")
    pool.rename("names/a", "names/b")
    assert [info.name for info in pool.list("names/")] == ["names/b"]
    assert (pool.exists("names/a"), pool.exists("names/b")) == (False, True)
    pool.delete("names/b")
    with pytest.raises(farpool.NotFoundError):
        pool.delete("names/b")
    with pytest.raises(FileNotFoundError):
        pool.open("names/b")


def test_every_error_is_an_oserror_of_this_package():
    kinds = [getattr(farpool, name) for name in farpool.__all__ if name.endswith("Error")]
    assert all(issubclass(kind, farpool.Error) for kind in kinds)
    assert issubclass(farpool.Error, OSError)
    assert issubclass(farpool.NotFoundError, FileNotFoundError)
    assert issubclass(farpool.ExistsError, FileExistsError)
    assert issubclass(farpool.InvalidError, ValueError)


def test_thousands_of_small_files_cost_no_broker_call(pool):
    pool.reserve(128 * MIB)
    before = pool.stats()["broker_calls"]
    for number in range(1000):
        with pool.create(f"small/{number}") as file:
            file.write_at(0, b"%d" % number)
    for number in range(1000):
        with pool.open(f"small/{number}") as file:
            assert file.read_at(0, 10) == b"%d" % number
    for number in range(1000):
        pool.delete(f"small/{number}")
    for _ in range(4000):
        pool.create("small/again").close()
        pool.delete("small/again")
    assert pool.stats()["broker_calls"] == before


def test_what_one_session_publishes_another_reads(shared_cluster):
    with farpool.connect(shared_cluster.url) as writer, farpool.connect(shared_cluster.url) as reader:
        with writer.create("results/1", file_class="pinned") as file:
            file.write_at(0, b"for everyone")
        assert not reader.exists("results/1")
        writer.publish("results/1")
        with reader.open("results/1") as file:
            assert file.read_at(0, 100) == b"for everyone"
            with pytest.raises(farpool.Error):
                file.write_at(0, b"no")
        writer.delete("results/1")
