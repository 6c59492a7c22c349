"""Lets an unmodified DuckDB spill into far memory and query far tables.

    con = duckdb.connect("tpch.duckdb")
    con.execute("SET memory_limit = '200MB'")
    farpool.duckdb.attach(con, pool)                          # from now on it spills into far memory
    farpool.duckdb.register(con, pool)                        # far tables are relations
    farpool.duckdb.register_file(con, pool, "sales.parquet", as_="sales")    # and so are published files
    farpool.duckdb.sql_pushdown(con, "SELECT ...").show()     # runs as much as possible beside the data
    farpool.duckdb.ship("grpc://10.0.0.2:7810", "SELECT ...") # runs the whole query in a DuckDB beside the data

Modules: `spill` and `room` for spilling; `relations` for far tables as relations; `published_files`; `pushdown`,
`binder`, `expressions` and `terms` for `sql_pushdown`; `worker_client` for `ship`.
"""

from farpool.duckdb.published_files import register_file
from farpool.duckdb.pushdown import Block, Pushdown, sql_pushdown
from farpool.duckdb.relations import register, unregister
from farpool.duckdb.spill import FarFileSystem, attach, detach
from farpool.duckdb.worker_client import ship

__all__ = [
    "Block",
    "FarFileSystem",
    "Pushdown",
    "attach",
    "detach",
    "register",
    "register_file",
    "ship",
    "sql_pushdown",
    "unregister",
]
