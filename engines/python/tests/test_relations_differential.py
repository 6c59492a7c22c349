"""Random statements over random tables. DuckDB over a far table, and `sql_pushdown`, must answer as DuckDB over its own
table does, with the same names and types of columns.

Values must be equal. Sums and means of floats may differ by the bound of the scans' tests. A statement that DuckDB
refuses because a value does not fit is skipped. FARPOOL_PIPELINES sets the number of statements, and FARPOOL_SEED the
first one.
"""

import random

import duckdb
import pytest
import random_queries
from random_queries import COLUMNS, Writer, literal, quoted
from test_scan_differential import FIRST, PIPELINES, PLACEMENTS, QUERIES_OF_A_TABLE, TESTS, difference

import farpool
import farpool.duckdb

NUMBERS = ("int", "small", "float", "decimal")


class Statement:
    """A SELECT over `t`, and how its rows may be compared."""

    def __init__(self, seed: int, scan: farpool.Scan):
        self.rng = rng = random.Random(f"statement {seed}")
        kinds = {name: COLUMNS[name][0] if name in COLUMNS else name for name in scan.column_names} | {"id": "small"}
        self.kinds = {name: kind for name, kind in kinds.items() if kind != "pad"}
        self.writer = Writer(rng, scan, dict(self.kinds))
        self.is_ordered, self.limit = False, None
        where = [self.condition() for _ in range(rng.choice([0, 1, 1, 2, 3]))]
        self.where = f" WHERE {' AND '.join(where)}" if where else ""
        make = rng.choice([self.rows, self.rows, self.groups, self.groups, self.groups, self.distinct, self.nested])
        self.sql = make()

    def condition(self) -> str:
        if self.rng.random() < 0.3:
            return self.special()
        return self.writer.condition(depth=self.rng.choice([0, 1, 2])).sql

    def special(self) -> str:
        """Adds SQL that queries do not have. Some of it only DuckDB can run."""
        name = self.rng.choice(sorted(self.kinds))
        kind, column = self.kinds[name], quoted(name)
        value = literal(self.writer.value(kind)) if kind in {of for of, _, _ in COLUMNS.values()} else "3"
        any_kind = [
            f"{column} IS DISTINCT FROM {value}",
            f"coalesce({column} = {value}, false)",
            f"NOT ({column} IS NULL OR {column} = {value})",
            f"({value} < {column} OR {column} IS NULL)",
            f"CASE WHEN {column} IS NULL THEN id > 3 ELSE {column} <> {value} END",
            f"{column} NOT IN ({value}, {value})",
            f"{column} <= (SELECT max({column}) FROM t)",
            "id % 2 = 0",
        ]
        texts = [f"{column} NOT LIKE 'a%'", f"starts_with({column}, 'a')", f"contains({column}, '%')"]
        texts += [f"{column} LIKE '%\\%'", f"{column} LIKE 'a!%%' ESCAPE '!'", f"upper({column}) = 'A'"]
        texts += [f"length({column}) > 2", f"{column} ILIKE 'A%'", f"suffix({column}, 'b')"]
        numbers = [f"{column} > 1.5", f"{column} * 2 > 3", f"{column} BETWEEN -1 AND 1.25", f"abs({column}) < 5"]
        numbers += [f"{column} < 'nan'::DOUBLE", f"{column} >= 2::DOUBLE", f"{column} IN (1, 2, 3.5)", f"-{column} > 1"]
        days = [f"{column} > '2020-03-01'", f"{column} < DATE '2020-03-10' - INTERVAL 3 DAY", f"month({column}) = 3"]
        return self.rng.choice(
            any_kind + {"text": texts, "date": days, "moment": days}.get(kind, numbers if kind in NUMBERS else [])
        )

    def names(self, *kinds: str) -> list[str]:
        return sorted(name for name, kind in self.kinds.items() if not kinds or kind in kinds)

    def order(self, unique: list[str], by: list[str]) -> str:
        """Adds ORDER BY, mostly ending in a unique key, and LIMIT."""
        rng, text = self.rng, ""
        if rng.random() < 0.6:
            by = rng.sample(by, min(len(by), rng.randint(0, 2))) + unique
            down, nulls = ["", "ASC", "DESC"], ["", "NULLS FIRST", "NULLS LAST"]
            if by:
                text = f" ORDER BY {', '.join(f'{one} {rng.choice(down)} {rng.choice(nulls)}' for one in by)}"
                self.is_ordered = bool(unique)
        if rng.random() < 0.4 and (self.is_ordered or not text):
            rows, offset = rng.choice([0, 1, 7, 100, 70_000]), rng.choice([0, 0, 2])
            text += f" LIMIT {rows}" + (f" OFFSET {offset}" if offset else "")
            if not self.is_ordered:
                self.limit = (rows, offset)
        return text

    def rows(self) -> str:
        names = self.rng.sample(self.names(), self.rng.randint(1, len(self.kinds)))
        chosen = [quoted(name) for name in names]
        if self.rng.random() < 0.2:
            chosen = ["*"]
        elif self.rng.random() < 0.3:
            chosen.append("id + 1 AS more")
        text = f"SELECT {', '.join(chosen)} FROM t{self.where}"
        return text + self.order(["id"], [quoted(name) for name in self.names()])

    def grouped(self) -> tuple[list[str], list[str]]:
        rng = self.rng
        keys = [quoted(name) for name in rng.sample(self.names(), min(rng.choice([0, 1, 1, 2]), len(self.kinds)))]
        if rng.random() < 0.15:
            keys.append("(id * 2)")
        aggregates = []
        for _ in range(rng.randint(1, 4)):
            name = rng.choice(self.names())
            kind, column = self.kinds[name], quoted(name)
            choices = [f"count({column})", f"min({column})", f"max({column})", "count(*)"]
            if kind in NUMBERS:
                choices += [f"sum({column})", f"avg({column})", f"sum({column} * 2)", f"sum(1 - {column})"]
                choices += [f"sum({column}) + 1", f"max({column}) - min({column})"] if kind != "int" else []
                choices += [f"sum({column}) / count(*)", f"count(DISTINCT {column})", f"avg({column}) FILTER (id > 5)"]
            aggregates.append(rng.choice(choices))
        return keys, aggregates

    def groups(self) -> str:
        rng = self.rng
        keys, aggregates = self.grouped()
        outputs = [f"{one} AS o{index}" if rng.random() < 0.6 else one for index, one in enumerate(aggregates)]
        shown = [key for key in keys if rng.random() < 0.9]
        said = [str(index + 1) if key == shown[index : index + 1] else key for index, key in enumerate(keys)]
        text = f"SELECT {', '.join([*shown, *outputs])} FROM t{self.where}"
        if keys:
            text += f" GROUP BY {', '.join(said)}"
        if rng.random() < 0.3:
            text += f" HAVING count(*) > {rng.choice([0, 1, 5])}"
        self.floats = True
        return text + (self.order(keys, []) if keys else "")

    def distinct(self) -> str:
        chosen = [quoted(name) for name in self.rng.sample(self.names(), min(len(self.kinds), self.rng.randint(1, 3)))]
        return f"SELECT DISTINCT {', '.join(chosen)} FROM t{self.where}" + self.order(chosen, [])

    def nested(self) -> str:
        """Puts blocks into other statements."""
        keys, _ = self.grouped()
        key = (keys or ["id"])[0]
        inner = f"SELECT {key} AS k, count(*) AS n, max(id) AS m FROM t{self.where} GROUP BY {key}"
        self.is_ordered = False
        return self.rng.choice(
            [
                f"WITH q AS ({inner}) SELECT q.k, q.n, o.id FROM q JOIN t o ON o.id = q.m WHERE o.id > 2",
                f"SELECT n, count(*) FROM ({inner}) GROUP BY n",
                f"SELECT id FROM t{self.where} UNION ALL SELECT m FROM ({inner})",
                f"SELECT id FROM t WHERE id IN (SELECT id FROM t{self.where})",
                f"SELECT id, (SELECT count(*) FROM t i WHERE i.id < t.id) FROM t{self.where} ORDER BY id LIMIT 5",
                f"SELECT id, row_number() OVER (ORDER BY id) FROM t{self.where}",
            ]
        )


def rows_of(relation) -> list[tuple]:
    table = relation.to_arrow_table()
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True)) if table.num_rows else []


@pytest.mark.parametrize("part", range(TESTS))
def test_far_tables_in_duckdb_answer_what_tables_of_its_own_answer(part: int):
    first, after = FIRST + part * PIPELINES // TESTS, FIRST + (part + 1) * PIPELINES // TESTS
    table_number, scan, refused = None, None, 0
    blocks, shipped, grouped = 0, 0, 0
    with (
        farpool.embedded("64MiB", nodes=2, region_size="1MiB") as pool,
        duckdb.connect() as own,
        duckdb.connect() as far,
    ):
        for con in (own, far):
            con.execute("SET TimeZone = 'UTC'")
        for seed in range(first, after):
            if table_number != seed // QUERIES_OF_A_TABLE:
                table_number = seed // QUERIES_OF_A_TABLE
                table = random_queries.table(table_number)
                pool.put_table("t", table, replace=True, layout=random_queries.layout(table_number, table))
                scan = pool.scan("t")
                own.register("given", table)
                own.execute("CREATE OR REPLACE TABLE t AS SELECT * FROM given")
            statement = Statement(seed, scan)
            farpool.duckdb.register(far, pool, "t", placement=PLACEMENTS[seed % 3])
            repeat = f"FARPOOL_SEED={seed} FARPOOL_PIPELINES=1\n{statement.sql}"
            try:
                wanted = own.sql(statement.sql)
                expected = rows_of(wanted)
            except duckdb.Error:
                refused += 1
                continue
            pushdown = farpool.duckdb.sql_pushdown(far, statement.sql)
            repeat += f"\n{pushdown}\n{pushdown.sql}"
            for relation in (far.sql(statement.sql), pushdown.relation):
                assert relation.columns == wanted.columns, repeat
                assert relation.types == wanted.types, repeat
                found = rows_of(relation)
                if statement.limit is not None:
                    assert len(found) == len(expected), repeat
                    continue
                what = difference(found, expected, statement.is_ordered)
                if what is not None:
                    pytest.fail(f"{what}\n{repeat}", pytrace=False)
            blocks += len(pushdown.blocks)
            shipped += sum(bool(block.shipped) for block in pushdown.blocks)
            grouped += sum(any(word.startswith("aggregate") for word in block.shipped) for block in pushdown.blocks)
        stats = pool.stats()
    assert refused <= max(8, (after - first) // 4)
    if after - first >= 40:
        assert stats["row_groups_skipped"] > 0
        # Many of the blocks that are made here can be pushed down.
        assert shipped > blocks / 3 and grouped > 3, (blocks, shipped, grouped)
