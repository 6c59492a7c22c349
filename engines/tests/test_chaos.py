"""The chaos of `make chaos` and `make chaos-published`, for some seconds.

On a machine that other tests keep busy, nodes that live may miss their time, and operations may fail. So what is tested
is that both run to their end, and that no result is wrong.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHAOS = Path(__file__).resolve().parents[2] / "bench/chaos"


def run(script: str, *words: str, told: Path) -> dict:
    command = [sys.executable, str(CHAOS / script), *words, "--seed", "1", "--json", str(told)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert told.exists(), done.stdout + done.stderr
    return json.loads(told.read_text())


def test_no_scratch_file_has_wrong_bytes_after_faults(tmp_path):
    told = run("scratch.py", "--minutes", "0.4", told=tmp_path / "told.json")
    assert told["faults in all"] > 0 and told["file operations"] > 0
    assert told["wrong answers"] == told["wrong bytes"] == told["stale operations accepted"] == 0


@pytest.mark.parametrize(("transport", "bound"), [("tcp", 1), ("shm", 2)])
def test_no_result_over_published_data_is_wrong_after_faults(tmp_path, transport, bound):
    words = ["--faults", "3", "--minutes", "2", "--transport", transport, "--bound", str(bound)]
    told = run("published.py", *words, told=tmp_path / "told.json")
    assert told["faults"] > 0 and told["by operation"]
    assert told["wrong"] == 0, told["texts"]
