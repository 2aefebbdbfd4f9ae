"""Memory that the steps and layouts of one caller take, all of its sessions together."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from helpers.waiting import scaled, wait_until
from ropewalk.core.errors import LimitExceededError
from ropewalk.core.settings import Settings
from ropewalk.core.task import TaskId
from ropewalk.server.ps.limits import LAYOUT_MESSAGES, SessionRoom, StepRoom

MIB = 1024 * 1024
MOST = 10 * MIB


def room(timeout_s: float = 60.0) -> StepRoom:
    settings = Settings(max_step_bytes=MOST, request_timeout_s=timeout_s)
    return StepRoom(TaskId("ps", 0), settings)


def test_a_step_waits_for_another_one_of_its_caller_and_for_no_other_caller() -> None:
    shared = room()
    first, second, other = (SessionRoom(shared, caller) for caller in ("a", "a", "b"))
    first.begin_step(6 * MIB)
    other.begin_step(MOST)
    with ThreadPoolExecutor(1) as pool:
        waits: Future[None] = pool.submit(second.begin_step, 5 * MIB)
        assert not threading.Event().wait(0.1)
        assert not waits.done()
        first.keep(5 * MIB)  # its push is over, and its answer is on the way
        waits.result(scaled(10))


def test_a_step_that_is_alone_and_small_ones_always_fit() -> None:
    shared = room(timeout_s=0.01)
    large, small = SessionRoom(shared, "a"), SessionRoom(shared, "a")
    large.begin_step(MOST + MIB)  # its session refuses it, and says why
    for _ in range(20):
        small.begin_step(MIB)


def test_what_a_session_has_is_given_back_when_it_ends() -> None:
    shared = room(timeout_s=0.01)
    most = 2 * LAYOUT_MESSAGES * Settings().max_message_bytes
    for _ in range(3):
        with shared.session("a", lambda: True) as session:
            session.set_layouts(most)
            session.begin_step(MOST)
    assert (shared._steps, shared._layouts) == ({}, {})


def test_a_step_for_which_there_is_no_room_in_time_is_refused_by_the_setting() -> None:
    shared = room(timeout_s=0.01)
    SessionRoom(shared, "worker:0").begin_step(MOST)
    with pytest.raises(LimitExceededError, match=r"steps of worker:0.*max_step_bytes") as caught:
        SessionRoom(shared, "worker:0").begin_step(2 * MIB)
    assert caught.value.fields["limit"] == "max_step_bytes"


def test_a_caller_that_leaves_gives_up_its_turn() -> None:
    shared = room()
    SessionRoom(shared, "a").begin_step(MOST)
    has_gone = threading.Event()
    leaves = SessionRoom(shared, "a", lambda: not has_gone.is_set())
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(leaves.begin_step, MOST)
        has_gone.set()
        wait_until(waits.done, 10, "the wait to be given up")
    assert isinstance(waits.exception(), ConnectionError)


def test_layouts_of_all_sessions_of_a_caller_have_a_bound() -> None:
    shared = room()
    one = LAYOUT_MESSAGES * Settings().max_message_bytes
    sessions = [SessionRoom(shared, "a") for _ in range(3)]
    for session in sessions[:2]:
        session.set_layouts(one)
    with pytest.raises(LimitExceededError, match="the sessions of a have sent layouts"):
        sessions[2].set_layouts(1)
    sessions[0].set_layouts(one - 1)  # another layout has its number now
    sessions[2].set_layouts(1)
    SessionRoom(shared, "b").set_layouts(one)
