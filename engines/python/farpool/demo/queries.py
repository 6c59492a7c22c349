"""The queries of the demonstration, and the memory limits under which each one must spill.

Every query is ordered by a unique key, so that its rows have one order. The limits were found by experiment with DuckDB
2.0.0 and two threads, at scales 0.1 and 1. Below its limit a query fails even if it may spill. At its limit it fails if
it may not spill.
"""

from __future__ import annotations

from dataclasses import dataclass

MB = 1_000_000


@dataclass(frozen=True)
class Query:
    name: str
    title: str
    sql: str
    limit_base_mb: int  # MB that two threads need at any scale
    limit_per_scale_mb: int

    def limit_bytes(self, scale: float) -> int:
        return round((self.limit_base_mb + self.limit_per_scale_mb * scale) * MB)


AGGREGATE = Query(
    name="aggregate",
    title="aggregation, one group per line item",
    limit_base_mb=25,
    limit_per_scale_mb=125,
    sql="""
SELECT l_partkey, l_suppkey, l_shipdate,
       count(*) AS items, sum(l_quantity) AS quantity,
       sum(l_extendedprice * (1 - l_discount)) AS revenue
FROM lineitem
GROUP BY l_partkey, l_suppkey, l_shipdate
ORDER BY revenue DESC, l_partkey, l_suppkey, l_shipdate
LIMIT 1000
""",
)

SORT = Query(
    name="sort",
    title="sort of all line items",
    limit_base_mb=45,
    limit_per_scale_mb=105,
    sql="""
SELECT l_extendedprice, l_orderkey, l_linenumber, l_partkey, l_suppkey,
       l_quantity, l_shipdate, l_shipinstruct, l_comment
FROM lineitem
ORDER BY l_extendedprice, l_orderkey, l_linenumber
""",
)

# The Hash+Sort query of the remote-memory paper: a hash join, then the first 100,000 rows by price. The limit is a
# subquery on purpose. With a constant, DuckDB may keep only the best rows in a heap, which never spills. With a
# subquery it sorts everything, as the paper's engine did.
HASH_SORT = Query(
    name="hash-sort",
    title="Hash+Sort: join, then top 100,000",
    limit_base_mb=70,
    limit_per_scale_mb=150,
    sql="""
SELECT *
FROM lineitem JOIN orders ON l_orderkey = o_orderkey
ORDER BY l_extendedprice, l_orderkey, l_linenumber
LIMIT (SELECT 100000)
""",
)

Q18 = Query(
    name="q18",
    title="TPC-H Q18",
    limit_base_mb=17,
    limit_per_scale_mb=33,
    sql="""
SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) AS quantity
FROM customer, orders, lineitem
WHERE o_orderkey IN (
        SELECT l_orderkey FROM lineitem GROUP BY l_orderkey HAVING sum(l_quantity) > 300)
  AND c_custkey = o_custkey
  AND o_orderkey = l_orderkey
GROUP BY c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice
ORDER BY o_totalprice DESC, o_orderdate, o_orderkey
LIMIT 100
""",
)

# The original Q21 selects one nation. DuckDB then needs about 30 MB at scale 1 and never spills. Over all nations the
# same joins have 25 times the rows.
Q21 = Query(
    name="q21",
    title="TPC-H Q21 over all nations",
    limit_base_mb=20,
    limit_per_scale_mb=60,
    sql="""
SELECT n_name, s_name, count(*) AS numwait
FROM supplier, lineitem l1, orders, nation
WHERE s_suppkey = l1.l_suppkey
  AND o_orderkey = l1.l_orderkey
  AND o_orderstatus = 'F'
  AND l1.l_receiptdate > l1.l_commitdate
  AND EXISTS (
        SELECT * FROM lineitem l2
        WHERE l2.l_orderkey = l1.l_orderkey AND l2.l_suppkey <> l1.l_suppkey)
  AND NOT EXISTS (
        SELECT * FROM lineitem l3
        WHERE l3.l_orderkey = l1.l_orderkey AND l3.l_suppkey <> l1.l_suppkey
          AND l3.l_receiptdate > l3.l_commitdate)
  AND s_nationkey = n_nationkey
GROUP BY n_name, s_name
ORDER BY numwait DESC, s_name
""",
)

QUERIES = {query.name: query for query in (AGGREGATE, SORT, HASH_SORT, Q18, Q21)}
