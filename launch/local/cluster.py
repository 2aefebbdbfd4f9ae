"""The tasks of a local cluster: how many, as it begins and later, and where they serve."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...cluster.resolvers.tf_config import write_tf_config
from ...cluster.spec import CHIEF, EVALUATOR, PS, WORKER
from ...cluster.supervision.decisions import TaskRun
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


@dataclass(slots=True)
class Scaling:
    """Number of ps that a job is to have, and those that were asked to leave for it. Pure.

    Attributes:
        count: Number of ps that the job is to have.
        sent_away: Ps that were asked to leave; none of them is started again.
    """

    count: int
    sent_away: set[TaskId] = field(default_factory=set)

    def to(self, wanted: int) -> str:
        """Change the number; what to say about that, or nothing."""
        if wanted == self.count:
            return ""
        text, self.count = f"{self.count} → {wanted} ps", wanted
        return text

    def to_start(self, runs: Mapping[TaskId, TaskRun], known_s: float) -> list[TaskId]:
        """Choose the ps to start: those that never were, and those that have left.

        Args:
            runs: The tasks of the job.
            known_s: Time at which the job was last known to go on, by the clock of
                ``time.monotonic``; 0: it is over. A ps that has ended since may have ended with it.
        """
        tasks = [TaskId(PS, index) for index in range(self.count)]
        chosen = [task for task in tasks if _is_missing(runs.get(task), known_s)]
        self.sent_away.difference_update(chosen)
        return chosen

    def to_send_away(self, runs: Mapping[TaskId, TaskRun]) -> list[TaskId]:
        """Choose the ps that are to leave: they hand over what they have."""
        extra = [
            task
            for task, run in runs.items()
            if task.type == PS and task.index >= self.count and not run.has_ended
        ]
        chosen = [task for task in extra if task not in self.sent_away]
        self.sent_away.update(chosen)
        return chosen


def _is_missing(run: TaskRun | None, known_s: float) -> bool:
    return run is None or (run.ended is not None and known_s > run.ended)


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
