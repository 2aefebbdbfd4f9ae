"""``ropewalk local``: a whole cluster as processes of this machine.

Starts every task, shows their output and the job's progress, and prints every task's result. When
tasks are ended, and whether the job has failed, is asked of ``cluster/supervision/decisions.py``;
the processes run as those of a standalone node do, in ``launch/processes/executor.py``.
"""

import contextlib
import logging
import queue
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...cluster.supervision.decisions import Supervision, TaskRun
from ...cluster.supervision.policy import (
    End,
    Ended,
    Event,
    Fails,
    Leaves,
    Looked,
    Signal,
    StartAgain,
    StopRequested,
    Tick,
)
from ...core.exit_codes import ExitCode
from ...core.process.threads import nobody_waits
from ...core.settings import Settings
from ...core.task import Phase, TaskId
from ...worker.lead.status import STATUS_FILE
from ...worker.process.program import Program
from ...worker.process.surroundings import check_limits
from ..processes.executor import Executor, Work
from ..processes.process import Exit, new_line_queue, on_interrupts
from .cluster import LocalRoles, RoleExtras, Scaling, tf_config
from .log_files import LogFiles
from .policy import local_policy
from .result import LocalResult, read_result, show_result
from .tasks import LocalTasks
from .watch import Speed, StatusWatch, ToldFindings, Waits

if TYPE_CHECKING:
    from ...client.chief.calls import JobStatus
    from ..screen.plain import Display

log = logging.getLogger(__name__)

_POLL_S = 0.05
_LOOK_S = 0.5  # between looks for tasks that hang
_OUTPUT_S = 1.0  # for the last lines of a task that has ended
_END_S = 5.0  # for killed tasks to be gone
_FOLLOWS_S = 1.0  # after a worker that has lost its peers the task that failed is noticed


class LocalJob:
    """A run of a local cluster. Use once, from one thread.

    Args:
        cluster: Roles of the cluster.
        program: The user's.
        arguments: Arguments of the program.
        settings: Settings of every task; ``model_dir`` must be set.
        display: Display to which output and progress go.
        resume: The command that would go on with this job, for people; empty: it is not shown.
        of_roles: Extras that tasks of a role get beside that, by role.
        restarts: Number of times that a lost chief is started again.
    """

    def __init__(
        self,
        cluster: LocalRoles,
        program: Program,
        arguments: Sequence[str],
        settings: Settings,
        display: "Display",
        resume: str = "",
        of_roles: Mapping[str, RoleExtras] | None = None,
        *,
        restarts: int = 0,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._display = display
        self._resume = resume
        self._news = new_line_queue()
        self._tasks = LocalTasks(
            cluster, program, arguments, settings, of_roles or {}, restarts, self._news.put
        )
        self._runs = {task: TaskRun() for task in cluster.tasks()}
        self._supervision = Supervision(self._runs, local_policy(cluster, settings, restarts))
        self._executor = Executor[TaskId](_OUTPUT_S, failed=nobody_waits)
        self._requests: deque[StopRequested] = deque()
        self._watch: StatusWatch | None = None
        self._logs = LogFiles(settings.model_dir)
        self._speed, self._waits, self._findings = Speed(), Waits(), ToldFindings()
        self._looks_next = 0.0
        self._left: list[tuple[float, str]] = []  # tasks that the job goes on without, and when
        self._scaling = Scaling(cluster.ps)
        # Called with every new status, from the thread of `run`: for fault tests.
        self.on_status: Callable[[JobStatus], None] = lambda _: None

    @property
    def addresses(self) -> dict[TaskId, str]:
        """Address of each task."""
        return self._tasks.addresses

    def run(self) -> LocalResult:
        """Run the job to its end. No process is left, also after an exception."""
        with self._tasks:
            try:
                self._start()
                while not self._supervision.has_ended:
                    self._turn(_POLL_S)
            finally:
                if self._watch is not None:
                    self._watch.stop(5)
                if not self._supervision.has_ended:
                    self._kill_all()
                self._tasks.let_go()
            self._drain_output()
            self._say_who_left(after_s=0)
            self._display.close()
            self._logs.close()
            return self._result()

    def stop(self, reason: str) -> None:
        """Ask the job to save and end, within 5 s. Safe in any thread or signal handler."""
        self._requests.append(StopRequested(reason))

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM stop the job; a second Ctrl-C kills it."""

        def stop(number: signal.Signals) -> None:
            is_key = number is signal.SIGINT
            reason = "Ctrl-C" if is_key else number.name
            again = is_key and self._supervision.is_stopping
            self._requests.append(StopRequested(reason, kill=again))

        with on_interrupts(stop):
            yield

    def kill(self, task: TaskId, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a task: for fault tests."""
        self._tasks.processes[task].process.send_signal(number)

    def pid(self, task: TaskId) -> int:
        """Return the process id of a task."""
        return self._tasks.processes[task].process.pid

    # -- beginning ---------------------------------------------------------------------------

    def _start(self) -> None:
        check_limits(len(self._cluster.tasks()))
        model_dir = self._settings.model_dir
        try:
            # Of an earlier job in this directory; this job writes its own when it ends.
            (Path(model_dir) / STATUS_FILE).unlink(missing_ok=True)
        except OSError as error:
            from ...core.checkpoint.storage import storage_error  # loads NumPy

            raise storage_error(error, model_dir, "ropewalk local") from error
        self._tasks.choose_addresses()
        for task in self._cluster.tasks():
            self._start_task(task)
        address = self.addresses[self._cluster.chief_task]
        self._watch = StatusWatch(address, self._settings)
        self._watch.start()
        self._display.say(self._tasks.description())

    def _start_task(self, task: TaskId) -> None:
        process = self._tasks.start(task)
        work = Work(
            task.short,
            tf_config(task, self.addresses),
            make=lambda: process,
            ended=partial(self._ended, task),
        )
        self._executor.start(task, work)

    def _ended(self, task: TaskId, outcome: int | Exception) -> None:
        self._news.put(Exit(task, outcome))

    # -- meanwhile ---------------------------------------------------------------------------

    @property
    def _status(self) -> "JobStatus | None":
        return self._watch.last if self._watch is not None else None

    def _turn(self, wait_s: float) -> None:
        """Show output and progress, and do what the news, the signals and the time ask for."""
        self._take_news(wait_s)
        status = self._status
        if status is not None:
            self._display.progress(status, self._speed.of(status), self._waits.of(status))
            for text in self._findings.of(status):
                self._display.say(text)
            self.on_status(status)
            self._scale(status)
        while self._requests:
            self._request_stop(self._requests.popleft())
        self._handle(self._look() or Tick())
        self._say_who_left()

    def _scale(self, status: "JobStatus") -> None:
        """Have as many ps as the chief was asked for: start some, or ask some to leave."""
        if not status.wanted_ps or self._supervision.is_stopping:
            return
        if text := self._scaling.to(status.wanted_ps):
            self._display.say(text)
        asked = self._watch.asked if self._watch is not None else 0.0
        known_s = asked if status.phase is Phase.RUNNING else 0.0
        for task in self._scaling.to_start(self._runs, known_s):
            self._runs[task] = TaskRun()
            self._start_task(task)
        for task in self._scaling.to_send_away(self._runs):
            self._executor.send(task, signal.SIGTERM)

    def _take_news(self, wait_s: float) -> None:
        """Show the lines of tasks, and handle their exits, in the order in which they came."""
        try:
            news = self._news.get(timeout=wait_s)
            while True:
                if isinstance(news, Exit):
                    self._take_exit(news)
                elif not (news.is_ours and self._is_consequence(news.text)):
                    self._display.line(news.task, news.text, is_error=news.is_error)
                    self._logs.write(news.task, news.text)
                news = self._news.get_nowait()
        except queue.Empty:
            return

    def _take_exit(self, news: Exit) -> None:
        if isinstance(news.outcome, Exception):
            raise news.outcome
        can_restart = news.task not in self._scaling.sent_away
        self._handle(Ended(End(news.task, news.outcome), can_restart=can_restart))

    def _request_stop(self, request: StopRequested) -> None:
        if not self._supervision.is_stopping:
            again = "; Ctrl-C again ends it at once" if request.reason == "Ctrl-C" else ""
            self._display.say(f"{request.reason}: saving a checkpoint and stopping{again}")
        self._handle(request)

    def _look(self) -> Looked | None:
        """Look at the processes, now and then."""
        now = time.monotonic()
        if self._watch is None or now < self._looks_next:
            return None
        self._looks_next = now + _LOOK_S
        return Looked(self._executor.stopped(now), self._watch.answered)

    def _handle(self, event: Event) -> None:
        for order in self._supervision.handle(event, time.monotonic()):
            match order:
                case Signal(task, kill, why):
                    if why:
                        self._display.say(f"{why}: killing it")
                    self._executor.send(task, signal.SIGKILL if kill else signal.SIGTERM)
                case StartAgain(task):
                    self._display.say(f"{task.short} was lost; starting it again")
                    self._start_task(task)
                case Fails(end):
                    # The reason is shown at the end, once; here only that the others are stopped.
                    # One that ends because of another is not the one to blame.
                    who = "a task" if end.code == ExitCode.PEER_LOST else end.task.short
                    self._display.say(f"{who} failed; ending the job")
                case Leaves(end, verdict):
                    if not verdict.failed and self._watch is not None:
                        self._watch.report_exit(end.task, end.code)
                    self._left.append((time.monotonic(), verdict.message))

    def _is_consequence(self, text: str) -> bool:
        """Return whether a line of Ropewalk tells only what the launcher itself has made happen."""
        if not self._supervision.is_stopping:
            return False
        return "SIGTERM" in text or self._supervision.failure is not None

    def _say_who_left(self, after_s: float = _FOLLOWS_S) -> None:
        """Tell which tasks have left, unless that was the beginning of the job's end."""
        if self._supervision.is_stopping and self._supervision.failure is not None:
            self._left.clear()
        while self._left and time.monotonic() - self._left[0][0] >= after_s:
            self._display.say(self._left.pop(0)[1])

    # -- ending ------------------------------------------------------------------------------

    def _kill_all(self) -> None:
        """End all tasks without showing anything: this launcher cannot go on."""
        self._executor.send_all(signal.SIGKILL)
        until = time.monotonic() + _END_S
        while self._executor.running and time.monotonic() < until:
            with contextlib.suppress(queue.Empty):
                self._news.get(timeout=_POLL_S)  # a thread may wait for room

    def _drain_output(self) -> None:
        """Show all remaining lines: readers end when their pipes do."""
        deadline = time.monotonic() + 2
        for process in self._tasks.processes.values():
            for reader in process.readers:
                while reader.is_alive() and time.monotonic() < deadline:
                    self._take_news(0.01)
        self._take_news(0.01)

    def _result(self) -> LocalResult:
        exits = {task: run.code or 0 for task, run in self._runs.items()}
        failure = self._supervision.failure
        return read_result(
            self._supervision.exit_code,
            exits,
            self._settings.model_dir,
            failure.task if failure is not None else None,
            self._status,
            {task: self._tasks.error_of(task) for task, code in exits.items() if code != 0},
        )

    def show_result(self, result: LocalResult) -> None:
        """Show the first failure, a table of all tasks, and how to go on."""
        show_result(
            result,
            self._display,
            self._resume,
            has_event_files=self._settings.asks_for("tensorboard"),
        )
