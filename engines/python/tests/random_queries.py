"""Random tables and random queries over them. Each query is made as a scan and as equivalent SQL.

A query is made step by step. Each step wraps the SQL of the step before, so that both sides do the same in the same
order. A number is the seed of a table or query.
"""

import dataclasses
import datetime
import decimal
import random
from typing import Any

import pyarrow as pa

import farpool

TEXTS = ["", "a", "A", "ab", "abc", "a_b", "a%b", "größe", "Größe", "日本", "x\ny", "N", "R", "AIR", "rail", "z" * 70]
PATTERNS = ["%", "a%", "%b", "%a%", "a_b", r"a\_b", r"a\%b", "_", "gr_ße", "A%", "", "日%", "z%"]
REGEXES = ["a", "^a", "b$", "a.b", "^$", "[A-Z]", "(ab|ra)", "ö", "z{60,}", "日."]
DAY = datetime.date(2020, 2, 27)
EPOCH = datetime.datetime(1970, 1, 1)


@dataclasses.dataclass(frozen=True)
class Expression:
    """An expression as a scan and as SQL. `kind` is a family of types."""

    far: Any
    sql: str
    kind: str


@dataclasses.dataclass
class Query:
    """A scan and its SQL.

    With `is_ordered`, both sides have their rows in the same order. With `limit`, any rows of that number are right.
    `computed` is SQL that computes every expression of the query, used or not. `others` are the tables that it joins
    with, by name.
    """

    scan: Any
    sql: str
    is_ordered: bool = False
    limit: int | None = None
    computed: list[str] = dataclasses.field(default_factory=list)
    others: dict[str, pa.Table] = dataclasses.field(default_factory=dict)


def decimals(scale: int) -> Any:
    return lambda rng: decimal.Decimal(rng.choice([0, 1, -1, 5, 150, -225, rng.randint(-99_999, 99_999)])).scaleb(
        -scale
    )


def integers(least: int, most: int) -> Any:
    return lambda rng: rng.choice([rng.randint(max(least, -9), min(most, 9))] * 6 + [least, most])


def moments(step: datetime.timedelta, zone: datetime.tzinfo | None) -> Any:
    return lambda rng: datetime.datetime(2020, 2, 28, 22, tzinfo=zone) + step * rng.randint(0, 60)


FLOATS = [0.0, -0.0, 1.5, -2.25, 8.0, 0.125, 1e6, -1e6]
SPECIAL = [float("nan"), float("inf"), float("-inf")]
SECOND = datetime.timedelta(seconds=1_700)

# Kind, Arrow type and random value, by column. Values of kind `small` are used in arithmetic and cannot overflow.
COLUMNS: dict[str, tuple[str, pa.DataType, Any]] = {
    "i8": ("int", pa.int8(), integers(-128, 127)),
    "i16": ("int", pa.int16(), integers(-(2**15), 2**15 - 1)),
    "i32": ("int", pa.int32(), integers(-(2**31), 2**31 - 1)),
    "i64": ("int", pa.int64(), integers(-(2**63), 2**63 - 1)),
    "u8": ("int", pa.uint8(), integers(0, 255)),
    "u16": ("int", pa.uint16(), integers(0, 2**16 - 1)),
    "u32": ("int", pa.uint32(), integers(0, 2**32 - 1)),
    "u64": ("int", pa.uint64(), integers(0, 2**64 - 1)),
    "n": ("small", pa.int64(), lambda rng: rng.randint(-100, 100)),
    "m": ("small", pa.int64(), lambda rng: rng.randint(-3, 3)),
    "f32": ("float", pa.float32(), lambda rng: rng.choice(FLOATS)),
    "f64": ("float", pa.float64(), lambda rng: rng.choice([*FLOATS, *SPECIAL])),
    "g": ("float", pa.float64(), lambda rng: rng.choice([rng.uniform(-100, 100), 0.25])),
    "d2": ("decimal", pa.decimal128(12, 2), decimals(2)),
    "d4": ("decimal", pa.decimal128(20, 4), decimals(4)),
    "d0": ("decimal", pa.decimal128(9, 0), decimals(0)),
    "day": ("date", pa.date32(), lambda rng: DAY + datetime.timedelta(days=rng.randint(0, 40))),
    "at": ("moment", pa.timestamp("us"), moments(SECOND, None)),
    "at_ms": ("moment", pa.timestamp("ms"), moments(SECOND, None)),
    "at_s": ("moment", pa.timestamp("s"), moments(SECOND, None)),
    "zoned": ("instant", pa.timestamp("us", "UTC"), moments(SECOND, datetime.UTC)),
    "s": ("text", pa.string(), lambda rng: rng.choice(TEXTS)),
    "word": ("text", pa.string(), lambda rng: rng.choice(TEXTS) + str(rng.randint(0, 999))),
    "b": ("bytes", pa.binary(), lambda rng: rng.choice([b"", b"\x00", b"\x00\x00", b"\xff", b"abc"])),
    "ok": ("bool", pa.bool_(), lambda rng: rng.random() < 0.5),
}


def fits_rows(values: pa.Array) -> bool:
    """Reports whether a column may be in a table with `layout="rows"`."""
    is_text = pa.types.is_string(values.type) or pa.types.is_binary(values.type) or pa.types.is_boolean(values.type)
    return values.null_count == 0 and not is_text


def layout(seed: int, table: pa.Table) -> str:
    """Returns the layout of the table with this seed."""
    can_be_rows = all(fits_rows(column) for column in table.columns)
    return "rows" if can_be_rows and seed % 3 > 0 else "columns"


def table(seed: int) -> pa.Table:
    """Returns a table with a row number and some columns. Some of these are sorted or have no nulls."""
    rng = random.Random(f"table {seed}")
    rows = rng.choice([0, 1, 7, 60, 300, 1_500])
    names = rng.sample(sorted(COLUMNS), rng.randint(3, 8))
    columns: dict[str, pa.Array] = {"id": pa.array(range(rows), pa.int64())}
    for name in names:
        _, of, value = COLUMNS[name]
        values = [value(rng) for _ in range(rows)]
        if rng.random() < 0.4 and name not in ("f64", "f32"):
            values.sort()
        nulls = rng.choice([0, 0, 0.1, 0.5, 1.0])
        columns[name] = pa.array([None if rng.random() < nulls else one for one in values], of)
    if rng.random() < 0.2:
        return pa.table({name: values for name, values in columns.items() if fits_rows(values)})
    if rng.random() < 0.5:
        # A wide column, so that a small table has several row groups in regions of 1 MiB.
        columns["pad"] = pa.array([f"{row:08}" * 400 for row in range(rows)], pa.string())
    return pa.table(columns)


# Other types that the keys of a join may have, by the column's type.
OTHER_TYPES: dict[str, list[pa.DataType]] = {
    "int": [pa.int64(), pa.int32(), pa.uint8(), pa.uint64(), pa.decimal128(30, 2)],
    "small": [pa.int8(), pa.int32(), pa.decimal128(20, 0)],
    "float": [pa.float64()],
    "decimal": [pa.decimal128(24, 4), pa.decimal128(12, 1), pa.int64()],
    "date": [pa.timestamp("us"), pa.timestamp("s")],
    "moment": [pa.timestamp("us"), pa.date32()],
    "instant": [],
    "text": [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
    "bytes": [pa.large_binary()],
    "bool": [],
}
# So many keys that they are sent as a Bloom filter where that is possible.
MANY = pa.table({"many": pa.array(range(-300_000, 300_000), pa.int64())})


def literal(value: Any) -> str:
    """Returns a value as SQL."""
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value)
        case int():
            return f"({value})"
        case float():
            return f"'{value!r}'::DOUBLE"
        case decimal.Decimal():
            return f"({value:f})"
        case str():
            return "'" + value.replace("'", "''") + "'"
        case bytes():
            return "'" + "".join(f"\\x{byte:02X}" for byte in value) + "'::BLOB"
        case datetime.datetime() if value.tzinfo is not None:
            return f"'{value.isoformat(' ')}'::TIMESTAMPTZ"
        case datetime.datetime():
            return f"'{value.isoformat(' ')}'::TIMESTAMP"
        case datetime.date():
            return f"'{value.isoformat()}'::DATE"
    raise TypeError(value)


class Writer:
    """Makes one query over a table. `columns` maps the current column names to kinds."""

    def __init__(self, rng: random.Random, scan: Any, columns: dict[str, str]) -> None:
        self.rng = rng
        self.query = Query(scan, "SELECT * FROM t")
        self.columns = columns
        self.is_grouped = False

    def of_kind(self, *kinds: str) -> list[str]:
        return [name for name, kind in self.columns.items() if kind in kinds]

    def column(self, *kinds: str) -> Expression | None:
        names = self.of_kind(*kinds)
        if not names:
            return None
        name = self.rng.choice(names)
        return Expression(farpool.col(name), f'"{name}"', self.columns[name])

    def value(self, kind: str) -> Any:
        """Returns a value to compare a column of this kind with."""
        if kind == "decimal":
            return decimals(self.rng.choice([0, 1, 2, 4]))(self.rng)
        if kind == "instant":
            return moments(SECOND, datetime.UTC)(self.rng)
        if kind == "int" and self.rng.random() < 0.1:
            return self.rng.choice([2**31, -1, 256, 2**63, -(2**63)])
        named = [of for known, of, _ in COLUMNS.values() if known == kind]
        makers = [make for known, of, make in COLUMNS.values() if known == kind]
        return self.rng.choice(makers)(self.rng) if named else self.rng.randint(-5, 5)

    def literal(self, kind: str) -> Expression:
        value = self.value(kind)
        return Expression(farpool.lit(value), literal(value), kind)

    def number(self, depth: int) -> Expression | None:
        """Returns a computed number. Only columns of kind `int` may overflow, which both sides refuse."""
        kind = self.rng.choice(["small", "small", "float", "decimal", "int", "cast"])
        if kind == "cast":
            return self.cast()
        left = self.column(kind)
        if left is None:
            return None
        if depth == 0:
            return left
        right = self.rng.choice([self.column(kind), Expression(farpool.lit(3), "3", kind)])
        sign = self.rng.choice(["+", "-", "*", "/", "%"])
        if kind == "float" and sign == "%":
            sign = "-"
        if kind == "decimal" and sign in "%/":
            sign = "+"
        if kind == "int" and sign in "*%/":
            sign = "-"
        match sign:
            case "+":
                far = left.far + right.far
            case "-":
                far = left.far - right.far
            case "*":
                far = left.far * right.far
            case "/":
                far = left.far / right.far
            case _:
                far = left.far % right.far
        result = "float" if sign == "/" else kind
        # A quotient is always a float64 in a scan.
        left = Expression(left.far, f"{left.sql}::DOUBLE", left.kind) if sign == "/" else left
        # A computed value is not an operand again, because products would grow.
        return Expression(far, f"({left.sql} {sign} {right.sql})", "computed" if result != "float" else "ratio")

    def cast(self) -> Expression | None:
        """Returns a column as another type. Halves do not occur: DuckDB rounds half to even."""
        one = self.column("int", "small", "decimal", "date", "moment", "bool")
        if one is None:
            return None
        casts = {
            "int": [
                ("int16", "SMALLINT"),
                ("float64", "DOUBLE"),
                ("text", "VARCHAR"),
                ("decimal(38, 2)", "DECIMAL(38, 2)"),
            ],
            "small": [("int8", "TINYINT"), ("float64", "DOUBLE"), ("text", "VARCHAR"), ("boolean", "BOOLEAN")],
            "decimal": [("float64", "DOUBLE"), ("int32", "INTEGER"), ("decimal(30, 6)", "DECIMAL(30, 6)")],
            "date": [("timestamp(us)", "TIMESTAMP"), ("text", "VARCHAR")],
            "moment": [("date", "DATE")],
            "bool": [("int32", "INTEGER")],
        }
        kinds = {"float64": "ratio", "text": "text", "date": "date", "timestamp(us)": "moment", "boolean": "bool"}
        to, sql = self.rng.choice(casts[one.kind])
        return Expression(one.far.cast(to), f"CAST({one.sql} AS {sql})", kinds.get(to, "computed"))

    def condition(self, depth: int = 2) -> Expression:
        roll = self.rng.random()
        if depth > 0 and roll < 0.35:
            left, right = self.condition(depth - 1), self.condition(depth - 1)
            if self.rng.random() < 0.5:
                return Expression(left.far & right.far, f"({left.sql} AND {right.sql})", "bool")
            return Expression(left.far | right.far, f"({left.sql} OR {right.sql})", "bool")
        if depth > 0 and roll < 0.45:
            inner = self.condition(depth - 1)
            return Expression(~inner.far, f"(NOT {inner.sql})", "bool")
        kinds = [kind for kind in self.columns.values() if kind not in ("computed", "ratio", "pad")]
        one = self.column(self.rng.choice(kinds))
        if roll < 0.55:
            return self.rng.choice(
                [
                    Expression(one.far.is_null(), f"({one.sql} IS NULL)", "bool"),
                    Expression(one.far.is_not_null(), f"({one.sql} IS NOT NULL)", "bool"),
                ]
            )
        if one.kind == "bool" and roll < 0.8:
            return one
        if one.kind == "text" and roll < 0.85:
            pattern = self.rng.choice(PATTERNS)
            match self.rng.choice(["like", "ilike", "regex"]):
                case "like":
                    return Expression(one.far.like(pattern), f"({one.sql} LIKE {literal(pattern)} ESCAPE '\\')", "bool")
                case "ilike":
                    return Expression(
                        one.far.ilike(pattern), f"({one.sql} ILIKE {literal(pattern)} ESCAPE '\\')", "bool"
                    )
            regex = self.rng.choice(REGEXES)
            return Expression(one.far.matches(regex), f"regexp_matches({one.sql}, {literal(regex)})", "bool")
        if roll < 0.68 and one.kind in ("int", "small", "text", "date", "bytes"):
            values = [self.value(one.kind) for _ in range(self.rng.randint(1, 4))]
            if one.kind == "int":
                values = [value % 100 for value in values]
            if self.rng.random() < 0.2:
                values.append(None)
            listed = ", ".join(map(literal, values))
            return Expression(one.far.is_in(values), f"({one.sql} IN ({listed}))", "bool")
        if roll < 0.78:
            least, most = self.literal(one.kind), self.literal(one.kind)
            return Expression(
                one.far.between(least.far, most.far), f"({one.sql} BETWEEN {least.sql} AND {most.sql})", "bool"
            )
        same = self.column(one.kind)
        other = same if self.rng.random() < 0.25 else self.literal(one.kind)
        sign = self.rng.choice(["=", "<>", "<", "<=", ">", ">="])
        match sign:
            case "=":
                far = one.far == other.far
            case "<>":
                far = one.far != other.far
            case "<":
                far = one.far < other.far
            case "<=":
                far = one.far <= other.far
            case ">":
                far = one.far > other.far
            case _:
                far = one.far >= other.far
        return Expression(far, f"({one.sql} {sign} {other.sql})", "bool")

    def filter(self) -> None:
        condition = self.condition()
        self.query.scan = self.query.scan.filter(condition.far)
        self.query.sql = f"SELECT * FROM ({self.query.sql}) WHERE {condition.sql}"

    def keys(self, name: str, rows: int) -> pa.Array:
        """Returns keys to look up in a column. Some of them occur in it."""
        kind, own, make = COLUMNS[name] if name in COLUMNS else ("small", pa.int64(), lambda rng: rng.randint(0, 1_600))
        values = [None if self.rng.random() < 0.05 else make(self.rng) for _ in range(rows)]
        of = self.rng.choice([own, *OTHER_TYPES[kind]])
        try:
            return pa.array(values, own).cast(of)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return pa.array(values, own)

    def join(self) -> None:
        """Keeps the rows with or without a partner in another table."""
        names = [name for name in self.columns if name in COLUMNS or name == "id"]
        if not names:
            return
        table = f"other{len(self.query.others)}"
        names = self.rng.sample(names, min(self.rng.choice([1, 1, 1, 2, 3]), len(names)))
        if self.rng.random() < 0.04 and self.columns[names[0]] in ("int", "small"):
            other, on = MANY, {names[0]: "many"}
        else:
            rows = self.rng.choice([0, 1, 3, 20, 100, 700])
            on = {name: self.rng.choice([name, f"key {name}"]) for name in names}
            other = pa.table({theirs: self.keys(name, rows) for name, theirs in on.items()} | {"more": [1] * rows})
        self.query.others[table] = other
        is_anti = self.rng.random() < 0.4
        join = self.query.scan.anti_join if is_anti else self.query.scan.semi_join
        is_named = all(mine == theirs for mine, theirs in on.items())
        self.query.scan = join(other, on=self.rng.choice([on, list(on.items()), list(on) if is_named else on]))
        same = " AND ".join(f"{table}.{quoted(theirs)} = q.{quoted(mine)}" for mine, theirs in on.items())
        exists = f"{'NOT ' if is_anti else ''}EXISTS (SELECT 1 FROM {table} WHERE {same})"
        self.query.sql = f"SELECT * FROM ({self.query.sql}) q WHERE {exists}"

    def compute(self) -> None:
        made = self.number(1) or self.condition(1)
        name = f"x{self.rng.randint(0, 99)}"
        self.query.scan = self.query.scan.with_columns(made.far.alias(name))
        if name in self.columns:
            self.query.sql = f'SELECT * REPLACE ({made.sql} AS "{name}") FROM ({self.query.sql})'
        else:
            self.query.sql = f'SELECT *, {made.sql} AS "{name}" FROM ({self.query.sql})'
        self.columns[name] = made.kind
        self.query.computed.append(f'SELECT max("{name}") FROM ({self.query.sql})')

    def choose(self) -> None:
        names = self.rng.sample(sorted(self.columns), self.rng.randint(1, len(self.columns)))
        self.query.scan = self.query.scan.select(*names)
        self.query.sql = f"SELECT {', '.join(map(quoted, names))} FROM ({self.query.sql})"
        self.columns = {name: self.columns[name] for name in names}

    def group(self) -> None:
        self.is_grouped = True
        keys = self.rng.sample(sorted(self.columns), min(self.rng.choice([0, 1, 1, 1, 2, 3]), len(self.columns)))
        # Quotients may differ in their last digit.
        keys = [key for key in keys if self.columns[key] != "ratio"]
        aggregates, texts, columns = [farpool.len().alias("rows")], ['count(*) AS "rows"'], {"rows": "count"}
        for index in range(self.rng.randint(0, 4)):
            name = self.rng.choice(sorted(self.columns))
            kind = self.columns[name]
            function = self.rng.choice(["count", "min", "max", "sum", "mean"])
            if function in ("sum", "mean") and kind not in ("int", "small", "float", "decimal", "computed", "ratio"):
                function = "max"
            if function in ("min", "max") and kind == "ratio":
                # A computed NaN may have its sign bit set, which DuckDB ignores.
                function = "count"
            result = f"a{index}"
            aggregates.append(getattr(farpool.col(name), function)().alias(result))
            word = {"mean": "avg"}.get(function, function)
            of = f"{quoted(name)}::DOUBLE" if (kind, function) == ("float", "sum") else quoted(name)
            texts.append(f"{word}({of}) AS {result}")
            columns[result] = {"count": "count", "sum": "sum", "mean": "ratio"}.get(function, kind)
            if kind in ("float", "ratio") and function != "count":
                # DuckDB may return either zero as the minimum, so an order by it may differ.
                columns[result] = "ratio"
        if keys:
            self.query.scan = self.query.scan.group_by(*keys).agg(*aggregates)
        else:
            self.query.scan = self.query.scan.select(*aggregates)
        chosen = ", ".join([*map(quoted, keys), *texts])
        grouping = f" GROUP BY {', '.join(map(quoted, keys))}" if keys else ""
        self.query.sql = f"SELECT {chosen} FROM ({self.query.sql}){grouping}"
        self.columns = {key: self.columns[key] for key in keys} | columns

    def distinct(self) -> None:
        self.is_grouped = True
        names = [name for name, kind in self.columns.items() if kind not in ("ratio", "pad")]
        names = self.rng.sample(names, min(len(names), self.rng.randint(1, 3)))
        self.query.scan = self.query.scan.select(names).distinct()
        self.query.sql = f"SELECT DISTINCT {', '.join(map(quoted, names))} FROM ({self.query.sql})"
        self.columns = {name: self.columns[name] for name in names}

    def order(self, unique: list[str]) -> None:
        """Sorts by some columns, and then by columns that are unique together."""
        names = [name for name, kind in self.columns.items() if kind != "ratio" and name not in unique]
        names = self.rng.sample(names, min(len(names), self.rng.randint(0, 2))) + unique
        if not names:
            return
        descending = [self.rng.random() < 0.5 for _ in names]
        nulls_last = [self.rng.random() < 0.5 for _ in names]
        words = []
        for name, down, last in zip(names, descending, nulls_last, strict=True):
            words.append(f"{quoted(name)} {'DESC' if down else 'ASC'} NULLS {'LAST' if last else 'FIRST'}")
            if self.columns[name] == "float" and not self.is_grouped:
                # DuckDB sorts -0.0 and 0.0 as equal. As a key it is 0.0 on both sides.
                words.append(f"signbit({quoted(name)}) {'ASC' if down else 'DESC'}")
        self.query.scan = self.query.scan.sort(*names, descending=descending, nulls_last=nulls_last)
        self.query.sql = f"SELECT * FROM ({self.query.sql}) ORDER BY {', '.join(words)}"
        # Each side may return any of several equal rows.
        self.query.is_ordered = bool(unique)
        if unique and self.rng.random() < 0.6:
            rows = self.rng.choice([0, 1, 3, 10, 100, 70_000])
            self.query.scan = self.query.scan.limit(rows)
            self.query.sql += f" LIMIT {rows}"


def quoted(name: str) -> str:
    return f'"{name}"'


def query(seed: int, scan: Any) -> Query:
    """Returns the query with this seed over a table."""
    rng = random.Random(f"query {seed}")
    kinds = {
        name: COLUMNS[name][0] if name in COLUMNS else {"id": "id", "pad": "pad"}[name] for name in scan.column_names
    }
    kinds["id"] = "small"
    writer = Writer(rng, scan, kinds)
    for _ in range(rng.randint(0, 3)):
        rng.choice([writer.filter, writer.filter, writer.compute, writer.join])()
    unique = ["id"]
    match rng.choice(["rows", "rows", "group", "group", "group", "distinct", "limit"]):
        case "rows":
            if rng.random() < 0.5:
                writer.choose()
            unique = unique if "id" in writer.columns else []
        case "group":
            writer.group()
            unique = [name for name in writer.columns if not name.startswith("a") or name in COLUMNS]
            unique = [name for name in unique if name != "rows"]
        case "distinct":
            writer.distinct()
            unique = list(writer.columns)
        case "limit":
            rows = rng.choice([0, 1, 5, 1_000])
            writer.query.scan = writer.query.scan.limit(rows)
            writer.query.limit = rows
            return writer.query
    if rng.random() < 0.3 and any(kind not in ("computed", "ratio", "pad", "sum") for kind in writer.columns.values()):
        kept = {name: kind for name, kind in writer.columns.items() if kind not in ("sum", "count")}
        if kept and any(kind not in ("computed", "ratio", "pad") for kind in kept.values()):
            columns, writer.columns = writer.columns, kept
            rng.choice([writer.filter, writer.filter, writer.join])()
            writer.columns = columns
    if rng.random() < 0.5:
        writer.order(unique)
    return writer.query
