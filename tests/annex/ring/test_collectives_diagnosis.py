"""The verdict on a stalled collective call: who is named, with which error, or that it waits on."""

from dataclasses import replace

import pytest

from ropewalk.annexes.ring.diagnosis import (
    Answer,
    NoAnswer,
    RingWorkers,
    StalledCall,
    diagnose,
    first_failure,
    join_timeout_error,
    why_lost,
)
from ropewalk.annexes.ring.stream_link import RingProgress
from ropewalk.core.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    JoinTimeoutError,
    PeerLostError,
    RopewalkError,
)
from ropewalk.core.task import TaskId

MEMBERS = [TaskId("worker", i) for i in range(4)]
WORKERS = RingWorkers(MEMBERS[0], MEMBERS, [f"w{i}:1" for i in range(4)])
SILENT = NoAnswer(PeerLostError("worker 2 answered UNAVAILABLE"))
BUSY = NoAnswer(PeerLostError("probe: worker 2: DEADLINE_EXCEEDED"), is_there=True, silent_s=40.0)
HERE = RingProgress(7, "all_reduce of 3 float32", waiting=True)
BEHIND = RingProgress(6, "barrier of 1 int64", waiting=False)


def verdict(
    answers: dict[int, Answer],
    *,
    now: float = 100.0,
    timeout_s: float | None = None,
    join_deadline: float | None = None,
    suspect: int = 1,
) -> RopewalkError | None:
    call = StalledCall(
        7,
        "all_reduce of 3 float32",
        suspect,
        90.0,
        timeout_s,
        join_deadline,
        join_timeout_s=30.0,
        silent_limit_s=300.0,
    )
    return diagnose(answers, WORKERS, call, now=now)


def test_a_call_waits_on_while_every_worker_answers_and_there_is_no_limit() -> None:
    assert verdict({1: HERE, 2: BEHIND, 3: HERE}) is None


@pytest.mark.parametrize(
    ("now", "ends"),
    [
        pytest.param(94.9, False, id="before the limit"),
        pytest.param(95.0, True, id="at the limit"),
    ],
)
def test_a_worker_that_lives_is_given_the_whole_timeout(now: float, ends: bool) -> None:
    error = verdict({1: HERE, 2: BEHIND, 3: HERE}, now=now, timeout_s=5.0)
    assert isinstance(error, CollectiveTimeoutError) == ends


def test_the_late_worker_is_named_with_what_it_does_and_not_the_neighbour() -> None:
    error = verdict({1: HERE, 2: BEHIND, 3: HERE}, timeout_s=5.0)
    assert isinstance(error, CollectiveTimeoutError)
    assert error.message == (
        "/job:worker/task:0 waited 10.0 s (timeout_seconds 5) for /job:worker/task:2 in call 7, "
        "all_reduce of 3 float32. It has finished call 6, barrier of 1 int64. Every worker must "
        "make the same calls; if it only computes for long, raise timeout_seconds"
    )
    assert error.fields == {"task": "/job:worker/task:2", "call": "7", "timeout_s": "5.0"}


def test_if_nobody_is_late_the_neighbour_is_named() -> None:
    error = verdict({1: HERE, 2: HERE, 3: HERE}, timeout_s=5.0, suspect=3)
    assert error is not None
    assert "for /job:worker/task:3 in call 7" in error.message
    assert "It is in call 7, all_reduce of 3 float32." in error.message


def test_a_worker_that_does_not_answer_is_lost_whatever_the_limit() -> None:
    error = verdict({1: HERE, 2: SILENT, 3: BEHIND}, timeout_s=1000.0)
    assert isinstance(error, PeerLostError)
    assert error.message.startswith(
        "/job:worker/task:2 at w2:1 is lost (it does not answer: worker 2 answered UNAVAILABLE) "
        "in call 7, all_reduce of 3 float32"
    )
    assert error.fields["peer"] == "/job:worker/task:2"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        pytest.param(SILENT, "it does not answer: worker 2 answered UNAVAILABLE", id="gone"),
        pytest.param(BUSY, "", id="its process is there"),
        pytest.param(
            replace(BUSY, is_stopped=True), "its process has been stopped (SIGSTOP)", id="stopped"
        ),
        pytest.param(replace(BUSY, silent_s=299.0), "", id="almost too long"),
        pytest.param(
            replace(BUSY, silent_s=300.0),
            "its process is there, and has not answered for 300 s (orphan_timeout_s 300): "
            "probe: worker 2: DEADLINE_EXCEEDED",
            id="too long",
        ),
    ],
)
def test_who_does_not_answer_is_lost_once_its_process_is_not_there(
    answer: NoAnswer, why: str
) -> None:
    assert why_lost(answer, 300.0) == why
    error = verdict({1: HERE, 2: answer, 3: BEHIND})
    assert isinstance(error, PeerLostError) == bool(why)
    assert f"/job:worker/task:2 at w2:1 is lost ({why})" in str(error) if why else error is None


def test_one_that_is_gone_is_named_and_not_one_that_only_does_not_answer() -> None:
    error = verdict({1: BUSY, 2: SILENT, 3: HERE})
    assert isinstance(error, PeerLostError)
    assert error.fields["peer"] == "/job:worker/task:2"


def test_one_that_does_not_answer_until_the_limit_of_the_call_is_late() -> None:
    error = verdict({1: HERE, 2: HERE, 3: BUSY}, timeout_s=5.0)
    assert isinstance(error, CollectiveTimeoutError)
    assert error.fields["task"] == "/job:worker/task:3"
    assert "It does not answer, and its process is there. Every worker" in error.message


def test_a_failure_that_another_worker_reports_comes_first_and_is_passed_on_as_it_is() -> None:
    reported = CollectiveMismatchError("worker 1 is in another call")
    broken = RingProgress(7, "", failure=reported)
    assert verdict({1: HERE, 2: SILENT, 3: broken}) is reported
    assert first_failure([HERE, SILENT, broken]) is reported
    assert first_failure([HERE, SILENT]) is None


@pytest.mark.parametrize(
    ("answers", "missing"),
    [
        pytest.param({1: HERE, 2: SILENT, 3: HERE}, 2, id="one is silent"),
        pytest.param({1: HERE, 2: HERE, 3: HERE}, 1, id="all answer"),
    ],
)
def test_while_the_ring_forms_workers_may_be_missing_until_the_deadline(
    answers: dict[int, Answer], missing: int
) -> None:
    assert verdict(answers, join_deadline=100.0) is None
    error = verdict(answers, join_deadline=99.9)
    assert isinstance(error, JoinTimeoutError)
    assert error.fields["missing"] == str(MEMBERS[missing])
    assert "waited 30 s (join_timeout_s)" in error.message


def test_a_worker_that_never_came_is_named_with_its_address_and_last_answer() -> None:
    error = join_timeout_error(WORKERS, 3, 2.5, SILENT.error)
    assert error.message == (
        "/job:worker/task:0 waited 2.5 s (join_timeout_s) for /job:worker/task:3 at w3:1 to join "
        "the ring; the last answer: worker 2 answered UNAVAILABLE. Is it started, with the same "
        "cluster and program?"
    )
