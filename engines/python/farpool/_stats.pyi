"""Types of the dictionaries in which Farpool reports counters, states of pools, and what queries did."""

from typing import NotRequired, TypedDict

from farpool._farpool import FileClass, Placement

class PoolStats(TypedDict):
    """Counters of this session since it connected, and gauges. Reading them contacts no other process."""

    read_ops: int
    bytes_read: int
    write_ops: int
    bytes_written: int
    mapped_read_ops: int
    """Reads that were copied from shared memory, without a request. `read_ops` has them too."""
    mapped_bytes_read: int
    mapped_write_ops: int
    """Writes that were copied to shared memory, without a request. `write_ops` has them too."""
    mapped_bytes_written: int
    scratch_bytes_written: int
    """Bytes written to scratch files, such as those that engines spill to."""
    broker_calls: int
    """Requests to the broker, without renewals of leases."""
    leased_bytes: int
    """Gauge: bytes that this session has leased from nodes, in whole regions."""
    used_bytes: int
    """Gauge: leased bytes that files occupy, in whole extents. A mirrored extent counts twice."""
    leased_bytes_total: int
    failed_ops: int
    """Reads and writes that raised an error."""
    nodes_lost: int
    dropped_copy_bytes: int
    """Bytes of copies that were dropped because a write did not reach them or their node was lost."""
    unprotected_bytes: int
    """Gauge: bytes of protected files that have one copy only. The second copy is not made yet, or the local disk does
    not have the bytes yet."""
    repaired_bytes: int
    """Bytes of lost copies that were made again in the background."""
    disk_bytes_written: int
    """Bytes written to local copies on disk."""
    disk_bytes_read: int
    """Bytes read from local copies on disk, because no node had them."""
    spun_ns: int
    """CPU time, in ns, that threads of this process spent spinning while they waited for nodes. Sum over all pools of
    the process."""
    row_groups_read: int
    """Row groups of far tables that queries read."""
    row_groups_skipped: int
    """Row groups of far tables that queries skipped: their statistics show that no row passes the filters."""

class NodeStatus(TypedDict):
    name: str
    address: str
    host_label: str
    """Failure domain of the node."""
    donated_bytes: int
    leased_bytes: int
    free_bytes: int
    away_bytes: int
    """Bytes that the node returned to its host, which needs the memory. They are not part of `donated_bytes`."""

class NamedFileStatus(TypedDict):
    name: str
    size: int
    file_class: FileClass
    lost: bool
    """True if a node that stored some of its bytes has restarted since."""

class PoolStatus(TypedDict):
    """State of the pool, as its broker knows it."""

    url: str
    term: int
    """Term of the broker: a number that increases when a broker starts or becomes the leader."""
    nodes: list[NodeStatus]
    """Nodes that are serving. A lost node is not in this list."""
    sessions: int
    """Sessions that the broker heard of recently."""
    files: list[NamedFileStatus]
    """Published files. The broker does not know the unpublished files of sessions."""
    donated_bytes: int
    leased_bytes: int
    """Bytes leased by all sessions and published files. 0 when all memory has been given back."""

class Report(TypedDict):
    """Report of a query: where row groups were processed, bytes, and times in seconds."""

    trace: str | None
    """Trace id of the query, which the logs of the nodes show. `None` if the query has not run yet."""
    placement: Placement | None
    """Placement that was asked for. `None` if the query has not run yet."""
    chosen: Placement | None
    """Placement that was used: `placement` itself, or the choice for "auto". `None` if the query has not run yet."""
    why: NotRequired[str]
    """Reason of the choice."""
    sure: NotRequired[bool]
    """True if the costs of the query were known from earlier runs."""
    expected: NotRequired[dict[str, dict[str, float]]]
    """Estimates for each placement: `seconds`, `link_bytes`, `node_seconds`, `client_seconds`."""
    tried: int
    """Row groups that nodes ran as a trial, before the placement was chosen."""
    corrected: bool
    """True if the trial changed the choice."""
    files: int
    """Files of the table."""
    files_skipped: int
    """Files that were not opened: their bounds show that no row is needed."""
    row_groups: int
    """Row groups of the files that were opened."""
    shipped: int
    """Row groups that nodes processed."""
    fetched: int
    """Row groups that this process fetched and processed."""
    skipped: int
    """Row groups that were skipped: their statistics show that no row is needed."""
    rows: int
    result_bytes: int
    """Bytes of results that nodes sent."""
    fetched_bytes: int
    """Bytes of columns that were fetched."""
    lookup_bytes: int
    """Bytes of keys and filters that were sent to nodes for semi-joins."""
    link_bytes: int
    """Sum of `result_bytes`, `fetched_bytes` and `lookup_bytes`."""
    node_bytes: int
    """Bytes of columns that nodes read."""
    node_seconds: float
    """Seconds that nodes worked, sum over all nodes."""
    client_seconds: float
    """Seconds that this process worked, without waiting."""
    seconds: float
    refusals: list[tuple[str, str]]
    """Pairs (node, reason) of nodes that did not run their part. This process ran it instead."""
