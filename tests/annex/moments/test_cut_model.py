"""The protocol of cuts, searched exhaustively; each rule that is left out is missed."""

from collections.abc import Set
from dataclasses import replace

import pytest

from helpers.moments import Bounds, Model, Rules, search
from ropewalk.annexes.moments import decisions as job_cut
from ropewalk.annexes.moments.decisions import JobCut
from ropewalk.annexes.moments.server import marks
from ropewalk.annexes.moments.server.marks import ShareCut
from ropewalk.core.task import Incarnation
from ropewalk.core.wire.cut_marks import CutMark

_BOTH, _FIRST, _SECOND = frozenset({0, 1}), frozenset({0}), frozenset({1})

# As dense variables on both ps do, and as a table on one of them does.
_ONE = Bounds(steps=((_BOTH,), ()))
_TWO = Bounds(steps=((_BOTH,), (_BOTH,)))
_LATER = Bounds(steps=((_FIRST,), (_BOTH,)), later=frozenset({1}))
_DEATH = Bounds(steps=((_BOTH,), ()), deaths=1)
_PATIENT = Bounds(steps=((_BOTH,), (_SECOND, _BOTH)), has_time=False)
_JOBS = {
    "two workers, two ps": _TWO,
    "a worker that comes later": _LATER,
    "a worker that dies": _DEATH,
    "no time runs out": _PATIENT,
}
_LARGER = {
    "two steps": Bounds(steps=((_BOTH, _FIRST), (_SECOND, _BOTH))),
    "steps that push to one ps": Bounds(steps=((_BOTH, _SECOND, _FIRST), (_SECOND,))),
    "a worker that comes later": Bounds(steps=((_BOTH,), (_BOTH,)), later=frozenset({1})),
    "a worker that dies": Bounds(steps=((_BOTH, _FIRST), (_BOTH,)), deaths=1),
}


@pytest.mark.parametrize("name", _JOBS)
def test_a_cut_is_one_moment_of_each_worker_and_nothing_gets_stuck(name: str) -> None:
    found = search(Model(_JOBS[name]))
    assert found.violation == "", found.trace
    assert found.states > 300
    assert found.taken > 0


@pytest.mark.soak
@pytest.mark.parametrize("name", _LARGER)
def test_a_cut_is_one_moment_in_larger_jobs(name: str) -> None:
    found = search(Model(_LARGER[name]))
    assert found.violation == "", found.trace
    assert found.taken > 0


def _holds_nothing(cut: ShareCut, who: Incarnation, now: float) -> bool:
    return False


def _holds_known_workers_only(cut: ShareCut, who: Incarnation, now: float) -> bool:
    return who in cut.workers and marks.holds(cut, who, now)


def _holds_all(cut: ShareCut, who: Incarnation, now: float) -> bool:
    return cut.is_holding and now < cut.until


def _takes_any_mark(
    cut: ShareCut, who: Incarnation, mark: CutMark, applied: int, now: float
) -> ShareCut:
    return marks.marked(cut, who, replace(mark, sequence=applied), applied, now)


def _takes_the_first_mark_for_all(
    cut: ShareCut, who: Incarnation, mark: CutMark, applied: int, now: float
) -> ShareCut:
    return marks.marked(replace(cut, workers=frozenset({who})), who, mark, applied, now)


def _began_whoever_is_here(cut: JobCut, share: int, workers: Set[Incarnation]) -> JobCut:
    return job_cut.began(cut, share, cut.workers)


_DEFECTS = {
    "a ps holds what comes after a mark": (Rules(holds=_holds_nothing), _TWO),
    "a ps waits for all marks": (Rules(marked=_takes_the_first_mark_for_all), _TWO),
    "a worker marks when no push is under way": (
        Rules(marks_between_steps=False, marked=_takes_any_mark),
        _ONE,
    ),
    "a worker pushes once its marks are answered, and old marks are refused": (
        Rules(marks_are_waited_for=False, marked=_takes_any_mark),
        _ONE,
    ),
    "a worker needs no step of its program to mark": (Rules(marks_by_itself=False), _PATIENT),
    "pushes of workers that have not marked go on": (Rules(holds=_holds_all), _PATIENT),
    "a worker that has come since makes it void": (Rules(began=_began_whoever_is_here), _LATER),
    "pushes of workers that came later wait": (Rules(holds=_holds_known_workers_only), _LATER),
}


@pytest.mark.parametrize("rule", _DEFECTS)
def test_each_rule_is_needed(rule: str) -> None:
    rules, bounds = _DEFECTS[rule]
    found = search(Model(bounds, rules))
    assert found.violation, f"{found.states} states, and nothing is wrong without it"
