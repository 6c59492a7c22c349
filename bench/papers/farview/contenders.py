"""The contenders: farpool (FV) with each placement and transport, engines on this CPU (LCPU), and a remote CPU (RCPU).

For a query, each contender has a function that returns the answer and the seconds until all rows are in the memory of
this process. RCPU's client is a process, which measures its own time.
"""

import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import datafusion
import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from environment import program
from queries import Query

import farpool
from farpool.demo.cluster import Cluster, read_line

Answer = tuple[float, object]
Contender = Callable[[], Answer]
ENGINES = ("DuckDB", "Polars", "DataFusion", "pyarrow")
PLACEMENTS = ("ship", "split", "fetch")
READY_SECONDS = 300
# Key with which bench/papers/farview/rcpu/src/query.rs decrypts rows.
RCPU_KEY = b"farview figure11"

pa.set_cpu_count(1)
pa.set_io_thread_count(1)


def timed(call: Callable[[], object]) -> Contender:
    def run() -> Answer:
        begun = time.perf_counter()
        result = call()
        return time.perf_counter() - begun, result

    return run


class Engines:
    """One table in the memory of this process, in the form of each engine. Each engine has one thread."""

    def __init__(self, table: pa.Table, names: tuple[str, ...] = ENGINES):
        self._table = table
        self._calls = {name: getattr(self, f"_{name.lower()}")(table) for name in names}

    def contenders(self, query: Query) -> dict[str, Contender]:
        return {f"LCPU {name}": timed(lambda call=call: call(query)) for name, call in self._calls.items()}

    def close(self) -> None:
        self._calls.clear()

    def _duckdb(self, table: pa.Table) -> Callable[[Query], object]:
        con = duckdb.connect(config={"threads": 1})
        con.register("arrow", table)
        con.execute("create table t as select * from arrow")
        return lambda query: con.sql(query.sql()).to_arrow_table()

    def _polars(self, table: pa.Table) -> Callable[[Query], object]:
        assert pl.thread_pool_size() == 1, "POLARS_MAX_THREADS=1 must be set before Polars is loaded"
        frame = pl.from_arrow(table, rechunk=True)
        return lambda query: query.polars(frame)

    def _datafusion(self, table: pa.Table) -> Callable[[Query], object]:
        context = datafusion.SessionContext(datafusion.SessionConfig({"datafusion.execution.target_partitions": "1"}))
        context.register_record_batches("t", [table.to_batches(max_chunksize=8_192)])

        def call(query: Query) -> object:
            sql = getattr(query, "sql_of_datafusion", query.sql)()
            return context.sql(sql).to_arrow_table()

        return call

    def _pyarrow(self, table: pa.Table) -> Callable[[Query], object]:
        return lambda query: query.pyarrow(table)


class EncryptedEngine:
    """One encrypted table in the memory of this process. OpenSSL decrypts it column by column, and Polars selects."""

    def __init__(self, table: pa.Table):
        self._names = table.column_names
        plain = [column.to_numpy() for column in table.columns]
        self._decrypted = [np.empty_like(column) for column in plain]
        self._encrypted = {
            name: [self._encrypt(mode, column) for column in plain]
            for name, mode in (("CTR", modes.CTR), ("GCM", modes.GCM))
        }

    @staticmethod
    def _encrypt(mode: type, column: np.ndarray) -> tuple[np.ndarray, object]:
        cipher = Cipher(algorithms.AES128(RCPU_KEY), mode(bytes(16))).encryptor()
        # OpenSSL needs space for one block more than the output.
        room = bytearray(column.nbytes + 15)
        count = cipher.update_into(column.view(np.uint8).data, room)
        cipher.finalize()
        tag = (bytes(16), cipher.tag) if mode is modes.GCM else (bytes(16),)
        return np.frombuffer(room, np.uint8)[:count], mode(*tag)

    def contenders(self, query: Query) -> dict[str, Contender]:
        def run(name: str) -> object:
            return query.polars(self._frame(name)).to_arrow()

        return {f"LCPU OpenSSL {name}, Polars": timed(lambda name=name: run(name)) for name in self._encrypted}

    def _frame(self, name: str) -> pl.DataFrame:
        columns = {}
        for column, (encrypted, mode) in zip(self._names, self._encrypted[name], strict=True):
            room = np.empty(encrypted.nbytes + 15, np.uint8)
            cipher = Cipher(algorithms.AES128(RCPU_KEY), mode).decryptor()
            cipher.update_into(encrypted.data, room.data)
            cipher.finalize()
            columns[column] = pa.array(room[: encrypted.nbytes].view(np.int64))
        return pl.from_arrow(pa.table(columns), rechunk=False)


def encrypted_rows(rows: np.ndarray) -> np.ndarray:
    """Returns rows in the form in which RCPU stores encrypted tables."""
    cipher = Cipher(algorithms.AES128(RCPU_KEY), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(cipher.update(np.ascontiguousarray(rows).view(np.uint8).reshape(-1).data), np.uint8)


@dataclass(frozen=True)
class Place:
    """Location of far tables and of RCPU, and the transports with which the pool is used."""

    transports: tuple[str, ...]
    # Address of an existing pool. If it is None, a broker and a node are started on this machine.
    url: str | None
    is_plaintext: bool
    # Network namespace of RCPU's server (None for that of this process), and its address there.
    rcpu_netns: str | None
    rcpu_ip: str


class Far:
    """Far tables of a pool, and a session for each transport."""

    def __init__(self, memory_bytes: int, place: Place):
        self.place = place
        self._cluster = None
        self._names: list[str] = []
        if place.url is None:
            self._cluster = Cluster(program("farpool"), memory_bytes, node_count=1, node_arguments=("--no-reserve",))
            self._cluster.__enter__()
        self.url = place.url or self._cluster.url
        self.pools = {
            name: farpool.connect(self.url, transport=name, plaintext=place.is_plaintext) for name in place.transports
        }

    @staticmethod
    def name(table: str) -> str:
        """Returns the name of a table in the pool. It has a prefix, because the pool may contain other tables."""
        return f"bench-farview-{table}"

    def put(self, name: str, table: pa.Table, layout: str = "columns", key: bytes | None = None) -> None:
        next(iter(self.pools.values())).put_table(self.name(name), table, layout=layout, key=key)
        self._names.append(self.name(name))

    def contenders(
        self,
        name: str,
        query: Query,
        ways: tuple[str, ...] = PLACEMENTS,
        label: str = "FV",
        **options: object,
    ) -> dict[str, Contender]:
        """Returns the functions of farpool for a query. `options` are those of `scan`."""
        found = {}
        for placement in ways:
            for transport, pool in self.pools.items():
                scan = query.far(pool.scan(self.name(name), **options))
                found[f"{label} {placement}, {transport}"] = timed(
                    lambda scan=scan, placement=placement: scan.collect(placement=placement)
                )
        return found

    def close(self) -> None:
        for name in self._names:
            next(iter(self.pools.values())).drop_table(name)
        for pool in self.pools.values():
            pool.close()
        left = self._cluster.stop() if self._cluster else []
        assert not left, left


class RemoteCpu:
    """RCPU: a server that has the rows, and its clients, each a process."""

    def __init__(self, rows: np.ndarray, place: Place):
        self._folder = tempfile.TemporaryDirectory(prefix="farview-rcpu-", dir="/dev/shm")
        self._bytes = rows.nbytes
        file = Path(self._folder.name) / "rows"
        rows.tofile(file)
        self._server = self._start("serve", str(file), place.rcpu_ip, netns=place.rcpu_netns)
        self.address = read_line(self._server, READY_SECONDS).split()[1]
        file.unlink()  # the server has read the file
        self.client = self.another_client()

    def another_client(self) -> "RemoteClient":
        return RemoteClient(self.address, self._bytes, self._folder.name)

    def contender(self, query: Query, rows: int) -> dict[str, Contender]:
        return {"RCPU": lambda: self.client.ask(query.rcpu(rows))}

    def close(self) -> None:
        self.client.close()
        end(self._server)
        self._folder.cleanup()

    @staticmethod
    def _start(*arguments: str, netns: str | None = None) -> subprocess.Popen[bytes]:
        inside = ["nsenter", f"--net=/run/netns/{netns}"] if netns else []
        command = [*inside, program("farpool-farview-rcpu"), *arguments]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)


class RemoteClient:
    """A client process of RCPU. Its buffer is as large as the table."""

    def __init__(self, address: str, buffer_bytes: int, folder: str):
        self._process = RemoteCpu._start("client", address, str(buffer_bytes))
        self._answer_file = Path(folder) / f"answer-{self._process.pid}"
        line = read_line(self._process, READY_SECONDS)
        assert line == "ready", f"the client of RCPU said '{line}'"

    def ask(self, request: str, save: bool = False) -> tuple[float, object]:
        """Returns the seconds of a request, and the bytes of the answer if it was saved."""
        text = f"save {self._answer_file}\n{request}\n" if save else f"{request}\n"
        self._process.stdin.write(text.encode())
        words = self._process.stdout.readline().decode().split()
        assert words[:1] == ["done"], f"RCPU, {request}: {' '.join(words) or 'its client ended'}"
        answer = None
        if save:
            answer = np.fromfile(self._answer_file, np.uint8)
            self._answer_file.unlink()
        return int(words[1]) / 1e9, answer

    def close(self) -> None:
        end(self._process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a server or client of RCPU by closing its standard input."""
    process.stdin.close()
    process.wait(READY_SECONDS)
    process.stdout.close()
