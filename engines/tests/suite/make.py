"""Writes the `.slt` files of this folder: the statements of `statements/*.sql` with DuckDB's answers.

    python make.py                     writes all files
    python make.py joins nulls         writes some of them
    python make.py --check             compares instead, and fails if a file differs from what would be written
    python make.py --datafusion        also asks DataFusion; needs `pip install datafusion==55.0.0`
    python make.py --data FOLDER       writes the tables as FOLDER/NAME.arrow, for the tests in Rust

The idea: people write statements, DuckDB answers them, and only statements with exactly one answer are accepted. Each
statement runs on the tables with one thread, and on the tables in reverse row order with several threads. A statement
whose answer depends on the order of rows is therefore refused here: ties, limits without an order, sums that round.
With `--datafusion`, stock DataFusion over Arrow in memory must give the same answer. The remaining SQL means the same
in both engines, so a difference found with far tables is a fault of far tables.

Sources are SQL. Lines that begin with `--!` are directives for the statement that follows:

    --! error                          both engines refuse it
    --! rowsort                        its ORDER BY leaves ties: compare the rows in any order
    --! for op: < | <= | =             repeat the statement for each value, in the place of {op}
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import canonical
import duckdb
import pyarrow as pa
import tables

HERE = Path(__file__).parent
ROWS_MAX = 100
Answer = tuple[str, list[tuple[str, ...]]]


@dataclass(frozen=True)
class Statement:
    sql: str
    line: int
    fails: bool
    sort: str


def statements(source: str) -> Iterator[Statement]:
    """Yields the statements of a source file, with loops expanded."""
    lines, start, loops, fails, unsorted = [], 0, [], False, False
    for number, line in enumerate(source.splitlines(), 1):
        if line.startswith("--! "):
            what, _, values = line[4:].partition(":")
            if what == "error":
                fails = True
            elif what == "rowsort":
                unsorted = True
            elif what.startswith("for ") and values:
                loops.append((what[4:].strip(), [value.strip() for value in values.split(" | ")]))
            else:
                raise ValueError(f"line {number}: {line!r} is no direction: error, rowsort or for NAME: A | B")
        elif line.startswith("--") or not line.strip():
            if lines:
                raise ValueError(f"line {number}: inside of a statement; does the one before end with ';'?")
        else:
            start = start if lines else number
            lines.append(line.rstrip())
            if line.rstrip().endswith(";"):
                template = "\n".join(lines)[:-1]
                for values in itertools.product(*(values for _, values in loops)):
                    sql = template
                    for (name, _), value in zip(loops, values, strict=True):
                        sql = sql.replace("{" + name + "}", value)
                    yield Statement(sql, start, fails, "nosort" if is_ordered(sql) and not unsorted else "rowsort")
                lines, loops, fails, unsorted = [], [], False, False
    if lines:
        raise ValueError(f"line {start}: a statement without ';'")


def is_ordered(sql: str) -> bool:
    """Reports whether a statement has an ORDER BY outside of parentheses and string literals."""
    flat = re.sub(r"'(?:[^']|'')*'|\"[^\"]*\"", "''", sql)
    depth, outside = 0, []
    for char in flat:
        depth += (char == "(") - (char == ")")
        outside.append(char if depth == 0 else " ")
    return re.search(r"\border\s+by\b", "".join(outside), re.IGNORECASE) is not None


def duckdb_engine(data: dict[str, pa.Table], threads: int) -> Callable[[str], pa.Table]:
    con = duckdb.connect(config={"threads": str(threads)})
    con.execute("SET TimeZone = 'UTC'")
    for name, table in data.items():
        con.register("given", table)
        con.execute(f"CREATE TABLE {name} AS FROM given")
        con.unregister("given")
    return lambda sql: con.sql(sql).to_arrow_table()


def datafusion_engine(data: dict[str, pa.Table], partitions: int, batch_rows: int) -> Callable[[str], pa.Table]:
    from datafusion import SessionConfig, SessionContext

    config = SessionConfig().with_target_partitions(partitions).with_batch_size(batch_rows)
    context = SessionContext(config)
    for name, table in data.items():
        batches = table.to_batches(max_chunksize=tables.BATCH_ROWS)
        batches = batches or [pa.RecordBatch.from_pylist([], schema=table.schema)]
        context.register_record_batches(name, [part for at in range(partitions) if (part := batches[at::partitions])])

    def run(sql: str) -> pa.Table:
        frame = context.sql(sql)
        batches = frame.collect()
        return pa.Table.from_batches(batches) if batches else frame.schema().empty_table()

    return run


def upside_down(table: pa.Table) -> pa.Table:
    return table.take(pa.array(range(table.num_rows - 1, -1, -1), pa.int64()))


def sort_key(row: tuple[str, ...]) -> tuple[bytes, ...]:
    """Returns a sort key by which Python orders rows as Rust orders strings: by bytes."""
    return tuple(value.encode() for value in row)


def answer(run: Callable[[str], pa.Table], statement: Statement) -> Answer | str:
    """Returns the letters and rows of an answer, or the first line of an error."""
    try:
        table = run(statement.sql)
        letters, found = canonical.letters(table), canonical.rows(table)
    except Exception as error:  # Any exception of an engine is its answer.
        return f"error: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    if statement.sort == "rowsort":
        found.sort(key=sort_key)
    return letters, found


def shown(of: Answer | str) -> str:
    if isinstance(of, str):
        return f"    {of}"
    return "\n".join([f"    {of[0]}", *("    " + "\t".join(row) for row in of[1][:8])])


def fault(statement: Statement, answers: dict[str, Answer | str]) -> str | None:
    """Returns the reason why a statement may not be in the suite."""
    first = next(iter(answers.values()))
    if statement.fails:
        accepted = [engine for engine, of in answers.items() if not isinstance(of, str)]
        return f"{', '.join(accepted)} does not refuse it" if accepted else None
    if isinstance(first, str) or len({str(of) for of in answers.values()}) > 1:
        alike = itertools.groupby(answers.items(), key=lambda item: str(item[1]))
        groups = [list(group) for _, group in alike]
        return "\n".join(f"  {', '.join(name for name, _ in group)}:\n{shown(group[0][1])}" for group in groups)
    if len(first[1]) > ROWS_MAX:
        return f"{len(first[1])} rows; up to {ROWS_MAX} are permitted: aggregate, or take the first ones"
    return None


def record(statement: Statement, of: Answer | str) -> str:
    if isinstance(of, str):
        return f"statement error\n{statement.sql}\n"
    lines = [f"query {of[0]} {statement.sort}", statement.sql, "----", *("\t".join(row) for row in of[1])]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("topics", nargs="*", help="names of files in statements/; default: all")
    parser.add_argument("--check", action="store_true", help="compare with the files there are")
    parser.add_argument("--datafusion", action="store_true", help="ask DataFusion as well")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="write the tables, and nothing else")
    arguments = parser.parse_args()
    if arguments.data:
        tables.write(arguments.data)
        return 0
    known = {path.stem: path for path in sorted((HERE / "statements").glob("*.sql"))}
    unknown = [topic for topic in arguments.topics if topic not in known]
    if unknown:
        parser.error(f"topic {unknown[0]!r} is not one of {', '.join(known)}")

    data = {name: of() for name, of in tables.TABLES.items()}
    turned = {name: upside_down(table) for name, table in data.items()}
    engines = {"DuckDB": duckdb_engine(data, 1), "DuckDB upside down": duckdb_engine(turned, 4)}
    if arguments.datafusion:
        engines["DataFusion"] = datafusion_engine(data, 1, 8192)
        engines["DataFusion upside down"] = datafusion_engine(turned, 4, 1000)

    faults = total = 0
    for topic in arguments.topics or known:
        source, target = known[topic].read_text(), HERE / f"{topic}.slt"
        parts = [f"# Made by make.py out of statements/{topic}.sql with the answers of DuckDB {duckdb.__version__}.\n"]
        count = 0
        for statement in statements(source):
            answers = {engine: answer(run, statement) for engine, run in engines.items()}
            why = fault(statement, answers)
            if why:
                faults += 1
                print(f"statements/{topic}.sql:{statement.line}: {statement.sql}\n{why}\n", file=sys.stderr)
                continue
            count += not statement.fails
            parts.append(record(statement, answers["DuckDB"]))
        total += count
        print(f"{topic}: {count} queries, {len(parts) - 1 - count} refused by intent")
        made = "\n".join(parts)
        if arguments.check:
            found = target.read_text() if target.exists() else ""
            if found != made:
                faults += 1
                lines = difflib.unified_diff(
                    found.splitlines(), made.splitlines(), target.name, "made now", lineterm=""
                )
                print("\n".join(itertools.islice(lines, 20)), file=sys.stderr)
        else:
            target.write_text(made)
    print(f"{total} queries; {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
