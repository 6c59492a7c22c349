"""Published far files as an fsspec file system, for every library that reads and writes by fsspec.

    import pandas as pd

    frame.to_parquet("farpool://127.0.0.1:7700/sales/2026.parquet")
    pd.read_parquet("farpool://127.0.0.1:7700/sales/2026.parquet")

A path starts with the pool's address, followed by the name of a file. There are no directories. A name with slashes is
listed as if it were in directories, as in object stores.

A file is written once, from start to end. It becomes visible to every session, complete, when it is closed. It replaces
a file of the same name. An empty file is refused. A file stays until it is deleted or its node is lost. After that,
reading it raises `farpool.LostError`, and it must be written again from its source.

Keywords of `farpool.connect` are storage options:

    pd.read_parquet("farpool://10.0.0.2:7700/sales/2026.parquet", storage_options={"certs": "certs"})
"""

from __future__ import annotations

import contextlib
import io
import os
import uuid
from typing import Any

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

import farpool

__all__ = ["FarpoolFileSystem"]

_PROTOCOL = "farpool"
_BLOCK_BYTES = 4 << 20
# Bytes read ahead of small reads. The value is small because a round trip to far memory takes only as long as the
# transfer of this many bytes.
_READ_AHEAD_BYTES = 64 << 10


class _OfOneSession(type(AbstractFileSystem)):
    """Metaclass that keeps file systems of different `pool` objects apart. fsspec caches one instance per set of
    arguments, and two pools with the same address look equal to it."""

    def __call__(cls, *args: Any, pool: farpool.Pool | None = None, **kwargs: Any) -> Any:
        if pool is not None:
            kwargs |= {"pool": pool, "skip_instance_cache": True}
        return super().__call__(*args, **kwargs)


class FarpoolFileSystem(AbstractFileSystem, metaclass=_OfOneSession):
    """The published files of the pool at `address`, such as "127.0.0.1:7700". With several brokers:
    "10.0.0.2:7700,10.0.0.3:7700".

    Other keywords are those of `farpool.connect`. All uses with the same options in this process share one session. If
    you pass an open `pool`, it is used instead of a new session, and you close it yourself.
    """

    protocol = _PROTOCOL
    root_marker = ""

    def __init__(self, address: str, *, pool: farpool.Pool | None = None, **options: Any):
        own = {name: options.pop(name) for name in _FSSPEC_OPTIONS & options.keys()}
        super().__init__(**own)
        self.address = address
        self.pool = pool or farpool.connect(f"{_PROTOCOL}://{address}", **options)

    @classmethod
    def _strip_protocol(cls, path: str | os.PathLike[str] | list[Any]) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = os.fspath(path)
        if path.startswith(f"{_PROTOCOL}://"):
            path = path.removeprefix(f"{_PROTOCOL}://").partition("/")[2]
        return path.strip("/")

    def unstrip_protocol(self, name: str) -> str:
        return f"{_PROTOCOL}://{self.address}/{self._strip_protocol(name)}"

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        address = path.removeprefix(f"{_PROTOCOL}://").partition("/")[0]
        return {"address": address} if path.startswith(f"{_PROTOCOL}://") else {}

    @property
    def fsid(self) -> str:
        return f"{_PROTOCOL}_{self.address}"

    def _published(self, prefix: str) -> list[farpool.FileInfo]:
        return [file for file in self.pool.list(prefix) if file.published]

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        name = self._strip_protocol(path)
        for file in self._published(name):
            if file.name == name:
                return _info(file)
            if file.name.startswith(f"{name}/") or not name:
                return {"name": name, "size": 0, "type": "directory"}
        if not name:
            return {"name": name, "size": 0, "type": "directory"}
        raise farpool.NotFoundError(f"no published file '{name}' in the pool at {self.address}")

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        name = self._strip_protocol(path)
        prefix = f"{name}/" if name else ""
        found: dict[str, dict[str, Any]] = {}
        for file in self._published(name):
            if file.name == name:
                found[name] = _info(file)
            elif file.name.startswith(prefix):
                first, below, _ = file.name[len(prefix) :].partition("/")
                entry = prefix + first
                found[entry] = {"name": entry, "size": 0, "type": "directory"} if below else _info(file)
        if not found and name:
            raise farpool.NotFoundError(f"no published file '{name}', and none below it, in the pool at {self.address}")
        return list(found.values()) if detail else list(found)

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Does nothing: names need no directories."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Does nothing: names need no directories."""

    def rmdir(self, path: str) -> None:
        """Does nothing: a directory disappears with the last file below it."""

    def rm_file(self, path: str) -> None:
        self.pool.delete(self._strip_protocol(path))

    _rm = rm_file

    def rm(self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None) -> None:
        for name in self.expand_path(path, recursive=recursive, maxdepth=maxdepth):
            # A directory disappears with the last file below it.
            if not recursive or self.isfile(name):
                self.rm_file(name)

    def mv_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        self.pool.rename(self._strip_protocol(path1), self._strip_protocol(path2))

    def mv(self, path1: str, path2: str, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        old, new = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(old):
            if not recursive:
                raise farpool.InvalidError(f"'{old}' is a folder: pass recursive=True to move the files below it")
            for file in self._published(f"{old}/"):
                self.pool.rename(file.name, new + file.name[len(old) :])
        else:
            self.pool.rename(old, new)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        with self.open(path1, "rb") as source, self.open(path2, "wb") as target:
            while piece := source.read(_BLOCK_BYTES):
                target.write(piece)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        with self.pool.open(self._strip_protocol(path)) as file:
            first, behind, _ = slice(start, end).indices(file.size)
            return file.read_at(first, max(behind - first, 0))

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> FarpoolFile:
        if mode not in ("rb", "wb", "xb"):
            raise farpool.InvalidError(
                f"mode is '{mode}': 'rb' (read), 'wb' (create or replace) and 'xb' (create) are permitted"
            )
        block_size = block_size or (_READ_AHEAD_BYTES if mode == "rb" else _BLOCK_BYTES)
        return FarpoolFile(self, path, mode, block_size, autocommit=autocommit, cache_options=cache_options, **kwargs)


class FarpoolFile(AbstractBufferedFile):
    """A published far file that is read, or a new one that is written."""

    def __init__(self, fs: FarpoolFileSystem, path: str, mode: str, block_size: int, **kwargs: Any):
        self.far: farpool.File | None = None
        if mode == "rb":
            self.far = fs.pool.open(fs._strip_protocol(path))
            kwargs["size"] = self.far.size
        elif mode == "xb" and fs.exists(path):
            raise farpool.ExistsError(f"published file '{fs._strip_protocol(path)}' exists")
        super().__init__(fs, path, mode, block_size, **kwargs)

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self.far.read_at(start, end - start)

    def readinto(self, buffer: Any) -> int:
        if self.mode != "rb":
            raise io.UnsupportedOperation("the file is open for writing")
        # Large reads go straight into the caller's buffer, past the read-ahead buffer.
        if memoryview(buffer).nbytes < self.blocksize:
            return super().readinto(buffer)
        count = self.far.read_into(self.loc, buffer)
        self.loc += count
        return count

    def _initiate_upload(self) -> None:
        # The file has a temporary name until it is complete.
        self.far = self.fs.pool.create(f".writing/{uuid.uuid4().hex}", file_class="pinned")

    def _upload_chunk(self, final: bool = False) -> bool:
        with self.buffer.getbuffer() as piece:
            try:
                self.far.write_at(self.offset, piece)
            except farpool.Error:
                self.closed = True
                self.discard()
                raise
        if final and self.autocommit:
            self.commit()
        return True

    def commit(self) -> None:
        """Publishes the file under its name."""
        pool = self.fs.pool
        try:
            pool.rename(self.far.name, self.path)
            pool.publish(self.path, replace=self.mode != "xb")
        except farpool.Error:
            self.discard()
            raise

    def discard(self) -> None:
        """Deletes what was written."""
        far, self.far = self.far, None
        if far is not None:
            self.fs.pool.delete(far.name)
            far.close()

    def abandon(self) -> None:
        """Closes the file without publishing it. A published file of the same name stays unchanged."""
        if not self.closed and self.mode != "rb":
            self.closed = True
            self.discard()

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        if kind is not None:
            self.abandon()
        self.close()

    def __del__(self) -> None:
        # A file that was not closed is not published. The pool may be closed already; then the bytes are gone with its
        # session.
        with contextlib.suppress(farpool.Error, AttributeError):
            self.abandon()

    def close(self) -> None:
        was_open = not self.closed
        super().close()
        if was_open and self.far is not None:
            self.far.close()


_FSSPEC_OPTIONS = {"use_listings_cache", "skip_instance_cache", "asynchronous", "loop"}


def _info(file: farpool.FileInfo) -> dict[str, Any]:
    return {"name": file.name, "size": file.size, "type": "file", "class": file.file_class}
