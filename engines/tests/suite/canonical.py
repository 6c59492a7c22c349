"""The canonical text form of a value, by which answers of different engines are compared.

The idea: two values are equal if and only if their texts are equal. There is one form for each type, and it keeps the
whole value. `engines/tests/it/canonical.rs` writes the same form from Arrow arrays. README.md beside this file is the
specification of both.
"""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa

NULL = "NULL"
EMPTY = "(empty)"
EPOCH = date(1970, 1, 1)
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
# Exponents of ten for which a float is written without an exponent.
PLAIN_EXPONENTS = range(-5, 16)


def float_text(shortest: str) -> str:
    """Returns the shortest digits that read back as the same number, from any notation: `1.5`, `-0`, `1e21`, `NaN`."""
    sign, digits = ("-", shortest[1:]) if shortest.startswith("-") else ("", shortest)
    if digits in ("nan", "inf"):
        return {"nan": "NaN", "inf": f"{sign}Infinity"}[digits]
    mantissa, _, exponent = digits.partition("e")
    whole, _, fraction = mantissa.partition(".")
    point = len(whole) + int(exponent or 0)
    significant = (whole + fraction).lstrip("0")
    point -= len(whole + fraction) - len(significant)
    significant = significant.rstrip("0")
    if not significant:
        return f"{sign}0"
    # The number is 0.significant * 10 ** point.
    power = point - 1
    if power not in PLAIN_EXPONENTS:
        rest = f".{significant[1:]}" if len(significant) > 1 else ""
        return f"{sign}{significant[0]}{rest}e{power}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{significant}"
    if point >= len(significant):
        return f"{sign}{significant}{'0' * (point - len(significant))}"
    return f"{sign}{significant[:point]}.{significant[point:]}"


def text_text(text: str) -> str:
    """Returns text with its invisible characters escaped: a backslash as two, and `\\xHH` for control characters and
    for blanks at either end."""
    if not text:
        return EMPTY
    shown = []
    for at, char in enumerate(text):
        if char == "\\":
            shown.append("\\\\")
        elif ord(char) < 0x20 or ord(char) == 0x7F or (char == " " and at in (0, len(text) - 1)):
            shown.append(f"\\x{ord(char):02x}")
        else:
            shown.append(char)
    return "".join(shown)


def date_text(days: int) -> str:
    return (EPOCH + timedelta(days=days)).isoformat()


def timestamp_text(value: int, unit: str, zone: str | None) -> str:
    """Returns UTC, without zeros at the end of the fraction, and with a final `Z` if the type has a time zone."""
    seconds, part = divmod(value, PER_SECOND[unit])
    day, second = divmod(seconds, 86_400)
    fraction = str(part).rjust(len(str(PER_SECOND[unit])) - 1, "0").rstrip("0") if part else ""
    clock = f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
    return f"{date_text(day)} {clock}{'.' if fraction else ''}{fraction}{'Z' if zone else ''}"


def decimal_text(value: Decimal, scale: int) -> str:
    # No arithmetic: it would round to the digits of the decimal context.
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or exponent != -scale:
        raise ValueError(f"{value} has not the scale {scale} of its column")
    shown = "".join(map(str, digits)).rjust(scale + 1, "0")
    whole, fraction = (shown[:-scale], shown[-scale:]) if scale > 0 else (shown, "")
    return f"{'-' if sign and any(digits) else ''}{whole}{'.' if fraction else ''}{fraction}"


def column_letter(of: pa.DataType) -> str:
    """Returns sqllogictest's letter for a column: I for integers, R for other numbers, T for everything else."""
    if pa.types.is_integer(of) or (pa.types.is_decimal(of) and of.scale == 0):
        return "I"
    return "R" if pa.types.is_floating(of) or pa.types.is_decimal(of) else "T"


def column_texts(column: pa.ChunkedArray) -> list[str]:
    of = column.type
    if pa.types.is_null(of):
        return [NULL] * len(column)
    if pa.types.is_float32(of) or pa.types.is_float16(of):
        # `str` of a float32 has its shortest digits. As a Python float it would have more.
        values = [None if v is None else str(np.float32(v)) for v in column.to_pylist()]
        write = float_text
    elif pa.types.is_float64(of):
        values, write = column.to_pylist(), lambda value: float_text(repr(value))
    elif pa.types.is_boolean(of):
        values, write = column.to_pylist(), lambda value: "true" if value else "false"
    elif pa.types.is_integer(of):
        values, write = column.to_pylist(), str
    elif pa.types.is_decimal(of):
        values, write = column.to_pylist(), lambda value: decimal_text(value, of.scale)
    elif pa.types.is_date32(of):
        values, write = column.cast(pa.int32()).to_pylist(), date_text
    elif pa.types.is_timestamp(of):
        values = column.cast(pa.int64()).to_pylist()
        write = lambda value: timestamp_text(value, of.unit, of.tz)  # noqa: E731
    elif pa.types.is_string(of) or pa.types.is_large_string(of) or pa.types.is_string_view(of):
        values, write = column.to_pylist(), text_text
    elif (
        pa.types.is_binary(of)
        or pa.types.is_large_binary(of)
        or pa.types.is_fixed_size_binary(of)
        or pa.types.is_binary_view(of)
    ):
        values, write = column.to_pylist(), lambda value: f"0x{value.hex()}"
    else:
        raise TypeError(f"no text form for a value of type {of}: cast it to one that far tables have")
    return [NULL if value is None else write(value) for value in values]


def rows(table: pa.Table) -> list[tuple[str, ...]]:
    return list(zip(*(column_texts(column) for column in table.columns), strict=True)) if table.num_columns else []


def letters(table: pa.Table) -> str:
    return "".join(column_letter(field.type) for field in table.schema)
