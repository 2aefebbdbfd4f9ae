"""When an Estimator evaluates, saves, waits and stops: decisions without I/O."""

import operator
from typing import Any

import pytest

from ropewalk.annexes.estimator.early_stopping import crosses, stands_still
from ropewalk.annexes.estimator.evaluation_timing import (
    EndOfEvaluations,
    Evaluate,
    Found,
    Past,
    Wait,
    is_due_locally,
    next_of_evaluator,
    worker_delay_s,
)
from ropewalk.annexes.estimator.hooks import SecondOrStepTimer
from ropewalk.core.errors import ConfigurationError

FIRST, SECOND = Found("ckpt-5", 5, False), Found("ckpt-10", 10, False)
MAX = Found("ckpt-20", 20, False)
FINAL = Found("ckpt-7", 7, True)
AFTER_FIRST = Past(started=0, last=FIRST, began=130)
AFTER_FINAL = Past(started=0, last=FINAL, began=130)


def decide(past: Past, found: Found | None, now: float, goes_on: str | None = None) -> object:
    return next_of_evaluator(
        past, found, now, max_steps=20, start_delay_s=120, throttle_s=600, goes_on=goes_on
    )


@pytest.mark.parametrize(
    ("past", "found", "now", "expected"),
    [
        pytest.param(Past(0), None, 500, Wait("a first checkpoint"), id="none-there"),
        pytest.param(
            Past(0), FIRST, 20, Wait("start_delay_secs, 100 s more"), id="before-the-start-delay"
        ),
        pytest.param(Past(0), FIRST, 120, Evaluate(FIRST, is_last=False), id="after-it"),
        pytest.param(AFTER_FIRST, FIRST, 9999, Wait("a new checkpoint"), id="unchanged"),
        pytest.param(
            AFTER_FIRST, SECOND, 700, Wait("throttle_secs, 30 s more"), id="within-the-throttle"
        ),
        pytest.param(
            AFTER_FIRST, SECOND, 730, Evaluate(SECOND, is_last=False), id="after-the-throttle"
        ),
        pytest.param(
            AFTER_FIRST, MAX, 131, Evaluate(MAX, is_last=True), id="max-steps-waits-for-nothing"
        ),
        pytest.param(
            AFTER_FIRST, FINAL, 131, Evaluate(FINAL, is_last=True), id="the-end-waits-for-nothing"
        ),
        pytest.param(
            Past(0, MAX, True, 1),
            MAX,
            2,
            EndOfEvaluations("step 20 was evaluated: max_steps=20"),
            id="max-steps",
        ),
        pytest.param(
            Past(0, FINAL, True, 1),
            FINAL,
            2,
            EndOfEvaluations("step 7 was evaluated: the last checkpoint of the job"),
            id="the-end-of-the-job",
        ),
    ],
)
def test_an_evaluator_does_what_tensorflows_does(
    past: Past, found: Found | None, now: float, expected: object
) -> None:
    assert decide(past, found, now) == expected


def test_a_final_checkpoint_from_which_a_job_goes_on_is_not_the_end() -> None:
    why = "a job that goes on from it"
    assert decide(Past(0), FINAL, 120, why) == Evaluate(FINAL, is_last=False)
    assert decide(AFTER_FINAL, FINAL, 199, why) == Wait(why)
    assert decide(AFTER_FINAL, SECOND, 730) == Evaluate(SECOND, is_last=False)
    # Nobody goes on: then it was the end after all.
    assert decide(AFTER_FINAL, FINAL, 200) == Evaluate(FINAL, is_last=True)


def test_a_local_evaluation_leaves_out_step_0_and_what_comes_too_soon() -> None:
    assert not is_due_locally(None, 0, 0, 10, 600)
    assert is_due_locally(None, 0, 5, 10, 600)
    assert not is_due_locally(5, 10, 10, 609, 600)
    assert is_due_locally(5, 10, 10, 610, 600)
    assert not is_due_locally(5, 10, 5, 9999, 0)


@pytest.mark.parametrize(
    ("index", "longest_s", "expected"), [(0, None, 5), (3, None, 20), (99, None, 60), (3, 0, 0)]
)
def test_workers_begin_one_after_the_other(
    index: int, longest_s: float | None, expected: float
) -> None:
    assert worker_delay_s(index, longest_s=longest_s) == expected


def test_a_timer_is_due_at_the_first_step_and_then_by_steps_or_seconds() -> None:
    now = [0.0]
    by_steps, by_secs = (
        SecondOrStepTimer(every_steps=10, clock=lambda: now[0]),
        SecondOrStepTimer(every_secs=5, clock=lambda: now[0]),
    )
    for timer in (by_steps, by_secs):
        assert timer.is_due(3)
        assert timer.note(3) is None
        assert not timer.is_due(3)
    assert not by_steps.is_due(12)
    assert by_steps.is_due(13)
    now[0] = 5
    assert by_secs.is_due(4)
    assert by_secs.note(4) == (5.0, 1)


@pytest.mark.parametrize("given", [{"every_secs": 1, "every_steps": 1}, {"every_steps": 0}])
def test_a_timer_takes_one_positive_interval(given: Any) -> None:
    with pytest.raises(ConfigurationError):
        SecondOrStepTimer(**given)


RESULTS = {10: {"loss": 3.0}, 20: {"loss": 1.0}, 30: {"loss": 2.0}, 40: {"loss": 1.5}}


def test_a_metric_that_stands_still_names_its_best_step() -> None:
    assert stands_still(RESULTS, "loss", 20, 0, operator.lt) == (20, 40)
    assert stands_still(RESULTS, "loss", 30, 0, operator.lt) is None
    assert stands_still(RESULTS, "loss", 10, 30, operator.lt) is None  # 30 is the first that counts
    assert stands_still(RESULTS, "loss", 30, 0, operator.gt) == (10, 40)


def test_a_threshold_is_crossed_by_the_first_step_that_counts() -> None:
    assert crosses(RESULTS, "loss", 1.8, 0, operator.lt) == 20
    assert crosses(RESULTS, "loss", 1.8, 30, operator.lt) == 40
    assert crosses(RESULTS, "loss", 9, 0, operator.gt) is None
    with pytest.raises(ConfigurationError, match="has no 'auc'; it has loss"):
        crosses(RESULTS, "auc", 1, 0, operator.gt)
