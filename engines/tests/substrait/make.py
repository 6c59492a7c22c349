"""Makes the plans that the tests of Substrait run, as other producers write them, and the answers of the producers' own
engines.

    pip install -r requirements.txt
    python make.py

    tables/NAME.arrow        small tables with NULLs, decimals, dates, texts and floating-point numbers
    ibis/NAME.bin, .json     ibis-substrait 4.0.1; answers of ibis on DuckDB
    datafusion/NAME.bin, .json
                             the Python package of DataFusion 55; its own answers
    */not_written.txt        queries for which a producer has no plan, and its message

An answer is {"columns": [KIND, ..], "rows": [[TEXT, ..], ..], "is_ordered": BOOL}: values in the text form of
../suite/README.md, of kinds "decimal" (also for integers), "float" and "text". The committed files are the output of
this program. Plans of ibis have the same bytes in each run. Plans of DataFusion number their functions in the order of
a hash map.

The idea: a producer and its own engine agree about the meaning of a query. If a plan is read with another meaning, its
values differ, wherever the mistake is.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path

import datafusion
import ibis
import pyarrow as pa
from datafusion import substrait as datafusion_substrait
from ibis import _
from ibis_substrait.compiler.core import SubstraitCompiler

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "suite"))
import canonical  # noqa: E402

ROWS = 240


def tables() -> dict[str, pa.Table]:
    rows = range(ROWS)
    kinds = ["retail", "whole sale", "x_y", None, "100%", "Réunion"]
    sales = {
        "id": pa.array(rows, pa.int64()),
        "customer": pa.array([None if row % 29 == 0 else row * 7 % 45 for row in rows], pa.int64()),
        "day": pa.array([None if row % 31 == 5 else date(1995, 1, 1) + timedelta(days=row * 3) for row in rows]),
        "amount": pa.array(
            [None if row % 17 == 3 else Decimal(row * 137 % 90_001 - 20_000).scaleb(-2) for row in rows],
            pa.decimal128(12, 2),
        ),
        "price": pa.array([None if row % 13 == 1 else (row % 97) / 8 - 2.5 for row in rows], pa.float64()),
        "kind": pa.array([kinds[row % len(kinds)] for row in rows], pa.string()),
        "quantity": pa.array([None if row % 41 == 9 else row * 11 % 50 for row in rows], pa.int32()),
        "is_paid": pa.array([None if row % 23 == 2 else row % 3 == 0 for row in rows], pa.bool_()),
    }
    customers = {
        "customer_id": pa.array(range(50), pa.int64()),
        "name": pa.array([f"Customer {row:03d}" for row in range(50)], pa.string()),
        "nation": pa.array([None if row % 19 == 4 else row % 7 for row in range(50)], pa.int64()),
        "balance": pa.array([Decimal(row * row - 700).scaleb(-2) for row in range(50)], pa.decimal128(15, 2)),
    }
    nations = {
        "nation_id": pa.array(range(6), pa.int64()),
        "nation_name": pa.array(["Chad", "Fiji", "Iran", "Mali", "Oman", "Peru"], pa.string()),
    }
    return {"sales": pa.table(sales), "customers": pa.table(customers), "nations": pa.table(nations)}


def ibis_queries(sales: ibis.Table, customers: ibis.Table, nations: ibis.Table) -> dict[str, ibis.Table]:
    by_customer = sales.join(customers, sales.customer == customers.customer_id)
    by_nation = by_customer.join(nations, customers.nation == nations.nation_id)
    known = sales.filter(_.price.notnull(), _.kind.notnull())
    day = ibis.date
    return {
        "filter_project": sales.filter(_.quantity > 20, _.price < 5.0).select("id", "kind", "price"),
        "filter_or_not": sales.filter((_.quantity < 3) | ~(_.price < 9.0) | _.is_paid).select("id"),
        "arithmetic": sales.select("id", a=_.quantity + 3, b=_.price * 2.5 - _.quantity, c=_.price / 4, d=-_.price),
        "integer_division": sales.select("id", a=_.id / 7, b=_.id % 7),
        "case": sales.select(
            "id",
            size=ibis.case()
            .when(sales.quantity < 10, "small")
            .when(sales.quantity < 30, "middle")
            .else_("large")
            .end(),
        ),
        "like": sales.filter(_.kind.like("%sale") | _.kind.like("x_y%")).select("id", "kind"),
        "like_backslash": sales.filter(_.kind.like("x\\_%")).select("id", "kind"),
        "starts_with": sales.filter(_.kind.startswith("re")).select("id", "kind"),
        "contains": sales.filter(_.kind.contains("al")).select("id", "kind"),
        "in_texts": sales.filter(_.kind.isin(["retail", "100%", "none"])).select("id", "kind"),
        "in_numbers": sales.filter(_.customer.isin([3, 7, 11])).select("id", "customer"),
        "not_in": sales.filter(_.customer.notin([3, 7, 11])).select("id", "customer"),
        "between": sales.filter(_.price.between(1.0, 2.5)).select("id", "price"),
        "dates": sales.filter(_.day >= day("1996-01-01"), _.day < day("1997-01-01")).select("id", "day"),
        "year": sales.select("id", year=_.day.year()),
        "parts_of_days": sales.select("id", a=_.day.month(), b=_.day.day()),
        "casts": sales.select("id", a=_.quantity.cast("int64"), b=_.id.cast("float64"), c=_.price.cast("string")),
        "texts": sales.select("id", a=_.kind.upper(), b=_.kind.length()),
        "substring": sales.select("id", a=_.kind.substr(1, 3)),
        "concatenation": sales.select("id", a=_.kind + "!"),
        "round_abs": sales.select("id", a=_.price.abs(), b=_.price.floor(), c=_.price.ceil()),
        "nulls": sales.filter(_.kind.isnull() | _.price.notnull()).select("id", a=_.kind.isnull(), b=_.price.notnull()),
        "coalesce": sales.select("id", a=ibis.coalesce(_.price, 0.0)),
        "null_literal": sales.select("id", a=ibis.null("int64")),
        "null_if": sales.select("id", a=_.quantity.nullif(0)),
        "decimals": sales.select("id", a=_.amount + _.amount),
        "decimal_product": sales.select("id", a=_.amount * _.amount),
        "decimal_literal": sales.filter(_.amount > Decimal("500.25")).select("id", "amount"),
        "decimal_filter": sales.filter(_.amount > 500).select("id", "amount"),
        "group_by": sales.group_by("kind").aggregate(
            rows=_.count(),
            total=_.amount.sum(),
            mean=_.price.mean(),
            least=_.price.min(),
            most=_.day.max(),
            known=_.price.count(),
        ),
        "group_by_two": sales.group_by(["kind", "is_paid"]).aggregate(total=_.quantity.sum()),
        "group_by_expression": sales.group_by(big=_.quantity > 25).aggregate(rows=_.count(), total=_.price.sum()),
        "having": sales.group_by("customer").aggregate(rows=_.count(), total=_.quantity.sum()).filter(_.total > 200),
        "where_aggregate": sales.aggregate(a=_.price.sum(where=_.quantity > 20), b=_.count(_.quantity > 20)),
        "count_distinct": sales.aggregate(kinds=_.kind.nunique(), customers=_.customer.nunique()),
        "scalar_aggregates": sales.aggregate(
            rows=_.count(), total=_.quantity.sum(), mean=_.price.mean(), least=_.amount.min(), most=_.amount.max()
        ),
        "aggregate_of_nothing": sales.filter(_.id < 0).aggregate(rows=_.count(), total=_.price.sum()),
        "deviation": sales.aggregate(a=_.price.std(), b=_.price.var()),
        "order_limit": known.order_by([ibis.desc("price"), "id"]).limit(7).select("id", "price"),
        "order_by_text": known.order_by(["kind", ibis.desc("id")]).select("id", "kind").limit(9, offset=4),
        "order_with_nulls": sales.order_by([ibis.desc("price"), "id"]).limit(7).select("id", "price"),
        "group_order_limit": sales.group_by("customer")
        .aggregate(total=_.quantity.sum())
        .order_by([ibis.desc("total"), "customer"])
        .limit(5),
        "distinct": sales.select("kind", "is_paid").distinct(),
        "group_by_nothing_else": sales.group_by(["kind", "is_paid"]).aggregate(),
        "join_two": by_customer.filter(_.id >= 0).select("id", "name", "balance"),
        "join_all_columns": by_customer,
        "join_then_select": by_customer.select("id", "name", "balance"),
        "join_three": by_nation.group_by("nation_name").aggregate(rows=_.count(), total=_.amount.sum()),
        "left_join": sales.left_join(customers, sales.customer == customers.customer_id)
        .filter(_.id >= 0)
        .select("id", "name"),
        "semi_join": customers.semi_join(sales, sales.customer == customers.customer_id)
        .filter(_.customer_id >= 0)
        .select("name"),
        "anti_join": customers.anti_join(sales, sales.customer == customers.customer_id).select("name"),
        "union": sales.filter(_.id < 5).select("id", "kind").union(sales.filter(_.id < 8).select("id", "kind")),
        "union_distinct": sales.select("kind").union(sales.filter(_.id > 9).select("kind"), distinct=True),
        "intersect": sales.select("customer").intersect(customers.select(customer=_.customer_id)),
        "difference": customers.select(customer=_.customer_id).difference(sales.select("customer")),
        "window": sales.select("id", place=ibis.row_number().over(ibis.window(group_by="kind", order_by="id"))),
    }


# SQL of the queries for DataFusion, by name. If a query has an ORDER BY, the order is total.
SQL = {
    "filter_project": "SELECT id, kind, price FROM sales WHERE quantity > 20 AND price < 5",
    "arithmetic": "SELECT id, quantity + 3, price * 2.5 - quantity, -price, id % 7, amount / 3 FROM sales",
    "case": "SELECT id, CASE WHEN quantity < 10 THEN 'small' WHEN quantity < 30 THEN 'middle' ELSE 'large' END "
    "FROM sales",
    "simple_case": "SELECT id, CASE kind WHEN 'retail' THEN 1 WHEN 'x_y' THEN 2 END FROM sales",
    "like": "SELECT id, kind FROM sales WHERE kind LIKE '%sale' OR kind ILIKE 'RÉ%' OR kind LIKE 'x\\_%'",
    "not_like": "SELECT id FROM sales WHERE kind NOT LIKE '%a%'",
    "regex": "SELECT id FROM sales WHERE kind ~ '^(re|x)'",
    "in_list": "SELECT id FROM sales WHERE kind IN ('retail', '100%') AND customer NOT IN (3, 7, 11, 12, 13)",
    "dates": "SELECT id, day FROM sales WHERE day >= DATE '1996-01-01' AND day < DATE '1997-01-01'",
    "date_arithmetic": "SELECT id, day + INTERVAL '1' MONTH, extract(year FROM day), date_trunc('month', day) "
    "FROM sales",
    "casts": "SELECT id, CAST(quantity AS BIGINT), CAST(id AS DOUBLE) AS d, CAST(id AS VARCHAR) AS t, "
    "TRY_CAST(kind AS INT) FROM sales",
    "texts": "SELECT id, upper(kind), char_length(kind), substr(kind, 1, 3), kind || '!' FROM sales",
    "nulls": "SELECT id, kind IS NULL, coalesce(price, 0), nullif(quantity, 0), is_paid IS NOT TRUE FROM sales",
    "decimals": "SELECT id, amount + amount, amount * amount, round(amount, 1) FROM sales WHERE amount > 500.25",
    "group_by": "SELECT kind, count(*), sum(amount), avg(price), min(price), max(day), avg(amount) "
    "FROM sales GROUP BY kind",
    "group_by_expression": "SELECT quantity > 25, count(*), sum(price) FROM sales GROUP BY quantity > 25",
    "having": "SELECT customer, sum(quantity) FROM sales GROUP BY customer HAVING sum(quantity) > 200",
    "aggregate_filter": "SELECT sum(price) FILTER (WHERE quantity > 20), count(DISTINCT kind) FROM sales",
    "scalar_aggregates": "SELECT count(*), sum(quantity), avg(price), min(amount), max(amount), stddev(price) "
    "FROM sales",
    "aggregate_of_nothing": "SELECT count(*), sum(price) FROM sales WHERE id < 0",
    "order_limit": "SELECT id, price FROM sales ORDER BY price DESC NULLS LAST, id LIMIT 7 OFFSET 2",
    "group_order_limit": "SELECT customer, sum(quantity) AS total "
    "FROM sales GROUP BY customer ORDER BY total DESC, customer LIMIT 5",
    "distinct": "SELECT DISTINCT kind, is_paid FROM sales",
    "join_two": "SELECT id, name, balance FROM sales JOIN customers ON customer = customer_id",
    "join_three": "SELECT nation_name, count(*), sum(amount) FROM sales JOIN customers ON customer = customer_id "
    "JOIN nations ON nation = nation_id GROUP BY nation_name",
    "left_join": "SELECT id, name FROM sales LEFT JOIN customers ON customer = customer_id AND balance > 0",
    "full_join": "SELECT id, name FROM sales FULL JOIN customers ON customer = customer_id",
    "self_join": "SELECT a.id, b.id FROM sales a JOIN sales b ON a.id = b.customer WHERE a.quantity < b.quantity",
    "semi_join": "SELECT name FROM customers WHERE customer_id IN (SELECT customer FROM sales WHERE quantity > 45)",
    "anti_join": "SELECT name FROM customers WHERE NOT EXISTS (SELECT 1 FROM sales WHERE customer = customer_id)",
    "scalar_subquery": "SELECT id FROM sales WHERE price > (SELECT avg(price) FROM sales)",
    "correlated": "SELECT id FROM sales s WHERE price > (SELECT avg(price) FROM sales t WHERE t.kind = s.kind)",
    "union": "SELECT id, kind FROM sales WHERE id < 5 UNION ALL SELECT id, kind FROM sales WHERE id < 8",
    "union_distinct": "SELECT kind FROM sales UNION SELECT nation_name FROM nations",
    "intersect": "SELECT customer FROM sales INTERSECT SELECT customer_id FROM customers",
    "except": "SELECT customer_id FROM customers EXCEPT SELECT customer FROM sales",
    "window": "SELECT id, row_number() OVER (PARTITION BY kind ORDER BY id), sum(quantity) OVER (ORDER BY id) "
    "FROM sales",
    "grouping_sets": "SELECT kind, is_paid, sum(quantity) FROM sales GROUP BY GROUPING SETS ((kind), (is_paid), ())",
    "rollup": "SELECT kind, is_paid, count(*) FROM sales GROUP BY ROLLUP (kind, is_paid)",
    "values": "SELECT column1, column2 FROM (VALUES (1, 'a'), (2, NULL)) ORDER BY 1",
    "no_table": "SELECT 1 + 1, 'a'",
}


def answer(found: pa.Table, is_ordered: bool) -> dict[str, object]:
    def kind(of: pa.DataType) -> str:
        if pa.types.is_floating(of):
            return "float"
        return "decimal" if pa.types.is_integer(of) or pa.types.is_decimal(of) else "text"

    columns = [canonical.column_texts(column) for column in found.columns]
    rows = [list(row) for row in zip(*columns, strict=True)]
    kinds = [kind(field.type) for field in found.schema]
    return {"columns": kinds, "rows": rows if is_ordered else sorted(rows), "is_ordered": is_ordered}


def write_answer(path: Path, told: dict[str, object]) -> None:
    rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in told["rows"])
    head = json.dumps({key: told[key] for key in ("columns", "is_ordered")})[:-1]
    path.write_text(f'{head}, "rows": [\n{rows}\n]}}\n')


def each(producer: str, names: list[str], make: Callable[[str], tuple[bytes, pa.Table]]) -> None:
    """Writes the plan and answer of each query. Lists queries that a producer cannot write or its engine cannot
    answer."""
    folder, failed = HERE / producer, []
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in names:
        try:
            plan, found = make(name)
        except Exception as error:  # Any exception is its answer.
            why = re.sub(r" object at 0x[0-9a-f]+", "", str(error))
            failed.append(f"{name}: {type(error).__name__}: {why}".splitlines()[0].strip())
            continue
        is_ordered = any(part in name for part in ("order", "values"))
        (folder / f"{name}.bin").write_bytes(plan)
        write_answer(folder / f"{name}.json", answer(found, is_ordered))
    (folder / "not_written.txt").write_text("".join(f"{line}\n" for line in failed))
    print("\n".join([f"{producer}: {len(names) - len(failed)} plans; not written:", *failed]))


def main() -> None:
    made = tables()
    (HERE / "tables").mkdir(exist_ok=True)
    for name, table in made.items():
        with pa.ipc.new_file(HERE / "tables" / f"{name}.arrow", table.schema) as writer:
            writer.write_table(table)

    engine = ibis.duckdb.connect()
    for name, table in made.items():
        engine.create_table(name, table)
    # Plans refer to tables by name only.
    unbound = [ibis.table(ibis.Schema.from_pyarrow(made[name].schema), name=name) for name in made]
    queries = ibis_queries(*unbound)

    def of_ibis(name: str) -> tuple[bytes, pa.Table]:
        plan = SubstraitCompiler().compile(queries[name])
        return plan.SerializeToString(deterministic=True), engine.to_pyarrow(queries[name])

    each("ibis", list(queries), of_ibis)

    context = datafusion.SessionContext(
        datafusion.SessionConfig({"datafusion.sql_parser.map_string_types_to_utf8view": "false"})
    )
    for name, table in made.items():
        context.register_record_batches(name, [table.to_batches()])

    def of_datafusion(name: str) -> tuple[bytes, pa.Table]:
        plan = datafusion_substrait.Serde.serialize_bytes(SQL[name], context)
        return bytes(plan), context.sql(SQL[name]).to_arrow_table()

    each("datafusion", list(SQL), of_datafusion)


if __name__ == "__main__":
    main()
