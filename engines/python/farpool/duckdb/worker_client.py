"""Client of `farpool.duckdb_worker`: sends queries to a DuckDB beside the data."""

from __future__ import annotations

import ipaddress
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import farpool
from farpool._farpool import _has_certificates, _relay_from

if TYPE_CHECKING:
    import pyarrow


# Prefix of the address of a worker with certificates.
ENCRYPTED = "grpc+tls://"
# Schemes of Flight over TCP without TLS.
PLAIN = {"grpc", "grpc+tcp"}


def ship(
    worker: str, sql: str, pool: farpool.Pool | None = None, *, insecure: bool = False
) -> pyarrow.RecordBatchReader:
    """Sends a query to a worker and returns its rows as they arrive.

    `worker` is the address that `python -m farpool.duckdb_worker` printed after "ready", such as
    "grpc://127.0.0.1:7810". `sql` is one SELECT over far tables of the worker's pool, by their names in the pool.
    DuckDB can read the result: `con.sql("SELECT ... FROM rows")`.

    A worker with certificates has an address that begins with "grpc+tls://". `pool` is then a session with the same
    identity as the worker's, and both sides prove it. Without certificates, workers on this machine alone are asked;
    with `insecure`, also others, which anybody on the network can then pretend to be.

    Raises `farpool.InvalidError` with the worker's message if it refuses the query, `farpool.RefusedError` if a side
    has another identity or no certificate, and `farpool.UnreachableError` if the worker does not answer. Errors after
    the first rows are raised by the reader, as errors of pyarrow.

        rows = farpool.duckdb.ship("grpc://127.0.0.1:7810", "SELECT item, sum(price) FROM sales GROUP BY item")
        rows = farpool.duckdb.ship("grpc+tls://10.0.0.2:7810", "SELECT count(*) FROM sales", pool)
    """
    try:
        import pyarrow
        from pyarrow import flight
    except ImportError as missing:
        raise farpool.InvalidError(f"ship needs pyarrow, which is not installed: {missing}") from missing
    with ExitStack() as opened:
        location = _location(worker, pool, insecure, opened)
        try:
            client = opened.enter_context(flight.connect(location))
        except pyarrow.ArrowException as error:
            raise farpool.InvalidError(f"worker {worker!r}: {error}") from error
        try:
            stream = client.do_get(flight.Ticket(sql.encode()))
            schema = stream.schema
        except flight.FlightUnavailableError as error:
            raise farpool.UnreachableError(f"worker {worker!r} does not answer: {_words_of(error)}") from error
        except flight.FlightError as error:
            raise farpool.InvalidError(f"worker {worker!r}: {_words_of(error)}") from error
        kept = opened.pop_all()

    def batches() -> Iterator[pyarrow.RecordBatch]:
        # Keeps the client open until all rows are read.
        with kept:
            for chunk in stream:
                yield chunk.data

    return pyarrow.RecordBatchReader.from_batches(schema, batches())


def _location(worker: str, pool: farpool.Pool | None, insecure: bool, opened: ExitStack) -> str:
    """Returns the address at which Flight connects: the worker's, or a socket of this machine that a relay carries to
    it over TLS. What `opened` holds is kept as long as the connection."""
    has_certificates = pool is not None and _has_certificates(pool)
    if worker.startswith(ENCRYPTED):
        if not has_certificates:
            raise farpool.RefusedError(f"worker {worker!r} takes a session with certificates: pass such a pool")
        folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="farpool-"))
        before = str(Path(folder) / "flight")
        try:
            relay = _relay_from(pool, before, worker.removeprefix(ENCRYPTED))
        except farpool.Error as error:
            raise type(error)(f"worker {worker!r}: {error}") from error
        opened.callback(relay.close)
        return f"grpc+unix://{before}"
    if has_certificates:
        raise farpool.RefusedError(
            f"worker {worker!r} has no certificates, although the pool has: start it with --certs, or pass no pool"
        )
    address = urlsplit(worker)
    is_here = address.scheme not in PLAIN or is_of_this_machine(address.hostname or "")
    if not is_here and not insecure:
        raise farpool.RefusedError(
            f"worker {worker!r} is not on this machine, and the connection would be neither encrypted nor "
            "authenticated: start it with --certs, or pass insecure=True to permit that"
        )
    return worker


def is_of_this_machine(host: str) -> bool:
    """Reports whether an address, or the name `localhost`, can be reached by this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _words_of(error: Exception) -> str:
    """Returns the worker's message, without the details that gRPC appends."""
    return str(error).split(". Detail:")[0].removesuffix(". gRPC client debug context: UNKNOWN")
