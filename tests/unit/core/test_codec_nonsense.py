"""Whatever stands in a message: a value that is possible, or a refusal; never another error."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.fuzzing import Nonsense
from helpers.strategies import text_of
from ropewalk.core.errors import RopewalkError
from ropewalk.core.wire import bounds, codec
from ropewalk.proto.v1 import chief_pb2, common_pb2, ps_pb2, session_pb2


def followed_rows(message: Any) -> Any:
    module = pytest.importorskip("ropewalk.annexes.embedding.readers.followed_rows")
    return module.request_from_wire(message)


READERS: dict[str, tuple[type[Message], Callable[[Any], object]]] = {
    "incarnation": (common_pb2.Incarnation, codec.incarnation_from_wire),
    "report": (chief_pb2.TaskReport, codec.report_from_wire),
    "shard": (ps_pb2.ShardDefinition, codec.shard_from_wire),
    "rule": (ps_pb2.ShardDefinition, lambda message: codec.rule_from_wire(message.rule)),
    "layout": (session_pb2.Layout, codec.layout_from_wire),
    "step": (session_pb2.Step, codec.check_step),
    "closure": (session_pb2.Step, codec.closure_of),
    "hyperparameters": (session_pb2.Step, codec.hyperparameters_of),
    "followed rows": (session_pb2.FollowRows, followed_rows),
    "versions": (common_pb2.Versions, codec.versions_from_wire),
    "outcome": (chief_pb2.FinishRequest, lambda message: codec.OUTCOMES.from_wire(message.outcome)),
    "phase": (ps_pb2.EndJobRequest, lambda message: codec.PHASES.from_wire(message.phase)),
}


@pytest.mark.parametrize("name", list(READERS))
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), changes=st.integers(0, 2))
def test_a_message_is_read_or_refused(name: str, seed: int, changes: int) -> None:
    kind, read = READERS[name]
    nonsense = Nonsense(seed)
    message = nonsense.message(kind.DESCRIPTOR, depth=6)
    for _ in range(changes):
        try:
            message = kind.FromString(nonsense.changed(message.SerializeToString()))
        except DecodeError:
            return
    with contextlib.suppress(RopewalkError):
        read(message)


@given(text_of("aé漢🙂 ", max_size=50), st.integers(8, 100))
def test_a_shortened_text_fits_and_begins_as_it_did(text: str, most: int) -> None:
    short = bounds.shorten(text, most)
    assert len(short.encode()) <= most
    assert short == text or text.startswith(short.removesuffix(" …"))


@pytest.mark.parametrize("value", [-1, 11, float("nan"), float("inf"), 2**64])
def test_a_number_out_of_range_is_refused_with_task_number_and_limit(value: float) -> None:
    with pytest.raises(RopewalkError) as caught:
        bounds.check_number(value, 10, "the answer", "/job:worker/task:3")
    for word in ("/job:worker/task:3", "the answer", str(value), "10"):
        assert word in caught.value.message
