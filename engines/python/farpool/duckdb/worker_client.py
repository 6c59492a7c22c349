"""Queries that a DuckDB beside the data runs: see `farpool.duckdb_worker`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import farpool

if TYPE_CHECKING:
    import pyarrow


def ship(worker: str, sql: str) -> pyarrow.RecordBatchReader:
    """Has a worker run a query, and returns its rows while they come.

    `worker` is what `python -m farpool.duckdb_worker` printed behind "ready", such as "grpc://10.0.0.2:7810". `sql` is
    one SELECT over far tables of the worker's pool, by their names there. DuckDB takes the result as it takes any
    reader: `con.sql("SELECT ... FROM rows")`.

    Raises `farpool.InvalidError` if the worker refuses the query, with what its DuckDB says, and
    `farpool.UnreachableError` if it is not there. What goes wrong once rows come is raised by the reader, as pyarrow's.
    """
    try:
        import pyarrow
        from pyarrow import flight
    except ImportError as missing:
        raise farpool.InvalidError(f"results pass through pyarrow, which is not installed: {missing}") from missing
    try:
        client = flight.connect(worker)
    except pyarrow.ArrowException as error:
        raise farpool.InvalidError(f"worker {worker!r}: {error}") from error
    try:
        stream = client.do_get(flight.Ticket(sql.encode()))
        schema = stream.schema
    except flight.FlightUnavailableError as error:
        client.close()
        raise farpool.UnreachableError(f"worker {worker!r} does not answer: {_words_of(error)}") from error
    except flight.FlightError as error:
        client.close()
        raise farpool.InvalidError(f"worker {worker!r}: {_words_of(error)}") from error

    def batches() -> Iterator[pyarrow.RecordBatch]:
        # Holds the client for as long as there are rows.
        with client:
            for chunk in stream:
                yield chunk.data

    return pyarrow.RecordBatchReader.from_batches(schema, batches())


def _words_of(error: Exception) -> str:
    """What the worker says; behind it gRPC says where it came from."""
    return str(error).split(". Detail:")[0].removesuffix(". gRPC client debug context: UNKNOWN")
