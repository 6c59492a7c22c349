"""The figures of the paper that can be measured, each with its axis and its series."""

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tables
from contenders import EncryptedEngine, Engines, Far, Place, RemoteCpu, encrypted_rows
from environment import program
from measuring import Figure, Panel, Quiet, best_engine, in_turns, size_text
from queries import Decrypted, Distinct, Group, Project, Query, Regex, Select, canonical, check
from together import Together

KIB = 1 << 10
MIB = 1 << 20
# Memory of a node beyond the table: partly filled regions, other tables, and metadata.
NODE_SPARE_BYTES = 512 * MIB
SHIPPED = "FV ship, shm"
# Series over tables with `layout="rows"`, as in the paper.
ROWS = "FV rows"
# Ratios of series that every figure has: the time of the second over that of the first.
RATIOS = tuple((SHIPPED, name) for name in ("LCPU DuckDB", "LCPU best", "RCPU", "FV fetch, shm")) + tuple(
    ("FV ship, tcp", name) for name in ("RCPU", "FV fetch, tcp")
)


@dataclass(frozen=True)
class Settings:
    size: int
    rounds: int
    place: Place
    quiet: Quiet
    progress: Callable[[str], None]


def steps(least: int, most: int, factor: int = 4) -> list[int]:
    """Returns the values from `least` to `most`, each `factor` times the one before, and `most` itself."""
    found = []
    while least < most:
        found.append(least)
        least *= factor
    return [*found, most]


def sizes_of(settings: Settings) -> list[int]:
    return steps(min(64 * KIB, settings.size), settings.size)


class Queried:
    """Tables of several sizes with all contenders."""

    def __init__(self, settings: Settings, sizes: list[int], has_rows: bool = False):
        self._settings = settings
        settings.progress("making tables")
        self._whole = tables.table(max(sizes) // tables.ROW_BYTES)
        self._has_rows = has_rows
        # Each table takes whole regions, however small it is.
        self._far = Far((2 * sum(sizes) + NODE_SPARE_BYTES) * (2 if has_rows else 1), settings.place)
        for size in sizes:
            table = self._whole.slice(0, size // tables.ROW_BYTES).combine_chunks()
            self._far.put(f"t{size}", table)
            if has_rows:
                self._far.put(f"rows{size}", table, "rows")
        self._rcpu = RemoteCpu(tables.rows_of(self._whole), settings.place)

    def measure(self, size: int, queries: list[tuple[Panel, float, Query]]) -> None:
        """Measures each query over the table of one size. The times are added to the query's panel."""
        rows = size // tables.ROW_BYTES
        engines = Engines(self._whole.slice(0, rows).combine_chunks())
        for panel, x, query in queries:
            self._settings.progress(f"{query}, {size_text(size)}")
            contenders = self._far.contenders(f"t{size}", query) | engines.contenders(query)
            if self._has_rows:
                contenders |= self._far.contenders(f"rows{size}", query, ("ship", "fetch"), ROWS)
            measure(panel, x, query, contenders, self._rcpu, rows, self._settings)
        engines.close()

    def close(self) -> None:
        self._rcpu.close()
        self._far.close()


def measure(
    panel: Panel, x: float, query: Query, contenders: dict, rcpu: RemoteCpu, rows: int, settings: Settings
) -> None:
    """Measures one point of a panel. Every answer is compared with that of DuckDB over the local table."""
    expected = canonical(query, contenders["LCPU DuckDB"]()[1])
    check("RCPU", query, rcpu.client.ask(query.rcpu(rows), save=True)[1], expected)
    checked = lambda name, answer: answer is None or check(name, query, answer, expected)  # noqa: E731
    times = in_turns(contenders | rcpu.contender(query, rows), settings.rounds, settings.quiet, checked)
    panel.add(x, times | best_engine(times))


def fig6(settings: Settings) -> Figure:
    figure = Figure(
        "fig6",
        "Reads: throughput and response time",
        "FV peaks at 12 GB/s from 4 KiB on, a commercial NIC (RNIC) at 11; response times of 2 to 3 µs that grow from "
        "8 KiB on, where FV is at least 20 % below RNIC.",
    )
    depth = 16
    many = Panel(f"(a) throughput, {depth} reads under way", "transfer size", "bytes", "throughput", "GB/s")
    one = Panel("(b) response time, one read under way", "transfer size", "bytes")
    figure.panels += [many, one]
    total = 64 * MIB
    content = np.random.default_rng(1).integers(0, 256, total, np.uint8)
    far = Far(2 * total + NODE_SPARE_BYTES, settings.place)
    files = {}
    for name, pool in far.pools.items():
        files[f"FV, {name}"] = file = pool.create(f"scratch/{name}")
        for at in range(0, total, MIB):
            file.write_at(at, content[at : at + MIB])
    rcpu = RemoteCpu(content, settings.place)
    buffers = [np.zeros(4 * MIB, np.uint8) for _ in range(depth)]
    for size in steps(64, 4 * MIB):
        settings.progress(f"reads of {size_text(size)}")
        offsets = np.random.default_rng(size).integers(0, total // size, 4096) * size
        for panel, under_way in ((one, 1), (many, depth)):
            contenders = read_contenders(files, content, rcpu, buffers, [int(at) for at in offsets], size, under_way)
            times = in_turns(contenders, settings.rounds, settings.quiet)
            if panel is many:
                times = {name: [size * depth / seconds / 1e9 for seconds in values] for name, values in times.items()}
            panel.add(size, times)
    rcpu.close()
    far.close()
    figure.notes.append(
        "There is no RDMA NIC here: RCPU, a thread that answers over TCP, stands where RNIC stands in the paper. FV's "
        "times contain the call from Python, those of RCPU do not."
    )
    return figure


def read_contenders(
    files: dict,
    content: np.ndarray,
    rcpu: RemoteCpu,
    buffers: list[np.ndarray],
    offsets: list[int],
    size: int,
    depth: int,
) -> dict:
    """Returns functions that read `depth` ranges per call and walk through the list of ranges. All ranges are
    compared."""
    into = [memoryview(buffer)[:size] for buffer in buffers[:depth]]
    place = 0

    def ranges() -> list[tuple[int, memoryview]]:
        nonlocal place
        place = (place + depth) % (len(offsets) - depth)
        return list(zip(offsets[place : place + depth], into, strict=True))

    def run(read: Callable[[list], object]):
        def call():
            wanted = ranges()
            begun = time.perf_counter()
            read(wanted)
            seconds = time.perf_counter() - begun
            for at, buffer in wanted:
                assert buffer[0] == content[at] and buffer[-1] == content[at + size - 1], (
                    f"{size} B at {at}: other bytes"
                )
            return seconds, None

        return call

    def copied(wanted: list) -> None:
        for at, buffer in wanted:
            buffer[:] = content.data[at : at + size]

    def far_read(file: object) -> Callable[[list], object]:
        return (lambda wanted: file.read_into(*wanted[0])) if depth == 1 else file.read_batch

    for file in files.values():  # compares whole ranges once; the timed calls compare only their ends
        wanted = ranges()
        far_read(file)(wanted)
        assert all(np.array_equal(buffer, content[at : at + size]) for at, buffer in wanted)
    found = {name: run(far_read(file)) for name, file in files.items()}
    found["LCPU, copy"] = run(copied)
    # The client of RCPU reads 20 times and returns the median.
    found["RCPU"] = lambda: rcpu.client.ask(f"read {size} {depth} 20")
    return found


def fig7(settings: Settings) -> Figure:
    figure = Figure(
        "fig7",
        "Projection of three columns of 8 bytes: reading whole rows, smart addressing, columns",
        "Smart addressing (FV-SA) beats reading whole rows from 512 bytes a row on; at 256 reading all is faster.",
    )
    size = min(settings.size, 256 * MIB)
    panel = Panel(
        f"three columns out of {size_text(size)}",
        "row width",
        "bytes",
        ratios=(
            ("rows, smart addressing", "rows, read whole"),
            (f"{ROWS} ship, shm", f"{ROWS} fetch, shm"),
            (SHIPPED, f"{ROWS} ship, shm"),
        ),
    )
    figure.panels.append(panel)
    settings.progress("farpool bench operators")
    command = [program("farpool"), "bench", "operators", "--json", "--mib", str(max(size // MIB, 1))]
    found = json.loads(
        subprocess.run([*command, "--rounds", str(settings.rounds)], check=True, capture_output=True, text=True).stdout
    )
    widths = []
    for point in found["found"]:
        if point["operator"] == "project":
            width = point["row_bytes"]
            widths.append(width)
            panel.add(width, {
                "rows, read whole": [size / point["full_gb_per_s"] / 1e9],
                "rows, smart addressing": [size / point["gb_per_s"] / 1e9],
            })  # fmt: skip
    for width in widths:
        settings.progress(f"columns of rows of {width} bytes")
        rows = size // width
        table = tables.wide(width, rows)
        far = Far(3 * size + NODE_SPARE_BYTES, settings.place)
        far.put("wide", table)
        far.put("rows", table, "rows")
        engines = Engines(table, ("DuckDB",))
        query = Project()
        contenders = far.contenders("wide", query, ("ship", "fetch")) | engines.contenders(query)
        contenders |= far.contenders("rows", query, ("ship", "fetch"), ROWS)
        expected = [table[name].to_numpy() for name in query.result]
        checked = lambda name, answer: check(name, query, answer, expected)  # noqa: B023, E731
        panel.add(width, in_turns(contenders, settings.rounds, settings.quiet, checked))
        far.close()
    figure.notes.append(
        "Read whole and smart addressing: the kernels of `farpool bench operators` over memory of one process, without "
        f"any transport. FV: whole far queries, whose three columns have arrived; {ROWS}: the same of tables of rows, "
        "shipped with smart addressing, fetched whole."
    )
    return figure


def fig8(settings: Settings) -> Figure:
    figure = Figure(
        "fig8",
        "Selection: SELECT * FROM S WHERE S.a < X AND S.b < Y",
        "FV is faster than LCPU and RCPU at 100, 50 and 25 %, by more the larger the table and the fewer rows are "
        "kept; at 100 and 50 % the network is its limit; at 25 % FV-V is twice as fast as FV.",
    )
    percents = (100, 50, 25, 10, 1)
    figure.panels = [Panel(f"{percent} % kept", "table", "bytes", ratios=RATIOS) for percent in percents]
    sizes = sizes_of(settings)
    queried = Queried(settings, sizes, has_rows=True)
    for size in sizes:
        pairs = zip(figure.panels, percents, strict=True)
        queried.measure(size, [(panel, size, Select(percent)) for panel, percent in pairs])
    queried.close()
    return figure


def fig9(settings: Settings) -> Figure:
    figure = Figure(
        "fig9",
        "DISTINCT, and GROUP BY with a sum",
        "FV beats LCPU and RCPU in all three; their times rise steeply with the table, and all rise with the number of "
        "groups. Its hash tables are assumed to have no collisions.",
    )
    distinct = Panel("(a) DISTINCT, 1,000 values", "table", "bytes", ratios=RATIOS)
    group = Panel("(b) GROUP BY, 1,000 groups", "table", "bytes", ratios=RATIOS)
    distinct_by = Panel(f"DISTINCT, {size_text(settings.size)}", "values", "count", ratios=RATIOS)
    group_by = Panel(f"(c) GROUP BY, {size_text(settings.size)}", "groups", "count", ratios=RATIOS)
    figure.panels = [distinct, group, group_by, distinct_by]
    sizes = sizes_of(settings)
    queried = Queried(settings, sizes)
    for size in sizes:
        queries: list = [(distinct, size, Distinct("k1000")), (group, size, Group("k1000"))]
        if size == settings.size:
            for groups in tables.GROUPS:
                queries.append((group_by, groups, Group(f"k{groups}")))
                queries.append((distinct_by, groups, Distinct(f"k{groups}")))
        queried.measure(size, queries)
    queried.close()
    return figure


def groups(settings: Settings) -> Figure:
    """Measures the grouping operators alone: `farpool bench groups` beside engines over the same two columns."""
    figure = Figure(
        "groups",
        "Grouping without a pool: the operators of one thread beside local engines",
        "(section 6.5; what of figure 9 is the operator, and what the pool)",
    )
    rows = settings.size // tables.ROW_BYTES
    pairs = (("farpool, run and merge", "LCPU best"), ("farpool, run and merge", "LCPU DuckDB"))
    panels = {what: Panel(what, "groups", "count", ratios=pairs) for what in ("GROUP BY, sum", "DISTINCT")}
    figure.panels = list(panels.values())
    for count in tables.GROUPS:
        settings.progress(f"{count} groups")
        engines = Engines(tables.table(rows, (f"k{count}", "v")))
        for what, query in (("GROUP BY, sum", Group(f"k{count}")), ("DISTINCT", Distinct(f"k{count}"))):
            contenders = engines.contenders(query)
            expected = canonical(query, contenders["LCPU DuckDB"]()[1])
            checked = lambda name, answer: check(name, query, answer, expected)  # noqa: B023, E731
            times = in_turns(contenders, settings.rounds, settings.quiet, checked)
            panels[what].add(count, times | best_engine(times))
        engines.close()
        command = [program("farpool"), "bench", "groups", "--json", "--rows", str(rows), "--groups", str(count)]
        command += ["--rounds", str(settings.rounds)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for point in found["points"]:
            held = "" if point["bound"] == 1 << 20 else ", holding 64,000"
            seconds = rows * tables.ROW_BYTES / 1e9
            times = {
                f"farpool, run{held}": [seconds / point["run_gb_per_s"]],
                f"farpool, run and merge{held}": [seconds / point["whole_gb_per_s"]],
            }
            panels[point["what"]].add(count, times)
    return figure


def fig10(settings: Settings) -> Figure:
    figure = Figure(
        "fig10",
        "Regular expressions by the length of texts, every other one matches",
        "FV beats LCPU and RCPU (both RE2) at every length; its time depends on the length and not on the pattern.",
    )
    size = min(settings.size, 128 * MIB)
    for pattern in tables.PATTERNS:
        panel = Panel(f"{pattern}, {size_text(size)} of texts", "text", "bytes", ratios=RATIOS)
        figure.panels.append(panel)
        for width in (16, 64, 256, 1024):
            query, rows = Regex(pattern, width), size // width
            settings.progress(f"{pattern}, texts of {width} bytes")
            matrix = tables.texts(width, rows, pattern)
            table = tables.text_table(matrix)
            far = Far(3 * size + NODE_SPARE_BYTES, settings.place)
            far.put("texts", table)
            engines, rcpu = Engines(table), RemoteCpu(matrix, settings.place)
            contenders = far.contenders("texts", query) | engines.contenders(query)
            measure(panel, width, query, contenders, rcpu, rows, settings)
            rcpu.close()
            engines.close()
            far.close()
    return figure


def fig11(settings: Settings) -> Figure:
    figure = Figure(
        "fig11",
        "Decryption beside the data: reading an encrypted table, and selecting from it",
        "FV reads an encrypted table as fast as another one; LCPU and RCPU (AES-128-CTR by Crypto++) are slower by a "
        "factor that grows with the table.",
    )
    key = bytes(range(16))
    pairs = tuple(
        (SHIPPED, name)
        for name in ("LCPU OpenSSL CTR, Polars", "LCPU OpenSSL GCM, Polars", "RCPU", "FV fetch, shm", "plain ship, shm")
    ) + (("FV ship, tcp", "RCPU"), ("FV ship, tcp", "FV fetch, tcp"), ("FV ship, tcp", "plain ship, tcp"))
    queries = [(Decrypted(percent), f"decrypt, {percent} % kept") for percent in (100, 25, 1)]
    figure.panels = [Panel(title if at else "decrypt and read all", "table", "bytes", ratios=pairs)
                     for at, (_, title) in enumerate(queries)]  # fmt: skip
    sizes = sizes_of(settings)
    whole = tables.table(max(sizes) // tables.ROW_BYTES)
    far = Far(4 * sum(sizes) + 2 * NODE_SPARE_BYTES, settings.place)
    rcpu = RemoteCpu(encrypted_rows(tables.rows_of(whole)), settings.place)
    for size in sizes:
        rows = size // tables.ROW_BYTES
        table = whole.slice(0, rows).combine_chunks()
        far.put(f"plain{size}", table)
        far.put(f"encrypted{size}", table, key=key)
        local, engines = EncryptedEngine(table), Engines(table, ("DuckDB",))
        for panel, (query, title) in zip(figure.panels, queries, strict=True):
            settings.progress(f"{title}, {size_text(size)}")
            contenders = (
                far.contenders(f"encrypted{size}", query, key=key)
                | far.contenders(
                    f"encrypted{size}", query, ("ship",), "encrypted answers,", key=key, encrypt_answers=True
                )
                | far.contenders(f"plain{size}", query, ("ship", "fetch"), "plain")
                | local.contenders(query)
            )
            expected = canonical(query, engines.contenders(query)["LCPU DuckDB"]()[1])
            check("RCPU", query, rcpu.client.ask(query.rcpu(rows), save=True)[1], expected)
            checked = lambda name, answer: answer is None or check(name, query, answer, expected)  # noqa: B023, E731
            times = in_turns(contenders | rcpu.contender(query, rows), settings.rounds, settings.quiet, checked)
            panel.add(size, times)
        engines.close()
    rcpu.close()
    far.close()
    figure.notes.append(
        "FV: AES-128-GCM, so that what was changed is found out; RCPU: AES-128-CTR without a tag, as in the paper; "
        "LCPU: both. `plain`: the same table not encrypted. `fetch`: this process decrypts what it has fetched."
    )
    return figure


def fig12(settings: Settings) -> Figure:
    clients = 6
    figure = Figure(
        "fig12",
        "Six clients at once: DISTINCT of 1,000 values",
        "All six are through sooner with FV than with LCPU and RCPU (six MPI processes each), whose processes "
        "disturb each other in caches and memory.",
    )
    pairs = tuple((SHIPPED, name) for name in ("LCPU DuckDB", "LCPU Polars", "RCPU", "FV fetch, shm", "FV ship, tcp"))
    whole = Panel("until all six are through", "table", "bytes", ratios=pairs)
    spread = Panel("slowest / fastest of the six", "table", "bytes", "ratio", "")
    figure.panels = [whole, spread]
    query = Distinct("k1000")
    sizes = steps(min(MIB, settings.size), settings.size)
    table = tables.table(max(sizes) // tables.ROW_BYTES)
    far = Far(2 * sum(sizes) + NODE_SPARE_BYTES, settings.place)
    for size in sizes:
        far.put(f"t{size}", table.slice(0, size // tables.ROW_BYTES).combine_chunks())
    rcpu = RemoteCpu(tables.rows_of(table), settings.place)
    for size in sizes:
        settings.progress(f"six clients, {size_text(size)}")
        rows = size // tables.ROW_BYTES
        expected = canonical(query, table.slice(0, rows).group_by(query.key, use_threads=False).aggregate([]))
        with Together(clients, far, rcpu, f"t{size}", rows, query.key) as together:
            together.check(query, expected)
            times, ratios = together.measure(settings.rounds, settings.quiet)
        whole.add(size, times)
        spread.add(size, ratios)
    rcpu.close()
    far.close()
    figure.notes.append(
        "Local engines have the one column in memory of each process, which is all that a columnar engine reads."
    )
    return figure


FIGURES = {
    "fig6": fig6,
    "fig7": fig7,
    "fig8": fig8,
    "fig9": fig9,
    "groups": groups,
    "fig10": fig10,
    "fig11": fig11,
    "fig12": fig12,
}
