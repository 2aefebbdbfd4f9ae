"""Following a job of a standalone cluster from where its driver is: lines, progress, its end."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ....cluster.roles import CHIEF
from ....core.errors import PeerLostError, RefusedError
from ....core.settings import Settings
from ....core.task import TaskId
from ....launch.local.watch import Speed, StatusWatch
from ....launch.processes.interrupts import on_interrupts
from ..client.calls import GatewayClient, JobView
from ..client.routing import routes_to

if TYPE_CHECKING:
    from ....launch.screen.plain import Display

_WAIT_S = 1.0
_RETRY_S = 0.5
_SAY_S = 3.0  # a shorter silence of the gateway is not worth a line


class Following:
    """Shows a job until it ends, through every loss of the connection.

    What is shown decides nothing: the job's end is what the gateway says of it. A job that is not
    detached lives as long as it is followed.

    Args:
        client: Client of the gateway.
        job: Id of the job.
        display: Display to which lines and progress go.
        settings: Settings with which the job's chief is asked for its progress.
        patience_s: Longest time that the gateway may be silent.
    """

    def __init__(
        self,
        client: GatewayClient,
        job: str,
        display: "Display",
        settings: Settings,
        patience_s: float = 60.0,
    ) -> None:
        self._client = client
        self._job = job
        self._display = display
        self._settings = settings
        self._progress = contextlib.ExitStack()
        self._watch: StatusWatch | None = None
        self._speed = Speed()
        self._patience_s = patience_s
        self._offset = 0
        self._state = ("", "")
        self._interrupts = 0
        self._told = 0  # of the interrupts, to the gateway
        self._said = 0  # and to who looks on
        self._pause = threading.Event()

    def run(self) -> JobView:
        """Follow the job to its end.

        Raises:
            PeerLostError: The gateway was silent for too long.
            RefusedError: It knows no such job.
        """
        with self._progress:
            return self._follow()

    def _follow(self) -> JobView:
        silent_since: float | None = None
        has_warned = False
        while True:
            self._pass_on_interrupts()
            try:
                news = self._client.follow(self._job, self._offset, wait_s=_WAIT_S, drives=True)
            except RefusedError as error:
                if not self._state[0]:
                    raise
                raise PeerLostError(
                    f"the cluster's chief at {self._client.address} has restarted and knows no job "
                    f"{self._job}, which ended with it. Submit it again; with --model it goes on "
                    "from its last checkpoint",
                    peer=self._client.address,
                ) from error
            except PeerLostError as error:
                now = time.monotonic()
                silent_since = silent_since or now
                # A person who asks twice and gets no answer wants to leave.
                if now - silent_since > self._patience_s or self._interrupts >= 2:
                    raise PeerLostError(
                        f"the gateway at {self._client.address} has not answered for "
                        f"{now - silent_since:.0f} s: {error.message}. What the job does now is "
                        f"not known; `ropewalk attach {self._job}` goes on from here",
                        peer=self._client.address,
                    ) from error
                if not has_warned and now - silent_since > _SAY_S:
                    has_warned = True
                    self._display.say(
                        f"the gateway does not answer ({error.message}); still trying"
                    )
                self._pause.wait(_RETRY_S)
                continue
            if has_warned:
                self._display.say("the gateway answers again")
            silent_since, has_warned = None, False
            if news.dropped and self._offset:
                self._display.say(f"{news.dropped} bytes of the log are no longer kept")
            for line in news.lines:
                self._display.line(line.task, line.text, is_error=line.is_error)
            self._offset = news.offset
            self._tell_state(news.job)
            self._show_progress(news.job)
            if news.job.has_ended and not news.lines:
                return news.job

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM stop the job; a second Ctrl-C ends it at once."""

        def count(number: signal.Signals) -> None:  # noqa: ARG001
            self._interrupts += 1

        with on_interrupts(count):
            yield

    def _show_progress(self, job: JobView) -> None:
        if self._watch is None and job.state == "running" and CHIEF in job.cluster:
            self._progress.enter_context(routes_to(self._client, job))
            self._watch = StatusWatch(job.cluster[CHIEF][0], self._settings)
            self._progress.callback(self._watch.stop, 2.0)
            self._watch.start()
        status = self._watch.last if self._watch is not None else None
        if status is not None and job.state == "running":
            self._display.progress(status, self._speed.of(status))

    def _pass_on_interrupts(self) -> None:
        while self._told < min(self._interrupts, 2):
            kill = self._told == 1
            if self._said == self._told:
                self._said += 1
                self._display.say(
                    "ending the job at once"
                    if kill
                    else "saving and stopping; again ends it at once"
                )
            try:
                self._client.stop(self._job, "its driver asked for it", kill=kill)
            except PeerLostError:
                return  # it is told when the gateway answers again
            self._told += 1

    def _tell_state(self, job: JobView) -> None:
        state = job.state, job.reason
        if state == self._state:
            return
        self._state = state
        if job.state in ("queued", "stopping"):
            self._display.say(f"{job.id} is {job.state}: {job.reason or 'it begins soon'}")
        elif job.state == "running" and not job.reason:
            self._display.say(f"{job.id} runs as {_counted(job)}")


def _counted(job: JobView) -> str:
    counts: dict[str, int] = {}
    for task in job.tasks:
        counts[task.type] = counts.get(task.type, 0) + 1
    return ", ".join(f"{count} {role}" for role, count in counts.items())


def tasks_of(job: JobView) -> list[TaskId]:
    """List the tasks that lines may come from, for the width of a display."""
    return [*job.tasks] or [TaskId("worker", 10)]
