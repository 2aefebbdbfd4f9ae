"""The process of one task: signals, the end of its launcher, and the role's work until exit."""

import atexit
import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

from ..cluster.resolvers.resolved import ResolvedTask
from ..cluster.spec import CHIEF, EVALUATOR, PS, WORKER, ClusterSpec, ps_of
from ..core.checkpoint.folder import keep_folder
from ..core.errors import (
    ConfigurationError,
    JobDoneError,
    JobStoppedError,
    PeerLostError,
    RopewalkError,
)
from ..core.exit_codes import ExitCode
from ..core.process.frameworks import quick_loading
from ..core.process.threads import new_thread, nobody_waits
from ..core.public_face import load_public_names
from ..core.settings import Settings, take_environment
from ..core.task import Outcome, TaskId
from ..net.auth.credentials import with_own_job
from .process.event_file import kept_events
from .process.program import Ending, ErrorReport, Program, run_program, take_error_report
from .process.start_watch import StartWatch
from .process.surroundings import begin_task_process, check_limits, handle_signals
from .running_task import RunningTask, task_of_role

if TYPE_CHECKING:
    from .job_task import JobTask

    RunProgram = Callable[[JobTask, Settings], int]


def run_task(
    task: ResolvedTask, settings: Settings, program: Program | None, arguments: Sequence[str]
) -> int:
    """Run a task in its role until it ends; returns the exit code. Call from the main thread.

    Args:
        task: The task of this process.
        settings: The task's settings.
        program: The user's program; a ps needs none.
        arguments: The program's arguments.

    Raises:
        RopewalkError: The task could not start.
    """
    _watch_parent_death()
    report = take_error_report()
    watch = StartWatch(task.task)
    watch.begin()
    try:
        begin_task_process(task, settings)
        check_limits()
        settings = _with_kept_paths(with_own_job(settings))
        run = partial(_run_program, program, arguments, report, watch) if program else None
        with kept_events(task.task, settings) as kept:
            code = _run_role(task, settings, run, watch)
            kept.close(is_well=code == ExitCode.DONE)
    except RopewalkError as error:
        is_usual = isinstance(error, JobStoppedError | JobDoneError)  # the log has it
        if not is_usual and not report.write(f"{error.message}\n"):
            raise
        code = error.exit_code
    finally:
        watch.over()
    keep_exit_code(code)
    return code


def _with_kept_paths(settings: Settings) -> Settings:
    """Return settings whose paths mean the same when the program changes its working directory."""
    if settings.model_dir:
        keep_folder(settings.model_dir)
    paths = {name: getattr(settings, name) for name in ("key_file", "token_file")}
    return settings.model_copy(update={name: _from_here(path) for name, path in paths.items()})


def _from_here(path: str) -> str:
    is_relative = path and not path.startswith(("/", "~"))
    return os.path.join(os.getcwd(), path) if is_relative else path


# For a task beside another one in this process.
_NO_PORTS = {"health_port": 0, "metrics_port": 0}


def run_leader(task: ResolvedTask, settings: Settings) -> int:
    """Lead a job whose program runs elsewhere; returns the exit code.

    Raises:
        RopewalkError: The job cannot be led.
    """
    from .lead.outside_program import lead

    _watch_parent_death()
    check_limits()
    begin_task_process(task, settings)
    settings = with_own_job(settings)
    with kept_events(task.task, settings) as kept:
        code = lead(task, settings)
        kept.close(is_well=code == ExitCode.DONE)
    keep_exit_code(code)
    return code


def keep_exit_code(code: int) -> None:
    """Have SIGTERM and SIGINT end the process at once, with this exit code, from now on."""

    def leave(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def ignore() -> None:
        # At its end the interpreter restores default actions, except for ignored signals.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    atexit.register(ignore)


def _run_role(
    task: ResolvedTask, settings: Settings, run: "RunProgram | None", watch: StartWatch
) -> int:
    if task.task.type == PS:
        return run_ps(task, settings, watch)
    if run is None and task.task.type == WORKER and not task.is_chief and ps_of(task.spec):
        watch.over()  # the process that is forked starts, and this one waits for it
        return run_closures(task, settings)
    if run is None:
        raise ConfigurationError(f"this process is {task.task}: give the SCRIPT it should run")
    if task.is_local and task.task.type != EVALUATOR:
        return _run_alone(task, settings, run)
    with quick_loading():
        load_public_names("ropewalk.distribute")
        own = task_of_role(task, settings)
        if task.is_chief:  # before the program's folder is where modules are looked for
            from .lead import leader  # noqa: F401
    return run(own, settings)


def run_ps(task: ResolvedTask, settings: Settings, watch: StartWatch | None = None) -> int:
    """Serve variables until the job is over; returns the exit code."""
    with quick_loading():
        from ..server.ps.server import PsServer
        from .ps_joining import PsOffer

    server = PsServer(task.task, settings, has_chief=CHIEF in task.spec.jobs)
    server.start(task.address)
    if not settings.rule_modules:  # only our own code runs in this process
        gc.freeze()  # a full collection of what is loaded would stop every session for a while
    if watch is not None:
        watch.over()
    handle_signals(lambda _: server.drain())
    offer = PsOffer(task, settings, server.lease)
    offer.start()
    code = server.wait()
    offer.close()
    server.stop()
    return code


def run_closures(task: ResolvedTask, settings: Settings) -> int:
    """Run a coordinator's closures until the job is over; returns the exit code.

    Closures run in a process of their own: one that ends it costs the worker a moment.
    """
    # Loaded here, once for all processes.
    from .closures import ClosureProcesses

    load_public_names("ropewalk.distribute")
    return ClosureProcesses(
        lambda joined: _serve_closures(task, settings, joined), str(task.task)
    ).run()


def _serve_closures(task: ResolvedTask, settings: Settings, joined: Callable[[], None]) -> int:
    from ..distribute.program_cluster import in_cluster
    from .closures import serve_closures
    from .data_plane.servers import ServersPlane
    from .job_task import JobTask

    run = RunningTask(JobTask(task, settings, ServersPlane(task, settings), serves=True), settings)
    runtime = run.join()
    joined()
    with in_cluster(runtime, all_threads=True):
        ending = serve_closures(runtime, may_end_process=True)
    return run.leave(ending)


def _run_alone(task: ResolvedTask, settings: Settings, run: "RunProgram") -> int:
    """Run a ps and the chief in this process, on loopback."""
    with quick_loading():
        from ..server.ps.server import PsServer
        from .data_plane.servers import ServersPlane
        from .job_task import JobTask

        load_public_names("ropewalk.distribute")
    ps = TaskId(PS, 0)
    server = PsServer(ps, settings.model_copy(update={"host": "127.0.0.1", **_NO_PORTS}))
    server.start("127.0.0.1:0")
    chief = TaskId(CHIEF, 0)
    spec = ClusterSpec({CHIEF: ["127.0.0.1:0"], PS: [f"127.0.0.1:{server.port}"]})
    whole = ResolvedTask(chief, spec, chief, address="127.0.0.1:0", read_from=task.read_from)
    alone = settings.model_copy(update={"host": "127.0.0.1"})
    own = JobTask(whole, alone, ServersPlane(whole, alone, here=server))
    try:
        return run(own, alone)
    finally:
        server.stop()


def _run_program(
    program: Program,
    arguments: Sequence[str],
    report: ErrorReport,
    watch: StartWatch,
    task: "JobTask",
    settings: Settings,
) -> int:
    from ..distribute.program_cluster import while_joining

    run = RunningTask(task, settings)
    watch.over()  # the thread that joins has one of its own
    try:
        run.begin_to_join()
    except PeerLostError:
        if _has_failed_for_good(task, report):
            return int(ExitCode.JOB_FAILED)
        raise
    with while_joining(run.joined):
        ending = run_program(program, arguments, report.show)
    if (error := run.join_error()) is not None:
        return _code_without_joining(ending, error, task, report)
    if ending.message and not ending.shown:
        report.write(f"{ending.message}\n")
    code = run.leave(ending)
    is_over = code == ExitCode.PEER_LOST and _has_failed_for_good(task, report)
    return int(ExitCode.JOB_FAILED) if is_over else code


def _code_without_joining(
    ending: Ending, error: BaseException, task: "JobTask", report: ErrorReport
) -> int:
    """Return the exit code of a program whose task could not join.

    Raises:
        RopewalkError: ``error``, unless the program has failed by itself.
    """
    if ending.outcome is Outcome.FAILED:
        return ending.code  # which has been shown
    if isinstance(error, PeerLostError) and _has_failed_for_good(task, report):
        return int(ExitCode.JOB_FAILED)
    raise error


def _has_failed_for_good(task: "JobTask", report: ErrorReport) -> bool:
    """Return whether the job of this chief has failed by a task that will not come back; reports
    why.

    The parent in its container would start it again else, to wait for that task.
    """
    if not (report.has_parent and task.leads_what_failed_for_good):
        return False
    report.write(f"{task.reason}\n")
    return True


def _watch_parent_death() -> None:
    """End when the launcher that started this process ends, even by SIGKILL.

    The launcher holds the other end of a pipe, which closes with it.
    """
    number = take_environment("ROPEWALK_PARENT_DEATH_FD")
    if not number.isdigit():
        return

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(int(number), 1):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(10)
        os._exit(137)

    new_thread("parent-death", watch, failed=nobody_waits).start()
