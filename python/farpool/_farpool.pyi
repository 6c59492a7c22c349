"""The compiled half of Farpool.

Sizes and offsets are bytes, as `int` or, where a parameter says `Size`, also as text such as
"64MiB" or "4GiB". Times are text such as "250ms" or "5s". All calls that may leave the process
release the GIL and wait for one peer no longer than the pool's `timeout`; a broker that does not answer is
asked again for 10 s. Objects may be shared by threads; they
may not be used in a forked child, which gets `ForkError`: connect again there.
"""

import builtins
import os
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Literal, NamedTuple, Protocol, Self, TypeAlias, TypedDict

import pyarrow
from typing_extensions import Buffer

Size: TypeAlias = int | str
PathLike: TypeAlias = str | os.PathLike[str]
FileClass: TypeAlias = Literal["scratch", "cache", "pinned"]
Transport: TypeAlias = Literal["auto", "tcp", "shm"]
Protection: TypeAlias = Literal["none", "mirror", "local"]
"""What keeps a scratch file readable when a node is lost.

"mirror": two copies, on nodes of different host labels; a lost copy is made anew in the background.
"local": a copy on a disk of this machine, written behind; it also takes what finds no room in the pool.
"none": nothing; what lay on a lost node raises LostError.
"""

__version__: str

class Error(OSError):
    """Base of all errors of this package. The text says what was refused, by whom, and what helps."""

class LostError(Error):
    """Bytes are gone because the named memory node is, and no other copy is left. Writing the file anew is
    the only cure."""

class ExhaustedError(Error):
    """The pool has no more bytes to lease to this session. Delete files, wait, or add a node."""

class LeaseError(Error):
    """The bytes cannot be read because the last write to them failed: write them anew."""

class NotFoundError(Error, FileNotFoundError):
    """No file of this name, published or of this session."""

class ExistsError(Error, FileExistsError):
    """The name is taken."""

class ForkError(Error):
    """The object was made before a fork and is used in the child."""

class InvalidError(Error, ValueError):
    """An argument is wrong; the text names it, its value and what is permitted."""

class ClosedError(Error):
    """The pool or file was closed, by us or with its session."""

class UnreachableError(Error):
    """Broker or node did not answer within the timeout. The bytes may still be there: try again."""

class TamperedError(Error):
    """A node answered with other bytes than were written to a sealed file, and no other copy is left. Write
    the file anew; nothing is leased from that node any more."""

class RefusedError(Error):
    """The address is beyond this machine and `plaintext` was not asked for; or a peer refused what its other
    errors have no name for, or broke the protocol."""

class FileInfo(NamedTuple):
    name: str
    size: int
    file_class: FileClass
    published: bool

class TableInfo(NamedTuple):
    name: str
    size: int
    lost: bool

class ArrowStream(Protocol):
    """Batches by the Arrow PyCapsule interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

class PoolStats(TypedDict):
    """Counters of this session since it connected, and gauges. Reading them asks nobody."""

    read_ops: int
    bytes_read: int
    write_ops: int
    bytes_written: int
    broker_calls: int
    """Requests to the broker, renewals excepted."""
    leased_bytes: int
    """Gauge: what this session holds on nodes, in whole regions."""
    used_bytes: int
    """Gauge: how much of it files occupy, in whole extents. A mirrored extent counts twice."""
    leased_bytes_total: int
    failed_ops: int
    """Reads and writes that raised."""
    nodes_lost: int
    dropped_copy_bytes: int
    """Copies given up because a write did not reach them."""
    unprotected_bytes: int
    """Gauge: bytes of protected files whose next loss would be for good, because their second copy is
    still to be made or the local disk has not taken them."""
    repaired_bytes: int
    """Copies made anew in the background."""
    disk_bytes_written: int
    """Local copies: bytes that reached the disk's file."""
    disk_bytes_read: int
    """Local copies: bytes read back, because no node had them."""
    spun_ns: int
    """CPU time that threads of this process have spun while they waited for nodes, in all pools together."""

class NodeStatus(TypedDict):
    name: str
    address: str
    host_label: str
    """Its failure domain."""
    donated_bytes: int
    leased_bytes: int
    free_bytes: int

class NamedFileStatus(TypedDict):
    name: str
    size: int
    file_class: FileClass
    lost: bool
    """Whether a node that held some of it has restarted since."""

class PoolStatus(TypedDict):
    """The pool as its broker sees it."""

    url: str
    nodes: list[NodeStatus]
    """Nodes that are serving; a lost node leaves this list."""
    sessions: int
    """Sessions heard of lately."""
    files: list[NamedFileStatus]
    """Published files only: files of a session are known to that session alone."""
    donated_bytes: int
    leased_bytes: int
    """By all sessions and names; 0 when everything has been given back."""

def _size_bytes(what: str, value: Size) -> int: ...
def _size_text(bytes: int) -> str: ...
def connect(
    url: str | None = None,
    *,
    transport: Transport = "auto",
    timeout: str = "5s",
    reserve: Size = 0,
    ca: PathLike | None = None,
    cert: PathLike | None = None,
    key: PathLike | None = None,
    certs: PathLike | None = None,
    tenant: str | None = None,
    plaintext: bool = False,
    protection: Protection | None = None,
    local_folder: PathLike | None = None,
    sealed: bool = False,
) -> Pool:
    """Starts a session with the pool at `url`, such as "farpool://127.0.0.1:7700".

    Without a URL, it is an embedded pool of this process. `auto` takes shared memory to nodes on
    this machine and TCP to all others. `reserve` bytes are leased before this returns.

    Beyond this machine both sides prove who they are by certificates, and everything is encrypted: `ca`,
    `cert` and `key` are PEM files, or `certs` is a folder that `farpool certs init` made, of which the
    administrator's certificate is used, or that of `tenant`. Brokers and nodes beyond this machine are
    refused without them, unless `plaintext` says that everybody on the network may read and change what
    is stored.

    `protection` is that of scratch files whose creation does not say: "mirror" (two nodes of different
    host labels), "local" (a copy in `local_folder`, by default the system's folder for temporary files)
    or "none". Default: "mirror" if the pool has nodes of two host labels, otherwise "local"; in an
    embedded pool "none". `sealed` scratch files are encrypted and authenticated before they leave this
    process, so that memory nodes can neither read them nor change them unnoticed; local copies are not.

    Raises UnreachableError, RefusedError (beyond this machine, or one side does not trust the other),
    InvalidError (url, transport, timeout, protection, certificates), ExhaustedError (reserve).
    """

def embedded(
    memory: Size = "1GiB",
    *,
    nodes: int = 1,
    region_size: Size = "64MiB",
    transport: Transport = "auto",
    protection: Protection | None = None,
    local_folder: PathLike | None = None,
) -> Pool:
    """Starts a broker and `nodes` memory nodes inside this process, `memory` bytes in all.

    For tests and for trying things out: it lends this process its own memory. Its nodes end with this
    process, all on one host, so `protection` is "none" unless given (see `connect`).
    """

class Pool:
    """A session with a pool. Closing it gives back every byte that is not published."""

    @property
    def url(self) -> str: ...
    @property
    def local_folder(self) -> str:
        """Where local copies of scratch files lie."""

    @property
    def closed(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def close(self) -> None:
        """Ends the session. Its unpublished files are gone; their `File` objects raise ClosedError."""

    def create(
        self,
        name: str,
        *,
        file_class: FileClass = "scratch",
        size_hint: Size = 0,
        protection: Protection | None = None,
    ) -> File:
        """Makes an empty file, seen by this session alone until it is published.

        Takes no far memory yet and asks nobody, so it may hide a published file of the same name from this
        session; `size_hint` bytes may be leased ahead. `protection` of a scratch file is the session's
        unless given (see `connect`).
        Raises ExistsError if this session has a file of this name, InvalidError (also: no file can be made
        in the folder for local copies).
        """

    def open(self, name: str) -> File:
        """Opens a file of this session, or a published one (for reading). Raises NotFoundError."""

    def exists(self, name: str) -> bool: ...
    def delete(self, name: str) -> None:
        """Removes a file and gives its bytes back. Raises NotFoundError, UnreachableError (published)."""

    def rename(self, old: str, new: str) -> None:
        """Gives a file another name. Raises NotFoundError, ExistsError (this session or, for a published
        file, the pool has one of that name)."""

    def publish(self, name: str, *, replace: bool = False) -> None:
        """Seals a file of this session and gives it to its name: any session may open it, nobody may write it.

        Raises NotFoundError, ExistsError (without `replace`), LostError, UnreachableError.
        """

    def rebuild_with(self, prefix: str, function: Callable[[Pool, str], object]) -> None:
        """Says how published files whose names start with `prefix` are built anew after a node took their
        bytes away: `function(pool, name)` publishes, with `replace`, a file of that name with the very same
        bytes.

        It is called in the thread that opens such a file, or reads it by a `File` opened before, and that
        thread waits for it. What it raises ends in the text of that thread's LostError. Of two prefixes that
        fit, the one given last counts.
        """

    def list(self, prefix: str = "") -> builtins.list[FileInfo]:
        """The files of this session and the published ones whose names start with `prefix`."""

    def put_table(self, name: str, data: ArrowStream) -> None:
        """Makes a far table of anything that has `__arrow_c_stream__`: Arrow, Polars and DuckDB tables, readers of
        batches. It takes the place of a table of that name at once, when all of it is there.

        Raises InvalidError (a type that far tables do not have, a row larger than a region), ExhaustedError.
        """

    def table(self, name: str) -> Table:
        """Opens a far table. Raises NotFoundError, LostError, InvalidError (a file that is no table has its name)."""

    def tables(self) -> builtins.list[TableInfo]:
        """The far tables of the pool."""

    def drop_table(self, name: str) -> None:
        """Drops a far table. Raises NotFoundError."""

    def reserve(self, nbytes: Size) -> None:
        """Leases this much ahead of use, so that writing it needs no broker. Raises ExhaustedError."""

    def stats(self) -> PoolStats: ...
    def status(self) -> PoolStatus:
        """Asks the broker. Raises UnreachableError."""

class Table:
    """A far table, opened for reading. Anything that reads Arrow streams takes it, such as `pyarrow.table`."""

    @property
    def name(self) -> str: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def column_names(self) -> list[str]: ...
    def to_arrow(self, columns: list[str] | None = None) -> pyarrow.Table:
        """All of it, or some columns, as a `pyarrow.Table`. Nothing else is fetched.

        Raises LostError, ClosedError (it was dropped or replaced), UnreachableError, InvalidError (no such column).
        """

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

class File:
    """A far file. Offsets need no alignment; operations on different ranges may run at once."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    @property
    def file_class(self) -> FileClass: ...
    @property
    def protection(self) -> Protection:
        """What keeps it readable when a node is lost. "none" for files that are not scratch."""

    @property
    def sealed(self) -> bool:
        """Whether it is encrypted and authenticated before it leaves this process."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def read_at(self, offset: int, n: int) -> bytes:
        """`n` bytes from `offset`, fewer only at the end of the file. Bytes never written are zeros.

        Raises LostError, LeaseError, UnreachableError, ClosedError, InvalidError (negative argument).
        """

    def read_into(self, offset: int, buffer: Buffer) -> int:
        """Fills a writable, contiguous buffer; returns how many bytes there were. Errors as `read_at`."""

    def write_at(self, offset: int, buffer: Buffer) -> int:
        """Writes all of a contiguous buffer, growing the file as needed; returns its length in bytes.

        Raises ExhaustedError, LostError, LeaseError, UnreachableError, ClosedError, InvalidError
        (buffer not contiguous, negative offset, published file). After an error the range must be
        written again before it can be read.
        """

    def read_batch(self, requests: Iterable[tuple[int, Buffer]]) -> builtins.list[int]:
        """`read_into` for many ranges with one wait; returns their counts."""

    def write_batch(self, requests: Iterable[tuple[int, Buffer]]) -> builtins.list[int]:
        """`write_at` for many ranges with one wait; returns their counts. Ranges should not overlap."""

    def truncate(self, size: int) -> None:
        """Sets the size. Freed extents are given back; bytes added read as zeros."""

    def close(self) -> None:
        """Lets go of the file, which stays in the pool until it is deleted or the session ends."""
