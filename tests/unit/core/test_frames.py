"""Frames of the Exchange stream: the contract's messages, with fewer copies."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from windlass.net.frames import REQUEST_DATA, RESPONSE_DATA, FrameWriter, field, read_fields

from windlass.core.errors import RefusedError
from windlass.proto.v1 import ps_pb2


def written(buffers: list[bytes], chunk_bytes: int, head: bytes = b"") -> list[bytes]:
    writer = FrameWriter(head, REQUEST_DATA, chunk_bytes)
    frames = [frame for buffer in buffers for frame in writer.add(memoryview(buffer))]
    return [*frames, *writer.finish()]


def test_the_payload_has_the_numbers_of_the_contract() -> None:
    assert ps_pb2.ExchangeRequest.DATA_FIELD_NUMBER == REQUEST_DATA
    assert ps_pb2.ExchangeResponse.DATA_FIELD_NUMBER == RESPONSE_DATA


@given(
    sizes=st.lists(st.integers(0, 50), max_size=8),
    chunk_bytes=st.integers(1, 300),
    step=st.integers(0, 2**63),
)
def test_frames_are_the_contracts_messages_and_carry_every_byte(
    sizes: list[int], chunk_bytes: int, step: int
) -> None:
    numbers = itertools.count()
    buffers = [bytes(next(numbers) % 256 for _ in range(size)) for size in sizes]
    head = ps_pb2.Step(request_id=step, payload_bytes=sum(sizes))
    frames = written(
        buffers,
        chunk_bytes,
        field(ps_pb2.ExchangeRequest.STEP_FIELD_NUMBER, head.SerializeToString()),
    )
    messages = [ps_pb2.ExchangeRequest.FromString(frame) for frame in frames]
    assert messages[0].step == head
    assert not any(message.HasField("step") for message in messages[1:])
    assert b"".join(message.data for message in messages) == b"".join(buffers)
    assert all(len(message.data) == chunk_bytes for message in messages[:-1])
    for frame, message in zip(frames, messages, strict=True):
        assert bytes(dict(read_fields(frame)).get(REQUEST_DATA, b"")) == message.data


def test_what_protobuf_writes_is_read() -> None:
    message = ps_pb2.ExchangeRequest(step=ps_pb2.Step(request_id=300), data=bytes(70_000))
    fields = dict(read_fields(message.SerializeToString()))
    assert ps_pb2.Step.FromString(bytes(fields[3])).request_id == 300
    assert len(fields[REQUEST_DATA]) == 70_000


def test_a_header_goes_out_without_a_payload() -> None:
    head = field(3, b"head")
    assert written([], 10, head) == [head]
    assert written([b""], 10) == []


def test_memory_may_change_once_it_was_added() -> None:
    memory = bytearray(b"abcdef")
    writer = FrameWriter(b"", REQUEST_DATA, 4)
    frames = list(writer.add(memoryview(memory)))
    memory[:] = b"XXXXXX"
    frames += writer.finish()
    assert b"".join(bytes(dict(read_fields(frame))[REQUEST_DATA]) for frame in frames) == b"abcdef"


@given(st.binary(max_size=40))
def test_nonsense_is_refused_and_never_read_past_its_end(frame: bytes) -> None:
    try:
        fields = list(read_fields(frame))
    except RefusedError:
        return
    assert sum(len(content) for _, content in fields) <= len(frame)


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"\x22\x05abc", id="cut"),
        pytest.param(b"\x08\x01", id="a-number"),
        pytest.param(b"\x22", id="no-length"),
        pytest.param(b"\x22\xff\xff\xff\xff\xff\xff", id="a-length-without-end"),
        pytest.param(b"\x02\x00", id="field-zero"),
    ],
)
def test_a_broken_frame_is_refused(frame: bytes) -> None:
    with pytest.raises(RefusedError):
        list(read_fields(frame))
