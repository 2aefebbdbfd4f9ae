"""How many workers may have a session with a ps."""

from contextlib import ExitStack

import pytest

from ropewalk.core.errors import LimitExceededError
from ropewalk.core.task import TaskId
from ropewalk.server.ps.limits import SessionLimiter, connections_per_worker


def worker(index: int) -> TaskId:
    return TaskId("worker", index)


def make(limit: int) -> SessionLimiter:
    return SessionLimiter(TaskId("ps", 0), limit)


def test_workers_over_the_limit_are_refused_by_its_name_until_one_leaves() -> None:
    limiter = make(2)
    with limiter.session(worker(0)):
        with limiter.session(worker(1)):
            assert limiter.count == 2
            with (
                pytest.raises(
                    LimitExceededError, match=r"2 workers already.*max_sessions=2"
                ) as caught,
                limiter.session(worker(2)),
            ):
                pass
            assert caught.value.fields["limit"] == "max_sessions"
        with limiter.session(worker(2)):
            assert limiter.count == 2
    assert limiter.count == 0


def test_a_worker_is_not_in_its_own_way_but_has_a_bound_too() -> None:
    limiter = make(1)
    with ExitStack() as sessions:
        for _ in range(connections_per_worker(0)):
            sessions.enter_context(limiter.session(worker(0)))
        assert limiter.count == 1
        with pytest.raises(LimitExceededError, match="4 sessions of 1 workers"):
            sessions.enter_context(limiter.session(worker(0)))
    assert limiter.count == 0


def test_who_was_refused_holds_no_place_and_who_failed_leaves_it() -> None:
    limiter = make(1)
    with limiter.session(worker(0)):
        for _ in range(3):
            with pytest.raises(LimitExceededError), limiter.session(worker(1)):
                pass
    with pytest.raises(ConnectionError), limiter.session(worker(1)):
        raise ConnectionError
    with limiter.session(worker(0)):
        assert limiter.count == 1


def test_one_worker_never_has_all_sessions() -> None:
    limiter = make(4)
    with ExitStack() as sessions:
        for _ in range(8):
            sessions.enter_context(limiter.session(worker(1)))
        with pytest.raises(LimitExceededError, match="8 sessions of 1 workers"):
            sessions.enter_context(limiter.session(worker(1)))
        sessions.enter_context(limiter.session(worker(0)))
