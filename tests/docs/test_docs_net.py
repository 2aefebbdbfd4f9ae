"""The README of net follows a connection through few files; one that comes in goes that way."""

import re
import threading
from collections.abc import Callable
from contextlib import closing
from types import FrameType

import pytest

from helpers.hosts import PS, SETTINGS, WHO, make_host, works
from helpers.pages import ROOT
from helpers.waiting import scaled
from ropewalk.core.task import TaskId
from ropewalk.net.channel import open_channel
from ropewalk.proto.v1 import chief_pb2, chief_pb2_grpc
from ropewalk.server.chief.server import ChiefServer

Step = tuple[str, str]

_STEP = re.compile(r"^\| `([\w.]+)` \| `([\w/]+\.py)` \|", re.MULTILINE)
_TABLES = (ROOT / "net" / "README.md").read_text().split("| call |")[1:]
SESSION, CALL = map(_STEP.findall, _TABLES)


def open_session() -> None:
    """A greeted connection, and a frame there and back."""
    host = make_host(SETTINGS["tcp"], PS)
    try:
        host.start("127.0.0.1:0")
        assert works(host.port)
    finally:
        host.stop(0)


def make_call() -> None:
    """One call, as gRPC makes it."""
    server = ChiefServer(
        TaskId("chief", 0), [(TaskId("worker", 0), "")], SETTINGS["tcp"], job_id="walk"
    )
    try:
        server.start("127.0.0.1:0")
        with closing(open_channel(f"127.0.0.1:{server.port}", SETTINGS["tcp"], WHO)) as channel:
            chief_pb2_grpc.ChiefStub(channel).GetStatus(
                chief_pb2.GetStatusRequest(), timeout=scaled(10), wait_for_ready=True
            )
    finally:
        server.stop(0)


@pytest.mark.parametrize(
    ("walk", "come"), [(SESSION, open_session), (CALL, make_call)], ids=["a session", "a call"]
)
def test_a_connection_goes_its_walk_through_four_files(
    walk: list[Step], come: Callable[[], None]
) -> None:
    passed: list[Step] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        path = code.co_filename.partition("/ropewalk/")[2]
        if event == "call" and (code.co_qualname, path) in walk:
            passed.append((code.co_qualname, path))

    threading.setprofile(note)  # for threads that start from now on: the server's
    try:
        come()
    finally:
        threading.setprofile(None)
    rest = iter(passed)
    assert all(step in rest for step in walk), passed
    assert len({path for _, path in walk}) <= 4
