"""Pods and containers as processes of this machine, each with a host name and an address.

Their names are found in an ``/etc/hosts`` that is mounted for them alone, so what they are told
(commands, variables, ports) is used as it stands.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import processes
from .clusters import Ended, as_command
from .waiting import scaled

_BEGIN = 'mount --bind "$0" /etc/hosts && hostname "$1" && shift && exec "$@"'


@dataclass(frozen=True, slots=True)
class Container:
    """What is started.

    Attributes:
        name: Its host's name.
        names: By which others find it.
        command: ``ropewalk …`` or ``python …``.
        environment: Beside that of the test.
    """

    name: str
    names: tuple[str, ...]
    command: Sequence[str]
    environment: Mapping[str, str]


class Running:
    """Containers that run; the test needs ``mounts and host names of its own``.

    Args:
        containers: All of a job.
        folder: Their working directory; each writes ``<name>.txt`` there.
    """

    def __init__(self, containers: Sequence[Container], folder: Path) -> None:
        hosts = folder / "hosts"
        # Of this process alone: another one runs such a test at the same time.
        net = f"127.{os.getpid() // 250 % 250 + 1}.{os.getpid() % 250}"
        self.addresses = {each.name: f"{net}.{n}" for n, each in enumerate(containers, 1)}
        lines = ["127.0.0.1 localhost"]
        lines += [f"{self.addresses[each.name]} {' '.join(each.names)}" for each in containers]
        hosts.write_text("\n".join(lines) + "\n")
        prefix = ["unshare", "--mount", "--uts", "--propagation", "private", "sh", "-c", _BEGIN]
        self._files = {each.name: folder / f"{each.name}.txt" for each in containers}
        self.processes: dict[str, subprocess.Popen[Any]] = {}
        for each in containers:
            with self._files[each.name].open("wb") as output:
                self.processes[each.name] = processes.start(
                    [*prefix, str(hosts), each.name, *as_command(each.command)],
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
