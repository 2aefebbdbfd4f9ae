"""Following a job: its status, asked for in a thread, and its speed."""

import logging
import threading
import time
from typing import TYPE_CHECKING

from ...core.errors import PeerLostError, RopewalkError
from ...core.exit_codes import describe_exit, shell_status
from ...core.process.threads import new_thread, nobody_waits
from ...core.settings import Settings
from ...core.states import Outcome
from ...core.task import Incarnation, TaskId

if TYPE_CHECKING:
    from ...client.chief.calls import JobStatus

log = logging.getLogger(__name__)

_EVERY_S = 0.3
_CONNECT_S = 1.0


class StatusWatch:
    """Asks a chief for the job's status, over and over.

    Args:
        address: The chief's.
        settings: For the connection.

    Attributes:
        last: The last status; None: there is none yet.
        asked: When it was asked for. Monotonic time.
    """

    def __init__(self, address: str, settings: Settings) -> None:
        self.last: JobStatus | None = None
        self.asked = 0.0
        self._answered = time.monotonic()
        self._address = address
        self._settings = settings
        self._over = threading.Event()
        self._thread = new_thread("status", self._watch, failed=nobody_waits)

    def start(self) -> None:
        """Begin, in a thread."""
        self._thread.start()

    @property
    def answered(self) -> float:
        """When the chief last answered, or this began; now, if it is not asked. Monotonic time."""
        return self._answered if self._thread.is_alive() else time.monotonic()

    def stop(self, timeout_s: float) -> None:
        """End the thread."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def report_exit(self, task: TaskId, code: int) -> None:
        """Report a task's exit to the chief, which need not wait for its lease to run out."""
        known = {item.task: item for item in self.last.tasks} if self.last else {}
        item = known.get(task)
        if item is None or not item.generation:
            return
        from ...client.chief.calls import ChiefClient
        from ...cluster.access.principal import principal_of_task
        from ...core.report import TaskEnd

        client = ChiefClient(self._address, self._settings, principal_of_task(task))
        try:
            who = Incarnation(task, item.generation)
            end = TaskEnd(Outcome.LEFT, describe_exit(code), shell_status(code))
            client.finish(who, end, item.report, timeout_s=1.0)
        except RopewalkError as error:
            log.debug("could not report the exit of %s to the chief: %s", task, error)
        finally:
            client.close()

    def _watch(self) -> None:
        from ...net.tcp import is_listening

        # Loading grpc waits until the chief listens: the tasks need the cores while they start.
        while not is_listening(self._address, _CONNECT_S):
            if self._over.wait(_EVERY_S):
                return
        from ...client.chief.calls import ChiefClient
        from ...cluster.access.principal import READER, Principal

        client = ChiefClient(self._address, self._settings, Principal(READER))
        try:
            while not self._over.wait(_EVERY_S):
                asked = time.monotonic()
                try:
                    self.last, self.asked = client.status(timeout_s=1.0), asked
                except PeerLostError:
                    continue
                except RopewalkError as error:
                    log.debug("the chief answers, but not with a status: %s", error)
                self._answered = time.monotonic()
        finally:
            client.close()


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
