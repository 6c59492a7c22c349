"""Limits how much a database may spill into a pool whose nodes return memory to their hosts and take it back.

DuckDB has a single limit, `max_temp_directory_size`, and never asks the pool. A database that attaches while memory is
away therefore gets a limit for the memory that is there. A background thread raises the limit as memory comes back,
until all of it is there.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import duckdb

import farpool
from farpool._farpool import _size_text

if TYPE_CHECKING:
    from farpool.duckdb.spill import FarFileSystem

# Share of the free disk space that local copies may fill. DuckDB uses the same share when it spills to a disk.
_DISK_SHARE = 0.9
# Seconds to wait for memory. A broker that has just started hears from its nodes within moments, and nodes take memory
# back as fast.
_ROOM_SECONDS = 10.0
_LOOK_SECONDS = 0.05
# Seconds between two checks whether memory has come back. Nodes take memory back once a second.
_GROW_SECONDS = 1.0


class Room:
    """Memory that a pool has for files of one protection, at one moment."""

    def __init__(self, pool: farpool.Pool, protection: str):
        nodes = pool.status()["nodes"]
        self.node_count = len(nodes)
        self.donated_bytes = sum(node["donated_bytes"] for node in nodes)
        self.away_bytes = sum(node["away_bytes"] for node in nodes)
        self.bytes = self._bytes(nodes, pool, protection)

    def _bytes(self, nodes: list[dict[str, Any]], pool: farpool.Pool, protection: str) -> int:
        by_host: dict[str, int] = {}
        for node in nodes:
            host = node["host_label"]
            by_host[host] = by_host.get(host, 0) + node["donated_bytes"]
        if protection == "mirror" and len(by_host) > 1:
            return min(self.donated_bytes // 2, self.donated_bytes - max(by_host.values()))
        if protection == "local":
            disk = os.statvfs(pool.local_folder)
            return max(self.donated_bytes, int(disk.f_bavail * disk.f_frsize * _DISK_SHARE))
        return self.donated_bytes

    @property
    def is_whole(self) -> bool:
        """True if there is memory and no more can come back."""
        return self.bytes > 0 and self.away_bytes == 0


def wait_for_room(pool: farpool.Pool, protection: str) -> Room:
    """Waits until the pool has memory, at most 10 s, and returns the result. Warns if there is none after that."""
    until = time.monotonic() + _ROOM_SECONDS
    while (room := Room(pool, protection)).bytes == 0 and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
    if room.bytes == 0:
        warnings.warn(
            f"the pool has no memory to spill into with protection '{protection}': after {_ROOM_SECONDS:.0f} s its "
            f"{room.node_count} nodes donate {_size_text(room.donated_bytes)}, and {_size_text(room.away_bytes)} are "
            "given back to their hosts. Queries that spill fail until there is memory: max_temp_directory_size is 0 "
            "bytes and is raised then. farpool status shows which nodes have memory away",
            RuntimeWarning,
            stacklevel=3,
        )
    return room


class Bound:
    """The limit of a database's spilling, if the user has set none."""

    NAME = "max_temp_directory_size"

    def __init__(self, con: duckdb.DuckDBPyConnection, fs: FarFileSystem, room: Room):
        """Sets the limit. Raises it in the background as long as memory of the pool is away."""
        self._con = weakref.ref(con)
        self._fs = weakref.ref(fs)
        self._bytes = room.bytes
        self._changing = threading.Lock()
        self._over = threading.Event()
        with con.cursor() as cursor:
            self._shown = self._set(cursor)
        if not room.is_whole:
            threading.Thread(target=self._grow, name="farpool-room", daemon=True).start()

    def leave(self) -> None:
        """Stops changing the setting, for good."""
        self._over.set()
        with self._changing:
            pass

    def _set(self, cursor: duckdb.DuckDBPyConnection) -> str:
        cursor.execute(f"SET GLOBAL {self.NAME} = '{self._bytes}B'")
        return self._setting(cursor)

    def _setting(self, cursor: duckdb.DuckDBPyConnection) -> str:
        return cursor.execute(f"SELECT current_setting('{self.NAME}')").fetchone()[0]

    def _grow(self) -> None:
        # No reference to the user's objects is held between two checks.
        while not self._over.wait(_GROW_SECONDS) and self._look():
            pass

    def _look(self) -> bool:
        """Raises the limit if there is more memory. Returns False once there is nothing to wait for."""
        fs = self._fs()
        if fs is None or fs.closed:
            return False
        try:
            room = Room(fs.pool, fs.protection)
            is_ours = room.bytes <= self._bytes or self._raise_to(room.bytes)
            return is_ours and not room.is_whole
        except farpool.ClosedError:
            return False
        except farpool.Error:
            return True  # The broker does not answer now.
        except duckdb.Error:
            return False  # The database is closed.

    def _raise_to(self, count: int) -> bool:
        """Raises the limit to `count` bytes. Returns False if the user changed the setting or dropped the database."""
        con = self._con()
        with self._changing:
            if con is None or self._over.is_set():
                return False
            with con.cursor() as cursor:
                if self._setting(cursor) != self._shown:
                    return False
                self._bytes = count
                self._shown = self._set(cursor)
        return True
