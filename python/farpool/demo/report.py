"""What the demonstration says at its end. Every sentence about speed is computed from the runs."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from farpool.demo.queries import Query
from farpool.demo.run import DISK, ENOUGH, FAR_SHM, FAR_TCP, MODES, NO_SPILL, Mode, Outcome


@dataclass
class QueryResult:
    """All runs of one query."""

    query: Query
    limit_bytes: int
    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)  # by mode

    def seconds(self, mode: Mode) -> float | None:
        """Median over the repeats; None unless all of them finished."""
        outcomes = self.outcomes[mode.name]
        if any(outcome.error for outcome in outcomes):
            return None
        return median(outcome.seconds for outcome in outcomes)

    def ratio(self, mode: Mode, base: Mode) -> float | None:
        seconds, base_seconds = self.seconds(mode), self.seconds(base)
        return seconds / base_seconds if seconds and base_seconds else None

    def spill_written_bytes(self, mode: Mode) -> float:
        return median(outcome.spill_written_bytes for outcome in self.outcomes[mode.name])

    def problems(self) -> list[str]:
        """Why the answers are not all the same, in words."""
        problems = []
        answers: dict[tuple, list[str]] = {}
        for mode in MODES.values():
            for outcome in self.outcomes[mode.name]:
                if not outcome.error:
                    names = answers.setdefault((outcome.rows, tuple(map(tuple, outcome.columns))), [])
                    names.append(mode.title)
                elif mode is not NO_SPILL or not outcome.is_out_of_memory:
                    problems.append(f"{self.query.name}, {mode.title}: {outcome.error}")
        if len(answers) > 1:
            groups = " | ".join(", ".join(dict.fromkeys(names)) for names in answers.values())
            problems.append(f"{self.query.name}: the answers differ between {groups}")
        return problems

    def leftovers(self) -> list[str]:
        return [
            f"{self.query.name}, {MODES[name].title}: {outcome.files_left} spill files were left"
            for name, outcomes in self.outcomes.items()
            for outcome in outcomes
            if outcome.files_left
        ]


def print_report(console: Console, results: Sequence[QueryResult], setting: str, spill_directory_text: str) -> None:
    console.print(_table(results))
    console.print(
        "Seconds from the start of a query to its last row; spilled: bytes written in that time (far: over tcp). "
        f"Local disk: {spill_directory_text}; its writes may rest in the page cache.",
        style="dim",
    )
    console.print()
    console.print(f"[bold]Where we lose.[/bold] {where_we_lose(results)}", highlight=False)
    console.print()
    console.print(f"{setting}; {machine_line()}", highlight=False)


def where_we_lose(results: Sequence[QueryResult]) -> str:
    sentences = []
    for base in (DISK, ENOUGH):
        for mode in (FAR_TCP, FAR_SHM):
            ratios = [(r.query.name, ratio) for r in results if (ratio := r.ratio(mode, base))]
            slower = [(name, ratio) for name, ratio in ratios if ratio > 1]
            faster = [(name, ratio) for name, ratio in ratios if ratio <= 1]
            if slower:
                sentences.append(f"{mode.title} takes longer than {base.title}: {_times(slower)}.")
            if faster:
                sentences.append(f"{mode.title} takes no longer than {base.title}: {_times(faster)}.")
    unspilled = [
        r.query.name
        for r in results
        for mode in (DISK, FAR_TCP, FAR_SHM)
        if r.seconds(mode) is not None and r.spill_written_bytes(mode) == 0
    ]
    if unspilled:
        sentences.append(
            f"Nothing spilled in some mode of {', '.join(dict.fromkeys(unspilled))}: its times say nothing."
        )
    fitting = [r.query.name for r in results if r.seconds(NO_SPILL) is not None]
    if fitting:
        sentences.append(f"{', '.join(fitting)} would have fitted in its limit without spill.")
    return " ".join(sentences) or "Nowhere in these runs."


def machine_line() -> str:
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    ram_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    cores = len(os.sched_getaffinity(0))
    return f"{cpu}, {cores} cores, {ram_gib:.0f} GiB RAM, Linux {platform.release()}; loopback, not a network"


def file_system_of(path: Path) -> str:
    """The device and kind of file system that `path` lies on, such as '/dev/vda (ext4)'."""
    path = path.resolve()
    best = ("?", "?", "")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        device, mount_point, kind, *_ = line.split()
        if path.is_relative_to(mount_point) and len(mount_point) >= len(best[2]):
            best = (device, kind, mount_point)
    return f"{best[0]} ({best[1]})"


def as_json(results: Sequence[QueryResult]) -> list[dict]:
    return [
        {
            "query": result.query.name,
            "title": result.query.title,
            "sql": result.query.sql.strip(),
            "limit_bytes": result.limit_bytes,
            "median_seconds": {mode.name: result.seconds(mode) for mode in MODES.values()},
            "ratios": {
                f"{mode.name}/{base.name}": result.ratio(mode, base)
                for mode in (FAR_TCP, FAR_SHM)
                for base in (DISK, ENOUGH)
            },
            "runs": {name: [vars(outcome) for outcome in runs] for name, runs in result.outcomes.items()},
        }
        for result in results
    ]


def _table(results: Sequence[QueryResult]) -> Table:
    table = Table(title="DuckDB queries that do not fit in their memory limit", title_justify="left")
    table.add_column("query")
    table.add_column("limit", justify="right")
    for mode in MODES.values():
        table.add_column(mode.title, justify="right")
    table.add_column("spilled\ndisk / far", justify="right")
    table.add_column("far / disk\ntcp, shm", justify="right")
    table.add_column("far / enough\ntcp, shm", justify="right")
    table.add_column("same\nrows", justify="center")
    for result in results:
        table.add_row(
            result.query.title,
            _size(result.limit_bytes),
            *(_cell(result, mode) for mode in MODES.values()),
            f"{_size(result.spill_written_bytes(DISK))} / {_size(result.spill_written_bytes(FAR_TCP))}",
            ", ".join(_ratio(result.ratio(mode, DISK)) for mode in (FAR_TCP, FAR_SHM)),
            ", ".join(_ratio(result.ratio(mode, ENOUGH)) for mode in (FAR_TCP, FAR_SHM)),
            "[red]no[/red]" if result.problems() else "yes",
        )
    return table


def _cell(result: QueryResult, mode: Mode) -> str:
    seconds = result.seconds(mode)
    if seconds is not None:
        return f"{seconds:.2f} s"
    errors = [outcome for outcome in result.outcomes[mode.name] if outcome.error]
    return "out of memory" if all(outcome.is_out_of_memory for outcome in errors) else "[red]error[/red]"


def _times(pairs: Sequence[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {ratio:.2f}x" for name, ratio in pairs)


def _ratio(ratio: float | None) -> str:
    return f"{ratio:.2f}" if ratio else "-"


def _size(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
