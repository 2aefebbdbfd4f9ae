"""Exceptions of closures where they are raised again: who wrote them is another machine."""

import pytest

from ropewalk.core.errors import ClosureError
from ropewalk.distribute.coordinator.shipping import describe, rebuild
from ropewalk.proto.v1 import session_pb2

CLIPBOARD = "\x1b]52;c;cm0gLXJm\x07"


@pytest.mark.parametrize(
    ("kind", "raised"), [("ValueError", ValueError), ("Own", ClosureError), ("int", ClosureError)]
)
def test_neither_message_nor_traceback_steer_a_terminal(kind: str, raised: type[Exception]) -> None:
    failure = session_pb2.ClosureFailure(
        type=kind, message=f"{CLIPBOARD}no\r\ngood", traceback=f"File x{CLIPBOARD}\n\tline \x9b2J\n"
    )
    error = rebuild(failure, "worker:0")
    assert type(error) is raised
    assert str(error).endswith("no\ufffd\ngood")
    assert error.__notes__ == ["raised in a closure on worker:0:\nFile x\n\tline "]


def test_an_exception_comes_back_with_its_text() -> None:
    error = rebuild(describe(KeyError("naïve\n\ttext")), "worker:0")
    assert isinstance(error, KeyError)
    assert "naïve" in str(error)
