"""Calls functions as a node does, as far as tests need it: a call record over bytes (spec/function.md).

Shared objects are called in this process, and Wasm modules in Node.js.
"""

import ctypes
import json
import struct
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

RECORD_BYTES, HOP_AT, GOES_ON = 152, 104, 1
STAYS = 2**64 - 1
TRAPPED = -(2**63)
RECORD_AT, OUTPUT_AT, WINDOW_AT = 0x3000_0000, 0x3100_0000, 0x4000_0000
BEYOND = b"\xa5" * 64


@dataclass
class Call:
    """Arguments of a function. `parts` are the first byte and length of each part of the window; empty for one part
    with all of it."""

    window: bytes = b""
    args: bytes = b""
    capacity: int = 65536
    columns: bytes = b""
    parts: list[tuple[int, int]] | None = None
    state: bytes | None = None

    def parts_bytes(self) -> bytes:
        parts = [(0, len(self.window))] if self.parts is None else self.parts
        return b"".join(struct.pack("<QQ", *part) for part in parts)

    def record(self, window: int, args: int, output: int, columns: int, parts: int, state: int) -> bytes:
        """Returns the call record for these addresses."""
        return struct.pack(
            "<II18Q",
            1,
            0 if self.state is None else GOES_ON,
            *(window, len(self.window), args, len(self.args), output, self.capacity),
            *((columns, len(self.columns)) if self.columns else (0, 0)),
            *(parts, len(self.parts_bytes()) // 16),
            *((0, 0) if self.state is None else (state, len(self.state))),
            STAYS,
            *([0] * 5),
        )


@dataclass
class Returned:
    value: int
    hop: int
    output: bytes = field(repr=False)

    @property
    def code(self) -> int | None:
        return -self.value if self.value < 0 else None


def returned(value: int, hop: int, output: bytes) -> Returned:
    assert value <= len(output), f"{value} bytes written to an output of {len(output)}"
    return Returned(value, hop, output[: max(value, 0)])


def entry(name: str) -> str:
    """Returns the name of a file's function: `knn` for `knn.simd`, `degrees` for `rust/degrees`."""
    return Path(name).name.split(".")[0]


class Native:
    """Shared objects `NAME.so` of a folder. A function that traps would end this process."""

    def __init__(self, folder: Path):
        self.folder, self.loaded = folder, {}

    def call(self, name: str, call: Call) -> Returned:
        if name not in self.loaded:
            self.loaded[name] = getattr(ctypes.CDLL(str(self.folder / f"{name}.so")), entry(name))
            self.loaded[name].restype, self.loaded[name].argtypes = ctypes.c_int64, [ctypes.c_void_p]
        # Odd addresses where the contract promises no alignment, and an output that contains old data.
        pieces = [np.frombuffer(b"\0" + piece, np.uint8).copy() for piece in (call.args, call.state or b"")]
        window, columns, parts = (
            np.frombuffer(piece or b"\0", np.uint8).copy() for piece in (call.window, call.columns, call.parts_bytes())
        )
        output = np.frombuffer(b"\x5a" * call.capacity + BEYOND, np.uint8).copy()
        args, state = (piece.ctypes.data + 1 for piece in pieces)
        bytes_of_record = call.record(
            window.ctypes.data, args, output.ctypes.data, columns.ctypes.data, parts.ctypes.data, state
        )
        record = np.frombuffer(bytes_of_record, np.uint8).copy()
        value = self.loaded[name](record.ctypes.data)
        hop = int.from_bytes(record[HOP_AT : HOP_AT + 8].tobytes(), "little")
        record[HOP_AT : HOP_AT + 8] = 255
        assert record.tobytes() == bytes_of_record, "of the record, a function may write the field hop alone"
        assert window.tobytes() == (call.window or b"\0"), "the window is not to be written to"
        assert output[call.capacity :].tobytes() == BEYOND, "it wrote behind the end of the output"
        return returned(value, hop, output[: call.capacity].tobytes())


class Wasm:
    """Modules `NAME.wasm` of a folder."""

    def __init__(self, folder: Path, node: str):
        """Starts the program `node` of Node.js."""
        script = Path(__file__).with_name("run_module.mjs")
        self.folder = folder
        self.process = subprocess.Popen([node, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def call(self, name: str, call: Call) -> Returned:
        ranges, at = [], RECORD_AT + RECORD_BYTES
        addresses = []
        for piece in (call.args, call.columns, call.parts_bytes(), call.state or b""):
            addresses.append(at)
            ranges.append((at, piece))
            at += (len(piece) + 7) // 8 * 8
        args, columns, parts, state = addresses
        ranges.append((RECORD_AT, call.record(WINDOW_AT, args, OUTPUT_AT, columns, parts, state)))
        ranges.append((WINDOW_AT, call.window))
        ranges.append((OUTPUT_AT, b"\x5a" * call.capacity))
        request = json.dumps(
            {
                "module": str(self.folder / f"{name}.wasm"),
                "entry": entry(name),
                "record": RECORD_AT,
                "hop": RECORD_AT + HOP_AT,
                "output": OUTPUT_AT,
                "capacity": call.capacity,
                "ranges": [(address, len(piece)) for address, piece in ranges],
            }
        ).encode()
        to = self.process.stdin
        to.write(struct.pack("<I", len(request)) + request + b"".join(piece for _, piece in ranges))
        to.flush()
        value, hop = struct.unpack("<qQ", self.process.stdout.read(16))
        return returned(value, hop, self.process.stdout.read(call.capacity))


# Far tables in memory: the table of columns, and the window with their buffers.

UTF8, DICTIONARY, PLAIN = 15, 1, 0


class Table:
    """Lays out row groups one after the other, with each buffer at a multiple of 64, and makes the table of columns."""

    def __init__(self, columns: list[tuple[int, int]]):
        """Sets the type and width of each column."""
        self.head = b"".join(struct.pack("<BBbBIQ", kind, 0, 0, 0, width, 0) for kind, width in columns)
        self.columns, self.groups, self.rows, self.group_count = len(columns), b"", 0, 0
        self.window = b"\xee" * 64

    def put(self, buffer: bytes | None) -> tuple[int, int]:
        if buffer is None:
            return 0, 0
        self.window += b"\xee" * (-len(self.window) % 64)
        self.window += buffer
        return len(self.window) - len(buffer), len(buffer)

    def group(self, rows: int, chunks: list[tuple[int, int, list[tuple[int, int]]]]) -> None:
        """Adds a row group. Each column has an encoding, a number of nulls, and buffers."""
        assert len(chunks) == self.columns
        self.groups += struct.pack("<QQ", rows, self.rows)
        for encoding, nulls, buffers in chunks:
            self.groups += struct.pack("<B7xQ", encoding, nulls)
            self.groups += b"".join(struct.pack("<QQ", *b) for b in (buffers + [(0, 0)] * 4)[:4])
        self.rows, self.group_count = self.rows + rows, self.group_count + 1

    def text_chunk(self, values: list[bytes | None], encoding: int) -> tuple[int, int, list[tuple[int, int]]]:
        nulls = sum(value is None for value in values)
        validity = np.packbits([value is not None for value in values], bitorder="little").tobytes()
        buffers = [self.put(validity if nulls else None)]
        if encoding == DICTIONARY:
            distinct = sorted({value for value in values if value is not None}) or [b""]
            keys = {value: key for key, value in enumerate(distinct)}
            buffers.append(self.put(np.array([keys.get(value, 65535) for value in values], "<u2").tobytes()))
        else:
            distinct = [value or b"" for value in values]
        offsets = np.cumsum([0] + [len(value) for value in distinct]).astype("<i4")
        buffers += [self.put(offsets.tobytes()), self.put(b"".join(distinct))]
        return encoding, nulls, buffers

    def bytes(self) -> bytes:
        return struct.pack("<II", self.columns, self.group_count) + self.head + self.groups
