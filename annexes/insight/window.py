"""The last minutes of a job's reports, as its chief keeps them. The caller locks."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ...cluster.job.members import Member
from ...core.report import Finding
from ...core.task import State, TaskId
from .decisions import MOST, Reports, findings
from .machines import Used, memory_that_runs_out, shared_machines

_EVERY_S = 5.0
_KEPT = 12  # a minute
_RECENT = 3  # moments: what began a quarter of a minute ago is in most of the steps since
_USED_EVERY_S = 15.0
_USED_KEPT = 13  # three minutes
_LEAST_S = 2.0
_ANEW_S = 1.0


class Window:
    """Moments of the last minutes: reports are referred to, and not copied."""

    def __init__(self) -> None:
        self._moments: deque[Reports] = deque(maxlen=_KEPT)
        self._used: deque[Used] = deque(maxlen=_USED_KEPT)
        self._concluded_at = 0.0
        self._found: list[Finding] = []
        self._stepped: dict[TaskId, tuple[int, float]] = {}

    def look(self, members: Iterable[Member], now: float) -> None:
        """Keep a moment, every few seconds, and when each task has last made a step."""
        members = [*members]
        for member in members:
            steps = member.report.steps
            if member.report.serves:  # it makes those that a coordinator gives it
                continue
            if self._stepped.get(member.task, (0, now))[0] != steps:
                self._stepped[member.task] = steps, now
        if not self._moments or now - self._moments[-1].at >= _EVERY_S:
            self._moments.append(moment_of(members, now))
        if not self._used or now - self._used[-1].at >= _USED_EVERY_S:
            self._used.append(used_at(members, now))

    def findings(self, members: Iterable[Member], now: float) -> list[Finding]:
        """Conclude from the last minute, or as much of it as there is."""
        if not self._moments or now - self._moments[0].at < _LEAST_S:
            return []
        if now - self._concluded_at >= _ANEW_S:  # a launcher asks for the status all the time
            self._concluded_at = now
            self._found = [*self._of_machines(), *self._of_steps([*members], now)][:MOST]
        return self._found

    def _of_steps(self, members: list[Member], now: float) -> list[Finding]:
        present = replace(moment_of(members, now), stood_s=self._stood_s(members, now))
        recent = self._moments[-min(_RECENT, len(self._moments))]
        # A task whose steps take long has few of them in so short a while.
        found = findings(recent, present)
        kinds = {each.kind for each in found}
        longer = findings(self._moments[0], present)
        return [*found, *(each for each in longer if each.kind not in kinds)]

    def _stood_s(self, members: Iterable[Member], now: float) -> dict[TaskId, float]:
        alive = [each.task for each in members if each.state is State.ALIVE]
        return {task: now - self._stepped[task][1] for task in alive if task in self._stepped}

    def _of_machines(self) -> Iterator[Finding]:
        used = list(self._used)
        yield from memory_that_runs_out(used)
        if len(used) > 1:
            yield from shared_machines(*used[-2:])


def used_at(members: Iterable[Member], now: float) -> Used:
    """Collect what the tasks that are at work use of their machines."""
    alive = (member for member in members if member.state is State.ALIVE)
    return Used(now, {each.task: each.usage for each in alive if each.usage.memory_bytes})


def moment_of(members: Iterable[Member], now: float) -> Reports:
    """Collect the reports of the tasks that are at work."""
    alive = [member for member in members if member.state is State.ALIVE]
    trains = [member for member in alive if member.report.step_parts]
    return Reports(
        now,
        {member.task: member.report.step_times for member in trains},
        {member.task: member.report.staleness for member in trains},
        {member.task: member.counters for member in alive if member.counters is not None},
    )
