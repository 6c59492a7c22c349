"""The table and the sentences at the end of the demonstration. Statements about speed are computed from the runs."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table

from farpool.demo.pod import VOLUME_IOPS, VOLUME_MB_PER_SECOND
from farpool.demo.queries import Query
from farpool.demo.run import (
    CLOUD_VOLUME,
    DISK,
    ENOUGH,
    FAR_SHM,
    FAR_TCP,
    MODES,
    NO_SPILL,
    SMALL_VOLUME,
    Mode,
    Outcome,
)

WIDTH = 100
CELLS = {"memory": "memory full", "volume": "volume full", "other": "[red]error[/red]"}


@dataclass(frozen=True)
class Setting:
    """Conditions of the runs."""

    scale: float
    threads: int
    repeat: int
    node_memory_bytes: int
    pod_margin_bytes: int  # bytes of a pod's memory beyond DuckDB's limit
    why_no_pods: str  # empty if queries ran in pods
    why_no_cloud_volume: str  # empty if there was one
    cloud_volume: str  # how the volume was made
    spill_folder: str


@dataclass
class QueryResult:
    """All runs of one query."""

    query: Query
    limit_bytes: int
    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)  # by mode

    def seconds(self, mode: Mode) -> float | None:
        """Returns the median time of the repeats. `None` unless all of them finished."""
        outcomes = self.outcomes.get(mode.name, [])
        if not outcomes or any(outcome.error for outcome in outcomes):
            return None
        return median(outcome.seconds for outcome in outcomes)

    def ratio(self, mode: Mode, base: Mode) -> float | None:
        seconds, base_seconds = self.seconds(mode), self.seconds(base)
        return seconds / base_seconds if seconds and base_seconds else None

    def spill_written_bytes(self, mode: Mode) -> float:
        return median(outcome.spill_written_bytes for outcome in self.outcomes[mode.name])

    def problems(self) -> list[str]:
        """Returns texts that say which answers differ, and which runs failed that must not."""
        problems = []
        answers: dict[tuple, list[str]] = {}
        for name, outcomes in self.outcomes.items():
            mode = MODES[name]
            for outcome in outcomes:
                if not outcome.error:
                    names = answers.setdefault((outcome.rows, tuple(map(tuple, outcome.columns))), [])
                    names.append(mode.title)
                elif not mode.must_fail or outcome.failed_for == "other":
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


def print_report(console: Console, results: Sequence[QueryResult], setting: Setting) -> None:
    console.print(_table(results))
    for line in [_legend(setting), "", *sentences(results, setting), ""]:
        console.print(line, highlight=False)
    console.print(
        f"TPC-H scale {setting.scale:g}, DuckDB with {setting.threads} threads, 2 nodes of "
        f"{setting.node_memory_bytes / (1 << 30):.2f} GiB, medians of {setting.repeat}; {machine_line()}",
        highlight=False,
    )


def sentences(results: Sequence[QueryResult], setting: Setting) -> list[str]:
    """Returns sentences that say where far memory was faster, where it was slower, and what was simulated."""
    won, lost = [], []
    for base in (CLOUD_VOLUME, DISK, ENOUGH):
        for kind, is_it in ((won, lambda ratio: ratio < 1), (lost, lambda ratio: ratio >= 1)):
            said = []
            for mode in (FAR_TCP, FAR_SHM):
                ratios = [(result.query.name, ratio) for result in results if (ratio := result.ratio(mode, base))]
                some = [(name, ratio) for name, ratio in ratios if is_it(ratio)]
                if some:
                    which = "" if len(some) == len(ratios) else f" ({', '.join(name for name, _ in some)})"
                    said.append(f"{_range(some)} over {mode.transport}{which}")
            if said:
                kind.append(f"of the time of {base.title} it took {' and '.join(said)}")
    died = [
        result.query.name
        for result in results
        if result.seconds(SMALL_VOLUME) is None and result.seconds(FAR_TCP) is not None
    ]
    if died:
        won.insert(0, f"it completed {_count(died, results)} that died on a small volume")
    simulated = ["the small volume is DuckDB's max_temp_directory_size"]
    if not setting.why_no_cloud_volume:
        simulated.append(f"the cloud volume is {setting.cloud_volume}")
    if not setting.why_no_pods:
        simulated.append("the pods are control groups of this machine")
    simulated.append("broker, nodes and DuckDB share one machine, so that tcp crossed no network")
    return [
        f"[bold]Far memory won:[/bold] {'; '.join(won) or 'nowhere in these runs'}.",
        f"[bold]Far memory lost:[/bold] {'; '.join(lost) or 'nowhere in these runs'}.",
        f"[bold]Simulated:[/bold] {'; '.join(simulated)}.",
        *_remarks(results),
    ]


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
    return f"{cpu}, {cores} cores, {ram_gib:.0f} GiB RAM, Linux {platform.release()}"


def file_system_of(path: Path) -> str:
    """Returns the device and type of the file system that stores `path`, such as '/dev/vda (ext4)'."""
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
            "median_seconds": {name: result.seconds(MODES[name]) for name in result.outcomes},
            "ratios": {
                f"{mode.name}/{base.name}": result.ratio(mode, base)
                for mode in (FAR_TCP, FAR_SHM)
                for base in (CLOUD_VOLUME, DISK, ENOUGH)
            },
            "runs": {name: [vars(outcome) for outcome in runs] for name, runs in result.outcomes.items()},
        }
        for result in results
    ]


def _table(results: Sequence[QueryResult]) -> Table:
    table = Table(title="DuckDB queries that do not fit in their memory", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("")
    for result in results:
        table.add_column(result.query.name, justify="right")
    table.add_row("memory limit", *(_size(result.limit_bytes) for result in results))
    table.add_row("spilled to disk", *(_size(result.spill_written_bytes(DISK)) for result in results), end_section=True)
    for mode in MODES.values():
        table.add_row(mode.title, *(_cell(result, mode) for result in results))
    table.add_section()
    table.add_row("same rows", *("[red]no[/red]" if result.problems() else "yes" for result in results))
    return table


def _legend(setting: Setting) -> str:
    lines = [
        "Times run from the start of a query to its last row. Memory full: DuckDB failed at its limit. Volume full: "
        "the spill did not fit in the volume, which has room for a tenth of it. Cloud volume: "
        f"{VOLUME_IOPS:,} IOPS, {VOLUME_MB_PER_SECOND} MB/s. Far memory: two nodes on this machine, nothing on disk. "
        f"This machine's disk: {setting.spill_folder}.",
        f"Each query ran in a pod of its memory limit and {setting.pod_margin_bytes >> 20} MiB, which count the page "
        "cache too; with enough memory, without a limit."
        if not setting.why_no_pods
        else f"Not in pods: {setting.why_no_pods}. DuckDB's memory_limit alone was set; spills stayed in page cache.",
    ]
    if setting.why_no_cloud_volume:
        lines.append(f"No cloud volume: {setting.why_no_cloud_volume}.")
    return " ".join(lines)


def _remarks(results: Sequence[QueryResult]) -> list[str]:
    spilling = [mode for mode in MODES.values() if mode.spills_to != "nothing"]
    unspilled = [
        result.query.name
        for result in results
        for mode in spilling
        if result.seconds(mode) is not None and result.spill_written_bytes(mode) == 0
    ]
    fitting = [result.query.name for result in results if result.seconds(NO_SPILL) is not None]
    remarks = []
    if unspilled:
        remarks.append(f"In some modes {', '.join(dict.fromkeys(unspilled))} did not spill: their times say little.")
    if fitting:
        remarks.append(f"{', '.join(fitting)} fitted in its limit without spill.")
    return remarks


def _cell(result: QueryResult, mode: Mode) -> str:
    seconds = result.seconds(mode)
    if seconds is not None:
        return f"{seconds:.2f} s"
    reasons = [outcome.failed_for for outcome in result.outcomes.get(mode.name, []) if outcome.error]
    return CELLS[reasons[0]] if reasons else "-"


def _range(pairs: Sequence[tuple[str, float]]) -> str:
    ratios = sorted(ratio for _, ratio in pairs)
    least, most = f"{ratios[0]:.2f}", f"{ratios[-1]:.2f}"
    return least if least == most else f"{least} to {most}"


def _count(some: Sequence[str], results: Sequence[QueryResult]) -> str:
    if len(some) == len(results) > 1:
        return f"all {len(results)} queries"
    return f"the {'query' if len(some) == 1 else 'queries'} {', '.join(some)}"


def _size(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
