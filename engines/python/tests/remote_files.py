"""A folder that DuckDB sees as "s3://", and that counts how much is read."""

from __future__ import annotations

import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fsspec import AbstractFileSystem


class CountedFolder(AbstractFileSystem):
    """File system over a folder, as DuckDB would see a bucket."""

    protocol = "s3"
    cachable = False

    def __init__(self, folder: Path, **options: Any):
        super().__init__(**options)
        self.folder = folder
        self.reads = 0

    def at(self, path: str) -> Path:
        return self.folder / path.removeprefix("s3://").strip("/")

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        seen = self.at(path).stat()
        return {"name": path, "size": seen.st_size, "type": "file", "mtime": seen.st_mtime}

    def exists(self, path: str, **options: Any) -> bool:
        return self.at(path).exists()

    def isfile(self, path: str) -> bool:
        return self.at(path).is_file()

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.at(path).stat().st_mtime, UTC)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> CountedFile:
        return CountedFile(self, self.at(path))


class CountedFile:
    """An open file. All threads of DuckDB share it, and each seeks before it reads."""

    mode = "rb"

    def __init__(self, fs: CountedFolder, path: Path):
        self._fs = fs
        self._file = path.open("rb", buffering=0)
        self._seeks: dict[int, int] = {}

    @property
    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def seek(self, offset: int, whence: int = 0) -> int:
        self._seeks[threading.get_ident()] = offset
        return offset

    def tell(self) -> int:
        return self._seeks.get(threading.get_ident(), 0)

    def read(self, size: int = -1) -> bytes:
        self._fs.reads += 1
        data = os.pread(self._file.fileno(), self.size if size < 0 else size, self.tell())
        self.seek(self.tell() + len(data))
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(memoryview(buffer).nbytes)
        memoryview(buffer).cast("B")[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
