"""Clusters of processes that a test starts by hand, each task with its own TF_CONFIG."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.net.this_machine import free_ports

from . import processes
from .waiting import scaled


def tf_configs(**counts: int) -> dict[str, str]:
    """TF_CONFIG per task, as in ``tf_configs(chief=1, ps=2, evaluator=1)["ps:1"]``."""
    tasks = [(role, index) for role, count in counts.items() for index in range(count)]
    cluster: dict[str, list[str]] = {}
    for (role, _), port in zip(tasks, free_ports(len(tasks)), strict=True):
        if role != "evaluator":
            cluster.setdefault(role, []).append(f"127.0.0.1:{port}")
    return {
        f"{role}:{index}": json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})
        for role, index in tasks
    }


@dataclass(frozen=True, slots=True)
class Ended:
    """How a task ended, and all it has said."""

    code: int
    text: str


class HandStarted:
    """One process per task, as a cluster manager starts them.

    Args:
        command: For all: ``python …`` or ``ropewalk …``.
        configs: TF_CONFIG by task, or the variables that its launcher sets.
        folder: Where they run; each writes ``<task>.txt`` there.
        environment: Variables of all processes.
    """

    def __init__(
        self,
        command: Sequence[str],
        configs: Mapping[str, str | Mapping[str, str]],
        folder: Path,
        **environment: str,
    ) -> None:
        self._words, self._place, self._variables = command, folder, environment
        self._files: dict[str, Path] = {}
        self.running: dict[str, subprocess.Popen[Any]] = {}
        for task, config in configs.items():
            self.begin(task, config)

    def begin(self, task: str, config: str | Mapping[str, str]) -> None:
        """Start a task, which may have run before: what it said then is gone."""
        own = {"TF_CONFIG": config} if isinstance(config, str) else config
        self._files[task] = self._place / f"{task.replace(':', '-')}.txt"
        with self._files[task].open("wb") as output:
            self.running[task] = processes.start(
                self._command_of(task),
                cwd=self._place,
                env={**os.environ, **own, **self._variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _command_of(self, task: str) -> list[str]:
        return as_command(self._words)

    def said(self, task: str) -> str:
        """What a task has written so far."""
        return self._files[task].read_text()

    def wait(self, timeout_s: float = 60) -> dict[str, Ended]:
        """Every task's end. Those that have none in time are killed."""
        deadline = time.monotonic() + scaled(timeout_s)
        try:
            for process in self.running.values():
                process.wait(max(0.1, deadline - time.monotonic()))
        finally:
            for process in self.running.values():
                if process.poll() is None:
                    process.kill()
                process.wait(10)
        return {
            task: Ended(process.returncode, self.said(task))
            for task, process in self.running.items()
        }


def as_command(words: Sequence[str]) -> list[str]:
    """``python`` and ``ropewalk`` are those of this interpreter."""
    first, *rest = words
    begin = {"python": [sys.executable], "ropewalk": processes.ROPEWALK}[first]
    return [*begin, *rest]


Start = Callable[..., HandStarted]
