"""Notices lost tasks: looks twice in a heartbeat, whatever else the chief waits for.

The chief's loop calls every ps, which takes as long as the slowest one; so this has a thread of its
own. What the looks decide is :class:`~ropewalk.cluster.job.job.Job`'s.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence

from ...client.ps.control import PsControl
from ...cluster.liveness import Evidence, answer_s
from ...core.process.events import event
from ...core.process.threads import new_thread
from ...core.settings import Settings
from ...core.task import TaskId
from ...server.chief.servicer import LockedJob

log = logging.getLogger(__name__)

_LOOKS = 2  # in a heartbeat
_LONGEST_LOOK_S = 1.0  # on a busy machine: what passes beyond is no silence of others
_PORT_S = 0.1  # for a machine to refuse a connection
_PORTS = 4  # ps that are dialled in one look


class LossWatch:
    """A thread that looks for tasks that are silent for too long.

    Args:
        locked_job: The job.
        settings: Periods.
        controls: Controls of the ps; read at each look.
        failed: Called if the thread ends by an exception.
    """

    def __init__(
        self,
        locked_job: LockedJob,
        settings: Settings,
        controls: Sequence[PsControl],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._locked_job = locked_job
        self._settings = settings
        self._controls = controls
        self._thread = new_thread("chief-losses", self._watch, failed=failed)
        self._leaving = threading.Event()
        self._looked: float | None = None

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def _watch(self) -> None:
        pause_s = self._settings.heartbeat_s / _LOOKS
        while not self._leaving.wait(pause_s):
            self.look()

    def look(self) -> None:
        """Give up tasks that are lost, and note those that are late."""
        refusing = self._refusing()
        with self._locked_job.open() as (job, now):
            if self._looked is not None:
                job.skip(now - self._looked - _LONGEST_LOOK_S, now=now)
            self._looked = now
            presence = self._locked_job.presence
            presence.keep(job.members)
            evidence = {
                each.task: presence.evidence(each, now, answer_s(job.limit_s(each)))
                for each in job.silent(now=now)
            } | dict.fromkeys(refusing, Evidence.REFUSED)
            late_s = self._settings.orphan_timeout_s
            lost = job.expire(now=now, evidence=evidence, late_s=late_s)
            said = [(task, job.members[task].detail) for task in lost]
        for task, why in said:
            log.warning(
                "%s was lost: %s", task, why, extra=event("task.lost", of=task.short, why=why)
            )

    def _refusing(self) -> Iterable[TaskId]:
        """Find silent ps at whose port nothing listens any more: their machine says so at once."""
        with self._locked_job.open() as (job, now):
            silent = {member.task for member in job.silent(now=now)}
        asked = [control for control in tuple(self._controls) if control.task in silent][:_PORTS]
        return [control.task for control in asked if control.has_ended(_PORT_S)]

    def close(self) -> None:
        """Look no more."""
        self._leaving.set()
        if self._thread.ident is not None:
            self._thread.join(_PORTS * _PORT_S + 1)
