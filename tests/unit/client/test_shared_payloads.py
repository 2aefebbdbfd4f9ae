"""In which of its segments a worker writes a payload."""

from types import SimpleNamespace
from typing import Any

import pytest

from ropewalk.client.ps.shared_payloads import SharedPayloads
from ropewalk.core.wire.steps import StepRequest
from ropewalk.net.shared_memory import unavailable

pytestmark = pytest.mark.skipif(bool(unavailable()), reason=unavailable())

SIZE = 100_000
CONNECTION: Any = SimpleNamespace()
LAYOUT: Any = SimpleNamespace()


def prepared(payloads: SharedPayloads, *, pushes: bool) -> int:
    """The number of the segment of a step."""
    segment, _ = payloads.prepare(SIZE)
    assert payloads.segment is segment
    placed = payloads.placed(StepRequest(push=LAYOUT if pushes else None))
    assert placed.in_segment
    return placed.segment


def test_a_push_that_is_kept_is_written_over_by_the_push_after_the_next_alone() -> None:
    payloads = SharedPayloads(CONNECTION, keeps_pushes=True)
    assert prepared(payloads, pushes=False) == 0
    assert prepared(payloads, pushes=True) == 0
    for _ in range(2):  # a lookup is answered though a follower may be behind with the push
        assert prepared(payloads, pushes=False) == 1
    assert prepared(payloads, pushes=True) == 1
    assert prepared(payloads, pushes=True) == 0
    assert prepared(payloads, pushes=True) == 1
    payloads.close()


def test_a_push_that_was_prepared_and_not_sent_leaves_the_one_before_it() -> None:
    payloads = SharedPayloads(CONNECTION, keeps_pushes=True)
    assert prepared(payloads, pushes=True) == 0
    for _ in range(2):  # another ps may refuse its part before anything is sent
        payloads.prepare(SIZE)
    assert prepared(payloads, pushes=True) == 1
    payloads.close()


def test_after_a_step_that_was_refused_nothing_that_was_pushed_is_written_over() -> None:
    payloads = SharedPayloads(CONNECTION, keeps_pushes=True)
    before = []
    for _ in range(2):
        prepared(payloads, pushes=True)
        before.append(payloads.segment)
    payloads.drop_segments()
    assert payloads.segment is None
    for _ in range(3):
        prepared(payloads, pushes=True)
        assert all(payloads.segment is not each for each in before)
    payloads.close()


def test_without_followers_there_is_one_segment() -> None:
    payloads = SharedPayloads(CONNECTION)
    first, offer = payloads.prepare(SIZE)
    assert offer is not None
    for pushes in (True, False, True):
        assert prepared(payloads, pushes=pushes) == 0
        assert payloads.segment is first
    payloads.close()
