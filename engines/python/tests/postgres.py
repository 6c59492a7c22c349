"""Starts a PostgreSQL server for tests, with folders in far memory."""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

USER = "postgres"
START_SECONDS = "60"
PATIENCE_SECONDS = 300


def tool(name: str) -> str:
    """Returns the path of one of PostgreSQL's programs: of the version in FARPOOL_POSTGRES, or Debian's."""
    folder = os.environ.get("FARPOOL_POSTGRES")
    path = shutil.which(name, path=folder or f"/usr/lib/postgresql/15/bin:{os.environ['PATH']}")
    if path is None:
        cure = f"FARPOOL_POSTGRES={folder} has none" if folder else "install Debian's postgresql-15"
        raise FileNotFoundError(f"no {name}: {cure}")
    return path


class Mount:
    """A `farpool mount`. It can be killed as in a crash, and otherwise ends with the test."""

    def __init__(self, binary: str, *arguments: str):
        self._arguments = [binary, "mount", *arguments, "--allow-other"]
        self.at = Path(arguments[2] if arguments[0] == "cache" else arguments[1])
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if not select.select([self._process.stdout], [], [], PATIENCE_SECONDS)[0]:
            raise TimeoutError(f"{self._arguments} said nothing within {PATIENCE_SECONDS} s")
        if not self._process.stdout.readline().startswith("ready "):
            raise RuntimeError(self._process.communicate(timeout=PATIENCE_SECONDS)[1])

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()
        subprocess.run(["umount", "--lazy", self.at], check=True)

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.communicate(timeout=10)
        if self._process.poll() is None:
            self.kill()


class Postgres:
    """A server with checksums, whose files are below its own folder."""

    # Seconds within which each of its programs must end.
    patience_seconds = PATIENCE_SECONDS

    def __init__(self, folder: Path, **settings: str | int):
        self.folder = folder
        self.data = folder / "data"
        self._settings = {"listen_addresses": "''", "unix_socket_directories": f"'{folder}'", **settings}
        shutil.chown(folder, USER, USER)
        self._run("initdb", "--data-checksums", "--auth=trust", "--no-sync", "-D", str(self.data))
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in self._settings.items())
        self.start()

    def _run(self, name: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [tool(name), *arguments],
            user=USER,
            group=USER,
            extra_groups=[],
            cwd=self.folder,
            env={**os.environ, "PGHOST": str(self.folder), "PGUSER": USER, "HOME": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=self.patience_seconds,
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"{name} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def start(self) -> None:
        self._run("pg_ctl", "start", "-w", "-t", START_SECONDS, "-D", str(self.data), "-l", str(self.folder / "log"))

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "stop", "-w", "-t", START_SECONDS, "-m", mode, "-D", str(self.data), check=False)

    def kill(self) -> None:
        """Kills the postmaster and its processes, and waits until a new postmaster does not find them any more."""
        pid = int((self.data / "postmaster.pid").read_text().splitlines()[0])
        command = ["ps", "-o", "pid=", "--ppid", str(pid)]
        children = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS).stdout
        killed = [pid, *map(int, children.split())]
        for one in killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        deadline = time.monotonic() + float(START_SECONDS)
        while left := [one for one in killed if Path("/proc", str(one)).exists()]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes {left} of the server outlive SIGKILL for {START_SECONDS} s")
            time.sleep(0.01)

    def sql(self, text: str, database: str = "postgres") -> str:
        return self._run(
            "psql", "-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-d", database, "-c", text
        ).stdout.strip()

    def tool(self, name: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs one of PostgreSQL's programs against the server."""
        return self._run(name, *arguments, check=check)

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def folder_for(self, path: Path) -> Path:
        """Makes a folder that the server's user owns."""
        path.mkdir(parents=True)
        path.chmod(0o700)
        shutil.chown(path, USER, USER)
        return path


@contextlib.contextmanager
def postgres(**settings: str | int) -> Iterator[Postgres]:
    """Runs a server within a `with` block. Its folder is readable by the server's user, which pytest's folders are
    not."""
    pwd.getpwnam(USER)
    folder = Path(tempfile.mkdtemp(prefix="farpool-pg-"))
    server = None
    try:
        server = Postgres(folder, **settings)
        yield server
    finally:
        if server is not None:
            server.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)
