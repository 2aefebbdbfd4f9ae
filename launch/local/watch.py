"""Following a job: its status, asked for in a thread that also tells of exits, and its speed."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...cluster.spec import PS
from ...core.errors import PeerLostError, RopewalkError
from ...core.exit_codes import describe_exit, shell_status
from ...core.process.threads import new_thread, nobody_waits
from ...core.settings import Settings
from ...core.step_times import STEP, WAITS
from ...core.task import Incarnation, Outcome, State, TaskId

if TYPE_CHECKING:
    from ...client.chief.calls import JobStatus, TaskStatus

log = logging.getLogger(__name__)

_EVERY_S = 0.3
_CONNECT_S = 1.0
_EXPECTED = (State.MISSING, State.ALIVE, State.LOST)  # the chief does not know that it has ended


class StatusWatch:
    """Asks a chief for the job's status, over and over.

    Args:
        address: The chief's.
        settings: Settings, for the connection.

    Attributes:
        last: The last status; None: there is none yet.
        asked: Time at which it was asked for. Monotonic time. Monotonic time.
    """

    def __init__(self, address: str, settings: Settings) -> None:
        self.last: JobStatus | None = None
        self.asked = 0.0
        self._answered = time.monotonic()
        self._address = address
        self._settings = settings
        self._left: dict[TaskId, int] = {}
        self._over = threading.Event()
        self._thread = new_thread("status", self._watch, failed=nobody_waits)

    def start(self) -> None:
        """Begin, in a thread."""
        self._thread.start()

    @property
    def answered(self) -> float:
        """Time at which the chief last answered, or this began; now, if it is not asked. Monotonic
        time.
        """
        return self._answered if self._thread.is_alive() else time.monotonic()

    def stop(self, timeout_s: float) -> None:
        """End the thread."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def report_exit(self, task: TaskId, code: int) -> None:
        """Have the chief told that a task has left for good: it need not wait for its lease to run
        out, nor for a task that was killed before it registered.

        It is told after each status that has the task at work or yet to come, so also where the
        chief does not answer yet, or the last word of the task comes after its end.
        """
        if task.type != PS:  # they do not register; the chief looks for them
            self._left[task] = code

    def _report(self, left: Mapping[TaskId, int], status: "JobStatus") -> None:
        """Report those that had left before the status was asked for, unless it shows that."""
        for item in status.tasks:
            if item.task in left and item.state in _EXPECTED:
                self._report_left(item, left[item.task])

    def _report_left(self, item: "TaskStatus", code: int) -> None:
        from ...client.chief.calls import ChiefClient
        from ...cluster.access import principal_of_task
        from ...core.report import TaskEnd

        client = ChiefClient(self._address, self._settings, principal_of_task(item.task))
        try:
            who = Incarnation(item.task, item.generation)
            end = TaskEnd(Outcome.LEFT, describe_exit(code), shell_status(code))
            client.finish(who, end, item.report, timeout_s=1.0)
        except RopewalkError as error:
            log.debug("could not report the exit of %s to the chief: %s", item.task, error)
        finally:
            client.close()

    def _watch(self) -> None:
        from ...net.sockets import is_listening

        # Loading grpc waits until the chief listens: the tasks need the cores while they start.
        while not is_listening(self._address, _CONNECT_S):
            if self._over.wait(_EVERY_S):
                return
        from ...client.chief.calls import ChiefClient
        from ...cluster.access import READER, Principal

        client = ChiefClient(self._address, self._settings, Principal(READER))
        try:
            while not self._over.wait(_EVERY_S):
                asked, left = time.monotonic(), dict(self._left)
                try:
                    self.last, self.asked = client.status(timeout_s=1.0), asked
                except PeerLostError:
                    continue
                except RopewalkError as error:
                    log.debug("the chief answers, but not with a status: %s", error)
                self._answered = time.monotonic()
                if self.last is not None and self.asked == asked:
                    self._report(left, self.last)
        finally:
            client.close()


class ToldFindings:
    """Findings of a job's status, for lines among those of its tasks: each is told once it has
    been there for a while, and again as long as it is there, now and then.
    """

    _PERSISTS_S = 10.0
    _AGAIN_S = 600.0

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], float] = {}
        self._told: dict[tuple[str, str], float] = {}

    def of(self, status: "JobStatus") -> list[str]:
        """Return the texts of findings that are to be told with one more status."""
        texts = {(each.kind, each.subject): each.text for each in status.findings}
        self._since = {key: self._since.get(key, status.age_s) for key in texts}
        due = [key for key in texts if self._is_due(key, status.age_s)]
        self._told |= dict.fromkeys(due, status.age_s)
        return [texts[key] for key in due]

    def _is_due(self, key: tuple[str, str], age_s: float) -> bool:
        persists = age_s - self._since[key] >= self._PERSISTS_S
        return persists and age_s - self._told.get(key, -self._AGAIN_S) >= self._AGAIN_S


class Speed:
    """Steps per second over the last few seconds."""

    _WINDOW_S = 3.0

    def __init__(self) -> None:
        self._points: list[tuple[float, int]] = []

    def of(self, status: "JobStatus") -> float:
        """Compute the speed with one more status; 0 as long as there is one alone."""
        point = (status.age_s, status.global_step)
        if not self._points or point[0] > self._points[-1][0]:
            self._points.append(point)
        self._points = [p for p in self._points if p[0] >= point[0] - self._WINDOW_S]
        (t0, s0), (t1, s1) = self._points[0], self._points[-1]
        return (s1 - s0) / (t1 - t0) if t1 > t0 else 0.0


class Waits:
    """The part that steps spend most of their time in, over the last few seconds."""

    _WINDOW_S = 10.0

    def __init__(self) -> None:
        self._points: list[tuple[float, Counter[str]]] = []
        self._last: JobStatus | None = None
        self._text = ""

    def of(self, status: "JobStatus") -> str:
        """Name the largest part with one more status, as ``data 61 %``; empty if it is compute."""
        if status is not self._last:
            self._last = status
            self._text = self._text_of(status)
        return self._text

    def _text_of(self, status: "JobStatus") -> str:
        spent = Counter[str]()
        for part in (part for task in status.tasks for part in task.report.step_parts):
            spent[part.name] += part.seconds  # type: ignore[assignment]
        since = status.age_s - self._WINDOW_S
        self._points = [*(p for p in self._points if p[0] >= since), (status.age_s, spent)]
        recent = spent - self._points[0][1]
        whole = recent.pop(STEP, 0)
        name, most = max(recent.items(), key=lambda item: item[1], default=("", 0))
        # A task that was started again has taken its steps off.
        return f"{name} {100 * min(1, most / whole):.0f} %" if name in WAITS and whole else ""
