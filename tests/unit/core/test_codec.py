"""Messages and our values: every value comes back as it was, nonsense is refused by name."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.rules import SGD, Adam, Ftrl, RMSprop
from helpers.strategies import text_of
from ropewalk.core.arrays.dtypes import BFLOAT16, DTYPES, Array, DType, as_bytes
from ropewalk.core.errors import RefusedError
from ropewalk.core.report import PsCounters, TaskReport
from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition, cut
from ropewalk.core.rules.initializers import Initializer
from ropewalk.core.rules.schedules import CosineDecay, PiecewiseConstantDecay
from ropewalk.core.task import Incarnation, Outcome, Phase, State, TaskId
from ropewalk.core.versions import Versions
from ropewalk.core.wire import codec
from ropewalk.proto.v1 import common_pb2, ps_pb2

RULES = [
    None,
    SGD(momentum=0.9, nesterov=True, clipvalue=1.0),
    Adam(learning_rate=CosineDecay(initial_learning_rate=0.1, decay_steps=7, warmup_target=1.0)),
    SGD(learning_rate=PiecewiseConstantDecay(boundaries=(1, 2), values=(3.0, 2.0, 1.0))),
    RMSprop(centered=True, global_clipnorm=1e-300),
    Ftrl(learning_rate=0.1 + 0.2),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_a_dtype_goes_both_ways(dtype: DType) -> None:
    assert codec.dtype_from_wire(codec.dtype_to_wire(dtype)) == dtype


def test_every_dtype_of_the_contract_is_one_of_ours() -> None:
    known = {int(codec.dtype_to_wire(dtype)) for dtype in DTYPES}
    assert known == set(common_pb2.DType.values()) - {common_pb2.D_TYPE_UNSPECIFIED}


@pytest.mark.parametrize("value", [0, 999], ids=["unspecified", "of a newer version"])
def test_an_unknown_dtype_is_refused_with_its_number(value: int) -> None:
    with pytest.raises(RefusedError, match=f"unknown dtype number {value}"):
        codec.dtype_from_wire(value)


ENUMS: list[tuple[Iterable[Any], Callable[[Any], int], Callable[[int], Any]]] = [
    (Phase, codec.PHASES.to_wire, codec.PHASES.from_wire),
    (State, codec.STATES.to_wire, codec.STATES.from_wire),
    (Outcome, codec.OUTCOMES.to_wire, codec.OUTCOMES.from_wire),
]


@pytest.mark.parametrize(("members", "encode", "decode"), ENUMS, ids=["phase", "state", "outcome"])
def test_a_state_goes_both_ways_and_an_unknown_number_is_refused(
    members: Iterable[Any], encode: Callable[[Any], int], decode: Callable[[int], Any]
) -> None:
    for member in members:
        assert decode(encode(member)) is member
    for number in (0, 999):
        with pytest.raises(RefusedError, match=f"number {number} in a message stands for none of"):
            decode(number)


def test_who_and_versions_go_both_ways() -> None:
    who = Incarnation(TaskId("worker", 3), 2**40)
    assert codec.incarnation_from_wire(codec.incarnation_to_wire(who)) == who
    versions = Versions(1, "0.1.0", "3.11.7", "2.1.0")
    assert codec.versions_from_wire(codec.versions_to_wire(versions)) == versions


def test_reports_and_counters_go_both_ways() -> None:
    report = TaskReport(
        steps=1, pushes=2, bytes_pushed=2**40, bytes_pulled=4, refused_pushes=5, global_step=6,
        staleness=0.5, metrics={"loss": 0.1}, total_steps=1000, transports=("shm", "grpc"),
    )  # fmt: skip
    assert codec.report_from_wire(codec.report_to_wire(report)) == report
    numbers: dict[str, Any] = {
        field.name: number
        for number, field in enumerate(dataclasses.fields(PsCounters), start=1)
        if field.type in (int, "int")
    }
    counters = PsCounters(**numbers | {"labels": ("w", "b/part_1")})
    assert codec.counters_from_wire(codec.counters_to_wire(counters)) == counters


# Printable letters of one to four bytes.
names = text_of("abzAZ019._/-: é–漢🙂", min_size=1, max_size=20)


@st.composite
def shards(draw: st.DrawFn) -> ShardDefinition:
    """Any shard there can be."""
    name = draw(names)
    initializer = draw(
        st.none()
        | st.builds(
            Initializer,
            st.just("random_uniform"),
            st.integers(0, 2**64 - 1),
            st.dictionaries(st.sampled_from(["minval", "maxval"]), st.floats(-1e300, 1e300)),
        )
    )
    variable = VariableDefinition(
        name,
        draw(st.lists(st.integers(0, 2**20), max_size=3).map(tuple)),
        draw(st.sampled_from(DTYPES)),
        initializer,
        draw(st.booleans()),
    )
    part = draw(st.sampled_from(cut(variable, draw(st.integers(1, 9)))))
    rule = draw(st.sampled_from(RULES))
    return ShardDefinition(variable, part.part, part.num_parts, part.row_offset, part.rows, rule)


@settings(deadline=None)
@given(shards())
def test_a_shards_definition_comes_back_with_rule_and_initializer(shard: ShardDefinition) -> None:
    sent = codec.shard_to_wire(shard).SerializeToString()
    assert codec.shard_from_wire(ps_pb2.ShardDefinition.FromString(sent)) == shard


def _message(**changes: Any) -> ps_pb2.ShardDefinition:
    variable = VariableDefinition("w", (10, 2), np.dtype(np.float32), Initializer("ones"))
    message = codec.shard_to_wire(ShardDefinition(variable, 1, 2, 5, 5))
    for name, value in changes.items():
        if isinstance(value, tuple):
            del getattr(message, name)[:]
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)
    return message


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({"variable": ""}, "printable name", id="no name"),
        pytest.param({"full_shape": (-1, 2)}, "negative extent", id="negative extent"),
        pytest.param({"dtype": 0}, "unknown dtype number 0", id="no dtype"),
        pytest.param({"rows": 6}, r"rows \[5, 11\) are not in a variable of 10 rows", id="beyond"),
        pytest.param({"rows": -1, "row_offset": 0}, "w", id="rows of -1"),
        pytest.param({"rows": -2, "row_offset": 0}, "w", id="rows of -2"),
        pytest.param({"row_offset": -1}, "are not in a variable of 10", id="negative offset"),
        pytest.param({"full_shape": ()}, "are not in a variable of 1 rows", id="scalar, row 5"),
        pytest.param({"part": 2}, "'w': part 2 of 2", id="no such part"),
        pytest.param({"num_parts": 0, "part": 0}, "part 0 of 0", id="no parts"),
    ],
)
def test_a_shard_that_cannot_be_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        codec.shard_from_wire(_message(**changes))


def test_a_shard_with_an_initializer_nobody_knows_is_refused() -> None:
    message = _message()
    message.initializer.name = "orthogonal"
    with pytest.raises(RefusedError, match="definition of 'w': no initializer 'orthogonal'"):
        codec.shard_from_wire(message)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param("name", "Tiger", id="unknown rule"),
        pytest.param("lr", 0.1, id="unknown field"),
        pytest.param("momentum", "much", id="wrong type"),
        pytest.param("momentum", float("nan"), id="NaN"),
        pytest.param("momentum", float("inf"), id="infinity"),
    ],
)
def test_fields_of_no_rule_are_refused(field: str, value: Any) -> None:
    message = codec.rule_to_wire(SGD())
    message[field] = value
    with pytest.raises(RefusedError, match="an update rule with the fields"):
        codec.rule_from_wire(message)


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(np.arange(6, dtype=np.int32).reshape(2, 3), id="matrix"),
        pytest.param(np.array(1.5, np.float64), id="scalar"),
        pytest.param(np.array([1, 2.5], BFLOAT16), id="bfloat16"),
        pytest.param(np.array([True, False]), id="bool"),
        pytest.param(np.zeros((0, 4), np.float32), id="empty"),
    ],
)
def test_the_bytes_of_an_array_are_its_little_endian_elements(array: Array) -> None:
    assert bytes(as_bytes(array)) == array.tobytes()


def test_the_bytes_of_an_array_are_a_view_not_a_copy() -> None:
    array = np.zeros(3, np.uint8)
    view = as_bytes(array)
    array[1] = 7
    assert bytes(view) == b"\x00\x07\x00"
