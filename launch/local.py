"""``windlass local``: a whole cluster as processes of this machine.

Starts every task, shows their output and the job's progress, ends them in order, and prints every
task's result: the first failing task first, with its last lines of stderr.
"""

import contextlib
import json
import logging
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ..cluster.roles import CHIEF, EVALUATOR, PS, WORKER
from ..core.errors import WindlassError
from ..core.exit_codes import ExitCode, describe_exit, shell_status
from ..core.settings import Settings
from ..core.states import Outcome
from ..core.task import Incarnation, TaskId, new_job_id
from ..worker.program import find_script
from ..worker.status import STATUS_FILE, read_status
from .policy import on_exit
from .processes import Line, ParentDeathPipe, TaskProcess, free_ports, new_line_queue, start_task

if TYPE_CHECKING:
    from rich.table import Table

    from ..client.chief.calls import JobStatus
    from .plain import Display

log = logging.getLogger(__name__)

_POLL_S = 0.05
_STATUS_S = 0.3
# Ctrl-C ends the job within 5 s: first the chief saves, then the ps end, then SIGKILL.
_STOP_PS_AFTER_S = 3.5
_KILL_AFTER_S = 4.5


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """How many tasks of which role."""

    workers: int = 1
    ps: int = 1
    chief: bool = True
    evaluator: bool = False

    def tasks(self) -> list[TaskId]:
        """Every task, in the order in which they are started."""
        return [
            *[TaskId(PS, i) for i in range(self.ps)],
            *([TaskId(CHIEF, 0)] if self.chief else []),
            *[TaskId(WORKER, i) for i in range(self.workers)],
            *([TaskId(EVALUATOR, 0)] if self.evaluator else []),
        ]

    @property
    def synchronous(self) -> bool:
        """There are no ps and no chief's loop: every task needs all others."""
        return not self.ps

    @property
    def chief_task(self) -> TaskId:
        """The chief, or worker 0 in its place."""
        return TaskId(CHIEF, 0) if self.chief else TaskId(WORKER, 0)


@dataclass(slots=True)
class LocalResult:
    """The result of a local job.

    Attributes:
        exit_code: 0, or the first failing task's as a shell shows it.
        exits: Exit status per task, as ``subprocess`` reports it (negative: a signal).
        first_failure: The task that failed first, if any.
        status: The last status from the chief.
        metrics: Of the last evaluation.
    """

    exit_code: int
    exits: dict[TaskId, int]
    model_dir: str
    first_failure: TaskId | None = None
    status: "JobStatus | None" = None
    metrics: dict[str, float] = field(default_factory=dict)


class LocalJob:
    """One run of a local cluster. Use once, from one thread.

    Args:
        cluster: Its tasks.
        script: The user's program.
        arguments: Of the program.
        settings: For every task; ``model_dir`` must be set.
        display: Where output and progress go.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        script: str,
        arguments: Sequence[str],
        settings: Settings,
        display: "Display",
    ) -> None:
        self._cluster = cluster
        self._script = find_script(script)
        self._arguments = list(arguments)
        self._settings = settings
        self._display = display
        self._lines: queue.Queue[Line] = new_line_queue()
        self._processes: dict[TaskId, TaskProcess] = {}
        self._death_pipe = ParentDeathPipe()
        self._status: JobStatus | None = None
        self._over = threading.Event()
        self._stop_reason = ""
        self._stopping_since: float | None = None
        self._over_since: float | None = None
        self._first_failure: TaskId | None = None
        self._first_ps_end: float | None = None
        self._speed = _Speed()
        # Called with every new status, from the thread of `run`: for fault tests.
        self.on_status: Callable[[JobStatus], None] = lambda _: None
        self.addresses: dict[TaskId, str] = {}

    def run(self) -> LocalResult:
        """Run the job to its end. No process is left, also after an exception."""
        try:
            self._start()
            watcher = threading.Thread(target=self._watch_status, name="status", daemon=True)
            watcher.start()
            while any(process.code is None for process in self._processes.values()):
                self._turn(_POLL_S)
            self._over.set()
            watcher.join(5)
        finally:
            self._over.set()
            self._kill_all()
            self._death_pipe.close()
        self._drain_output()
        self._handle_exits()
        self._prefer_own_failure()
        self._display.close()
        return self._result()

    def stop(self, reason: str) -> None:
        """Ask the job to save and end, within 5 s. Safe in any thread or signal handler."""
        self._stop_reason = self._stop_reason or reason

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM stop the job; a second Ctrl-C kills it."""

        def handle(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
            if self._stopping_since is not None and signum == signal.SIGINT:
                self._stopping_since -= _KILL_AFTER_S
            self.stop(signal.Signals(signum).name)

        before = {
            number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def kill(self, task: TaskId, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a task: for fault tests."""
        self._processes[task].process.send_signal(number)

    def pid(self, task: TaskId) -> int:
        """A task's process."""
        return self._processes[task].process.pid

    # -- beginning ---------------------------------------------------------------------------

    def _start(self) -> None:
        model_dir = self._settings.model_dir
        try:
            # Of an earlier job in this directory; this job writes its own when it ends.
            (Path(model_dir) / STATUS_FILE).unlink(missing_ok=True)
        except OSError as error:
            from ..core.checkpoint.storage import storage_error  # loads NumPy

            raise storage_error(error, model_dir, "windlass local") from error
        tasks = self._cluster.tasks()
        serving = [task for task in tasks if task.type != EVALUATOR]
        ports = free_ports(len(serving))
        self.addresses = {
            task: f"127.0.0.1:{port}" for task, port in zip(serving, ports, strict=True)
        }
        spec: dict[str, list[str]] = {}
        for task in serving:
            spec.setdefault(task.type, []).append(self.addresses[task])
        shared = self._settings.model_copy(
            update={
                "log_format": "bare",
                "health_port": 0,
                "job_id": self._settings.job_id or new_job_id(),
            }
        )
        for task in tasks:
            config = {"cluster": spec, "task": {"type": task.type, "index": task.index}}
            environment = shared.environment() | {
                "TF_CONFIG": json.dumps(config),
                # The tasks share the machine: a BLAS thread per core and task would be too many.
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            }
            command = ["run", str(self._script), "--", *self._arguments]
            self._processes[task] = start_task(
                task, command, environment, self._death_pipe, self._lines
            )

    # -- meanwhile ---------------------------------------------------------------------------

    def _turn(self, wait_s: float) -> None:
        """Show output, handle exits, and go on with a stop that has begun."""
        self._show_lines(wait_s)
        status = self._status
        if status is not None:
            self._display.progress(status, self._speed.of(status))
            self.on_status(status)
        self._handle_exits()
        if self._stop_reason and self._stopping_since is None:
            self._begin_stop(self._stop_reason)
        if self._stopping_since is not None:
            self._push_stop(time.monotonic() - self._stopping_since)
        elif self._job_ended():
            self._release_stragglers()
        elif self._chief_is_late():
            self._begin_stop("")

    def _show_lines(self, wait_s: float) -> None:
        try:
            line = self._lines.get(timeout=wait_s)
            while True:
                self._display.line(line.task, line.text, is_error=line.is_error)
                line = self._lines.get_nowait()
        except queue.Empty:
            return

    def _handle_exits(self) -> None:
        for task, process in self._processes.items():
            code = process.code
            if code is None or process.reported:
                continue
            process.reported = True
            for reader in process.readers:
                reader.join(1)
            verdict = on_exit(
                task,
                code,
                chief=self._cluster.chief_task,
                stopping=self._is_expected_to_end(task),
                synchronous=self._cluster.synchronous,
            )
            if verdict.failed and self._follows_the_chief(task, code):
                # The chief told this ps that the job is over and ends next: its exit says why.
                self._first_ps_end = self._first_ps_end or time.monotonic()
                continue
            if verdict.failed:
                self._first_failure = self._first_failure or task
            elif verdict.message:
                self._tell_chief(task, describe_exit(code))
            if verdict.message:
                self._show_lines(0)
                self._display.say(verdict.message, is_error=verdict.failed)
            if verdict.job_ends and self._stopping_since is None:
                self._begin_stop("")

    def _is_expected_to_end(self, task: TaskId) -> bool:
        # The evaluator works on when the others have left; its failure still counts.
        over = self._job_ended() and task.type != EVALUATOR
        return self._stopping_since is not None or over

    def _follows_the_chief(self, task: TaskId, code: int) -> bool:
        chief = self._processes[self._cluster.chief_task]
        job_over = code in (ExitCode.PEER_LOST, ExitCode.DRAINED)
        # A chief that ended at the same moment is handled next.
        return task.type == PS and job_over and chief.code != 0

    def _chief_is_late(self) -> bool:
        """Whether the chief still runs long after it told a ps that the job is over."""
        if self._first_ps_end is None:
            return False
        waited_s = time.monotonic() - self._first_ps_end
        return waited_s > self._settings.leave_grace_s + _STOP_PS_AFTER_S

    def _prefer_own_failure(self) -> None:
        """Report a task with a failure of its own rather than one that lost a peer."""
        first = self._first_failure
        if first is None or self._processes[first].code != ExitCode.PEER_LOST:
            return
        for task, process in self._processes.items():
            if process.code is not None and 0 < process.code < 128:
                self._first_failure = task
                return

    def _tell_chief(self, task: TaskId, why: str) -> None:
        """Report a task's exit to the chief, which need not wait for its lease to run out."""
        known = {item.task: item for item in self._status.tasks} if self._status else {}
        item = known.get(task)
        if item is None or not item.generation:
            return
        from ..client.chief.calls import ChiefClient

        client = ChiefClient(self.addresses[self._cluster.chief_task], self._settings)
        try:
            who = Incarnation(task, item.generation)
            client.finish(who, Outcome.LEFT, why, item.report, timeout_s=1.0)
        except WindlassError as error:
            log.debug("could not report the exit of %s to the chief: %s", task, error)
        finally:
            client.close()

    def _job_ended(self) -> bool:
        if self._cluster.synchronous:
            return False  # every task's exit counts by itself
        chief = self._processes[self._cluster.chief_task]
        return chief.code == 0

    def _begin_stop(self, reason: str) -> None:
        self._stopping_since = time.monotonic()
        if reason:
            doing = "stopping" if self._cluster.synchronous else "saving a checkpoint and stopping"
            self._display.say(f"{reason}: {doing}")
        for task, process in self._processes.items():
            if task.type != PS:
                process.signal(signal.SIGTERM)

    def _push_stop(self, elapsed_s: float) -> None:
        chief_left = self._processes[self._cluster.chief_task].code is not None
        if elapsed_s > _KILL_AFTER_S:
            for process in self._processes.values():
                if process.code is None:
                    process.signal(signal.SIGKILL)
        elif elapsed_s > _STOP_PS_AFTER_S or chief_left:
            for task, process in self._processes.items():
                if task.type == PS:
                    process.signal(signal.SIGTERM)

    def _release_stragglers(self) -> None:
        """After the job: stop tasks other than the evaluator that run beyond the grace period."""
        left = [task for task, process in self._processes.items() if process.code is None]
        if any(task.type == EVALUATOR for task in left):
            return
        if self._over_since is None:
            self._over_since = time.monotonic()
        if left and time.monotonic() - self._over_since > self._settings.leave_grace_s:
            self._begin_stop("")

    def _watch_status(self) -> None:
        address = self.addresses[self._cluster.chief_task]
        # Loading grpc waits until the chief listens: the tasks need the cores while they start.
        while not _is_listening(address):
            if self._over.wait(_STATUS_S):
                return
        from ..client.chief.calls import ChiefClient

        client = ChiefClient(address, self._settings)
        try:
            while not self._over.wait(_STATUS_S):
                with contextlib.suppress(WindlassError):
                    self._status = client.status(timeout_s=1.0)
        finally:
            client.close()

    # -- ending ------------------------------------------------------------------------------

    def _kill_all(self) -> None:
        for process in self._processes.values():
            process.signal(signal.SIGKILL)
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.process.wait(5)

    def _drain_output(self) -> None:
        """Show all remaining lines: readers end when their pipes do."""
        deadline = time.monotonic() + 2
        for process in self._processes.values():
            for reader in process.readers:
                while reader.is_alive() and time.monotonic() < deadline:
                    self._show_lines(0.01)
        self._show_lines(0.01)

    def _result(self) -> LocalResult:
        exits = {task: process.process.returncode for task, process in self._processes.items()}
        from ..training.evaluations import read_evaluations

        status = read_status(self._settings.model_dir) or self._status
        evaluations = read_evaluations(self._settings.model_dir)
        code = 0
        if self._first_failure is not None:
            code = shell_status(exits[self._first_failure])
        elif self._stop_reason:
            code = int(ExitCode.DRAINED)
        elif exits[self._cluster.chief_task] != 0:
            code = shell_status(exits[self._cluster.chief_task])
        return LocalResult(
            code,
            exits,
            self._settings.model_dir,
            self._first_failure,
            status,
            evaluations[-1].metrics if evaluations else {},
        )

    def show_result(self, result: LocalResult) -> None:
        """Show the first failure with its last lines of stderr, then a table of all tasks."""
        from .display import metrics_text

        failed = result.first_failure
        if failed is not None:
            code = result.exits[failed]
            self._display.say(
                f"\n{failed.short} failed first: exit code {shell_status(code)}, "
                f"{describe_exit(code)}",
                is_error=True,
            )
            for text in self._processes[failed].last_lines:
                self._display.say(f"    {text}")
        self._display.table(result_table(result))
        if result.metrics:
            self._display.say(f"last evaluation: {metrics_text(result.metrics)}")
        if Path(result.model_dir).is_dir():  # in a synchronous job the program decides
            self._display.say(f"model directory: {result.model_dir}")


class _Speed:
    """Steps per second over the last few seconds."""

    _WINDOW_S = 3.0

    def __init__(self) -> None:
        self._points: list[tuple[float, int]] = []

    def of(self, status: "JobStatus") -> float:
        point = (status.age_s, status.global_step)
        if not self._points or point[0] > self._points[-1][0]:
            self._points.append(point)
        self._points = [p for p in self._points if p[0] >= point[0] - self._WINDOW_S]
        (t0, s0), (t1, s1) = self._points[0], self._points[-1]
        return (s1 - s0) / (t1 - t0) if t1 > t0 else 0.0


def result_table(result: LocalResult) -> "Table":
    """Tasks with exit codes, steps, pushes, bytes and shards."""
    from rich.markup import escape
    from rich.table import Table

    from .display import activity, metrics_text, placement_text

    table = Table(title="tasks", title_justify="left", title_style="bold")
    counted = ("steps", "pushes", "sent", "received") if result.status is not None else ()
    for name in ("task", "exit", *counted, "shards and notes" if counted else "notes"):
        right = name == "exit" or name in counted
        table.add_column(
            name, justify="right" if right else "left", no_wrap=not name.endswith("notes")
        )
    known = {item.task: item for item in result.status.tasks} if result.status is not None else {}
    for task, code in result.exits.items():
        item = known.get(task)
        numbers = activity(item) if item is not None else ("",) * len(counted)
        notes = placement_text(item) if item is not None else ""
        if task.type == EVALUATOR:
            notes = metrics_text(result.metrics)
        if code != 0:
            notes = describe_exit(code)
        style = "green" if code == 0 else "red" if task == result.first_failure else "yellow"
        table.add_row(task.short, f"[{style}]{shell_status(code)}[/]", *numbers, escape(notes))
    return table


def _is_listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1):
            return True
    except OSError:
        return False


def default_model_dir(script: str) -> str:
    """A new folder for a run: ``runs/<script's folder or name>-<time>``."""
    path = Path(script)
    name = path.stem if path.stem not in ("train", "main") else path.resolve().parent.name
    stamp = time.strftime("%Y%m%d-%H%M%S") + f"-{time.time_ns() // 1_000_000 % 1000:03d}"
    return str(Path("runs") / f"{name}-{stamp}")
