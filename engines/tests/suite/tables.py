"""The tables that the statements of this folder use, computed: the same bytes on every machine.

The idea: every value is computed from its row number, so a table needs neither a file in the repository nor a random
source. Floats are multiples of 1/8 below 2^40. Their sums are therefore exact in any order, with any placement, number
of threads and engine. `numbers` has enough rows for four row groups of a far table. Its columns `id` and `day` grow
with the row, so that statistics rule row groups out. The other tables are small.

Types are those that far tables support. The files are Arrow IPC because Parquet has no timestamps in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa

NUMBERS_ROWS = 200_000
# Rows of a batch. The number does not divide a row group, so that each batch is another slice of one.
BATCH_ROWS = 25_000


def _every(count: int, value: Callable[[int], object], null_each: int = 0, null_at: int = 0) -> list:
    """Returns `value(row)` for each row, and NULL for each `null_each`th row."""
    return [None if null_each and i % null_each == null_at else value(i) for i in range(count)]


def _decimal(unscaled: int, scale: int) -> Decimal:
    """Makes decimals without arithmetic, which would round to 28 digits."""
    return Decimal((int(unscaled < 0), tuple(int(digit) for digit in str(abs(unscaled))), -scale))


def _table(columns: dict[str, tuple[pa.DataType, Iterable]]) -> pa.Table:
    return pa.table({name: pa.array(list(values), type=of) for name, (of, values) in columns.items()})


def kinds() -> pa.Table:
    """Returns a table of 300 rows with a column of every type. The first rows have the limits of the type's range."""
    rows = 300
    start = datetime(2001, 1, 1)

    def integers(bits: int, signed: bool, null_at: int) -> tuple[pa.DataType, list]:
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
        ends = [low, high, low + 1, high - 1, 0, 1]
        span = high - low + 1

        def value(i: int) -> int:
            return ends[i] if i < len(ends) else low + (i * 0x9E3779B97F4A7C15) % span

        of = getattr(pa, f"{'int' if signed else 'uint'}{bits}")()
        return of, _every(rows, value, 11, null_at)

    def digits(precision: int, scale: int, null_at: int) -> tuple[pa.DataType, list]:
        most = 10**precision - 1
        ends = [most, -most, 0, 1, -1]

        def value(i: int) -> Decimal:
            return _decimal(
                ends[i] if i < len(ends) else (i * 7919 * 10 ** (precision // 2) + i) % most * (-1) ** i, scale
            )

        return pa.decimal128(precision, scale), _every(rows, value, 13, null_at)

    def moments(unit: str, zone: str | None, null_at: int) -> tuple[pa.DataType, list]:
        per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
        first = int(start.replace(tzinfo=UTC).timestamp())
        early = int(datetime(1901, 12, 13, 20, 45, 52, tzinfo=UTC).timestamp())
        ends = [0, -1, early * per_second, (first + 86_399) * per_second + per_second - 1]

        def value(i: int) -> int:
            return ends[i] if i < len(ends) else (first + i * 86_400 * 7 + i * 3_661) * per_second + i % per_second

        return pa.timestamp(unit, zone), _every(rows, value, 17, null_at)

    return _table(
        {
            "id": (pa.int32(), range(rows)),
            "b": (pa.bool_(), _every(rows, lambda i: i % 3 == 0, 7, 6)),
            "i8": integers(8, True, 7),
            "i16": integers(16, True, 8),
            "i32": integers(32, True, 9),
            "i64": integers(64, True, 10),
            "u8": integers(8, False, 7),
            "u16": integers(16, False, 8),
            "u32": integers(32, False, 9),
            "u64": integers(64, False, 10),
            "f32": (pa.float32(), _every(rows, lambda i: (i * 37 % 801 - 400) / 8, 12, 11)),
            "f64": (pa.float64(), _every(rows, lambda i: (i * 7919 % 100_003 - 50_000) / 8, 12, 10)),
            "d5": digits(5, 0, 12),
            "d9": digits(9, 2, 11),
            "d18": digits(18, 6, 10),
            "d38": digits(38, 10, 9),
            "dt": (pa.date32(), _every(rows, lambda i: date(1969, 12, 25) + timedelta(days=i * 41), 10, 9)),
            "ts_s": moments("s", None, 16),
            "ts_ms": moments("ms", None, 15),
            "ts_us": moments("us", None, 14),
            "ts_ns": moments("ns", None, 13),
            "tz_s": moments("s", "UTC", 16),
            "tz_us": moments("us", "UTC", 15),
            "tz_ns": moments("ns", "UTC", 14),
            "txt": (pa.string(), _every(rows, lambda i: "" if i % 29 == 5 else f"k{i * 7 % 100:02d}", 9, 8)),
            "bin": (pa.binary(), _every(rows, lambda i: bytes([i % 256, 0, 255 - i % 256])[: i % 4], 9, 4)),
            "fix": (pa.binary(4), _every(rows, lambda i: (i * 2_654_435_761 % 2**32).to_bytes(4, "big"), 9, 3)),
        }
    )


def floats() -> pa.Table:
    """Returns a table of special floating-point values."""
    nan, inf = float("nan"), float("inf")
    least, most = 5e-324, 1.7976931348623157e308
    special = [0.0, -0.0, 1.0, -1.0, nan, inf, -inf, None, least, -least, most, -most, 0.1, -0.1, 1e-7, 1e21, 0.5, nan]
    least32, most32 = float(np.float32(1e-45)), float(np.finfo(np.float32).max)
    single = [0.0, -0.0, 1.0, -1.0, nan, inf, -inf, None, least32, -least32, most32, -most32, 0.1, -0.1, 1e-7, 1e21]
    single += [0.5, nan]
    count = len(special)
    return _table(
        {
            "id": (pa.int32(), range(count)),
            "x": (pa.float64(), special),
            "y": (pa.float64(), [special[(i * 5 + 3) % count] for i in range(count)]),
            "s": (pa.float32(), single),
            "grp": (pa.string(), [("nan", "fin", "inf")[0 if v != v else 2 if v in (inf, -inf) else 1] if v is not None
                                  else None for v in special]),
        }
    )  # fmt: skip


def texts() -> pa.Table:
    """Returns a table of texts of every kind. They are ordered by bytes, without locale or case folding."""
    words = [
        "apple", "Apple", "APPLE", "apples", "banana", "Banana", "", " ", " apple", "apple ", "a", "A", "b",
        "B", "Z", "z", "_", "%", "100%", "50% off", "under_score", "underXscore", "back\\slash", "a\\%b",
        "a%b", "a_b", "a.b", "a*b", "a+b", "(a)", "[a]", "{a}", "^a$", "quote's", '"double"', "tab\there",
        "line\nbreak", "cr\rhere", "comma, here", "semi;colon", "dash-ed", "slash/ed", "0", "1", "10", "2",
        "007", "-5", "1e3", "true", "é", "e\u0301", "É", "ß", "SS", "ss", "straße", "STRASSE", "Ärger",
        "Zebra", "zebra", "naïve", "日本語", "日本", "中文", "한국어", "emoji 😀", "😀😁", "👩‍👩‍👧",
        "ελληνικά", "ΣΊΣΥΦΟΣ", "кириллица", "Кириллица", "עברית", "العربية", "ﬁ", "İstanbul", "istanbul",
        "\u00a0", "\u200b", "x" * 12, "x" * 13, "x" * 40, "prefix-0001", "prefix-0002", "prefix-0010",
        "prefix_0001", "http://a.example/x?q=1", "https://b.example/y", "key=value", "a=b=c", "one two three",
        "one  two", "MiXeD CaSe", "abcabcabc", "aaaa", "aaab", "abab", "mississippi", "x-1y-2z-3",
    ]  # fmt: skip
    values: list[str | None] = list(words)
    for at in (17, 43, 71, 99):
        values.insert(at, None)
    count = len(values)
    return _table(
        {
            "id": (pa.int32(), range(count)),
            "t": (pa.string(), values),
            "u": (pa.string(), [values[(i * 37 + 5) % count] for i in range(count)]),
            "n": (pa.int32(), [None if value is None else len(value) for value in values]),
        }
    )


def logic() -> pa.Table:
    """Returns a table of all pairs of true, false and NULL, and of small integers with NULL."""
    three = [True, False, None]
    four = [0, 1, 2, None]
    return _table(
        {
            "id": (pa.int32(), range(36)),
            "p": (pa.bool_(), [three[i // 3 % 3] for i in range(36)]),
            "q": (pa.bool_(), [three[i % 3] for i in range(36)]),
            "a": (pa.int32(), [four[i // 9] for i in range(36)]),
            "b": (pa.int32(), [four[i % 4] for i in range(36)]),
            "never": (pa.int32(), [None] * 36),
        }
    )


def days() -> pa.Table:
    """Returns a table of dates and timestamps over two leap years, the end of a century and the epoch."""
    rows = 400
    first, midnight = date(1999, 11, 29), datetime(1999, 12, 31, 23, 0, 0)
    old = [
        date(1900, 2, 28),
        date(1900, 3, 1),
        date(1969, 12, 31),
        date(1970, 1, 1),
        date(2000, 2, 29),
        date(2100, 2, 28),
    ]
    old += [date(1, 1, 1), date(9999, 12, 31)]

    def day(i: int) -> date:
        return old[i] if i < len(old) else first + timedelta(days=i * 3)

    def moment(i: int) -> datetime:
        return midnight + timedelta(minutes=37 * i, microseconds=i * 999)

    return _table(
        {
            "id": (pa.int32(), range(rows)),
            "d": (pa.date32(), _every(rows, day, 50, 49)),
            "e": (pa.date32(), _every(rows, lambda i: first + timedelta(days=(i * 89) % 1000), 40, 39)),
            "moment": (pa.timestamp("us"), _every(rows, moment, 50, 25)),
            "ms": (pa.timestamp("ms"), _every(rows, lambda i: midnight + timedelta(hours=i), 50, 25)),
            "zoned": (pa.timestamp("us", "UTC"), _every(rows, lambda i: midnight + timedelta(hours=5 * i), 50, 24)),
            "months": (pa.int32(), [i % 14 - 1 for i in range(rows)]),
        }
    )  # fmt: skip


def amounts() -> pa.Table:
    """Returns a table of 64 rows with decimals of several widths."""
    rows = 64

    def digits(scale: int, value: Callable[[int], int], precision: int) -> tuple[pa.DataType, list]:
        return pa.decimal128(precision, scale), _every(rows, lambda i: _decimal(value(i), scale), 9, scale % 9)

    return _table(
        {
            "id": (pa.int32(), range(rows)),
            "grp": (pa.string(), [None if i % 16 == 15 else "abcd"[i % 4] for i in range(rows)]),
            "price": digits(2, lambda i: (i * 7919 % 20_001) - 10_000, 10),
            "rate": digits(4, lambda i: i * 613 % 10_000, 5),
            "fine": digits(6, lambda i: (i * 123_456_789 % 10**12) - 5 * 10**11, 18),
            "whole": digits(0, lambda i: (i - 32) * 10**30 + i, 38),
            "half": digits(1, lambda i: i * 5 - 160, 6),
            "n": (pa.int64(), _every(rows, lambda i: i % 7 - 3, 8, 3)),
        }
    )


def numbers() -> pa.Table:
    """Returns a table of four row groups. `id` and `day` grow with the row; `k` and `f` are scattered; `seldom` is NULL
    in all but a few rows."""
    i = np.arange(NUMBERS_ROWS, dtype=np.int64)
    strewn = (i * 2_654_435_761) % 2**32
    tags = np.array(["red", "green", "blue", "cyan", "magenta", "yellow", "black", "white"])
    # Small numbers are more frequent.
    tag = tags[np.minimum(strewn % 8, strewn // 8 % 8)]
    first_day = (date(2020, 1, 1) - date(1970, 1, 1)).days
    cents = (strewn % 2_000_003).astype(np.int64) - 1_000_000

    def masked(values: np.ndarray, null: np.ndarray, of: pa.DataType) -> pa.Array:
        return pa.array(values, mask=null).cast(of)

    return pa.table(
        {
            "id": pa.array(i),
            "k": pa.array((strewn % 1000).astype(np.int32)),
            "g": masked((strewn // 1000 % 17).astype(np.int16), strewn % 19 == 0, pa.int16()),
            "small": pa.array((strewn % 100 - 50).astype(np.int8)),
            "f": masked((strewn % 65_537 - 32_768) / 8, strewn % 23 == 0, pa.float64()),
            "price": pa.array([_decimal(int(c), 2) for c in cents], type=pa.decimal128(12, 2)),
            "day": pa.array((first_day + i // 200).astype(np.int32)).cast(pa.date32()),
            "moment": pa.array((first_day * 86_400 + i * 431) * 1_000_000 + strewn % 1000).cast(pa.timestamp("us")),
            "flag": pa.array(strewn % 5 == 0, mask=strewn % 31 == 0),
            "tag": masked(tag, strewn % 29 == 0, pa.string()),
            "note": pa.array([f"note {int(v):010d}" if v % 3 else None for v in strewn], type=pa.string()),
            "seldom": pa.array(i.astype(np.int32), mask=i % 20_011 != 7),
        }
    )


def customers() -> pa.Table:
    """Returns 500 customers. Some have no city, and most were referred by another customer."""
    rows = 500
    cities = ["Oslo", "Lima", "Cairo", "Quito", "Osaka", "Perth", "Turin"]
    return _table(
        {
            "id": (pa.int32(), range(1, rows + 1)),
            "name": (pa.string(), [f"Customer {i:04d}" for i in range(1, rows + 1)]),
            "city": (pa.string(), _every(rows, lambda i: cities[i * i % 7], 23, 22)),
            "segment": (pa.string(), [("retail", "trade", "public")[i % 3] for i in range(rows)]),
            "parent": (pa.int32(), _every(rows, lambda i: i // 5 + 1 if i else None, 6, 5)),
            "credit": (pa.decimal128(10, 2), _every(rows, lambda i: _decimal(i * 7919 % 100_000, 2), 10, 9)),
        }
    )


def products() -> pa.Table:
    """Returns 60 products, of which some were never sold."""
    rows = 60
    return _table(
        {
            "id": (pa.int32(), range(1, rows + 1)),
            "name": (pa.string(), [f"Product {chr(65 + i % 26)}{i // 26}" for i in range(rows)]),
            "category": (pa.string(), _every(rows, lambda i: ("tool", "toy", "food", "book")[i % 4], 15, 14)),
            "price": (pa.decimal128(8, 2), [_decimal(199 + i * 137, 2) for i in range(rows)]),
        }
    )


def sales() -> pa.Table:
    """Returns 3000 sales. Some customers are NULL, some do not exist, and many customers bought nothing."""
    rows = 3000
    return _table(
        {
            "id": (pa.int32(), range(rows)),
            "customer": (pa.int32(), _every(rows, lambda i: (i * 7919) % 521 + 1 if i % 4 else i % 50 + 1, 37, 36)),
            "product": (pa.int32(), _every(rows, lambda i: i * i % 53 + 1, 101, 100)),
            "day": (pa.date32(), [date(2023, 1, 1) + timedelta(days=i * 11 % 365) for i in range(rows)]),
            "quantity": (pa.int32(), _every(rows, lambda i: i % 9 + 1, 41, 40)),
            "amount": (pa.decimal128(12, 2), [_decimal(i * 104_729 % 250_000, 2) for i in range(rows)]),
        }
    )


def single() -> pa.Table:
    """Returns a table of one row."""
    return _table({"a": (pa.int32(), [42]), "t": (pa.string(), ["only"]), "missing": (pa.int64(), [None])})


def nothing() -> pa.Table:
    """Returns a table without rows."""
    return _table(
        {"a": (pa.int32(), []), "t": (pa.string(), []), "x": (pa.float64(), []), "d": (pa.decimal128(10, 2), [])}
    )


TABLES: dict[str, Callable[[], pa.Table]] = {
    of.__name__: of
    for of in (kinds, floats, texts, logic, days, amounts, numbers, customers, products, sales, single, nothing)
}


def write(folder: Path) -> None:
    """Writes all tables as `NAME.arrow` into this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, of in TABLES.items():
        table = of()
        with pa.OSFile(str(folder / f"{name}.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=BATCH_ROWS)
