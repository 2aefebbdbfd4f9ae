"""A job as processes of this machine."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...cluster.spec import CHIEF, EVALUATOR, PS, WORKER
from ...core.settings import Settings, load_settings
from ...core.terminal import counted
from ...launch.local.cluster import LocalRoles, RoleExtras
from ...launch.local.gpus import AUTO, machines_gpus, workers_for_gpus
from ...launch.screen.standard_streams import choose_display
from ...worker.process.program import Program, find_program
from .model import JobFile
from .reading import read_job

if TYPE_CHECKING:
    from ...core.task import TaskId


def local_cluster(job: JobFile) -> LocalRoles:
    """Collect the tasks of a job. Those that run the program have as many GPUs as the most
    wants.
    """
    cluster = LocalRoles(
        job.count(WORKER),
        job.count(PS),
        bool(job.count(CHIEF)),
        bool(job.count(EVALUATOR)),
        job.coordinator,
    )
    roles = {task.type for task in cluster.tasks_with_program()}
    return replace(cluster, gpus_each=max([1, *(job.role(role).resources.gpu for role in roles)]))


def local_settings(job: JobFile, flags: Mapping[str, Any]) -> Settings:
    """Load the settings of a job here: flags, then the job file, then ``ROPEWALK_…``, then the
    defaults.

    Raises:
        ConfigurationError: A value is not valid.
    """
    settings = job.settings.model_dump(exclude_unset=True)
    if job.storage.model_dir:
        settings["model_dir"] = job.storage.model_dir
    return load_settings(
        settings | {name: value for name, value in flags.items() if value is not None}
    )


def role_extras(job: JobFile) -> dict[str, RoleExtras]:
    """Collect what tasks of each role get beside the arguments of the job."""
    return {
        name: RoleExtras(tuple(role.arguments), {**job.environment, **role.environment})
        for name, role in job.present
    }


def local_program(job: JobFile, folder: Path) -> Program:
    """Find the program of a job, whose path is relative to the folder of its file.

    Raises:
        ConfigurationError: There is none.
    """
    if job.module:
        return find_program(job.module, module=True)
    return find_program(str(folder / job.program))


@dataclass(frozen=True)
class LocalLauncher:
    """Processes of this machine, which end with this one.

    Attributes:
        folder: Folder of the job file.
        settings: Settings of every task, made by :func:`local_settings`; ``model_dir`` is set.
        plain: Lines instead of a progress bar.
        resume: The command that would go on with this job, for people.
        restarts: Number of times that a lost chief is started again.
    """

    folder: Path
    settings: Settings
    plain: bool = True
    resume: str = ""
    restarts: int = 0

    def render(self, job: JobFile) -> str:
        """Render a line per process: its task, its variables and what it runs."""
        lines = [
            f"# {counted(len(job.tasks), 'process', 'processes')} of this machine, at free ports "
            "of 127.0.0.1",
            f"# model directory: {self.settings.model_dir}",
        ]
        shared, extras = self.settings.environment(), role_extras(job)
        for task in job.tasks:
            own = extras[task.type].environment
            variables = [
                f"{name}={shlex.quote(value)}"
                for name, value in {**own, **shared}.items()
                if name != "ROPEWALK_MODEL_DIR"
            ]
            words = [*variables, shlex.join(self._command(job, task))]
            lines.append(f"{task.short}: {' '.join(words)}")
        return "\n".join(lines) + "\n"

    def _command(self, job: JobFile, task: "TaskId") -> list[str]:
        command = job.command(task.type)
        if job.program:
            path = str(self.folder / job.program)
            command = [path if word == job.program else word for word in command]
        return command

    def start(self, job: JobFile) -> int:
        """Run the job to its end; its exit code."""
        from ...launch.local.run import LocalJob

        program = local_program(job, self.folder)
        cluster = local_cluster(job)
        cluster.check_restarts(self.restarts)
        display = choose_display(cluster.tasks(), plain=self.plain)
        try:
            local = LocalJob(
                cluster,
                program,
                job.arguments,
                self.settings,
                display,
                self.resume,
                role_extras(job),
                restarts=self.restarts,
            )
            with local.signals():
                result = local.run()
        finally:
            display.close()
        local.show_result(result)
        return result.exit_code


class LocalJobFile:
    """A job file that is run on this machine.

    Args:
        path: Path of the job file.
        counts: Number of tasks by role, where the command line says them; of workers, ``auto`` too.
        flags: Settings that the command line says, by name.

    Raises:
        ConfigurationError: The file is no job, or names no program that there is.
    """

    def __init__(
        self, path: str, counts: Mapping[str, int | str], flags: Mapping[str, Any]
    ) -> None:
        numbers = {role: each for role, each in counts.items() if isinstance(each, int)}
        self._job = read_job(path).with_counts(numbers)
        if counts.get(WORKER) == AUTO:
            count = workers_for_gpus(local_cluster(self._job), machines_gpus())
            self._job = self._job.with_counts({WORKER: count})
        self._folder = Path(path).parent
        self.program = local_program(self._job, self._folder)
        self.settings = local_settings(self._job, flags)

    def render(self, settings: Settings) -> str:
        """Render what :meth:`run` would start."""
        return LocalLauncher(self._folder, settings).render(self._job)

    def run(self, settings: Settings, *, plain: bool, resume: str, restarts: int) -> int:
        """Run the job to its end; its exit code. For arguments see :class:`LocalLauncher`."""
        launcher = LocalLauncher(self._folder, settings, plain, resume, restarts)
        return launcher.start(self._job)
