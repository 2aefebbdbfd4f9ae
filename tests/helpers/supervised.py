"""A supervised job whose clock a test sets, and whom every launcher blames."""

import random

import pytest

from ropewalk.cluster.supervision.decisions import Supervision, TaskRun
from ropewalk.cluster.supervision.policy import (
    End,
    Ended,
    Order,
    Policy,
    Signal,
    StopRequested,
    Tick,
)
from ropewalk.core.exit_codes import ExitCode
from ropewalk.core.task import TaskId

CHIEF, PS, PS1 = TaskId("chief", 0), TaskId("ps", 0), TaskId("ps", 1)
W0, W1, EVALUATOR = TaskId("worker", 0), TaskId("worker", 1), TaskId("evaluator", 0)
FOLLOWED, DRAINED = int(ExitCode.PEER_LOST), int(ExitCode.DRAINED)
EARLY = int(ExitCode.LEFT_EARLY)

BLAMED = [
    pytest.param([(CHIEF, 0), (W0, 0), (W1, 0), (PS, 0)], None, 0, id="done"),
    pytest.param([(W0, -9), (CHIEF, 0)], None, 0, id="a worker was lost"),
    pytest.param([(W0, 1), (CHIEF, FOLLOWED)], W0, 1, id="a program raised"),
    pytest.param([(PS, FOLLOWED), (CHIEF, 1)], CHIEF, 1, id="a ps that was told, first"),
    pytest.param(
        [(PS, FOLLOWED), (CHIEF, FOLLOWED)], CHIEF, FOLLOWED, id="the chief says what was lost"
    ),
    pytest.param([(CHIEF, FOLLOWED), (PS, -9)], PS, 137, id="a killed ps that came second"),
    pytest.param([(CHIEF, DRAINED), (W0, 7)], W0, 7, id="an error and one that was asked"),
    pytest.param([(PS, DRAINED), (CHIEF, DRAINED)], CHIEF, DRAINED, id="a ps was asked"),
    pytest.param([(PS, EARLY), (CHIEF, 4)], CHIEF, 4, id="an error and a ps that left early"),
    pytest.param([(CHIEF, 0), (W0, 1)], None, 0, id="a worker after the end"),
]
"""Ends of tasks, in their order; which of them a launcher blames, and the job's exit code."""


class Job:
    """A supervised job whose clock stands still until it is set."""

    def __init__(self, policy: Policy, *tasks: TaskId) -> None:
        self.runs = {task: TaskRun() for task in tasks or (PS, PS1, CHIEF, W0, W1)}
        self.supervision = Supervision(self.runs, policy)
        self.now = 0.0

    def at(self, now: float) -> list[Order]:
        """That time comes."""
        self.now = now
        return self.supervision.handle(Tick(), now)

    def end(self, task: TaskId, code: int) -> list[Order]:
        return self.supervision.handle(Ended(End(task, code)), self.now)

    def end_all(self, code: int) -> None:
        for task, run in self.runs.items():
            if not run.has_ended:
                self.end(task, code)

    def stop(self, *, kill: bool = False) -> list[Order]:
        return self.supervision.handle(StopRequested("enough", kill), self.now)

    @property
    def verdict(self) -> tuple[TaskId | None, int]:
        """Which task is to blame, and the job's exit code."""
        failure = self.supervision.failure
        return failure.task if failure else None, self.supervision.exit_code


def ask(*tasks: TaskId) -> list[Order]:
    return [Signal(task, kill=False) for task in tasks]


def kill(*tasks: TaskId) -> list[Order]:
    return [Signal(task, kill=True) for task in tasks]


def whatever_happens(policy: Policy, rng: random.Random) -> None:
    """End tasks of a job at random: it ends, and its failure is one of these ends."""
    job = Job(policy, CHIEF, PS, W0, W1, EVALUATOR)
    ends: list[End] = []
    for _ in range(40):
        job.now += rng.random() * 5
        task = rng.choice([*job.runs])
        if not job.runs[task].has_ended:
            ends.append(End(task, rng.choice([0, 0, 1, 138, 143, 144, -9])))
            job.supervision.handle(Ended(ends[-1]), job.now)
        if rng.random() < 0.05:
            job.stop(kill=rng.random() < 0.5)
        job.at(job.now)
    job.stop(kill=True)
    job.end_all(-9)
    assert job.supervision.has_ended
    assert job.supervision.failure in (None, *ends)
