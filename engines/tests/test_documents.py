"""The examples of README.md and docs/*.md run and give the results that they show. documents.py explains how they are
run."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import documents
import pytest
from documents import ROOT, Block, Wrong, blocks_of, runs_of, stands_in

DOCUMENTS = ["README.md", *sorted(f"docs/{path.name}" for path in ROOT.glob("docs/*.md"))]
BLOCKS: dict[str, list[Block]] = {}
WRONG: list[str] = []
for _document in DOCUMENTS:
    try:
        BLOCKS[_document] = blocks_of(_document, (ROOT / _document).read_text())
    except Wrong as error:
        WRONG.append(str(error))
RUNS = [run for blocks in BLOCKS.values() for run in runs_of(blocks)]
# Seconds within which a run must end: fewer than pytest's own limit for a test.
RUN_SECONDS = 570
NAMESPACES = (["--net", "--mount"], ["--user", "--map-root-user", "--net", "--mount"])

ENDS_BADLY = """(trap 'exit 5' TERM; touch begun; while :; do sleep 0.1; done) &
until [ -e begun ]; do sleep 0.01; done
"""


@pytest.fixture(scope="session")
def apart() -> list[str]:
    """Returns the words before a command that run it in a network of its own."""
    for kinds in NAMESPACES:
        if subprocess.run(["unshare", *kinds, "true"], capture_output=True).returncode == 0:
            return ["unshare", *kinds]
    pytest.fail("this machine permits no network namespaces, not even to a user namespace")


def run_apart(apart: list[str], begin: Block) -> tuple[int, str]:
    """Runs the run of examples that begins with `begin`, in a process of its own. Returns its exit code and output."""
    program = [*apart, sys.executable, documents.__file__, begin.document, str(begin.line)]
    child = subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        said = child.communicate(timeout=RUN_SECONDS)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        said = f"the run that begins at {begin.place} did not end within {RUN_SECONDS} s"
    finally:
        # Kills programs that an example has left running, for example one that failed.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        code = child.wait()
    return code, said


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run[0].place)
def test_examples_run(run, apart):
    code, said = run_apart(apart, run[0])
    if code != 0:
        pytest.fail(said, pytrace=False)


def test_every_block_says_what_it_is():
    assert WRONG == []


def test_examples_of_other_files_stand_there():
    copied = [block for blocks in BLOCKS.values() for block in blocks if block.source]
    assert [block.place for block in copied if not stands_in(block, (ROOT / block.source).read_text())] == []


def headings(document: Path) -> set[str]:
    """Returns the anchors of a document, as GitHub makes them."""
    lines = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL), re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line).strip().lower() for line in lines]
    return {re.sub(r"[^\w\- ]", "", line).replace(" ", "-") for line in plain}


def test_links_lead_to_files_and_headings():
    dead = []
    for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("spec/*.md")]:
        for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
            path, _, heading = link.partition("#")
            target = document.parent / path if path else document
            if ":" in path or (target.exists() and (not heading or heading in headings(target))):
                continue
            dead.append(f"{document.relative_to(ROOT)}: {link}")
    assert dead == []


def test_examples_that_are_only_shown_say_why(capsys):
    everything = [block for blocks in BLOCKS.values() for block in blocks]
    shown = [block for block in everything if block.shown]
    with capsys.disabled():
        run = sum(block.is_run for block in everything)
        print(f"\nexamples of documents: {run} run, {len(shown)} only shown:")
        for block in shown:
            print(f"  {block.place}: {block.shown}")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("```\nls\n```\n", "has no language"),
        ("```rust\nlet a = 1;\n```\n", "is not run: say"),
        ("<!-- example: shwon: two hosts -->\n```sh\nls\n```\n", "no such mark"),
        ("<!-- example: shown: two hosts -->\n", "no block follows"),
        ("<!-- example: in no/such/file.rs -->\n```rust\nlet a = 1;\n```\n", "its file is not there"),
    ],
)
def test_a_mark_that_says_nothing_is_refused(text, match):
    with pytest.raises(Wrong, match=match):
        blocks_of("a.md", text)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("```sh\ntrue\nfalse\ntrue\n```\n", "line 3: exit code 1"),
        ("```sh\necho 1 > n\n```\n```python\nassert open('n').read() == '2'\n```\n", "AssertionError"),
        ("```sh\nfarpool broker --listen nowhere &\n```\n", "no line 'ready ..'"),
        (f"```sh\n{ENDS_BADLY}```\n", "exit code 5"),
    ],
    ids=["shell", "python", "server", "background"],
)
def test_an_example_that_fails_is_noticed(tmp_path, apart, text, reported):
    document = tmp_path / "a.md"
    document.write_text(text)
    code, said = run_apart(apart, blocks_of(str(document), text)[0])
    assert code != 0
    assert reported in said


def test_the_table_of_events_is_that_of_the_sources():
    files = [*ROOT.glob("crates/*/src/**/*.rs"), *ROOT.glob("engines/*/src/**/*.rs")]
    sources = "\n".join(path.read_text() for path in files if "event.rs" not in path.name)
    written = set(re.findall(r"Event::(?:error|warn|info|debug)\(\s*\"([a-z_]+)\"", sources))
    rows = (ROOT / "docs" / "run.md").read_text().splitlines()
    table = [found[1] for row in rows if (found := re.match(r"\| `([a-z_]+)` \| [a-z, ]+ \| [a-z -]+ \|", row))]
    assert written and sorted(table) == sorted(written)
