"""Requests of the kubelet to the CSI driver, for volumes that live and end with a pod."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import grpc

PROTO = Path(__file__).resolve().parents[2] / "engines" / "csi" / "proto"
SECONDS = 120


def messages(folder: Path) -> tuple[ModuleType, ModuleType]:
    """Compiles the interface into Python modules in `folder`."""
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", f"--python_out={folder}"]
    subprocess.run([*command, f"--grpc_python_out={folder}", "csi.proto"], check=True)
    sys.path.insert(0, str(folder))
    return importlib.import_module("csi_pb2"), importlib.import_module("csi_pb2_grpc")


class CsiMachine:
    """The volume server and the driver, as processes of this machine, and a client of the driver."""

    def __init__(self, farpool: Path, url: str, folder: Path, driver_flags: tuple[str, ...] = ()):
        self._kubelet = folder / "kubelet"
        self._kubelet.mkdir()
        self._numbers = itertools.count(1)
        self._messages, services = messages(Path(tempfile.mkdtemp(dir=folder)))
        socket, endpoint = folder / "volumes.sock", folder / "csi.sock"
        server = ["volume-server", "--listen", socket, "--volumes", folder / "volumes", "--targets", self._kubelet]
        driver = ["driver", "--endpoint", endpoint, "--volume-server", socket, "--records", folder / "records"]
        self.log = (folder / "csi.log").open("wb")
        self._processes: list[subprocess.Popen[str]] = []
        for command in (server, [*driver, "--node-id", "here", *driver_flags]):
            self._start([farpool, "csi", *command, "--pool", url])
        # The authority is the path of the socket by default, which HTTP/2 does not permit.
        options = [("grpc.default_authority", "localhost")]
        self._node = services.NodeStub(grpc.insecure_channel(f"unix:{endpoint}", options))

    def _start(self, command: list[str | Path]) -> None:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self._processes.append(process)
        line = process.stdout.readline()
        if not line.startswith("ready "):
            raise RuntimeError(f"{command} said {line!r}: {Path(self.log.name).read_text()}")

    @contextlib.contextmanager
    def volume(self, size_bytes: int, protection: str) -> Iterator[Path]:
        """A volume of a pod, as `volumes: [{csi: {driver: csi.farpool.io, volumeAttributes: ..}}]` gives it."""
        number = next(self._numbers)
        volume, target = f"csi-{number}", self._kubelet / f"pod-{number}" / "far"
        target.parent.mkdir()
        m = self._messages
        mode = m.VolumeCapability.AccessMode(mode=m.VolumeCapability.AccessMode.SINGLE_NODE_WRITER)
        capability = m.VolumeCapability(access_mode=mode, mount=m.VolumeCapability.MountVolume())
        context = {"csi.storage.k8s.io/ephemeral": "true", "size": str(size_bytes), "protection": protection}
        published = m.NodePublishVolumeRequest(
            volume_id=volume, target_path=str(target), volume_capability=capability, volume_context=context
        )
        self._node.NodePublishVolume(published, timeout=SECONDS)
        try:
            yield target
        finally:
            unpublished = m.NodeUnpublishVolumeRequest(volume_id=volume, target_path=str(target))
            self._node.NodeUnpublishVolume(unpublished, timeout=SECONDS)

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait(SECONDS)
        self.log.close()
