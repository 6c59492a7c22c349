"""The main demonstration: DuckDB queries that do not fit in memory, five ways.

`python -m farpool.demo` starts a broker and two memory nodes on this machine, runs each query
without spill, with spill to local disk, with spill to far memory (TCP and shared memory) and with
enough memory, and checks that all answers are the same rows in the same order.

Reading order: `queries` (what is asked, under which limit), `run` (one query in one mode),
`digest` (how answers are compared), `cluster` (broker and nodes), `data` (TPC-H), `report`.
"""
