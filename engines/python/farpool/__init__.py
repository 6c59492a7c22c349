"""Far memory for database engines: idle RAM on other machines, leased as files.

    import farpool

    with farpool.connect("farpool://127.0.0.1:7700") as pool:
        with pool.create("runs/0") as file:
            file.write_at(0, b"more than this machine can hold")
            print(file.read_at(0, 4))

A far file belongs to the session that created it and is deleted with it, unless `Pool.publish` makes it available to
every session. Scratch files survive the loss of a memory node, because a second copy is kept on another host or on a
local disk (`protection`).

`farpool.duckdb.attach` makes a DuckDB database spill into a pool. `Pool.put_table` makes a far table of Arrow, Parquet
or CSV data, and `Pool.scan` queries it:

    pool.scan("t").filter(farpool.col("a") > 1).group_by("b").agg(farpool.col("a").sum()).collect()
"""

from farpool._farpool import (
    Called,
    ClosedError,
    ConflictError,
    Error,
    ExhaustedError,
    ExistsError,
    Expr,
    File,
    FileInfo,
    ForkError,
    Function,
    FunctionError,
    FunctionVersion,
    GroupBy,
    InvalidError,
    LeaseError,
    LostError,
    NotFoundError,
    Pool,
    RefusedError,
    Rows,
    Scan,
    SnapshotInfo,
    Stream,
    Table,
    TableChange,
    TableInfo,
    TamperedError,
    Transaction,
    UnreachableError,
    Watch,
    __version__,
    col,
    connect,
    embedded,
    len,
    lit,
)

__all__ = [
    "Called",
    "ClosedError",
    "ConflictError",
    "Error",
    "ExhaustedError",
    "ExistsError",
    "Expr",
    "File",
    "FileInfo",
    "ForkError",
    "Function",
    "FunctionError",
    "FunctionVersion",
    "GroupBy",
    "InvalidError",
    "LeaseError",
    "LostError",
    "NotFoundError",
    "Pool",
    "RefusedError",
    "Rows",
    "Scan",
    "SnapshotInfo",
    "Stream",
    "Table",
    "TableChange",
    "TableInfo",
    "TamperedError",
    "Transaction",
    "UnreachableError",
    "Watch",
    "__version__",
    "col",
    "connect",
    "embedded",
    "len",
    "lit",
]
