"""Pods of the demonstration, with this machine's version of cgroups. `make guest-test` runs the tests under version
2."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# The module is imported without the wheel, which takes minutes to load in a guest.
FOLDER = Path(__file__).resolve().parents[1] / "farpool" / "demo"
sys.path.insert(0, str(FOLDER))
from pod import CGROUPS, NotHere, Pod, Pods  # noqa: E402

TAKES = "import sys; b'1' * int(sys.argv[1])"
NOBODY = 65534
# Script that another user runs with the system's Python. The Python of the tests may be in a folder that this user
# cannot read.
AS_NOBODY = """
import subprocess, sys
from pod import Pods
with Pods() as pods:
    print("why not:", pods.why_not)
    if pods.can_limit_memory:
        pod = pods.make(64 << 20)
        print("ended with", subprocess.run(pod.command([sys.executable, "-c", sys.argv[1], str(256 << 20)])).returncode)
        pod.remove()
"""


def groups_of(pid: int) -> list[Path]:
    return list(CGROUPS.glob(f"**/farpool-demo-{pid}"))


@pytest.fixture
def module_for_all() -> Iterator[Path]:
    """Makes a folder that every user may read, with the module under test."""
    folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="farpool-pods-"))
    shutil.copy(FOLDER / "pod.py", folder)
    folder.chmod(0o755)
    (folder / "pod.py").chmod(0o644)
    yield folder
    shutil.rmtree(folder)


@contextlib.contextmanager
def group_of_nobody() -> Iterator[Pod]:
    """Makes a control group that another user owns, like a delegated scope of systemd (version 2)."""
    control = CGROUPS / "cgroup.subtree_control"
    enabled = control.read_text().split()
    control.write_text("+memory")
    group = Pod(CGROUPS / f"farpool-test-{os.getpid()}")
    group.path.mkdir()
    try:
        for path in (group.path, group.path / "cgroup.procs", group.path / "cgroup.subtree_control"):
            os.chown(path, NOBODY, NOBODY)
        yield group
    finally:
        group.remove()
        if "memory" not in enabled:
            control.write_text("-memory")


def test_a_pod_ends_what_takes_more_memory_than_it_has_and_leaves_no_group():
    with Pods() as pods:
        assert pods.why_not == ""
        pod = pods.make(64 << 20)
        taking = [sys.executable, "-S", "-c", TAKES]
        assert subprocess.run(pod.command([*taking, str(16 << 20)]), timeout=120).returncode == 0
        assert pod.oom_kills() == 0
        assert subprocess.run(pod.command([*taking, str(256 << 20)]), timeout=120).returncode == -signal.SIGKILL
        assert pod.oom_kills() == 1
        pod.remove()
        assert groups_of(os.getpid()) != []
    assert groups_of(os.getpid()) == []


def test_the_disk_below_a_pod_has_the_rates_of_a_cloud_volume_or_it_is_said_why_not():
    with Pods() as pods, tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        if not pods.is_v2:
            with pytest.raises(NotHere, match="version 1"):
                pods.check_slow_volume(Path(folder))
            return
        pods.check_slow_volume(Path(folder))
        pod = pods.make(64 << 20, Path(folder))
        assert "rbps=125000000 wbps=125000000 riops=3000 wiops=3000" in (pod.path / "io.max").read_text()
        pod.remove()


def test_a_user_makes_pods_in_a_group_that_was_delegated_and_is_told_why_nowhere_else(module_for_all):
    python = shutil.which("python3", path="/usr/bin:/bin")
    assert python, "a Python that every user may run: Debian's python3"
    command = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", python, "-c", AS_NOBODY]

    def said(command: list[str]) -> str:
        pipe = subprocess.PIPE
        with subprocess.Popen(command, cwd=module_for_all, stdout=pipe, stderr=pipe, text=True) as run:
            out, errors = run.communicate(timeout=120)
        assert run.returncode == 0, errors
        assert groups_of(run.pid) == []
        return out

    assert "denied" in (refused := said([*command, TAKES])) or "not this user's" in refused
    if (CGROUPS / "cgroup.controllers").exists():
        with group_of_nobody() as group:
            assert said(group.command([*command, TAKES])) == f"why not: \nended with {-signal.SIGKILL}\n"
