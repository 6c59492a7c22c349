"""A query that spills much for its running time, and its right answer."""

from functools import cache

import duckdb

# A sort that spills whole rows: about 150 MB per million rows at a limit of 100 MB. The weights make the sum depend on
# the order of all rows.
_QUERY = """
SELECT sum(place * (weight % 1000)), max(length(padding))
FROM (SELECT row_number() OVER (ORDER BY weight, padding) AS place, weight, padding
      FROM (SELECT hash(i) AS weight, repeat('y', 40) || hash(i + 1) AS padding FROM range({rows}) t(i)))
"""


def spilling_query(rows: int) -> str:
    return _QUERY.format(rows=rows)


@cache
def answer_in_memory(rows: int) -> list[tuple]:
    """Returns the answer of the query when it has enough memory."""
    with duckdb.connect(config={"temp_directory": ""}) as con:
        return con.execute(spilling_query(rows)).fetchall()
