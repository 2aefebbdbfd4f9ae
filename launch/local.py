"""``windlass local``: a whole cluster as processes of this machine.

Starts every task, shows their output and the job's progress, ends them in order, and prints every
task's result.
"""

import contextlib
import logging
import queue
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ..cluster.exit_policy import Seen, whom_to_kill
from ..cluster.roles import EVALUATOR, WORKER
from ..core.exit_codes import ExitCode, describe_exit, is_retryable, shell_status
from ..core.settings import ALL_WORKERS, Settings
from ..core.task import TaskId, new_job_id
from ..worker.error_report import ERROR_FILE, read_report
from ..worker.limits import check_limits
from ..worker.program import Program
from ..worker.status import STATUS_FILE, read_status
from .cluster import LocalCluster, RoleExtras, tf_config
from .exits import Exits
from .processes import Line, ParentDeathPipe, TaskProcess, new_line_queue, start_task
from .result import LocalResult, failure_text, result_table
from .stopped import StoppedSince
from .stopping import Stop
from .watch import Speed, StatusWatch

if TYPE_CHECKING:
    from ..client.chief.calls import JobStatus
    from .plain import Display

log = logging.getLogger(__name__)

_POLL_S = 0.05
_LOOK_S = 0.5  # between looks for tasks that hang
_FOLLOWS_S = 1.0  # after a worker that has lost its peers the task that failed is noticed


class LocalJob:
    """One run of a local cluster. Use once, from one thread.

    Args:
        cluster: Its tasks.
        program: The user's.
        arguments: Of the program.
        settings: For every task; ``model_dir`` must be set.
        display: Where output and progress go.
        resume: The command that would go on with this job, for people; empty: not told.
        of_roles: What tasks of a role get beside that, by role.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        program: Program,
        arguments: Sequence[str],
        settings: Settings,
        display: "Display",
        resume: str = "",
        of_roles: Mapping[str, RoleExtras] | None = None,
    ) -> None:
        self._cluster = cluster
        self._program = program
        self._arguments = list(arguments)
        self._settings = settings
        self._display = display
        self._resume = resume
        self._of_roles = dict(of_roles or {})
        self._lines: queue.Queue[Line] = new_line_queue()
        self._processes: dict[TaskId, TaskProcess] = {}
        self._death_pipe = ParentDeathPipe()
        self._reports = tempfile.TemporaryDirectory(prefix="windlass-errors-")
        self._watch: StatusWatch | None = None
        self._stop_reason = ""
        self._stop: Stop | None = None
        self._over_since: float | None = None
        self._exits = Exits(cluster, settings.leave_grace_s)
        self._speed = Speed()
        self._stopped = StoppedSince()
        self._looks_next = 0.0
        self._left: list[tuple[float, str]] = []  # tasks that the job goes on without, and when
        # Called with every new status, from the thread of `run`: for fault tests.
        self.on_status: Callable[[JobStatus], None] = lambda _: None
        self.addresses: dict[TaskId, str] = {}

    def run(self) -> LocalResult:
        """Run the job to its end. No process is left, also after an exception."""
        with self._reports:
            try:
                self._start()
                while any(process.code is None for process in self._processes.values()):
                    self._turn(_POLL_S)
            finally:
                if self._watch is not None:
                    self._watch.stop(5)
                self._kill_all()
                self._death_pipe.close()
            self._drain_output()
            self._handle_exits()
            self._say_who_left(after_s=0)
            self._display.close()
            return self._result()

    def stop(self, reason: str) -> None:
        """Ask the job to save and end, within 5 s. Safe in any thread or signal handler."""
        self._stop_reason = self._stop_reason or reason

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM stop the job; a second Ctrl-C kills it."""

        def handle(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
            if self._stop is not None and signum == signal.SIGINT:
                self._stop.hurry()
            self.stop("Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name)

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
        check_limits(len(self._cluster.tasks()))
        model_dir = self._settings.model_dir
        try:
            # Of an earlier job in this directory; this job writes its own when it ends.
            (Path(model_dir) / STATUS_FILE).unlink(missing_ok=True)
        except OSError as error:
            from ..core.checkpoint.storage import storage_error  # loads NumPy

            raise storage_error(error, model_dir, "windlass local") from error
        self.addresses = self._cluster.choose_addresses()
        shared = self._settings.model_copy(
            update={
                "log_format": "bare",
                "health_port": 0,
                "metrics_port": 0,
                "stay_without_chief": False,
                "job_id": self._settings.job_id or new_job_id(),
            }
        )
        if "wait_for_workers" not in self._settings.model_fields_set:
            shared = shared.model_copy(update={"wait_for_workers": ALL_WORKERS})
        for task in self._cluster.tasks():
            extras = self._of_roles.get(task.type, RoleExtras())
            arguments = [*self._arguments, *extras.arguments]
            program = ["run", *self._program.command, "--", *arguments]
            environment = (
                dict(extras.environment)
                | shared.environment()
                | {
                    "TF_CONFIG": tf_config(task, self.addresses),
                    ERROR_FILE: str(self._report_file(task)),
                }
            )
            # The tasks share the machine: a BLAS thread per core and task would be too many.
            for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
                environment.setdefault(name, "1")
            serves = self._cluster.coordinator and task.type == WORKER
            command = ["run"] if serves else program
            self._processes[task] = start_task(
                task, command, environment, self._death_pipe, self._lines.put
            )
        address = self.addresses[self._cluster.chief_task]
        self._watch = StatusWatch(address, self._settings)
        self._watch.start()
        self._display.say(f"{len(self._processes)} tasks; the chief is at {address}")

    def _report_file(self, task: TaskId) -> Path:
        return Path(self._reports.name) / f"{task.type}-{task.index}"

    # -- meanwhile ---------------------------------------------------------------------------

    @property
    def _status(self) -> "JobStatus | None":
        return self._watch.last if self._watch is not None else None

    def _turn(self, wait_s: float) -> None:
        """Show output, handle exits, and go on with a stop that has begun."""
        self._show_lines(wait_s)
        status = self._status
        if status is not None:
            self._display.progress(status, self._speed.of(status))
            self.on_status(status)
        self._handle_exits()
        if self._stop_reason and self._stop is None:
            again = "; Ctrl-C again ends it at once" if self._stop_reason == "Ctrl-C" else ""
            self._display.say(f"{self._stop_reason}: saving a checkpoint and stopping{again}")
            self._begin_stop()
        if self._stop is not None:
            self._stop.go_on(chief_left=self._chief_code is not None)
        elif self._exits.job_ended(self._chief_code):
            self._release_stragglers()
        elif self._exits.chief_is_late:
            self._begin_stop()
        if self._stop is None:
            self._kill_who_hangs()

    def _kill_who_hangs(self) -> None:
        """No task that hangs keeps the launcher longer than a lease and a grace."""
        now = time.monotonic()
        if self._watch is None or now < self._looks_next:
            return
        self._looks_next = now + _LOOK_S
        found = whom_to_kill(
            {task: self._seen(process, now) for task, process in self._processes.items()},
            chief=self._cluster.chief_task,
            chief_answered=self._watch.answered,
            patience_s=self._settings.lease_s + self._settings.leave_grace_s,
            now=now,
        )
        if found is not None:
            task, why = found
            self._display.say(f"{why}: killing it")
            self._processes[task].signal(signal.SIGKILL)

    def _seen(self, process: TaskProcess, now: float) -> Seen:
        if process.code is not None:
            return Seen(process.code, process.ended)
        return Seen(None, self._stopped.look(process.process.pid, now=now))

    def _begin_stop(self) -> None:
        if self._stop is None:
            self._stop = Stop(self._processes)

    def _show_lines(self, wait_s: float) -> None:
        try:
            line = self._lines.get(timeout=wait_s)
            while True:
                if not (line.is_ours and self._is_consequence(line.text)):
                    self._display.line(line.task, line.text, is_error=line.is_error)
                line = self._lines.get_nowait()
        except queue.Empty:
            return

    def _is_consequence(self, text: str) -> bool:
        """Whether a line of Windlass tells only what the launcher itself has made happen."""
        if self._stop is None:
            return False
        return "SIGTERM" in text or self._exits.first_failure is not None

    def _handle_exits(self) -> None:
        for task, process in self._processes.items():
            code = process.code
            if code is None or process.reported:
                continue
            process.reported, process.ended = True, time.monotonic()
            for reader in process.readers:
                reader.join(1)
            verdict = self._exits.judge(
                task, code, chief_code=self._chief_code, stopping=self._stop is not None
            )
            if verdict.message and not verdict.failed and self._watch is not None:
                self._watch.report_exit(task, describe_exit(code))
            if verdict.job_ends:
                self._show_lines(0)
                # Why is told at the end, once; here only that the others are being stopped.
                # One that ends because of another is not the one to blame.
                who = "a task" if code == ExitCode.PEER_LOST else task.short
                self._display.say(f"{who} failed; ending the job")
                self._begin_stop()
            elif verdict.message:
                self._left.append((time.monotonic(), verdict.message))
        self._say_who_left()

    def _say_who_left(self, after_s: float = _FOLLOWS_S) -> None:
        """Tell which tasks have left, unless that was the beginning of the job's end."""
        if self._stop is not None and self._exits.first_failure is not None:
            self._left.clear()
        while self._left and time.monotonic() - self._left[0][0] >= after_s:
            self._show_lines(0)
            self._display.say(self._left.pop(0)[1])

    @property
    def _chief_code(self) -> int | None:
        return self._processes[self._cluster.chief_task].code

    def _release_stragglers(self) -> None:
        """After the job: stop tasks other than the evaluator that run beyond the grace period."""
        left = [task for task, process in self._processes.items() if process.code is None]
        if any(task.type == EVALUATOR for task in left):
            return
        if self._over_since is None:
            self._over_since = time.monotonic()
        if left and time.monotonic() - self._over_since > self._settings.leave_grace_s:
            self._begin_stop()

    # -- ending ------------------------------------------------------------------------------

    def _kill_all(self) -> None:
        for process in self._processes.values():
            process.signal(signal.SIGKILL)  # also to what tasks that have ended left behind
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

        # The chief's last words, unless it was killed before it could write them.
        status = read_status(self._settings.model_dir)
        if status is None or not status.phase.is_over:
            status = self._status or status
        evaluations = read_evaluations(self._settings.model_dir)
        self._exits.prefer_own_failure(exits)
        code = shell_status(self._exits.exit_code(exits, stopped=bool(self._stop_reason)))
        return LocalResult(
            code,
            exits,
            self._settings.model_dir,
            self._exits.first_failure,
            status,
            evaluations[-1].metrics if evaluations else {},
            {task: self._error_of(task) for task, status in exits.items() if status != 0},
        )

    def _error_of(self, task: TaskId) -> str:
        """What a task reported; if it could not, its last lines of stderr."""
        text = read_report(self._report_file(task))
        return text or "\n".join(self._processes[task].last_lines)

    def show_result(self, result: LocalResult) -> None:
        """Show the first failure, a table of all tasks, and how to go on."""
        from .status_table import metrics_text

        say = self._display.say
        if failure := failure_text(result):
            say(failure, is_error=True)
        self._display.table(result_table(result, self._display.width))
        if result.metrics:
            say(f"last evaluation: {metrics_text(result.metrics)}")
        if Path(result.model_dir).is_dir():
            say(f"model directory: {result.model_dir}")
            if self._settings.tensorboard:
                say(f"its numbers: windlass tensorboard {result.model_dir}")
        saved = result.status is not None and result.status.last_checkpoint
        if saved and self._resume and is_retryable(result.exit_code):
            say(f"to resume: {self._resume}")
