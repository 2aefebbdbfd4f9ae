"""The tasks of a local cluster, and where they serve."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...cluster.resolvers.tf_config import write_tf_config
from ...cluster.spec import CHIEF, EVALUATOR, PS, WORKER
from ...core.errors import ConfigurationError
from ...core.task import TaskId
from ...net.this_machine import free_ports
from ...worker.process.program import Program


@dataclass(frozen=True, slots=True)
class LocalRoles:
    """The roles of a local cluster: how many tasks each has, and how many GPUs those that run the
    program.
    """

    workers: int = 1
    ps: int = 1
    chief: bool = True
    evaluator: bool = False
    coordinator: bool = False  # the chief alone runs the program
    gpus_each: int = 1

    def tasks(self) -> list[TaskId]:
        """List every task, in the order in which they are started."""
        return [
            *[TaskId(PS, i) for i in range(self.ps)],
            *([TaskId(CHIEF, 0)] if self.chief else []),
            *[TaskId(WORKER, i) for i in range(self.workers)],
            *([TaskId(EVALUATOR, 0)] if self.evaluator else []),
        ]

    def tasks_with_program(self) -> list[TaskId]:
        """List the tasks that compute by the program: not the servers, nor a coordinator's
        chief.
        """
        return [
            task
            for task in self.tasks()
            if task.type != PS and not (self.coordinator and task.type == CHIEF)
        ]

    @property
    def synchronous(self) -> bool:
        """There are no ps: every task but the evaluator needs all others."""
        return not self.ps

    @property
    def chief_task(self) -> TaskId:
        """The chief, or worker 0 in its place."""
        return TaskId(CHIEF, 0) if self.chief else TaskId(WORKER, 0)

    def check_restarts(self, restarts: int) -> None:
        """Check that a lost chief can be started again.

        Raises:
            ConfigurationError: It cannot.
        """
        if restarts and not (self.chief and self.ps):
            raise ConfigurationError(
                f"--restarts {restarts} starts a lost chief again, which goes on with what the ps "
                f"have: it needs a chief and a ps; this has {int(self.chief)} chief and {self.ps} "
                "ps"
            )

    def choose_addresses(self) -> dict[TaskId, str]:
        """Choose an address of this machine for every task that serves.

        Raises:
            AddressInUseError: There are not enough free ports.
        """
        serving = [task for task in self.tasks() if task.type != EVALUATOR]
        ports = free_ports(len(serving))
        return {task: f"127.0.0.1:{port}" for task, port in zip(serving, ports, strict=True)}


@dataclass(frozen=True, slots=True)
class RoleExtras:
    """The extras of one role's tasks, beside what all get.

    Attributes:
        arguments: Arguments of the program, behind those of all roles.
        environment: Variables.
    """

    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def tf_config(task: TaskId, addresses: dict[TaskId, str]) -> str:
    """Write ``TF_CONFIG`` of a task, with the addresses of all."""
    spec: dict[str, list[str]] = {}
    for other, address in addresses.items():
        spec.setdefault(other.type, []).append(address)
    return write_tf_config(spec, task)


def default_model_dir(program: Program) -> str:
    """Choose a new folder for a run: ``runs/<program's name or folder>-<time>``."""
    path = program.path
    name = path.stem if path.stem not in ("train", "main", "__main__") else path.parent.name
    stamp = time.strftime("%Y%m%d-%H%M%S") + f"-{time.time_ns() // 1_000_000 % 1000:03d}"
    return str(Path("runs") / f"{name}-{stamp}")
