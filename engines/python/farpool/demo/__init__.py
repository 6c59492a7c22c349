"""The main demonstration: DuckDB queries that do not fit in the memory of their pod, seven ways.

`python -m farpool.demo` starts a broker and two memory nodes on this machine, runs each query
without spill, with spill to a small volume, to a cloud volume, to this machine's disk, to far memory
(TCP and shared memory) and with enough memory, and checks that all answers are the same rows in the
same order.

Reading order: `queries` (what is asked, under which limit), `run` (one query in one mode), `pod` (limits
of memory and slow volumes), `digest` (how answers are compared), `cluster` (broker and nodes), `data`
(TPC-H), `steps` (progress), `report`.
"""
