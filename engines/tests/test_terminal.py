"""Programs in a real terminal: the shell of `farpool sql`, `farpool top`, tables and colours."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farpool.demo.cluster import Cluster

PATIENCE_SECONDS = 300
PROMPT = "farpool> "
# Sequences with which a line editor moves the cursor and clears lines, and with which programs set colours.
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A program whose standard streams are a terminal."""

    def __init__(self, command: list[str], environment: dict[str, str] | None = None, columns: int = 120) -> None:
        self.process, self.stream = pty.fork()
        if self.process == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
            environment = environment or {}
            os.execvpe(command[0], command, {**os.environ, "TERM": "xterm", **environment})
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.stream, text.encode())

    def until(self, part: str) -> str:
        """Waits until the program has written `part`. Returns what it wrote from the last such part to this one."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while part not in (plain := ESCAPES.sub("", self.seen)):
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self.stream], [], [], left)[0], f"no {part!r} in {plain!r}"
            assert self._read(), f"ended without {part!r}, {self._how_it_ended()}: {plain!r}"
        before, self.seen = plain.split(part, 1)
        return before

    def has_written(self, part: str, within_seconds: float) -> bool:
        """Waits for `part` for some time. Reports whether it has come; nothing is taken from what was written."""
        deadline = time.monotonic() + within_seconds
        while part not in self.seen and (left := deadline - time.monotonic()) > 0:
            if select.select([self.stream], [], [], left)[0]:
                assert self._read(), f"ended without {part!r}, {self._how_it_ended()}: {self.seen!r}"
        return part in self.seen

    def enter(self, line: str) -> str:
        """Enters a line. Returns what was written until the next prompt, without the echo of the line."""
        self.type(line + "\r")
        # The line editor echoes each key behind a prompt of its own, so the end of the echo is the line's end.
        self.until(line + "\r\n")
        return self.until(PROMPT)

    def end(self) -> tuple[int, str]:
        """Waits until the program has ended. Returns its exit code and all that it wrote since the last wait."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while select.select([self.stream], [], [], max(0, deadline - time.monotonic()))[0] and self._read():
            pass
        return self._how_it_ended(), self.seen

    def _read(self) -> bool:
        """Reads what the program has written. Returns False if it has ended."""
        try:
            self.seen += os.read(self.stream, 65_536).decode()
        except OSError:
            # Linux says so when the last process has closed the terminal.
            return False
        return True

    def _how_it_ended(self) -> int:
        """Waits until the program has ended. Returns its exit code, or the negative number of the signal."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (ended := os.waitpid(self.process, os.WNOHANG))[0] == 0:
            assert time.monotonic() < deadline, f"{self.process} did not end: {self.seen!r}"
            time.sleep(0.01)
        return os.waitstatus_to_exitcode(ended[1])

    def kill(self) -> None:
        try:
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(self.stream)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # The node keeps its memory, however little the other tests of this machine leave.
    with Cluster(os.environ["FARPOOL_BIN"], 256 << 20, node_count=1, node_arguments=("--no-reserve",)) as cluster:
        yield cluster
        assert cluster.what_is_left() + cluster.stop() == []


@pytest.fixture
def shell(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[[], Terminal]]:
    """Starts shells, which share a home."""
    shells = []

    def start() -> Terminal:
        command = [os.environ["FARPOOL_SQL_BIN"], "--pool", cluster.url]
        shells.append(Terminal(command, {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}))
        shells[-1].until(PROMPT)
        return shells[-1]

    yield start
    for one in shells:
        one.kill()


@pytest.mark.parametrize("habit", ["\\?", "\\h", "help", ".help"])
def test_help_is_shown_without_a_semicolon(shell, habit):
    assert "list tables" in shell().enter(habit)


def test_tables_and_their_columns_are_listed(shell):
    terminal = shell()
    created = terminal.enter("CREATE TABLE shell_words AS SELECT 'word' AS word, 7 AS places;")
    for habit in ["\\d", ".tables"]:
        assert "shell_words" in terminal.enter(habit), created
    for habit in ["\\d shell_words", ".schema shell_words"]:
        answer = terminal.enter(habit)
        assert "word" in answer and "Int64" in answer
    assert "shell_w0rds" in terminal.enter("\\d shell_w0rds")
    terminal.enter("DROP TABLE shell_words;")


def test_timing_is_switched(shell):
    terminal = shell()
    assert "1 row in " in terminal.enter("SELECT 1;")
    assert "Timing is off." in terminal.enter("\\timing")
    assert "1 row in " not in terminal.enter("SELECT 1;")
    assert "Timing is on." in terminal.enter("\\timing on")
    assert "1 row in " in terminal.enter("SELECT 1;")


def test_unknown_command_is_refused_at_once(shell):
    assert "not a command of this shell" in shell().enter("\\frobnicate")


def test_statement_may_have_many_lines(shell):
    terminal = shell()
    terminal.type("SELECT 20\r")
    terminal.until("...> ")
    assert "22" in terminal.enter("+ 2;")
    terminal.type("SELECT 1\r")
    terminal.until("...> ")
    terminal.type("\x03")
    terminal.until(PROMPT)
    assert "23" in terminal.enter("SELECT 22 + 1;")


@pytest.mark.parametrize("earlier", [[], ["SELECT 1;"]], ids=["first statement", "second statement"])
@pytest.mark.parametrize("seconds", [0.001, 0.1])
def test_statement_is_cancelled_by_ctrl_c_and_the_shell_continues(shell, earlier, seconds):
    for _ in range(5):
        terminal = shell()
        for statement in earlier:
            terminal.enter(statement)
        terminal.type("SELECT count(*) FROM generate_series(1, 1000000000000);\r")
        terminal.until("1000000000000);\r\n")
        # Ctrl-C is a key and no signal until the editor has given the terminal back. It discards what has been typed
        # behind it and, as a signal, what has not been shown yet, so the text "interrupted" may be missing.
        repeat("\x03", PROMPT, terminal, seconds)
        repeat("SELECT 22 + 1;\r", "23", terminal, 1)


def repeat(text: str, wanted: str, terminal: Terminal, seconds: float) -> None:
    """Types `text` every so many seconds until `wanted` is written."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    terminal.type(text)
    while not terminal.has_written(wanted, seconds):
        assert time.monotonic() < deadline, f"no {wanted!r} after {text!r}: {terminal.seen!r}"
        terminal.type(text)


def test_tab_completes_keywords(shell):
    terminal = shell()
    terminal.type("EXPLA\t")
    terminal.until("EXPLAIN")
    terminal.type(" SELECT 1;\r")
    assert "physical_plan" in terminal.until(PROMPT)


def test_shell_shows_how_much_a_statement_has_written(shell):
    terminal = shell()
    rows = "SELECT value AS n, 'text ' || value AS t FROM generate_series(1, 2000000)"
    shown = terminal.enter(f"CREATE TABLE written AS {rows};")
    assert re.search(r"\d+ rows, [\d.]+ \w+ written", shown), shown
    assert "2000000" in terminal.enter("SELECT count(*) FROM written WHERE t = 'text ' || n;")
    terminal.enter("DROP TABLE written;")


@pytest.mark.parametrize("last", ["\\q\r", "quit\r", "exit\r", ".quit\r", "\x04"])
def test_shell_ends(shell, last):
    terminal = shell()
    terminal.type(last)
    assert terminal.end()[0] == 0


def test_next_shell_has_the_statements_of_the_last(shell, tmp_path):
    first = shell()
    first.enter("SELECT 4200 + 42;")
    first.type("\\q\r")
    assert first.end()[0] == 0
    history = tmp_path / "state/farpool/sql_history"
    assert "SELECT 4200 + 42;" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0, "others can read the statements"
    second = shell()
    # The last line is the command that ended the first shell.
    second.type("\x1b[A\x1b[A\r")
    second.until("4242")


@pytest.fixture
def run() -> Iterator[Callable[..., Terminal]]:
    """Runs `farpool` in terminals."""
    terminals = []

    def start(*arguments: str, **more) -> Terminal:
        terminals.append(Terminal([os.environ["FARPOOL_BIN"], *arguments], **more))
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.kill()


def test_top_shows_the_pool_until_q(cluster, run):
    terminal = run("top", "--pool", cluster.url, "--interval", "100ms")
    assert "1 of 1 nodes up" in terminal.until("tcp written")
    # Each refresh draws the whole screen.
    terminal.until("tcp written")
    before = termios.tcgetattr(terminal.stream)
    assert not before[3] & termios.ECHO, "keys are shown"
    terminal.type("q")
    code, rest = terminal.end()
    assert code == 0 and rest.endswith("\x1b[?25h\x1b[?1049l"), rest


def test_top_without_a_terminal_names_the_command_that_needs_none(cluster):
    command = [os.environ["FARPOOL_BIN"], "top", "--pool", cluster.url]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 2 and "status --watch" in done.stderr


@pytest.mark.parametrize("columns", [200, 80, 50])
def test_tables_fit_the_terminal(cluster, run, columns):
    code, text = run("status", "--pool", cluster.url, columns=columns).end()
    table = text.split("\r\n\r\n", 1)[1]
    assert code == 0 and "tcp written" in table
    assert max(map(len, table.splitlines())) <= columns, text


def test_colours_are_left_out_if_no_color_says_so(run):
    assert "\x1b[" in run("--help").end()[1]
    assert "\x1b[" not in run("--help", environment={"NO_COLOR": "1"}).end()[1]
