"""Published far files through fsspec: fsspec, pandas, Polars, pyarrow and DuckDB read files that one of them wrote."""

import re

import fsspec
import pandas
import polars
import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import pytest

import farpool


@pytest.fixture
def at(shared_cluster):
    """Returns an empty folder for the files of a test, and removes them afterwards."""
    root = f"{shared_cluster.url}/fs"
    yield root
    fs, path = fsspec.core.url_to_fs(root)
    for name in fs.find(path):
        fs.rm_file(name)
    fs.pool.close()
    fsspec.get_filesystem_class("farpool").clear_instance_cache()


def test_a_file_is_there_as_a_whole_when_it_is_closed_and_replaces_one_of_its_name(at):
    fs, path = fsspec.core.url_to_fs(f"{at}/a")
    for content in (b"first", b"x" * (9 << 20)):
        before = fs.cat_file(path) if fs.exists(path) else None
        with fs.open(path, "wb", block_size=1 << 20) as file:
            file.write(content)
            assert (fs.cat_file(path) if before is not None else before) == before
        assert fs.cat_file(path) == content
        assert fs.info(path) == {"name": path, "size": len(content), "type": "file", "class": "pinned"}
    with fs.open(path) as file:
        file.seek(-3, 2)
        assert (file.read(), file.tell()) == (b"xxx", 9 << 20)
        file.seek(5 << 20)
        buffer = bytearray(5 << 20)
        assert file.readinto(buffer) == 4 << 20 and buffer[: 4 << 20] == content[: 4 << 20]


def test_a_file_that_was_not_closed_well_leaves_nothing(at):
    fs, path = fsspec.core.url_to_fs(f"{at}/broken")
    with pytest.raises(RuntimeError, match="in the middle"), fs.transaction:
        with fs.open(path, "wb") as file:
            file.write(b"half")
        raise RuntimeError("in the middle")
    assert not fs.exists(path)
    assert fs.pool.list() == []


def test_a_file_that_ends_in_an_error_or_is_dropped_leaves_the_one_of_its_name_as_it_was(at):
    fs, path = fsspec.core.url_to_fs(f"{at}/kept")
    fs.pipe_file(path, b"whole")
    with pytest.raises(RuntimeError, match="in the middle"), fs.open(path, "wb", block_size=1 << 20) as file:
        file.write(b"x" * (3 << 20))
        raise RuntimeError("in the middle")
    file = fs.open(path, "wb", block_size=1 << 20)
    file.write(b"y" * (3 << 20))
    del file
    assert fs.cat_file(path) == b"whole"
    assert [one.name for one in fs.pool.list()] == [path]


def test_a_file_that_must_be_new_is_refused_if_another_was_published_meanwhile(at):
    fs, path = fsspec.core.url_to_fs(f"{at}/new")
    file = fs.open(path, "xb")
    file.write(b"second")
    fs.pipe_file(path, b"first")
    with pytest.raises(farpool.ExistsError):
        file.close()
    assert fs.cat_file(path) == b"first"


def test_an_empty_file_is_refused_and_leaves_nothing(at):
    fs, path = fsspec.core.url_to_fs(f"{at}/empty")
    with pytest.raises(farpool.InvalidError, match="empty"):
        fs.pipe_file(path, b"")
    assert fs.pool.list() == []


def test_names_are_listed_as_if_they_lay_in_folders(at):
    fs, path = fsspec.core.url_to_fs(at)
    for name in ("a", "b/c", "b/d/e", "bb"):
        fs.pipe_file(f"{path}/{name}", name.encode())
    assert sorted(fs.ls(path, detail=False)) == [f"{path}/{name}" for name in ("a", "b", "bb")]
    assert sorted(fs.find(f"{path}/b")) == [f"{path}/b/c", f"{path}/b/d/e"]
    assert (fs.isdir(f"{path}/b"), fs.isfile(f"{path}/b"), fs.isfile(f"{path}/b/c")) == (True, False, True)
    assert sorted(fs.glob(f"{path}/**/*e")) == [f"{path}/b/d/e"]
    fs.mv(f"{path}/b", f"{path}/moved", recursive=True)
    fs.cp_file(f"{path}/moved/c", f"{path}/copy")
    assert sorted(fs.find(path)) == [f"{path}/{name}" for name in ("a", "bb", "copy", "moved/c", "moved/d/e")]
    fs.rm(f"{path}/moved", recursive=True)
    assert sorted(fs.find(path)) == [f"{path}/{name}" for name in ("a", "bb", "copy")]
    assert fs.cat_file(f"{path}/copy") == b"b/c"


@pytest.mark.parametrize("wrong", ["rb", "ab", "r+b", "xb"])
def test_what_published_files_cannot_do_is_refused_by_name(at, wrong):
    fs, path = fsspec.core.url_to_fs(f"{at}/there")
    if wrong == "rb":
        with pytest.raises(FileNotFoundError, match="there"):
            fs.open(path, wrong)
        with pytest.raises(FileNotFoundError, match="no published file 'fs/there'"):
            fs.info(path)
        return
    fs.pipe_file(path, b"bytes")
    match = "exists" if wrong == "xb" else re.escape(f"mode is '{wrong}'")
    with pytest.raises(farpool.Error, match=match):
        fs.open(path, wrong)
    assert fs.cat_file(path) == b"bytes"


def test_what_one_program_wrote_others_read(at):
    rows = pyarrow.table({"n": range(100_000), "word": [f"word {n % 97}" for n in range(100_000)]})
    fs, path = fsspec.core.url_to_fs(at)
    rows.to_pandas().to_parquet(f"{at}/pandas.parquet")
    with fsspec.open(f"{at}/polars.parquet", "wb") as file:
        polars.from_arrow(rows).write_parquet(file)
    pyarrow.parquet.write_table(rows, f"{path}/pyarrow.parquet", filesystem=fs)
    for name in ("pandas", "polars", "pyarrow"):
        url = f"{at}/{name}.parquet"
        assert pyarrow.Table.from_pandas(pandas.read_parquet(url)).select(["n"]) == rows.select(["n"])
        with fsspec.open(url) as file:
            assert polars.read_parquet(file).to_arrow().column("n").to_pylist() == rows.column("n").to_pylist()
        found = pyarrow.dataset.dataset(f"{path}/{name}.parquet", filesystem=fs)
        assert found.to_table(columns=["n"], filter=pyarrow.dataset.field("n") < 7).num_rows == 7
    rows.to_pandas().to_csv(f"{at}/rows.csv", index=False)
    assert pandas.read_csv(f"{at}/rows.csv").shape == (100_000, 2)


def test_a_pool_that_is_given_is_the_one_that_is_used(shared_cluster):
    address = shared_cluster.url.removeprefix("farpool://")
    filesystem = fsspec.get_filesystem_class("farpool")
    with farpool.connect(shared_cluster.url) as first, farpool.connect(shared_cluster.url) as second:
        of = [filesystem(address, pool=pool) for pool in (first, second)]
        assert of[0].pool is first and of[1].pool is second
        first.close()
        assert of[1].find("") == filesystem(address, pool=second).find("")
