"""Client of `farpool.duckdb_worker`: sends queries to a DuckDB beside the data."""

from __future__ import annotations

import ipaddress
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import farpool
from farpool._farpool import _has_certificates, _relay_from

if TYPE_CHECKING:
    import pyarrow
    from pyarrow import flight


# Prefix of the address of a worker with certificates.
ENCRYPTED = "grpc+tls://"
# Schemes of Flight over TCP without TLS.
PLAIN = {"grpc", "grpc+tcp"}
# Seconds after which a worker that has not sent all rows is asked whether it is there, and seconds it has to answer. It
# is asked only if there are others.
LOOK_SECONDS = 0.25
ANSWER_SECONDS = 0.5


def ship(
    worker: str | Sequence[str], sql: str, pool: farpool.Pool | None = None, *, insecure: bool = False
) -> pyarrow.RecordBatchReader:
    """Sends a query to a worker and returns its rows as they arrive.

    `worker` is the address that `python -m farpool.duckdb_worker` printed after "ready", such as
    "grpc://127.0.0.1:7810". `sql` is one SELECT over far tables of the worker's pool, by their names in the pool.
    DuckDB can read the result: `con.sql("SELECT ... FROM rows")`.

    Several addresses of workers of one pool are asked in turn: if one is lost, or silent for 0.75 s, the next one runs
    the query again. All rows are then taken into memory before the first is returned, so none comes twice.

    A worker with certificates has an address that begins with "grpc+tls://". `pool` is then a session with the same
    identity as the worker's, and both sides prove it. Without certificates, workers on this machine alone are asked;
    with `insecure`, also others, which anybody on the network can then pretend to be.

    Raises `farpool.InvalidError` with the worker's message if it refuses the query, `farpool.RefusedError` if a side
    has another identity or no certificate, and `farpool.UnreachableError` if the worker does not answer. Errors after
    the first rows are raised by the reader, as errors of pyarrow.

        rows = farpool.duckdb.ship("grpc://127.0.0.1:7810", "SELECT item, sum(price) FROM sales GROUP BY item")
        rows = farpool.duckdb.ship("grpc+tls://10.0.0.2:7810", "SELECT count(*) FROM sales", pool)
        rows = farpool.duckdb.ship(["grpc://127.0.0.1:7810", "grpc://127.0.0.1:7811"], "SELECT count(*) FROM sales")
    """
    try:
        import pyarrow
    except ImportError as missing:
        raise farpool.InvalidError(f"ship needs pyarrow, which is not installed: {missing}") from missing
    if not isinstance(worker, str):
        return _all_rows(list(worker), sql, pool, insecure).to_reader()
    with ExitStack() as opened:
        client = _connect(worker, _location(worker, pool, insecure, opened), opened)
        with _telling(worker):
            stream = _ask(client, sql)
            schema = stream.schema
        kept = opened.pop_all()

    def batches() -> Iterator[pyarrow.RecordBatch]:
        # Keeps the client open until all rows are read.
        with kept:
            for chunk in stream:
                yield chunk.data

    return pyarrow.RecordBatchReader.from_batches(schema, batches())


def _all_rows(workers: list[str], sql: str, pool: farpool.Pool | None, insecure: bool) -> pyarrow.Table:
    """Returns the rows of the first worker that gives them all."""
    if not workers:
        raise farpool.InvalidError("ship: no worker is named")
    for worker in workers[:-1]:
        try:
            return _rows_while_it_answers(worker, sql, pool, insecure)
        except farpool.UnreachableError:
            pass
    return ship(workers[-1], sql, pool, insecure=insecure).read_all()


def _rows_while_it_answers(worker: str, sql: str, pool: farpool.Pool | None, insecure: bool) -> pyarrow.Table:
    """Returns all rows of a query.

    Raises `farpool.UnreachableError` as soon as the worker does not answer.
    """
    with ExitStack() as opened:
        location = _location(worker, pool, insecure, opened)
        client, asker = (_connect(worker, location, opened) for _ in range(2))
        rows: list[pyarrow.Table] = []
        failed: list[Exception] = []
        ended = threading.Event()

        def read() -> None:
            try:
                with _telling(worker):
                    rows.append(_ask(client, sql).read_all())
            except Exception as error:
                failed.append(error)
            ended.set()

        # If the worker stands still, the thread waits until it goes on or ends.
        threading.Thread(target=read, name="farpool-ship", daemon=True).start()
        while not ended.wait(LOOK_SECONDS):
            if not _is_there(asker):
                raise farpool.UnreachableError(f"worker {worker!r} does not answer")
        if failed:
            raise failed[0]
        return rows[0]


def _is_there(client: flight.FlightClient) -> bool:
    """Asks a worker whether it is there. Any answer will do."""
    import pyarrow
    from pyarrow import flight

    try:
        list(client.list_actions(flight.FlightCallOptions(timeout=ANSWER_SECONDS)))
    except (flight.FlightUnavailableError, flight.FlightTimedOutError):
        return False
    except (pyarrow.ArrowException, NotImplementedError):
        pass
    return True


def _connect(worker: str, location: str, opened: ExitStack) -> flight.FlightClient:
    import pyarrow
    from pyarrow import flight

    try:
        return opened.enter_context(flight.connect(location))
    except pyarrow.ArrowException as error:
        raise farpool.InvalidError(f"worker {worker!r}: {error}") from error


def _ask(client: flight.FlightClient, sql: str) -> flight.FlightStreamReader:
    from pyarrow import flight

    return client.do_get(flight.Ticket(sql.encode()))


@contextmanager
def _telling(worker: str) -> Iterator[None]:
    """Turns errors of Flight into those of Farpool, which name the worker."""
    from pyarrow import flight

    try:
        yield
    except (flight.FlightUnavailableError, flight.FlightTimedOutError, flight.FlightCancelledError) as error:
        raise farpool.UnreachableError(f"worker {worker!r} does not answer: {_words_of(error)}") from error
    except flight.FlightError as error:
        raise farpool.InvalidError(f"worker {worker!r}: {_words_of(error)}") from error


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
