"""Digests of a result: one per column, in row order, independent of batch boundaries.

Each column feeds up to three hashes as rows arrive: the numbers of its null rows, the lengths of its strings, and its
values. Two results have equal digests if and only if they are equal row for row, unless SHA-256 collides.
"""

from __future__ import annotations

import hashlib
import struct
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

# Formats of string offsets, for `memoryview.cast`.
_OFFSET_FORMATS = {pa.string(): "i", pa.binary(): "i", pa.large_string(): "q", pa.large_binary(): "q"}


class ResultDigest:
    def __init__(self, schema: pa.Schema):
        self.row_count = 0
        self._columns = [_ColumnDigest(field) for field in schema]

    def add(self, batch: pa.RecordBatch) -> None:
        for digest, column in zip(self._columns, batch.columns, strict=True):
            digest.add(column, self.row_count)
        self.row_count += batch.num_rows

    def columns(self) -> list[tuple[str, str]]:
        """Returns the name and digest of each column, in column order."""
        return [(column.name, column.hexdigest(self.row_count)) for column in self._columns]


class _ColumnDigest:
    def __init__(self, field: pa.Field):
        self.name = field.name
        self._type = field.type
        self._nulls = hashlib.sha256()
        self._lengths = hashlib.sha256()
        self._values = hashlib.sha256()
        self._offset_format = _OFFSET_FORMATS.get(field.type, "")
        if not (self._offset_format or pa.types.is_primitive(field.type) or pa.types.is_decimal(field.type)):
            raise TypeError(f"column '{field.name}' is of type {field.type}, which has no digest")

    def add(self, column: pa.Array, rows_before: int) -> None:
        if len(column) == 0:
            return
        if column.null_count:
            for index in pc.indices_nonzero(pc.is_null(column)).to_pylist():
                self._nulls.update(struct.pack("<Q", rows_before + index))
            column = pc.fill_null(column, _zero(self._type))
        if pa.types.is_boolean(self._type):
            column = column.cast(pa.uint8())  # because bits of two batches do not meet at byte boundaries
        if self._offset_format:
            self._add_strings(column)
        else:
            width = column.type.bit_width // 8
            self._values.update(column.buffers()[1].slice(column.offset * width, len(column) * width))

    def _add_strings(self, column: pa.Array) -> None:
        self._lengths.update(pc.binary_length(column).buffers()[1])
        _, offsets, data = column.buffers()
        offsets = memoryview(offsets).cast(self._offset_format)
        start, end = offsets[column.offset], offsets[column.offset + len(column)]
        if end > start:
            self._values.update(data.slice(start, end - start))

    def hexdigest(self, row_count: int) -> str:
        parts = struct.pack("<Q", row_count) + str(self._type).encode()
        for part in (self._nulls, self._lengths, self._values):
            parts += part.digest()
        return hashlib.sha256(parts).hexdigest()


def _zero(type_: pa.DataType) -> pa.Scalar:
    """Returns a replacement for null values, because the bytes of nulls are undefined."""
    if pa.types.is_decimal(type_):
        return pa.scalar(Decimal(0), type_)
    if pa.types.is_temporal(type_):
        return pa.scalar(0, pa.int32() if type_.bit_width == 32 else pa.int64()).cast(type_)
    if pa.types.is_primitive(type_):
        return pa.scalar(0).cast(type_)
    return pa.scalar("").cast(type_)
