"""Finds the code blocks of a document and runs them as a reader would: in order, in one terminal.

    documents.py FILE LINE          runs the blocks from that line of the document on, up to the next mark `fresh`

Such a sequence of blocks is called a run. Blocks of `sh` are run by one bash, those of `python` in one interpreter, and
those of `sql` by `farpool sql`. Blocks of `text` are not examples. The blocks of a run share a folder, which contains
only `sdk` and `examples` of the repository at first. They also share a network of their own, so that they can use the
addresses of the document: 127.0.0.0/8, and 10.0.0.0/8 for other machines. If no block of a run starts a broker, the run
has a pool with the nodes n1 and n2. A comment before a block is a mark, with a further instruction:

    <!-- example: fresh -->             a new run begins at the block: folder, network, pool and variables are new
    <!-- example: shown: WHY -->        the block is not run
    <!-- example: file NAME -->         the block is stored as that file for the blocks that follow
    <!-- example: in PATH -->           the block is a copy from that file of the repository, which has its own tests
    <!-- example: before: LANGUAGE
    CODE
    -->                                 CODE is run before the block, and readers do not see it

Never here: a change to the code of a block. Tests change only arguments of the command `farpool`, in `WRAPPER`.
"""

from __future__ import annotations

import faulthandler
import fcntl
import functools
import gc
import os
import re
import select
import shlex
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Files of the repository that a run finds in its folder.
CLONE = ("sdk", "examples")
RUN_BY = ("sh", "python", "sql")
# Seconds within which a block must end, and within which the processes that blocks have started must end.
BLOCK_SECONDS = 300
END_SECONDS = 60
MARK = re.compile(r"^<!-- example: (.*?)\s*-->$", re.DOTALL)
PIECE = re.compile(
    r"^(?P<mark><!-- example:.*?-->)$|^(?P<fence>```+)(?P<language>.*?)\n(?P<code>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
SERVER = re.compile(r"\b(farpool (broker|node|sql worker|mount \w+)|farpool\.duckdb_worker)\b.*[^&]&\s*(#.*)?$")

# Program that stands for `farpool` in examples. It makes leases longer than a busy machine stops a process, and nodes
# small.
WRAPPER = """#!/bin/bash
given=("$@")
case "$1 $*" in
  broker*--ttl*) ;;
  broker*) given+=(--ttl 30s) ;;
  node*) for at in "${!given[@]}"; do
    [ "${given[at]}" != --memory ] || given[at + 1]=512MiB
  done ;;
esac
exec "$FARPOOL_BIN" "${given[@]}"
"""

# First script of each bash. Blocks are then read from files and not from standard input, so that a command of one block
# cannot read the next one. `ready` waits for the line that a server prints when it serves, as a reader waits before
# typing the next command.
PRELUDE = """
trap 'echo "line $LINENO: exit code $?" >&2' ERR
servers=0
ready() {
  local process=$! tries
  servers=$((servers + 1))
  for ((tries = 0; tries < BLOCK_SECONDS * 10; tries++)); do
    [ "$(grep -c '^ready ' "$LOG")" -lt "$servers" ] || return 0
    kill -0 "$process" 2>/dev/null || break
    sleep 0.1
  done
  echo "no line 'ready ..' from a server that has ended, or within $BLOCK_SECONDS s: $1" >&2
  return 1
}
end_all() {
  local process code
  for process in $(jobs -p | tac); do
    kill "$process" 2>/dev/null || true
    code=0
    wait "$process" || code=$?
    case $code in 0 | 137 | 143) ;; *) echo "process $process ended with exit code $code" >&2; return 1 ;; esac
  done
}
"""

POOL = """
farpool broker --listen 127.0.0.1:7700 &
farpool node --name n1 --memory 512MiB --broker farpool://127.0.0.1:7700 &
farpool node --name n2 --memory 512MiB --broker farpool://127.0.0.1:7700 &
"""


class Wrong(Exception):
    """Fault of a document, or failure of an example."""


@dataclass
class Block:
    document: str
    line: int  # line of the document, from 1, in which the code begins
    language: str
    code: str
    shown: str | None = None  # reason why the block is not run; None if it is run
    file: str | None = None  # name of the file as which the block is stored, instead of being run
    source: str | None = None  # file of the repository from which the block is copied
    is_fresh: bool = False

    @property
    def place(self) -> str:
        return f"{self.document}:{self.line}"

    @property
    def is_run(self) -> bool:
        return self.language in RUN_BY and self.shown is None and self.file is None and self.source is None


def blocks_of(document: str, text: str) -> list[Block]:
    """Returns the examples of a document: its code blocks, and the code of `before` marks as blocks of its own."""
    if indented := re.search(r"^[ \t]+```.*", text, re.MULTILINE):
        raise Wrong(f"{document}: a block that is indented is not found: {indented[0]}")
    found: list[Block] = []
    marks: list[tuple[int, str]] = []
    is_fresh = False
    for piece in PIECE.finditer(text):
        line = text.count("\n", 0, piece.start()) + 1
        if piece["mark"]:
            marks.append((line, MARK.fullmatch(piece["mark"])[1]))
            continue
        language = piece["language"].strip()
        block = Block(document, line + 1, language, piece["code"])
        for at, mark in marks:
            word, _, rest = mark.partition(" ")
            match word:
                case "fresh" if not rest:
                    is_fresh = True
                case "shown:" if rest:
                    block.shown = rest
                case "file" if rest and "/" not in rest:
                    block.file = rest
                case "in" if (ROOT / rest).is_file():
                    block.source = rest
                case "before:" if rest.partition("\n")[0] in RUN_BY:
                    kind, _, code = rest.partition("\n")
                    found.append(Block(document, at + 1, kind, code + "\n", is_fresh=is_fresh))
                    is_fresh = False
                case _:
                    raise Wrong(f"{document}:{at}: no such mark, or its file is not there: {mark!r}")
        marks = []
        if language == "text":
            continue
        block.is_fresh, is_fresh = is_fresh, False
        if not language:
            raise Wrong(f"{document}:{line}: the block has no language; what is no example is `text`")
        if not (block.is_run or block.shown or block.file or block.source):
            raise Wrong(f"{block.place}: `{language}` is not run: say `file NAME`, `in PATH` or `shown: WHY` before it")
        found.append(block)
    if marks:
        raise Wrong(f"{document}:{marks[0][0]}: no block follows the mark {marks[0][1]!r}")
    return found


def runs_of(blocks: list[Block]) -> list[list[Block]]:
    """Divides blocks into runs at the marks `fresh`. Leaves out blocks that are neither run nor stored as a file."""
    runs: list[list[Block]] = [[]]
    for block in blocks:
        if block.is_fresh:
            runs.append([])
        if block.is_run or block.file:
            runs[-1].append(block)
    return [run for run in runs if any(block.is_run for block in run)]


def stands_in(block: Block, source: str) -> bool:
    """Reports whether the lines of a block follow each other in a source file, possibly inside of a comment."""

    def bare(text: str) -> str:
        return "\n".join(re.sub(r"^\s*(//[/!]|[#*] )?\s*", "", line).rstrip() for line in text.strip().splitlines())

    return bare(block.code) in bare(source)


def make_network() -> None:
    """Gives the loopback device of this network namespace its addresses."""
    set_address, set_flags, up_and_running = 0x8916, 0x8914, 0x41
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for device, address in ((b"lo", "127.0.0.1"), (b"lo:1", "10.0.0.1")):
            request = struct.pack("16sH2x4s8x", device, socket.AF_INET, socket.inet_aton(address))
            fcntl.ioctl(any_socket, set_address, request)
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sH22x", b"lo", up_and_running))


def with_waits(code: str) -> str:
    """Returns the script with a wait for the `ready` line after each command that starts a server."""
    lines, begun = [], ""
    for line in code.splitlines():
        lines.append(line)
        begun += line.removesuffix("\\")
        if not line.endswith("\\"):
            if SERVER.search(begun):
                # The wait is put into the same line, so that numbers of lines in errors are those of the document.
                lines[-1] = re.sub(r"\s*(#.*)?$", "", line) + f" ready {shlex.quote(begun.strip()[:100])}"
            begun = ""
    return "\n".join(lines) + "\n"


class Terminal:
    """One bash that runs the blocks of a run one after another."""

    def __init__(self, log: Path):
        environment = {**os.environ, "LOG": str(log), "BLOCK_SECONDS": str(BLOCK_SECONDS)}
        reader, self._done = os.pipe()
        self._reader = reader
        with log.open("ab") as out:
            self._bash = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-s"],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                env=environment,
                pass_fds=[self._done],
            )
        os.close(self._done)
        self._scripts = Path(tempfile.mkdtemp(dir=log.parent))
        self.run("the beginning", PRELUDE, BLOCK_SECONDS)

    def run(self, place: str, code: str, seconds: float, line: int = 1) -> None:
        """Runs a script. Raises `Wrong` if one of its commands fails."""
        script = self._scripts / "block.sh"
        script.write_text("\n" * (line - 1) + code)
        self._say(f". {script} </dev/null {self._done}>&-\nprintf . >&{self._done}\n")
        deadline = time.monotonic() + seconds
        # A program that a block has started may outlive bash and hold the pipe open.
        while not select.select([self._reader], [], [], 0.2)[0]:
            if self._bash.poll() is not None:
                raise Wrong(f"{place}: failed:\n{code}")
            if time.monotonic() > deadline:
                raise Wrong(f"{place}: did not end within {seconds} s:\n{code}")
        if os.read(self._reader, 1) != b".":
            raise Wrong(f"{place}: failed:\n{code}")

    def end(self) -> None:
        self.run("the end of what the blocks have started", "end_all\n", END_SECONDS)
        self._bash.stdin.close()
        self._bash.wait(END_SECONDS)

    def _say(self, words: str) -> None:
        try:
            self._bash.stdin.write(words.encode())
            self._bash.stdin.flush()
        except BrokenPipeError:
            pass  # Bash has ended. `run` notices that too, and raises the error.


def patient(connect: Callable) -> Callable:
    """Returns `farpool.connect` with a timeout for busy machines."""

    @functools.wraps(connect)
    def connect_patiently(*arguments: object, timeout: str = f"{BLOCK_SECONDS}s", **options: object) -> object:
        return connect(*arguments, timeout=timeout, **options)

    return connect_patiently


def run(blocks: list[Block], folder: Path) -> None:
    """Runs the blocks of one run in order, in a new folder `folder/work`."""
    import farpool

    farpool.connect = patient(farpool.connect)
    programs, log = folder / "programs", folder / "log"
    programs.mkdir()
    (programs / "farpool").write_text(WRAPPER)
    (programs / "farpool").chmod(0o755)
    (folder / "tmp").mkdir()
    found = (programs, Path(os.environ["FARPOOL_BIN"]).parent, Path(sys.executable).parent, os.environ["PATH"])
    os.environ |= {"PATH": ":".join(map(str, found)), "TMPDIR": str(folder / "tmp")}
    tempfile.tempdir = None
    # Proxies cannot be reached from the network of the run.
    for name in [name for name in os.environ if name == "FARPOOL_SQLITE" or name.lower().endswith("_proxy")]:
        del os.environ[name]
    work = folder / "work"
    work.mkdir()
    for name in CLONE:
        (work / name).symlink_to(ROOT / name)
    os.chdir(work)
    names: dict[str, object] = {"__name__": "__main__"}
    try:
        terminal = Terminal(log)
        if not any("farpool broker" in block.code for block in blocks if block.is_run):
            terminal.run("the pool", with_waits(POOL), BLOCK_SECONDS)
        for block in blocks:
            print(f"{block.place}: {f'is stored as {block.file}' if block.file else block.language}", flush=True)
            if block.file:
                Path(block.file).write_text(block.code)
            elif block.language == "python":
                # Ends this process if the block takes too long, even if it waits in native code, where no signal
                # handler runs.
                faulthandler.dump_traceback_later(BLOCK_SECONDS, exit=True)
                exec(compile("\n" * (block.line - 1) + block.code, ROOT / block.document, "exec"), names)
                faulthandler.cancel_dump_traceback_later()
            elif block.language == "sql":
                Path(folder, "block.sql").write_text(block.code)
                terminal.run(block.place, f"farpool sql --quiet --file {folder}/block.sql\n", BLOCK_SECONDS)
            else:
                terminal.run(block.place, with_waits(block.code), BLOCK_SECONDS, block.line)
        names.clear()
        gc.collect()
        terminal.end()
    finally:
        print(textwrap.indent(log.read_text(errors="replace")[-8000:] if log.exists() else "", "    "), flush=True)


def main(document: str, line: str) -> int:
    blocks = runs_of(blocks_of(document, (ROOT / document).read_text()))
    (chosen,) = (run for run in blocks if run[0].line == int(line))
    make_network()
    with tempfile.TemporaryDirectory(prefix="farpool-documents-", ignore_cleanup_errors=True) as folder:
        try:
            run(chosen, Path(folder))
        except Wrong as error:
            print(error, flush=True)
            return 1
        finally:
            os.chdir("/")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
