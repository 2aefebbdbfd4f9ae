"""Pods and containers as processes of this machine, each with a host name and an address.

Their names are found in an ``/etc/hosts`` that is mounted for them alone, so what they are told
(commands, variables, ports) is used as it stands.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ..clusters import Ended, as_command
from ..fork_server import Forked
from ..waiting import scaled
from . import kubelet
from .manifests import Pod

_NAMESPACES = ("unshare", "--mount", "--uts", "--propagation", "private")
_PROCESSES = ("--pid", "--fork")


@dataclass(frozen=True, slots=True)
class Container:
    """What is started.

    Attributes:
        name: Its host's name.
        names: By which others find it.
        command: ``ropewalk …`` or ``python …``.
        environment: Beside that of the test.
        spec: Of its pod, for volumes and a user as its kubelet gives them; None: those of the test.
    """

    name: str
    names: tuple[str, ...]
    command: Sequence[str]
    environment: Mapping[str, str]
    spec: Mapping[str, Any] | None = None


def in_pod(pod: Pod) -> Container:
    """The container of a pod, with its volumes and its user."""
    variables = {"ROPEWALK_KERNEL_CACHE": "/kernels", **pod.environment}  # the first as the image's
    names = (f"{pod.name}.{pod.domain}",)
    return Container(pod.name, names, pod.command, variables, spec=pod.spec)


def serves(address: str) -> bool:
    """Whether the task at an address says that it is ready."""
    with grpc.insecure_channel(f"{address}:2223") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="readiness")
        try:
            return bool(stub.Check(request, timeout=5).status == 1)
        except grpc.RpcError:
            return False


class Running:
    """Containers that run; the test needs ``mounts and host names of its own``.

    Args:
        containers: All of a job.
        folder: Their working directory, or the program's of their image; each writes
            ``<name>.txt`` there.
        files: Content of Secrets and ConfigMaps, by name.
        kernels: Folder of compiled kernels that their image has; empty: none.
    """

    def __init__(
        self,
        containers: Sequence[Container],
        folder: Path,
        files: Mapping[str, kubelet.Files] | None = None,
        kernels: str = "",
    ) -> None:
        self._folder, self._hosts = folder, folder / "hosts"
        self._given, self._kernels = files or {}, kernels
        # Of this process alone: another one runs such a test at the same time.
        net = f"127.{os.getpid() // 250 % 250 + 1}.{os.getpid() % 250}"
        self.addresses = {each.name: f"{net}.{n}" for n, each in enumerate(containers, 1)}
        lines = ["127.0.0.1 localhost"]
        lines += [f"{self.addresses[each.name]} {' '.join(each.names)}" for each in containers]
        self._hosts.write_text("\n".join(lines) + "\n")
        self._files = {each.name: folder / f"{each.name}.txt" for each in containers}
        self.processes: dict[str, subprocess.Popen[Any]] = {}
        for each in containers:
            with self._files[each.name].open("wb") as output:
                self.processes[each.name] = self._start(
                    each,
                    cwd=folder,
                    env={
                        **os.environ,
                        **each.environment,
                        "ROPEWALK_HOST": self.addresses[each.name],
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )

    def _start(self, container: Container, **options: Any) -> subprocess.Popen[Any]:
        if container.spec is None:
            host = container.name, str(self._hosts)
            return Forked(as_command(container.command), host=host, **options)
        command = [*_NAMESPACES, *self._begin(container, container.spec), container.name]
        return subprocess.Popen([*command, *as_command(container.command)], **options)

    def _begin(self, container: Container, spec: Mapping[str, Any]) -> list[str]:
        """The command that turns a process with namespaces of its own into a container."""
        root = self._folder / f"{container.name}-root"
        root.mkdir()
        self._folder.chmod(0o755)  # as an image has it
        claims = _Claims(self._folder)
        mounts = kubelet.mounts_of(spec, files=self._given, claims=claims)
        security = spec["securityContext"]
        sandbox = kubelet.Sandbox(
            str(root),
            str(self._hosts),
            str(self._folder),
            self._kernels,
            spec["containers"][0]["workingDir"],
            tuple(mounts),
            security["runAsUser"],
            security["runAsGroup"],
            security.get("fsGroup", 0),
        )
        # Process 1 of its own, with whose end all of it ends.
        return [*_PROCESSES, sys.executable, kubelet.__file__, sandbox.as_json()]

    def said(self, name: str) -> str:
        """What one has written so far."""
        return self._files[name].read_text()

    def wait(self, timeout_s: float = 60) -> dict[str, Ended]:
        """How each of them ends."""
        for process in self.processes.values():
            process.wait(scaled(timeout_s))
        return {name: Ended(p.returncode, self.said(name)) for name, p in self.processes.items()}

    def kill(self) -> None:
        """End those that are left."""
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait(10)


class _Claims(dict[str, Path]):
    """Folders of claims, made when a pod names one."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __missing__(self, name: str) -> Path:
        path = self._folder / f"claim-{name}"
        path.mkdir(exist_ok=True)
        return path
