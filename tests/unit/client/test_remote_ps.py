"""A ps in another process, while it cannot be reached."""

import inspect
import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from helpers.ps_peers import PS, SETTINGS
from helpers.waiting import scaled
from ropewalk.client.ps.remote_ps import RemotePs
from ropewalk.client.ps.step import answered
from ropewalk.cluster.replication.configuration import ShareLeader
from ropewalk.core.arrays.gather_buffer import GatherBuffer
from ropewalk.core.errors import JobStoppedError, PeerLostError, RopewalkError
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.steps import StepRequest
from ropewalk.proto.v1 import session_pb2


def test_a_step_that_waits_for_a_connection_keeps_values_that_the_program_changes() -> None:
    values = np.ones(100_000, np.float32)
    peer = RemotePs(PS, "127.0.0.1:1", Incarnation(TaskId("worker", 0), 1), SETTINGS)
    step = peer.step(
        StepRequest(1, values=[GatherBuffer([values], values.dtype, values.nbytes)], detached=True)
    )
    next(step)
    values[:] = 2
    request = inspect.getgeneratorlocals(step)["request"]
    assert np.frombuffer(request.values[0].buffer(), np.float32).tolist() == [1.0] * 100_000
    peer.close()


def test_a_step_turns_to_the_next_leader_though_the_last_one_lets_it_wait() -> None:
    """It accepts connections, as the kernel of one that stands still does, and greets nobody."""
    silent, next_one = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in (silent, next_one)]
    leaders = [ShareLeader(0, n, TaskId("ps", n), at) for n, at in enumerate(addresses)]
    leader = leaders[0]
    settings = SETTINGS.model_copy(update={"reconnect_timeout_s": 1000.0})
    who = Incarnation(TaskId("worker", 0), 1)
    peer = RemotePs(PS, addresses[0], who, settings, locate=lambda share: leader, share=0)
    with silent, next_one, ThreadPoolExecutor(1) as pool:
        step = pool.submit(answered, peer.step(StepRequest(1)))
        kept, _ = silent.accept()
        leader = leaders[1]
        peer.moved()
        next_one.settimeout(scaled(20))
        try:
            next_one.accept()[0].close()
        finally:
            peer.abort(JobStoppedError("the job is done"))
            for each in (kept, silent, next_one):
                each.close()
        assert isinstance(step.exception(scaled(20)), RopewalkError)
    peer.close()


def test_a_reader_s_question_turns_to_the_next_leader_though_the_last_one_lets_it_wait() -> None:
    settings = SETTINGS.model_copy(
        update={"reconnect_timeout_s": 1000.0, "request_timeout_s": 1000.0}
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        leader = ShareLeader(0, 1, PS, f"127.0.0.1:{silent.getsockname()[1]}")
        who = Incarnation(TaskId("worker", 0), 1)
        peer = RemotePs(
            *(PS, leader.address, who, settings),
            locate=lambda share: leader,
            share=0,
            first_dial_s=0.05,
        )
        for _ in range(2):
            with pytest.raises(PeerLostError):
                peer.ask(session_pb2.ClientMessage())
    peer.close()
