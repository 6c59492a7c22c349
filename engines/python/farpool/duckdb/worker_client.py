"""Client of `farpool.duckdb_worker`: sends queries to a DuckDB beside the data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import farpool

if TYPE_CHECKING:
    import pyarrow


def ship(worker: str, sql: str) -> pyarrow.RecordBatchReader:
    """Sends a query to a worker and returns its rows as they arrive.

    `worker` is the address that `python -m farpool.duckdb_worker` printed after "ready", such as
    "grpc://10.0.0.2:7810". `sql` is one SELECT over far tables of the worker's pool, by their names in the pool. DuckDB
    can read the result: `con.sql("SELECT ... FROM rows")`.

    Raises `farpool.InvalidError` with the worker's message if it refuses the query, and `farpool.UnreachableError` if
    it does not answer. Errors after the first rows are raised by the reader, as errors of pyarrow.

        rows = farpool.duckdb.ship("grpc://10.0.0.2:7810", "SELECT item, sum(price) FROM sales GROUP BY item")
    """
    try:
        import pyarrow
        from pyarrow import flight
    except ImportError as missing:
        raise farpool.InvalidError(f"ship needs pyarrow, which is not installed: {missing}") from missing
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
        # Keeps the client open until all rows are read.
        with client:
            for chunk in stream:
                yield chunk.data

    return pyarrow.RecordBatchReader.from_batches(schema, batches())


def _words_of(error: Exception) -> str:
    """Returns the worker's message, without the details that gRPC appends."""
    return str(error).split(". Detail:")[0].removesuffix(". gRPC client debug context: UNKNOWN")
