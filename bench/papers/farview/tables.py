"""Makes the tables: one of the paper's shape (8 columns of 8 bytes), and tables of text."""

import numpy as np
import pyarrow as pa

ROW_BYTES = 64
# Values of the columns in conditions are drawn from 0 to this number, exclusive.
VALUES = 1 << 30
KEY_STEP = 7_919
GROUPS = (16, 1_000, 64_000, 1_000_000)
COLUMNS = ("a", "b", "v", "w", *(f"k{groups}" for groups in GROUPS))
# Patterns. For each: text that every second row contains, and text that the others contain instead, as in
# bench/src/query/patterns.rs. The first pattern is from the paper on the library that Farview uses. The second has more
# states and does not begin with a letter.
PATTERNS = {
    r"(Strasse|Str\.).*(8[0-9]{4})": (b"Str.81234", b"Str.71234"),
    r"[0-9]+(USD|EUR|GBP)": (b"427USD", b"xx USX"),
}
LETTERS = b"abcdefghijklmnopqrtuvwxyzABCDEFGHIJKLMNOPQRTUVWXYZ    0123 "


def drawn(places: np.ndarray) -> np.ndarray:
    """Returns splitmix64 of each row number, as in bench/src/query/groups.rs."""
    value = places * np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def column(name: str, rows: int) -> np.ndarray:
    """Returns the column of this name. Its values depend on nothing but the name and the row."""
    places = np.arange(rows, dtype=np.uint64) * np.uint64(len(COLUMNS)) + np.uint64(COLUMNS.index(name))
    if name.startswith("k"):
        return ((drawn(places) % np.uint64(int(name[1:]))) * np.uint64(KEY_STEP)).astype(np.int64)
    return (drawn(places) % np.uint64(VALUES)).astype(np.int64)


def table(rows: int, names: tuple[str, ...] = COLUMNS) -> pa.Table:
    return pa.table({name: column(name, rows) for name in names})


def wide(row_bytes: int, rows: int) -> pa.Table:
    """Returns rows of any width: columns `c0`, `c1`, ... of 8 bytes."""
    return pa.table({f"c{at}": column("a", rows) + at for at in range(row_bytes // 8)})


def rows_of(table: pa.Table) -> np.ndarray:
    """Returns the same table row by row, as RCPU stores it."""
    return np.column_stack([each.to_numpy() for each in table.columns])


def texts(width: int, count: int, pattern: str) -> np.ndarray:
    """Returns texts of `width` bytes as rows of a matrix: letters, some digits, and the pattern in every second row."""
    random = np.random.default_rng(width)
    matrix = np.frombuffer(LETTERS, np.uint8)[random.integers(0, len(LETTERS), (count, width), np.uint8)]
    for first, held in enumerate(PATTERNS[pattern]):
        rows = np.arange(first, count, 2)
        starts = random.integers(0, width - len(held) + 1, len(rows))
        matrix[rows[:, None], starts[:, None] + np.arange(len(held))] = np.frombuffer(held, np.uint8)
    return matrix


def text_table(matrix: np.ndarray) -> pa.Table:
    count, width = matrix.shape
    offsets = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * np.int32(width))
    return pa.table({"s": pa.StringArray.from_buffers(count, offsets, pa.py_buffer(matrix))})
