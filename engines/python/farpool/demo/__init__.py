"""The main demonstration: DuckDB queries that do not fit in the memory of their pod, in seven modes.

`python -m farpool.demo` starts a broker and two memory nodes on this machine. It runs each query without spill, with
spill to a small volume, to a cloud volume, to this machine's disk, to far memory (TCP and shared memory), and with
enough memory. It checks that all answers have the same rows in the same order.

Reading order: `queries` (queries and their memory limits), `run` (one query in one mode), `pod` (memory limits and slow
volumes), `digest` (comparison of answers), `cluster` (broker and nodes), `data` (TPC-H), `steps` (progress), `report`.
"""
