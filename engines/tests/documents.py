"""The code blocks of a document, and the program that runs some of them as a reader would: in order, in one terminal.

    documents.py FILE LINE          runs the run that begins at that line of the document

Blocks of `sh` are run by one bash, those of `python` in one interpreter, those of `sql` by `farpool sql`; `text` is not
an example. They share a folder, in which are `sdk` and `examples` of the repository and nothing else at first, and a
network of their own, in which ports and addresses are as the document says: 127.0.0.0/8, and 10.0.0.0/8 for other
machines. Where no block starts a broker, a pool with the nodes n1 and n2 is there. A comment before a block says what
else is true of it:

    <!-- example: fresh -->             a new run begins: folder, network, pool and variables are new
    <!-- example: shown: WHY -->        is not run
    <!-- example: file NAME -->         is stored as that file for the blocks that follow
    <!-- example: in PATH -->           stands in that file of the repository as well, which has tests of its own
    <!-- example: before: LANGUAGE
    CODE
    -->                                 is run before the block, and readers do not see it

Never here: a change to the code of a block. What tests do otherwise is in `WRAPPER`.
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
# How long one block may take, and the end of what blocks have started.
BLOCK_SECONDS = 300
END_SECONDS = 60
MARK = re.compile(r"^<!-- example: (.*?)\s*-->$", re.DOTALL)
PIECE = re.compile(
    r"^(?P<mark><!-- example:.*?-->)$|^(?P<fence>```+)(?P<language>.*?)\n(?P<code>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
SERVER = re.compile(r"\b(farpool (broker|node|sql worker|mount \w+)|farpool\.duckdb_worker)\b.*[^&]&\s*(#.*)?$")

# Leases last longer than a busy machine stops a process, and nodes are small.
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

# Blocks are read from files, so that commands do not read the next block. `ready` waits for the line that a server
# prints when it serves: a reader sees it before typing on.
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
    line: int  # of the document, from 1: that of its first line of code
    language: str
    code: str
    shown: str | None = None  # why it is not run
    file: str | None = None
    source: str | None = None  # the file in which it stands as well
    is_fresh: bool = False

    @property
    def place(self) -> str:
        return f"{self.document}:{self.line}"

    @property
    def is_run(self) -> bool:
        return self.language in RUN_BY and self.shown is None and self.file is None and self.source is None


def blocks_of(document: str, text: str) -> list[Block]:
    """Returns the examples of a document: its code blocks and what comments have run before them."""
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
    """Returns what follows each other, without blocks that are neither run nor stored."""
    runs: list[list[Block]] = [[]]
    for block in blocks:
        if block.is_fresh:
            runs.append([])
        if block.is_run or block.file:
            runs[-1].append(block)
    return [run for run in runs if any(block.is_run for block in run)]


def stands_in(block: Block, source: str) -> bool:
    """Reports whether the lines of a block stand in a row in a source, behind comment signs or not."""

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
    """Returns a script that waits for each server which it starts."""
    lines, begun = [], ""
    for line in code.splitlines():
        lines.append(line)
        begun += line.removesuffix("\\")
        if not line.endswith("\\"):
            if SERVER.search(begun):
                # Keeps the line, so that errors name lines of the document.
                lines[-1] = re.sub(r"\s*(#.*)?$", "", line) + f" ready {shlex.quote(begun.strip()[:100])}"
            begun = ""
    return "\n".join(lines) + "\n"


class Terminal:
    """One bash, which is given blocks one after another."""

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
        """Runs a script, and fails if a command of it does."""
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
            pass  # It has ended, which the pipe says as well.


def patient(connect: Callable) -> Callable:
    """Returns `farpool.connect` with a timeout for busy machines."""

    @functools.wraps(connect)
    def connect_patiently(*arguments: object, timeout: str = f"{BLOCK_SECONDS}s", **options: object) -> object:
        return connect(*arguments, timeout=timeout, **options)

    return connect_patiently


def run(blocks: list[Block], folder: Path) -> None:
    """Runs blocks that follow each other."""
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
    # Proxies are out of reach.
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
                # Python waits in native code as well, where no signal handler is run: this ends the process.
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
