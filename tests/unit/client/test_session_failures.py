"""Ps that come late, fail or break off in the middle of a step."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from helpers.calls import Calls
from helpers.sessions import Cluster, FaultyTransport, faulty, floats, variable
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.step import Exchange, Step, Write
from ropewalk.core.errors import (
    JobStoppedError,
    JoinTimeoutError,
    LimitExceededError,
    PeerLostError,
    RefusedError,
    RopewalkError,
)
from ropewalk.core.rules.definitions import VariableDefinition
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.steps import Operation, PullTarget, StepRequest
from ropewalk.distribute.local_ps import LocalPs

ADD = Operation.ASSIGN_ADD


# -- ps that fail ------------------------------------------------------------------------------


def three() -> tuple[Cluster, ParameterSession, list[Write], list[str]]:
    cluster = Cluster(3)
    session = cluster.session()
    names = ["a", "b", "c"]
    session.define(
        [variable(name, 2) for name in names], {n: floats(0, 0) for n in names}, create=True
    )
    return cluster, session, [Write(ADD, {name: floats(1, 1) for name in names})], names


@pytest.mark.parametrize("failing", [0, 1, 2], ids=["first", "second", "third"])
@pytest.mark.parametrize("when", ["send", "receive"])
def test_one_ps_that_fails_does_not_put_the_others_out_of_step(failing: int, when: str) -> None:
    """Every answer that was sent for is read; later steps reach all, and each push counts once."""
    _, session, pushes, names = three()
    error: RopewalkError
    if when == "send":
        error = LimitExceededError("too large", limit="max_step_bytes")
        faulty(session, failing).fail_send = error
    else:
        error = RefusedError("not so")
        faulty(session, failing).fail_receive = error
    with pytest.raises(type(error)) as caught:
        session.step(Step(pushes, names, increment=1))
    assert caught.value is error
    faulty(session, failing).fail_send = faulty(session, failing).fail_receive = None
    before = session.step(Step(reads=names)).values
    after = session.step(Step(pushes, names, increment=1)).values
    for i, name in enumerate(names):
        # The one that was refused here had been applied, and its number is used again.
        gained = after[name] - before[name]
        assert (gained == 1).all() or (when == "receive" and i == failing)


@pytest.mark.parametrize("failing", [0, 1, 2], ids=["first", "second", "third"])
def test_a_push_that_cannot_be_gathered_for_one_ps_is_applied_on_none(failing: int) -> None:
    _, session, pushes, names = three()
    faulty(session, failing).fail_prepare = MemoryError()
    with pytest.raises(MemoryError):
        session.step(Step(pushes, names, increment=1))
    faulty(session, failing).fail_prepare = None
    assert all((value == 0).all() for value in session.step(Step(reads=names)).values.values())
    assert all((value == 1).all() for value in session.step(Step(pushes, names)).values.values())


def test_after_a_push_whose_answer_is_lost_a_session_does_not_go_on() -> None:
    """It may have been applied: the next one would have its number and be taken for a repeat."""
    _, session, pushes, names = three()
    faulty(session, 1).fail_receive = PeerLostError("gone")
    with pytest.raises(PeerLostError, match="gone"):
        session.step(Step(pushes, names, increment=1))
    faulty(session, 1).fail_receive = None
    with pytest.raises(PeerLostError, match="its outcome is not known"):
        session.step(Step(pushes, names, increment=1))


def test_all_ps_are_asked_before_any_is_waited_for() -> None:
    cluster, session, pushes, names = three()
    cluster.log.clear()
    session.step(Step(pushes, names))
    assert cluster.log == [f"{word} {i}" for word in ("send", "receive") for i in range(3)]


# -- connecting --------------------------------------------------------------------------------


def test_late_ps_are_waited_for() -> None:
    cluster = Cluster(3)
    session = cluster.session(settings=Settings(join_timeout_s=5.0))
    for ps in (0, 2):
        faulty(session, ps).fail_connect = PeerLostError("not yet")

    def appear(missing: list[str]) -> None:
        waited.append(missing)
        for ps in (0, 2):
            faulty(session, ps).fail_connect = None

    waited: list[list[str]] = []
    session.connect(on_wait=appear)
    session.close()
    assert waited == [["/job:ps/task:0", "/job:ps/task:2"]]


def test_ps_that_do_not_come_are_named_with_the_last_reason() -> None:
    session = Cluster(3).session()
    faulty(session, 1).fail_connect = PeerLostError("connection refused")
    with pytest.raises(JoinTimeoutError) as caught:
        session.connect()
    session.close()
    assert "waited 0.3 s (join_timeout_s) for /job:ps/task:1" in caught.value.message
    assert "connection refused" in caught.value.message
    assert caught.value.fields["missing"] == "/job:ps/task:1"


def test_connecting_is_given_up_when_the_job_ends() -> None:
    session = Cluster().session(settings=Settings(join_timeout_s=30.0))
    faulty(session, 0).fail_connect = PeerLostError("not yet")

    def stopped() -> None:
        raise JobStoppedError("stopping")

    with pytest.raises(JobStoppedError):
        session.connect(still_wanted=stopped)
    session.close()


def test_closing_ends_the_threads_of_a_session() -> None:
    before = set(threading.enumerate())
    session = Cluster(2).session()
    session.connect()
    mine = [thread for thread in threading.enumerate() if thread not in before]
    session.close()
    for thread in mine:
        thread.join(3)
        assert not thread.is_alive()


def test_a_step_whose_answer_breaks_in_another_thread_says_so_where_it_is_awaited(
    calls: Calls,
) -> None:
    """As with prefetching, where nobody looks at what the reading thread raises."""
    session = Cluster().session()
    session.define([variable("w", 2)], {"w": np.zeros(2, np.float32)}, create=True)
    push = [Write(Operation.ASSIGN_ADD, {"w": np.ones(2, np.float32)})]

    def broken(*_: object) -> Exchange:
        yield
        yield
        raise ValueError("a bug")

    calls.after(FaultyTransport, "step", broken)
    pending = session.begin(Step(push))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(pending.wait)
    with pytest.raises(PeerLostError, match=r"interrupted \(ValueError\) and its outcome is not"):
        pending.result()


def test_a_step_that_was_interrupted_half_way_ends_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C in a notebook: the number may be used up, and the next push look like a repeat."""
    who, settings = Incarnation(TaskId("worker", 0), 1), Settings()
    transport = LocalPs(TaskId("ps", 0), who, settings)
    session = ParameterSession([transport], who, settings)
    definition = VariableDefinition("w", (2,), np.dtype(np.float32))
    session.define([definition], {"w": np.zeros(2, np.float32)}, create=True)
    push = [Write(Operation.ASSIGN_ADD, {"w": np.ones(2, np.float32)})]
    step = LocalPs.step

    def interrupted(self: LocalPs, request: StepRequest, target: PullTarget) -> Exchange:
        yield from step(self, request, target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LocalPs, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.step(Step(push))
    with pytest.raises(PeerLostError, match="outcome is not known"):
        session.step(Step(push))
