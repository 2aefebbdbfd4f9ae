"""``ropewalk local``: a whole cluster as processes of this machine.

Starts every task, shows their output and the job's progress, and prints every task's result. When
tasks are ended, and whether the job has failed, is asked of ``cluster/supervision/decisions.py``;
the processes run as those of a standalone node do, in ``launch/processes/executor.py``.
"""

import contextlib
import logging
import queue
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...cluster.resolvers.tf_config import TF_CONFIG
from ...cluster.roles import PS, WORKER
from ...cluster.supervision.decisions import Supervision, TaskRun
from ...cluster.supervision.events import (
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
from ...cluster.supervision.exits import End
from ...core.exit_codes import ExitCode, is_retryable
from ...core.process.threads import nobody_waits
from ...core.settings import ALL_WORKERS, Settings, environment_variables
from ...core.showing import counted
from ...core.states import Phase
from ...core.task import TaskId, new_job_id
from ...net.this_machine import free_ports
from ...worker.lead.status import STATUS_FILE, read_status
from ...worker.process.error_report import ERROR_FILE, read_report
from ...worker.process.limits import check_limits
from ...worker.process.program import Program
from ..processes.environment import ONE_THREAD, process_environment, process_settings
from ..processes.executor import Executor, Work
from ..processes.interrupts import on_interrupts
from ..processes.process import Exit, ParentDeathPipe, TaskProcess, new_line_queue, start_task
from .cluster import LocalRoles, RoleExtras, tf_config
from .gpus import VISIBLE, describe_shares, divide_gpus, gpu_variables, visible_gpus
from .policy import local_policy
from .result import LocalResult, failure_text, result_table
from .watch import Speed, StatusWatch

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
        self._program = program
        self._arguments = list(arguments)
        self._settings = settings
        self._display = display
        self._resume = resume
        self._of_roles = dict(of_roles or {})
        self._news = new_line_queue()
        self._runs = {task: TaskRun() for task in cluster.tasks()}
        self._supervision = Supervision(self._runs, local_policy(cluster, settings, restarts))
        self._executor = Executor[TaskId](_OUTPUT_S, failed=nobody_waits)
        self._processes: dict[TaskId, TaskProcess] = {}
        self._requests: deque[StopRequested] = deque()
        self._death_pipe = ParentDeathPipe()
        self._reports = tempfile.TemporaryDirectory(prefix="ropewalk-errors-")
        self._watch: StatusWatch | None = None
        self._speed = Speed()
        self._looks_next = 0.0
        self._restarts = restarts
        self._left: list[tuple[float, str]] = []  # tasks that the job goes on without, and when
        self._num_ps = cluster.ps
        self._sent_away: set[TaskId] = set()  # ps that were asked to leave
        # Called with every new status, from the thread of `run`: for fault tests.
        self.on_status: Callable[[JobStatus], None] = lambda _: None
        self.addresses: dict[TaskId, str] = {}
        self._shared = settings
        self._gpus: dict[TaskId, list[str]] = {}

    def run(self) -> LocalResult:
        """Run the job to its end. No process is left, also after an exception."""
        with self._reports:
            try:
                self._start()
                while not self._supervision.has_ended:
                    self._turn(_POLL_S)
            finally:
                if self._watch is not None:
                    self._watch.stop(5)
                if not self._supervision.has_ended:
                    self._kill_all()
                self._death_pipe.close()
            self._drain_output()
            self._say_who_left(after_s=0)
            self._display.close()
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
        self._processes[task].process.send_signal(number)

    def pid(self, task: TaskId) -> int:
        """Return the process id of a task."""
        return self._processes[task].process.pid

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
        self.addresses = self._cluster.choose_addresses()
        changes: dict[str, object] = {
            "job_id": self._settings.job_id or new_job_id(),
            "chief_returns": self._restarts > 0,
        }
        if "wait_for_workers" not in self._settings.model_fields_set:
            changes["wait_for_workers"] = ALL_WORKERS
        self._shared = process_settings(self._settings, **changes)
        tasks = self._cluster.tasks_with_program()
        self._gpus = (
            divide_gpus(
                tasks,
                visible_gpus(environment_variables().get(VISIBLE)),
                self._cluster.gpus_each,
            )
            if tasks[1:]
            else {}
        )
        for task in self._cluster.tasks():
            self._start_task(task)
        address = self.addresses[self._cluster.chief_task]
        self._watch = StatusWatch(address, self._settings)
        self._watch.start()
        gpus = describe_shares(self._gpus)
        self._display.say(
            f"{counted(len(self._processes), 'task')}; the chief is at {address}"
            + (gpus and f"; {gpus}")
        )

    def _start_task(self, task: TaskId) -> None:
        extras = self._of_roles.get(task.type, RoleExtras())
        arguments = [*self._arguments, *extras.arguments]
        program = ["run", *self._program.command, "--", *arguments]
        environment = process_environment(
            self._shared,
            tf_config(task, self.addresses),
            own={ERROR_FILE: str(self._report_file(task)), **self._own_of(task)},
            user={
                **ONE_THREAD,
                **gpu_variables(
                    task, self._gpus, {**environment_variables(), **extras.environment}
                ),
                **extras.environment,
            },
        )
        serves = self._cluster.coordinator and task.type == WORKER
        command = ["run"] if serves else program
        process = start_task(task, command, environment, self._death_pipe, self._news.put)
        self._processes[task] = process
        work = Work(
            task.short,
            environment[TF_CONFIG],
            make=partial(_as_it_is, process),
            ended=partial(self._ended, task),
        )
        self._executor.start(task, work)

    def _own_of(self, task: TaskId) -> dict[str, str]:
        """Collect the settings that are different for one task.

        The chief is only asked to stop here when the whole job is, so it leaves that to no other.
        """
        return {"ROPEWALK_CHIEF_RETURNS": "false"} if task == self._cluster.chief_task else {}

    def _ended(self, task: TaskId, outcome: int | Exception) -> None:
        self._news.put(Exit(task, outcome))

    def _report_file(self, task: TaskId) -> Path:
        return Path(self._reports.name) / f"{task.type}-{task.index}"

    # -- meanwhile ---------------------------------------------------------------------------

    @property
    def _status(self) -> "JobStatus | None":
        return self._watch.last if self._watch is not None else None

    def _turn(self, wait_s: float) -> None:
        """Show output and progress, and do what the news, the signals and the time ask for."""
        self._take_news(wait_s)
        status = self._status
        if status is not None:
            self._display.progress(status, self._speed.of(status))
            self.on_status(status)
            self._scale(status)
        while self._requests:
            self._request_stop(self._requests.popleft())
        self._handle(self._look() or Tick())
        self._say_who_left()

    def _scale(self, status: "JobStatus") -> None:
        """Have as many ps as the chief was asked for: start some, or ask some to leave."""
        wanted = status.wanted_ps
        if not wanted or self._supervision.is_stopping:
            return
        if wanted != self._num_ps:
            self._display.say(f"{self._num_ps} → {wanted} ps")
            self._num_ps = wanted
        for task in [TaskId(PS, index) for index in range(wanted)]:
            run = self._runs.get(task)
            if run is None or self._has_left(run, status):
                if task not in self.addresses:  # else the chief knows it there
                    self.addresses[task] = f"127.0.0.1:{free_ports(1)[0]}"
                self._sent_away.discard(task)
                self._runs[task] = TaskRun()
                self._start_task(task)
        for task, run in self._runs.items():  # they hand over what they have
            is_extra = task.type == PS and task.index >= wanted and not run.has_ended
            if is_extra and task not in self._sent_away:
                self._sent_away.add(task)
                self._executor.send(task, signal.SIGTERM)

    def _has_left(self, run: TaskRun, status: "JobStatus") -> bool:
        """Return whether a ps has ended and its job goes on: it may have ended since the job is
        over.
        """
        asked = self._watch.asked if self._watch is not None else 0.0
        return run.ended is not None and asked > run.ended and status.phase is Phase.RUNNING

    def _take_news(self, wait_s: float) -> None:
        """Show the lines of tasks, and handle their exits, in the order in which they came."""
        try:
            news = self._news.get(timeout=wait_s)
            while True:
                if isinstance(news, Exit):
                    self._take_exit(news)
                elif not (news.is_ours and self._is_consequence(news.text)):
                    self._display.line(news.task, news.text, is_error=news.is_error)
                news = self._news.get_nowait()
        except queue.Empty:
            return

    def _take_exit(self, news: Exit) -> None:
        if isinstance(news.outcome, Exception):
            raise news.outcome
        can_restart = news.task not in self._sent_away
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
        for process in self._processes.values():
            for reader in process.readers:
                while reader.is_alive() and time.monotonic() < deadline:
                    self._take_news(0.01)
        self._take_news(0.01)

    def _result(self) -> LocalResult:
        exits = {task: run.code or 0 for task, run in self._runs.items()}
        failure = self._supervision.failure
        from ...training.evaluations import read_evaluations

        # The chief's last words, unless it was killed before it could write them.
        status = read_status(self._settings.model_dir)
        if status is None or not status.phase.is_over:
            status = self._status or status
        evaluations = read_evaluations(self._settings.model_dir)
        return LocalResult(
            self._supervision.exit_code,
            exits,
            self._settings.model_dir,
            failure.task if failure is not None else None,
            status,
            evaluations[-1].metrics if evaluations else {},
            {task: self._error_of(task) for task, status in exits.items() if status != 0},
        )

    def _error_of(self, task: TaskId) -> str:
        """Read what a task reported; if it could not, its last lines of stderr."""
        text = read_report(self._report_file(task))
        return text or "\n".join(self._processes[task].last_lines)

    def show_result(self, result: LocalResult) -> None:
        """Show the first failure, a table of all tasks, and how to go on."""
        from ..screen.status_table import metrics_text

        say = self._display.say
        if failure := failure_text(result):
            say(failure, is_error=True)
        self._display.table(result_table(result, self._display.width))
        if result.metrics:
            say(f"last evaluation: {metrics_text(result.metrics)}")
        if Path(result.model_dir).is_dir():
            say(f"model directory: {result.model_dir}")
            if self._settings.tensorboard:
                say(f"its numbers: ropewalk tensorboard {result.model_dir}")
        saved = result.status is not None and result.status.last_checkpoint
        if saved and self._resume and is_retryable(result.exit_code):
            say(f"to resume: {self._resume}")


def _as_it_is(process: TaskProcess) -> TaskProcess:
    return process
