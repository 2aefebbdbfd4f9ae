"""What a set of variables means in bytes: runs, cuts, dtypes, and forgotten plans."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.client.ps.definer import PlacedVariable
from ropewalk.client.ps.distinct_rows import DistinctRowsCache
from ropewalk.client.ps.error_feedback import ErrorFeedback
from ropewalk.client.ps.plan_cache import Recent
from ropewalk.client.ps.pull_plans import plan_pull
from ropewalk.client.ps.push_plans import PushedVariable, PushPlan, plan_push
from ropewalk.client.ps.step import Write
from ropewalk.core.arrays.dtypes import BFLOAT16, Array, DType
from ropewalk.core.arrays.gather_buffer import GatherBuffer
from ropewalk.core.arrays.indexed_slices import IndexedSlices
from ropewalk.core.errors import ShapeMismatchError
from ropewalk.core.rules.definitions import VariableDefinition, cut
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.steps import Encoding, LayoutEntry, Operation, WireFormat, WireLayout

F16, F32, F64 = (np.dtype(kind) for kind in (np.float16, np.float32, np.float64))
I32, BOOL = np.dtype(np.int32), np.dtype(np.bool_)
WHO = Incarnation(TaskId("worker", 0), 1)
PULL, APPLY, ASSIGN, ADD, *_ROWS = Operation
LARGE = 64 * 1024 // 4 + 1  # float32: over what is gathered with its neighbours


def placed(name: str, *shape: int, dtype: DType = F32, on: Sequence[int] = (0,)) -> PlacedVariable:
    """A variable with one part on each ps of ``on``."""
    parts = cut(VariableDefinition(name, shape, dtype), len(on))
    return PlacedVariable(parts[0].variable, tuple(zip(on, parts, strict=True)))


def ids() -> Callable[[Sequence[LayoutEntry]], WireLayout]:
    count = 0

    def make(entries: Sequence[LayoutEntry]) -> WireLayout:
        nonlocal count
        count += 1
        return WireLayout(count, tuple(entries))

    return make


def push_plan(
    *variables: PlacedVariable,
    operation: Operation = APPLY,
    sparse: Sequence[str] = (),
    formats: Sequence[WireFormat] = (WireFormat(),) * 4,
) -> PushPlan:
    kinds = [IndexedSlices if v.definition.name in sparse else np.ndarray for v in variables]
    pushed = [PushedVariable(v, operation, k) for v, k in zip(variables, kinds, strict=True)]
    return plan_push(pushed, formats, ids())


def values_of(*variables: PlacedVariable) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {
        item.definition.name: (rng.standard_normal(item.definition.shape) * 10).astype(
            item.definition.dtype
        )
        for item in variables
    }


def sent(
    plan: PushPlan, push: list[Write], feedback: ErrorFeedback | None = None
) -> dict[int, bytes]:
    """The bytes of the values for each ps."""
    payloads = plan.fill(push, WHO, feedback, DistinctRowsCache(WHO))
    return {
        ps: b"".join(bytes(piece.buffer()) for piece in payload.buffers)
        for ps, payload in payloads.items()
    }


def pieces(plan: PushPlan, push: list[Write]) -> dict[int, list[int]]:
    """How many arrays are gathered into each piece."""
    payloads = plan.fill(push, WHO, None, DistinctRowsCache(WHO))
    return {
        ps: [len(p.arrays) for p in payload.buffers if isinstance(p, GatherBuffer)]
        for ps, payload in payloads.items()
    }


# -- pushing: runs and cuts --------------------------------------------------------------------


def test_a_run_ends_at_another_dtype_and_at_a_large_variable() -> None:
    variables = [
        placed("a", 3), placed("b", 2), placed("c", 2, dtype=F64), placed("d", 4), placed("e", LARGE),
        placed("f", 1), placed("g", 1),
    ]  # fmt: skip
    plan = push_plan(*variables)
    assert pieces(plan, [Write(APPLY, values_of(*variables))]) == {0: [2, 1, 1, 1, 2]}


def test_variables_of_several_ps_in_turn_are_a_run_on_each() -> None:
    variables = [placed(f"v{i}", 3, on=[i % 3]) for i in range(30)]
    plan = push_plan(*variables)
    assert pieces(plan, [Write(APPLY, values_of(*variables))]) == {
        0: [10],
        1: [10],
        2: [10],
    }


def test_a_variable_cut_over_job_ends_the_runs_there_and_nowhere_else() -> None:
    variables = [
        placed("a", 2, on=[0]), placed("b", 2, on=[2]), placed("cut", 4, 2, on=[0, 1]),
        placed("c", 2, on=[0]), placed("d", 2, on=[2]),
    ]  # fmt: skip
    plan = push_plan(*variables)
    assert pieces(plan, [Write(APPLY, values_of(*variables))]) == {
        0: [1, 1, 1],
        1: [1],
        2: [2],
    }


@st.composite
def models(draw: st.DrawFn) -> list[PlacedVariable]:
    """Variables of all kinds over three ps, whole and cut, small and large."""
    made = []
    for i in range(draw(st.integers(1, 12))):
        dtype = draw(st.sampled_from([F32, F64, BFLOAT16, F16, I32, BOOL]))
        shape = draw(st.sampled_from([(), (3,), (0,), (5, 2), (7,), (20_000,)]))
        on = draw(st.permutations([0, 1, 2])) if len(shape) > 0 and shape[0] > 2 else [0]
        on = on[: draw(st.integers(1, len(on)))]
        made.append(placed(f"v{i}", *shape, dtype=dtype, on=on))
    return made


@settings(deadline=None, max_examples=25)
@given(models())
def test_each_ps_is_sent_what_its_layout_says(variables: list[PlacedVariable]) -> None:
    values = values_of(*variables)
    plan = push_plan(*variables, operation=ASSIGN)
    expected: dict[int, bytes] = {}
    for ps, layout in plan.layouts.items():
        assert all(entry.operation is ASSIGN for entry in layout.entries)
        expected[ps] = b""
        for entry in layout.entries:
            [own] = [item for item in variables if item.definition.name == entry.variable]
            [shard] = [s for p, s in own.shards if p == ps and s.part == entry.part]
            value = values[entry.variable]
            whole = len(own.shards) == 1
            rows = value if whole else value[shard.row_offset : shard.row_offset + shard.rows]
            expected[ps] += rows.tobytes()
    assert sent(plan, [Write(ASSIGN, values)]) == expected
    held = sorted(
        (e.variable, e.part, ps) for ps, layout in plan.layouts.items() for e in layout.entries
    )
    assert held == sorted(
        (item.definition.name, shard.part, ps) for item in variables for ps, shard in item.shards
    )


def test_values_of_other_dtypes_and_types_are_cast_to_the_variables() -> None:
    variables = [placed("a", 2), placed("b", 2), placed("c", 2, dtype=F64)]
    given_values: dict[str, Array] = {
        "a": np.array([1, 2], np.float64),
        "b": [3, 4],  # type: ignore[dict-item]
        "c": np.array([5, 6], np.float16),
    }
    pushed = [PushedVariable(v, APPLY, type(given_values[v.definition.name])) for v in variables]
    plan = plan_push(pushed, (WireFormat(),), ids())
    expected = np.array([1, 2, 3, 4], F32).tobytes() + np.array([5, 6], F64).tobytes()
    assert sent(plan, [Write(APPLY, given_values)]) == {0: expected}


def test_a_plan_is_filled_again_and_again() -> None:
    variables = [placed("a", 2), placed("b", 2)]
    plan = push_plan(*variables)
    for number in range(3):
        values = {name: np.full(2, number, F32) for name in "ab"}
        assert sent(plan, [Write(APPLY, values)]) == {0: np.full(4, number, F32).tobytes()}


@pytest.mark.parametrize(
    "bad", [np.ones(3, F32), np.ones((2, 1), F32), np.ones(2, np.complex64)],
    ids=["longer", "deeper", "complex"],
)  # fmt: skip
def test_the_one_value_among_many_that_does_not_fit_is_named(bad: Array) -> None:
    variables = [placed(f"v{i}", 2) for i in range(50)]
    values = values_of(*variables) | {"v31": bad}
    with pytest.raises(ShapeMismatchError, match="push to 'v31'"):
        push_plan(*variables).fill([Write(APPLY, values)], WHO, None, DistinctRowsCache(WHO))


# -- pushing: what is narrowed -----------------------------------------------------------------

HALF = WireFormat(gradients="bfloat16")


def entry(plan: PushPlan, ps: int = 0, index: int = 0) -> LayoutEntry:
    return plan.layouts[ps].entries[index]


@pytest.mark.parametrize(
    ("dtype", "operation", "wire"),
    [
        (F32, APPLY, BFLOAT16),
        (F64, APPLY, BFLOAT16),
        (F16, APPLY, None),
        (BFLOAT16, APPLY, None),
        (F32, ASSIGN, None),
        (F32, ADD, None),
        (I32, ADD, None),
        (BOOL, ADD, None),
    ],
)
def test_gradients_of_wide_variables_are_narrowed_and_nothing_else(
    dtype: DType, operation: Operation, wire: DType | None
) -> None:
    v = placed("v", 4, dtype=dtype)
    plan = push_plan(v, operation=operation, formats=[HALF])
    assert entry(plan).dtype == wire
    value = np.ones(4, dtype)
    assert sent(plan, [Write(operation, {"v": value})]) == {
        0: value.astype(wire or dtype).tobytes()
    }


def test_top_k_is_for_large_dense_gradients() -> None:
    formats = [WireFormat(top_k=0.1)]
    large, small = placed("large", 1024), placed("small", 1023)
    table = placed("table", 2048)
    plan = push_plan(large, small, table, sparse=["table"], formats=formats)
    assert [e.encoding for e in plan.layouts[0].entries] == [
        Encoding.ELEMENTS,
        Encoding.DENSE,
        Encoding.ROWS,
    ]
    assert entry(push_plan(large, operation=ASSIGN, formats=formats)).encoding is Encoding.DENSE


def test_the_elements_of_a_cut_variable_go_to_their_parts() -> None:
    v = placed("v", 512, 4, on=[1, 0, 2])
    formats = [WireFormat(top_k=0.05, gradients="bfloat16")] * 3
    plan = push_plan(v, formats=formats)
    gradient = np.random.default_rng(0).standard_normal((512, 4)).astype(F32)
    payloads = plan.fill(
        [Write(APPLY, {"v": gradient})], WHO, ErrorFeedback(0.05), DistinctRowsCache(WHO)
    )
    dense = np.zeros(2048, F32)
    count = 0
    for ps, shard in v.shards:
        [numbers], [piece] = payloads[ps].numbers, payloads[ps].buffers
        assert isinstance(piece, GatherBuffer)
        assert piece.dtype == BFLOAT16
        assert ((numbers >= 0) & (numbers < shard.size)).all()
        dense[numbers + shard.row_offset * 4] = np.frombuffer(piece.buffer(), BFLOAT16)
        count += numbers.size
    assert count == 103  # ceil(0.05 * 2048)
    wanted = np.argsort(-np.abs(gradient.reshape(-1)))[:count]
    np.testing.assert_array_equal(np.flatnonzero(dense), np.sort(wanted))
    np.testing.assert_array_equal(dense[wanted], gradient.reshape(-1)[wanted].astype(BFLOAT16))


def test_rows_are_narrowed_and_go_to_their_parts() -> None:
    table = placed("table", 6, 2, on=[0, 1])
    plan = push_plan(table, sparse=["table"], formats=[HALF] * 2)
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    push = [Write(APPLY, {"table": IndexedSlices(rows, np.array([5, 0, 2, 3]))})]
    payloads = plan.fill(push, WHO, None, DistinctRowsCache(WHO))
    got = {ps: (payloads[ps].numbers[0].tolist(), sent(plan, push)[ps]) for ps in (0, 1)}
    assert got == {
        0: ([0, 2], rows[[1, 2]].astype(BFLOAT16).tobytes()),
        1: ([0, 2], rows[[3, 0]].astype(BFLOAT16).tobytes()),
    }


@pytest.mark.parametrize("order", [[0, 1], [1, 0]], ids=["plain-first", "narrow-first"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "rows"])
@pytest.mark.parametrize("narrow", [HALF, WireFormat(top_k=0.01)], ids=["bfloat16", "top-k"])
def test_a_variable_cut_over_near_and_far_ps_travels_as_its_layouts_say(
    order: list[int], sparse: bool, narrow: WireFormat
) -> None:
    """One ps shares memory with the worker and takes values as they are; the other does not."""
    v = placed("v", 2000, 2, on=order)
    plan = push_plan(v, sparse=["v"] if sparse else [], formats=[WireFormat(), narrow])
    rows = np.arange(0, 2000, 10)
    gradient: Array | IndexedSlices = (
        np.random.default_rng(0).standard_normal((2000, 2)).astype(F32)
    )
    if sparse:
        gradient = IndexedSlices(gradient[rows], rows)  # type: ignore[index]
    payloads = plan.fill(
        [Write(APPLY, {"v": gradient})], WHO, ErrorFeedback(0.01), DistinctRowsCache(WHO)
    )
    for ps, shard in v.shards:
        wire = entry(plan, ps).dtype or F32
        numbered = entry(plan, ps).encoding is not Encoding.DENSE
        assert len(payloads[ps].numbers) == numbered
        count = shard.rows if not numbered else payloads[ps].numbers[0].size
        width = 1 if entry(plan, ps).encoding is Encoding.ELEMENTS else 2
        size = sum(piece.num_bytes for piece in payloads[ps].buffers)
        assert size == count * width * wire.itemsize


# -- pulling -----------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(models(), st.sampled_from([None, "float16", "bfloat16"]))
def test_every_variable_has_a_place_of_its_own_that_is_aligned(
    variables: list[PlacedVariable], name: str | None
) -> None:
    plan = plan_pull(variables, [WireFormat(values=name)] * 3, ids())
    buffer, targets = plan.take_targets()
    taken = np.zeros(buffer.size, np.int64)
    for item in variables:
        start, stop, shape, wire, dtype = plan.places[item.definition.name]
        assert (shape, dtype) == (item.definition.shape, item.definition.dtype)
        assert start % wire.itemsize == 0
        if item.definition.num_bytes > 64 * 1024:
            assert (buffer.ctypes.data + start) % 64 == 0  # where JAX shares memory
        taken[start:stop] += 1
    assert taken.max(initial=0) <= 1
    assert all(target.previous is None for target in targets.values())
    for ps, layout in plan.layouts.items():
        assert sum(len(span) for span in targets[ps].into) == layout.sizes.sum()


@settings(deadline=None, max_examples=25)
@given(models())
def test_what_arrives_in_the_layouts_order_is_each_variables_value(
    variables: list[PlacedVariable],
) -> None:
    values = values_of(*variables)
    plan = plan_pull(variables, [WireFormat()] * 3, ids())
    buffer, targets = plan.take_targets()
    by_name = {item.definition.name: item for item in variables}
    for ps, layout in plan.layouts.items():
        payload = b""
        for item in layout.entries:
            own = by_name[item.variable]
            [shard] = [s for p, s in own.shards if p == ps and s.part == item.part]
            value = values[item.variable]
            whole = len(own.shards) == 1
            rows = value if whole else value[shard.row_offset : shard.row_offset + shard.rows]
            payload += rows.tobytes()
        for span in targets[ps].into:
            span[:] = payload[: len(span)]
            payload = payload[len(span) :]
        assert payload == b""
    del targets
    arrived = plan.values(buffer)
    for name, value in values.items():
        np.testing.assert_array_equal(arrived[name], value)


def test_a_variable_cut_over_near_and_far_ps_is_pulled_in_the_plainest_format() -> None:
    variables = [placed("cut", 4, on=[0, 1]), placed("near", 2, on=[0]), placed("far", 2, on=[1])]
    plan = plan_pull(variables, [WireFormat(), WireFormat(values="float16")], ids())
    wires = {e.variable: e.dtype for layout in plan.layouts.values() for e in layout.entries}
    assert wires == {"cut": None, "near": None, "far": F16}


def test_ten_thousand_small_variables_of_one_ps_land_as_one_piece() -> None:
    plan = plan_pull([placed(f"v{i}", 3) for i in range(10_000)], [WireFormat()], ids())
    _, targets = plan.take_targets()
    assert [len(span) for span in targets[0].into] == [120_000]


# -- plans used last ---------------------------------------------------------------------------


def test_the_plans_used_last_are_kept_and_the_others_dropped_once() -> None:
    dropped: list[str] = []
    made: list[str] = []
    recent: Recent[str] = Recent(2, dropped.append)

    def get(key: str) -> str:
        def make() -> str:
            made.append(key)
            return key.upper()

        return recent.get(key, make)

    assert [get(key) for key in "aabba"] == list("AABBA")
    assert made == ["a", "b"]
    get("c")
    assert dropped == ["B"], "a was used later"
    get("a")
    get("b")
    assert (made, dropped) == (["a", "b", "c", "b"], ["B", "C"])
    recent.clear()
    assert sorted(dropped) == ["A", "B", "B", "C"]
    get("a")
    assert made[-1] == "a", "nothing is remembered after clear"


def test_a_plan_that_cannot_be_made_leaves_the_others() -> None:
    dropped: list[str] = []
    recent: Recent[str] = Recent(1, dropped.append)
    recent.get("a", lambda: "A")

    def fail() -> str:
        raise KeyError("no")

    with pytest.raises(KeyError):
        recent.get("b", fail)
    assert recent.get("a", fail) == "A"
    assert dropped == []


@settings(deadline=None)
@given(st.lists(st.integers(0, 6), max_size=80), st.integers(1, 4))
def test_never_more_than_so_many_plans_are_held_and_a_dropped_one_is_not_given(
    keys: list[int], size: int
) -> None:
    alive: set[int] = set()
    number = 0

    def make() -> int:
        nonlocal number
        number += 1
        alive.add(number)
        return number

    recent: Recent[int] = Recent(size, alive.remove)
    seen: list[int] = []
    for key in keys:
        assert recent.get(key, make) in alive
        assert len(alive) <= size
        seen = [*[old for old in seen if old != key], key][-size:]
        before = number
        for known in seen:
            recent.get(known, make)
        assert number == before, "the last ones are kept"


# -- pushing: values as bytes ------------------------------------------------------------------


def test_assigned_bytes_travel_behind_the_values_and_before_the_writes() -> None:
    [a, b, c, d] = variables = [placed(name, 2) for name in "abcd"]
    cut_up = placed("e", 4, on=(0, 1))
    given = values_of(*variables, cut_up)
    packed = [PushedVariable(each, ASSIGN, bytes) for each in (b, c, cut_up)]
    pushed = [PushedVariable(a, APPLY), *packed, PushedVariable(d, ADD)]
    plan = plan_push(pushed, (WireFormat(),) * 2, ids())
    push = [
        Write(APPLY, {"a": given["a"]}),
        Write(ASSIGN, {name: given[name].tobytes() for name in "bce"}),
        Write(ADD, {"d": given["d"]}),
    ]
    first = [given["a"], given["b"], given["c"], given["e"][:2], given["d"]]
    assert sent(plan, push) == {
        0: b"".join(part.tobytes() for part in first),
        1: given["e"][2:].tobytes(),
    }


def test_bytes_of_another_size_are_refused() -> None:
    variables = [placed("a", 2), placed("b", 3)]
    pushed = [PushedVariable(each, ASSIGN, bytes) for each in variables]
    plan = plan_push(pushed, (WireFormat(),), ids())
    push = [Write(ASSIGN, {"a": b"\0" * 8, "b": b"\0" * 8})]
    with pytest.raises(
        ShapeMismatchError, match="8 bytes are assigned to 'b', the variable has 12"
    ):
        sent(plan, push)
