"""Clusters for tests: of threads in this process, or of real processes of this machine.

::

    with rw.testing.LocalCluster(workers=2, ps=2) as cluster:
        losses = cluster.run(train)  # every task in a thread, real sockets on loopback

    result = rw.testing.run_script("train.py", workers=2, ps=2,
                                   faults=rw.testing.FaultPlan().kill("worker", 1, at_step=20))
    assert result.exit_code == 0
"""

import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from rich.table import Table

from .client.chief.calls import JobStatus
from .cluster.resolvers.resolved import ResolvedTask
from .cluster.spec import CHIEF, PS, WORKER, ClusterSpec, chief_of
from .core.errors import JobDoneError, ProgramError, RopewalkError
from .core.exit_codes import ExitCode
from .core.public_face import public_getattr
from .core.settings import Settings, load_settings
from .core.task import Outcome, TaskId
from .core.terminal import Shown
from .distribute.program_cluster import in_cluster
from .launch.local.cluster import LocalRoles
from .launch.local.result import LocalResult
from .launch.local.run import LocalJob
from .net.this_machine import free_ports
from .server.ps.server import PsServer
from .worker.data_plane.servers import ServersPlane
from .worker.job_task import JobTask
from .worker.process.program import Ending, find_program

__all__ = ["FaultPlan", "LocalCluster", "ProcessResult", "TaskResult", "run_script"]

_T = TypeVar("_T")

# Short enough that a broken test ends soon, long enough for a loaded machine.
_TEST_SETTINGS: dict[str, Any] = {
    "join_timeout_s": 30.0,
    "heartbeat_s": 0.1,
    "lease_s": 5.0,
    "reconnect_timeout_s": 5.0,
    "drain_grace_s": 0.5,
}


@dataclass(frozen=True, slots=True)
class TaskResult(Generic[_T]):
    """The end of one task's program: ``value``, or the ``error`` it raised."""

    value: _T | None = None
    error: BaseException | None = None


class LocalCluster(Shown):
    """Parameter servers, a chief and workers in threads of this process, over real gRPC on
    loopback.

    Args:
        workers: Worker tasks.
        ps: Parameter servers.
        chief: Whether there is a chief; else worker 0 leads.
        settings: Settings of every task; see ``ropewalk.core.settings``. Timeouts are short unless
            given.

    Raises:
        ValueError: There is no ps, or no task that runs a program.
    """

    def __init__(
        self, *, workers: int = 1, ps: int = 1, chief: bool = True, **settings: Any
    ) -> None:
        if ps < 1 or workers < 0 or not (workers or chief):
            raise ValueError(
                f"LocalCluster(workers={workers}, ps={ps}, chief={chief}): it needs at least one "
                "ps, and a chief or a worker. Workers without a ps train in sync: run_script with "
                "ps=0, or MirroredStrategy with rw.config.set_logical_cpu_devices(n)"
            )
        self._settings: Settings = load_settings(_TEST_SETTINGS | settings)
        self._servers = [PsServer(TaskId(PS, i), self._settings) for i in range(ps)]
        self._chief, self._workers = chief, workers
        self._tasks: dict[TaskId, JobTask] = {}
        self._failed: list[TaskId] = []  # in the order in which their programs raised
        self.spec = ClusterSpec({})

    def _shown(self) -> dict[str, Any]:
        return {"ps": len(self._servers), "workers": self._workers}

    def __enter__(self) -> Self:
        for server in self._servers:
            server.start("127.0.0.1:0")
        jobs = {PS: [f"127.0.0.1:{server.port}" for server in self._servers]}
        ports = iter(free_ports(self._workers + self._chief))
        if self._chief:
            jobs[CHIEF] = [f"127.0.0.1:{next(ports)}"]
        if self._workers:
            jobs[WORKER] = [f"127.0.0.1:{next(ports)}" for _ in range(self._workers)]
        self.spec = ClusterSpec(jobs)
        return self

    def __exit__(self, *_: object) -> None:
        for task in self._tasks.values():
            task.close()
        for server in self._servers:
            server.stop(grace_s=0)

    @property
    def servers(self) -> list[PsServer]:
        """The parameter servers, for inspection."""
        return self._servers

    def status(self) -> JobStatus | None:
        """Ask for the job, as the chief sees it; None before it has begun."""
        chief = self._tasks.get(chief_of(self.spec))
        return chief.status() if chief is not None else None

    def run(self, program: Callable[[], _T]) -> dict[TaskId, _T]:
        """Run ``program`` as chief and workers, each in a thread; what each returned.

        Raises:
            BaseException: What the first failing program raised.
        """
        results = self.run_all(program)
        for task in (*self._failed, *results):
            error = results[task].error
            if error is not None:
                raise error
        return {task: result.value for task, result in results.items()}  # type: ignore[misc]

    def run_all(
        self, program: Callable[[], _T], overrides: dict[TaskId, Callable[[], _T]] | None = None
    ) -> dict[TaskId, TaskResult[_T]]:
        """Run programs as :meth:`run` does, but return errors; ``overrides``: other programs for
        some tasks.
        """
        self._failed.clear()
        trainers = [task for task in self.spec.tasks() if task.type in (CHIEF, WORKER)]
        with ThreadPoolExecutor(len(trainers), thread_name_prefix="task") as pool:
            futures: dict[TaskId, Future[TaskResult[_T]]] = {
                task: pool.submit(self._run_one, task, (overrides or {}).get(task, program))
                for task in trainers
            }
            return {task: future.result() for task, future in futures.items()}

    def _run_one(self, task: TaskId, program: Callable[[], _T]) -> TaskResult[_T]:
        address = self.spec.task_address(task.type, task.index)
        chief = chief_of(self.spec)
        resolved = ResolvedTask(
            task, self.spec, chief, self.spec.task_address(chief.type, chief.index), address
        )
        member = JobTask(resolved, self._settings, ServersPlane(resolved, self._settings))
        self._tasks[task] = member
        result: TaskResult[_T]
        try:
            with in_cluster(member.start()):
                result = TaskResult(program())
            ending = Ending(Outcome.DONE, ExitCode.DONE)
        except JobDoneError:  # it came too late for a short job
            result, ending = TaskResult(), Ending(Outcome.DONE, ExitCode.DONE)
        except Exception as error:  # noqa: BLE001 - handed to the caller
            self._failed.append(task)
            result = TaskResult(error=error)
            retryable = isinstance(error, RopewalkError) and error.exit_code >= 128
            outcome = Outcome.LEFT if retryable else Outcome.FAILED
            ending = Ending(outcome, ExitCode.PROGRAM_FAILED, f"{type(error).__name__}: {error}")
        code = member.finish(ending)
        if code and result.error is None:
            return TaskResult(
                error=ProgramError(f"{task}: the job ended with {code}: {member.reason}", code=code)
            )
        return result


# -- real processes --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Fault:
    task: TaskId | None  # None: the launcher itself
    signal: signal.Signals
    at_step: int


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Faults to inject in a run: ``FaultPlan().kill("ps", 1, at_step=3)``.

    Steps are the job's global step, as the launcher sees it; 0 is as soon as the chief answers.
    """

    faults: tuple[_Fault, ...] = ()

    def kill(self, role: str, index: int = 0, *, at_step: int = 0) -> "FaultPlan":
        """Send SIGKILL: the task ends without cleaning up."""
        return self._and(_Fault(TaskId(role, index), signal.SIGKILL, at_step))

    def terminate(self, role: str, index: int = 0, *, at_step: int = 0) -> "FaultPlan":
        """Send SIGTERM: the task is asked to leave, as by Kubernetes."""
        return self._and(_Fault(TaskId(role, index), signal.SIGTERM, at_step))

    def pause(self, role: str, index: int = 0, *, at_step: int = 0) -> "FaultPlan":
        """Send SIGSTOP: the task hangs, with its connections open."""
        return self._and(_Fault(TaskId(role, index), signal.SIGSTOP, at_step))

    def interrupt(self, *, at_step: int = 0) -> "FaultPlan":
        """Press Ctrl-C at the launcher."""
        return self._and(_Fault(None, signal.SIGINT, at_step))

    def _and(self, fault: _Fault) -> "FaultPlan":
        return FaultPlan((*self.faults, fault))


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """The result of a run in processes.

    Attributes:
        exit_code: Exit code of the launcher.
        exits: Exit status of each task, as ``subprocess`` reports it.
        output: Lines per task, then the launcher's own under None.
        first_failure: The task that failed first.
        status: The last status from the chief.
        metrics: Metrics of the last evaluation.
        pids: Process ids of every task, to check that no process is left.
        stop_s: Time from the first fault to the end. Unit: seconds; 0 without a fault.
    """

    exit_code: int
    exits: dict[TaskId, int]
    output: dict[TaskId | None, list[str]]
    first_failure: TaskId | None
    status: JobStatus | None
    metrics: dict[str, float]
    model_dir: str
    pids: dict[TaskId, int]
    stop_s: float

    @property
    def text(self) -> str:
        """All output, for a failing test's message."""
        return "\n".join(
            f"{task.short if task else 'launcher'} | {line}"
            for task, lines in self.output.items()
            for line in lines
        )


@dataclass
class _Recorder:
    """A display that keeps everything."""

    output: dict[TaskId | None, list[str]] = field(default_factory=dict)
    width: int = 120

    def line(self, task: TaskId, text: str, *, is_error: bool) -> None:  # noqa: ARG002
        self.output.setdefault(task, []).append(text)

    def say(self, text: str, *, is_error: bool = False) -> None:  # noqa: ARG002
        self.output.setdefault(None, []).append(text)

    def progress(self, status: JobStatus, steps_per_s: float, waits: str = "") -> None:
        """Ignore progress: it changes with the speed of the machine."""

    def table(self, table: Table) -> None:  # noqa: ARG002
        self.output.setdefault(None, []).append("table of tasks")

    def close(self) -> None:
        """Do nothing: there is nothing to undo."""


def run_script(
    script: str,
    *arguments: str,
    model_dir: str,
    workers: int = 1,
    ps: int = 1,
    chief: bool = True,
    evaluator: bool = False,
    faults: FaultPlan | None = None,
    **settings: Any,
) -> ProcessResult:
    """Run a script on a cluster of real processes, as ``ropewalk local`` does. No process is left.

    Args:
        script: The program.
        arguments: Arguments of the program.
        model_dir: Folder of checkpoints; use pytest's ``tmp_path``.
        workers: Worker tasks.
        ps: Parameter servers.
        chief: Whether there is a chief.
        evaluator: Whether there is an evaluator.
        faults: Faults to inject.
        settings: Settings of every task. Timeouts are short unless given.
    """
    recorder = _Recorder()
    loaded = load_settings(_TEST_SETTINGS | {"model_dir": model_dir} | settings)
    job = LocalJob(
        LocalRoles(workers, ps, chief, evaluator), find_program(script), arguments, loaded, recorder
    )
    pending = list((faults or FaultPlan()).faults)
    struck: list[float] = []
    pids: dict[TaskId, int] = {}

    def on_status(status: JobStatus) -> None:
        if not pids:
            pids.update(
                {task: job.pid(task) for task in LocalRoles(workers, ps, chief, evaluator).tasks()}
            )
        for fault in list(pending):
            if status.global_step < fault.at_step:
                continue
            pending.remove(fault)
            struck.append(time.monotonic())
            if fault.task is None:
                job.stop(fault.signal.name)
            else:
                job.kill(fault.task, fault.signal)

    job.on_status = on_status
    result: LocalResult = job.run()
    ended = time.monotonic()
    job.show_result(result)
    return ProcessResult(
        result.exit_code,
        result.exits,
        recorder.output,
        result.first_failure,
        result.status,
        result.metrics,
        result.model_dir,
        pids,
        ended - struck[0] if struck else 0.0,
    )


if not TYPE_CHECKING:
    __getattr__ = public_getattr("ropewalk.testing", globals())
