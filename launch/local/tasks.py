"""The tasks of a local job as processes: what each runs, its variables, and what it reports."""

import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from ...cluster.spec import WORKER
from ...core.process.processes import out_of_memory_kills
from ...core.settings import ALL_WORKERS, Settings, environment_variables
from ...core.task import TaskId, new_job_id
from ...core.terminal import counted
from ...net.this_machine import free_ports
from ...worker.process.program import ERROR_FILE, Program, read_report
from ..processes.process import (
    ONE_THREAD,
    Line,
    ParentDeathPipe,
    TaskProcess,
    process_environment,
    process_settings,
    start_task,
)
from .cluster import LocalRoles, RoleExtras, tf_config
from .gpus import bind, cores_near, describe_shares, divide_gpus, gpu_variables, machines_gpus

_OF_THE_MACHINE = (Path("/proc/vmstat"),)  # counts what the kernel has killed


class LocalTasks:
    """Starts the tasks of a local job. A context manager: what they report is kept until it ends.

    Args:
        cluster: Roles of the cluster.
        program: The user's.
        arguments: Arguments of the program.
        settings: Settings of the launcher.
        of_roles: Extras that tasks of a role get beside that, by role.
        restarts: Number of times that a lost chief is started again.
        news: Takes the lines of tasks.

    Attributes:
        addresses: Address of each task.
        processes: Process of each task that was started.
    """

    def __init__(
        self,
        cluster: LocalRoles,
        program: Program,
        arguments: Sequence[str],
        settings: Settings,
        of_roles: Mapping[str, RoleExtras],
        restarts: int,
        news: Callable[[Line], None],
    ) -> None:
        self._cluster = cluster
        self._program = ["run", *program.command, "--", *arguments]
        self._of_roles = dict(of_roles)
        self._news = news
        self._settings = _shared(settings, restarts)
        self._reports = tempfile.TemporaryDirectory(prefix="ropewalk-errors-")
        self._death_pipe = ParentDeathPipe()
        self._memory_kills = out_of_memory_kills(_OF_THE_MACHINE)
        self._gpus = _gpus_of(cluster)
        self._cores = cores_near(self._gpus, environment_variables())
        self.addresses: dict[TaskId, str] = {}
        self.processes: dict[TaskId, TaskProcess] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._reports.cleanup()

    def let_go(self) -> None:
        """End the pipe by which tasks notice that their launcher has died."""
        self._death_pipe.close()

    def choose_addresses(self) -> None:
        """Choose a free port for each task of the cluster."""
        self.addresses = self._cluster.choose_addresses()

    def start(self, task: TaskId) -> TaskProcess:
        """Start a task, at its address or a new one.

        Raises:
            OSError: It cannot be started.
        """
        if task not in self.addresses:
            self.addresses[task] = f"127.0.0.1:{free_ports(1)[0]}"
        extras = self._of_roles.get(task.type, RoleExtras())
        serves = self._cluster.coordinator and task.type == WORKER
        command = ["run"] if serves else [*self._program, *extras.arguments]
        process = start_task(task, command, self._environment(task), self._death_pipe, self._news)
        bind(process.process.pid, self._cores.get(task, frozenset()))
        self.processes[task] = process
        return process

    def _environment(self, task: TaskId) -> dict[str, str]:
        """Collect the variables of a task."""
        extra = self._of_roles.get(task.type, RoleExtras()).environment
        own = {ERROR_FILE: str(self._report_file(task))}
        if task == self._cluster.chief_task:  # it is only asked to stop when the whole job is
            own["ROPEWALK_CHIEF_RETURNS"] = "false"
        gpus = gpu_variables(task, self._gpus, {**environment_variables(), **extra})
        user = {**ONE_THREAD, **gpus, **extra}
        return process_environment(self._settings, tf_config(task, self.addresses), own, user)

    def error_of(self, task: TaskId) -> str:
        """Read what a task reported; if it could not, whether memory has run out, and its last
        lines of stderr.
        """
        process = self.processes[task]
        if text := read_report(self._report_file(task)):
            return text
        killed = killed_text(process.code, self._memory_kills, out_of_memory_kills(_OF_THE_MACHINE))
        last = ["its last lines:"] * bool(killed and process.last_lines)
        return "\n".join([*([killed] * bool(killed)), *last, *process.last_lines])

    def description(self) -> str:
        """Write a line about what was started."""
        gpus = describe_shares(self._gpus) + (", on the cores near it" if self._cores else "")
        address = self.addresses[self._cluster.chief_task]
        tasks = counted(len(self.processes), "task")
        return f"{tasks}; the chief is at {address}" + (gpus and f"; {gpus}")

    def _report_file(self, task: TaskId) -> Path:
        return Path(self._reports.name) / f"{task.type}-{task.index}"


def killed_text(code: int | None, before: int | None, now: int | None) -> str:
    """Say whether memory ran out where a task was killed; empty: it was not.

    Args:
        code: Exit status of its process, as ``subprocess`` reports it.
        before: Processes that the kernel had killed for lack of memory when the job began.
        now: Number of them now.
    """
    if code != -signal.SIGKILL:
        return ""
    if before is None or now is None:
        return "another process has killed it, or the kernel for lack of memory (dmesg)"
    if now > before:
        killed = f"{now - before} process{'es' if now - before > 1 else ''}"
        return (
            f"memory ran out: the kernel has killed {killed} of this machine for that since the "
            "job began (dmesg names them)"
        )
    return "another process has killed it: memory has not run out on this machine meanwhile"


def _shared(settings: Settings, restarts: int) -> Settings:
    changes: dict[str, object] = {
        "job_id": settings.job_id or new_job_id(),
        "chief_returns": restarts > 0,
    }
    if "wait_for_workers" not in settings.model_fields_set:
        changes["wait_for_workers"] = ALL_WORKERS
    return process_settings(settings, **changes)


def _gpus_of(cluster: LocalRoles) -> dict[TaskId, list[str]]:
    tasks = cluster.tasks_with_program()
    if not tasks[1:]:
        return {}
    return divide_gpus(tasks, machines_gpus(), cluster.gpus_each)
