"""A coordinator's link to a worker: whatever the worker answers, or the coordinator makes of it,
the worker is lost and dialled again, and never is nobody told.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import numpy as np
import pytest

from helpers.waiting import scaled, wait_until
from ropewalk.client.closure_link import SERVICE, ClosureLink, Knowledge, WorkerLink
from ropewalk.core.errors import RefusedError, RopewalkError
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.structures import from_parts
from ropewalk.net.auth.guard import Guard
from ropewalk.net.connection import Connection
from ropewalk.net.endpoint import Greeting
from ropewalk.net.host import TaskHost
from ropewalk.proto.v1 import session_pb2

WORKER = TaskId("worker", 0)
WHO = Incarnation(TaskId("chief", 0), 1)
SETTINGS = Settings(insecure=True, shared_memory=False)
Answer = Callable[[Connection], None]


class Coordinator:
    """Notes what it hears; ``on_answer`` may raise."""

    def __init__(self, on_answer: Callable[[session_pb2.ClosureAnswer, list[memoryview]], None]):
        self._on_answer = on_answer
        self.heard: list[str] = []
        self.on_lost: Callable[[], None] = lambda: None
        self.errors: list[RopewalkError] = []
        self._lock = threading.Lock()

    def note(self, what: str) -> None:
        with self._lock:
            self.heard.append(what)

    def ready(self, link: WorkerLink) -> None:
        self.note("ready")

    def answered(
        self, worker: TaskId, answer: session_pb2.ClosureAnswer, parts: list[memoryview]
    ) -> None:
        self._on_answer(answer, parts)
        self.note(f"answer {answer.id}")

    def lost(self, link: WorkerLink) -> None:
        self.note("lost")
        self.on_lost()

    def refused(self, link: WorkerLink, error: RopewalkError) -> None:
        self.errors.append(error)
        self.note("refused")


@contextmanager
def worker(answers: list[Answer]) -> Iterator[int]:
    """A worker that answers each of its connections so, one after the other; the port."""
    left = iter(answers)

    def serve(greeting: Greeting) -> bool:
        greeting.welcome()
        answer = next(left, None)
        if answer is not None:
            with suppress(OSError):
                answer(greeting.connection)
        while greeting.connection.receive() is not None:
            pass
        return False

    host = TaskHost(
        WORKER, threads=4, settings=SETTINGS, calls={}, guard=Guard(WORKER, SETTINGS),
        sessions={SERVICE: serve}, max_sessions=4,
    )  # fmt: skip
    host.start("127.0.0.1:0")
    try:
        yield host.port
    finally:
        host.stop(0)


def says(answer: session_pb2.ClosureAnswer, payload: bytes = b"") -> Answer:
    def say(connection: Connection) -> None:
        message = session_pb2.ServerMessage(closure=answer).SerializeToString()
        connection.send([message], [memoryview(payload)], len(payload))

    return say


def result(structure: bytes, payload: bytes) -> Answer:
    answer = session_pb2.ClosureAnswer(
        id=1, attempt=1, structure=structure, part_bytes=[len(payload)]
    )
    return says(answer, payload)


GOOD = result(b'["array", "<f4", [1]]', np.ones(1, np.float32).tobytes())


def link_to(port: int, events: Coordinator) -> ClosureLink:
    return ClosureLink(WORKER, f"127.0.0.1:{port}", WHO, SETTINGS, events)


def read(answer: session_pb2.ClosureAnswer, parts: list[memoryview]) -> None:
    from_parts(answer.structure, parts)


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(result(b'["array", "(1,f4", [1]]', bytes(4)), id="a dtype that is Python"),
        pytest.param(result(b'["array", "<f4", [1e99]]', bytes(4)), id="a shape of floats"),
        pytest.param(
            says(session_pb2.ClosureAnswer(id=1, part_bytes=[7]), b"12"), id="another length"
        ),
        pytest.param(lambda connection: connection.send([b"\xff" * 9]), id="no message"),
        pytest.param(lambda connection: connection.cancel(), id="an end"),
    ],
)
def test_a_worker_that_answers_nonsense_is_lost_and_dialled_again(bad: Answer) -> None:
    events = Coordinator(read)
    with worker([bad, GOOD]) as port, closing(link_to(port, events)) as link:
        link.start()
        wait_until(lambda: "answer 1" in events.heard, 20)
    assert events.heard == ["ready", "lost", "ready", "answer 1"]


@pytest.mark.parametrize(
    "error", [SyntaxError("'(' was never closed"), KeyError(7), RecursionError(), MemoryError()],
    ids=repr,
)  # fmt: skip
def test_whatever_an_answer_makes_of_our_own_code_its_worker_is_lost(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    left = [error]

    def on_answer(*_: object) -> None:
        if left:
            raise left.pop()

    events = Coordinator(on_answer)
    with worker([GOOD, GOOD]) as port, closing(link_to(port, events)) as link:
        link.start()
        wait_until(lambda: "answer 1" in events.heard, 20)
    assert events.heard == ["ready", "lost", "ready", "answer 1"]
    assert f"is lost: {type(error).__name__}" in caplog.text


def test_a_closure_that_cannot_be_sent_costs_its_worker_and_not_the_caller() -> None:
    events = Coordinator(read)

    def no_frames(known: Knowledge) -> list[object]:
        raise ValueError("the message is too large")

    with worker([]) as port, closing(link_to(port, events)) as link:
        link.start()
        wait_until(lambda: events.heard == ["ready"], 20)
        link.send(link.connections, no_frames)  # type: ignore[arg-type]
        wait_until(lambda: events.heard[:3] == ["ready", "lost", "ready"], 20)


def test_a_link_that_cannot_go_on_says_so() -> None:
    events = Coordinator(read)

    def no_room() -> None:
        raise KeyError("the queue")

    events.on_lost = no_room
    bad = says(session_pb2.ClosureAnswer(), b"x")
    with worker([bad]) as port, closing(link_to(port, events)) as link:
        link.start()
        wait_until(lambda: "refused" in events.heard, 20)
    [error] = events.errors
    assert "is not heard any more: KeyError: 'the queue'" in error.message


def test_a_worker_that_is_lost_again_and_again_is_dialled_at_growing_intervals() -> None:
    def nonsense(*_: object) -> None:
        raise RefusedError("nonsense")

    events = Coordinator(nonsense)
    pause = threading.Event()
    with worker([GOOD] * 1000) as port, closing(link_to(port, events)) as link:
        link.start()
        wait_until(lambda: events.heard.count("lost") >= 4, 20)
        before = events.heard.count("lost")
        pause.wait(1)
        # 0.5 s, then 1 s each; without them it would be hundreds.
        assert events.heard.count("lost") - before < 10 * scaled(1)
