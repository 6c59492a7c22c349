"""Makes the tables and the queries of TPC-DS for tpc.py, with DuckDB's generator.

    python3 -m venv ENV && ENV/bin/pip install duckdb==1.5.5 duckdb-extension-tpcds==1.5.5
    ENV/bin/python bench/engines/tpcds_data.py FOLDER --scale 1

    FOLDER/tpcds/data/NAME.parquet
    FOLDER/tpcds/queries/qNN.sql

It needs its own environment, because the DuckDB version that is measured does not have this extension.
"""

import argparse
from pathlib import Path

import duckdb
import duckdb_extension_tpcds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    if not 0.01 <= args.scale <= 1000:
        parser.error(f"--scale {args.scale}: 0.01 to 1000 are permitted")
    data, queries = args.folder / "tpcds/data", args.folder / "tpcds/queries"
    for folder in (data, queries):
        folder.mkdir(parents=True, exist_ok=True)
    (extension,) = Path(duckdb_extension_tpcds.__file__).parent.rglob("tpcds.duckdb_extension")
    con = duckdb.connect()
    con.execute(f"LOAD '{extension}'")
    con.execute(f"CALL dsdgen(sf = {args.scale})")
    for (name,) in con.execute("SELECT table_name FROM duckdb_tables()").fetchall():
        con.execute(f"COPY {name} TO '{data}/{name}.parquet'")
    for number, query in con.execute("SELECT query_nr, query FROM tpcds_queries()").fetchall():
        (queries / f"q{number:02}.sql").write_text(query)


if __name__ == "__main__":
    main()
