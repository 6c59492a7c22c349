"""A DuckDB query that does not fit into its memory limit, and spills into the pool at 127.0.0.1:7700."""

import duckdb

import farpool
import farpool.duckdb

query = "SELECT count(DISTINCT hash(i)) FROM range(10_000_000) t(i)"
settings = {"memory_limit": "100MB", "temp_directory": "", "threads": 2}
try:
    duckdb.connect(config=settings).execute(query)
    raise SystemExit("the query fits into its limit, so it shows nothing")
except duckdb.OutOfMemoryException:
    pass
con = duckdb.connect(config=settings)
with farpool.connect("farpool://127.0.0.1:7700") as pool:
    farpool.duckdb.attach(con, pool)
    assert con.execute(query).fetchall() == [(10_000_000,)]
    written = pool.stats()["bytes_written"]
    assert written > 50_000_000, written
    print(f"spilled {written / 1e6:.0f} MB")
