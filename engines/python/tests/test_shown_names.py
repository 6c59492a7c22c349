"""Control characters in column names are escaped wherever this module shows the names. Other people choose them."""

import duckdb
import pyarrow as pa
import pytest

import farpool
import farpool.duckdb
from farpool.dataset import FarDataset

# Clears the screen, sets a window title, and reverses the text after it.
COLUMN = "sum\x1b[2J\x1b]0;title\x07\r\nok\u202e"
SHOWN = "sum\\u{1b}[2J\\u{1b}]0;title\\u{7}\\u{d}"


def test_names_of_columns_are_escaped_in_what_objects_say_of_themselves_and_in_errors(pool):
    pool.put_table("t", pa.table({COLUMN: [1, 2, 3]}))
    dataset = FarDataset(pool, "t")
    scan = pool.scan("t")
    with pytest.raises(farpool.InvalidError) as refused:
        dataset.to_table(["nothing"])
    with duckdb.connect() as con:
        farpool.duckdb.register(con, pool, "t")
        quoted = COLUMN.replace('"', '""')
        pushdown = farpool.duckdb.sql_pushdown(con, f'SELECT "{quoted}" FROM t WHERE "{quoted}" > 1')
        assert pushdown.fetchall() == [(2,), (3,)]
        said = {
            "a scan": repr(scan),
            "rows": repr(scan.collect()),
            "a stream": repr(scan.stream()),
            "a dataset": repr(dataset),
            "an error": str(refused.value),
            "a statement": repr(pushdown),
            "its report": str(pushdown),
        }
    for what, text in said.items():
        obeyed = [letter for letter in text.replace("\n", "") if not letter.isprintable()]
        assert obeyed == [], (what, text)
    assert all(SHOWN in said[what] for what in ("rows", "a stream", "a dataset", "an error"))
    pool.drop_table("t")
