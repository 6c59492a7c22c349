"""A DuckDB database whose temporary files are far files.

DuckDB can keep its temporary files in a registered fsspec file system, so it needs no extension, mount or root
privilege. Its calls were found by tracing DuckDB 2.0.0. Three of its habits shape this module:

* Its threads share one handle and seek before every block. Far reads and writes release the GIL, so a seek must hold
  only for the thread that made it.
* It asks whether a file exists once per spilled block. The answer is a dictionary lookup here; no other process is
  asked.
* It shortens a file with `touch(truncate=True)` and does not say to which length. The bytes are kept until DuckDB
  removes the file, which it does when the file holds no more blocks.

If the far files are protected, which is the default, a query survives the loss of a memory node. Any other error of the
pool ends the query with the text of the `farpool.Error`. The connection stays usable.

Never here: reading, writing or repairing a copy. The client library does that for all its users.
"""

from __future__ import annotations

import io
import threading
import time
import uuid
import warnings
import weakref
from datetime import UTC, datetime
from typing import Any

import duckdb
from fsspec import AbstractFileSystem

import farpool
from farpool._farpool import _group_memory, _shown, _size_bytes, _size_text
from farpool.duckdb.room import Bound, wait_for_room

_PREFIX = "farpool://"

# Settings that `attach` changes in addition to the temporary directory.
_BESIDE = (Bound.NAME, "external_file_cache_spill", "memory_limit")
# Share of the memory that a control group has left that DuckDB may use by default, beside what it holds. DuckDB's own
# default is 80 % of the limit, however much of it the process holds already, and DuckDB does not count all that it
# allocates.
_GROUP_SHARE = 0.6
# Least memory limit that is set by default. DuckDB can spill little below it.
_LIMIT_BYTES_MIN = 64 << 20
# End of the text that DuckDB shows for a limit that was never set. DuckDB does not accept this text as a value.
_OF_THE_DISK = "% of available disk space"

# Attached file systems, by the temporary directory that each one serves. No two share a directory.
_attached: weakref.WeakValueDictionary[str, FarFileSystem] = weakref.WeakValueDictionary()


def attach(
    con: duckdb.DuckDBPyConnection,
    pool: farpool.Pool | None = None,
    *,
    directory: str = "spill",
    protection: str | None = None,
    max_size: int | str | None = None,
    memory_limit: int | str | None = None,
    cache: bool = False,
) -> FarFileSystem:
    """Makes the database of `con` spill into `pool`, and returns the file system that it uses.

    Without `pool` it opens a session with the pool that `FARPOOL_POOL` names, which ends with the file system. This
    covers every connection to that database. Several databases may share a pool: each gets its own subdirectory of
    `directory`. `protection` applies to all its far files: "mirror", "local" or "none"; the default is the pool's (see
    `farpool.connect`). With the first two, queries survive the loss of a memory node.

    `max_size` (such as "10GiB") limits how much DuckDB spills. It reserves nothing; use `Pool.reserve` for that. The
    default depends on the protection:

    * "none": the memory that the pool's nodes donate.
    * "mirror": as much as fits on two hosts at once. That is half of the memory, or less if one host donates most of
      it.
    * "local": the memory, or nine tenths of the free space on the disk of `Pool.local_folder`, whichever is larger. It
      is not their sum, because the disk gets a copy of everything. Data that does not fit in the pool is on the disk
      only. Data that does not fit on the disk is in the pool only, unprotected.

    Memory that nodes have returned to their hosts does not count. When they take it back, the limit grows within
    seconds, unless `max_temp_directory_size` was changed in the meantime. If there is no memory at all for 10 s, a
    RuntimeWarning is issued, and queries that spill fail until there is some.

    `memory_limit` (such as "300MiB") sets DuckDB's setting of that name, beyond which it spills. Without it, an own
    setting stays. If there is none, and the process is in a control group with a memory limit, as in a pod, it is set
    to what DuckDB holds now and 60 % of what the group has left, so that a query spills before the kernel kills the
    process. It is at least 64 MiB. If the group does not have as much, a RuntimeWarning is issued.

    With `cache`, blocks of remote files (s3://, https:// and so on) that DuckDB evicts from memory are also kept in the
    pool, so that they need not be fetched again. This sets DuckDB's `external_file_cache_spill`. Each block of at least
    256 KiB is a far file. DuckDB still asks the source whether a file has changed. DuckDB evicts none of these blocks
    to make room, so the files that are read repeatedly must fit in the pool. If they do not, queries of remote files
    and queries that spill fail; with "local" the disk has room as well. With "none", queries that need a block of a
    lost node fail too. `SET enable_external_file_cache = false` drops the blocks, and `true` starts again.

    DuckDB removes its far files at the latest when the database is closed. `detach` removes them too. Keep `pool` open
    until then.

    Raises `farpool.InvalidError` if the database is attached already or has spilled elsewhere: DuckDB cannot move its
    temporary directory once it has used it. If DuckDB refuses `max_size` or `memory_limit`, its error is raised and the
    database is as it was. If it has spilled into the pool by then, to meet `memory_limit`, it stays attached instead.

        con.execute("SET memory_limit = '200MB'")
        farpool.duckdb.attach(con, pool)
    """
    parent = directory.strip("/")
    if not parent:
        raise farpool.InvalidError("directory is empty: name the far directory to spill into, such as 'spill'")
    max_bytes = None if max_size is None else _size_bytes("max_size", max_size)
    limit_bytes = None if memory_limit is None else _size_bytes("memory_limit", memory_limit)
    for name, count in (("max_size", max_bytes), ("memory_limit", limit_bytes)):
        if count == 0:
            raise farpool.InvalidError(f"{name} is 0 bytes: it must be at least 1")
    if con.filesystem_is_registered(FarFileSystem.protocol):
        raise farpool.InvalidError(
            "this database is already attached to a pool: call attach only once, before it spills"
        )

    is_own = pool is None
    pool = farpool.connect() if pool is None else pool
    fs = FarFileSystem(pool, f"{parent}/{uuid.uuid4().hex[:12]}", protection)
    fs._is_own_pool = is_own
    room = wait_for_room(pool, fs.protection) if max_bytes is None else None
    with con.cursor() as cursor:
        fs._directory_before = _setting(cursor, "temp_directory")
        fs._settings_before = {name: _setting(cursor, name) for name in _BESIDE}
        con.register_filesystem(fs)
        try:
            _set(cursor, "temp_directory", fs.url)
            if room is None:
                _set(cursor, Bound.NAME, f"{max_bytes}B")
            else:
                fs._bound = Bound(con, fs, room)
            if cache:
                _set(cursor, "external_file_cache_spill", "true")
            if limit_bytes is None:
                limit_bytes = _fitting_bytes(cursor, fs._settings_before["memory_limit"])
            if limit_bytes is not None:
                _set(cursor, "memory_limit", f"{limit_bytes}B")
        except BaseException as error:
            if _restore(con, cursor, fs):
                fs.close()
            else:
                _attached[fs.url] = fs
            if isinstance(error, duckdb.NotImplementedException):
                raise farpool.InvalidError(
                    f"this database has spilled to '{fs._directory_before}' already, and DuckDB cannot move its "
                    "temporary directory after that: attach right after duckdb.connect()"
                ) from error
            raise
    _attached[fs.url] = fs
    return fs


def detach(con: duckdb.DuckDBPyConnection) -> None:
    """Deletes all far files of the database of `con` and gives the memory back.

    If the database has not spilled, its former temporary directory and limit are restored. If it has, they cannot be
    restored: its queries must fit in memory from now on, and temporary tables in far memory are lost. You need no
    `detach` if you close the connection.

    Raises `farpool.InvalidError` if `attach` was not called on the database.
    """
    with con.cursor() as cursor:
        fs = _attached.pop(_setting(cursor, "temp_directory"), None)
        if fs is None:
            raise farpool.InvalidError("this database does not spill into far memory: attach was not called on it")
        # A file system of a database that has spilled stays registered, so that a later spill raises ClosedError.
        _restore(con, cursor, fs)
    fs.close()


class FarFileSystem(AbstractFileSystem):
    """The far files of one attached database, as an fsspec file system for `farpool://` paths.

    The list of files is kept only in this object. Therefore only reads and writes contact another process.
    """

    protocol = "farpool"
    cachable = False  # fsspec would share a cached instance between databases

    def __init__(self, pool: farpool.Pool, directory: str, protection: str | None = None, **storage_options: Any):
        super().__init__(**storage_options)
        self.pool = pool
        self.directory = directory
        self.protection = _protection(pool, directory, protection)
        self.closed = False
        self._is_own_pool = False
        self._bound: Bound | None = None
        self._directory_before = ""
        self._settings_before: dict[str, str] = {}
        self._directories = {directory.rpartition("/")[0]}
        self._files: dict[str, farpool.File] = {}
        self._modified: dict[str, float] = {}
        self._release = weakref.finalize(self, _delete_all, pool, self._files)

    @property
    def url(self) -> str:
        """Path of the far directory, for use as a temporary directory."""
        return f"{_PREFIX}/{self.directory}"

    def close(self) -> None:
        """Deletes all files. Creating a file afterwards raises `farpool.ClosedError`."""
        self.closed = True
        self._release()
        if self._is_own_pool:
            self.pool.close()

    def isfile(self, path: str) -> bool:
        return _key(path) in self._files

    def isdir(self, path: str) -> bool:
        return _key(path) in self._directories

    def exists(self, path: str, **kwargs: Any) -> bool:
        return self.isfile(path) or self.isdir(path)

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        key = _key(path)
        file = self._files.get(key)
        if file is not None:
            return {"name": key, "size": file.size, "type": "file", "mtime": self._modified[key]}
        if key in self._directories:
            return {"name": key, "size": 0, "type": "directory"}
        raise farpool.NotFoundError(f"no far file '{key}' in this file system")

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        parent = _key(path)
        if parent in self._files:
            names = [parent]
        else:
            names = [name for name in [*self._files, *self._directories] if name.rpartition("/")[0] == parent]
            # DuckDB lists its directory before it creates it, for `duckdb_temporary_files()`.
            if not names and parent not in self._directories and parent != self.directory:
                raise farpool.NotFoundError(f"no far directory '{parent}' in this file system")
        return [self.info(name) for name in names] if detail else names

    def size(self, path: str) -> int:
        return self.info(path)["size"]

    def modified(self, path: str) -> datetime:
        self.info(path)
        return datetime.fromtimestamp(self._modified[_key(path)], UTC)

    created = modified

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        self._directories.add(_key(path))

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self._directories.add(_key(path))

    def rmdir(self, path: str) -> None:
        self._directories.discard(_key(path))

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        """Creates a missing file. Never shortens a file, because DuckDB does not say to which length."""
        key = _key(path)
        if key not in self._files:
            self._create(key)

    def rm(self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None) -> None:
        for key in [_key(path)] if isinstance(path, str) else map(_key, path):
            if key in self._directories:
                if recursive:
                    for name in [name for name in self._files if name.startswith(f"{key}/")]:
                        self._delete(name)
                self._directories.discard(key)
            else:
                self._delete(key)

    def rm_file(self, path: str) -> None:
        self._delete(_key(path))

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        old, new = _key(path1), _key(path2)
        if old not in self._files:
            raise farpool.NotFoundError(f"no far file '{old}' in this file system")
        if new in self._files:
            raise farpool.ExistsError(f"far file '{new}' exists")
        self.pool.rename(old, new)
        self._files[new] = self._files.pop(old)
        self._modified[new] = self._modified.pop(old)

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> FarFileHandle:
        key = _key(path)
        file = self._files.get(key)
        if file is None:
            if mode == "rb":
                raise farpool.NotFoundError(f"no far file '{key}' in this file system")
            # DuckDB opens with "rb+" to read and write, and to create the file if it is missing.
            file = self._create(key)
        elif "w" in mode:
            file.truncate(0)
        handle = FarFileHandle(file, mode)
        if "a" in mode:
            handle.seek(0, io.SEEK_END)
        return handle

    def _create(self, key: str) -> farpool.File:
        if self.closed:
            raise farpool.ClosedError(
                f"cannot create far file '{key}': the database was detached from its pool, so it can no longer spill"
            )
        file = self.pool.create(key, file_class="scratch", protection=self.protection)
        self._files[key] = file
        self._modified[key] = time.time()
        return file

    def _delete(self, key: str) -> None:
        file = self._files.pop(key, None)
        if file is None:
            raise farpool.NotFoundError(f"no far file '{key}' in this file system")
        self._modified.pop(key, None)
        _delete_file(self.pool, key, file)


class FarFileHandle(io.RawIOBase):
    """An open far file. Closing the handle keeps the file.

    A seek applies to the next read or write of the same thread. Threads may therefore share a handle for blocks at
    known offsets. A read or write without a seek continues where the last operation of any thread ended. DuckDB writes
    Parquet files that way.
    """

    def __init__(self, file: farpool.File, mode: str):
        self.mode = mode
        self._file = file
        self._position = 0
        # Offsets by thread id. `threading.local` does not work: Python drops the locals of a thread that it did not
        # start (DuckDB's) whenever that thread returns from Python.
        self._seeks: dict[int, int] = {}

    def readable(self) -> bool:
        return "r" in self.mode or "+" in self.mode

    def writable(self) -> bool:
        return self.mode != "rb"

    def seekable(self) -> bool:
        return True

    @property
    def size(self) -> int:
        return self._file.size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_CUR:
            offset += self.tell()
        elif whence == io.SEEK_END:
            offset += self._file.size
        if offset < 0:
            raise farpool.InvalidError(f"seek of far file '{_shown(self._file.name)}' to {offset}, before its start")
        self._seeks[threading.get_ident()] = offset
        return offset

    def tell(self) -> int:
        return self._seeks.get(threading.get_ident(), self._position)

    def _start(self) -> int:
        """Returns where this thread's operation begins, and uses up its seek."""
        return self._seeks.pop(threading.get_ident(), self._position)

    def read(self, size: int | None = -1) -> bytes:
        position = self._start()
        if size is None or size < 0:
            size = max(self._file.size - position, 0)
        data = self._file.read_at(position, size)
        self._position = position + len(data)
        return data

    def readall(self) -> bytes:
        return self.read(-1)

    def readinto(self, buffer: Any) -> int:
        position = self._start()
        count = self._file.read_into(position, buffer)
        self._position = position + count
        return count

    def write(self, data: Any) -> int:
        position = self._start()
        count = self._file.write_at(position, data)
        self._position = position + count
        return count

    def truncate(self, size: int | None = None) -> int:
        size = self.tell() if size is None else size
        self._file.truncate(size)
        return size


def _key(path: str) -> str:
    """Returns the name of a far file or directory: its path without protocol and outer slashes."""
    return path.removeprefix(_PREFIX).strip("/")


def _protection(pool: farpool.Pool, directory: str, asked: str | None) -> str:
    """Returns the protection of the database's files. It creates a file to find out. A missing folder for local copies
    is therefore reported by `attach` and not by the first query that spills."""
    with pool.create(f"{directory}/first", protection=asked) as file:
        protection = file.protection
    pool.delete(file.name)
    return protection


def _delete_file(pool: farpool.Pool, key: str, file: farpool.File) -> None:
    try:
        file.close()
        pool.delete(key)
    except farpool.Error:
        # The node or the session is lost, and the bytes with it; or the lease ends soon. If this raised an error,
        # DuckDB would keep the file in its list and fail the next query too.
        pass


def _delete_all(pool: farpool.Pool, files: dict[str, farpool.File]) -> None:
    while files:
        key, file = files.popitem()
        _delete_file(pool, key, file)


def _restore(con: duckdb.DuckDBPyConnection, cursor: duckdb.DuckDBPyConnection, fs: FarFileSystem) -> bool:
    """Restores the settings from before `attach`. Returns False if the database has spilled into `fs`: then it keeps
    its file system and its settings, because DuckDB cannot move its temporary directory."""
    if fs._bound is not None:
        fs._bound.leave()
    if _setting(cursor, "temp_directory") == fs.url:
        try:
            _set(cursor, "temp_directory", fs._directory_before)
        except duckdb.NotImplementedException:
            return False
    con.unregister_filesystem(FarFileSystem.protocol)
    for name, value in fs._settings_before.items():
        # The text of a setting is rounded, so that setting it anew may change the setting.
        if _setting(cursor, name) != value:
            _set(cursor, name, value)
    return True


def _fitting_bytes(cursor: duckdb.DuckDBPyConnection, limit: str) -> int | None:
    """Returns the memory limit with which the database of `cursor` fits this process's control group. None if it has no
    group that limits it, or if `limit`, DuckDB's present one, is not DuckDB's default."""
    group = _group_memory()
    if group is None:
        return None
    with duckdb.connect() as untouched, untouched.cursor() as other:
        if limit != _setting(other, "memory_limit"):
            return None
    _, available_bytes = group
    # The limit is of all memory that DuckDB holds, such as that of tables in memory, which is in use in the group too.
    held_bytes = cursor.execute("SELECT sum(memory_usage_bytes) FROM duckdb_memory()").fetchone()[0]
    if held_bytes + available_bytes < _LIMIT_BYTES_MIN:
        warnings.warn(
            f"this process's control group has {_size_text(available_bytes)} of memory left, and DuckDB holds "
            f"{_size_text(held_bytes)}: that is too little for DuckDB, whose memory_limit is now "
            f"{_size_text(_LIMIT_BYTES_MIN)}. The kernel may kill this process: give its pod more memory",
            RuntimeWarning,
            stacklevel=3,
        )
    return max(held_bytes + int(available_bytes * _GROUP_SHARE), _LIMIT_BYTES_MIN)


def _setting(cursor: duckdb.DuckDBPyConnection, name: str) -> str:
    return cursor.execute(f"SELECT CAST(current_setting('{name}') AS VARCHAR)").fetchone()[0] or ""


def _set(cursor: duckdb.DuckDBPyConnection, name: str, value: str) -> None:
    if value.endswith(_OF_THE_DISK):
        cursor.execute(f"RESET GLOBAL {name}")
        return
    quoted = value.replace("'", "''")
    cursor.execute(f"SET GLOBAL {name} = '{quoted}'")
