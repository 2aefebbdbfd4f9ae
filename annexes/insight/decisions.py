"""Conclusions from the reports of a job's tasks: who is slow, and who stands still. Pure: two
moments in, findings out.

A task is compared with the median of the others, over a while, by its *own* time: a step without
what it waits for others. So in sync, where all steps take as long as the slowest worker's, the
one that the others wait for is found, too. Few steps make no finding, nor does a single long one
(an evaluation, a checkpoint of the program's own): the part that differs has to differ in its
median, by more than two neighbouring buckets of a histogram can.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import mean

from ...core.report import Finding, PsCounters
from ...core.step_times import PARTS, STEP, StepTimes
from ...core.task import TaskId

LEAST_STEPS = 8
"""Steps of a while from which something is concluded."""
MOST = 8
"""Findings at one time; the worst stragglers come first."""
_SLOW = 1.5  # times the others: neighbouring buckets are 1.41 apart
_LEAST_S = 0.2e-3  # more of a step than the others: below, it is the clock's noise
_LEAST_BYTES_PER_S = 1e6  # of all ps: less is no load
_FAIR = 2.0  # times its part of the bytes
_MOST_OF_TWO = 0.75  # of the bytes, where there are two ps
_STALE = 3.0  # times the number of the other workers
_RISES = 1.5
_STANDS_S = 15.0
_STANDS_STEPS = 10  # times as long as 99 of 100 steps of any task take at most


@dataclass(frozen=True, slots=True)
class Reports:
    """The reports of a job at one time.

    Attributes:
        at: Time on the job's clock. Unit: seconds.
        steps: Times of the steps of each task at work since its start.
        staleness: Staleness of each.
        counters: Counters of each ps that has answered.
        stood_s: Time since each has last finished a step. Unit: seconds.
    """

    at: float
    steps: Mapping[TaskId, StepTimes]
    staleness: Mapping[TaskId, float]
    counters: Mapping[TaskId, PsCounters]
    stood_s: Mapping[TaskId, float] = field(default_factory=dict)


def findings(before: Reports, now: Reports) -> list[Finding]:
    """Conclude from what has happened between two moments.

    Args:
        before: The moment at the beginning of a while.
        now: The moment at its end.
    """
    steps = {
        task: times.since(before.steps.get(task, StepTimes())) for task, times in now.steps.items()
    }
    steps = {task: times for task, times in steps.items() if times.count >= LEAST_STEPS}
    slow = sorted(stragglers(steps), key=lambda each: -each.numbers["ratio"])
    others = [*hot_servers(before, now), *rising_staleness(before, now)]
    first = [*standing(now), *slow]
    return [*first[: MOST - len(others)], *others]


# -- Tasks that stand still --------------------------------------------------------------------


def standing(now: Reports) -> Iterator[Finding]:
    """Find the tasks that have made steps and make none any more, the longest first.

    Args:
        now: The present moment.
    """
    usual_s = max((times.part(STEP).quantile(0.99) for times in now.steps.values()), default=0.0)
    least_s = max(_STANDS_S, _STANDS_STEPS * usual_s)
    still = {task: since for task, since in now.stood_s.items() if since >= least_s and usual_s}
    if 1 < len(still) == len(now.stood_s):
        text = f"no task has finished a step for {min(still.values()):.0f} s"
        yield _standing(min(still), f"{text}: {_STACKS} where they stand", min(still.values()))
        return
    for task, since_s in sorted(still.items(), key=lambda each: -each[1]):
        text = f"{task.short} has finished no step for {since_s:.0f} s, and others have"
        yield _standing(task, f"{text}: {_STACKS} where it stands", since_s)


_STACKS = "`ropewalk stacks` says"


def _standing(task: TaskId, text: str, since_s: float) -> Finding:
    return Finding("standing", task.short, text, {"stood_s": since_s})


# -- Stragglers --------------------------------------------------------------------------------


def stragglers(steps: Mapping[TaskId, StepTimes]) -> Iterator[Finding]:
    """Find the tasks whose own part of a step takes longer than that of the others.

    Args:
        steps: Times of each task's steps, of the same while.
    """
    if len(steps) < 2:
        return
    own = Column({task: _own_s(times) for task, times in steps.items()})
    means = {
        part: Column({task: times.mean(part) for task, times in steps.items()}) for part in _OWN
    }
    slow = [task for task in steps if own.ratio(task) >= _SLOW]
    for task in slow:
        part = max(_OWN, key=lambda name: means[name].more(task))
        halves = Column({each: times.part(part).quantile(0.5) for each, times in steps.items()})
        mean_s, more_s = means[part].values[task], means[part].more(task)
        if more_s >= _LEAST_S and halves.values[task] >= _SLOW * halves.others(task):
            yield _straggler(task, own.ratio(task), part, mean_s, mean_s - more_s)


def _straggler(task: TaskId, ratio: float, part: str, part_s: float, others_s: float) -> Finding:
    return Finding(
        "straggler",
        task.short,
        f"{task.short}: {ratio:.1f} × the median step, in {part} "
        f"({_ms(part_s)} a step, others {_ms(others_s)})",
        {"ratio": ratio, "part_s": part_s, "others_s": others_s},
    )


class Column:
    """A number of each task, sorted once, so that comparing all with the others takes no square.

    Args:
        values: Number of each of two tasks or more.
    """

    def __init__(self, values: Mapping[TaskId, float]) -> None:
        self.values = values
        self._sorted = sorted(values.values())

    def others(self, task: TaskId) -> float:
        """Return the median of the others."""
        place, half = bisect_left(self._sorted, self.values[task]), (len(self._sorted) - 1) // 2
        above = self._sorted[half + (half >= place)]
        if len(self._sorted) % 2 == 0:
            return above
        return (above + self._sorted[half - 1 + (half - 1 >= place)]) / 2

    def more(self, task: TaskId) -> float:
        """Return how much more a task has than the median of the others."""
        return self.values[task] - self.others(task)

    def ratio(self, task: TaskId) -> float:
        """Return how many times the median of the others a task has; 0: they have nothing."""
        others = self.others(task)
        return self.values[task] / others if others else 0.0


_OWN = tuple(part for part in PARTS if part != "others")


def _own_s(times: StepTimes) -> float:
    """Mean time of a step without what it waits for others."""
    return times.step_s - times.mean("others")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


# -- Servers -----------------------------------------------------------------------------------


def hot_servers(before: Reports, now: Reports) -> Iterator[Finding]:
    """Find the ps that moves most of the bytes of all, and what it holds.

    Args:
        before: The moment at the beginning of a while.
        now: The moment at its end.
    """
    moved = {
        task: _moved(counters) - _moved(before.counters.get(task, PsCounters()))
        for task, counters in now.counters.items()
    }
    total, seconds = sum(moved.values()), now.at - before.at
    if len(moved) < 2 or seconds <= 0 or total < _LEAST_BYTES_PER_S * seconds:
        return
    task = max(moved, key=lambda each: moved[each])
    share = moved[task] / total
    if share < min(_MOST_OF_TWO, _FAIR / len(moved)):
        return
    counters, earlier = now.counters[task], before.counters.get(task, PsCounters())
    pushes = (counters.pushes - earlier.pushes) / seconds
    yield Finding(
        "hot_shard",
        task.short,
        f"{task.short} moves {share:.0%} of the bytes of all {len(moved)} ps "
        f"({moved[task] / seconds / 1e6:.3g} MB/s, {pushes:.3g} pushes/s)"
        f"{_hottest(earlier, counters, seconds) or _held(counters)}",
        {"share": share, "bytes_per_s": moved[task] / seconds, "pushes_per_s": pushes},
    )


def _moved(counters: PsCounters) -> int:
    return counters.bytes_in + counters.bytes_out


def _hottest(before: PsCounters, now: PsCounters, seconds: float) -> str:
    """Name the shard of a ps whose changes had most of the bytes, with its part of those of all.

    A change is counted as of the whole shard, and is of less where a push has rows.
    """
    earlier = {each.name: each.updates for each in before.busiest}
    rates = {
        each: max(0, each.updates - earlier.get(each.name, 0)) / seconds for each in now.busiest
    }
    moved = {each: rate * each.num_bytes for each, rate in rates.items()}
    if not (total := sum(moved.values())):
        return ""
    top = max(moved, key=lambda each: moved[each])
    share = moved[top] / total
    return f": {share:.0%} of its updates' bytes are {top.name}'s ({rates[top]:.3g} a second)"


def _held(counters: PsCounters) -> str:
    """Name what a ps holds, if that is little."""
    more = ", …" if counters.shards > len(counters.labels) else ""
    return f": it holds {', '.join(counters.labels[:4])}{more}" if counters.labels else ""


# -- Checkpoints -------------------------------------------------------------------------------


def unsaved(in_a_row: int, why: str, saved_step: int) -> Iterator[Finding]:
    """Find that checkpoints fail.

    Args:
        in_a_row: Checkpoints that could not be written since the last complete one.
        why: Why the last one could not.
        saved_step: Global step of the last complete one; 0: there is none.
    """
    if in_a_row:
        since = f"since that of step {saved_step}" if saved_step else "in this job"
        text = f"no checkpoint could be saved {since}, {in_a_row} in a row: {why}"
        yield Finding("unsaved", "", text, {"failed": in_a_row, "step": saved_step})


# -- Staleness ---------------------------------------------------------------------------------


def rising_staleness(before: Reports, now: Reports) -> Iterator[Finding]:
    """Find that updates get staler than the number of workers explains.

    Args:
        before: The moment at the beginning of a while.
        now: The moment at its end.
    """
    both = [task for task in now.staleness if task in before.staleness]
    if len(both) < 2:
        return
    was = mean(before.staleness[task] for task in both)
    is_now = mean(now.staleness[task] for task in both)
    if is_now < max(_STALE * (len(both) - 1), _RISES * was):
        return
    task = max(both, key=lambda each: now.staleness[each])
    yield Finding(
        "staleness",
        task.short,
        f"updates get staler: {was:.1f} → {is_now:.1f} steps of others in the mean in "
        f"{now.at - before.at:.0f} s, {now.staleness[task]:.1f} of {task.short}",
        {"before": was, "now": is_now},
    )
