"""A DuckDB beside the data: runs queries that others send as SQL over the far tables of a pool.

    python -m farpool.duckdb_worker --pool farpool://10.0.0.1:7700        on a host of the pool, beside its node
    farpool.duckdb.ship("grpc://127.0.0.1:7810", "SELECT ...")            from the same machine
    farpool.duckdb.ship("grpc+tls://10.0.0.2:7810", "SELECT ...", pool)   from others, if both sides have certificates

The idea: if a host that donates memory has this wheel with DuckDB and pyarrow, the query moves instead of the rows.
Results are sent as Arrow record batches over Arrow Flight. DuckDB produces such batches, so values are not converted.

A worker stores nothing. Each query has its own connection to one in-memory database, which knows only the far tables
that the query names. Queries cannot write. DuckDB opens no file, no network address and no extension.

With certificates (`--certs`), connections are encrypted, and sessions of the worker's own identity alone are served:
Flight listens on a Unix socket in a folder of the worker's user, and a relay passes on what comes over mutual TLS.
Without certificates, anybody who can connect to the port can query every table. A worker then listens on this machine
only, unless `--insecure-listen` is given.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa
from pyarrow import flight

import farpool
from farpool._farpool import _has_certificates, _relay_to
from farpool.duckdb.relations import register, unregister
from farpool.duckdb.worker_client import ENCRYPTED, is_of_this_machine

# Bytes of a query, at most.
SQL_BYTES_MAX = 1 << 20
# Rows of a result batch, at most.
BATCH_ROWS = 65_536


class Worker(flight.FlightServerBase):
    """Flight server that starts to serve queries when it is constructed. `port` is its TCP port."""

    def __init__(self, pool: farpool.Pool, location: str, memory_limit: str | None, threads: int | None):
        self.pool = pool
        # A query that does not fit in memory fails with DuckDB's out-of-memory error, because there is no temporary
        # directory.
        config = {"temp_directory": "", "python_enable_replacements": False, "autoinstall_known_extensions": False}
        config |= {"memory_limit": memory_limit} if memory_limit else {}
        config |= {"threads": threads} if threads else {}
        self.database = duckdb.connect(config=config)
        self.database.execute("SET enable_external_access = false; SET lock_configuration = true")
        super().__init__(location)

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        try:
            schema, batches = self._run(ticket.ticket)
        except (duckdb.Error, farpool.Error, ValueError) as error:
            raise flight.FlightServerError(str(error)) from error
        return flight.GeneratorStream(schema, batches)

    def _run(self, ticket: bytes) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        if len(ticket) > SQL_BYTES_MAX:
            raise ValueError(f"a query of {len(ticket)} bytes; up to {SQL_BYTES_MAX} are permitted")
        sql = ticket.decode()
        connection = self.database.cursor()
        try:
            statements = connection.extract_statements(sql)
            if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
                kinds = ", ".join(statement.type.name for statement in statements) or "nothing"
                raise ValueError(f"a single SELECT is permitted, not {kinds}")
            named = {name.lower() for name in connection.get_table_names(sql)}
            tables = {table.name: table.name for table in self.pool.tables() if table.name.lower() in named}
            register(connection, self.pool, tables)
            reader = connection.execute(sql).to_arrow_reader(BATCH_ROWS)
        except BaseException:
            connection.close()
            raise

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                yield from reader
            except (duckdb.Error, farpool.Error, OSError) as error:
                raise flight.FlightServerError(str(error)) from error
            finally:
                for name in tables:
                    unregister(connection, name)
                connection.close()

        return reader.schema, batches()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not an address: use HOST:PORT, with a port of 0 to 65535")
    return host, int(port)


@contextmanager
def _serving(pool: farpool.Pool, host: str, port: int, memory_limit: str | None, threads: int | None) -> Iterator[str]:
    """Runs a worker and yields its address."""
    if not _has_certificates(pool):
        with Worker(pool, f"grpc://{host}:{port}", memory_limit, threads) as worker:
            yield f"grpc://{host}:{worker.port}"
        return
    with tempfile.TemporaryDirectory(prefix="farpool-") as folder:
        behind = str(Path(folder) / "flight")
        with Worker(pool, f"grpc+unix://{behind}", memory_limit, threads):
            relay = _relay_to(pool, f"{host}:{port}", behind)
            try:
                yield f"{ENCRYPTED}{host}:{relay.port}"
            finally:
                relay.close()


def main(arguments: list[str] | None = None) -> int:
    """Serves until SIGINT or SIGTERM. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m farpool.duckdb_worker", description=__doc__.splitlines()[0])
    # `connect` takes the address of the environment, with its certificates, if it is given none.
    pool = None if os.environ.get("FARPOOL_POOL") else "farpool://127.0.0.1:7700"
    parser.add_argument(
        "--pool", default=pool, metavar="URL", help="[default: FARPOOL_POOL, or farpool://127.0.0.1:7700]"
    )
    listen = "address to receive queries at; port 0 takes a free one [default: 127.0.0.1:7810]"
    parser.add_argument("--listen", type=_address, default=("127.0.0.1", 7810), metavar="HOST:PORT", help=listen)
    parser.add_argument(
        "--memory-limit", metavar="SIZE", help="memory of all queries together, such as 4GB [default: DuckDB's]"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="threads of each query [default: DuckDB's]")
    certs = "directory of the pool's certificates: mutual TLS, for sessions of the same identity alone"
    parser.add_argument("--certs", metavar="DIR", help=certs)
    parser.add_argument("--tenant", metavar="NAME", help="with --certs: be this tenant, not the administrator")
    insecure = "listen to other machines: anyone who reaches the port can query all tables, and rows travel unencrypted"
    parser.add_argument("--insecure-listen", action="store_true", help=insecure)
    args = parser.parse_args(arguments)
    host, port = args.listen
    told, teller = socket.socketpair()
    teller.setblocking(False)
    # The kernel may give a signal to any thread. Python's handlers run when the main thread wakes, which this does.
    signal.set_wakeup_fd(teller.fileno())
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, lambda *_: None)
    try:
        with farpool.connect(args.pool, certs=args.certs, tenant=args.tenant) as pool:
            if not is_of_this_machine(host) and not _has_certificates(pool) and not args.insecure_listen:
                parser.error(
                    f"--listen {host}:{port}: other machines can reach it: pass --certs, or --insecure-listen to "
                    "permit that without"
                )
            with _serving(pool, host, port, args.memory_limit, args.threads) as address:
                print(f"ready {address}", flush=True)
                told.recv(1)
    except (farpool.Error, duckdb.Error, pa.ArrowException) as error:
        print(f"farpool.duckdb_worker: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
