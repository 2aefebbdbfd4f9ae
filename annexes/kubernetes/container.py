"""The parent process of the task in a container: it starts the task again when a peer was lost.

A job of several containers goes on only when all of them do. A launcher of containers waits longer
and longer before it starts one again, and counts how often. So a task that has only followed
another one, or was killed from outside, is started again here, and the launcher hears of what this
container has done itself. What is started again, and when, is decided in
``cluster/supervision/decisions.py``.

The task writes to the output of the container itself. Its exit code is the container's.
"""

import contextlib
import logging
import os
import queue
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...cluster.resolvers.resolved import ResolvedTask
from ...cluster.resolvers.tf_config import TF_CONFIG
from ...cluster.spec import PS, TASK_TYPES
from ...cluster.supervision.decisions import Supervision, TaskRun
from ...cluster.supervision.policy import (
    Cause,
    End,
    Ended,
    EndingStep,
    Event,
    JobNeeds,
    Measure,
    Policy,
    Restarts,
    Signal,
    StartAgain,
    StopRequested,
    Tick,
)
from ...core.errors import RopewalkError
from ...core.exit_codes import ExitCode, describe_exit, is_retryable, shell_status
from ...core.process.processes import inherit_orphans, out_of_memory_kills
from ...core.process.threads import new_thread, nobody_waits
from ...core.settings import Settings, launcher_variables, read_environment
from ...core.task import TaskId
from ...launch.processes.executor import Executor, Work
from ...launch.processes.process import (
    ParentDeathPipe,
    TaskProcess,
    on_interrupts,
    start_python,
    task_environment,
)
from ...worker.process.program import ERROR_COPY, read_report
from .requests import require_client
from .settings import ENDS_JOB, HOLDS
from .shipped_code import enter_shipped_code

if TYPE_CHECKING:
    from ...net.sockets import HeldPort

log = logging.getLogger(__name__)

# -- Orphans: processes whose parent has ended, and which the first process of a container
# inherits
#
# A process that ends stays in the system's table until its parent has asked for its exit status.
# In a container the parent of orphans is the container's own process, so that one has to ask.

_POLL_S = 0.1


def end_children(timeout_s: float) -> None:
    """Kill every child of this process and what it inherits from them, and wait for their ends.

    Args:
        timeout_s: Longest time to wait. Unit: seconds.
    """
    until = time.monotonic() + timeout_s
    while (left := _running_children()) and time.monotonic() < until:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S / 10)


def _running_children() -> set[int]:
    """Find the children of this process that have not ended."""
    own, children = os.getpid(), set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it is gone
            # The name in parentheses may have any bytes; state and parent are the words behind it.
            state, parent = entry.read_bytes().rpartition(b")")[2].split()[:2]
            if int(parent) == own and state != b"Z":
                children.add(int(entry.parent.name))
    return children


class Reaper:
    """Asks for the exit status of orphans, in a thread."""

    def __init__(self) -> None:
        self._own: set[int] = set()
        self._starting = threading.Lock()
        self._stop = threading.Event()

    def start(self) -> None:
        """Begin."""
        new_thread("reaper", self._reap, failed=nobody_waits).start()

    def stop(self) -> None:
        """End soon."""
        self._stop.set()

    def own(self, start: Callable[[], TaskProcess]) -> TaskProcess:
        """Start a process whose status is asked for elsewhere."""
        with self._starting:  # it may have ended when this returns
            process = start()
            self._own.add(process.process.pid)
        return process

    def _reap(self) -> None:
        while not self._stop.is_set():
            if not self._reap_one():
                self._stop.wait(_POLL_S)

    def _reap_one(self) -> bool:
        """Ask for the status of one orphan that has ended; False: there is none."""
        with self._starting:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            except ChildProcessError:
                return False
            if ended is None or ended.si_pid in self._own:
                return False
            with contextlib.suppress(ChildProcessError):
                os.waitpid(ended.si_pid, os.WNOHANG)
            return True


TERMINATION_LOG = Path("/dev/termination-log")
"""File from which the kubelet reads why a container has ended; it makes the file."""

_INDEX_IN_JOB = "JOB_COMPLETION_INDEX"
_END_S = 5.0  # for what a task has left to be gone
_MOST_MESSAGE = 1024  # of the 4096 bytes that the kubelet reads
# Peers that were lost together come back together, within seconds.
_AFTER_PEERS = Restarts(after_peers=True, after_kill=True, first_wait_s=0.5, longest_wait_s=8.0)


def container_policy(task: TaskId) -> Policy:
    """Make the policy for the only task of a container; it is the chief of its container."""
    return Policy(
        JobNeeds(task),
        # SIGTERM is passed on; who sent it kills when the time is over.
        ending={Cause.REQUESTED: (EndingStep(0.0, Measure.ASK),)},
        restarts=dict.fromkeys(TASK_TYPES, _AFTER_PEERS),
    )


def run_supervised(task: ResolvedTask, arguments: Sequence[str], settings: Settings) -> int:
    """Run ``ropewalk ARGUMENTS`` as a task of this container until it ends for good.

    Args:
        task: The task and its cluster.
        arguments: Arguments of the command, as this process got them.
        settings: Settings of this process, which are the task's.

    Returns:
        The exit code of the container.

    Raises:
        MissingExtraError: This container ends its job, and the client of Kubernetes is not there.
        OSError: The task cannot be started.
    """
    if task.is_chief and read_environment(ENDS_JOB):
        require_client()
    stop = threading.Event()
    holds = bool(read_environment(HOLDS))
    with (
        tempfile.TemporaryDirectory(prefix="ropewalk-container-") as folder,
        on_interrupts(lambda _: stop.set()),
    ):
        ended = _ended_before(settings) if holds and task.is_chief else None
        with _held_port(task, settings) as port:
            report = Path(folder) / "error"
            container = Container(task.task, arguments, settings, report, port=port)
            code, error = ended or _run(container)
        if container.was_asked_to_stop:
            stop.set()
        code = code_for_launcher(
            task.task,
            code,
            asked_to_stop=container.was_asked_to_stop,
            in_job=bool(read_environment(_INDEX_IN_JOB)),
        )
        write_termination_message(TERMINATION_LOG, code, error)
        is_over = code == 0
        if task.is_chief:
            from .job_end import end_job

            reason = _sentence(code, error)
            is_over |= end_job(settings.job_id, task.task.type, code, reason=reason, stop=stop)
        if holds and is_over:
            _hold(task, settings, stop)
        return code


@contextlib.contextmanager
def _held_port(task: ResolvedTask, settings: Settings) -> "Iterator[HeldPort | None]":
    """Keep the port for probes open as long as tasks come and go; None: there is none, or it is
    taken, which the task says.
    """
    if not settings.health_port:
        yield None
        return
    from ...net.sockets import HeldPort
    from ...worker.process.probes import probe_address

    try:
        held = HeldPort(probe_address(task, settings))
    except (OSError, RopewalkError):
        yield None
        return
    with held:
        yield held


def _ended_before(settings: Settings) -> tuple[int, str] | None:
    from .job_end import ended_before

    ended = ended_before(settings.job_id)
    if ended is not None:
        log.info("the job is over already, with exit code %d: nothing is left to do", ended[0])
    return ended


def _hold(task: ResolvedTask, settings: Settings, stop: threading.Event) -> None:
    """Stay until ``stop``, and answer probes: whatever ends is started again by a StatefulSet."""
    from ...worker.process.probes import Probes

    log.info("%s: nothing is left to do here; waiting for the end of the job", task.task)
    probes = Probes(task, settings)
    probes.start()
    stop.wait()
    probes.stop()


def code_for_launcher(task: TaskId, code: int, *, asked_to_stop: bool, in_job: bool) -> int:
    """Choose the exit code that tells the launcher of a container what is to follow. Pure.

    A ps that hands over what it has ends with 0, while its job goes on. A StatefulSet replaces it
    whatever its code is; to a Job, as a JobSet has it for the ps, 0 says that its part is over. One
    that left before it could is no failure of its container, which was asked to stop.

    Args:
        task: The task.
        code: Exit code of the task.
        asked_to_stop: Whether this container was asked to stop.
        in_job: Whether a Job of Kubernetes has made its pod.
    """
    may_be_wanted = task.type == PS and code == 0 and in_job
    drained = asked_to_stop and (may_be_wanted or code == ExitCode.LEFT_EARLY)
    return int(ExitCode.DRAINED) if drained else code


def _run(container: "Container") -> tuple[int, str]:
    """Run the task with the code that was shipped to it; exit code, and what it reports."""
    try:
        enter_shipped_code()
    except RopewalkError as error:
        log.error("%s", error.message)
        return int(error.exit_code), error.message
    return container.run(), container.error


class Container:
    """A task and its parent process, which is this one. Use once, from the main thread.

    Args:
        task: The task.
        arguments: Arguments of the ``ropewalk`` command that runs it.
        settings: Settings of the task.
        report: File in which the task writes why it ends.
        memory_kills: Counts the container's processes that were killed so far because memory ran
            out; None: the system does not report it.
        port: Listens for probes, of one task after the other; None: none does.
    """

    def __init__(
        self,
        task: TaskId,
        arguments: Sequence[str],
        settings: Settings,
        report: Path,
        memory_kills: Callable[[], int | None] = out_of_memory_kills,
        port: "HeldPort | None" = None,
    ) -> None:
        self._task = task
        self._arguments = list(arguments)
        self._settings = settings
        self._report = report
        self._port = port
        self._run = TaskRun()
        self._supervision = Supervision({task: self._run}, container_policy(task))
        self._executor = Executor[TaskId](0.0, failed=nobody_waits)
        self._news: queue.SimpleQueue[Event | Exception] = queue.SimpleQueue()
        self._death_pipe = ParentDeathPipe()
        self._reaper = Reaper()
        self._last_code = 0
        self._memory_kills = memory_kills
        self._kills_before: int | None = None

    def run(self) -> int:
        """Run the task until it ends for good; returns its exit code, as a shell shows it.

        Raises:
            OSError: It cannot be started.
        """
        inherit_orphans()
        self._reaper.start()
        with on_interrupts(self._ask_to_stop):
            try:
                self._start()
                while not self._supervision.has_ended:
                    self._take_news()
            finally:
                self._reaper.stop()
                self._death_pipe.close()
        return shell_status(self._run.code or 0)

    @property
    def error(self) -> str:
        """Report of the task about its end; empty if there is none."""
        return read_report(self._report)

    @property
    def was_asked_to_stop(self) -> bool:
        """Whether this process was asked to stop while the task ran."""
        return bool(self._supervision.stop_reason)

    def _ask_to_stop(self, number: signal.Signals) -> None:
        self._news.put(StopRequested(number.name))

    def _start(self) -> None:
        self._report.unlink(missing_ok=True)
        self._kills_before = self._memory_kills()
        tf_config = read_environment(TF_CONFIG)
        work = Work(self._task.short, tf_config, self._make, self._ended)
        self._executor.start(self._task, work)

    def _make(self) -> TaskProcess:
        own = self._settings.model_copy(update={"supervise": False}).environment()
        told = {**launcher_variables(), **own, ERROR_COPY: str(self._report)}
        kept = []
        if self._port is not None:
            kept = [self._port.number]
            told |= self._port.variables
        variables = task_environment(told, self._death_pipe)
        command = ["ropewalk.launch.cli", *self._arguments]

        def start() -> TaskProcess:
            process = start_python(command, variables, self._death_pipe, output=None, further=kept)
            return TaskProcess(self._task, process, [])

        return self._reaper.own(start)

    def _ended(self, outcome: int | Exception) -> None:
        end_children(_END_S)
        if isinstance(outcome, Exception):
            self._news.put(outcome)
            return
        # A task that takes more memory than its container has would do so again, and its launcher
        # should know. Where the system does not say, any kill may have been for that.
        kills = self._memory_kills()
        was_outside = kills is not None and kills == self._kills_before
        can_restart = outcome != -signal.SIGKILL or was_outside
        self._news.put(Ended(End(self._task, outcome), can_restart))

    def _take_news(self) -> None:
        try:
            news = self._news.get(timeout=_POLL_S)
        except queue.Empty:
            news = Tick()
        if isinstance(news, Exception):
            raise news
        if isinstance(news, Ended):
            self._last_code = news.end.code
        self._handle(news)

    def _handle(self, event: Event) -> None:
        for order in self._supervision.handle(event, time.monotonic()):
            match order:
                case Signal():
                    self._executor.send(self._task, signal.SIGTERM)
                case StartAgain(task, attempt):
                    why = describe_exit(self._last_code)
                    log.warning("%s starts again here, for time %d: %s", task, attempt, why)
                    self._start()


def write_termination_message(file: Path, code: int, report: str) -> None:
    """Write for the status of the pod how its container ended: a name and a sentence.

    Without a report of a code that is permanent nothing is written: the kubelet then shows the last
    lines of the log (``terminationMessagePolicy: FallbackToLogsOnError``), which say more.

    Args:
        file: Path of that message; outside of Kubernetes it is not there, and nothing happens.
        code: Exit code of the container.
        report: Report of the task: its last line is the sentence.
    """
    lines = report.strip().splitlines()
    if code == 0 or not (lines or is_retryable(code)) or not file.is_file():
        return
    try:
        file.write_text(_sentence(code, report), errors="replace")
    except OSError as error:
        log.warning("the reason is not in the pod's status: %s", error)


def _sentence(code: int, report: str) -> str:
    """Write a name and a sentence for an exit code that is not 0."""
    if code == 0:
        return ""
    known = {int(each): each.name for each in ExitCode}
    lines = report.strip().splitlines()
    said = lines[-1] if lines else describe_exit(code)
    return f"{known.get(code, 'exit')} ({code}): {said}"[:_MOST_MESSAGE]
