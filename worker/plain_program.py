"""A program that plain ``python`` started, as a task of its cluster.

``ropewalk run`` joins the cluster and then runs the program. Here the program runs already: its
first strategy joins, a ps serves in the program's place, and what follows the program (telling the
chief, waiting for the end of the job, the exit code) is done when the interpreter exits.
"""

import atexit
import concurrent.futures.thread  # noqa: F401 - before _register_atexit below
import logging
import os
import signal
import sys
import threading
from functools import cache
from typing import TYPE_CHECKING, NoReturn

from ..cluster.resolvers.launchers import environment_resolver
from ..cluster.resolvers.resolved import (
    ResolvedTask,
    coordinator_of,
    resolve,
    servers_to_coordinate,
)
from ..cluster.resolvers.resolver import ClusterResolver
from ..cluster.spec import CHIEF, EVALUATOR, PS, WORKER, ps_of
from ..core.errors import ConfigurationError, JobDoneError, JobStoppedError, RopewalkError
from ..core.process.frameworks import unshared_steps_warning
from ..core.settings import Settings, load_settings, quiet_grpc
from ..net.auth.credentials import with_own_job
from ..net.this_machine import own_host_towards
from .process.event_file import KeptEvents
from .process.program import ProgramEnd, set_exit_code
from .process.surroundings import begin_task_process, check_limits, set_up_logging
from .running_task import RunningTask, task_of_role

if TYPE_CHECKING:
    from ..distribute.runtime import ClusterRuntime

log = logging.getLogger(__name__)
_process: "list[_PlainProcess]" = []  # at most one


def join(resolver: ClusterResolver | None, *, synchronous: bool) -> "ClusterRuntime | None":
    """Join the cluster; None if this process is all of it. See ``distribute.program_cluster``.

    Raises:
        RopewalkError: TF_CONFIG, or what the launcher says, is not valid, or the task cannot join.
        SystemExit: This was a ps, and the job is over.
    """
    try:
        task = _task_of(resolver, synchronous=synchronous)
        settings = load_settings()
    except RopewalkError:
        _this_process()  # from now on an uncaught error ends it with the error's exit code
        raise
    if task.is_local and task.task.type not in (EVALUATOR, PS):
        if settings.model_dir:
            _warn_of_model_dir(settings.model_dir)
        _warn_of_unshared_steps()
        return None
    _refuse_second_import(task)
    process = _this_process()
    check_python(sys.version_info[:3])
    if synchronous and (task.task.type not in (CHIEF, WORKER) or ps_of(task.spec)):
        return None  # no task of such a job: the strategy says so
    process.events = KeptEvents(task.task, settings)
    process.events.start()
    begin_task_process(task, settings)
    quiet_grpc()
    _log_unless_the_program_does(settings)
    check_limits()
    settings = with_own_job(settings)
    if task.task.type == PS:
        from .daemon import run_ps

        process.exit(run_ps(task, settings))
    run = RunningTask(task_of_role(task, settings), settings)
    try:
        runtime = run.join()
    except (JobStoppedError, JobDoneError) as error:
        process.exit(int(error.exit_code))
    process.run = run
    return runtime


def _task_of(resolver: ClusterResolver | None, *, synchronous: bool) -> ResolvedTask:
    spec = servers_to_coordinate(resolver) if resolver is not None and not synchronous else None
    if spec is None:
        return resolve(resolver or environment_resolver())
    return coordinator_of(spec, own_host_towards(spec.task_address(PS, spec.task_indices(PS)[0])))


def _refuse_second_import(task: ResolvedTask) -> None:
    """Refuse to join where multiprocessing imports the program's module in a process of its own."""
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and hasattr(processes.current_process(), "_inheriting"):
        raise ConfigurationError(
            f"{task.task} has its process already, and multiprocessing imports the program's "
            "module again in another one, as it does for a DataLoader's workers that are not "
            "forked: make the strategy in a function that is called under `if __name__ == "
            '"__main__":`'
        )


@cache
def _warn_of_unshared_steps() -> None:
    """Warn at the program's end if its optimizers have made steps outside of its strategy."""

    def warn() -> None:
        if unshared := unshared_steps_warning():
            log.warning("%s", unshared)

    atexit.register(warn)


@cache
def _warn_of_model_dir(model_dir: str) -> None:
    log.warning(
        "ROPEWALK_MODEL_DIR=%s is not used: this process is alone, and nobody saves. Start the "
        "program with `ropewalk run` to save and resume, or save from it with rw.train.Checkpoint",
        model_dir,
    )


def check_python(version: tuple[int, ...]) -> None:
    """Refuse a Python whose programs cannot leave a job in order.

    Args:
        version: Major, minor and micro.

    Raises:
        ConfigurationError: It is 3.12.0 to 3.12.2, which start no thread any more when the program
            has ended (CPython gh-113964).
    """
    if (3, 12, 0) <= version < (3, 12, 3):
        name = ".".join(map(str, version))
        raise ConfigurationError(
            f"Python {name} starts no threads at the end of a program, which a task "
            "needs to leave its job; start it by `ropewalk run`, or use Python 3.12.3 or later",
            python=version,
        )


class _PlainProcess:
    """A process whose program Python itself runs: joins the job, and leaves it when the program
    ends.
    """

    def __init__(self) -> None:
        self.run: RunningTask | None = None
        self.events: KeptEvents | None = None
        self._code: int | None = None
        self._end = ProgramEnd()
        self._pid = os.getpid()
        # Not atexit: by then no thread starts, and pools take no work. Those of concurrent.futures
        # close in a function registered in the same way, and the last one is called first.
        threading._register_atexit(self._leave)  # type: ignore[attr-defined]

    def exit(self, code: int) -> NoReturn:
        """End the program in place of its own code; the exit code says why."""
        self._code = code
        sys.exit(code)

    def _leave(self) -> None:
        if os.getpid() != self._pid:
            return  # a fork that ends by itself
        code = self._code if self._code is not None else self._end_of_program()
        if self.events is not None:
            self.events.close(is_well=not code)
        if code:  # else Python's own, which is not 0 if the program raised SystemExit by hand
            set_exit_code(code)
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)  # a late one must not change the code

    def _end_of_program(self) -> int:
        ending = self._end.ending()
        if self.run is not None:
            return self.run.leave(ending)
        if ending.message and not ending.shown:
            log.error("%s", ending.message)
        return ending.code


def _this_process() -> _PlainProcess:
    if not _process:
        _process.append(_PlainProcess())
    return _process[0]


def _log_unless_the_program_does(settings: Settings) -> None:
    if not (logging.getLogger("ropewalk").handlers or logging.getLogger().handlers):
        set_up_logging(settings)
