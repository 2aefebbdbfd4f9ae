"""Cross-device operations agree with NumPy, whatever the op, the dtype and the packing."""

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ropewalk as rw
from helpers.rows import row
from ropewalk.core.arrays.dtypes import BFLOAT16
from ropewalk.distribute import (
    CommunicationOptions,
    CrossDeviceOps,
    DistributedValues,
    DistributedVariable,
    HierarchicalCopyAllReduce,
    Mirrored,
    MirroredStrategy,
    NcclAllReduce,
    PerReplica,
    ReduceOp,
    ReductionToOneDevice,
    Strategy,
)
from ropewalk.distribute.strategies.packing import (
    by_dtype,
    cuts_by_count,
    join,
    packs_by_bytes,
    split,
)

Array = np.ndarray[Any, np.dtype[Any]]
DType = np.dtype[Any]
Make = Callable[[], CrossDeviceOps]

SHAPES: list[tuple[int, ...]] = [(), (1,), (5,), (2, 3), (0, 4), (3, 1, 2)]
"""A scalar, nothing, and sizes that no number of packs divides."""

OPS: dict[str, Make] = {
    "one-device": ReductionToOneDevice,
    "one-device-named": lambda: ReductionToOneDevice("CPU:1"),
    **{f"hierarchical-{n}": lambda n=n: HierarchicalCopyAllReduce(n) for n in (0, 1, 3)},  # type: ignore[misc]
    **{f"nccl-{n}": lambda n=n: NcclAllReduce(n) for n in (0, 1, 3)},  # type: ignore[misc]
}

DTYPES: dict[str, DType] = {
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "float16": np.dtype(np.float16),
    "bfloat16": BFLOAT16,
    "int32": np.dtype(np.int32),
    "uint8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
}


@pytest.fixture(autouse=True)
def three_devices(plain_process: None) -> None:
    rw.config.set_logical_cpu_devices(3)


@pytest.fixture(params=["one-device", "hierarchical-1", "nccl-3"])
def ops(request: pytest.FixtureRequest) -> CrossDeviceOps:
    return OPS[request.param]()


def values_of(dtype: DType, shape: tuple[int, ...], replicas: int = 3, seed: int = 0) -> PerReplica:
    """Small integers in every dtype: their sums are exact, their means where they are
    representable.
    """
    rng = np.random.default_rng([seed, *shape])
    return PerReplica(rng.integers(0, 90, (replicas, *shape)).astype(dtype))


def reference(op: str, values: Sequence[Array]) -> tuple[Array, DType]:
    """The result in float64, and its dtype."""
    dtype = values[0].dtype
    if op == "MEAN":
        mean = np.mean([value.astype(np.float64) for value in values], axis=0)
        return mean, dtype if dtype in (*_FLOATS,) else _MEANS[dtype.name]
    total = values[0]
    for value in values[1:]:
        total = np.add(total, value)
    return total.astype(np.float64), dtype


_MEANS: dict[str, DType] = {
    "int32": np.dtype(np.float64),
    "uint8": np.dtype(np.float32),
    "bool": np.dtype(np.float64),
}
_FLOATS = (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16), BFLOAT16)

# One rounding of the sum and one of the quotient; bfloat16 has 8 bits, float16 11.
_RTOL = {"bfloat16": 2**-7, "float16": 2**-10, "float32": 2**-23}


def check(result: Any, op: str, values: Sequence[Array]) -> None:
    wanted, dtype = reference(op, values)
    assert result.dtype == dtype
    assert result.shape == values[0].shape
    rtol = _RTOL.get(dtype.name, 2**-52)
    if op == "SUM" and dtype == BFLOAT16:
        rtol = 0.0  # the reference rounds in the same order
    np.testing.assert_allclose(result.astype(np.float64), wanted, rtol=rtol)


# -- reduce ----------------------------------------------------------------------------------


every_op = pytest.mark.parametrize("make", OPS.values(), ids=list(OPS))


@every_op
def test_reducing_one_value_or_many_agrees_with_numpy_and_keeps_their_order(make: Make) -> None:
    ops = make()
    for op, dtype in product(("SUM", "MEAN"), DTYPES.values()):
        if op == "SUM" and dtype == np.bool_:
            continue
        with row(op, dtype):
            values = [values_of(dtype, shape, seed=i) for i, shape in enumerate([*SHAPES, *SHAPES])]
            results = ops.batch_reduce(ReduceOp[op], [(value, value) for value in values])
            results += [ops.reduce(ReduceOp[op], value, value) for value in values[: len(SHAPES)]]
            for result, value in zip(results, [*values, *values[: len(SHAPES)]], strict=True):
                assert isinstance(result, Mirrored)
                assert len(result.values) == 3
                for part in result.values:
                    check(part, op, value.values)


@every_op
def test_values_of_many_dtypes_rows_and_destinations_keep_their_order(make: Make) -> None:
    """Each dtype is packed by itself; rows and single destinations go one by one."""
    ops = make()
    values = [
        values_of(dtype, (2, 3), seed=i)
        for i, dtype in enumerate([*DTYPES.values(), *reversed(DTYPES.values())])
        if dtype != np.bool_
    ]
    rows = PerReplica(rw.IndexedSlices(np.ones((1, 2)), np.array([i]), (4, 2)) for i in range(3))
    pairs: list[tuple[DistributedValues, Any]] = [(value, value) for value in values]
    pairs[3:3] = [(rows, rows), (values[0], "CPU:0")]
    results = ops.batch_reduce(ReduceOp.SUM, pairs)
    for (value, where), result in zip(pairs, results, strict=True):
        if value is rows:
            assert result.values[0].indices.tolist() == [0, 1, 2]
        elif where == "CPU:0":
            check(result, "SUM", value.values)
        else:
            check(result.values[2], "SUM", value.values)


@every_op
def test_any_number_of_replicas_is_reduced(make: Make) -> None:
    for replicas, op in product((1, 2, 5, 8), ("SUM", "MEAN")):
        with row(replicas, op):
            rw.config.set_logical_cpu_devices(replicas)
            value, ops = values_of(np.dtype(np.float32), (5,), replicas), make()
            check(ops.reduce(ReduceOp[op], value, "CPU:0"), op, value.values)
            everywhere = ops.reduce(ReduceOp[op], value, value)
            for part in [everywhere] if replicas == 1 else everywhere.values:
                check(part, op, value.values)


def test_the_mean_of_small_integers_booleans_and_halves_does_not_overflow(
    ops: CrossDeviceOps,
) -> None:
    for given_, mean in (
        ([200, 100, 150], np.uint8),
        ([True, True, False], np.bool_),
        ([60_000, 60_000, 30_000], np.float16),
    ):
        value = PerReplica(np.array([number], mean) for number in given_)
        result = ops.reduce(ReduceOp.MEAN, value, "CPU:0")
        np.testing.assert_allclose(result.astype(float), np.mean(given_), rtol=2**-10)


@pytest.mark.parametrize("values", [[True, True, False], ["a", "b", "c"]], ids=["bools", "text"])
def test_what_cannot_be_added_up_is_refused(ops: CrossDeviceOps, values: list[Any]) -> None:
    value = PerReplica(np.array([one]) for one in values)
    for reduce in (
        lambda: ops.reduce(ReduceOp.SUM, value, "CPU:0"),
        lambda: ops.batch_reduce(ReduceOp.SUM, [(value, value), (value, value)]),
    ):
        with pytest.raises(ValueError, match=r"SUM of (bool|str32) is not defined; convert it"):
            reduce()


def test_the_replicas_own_arrays_stay_as_they_are(ops: CrossDeviceOps) -> None:
    value = values_of(np.dtype(np.float32), (5,))
    before = [part.copy() for part in value.values]
    ops.reduce(ReduceOp.SUM, value, "CPU:0")[...] = -1
    ops.batch_reduce(ReduceOp.SUM, [(value, value), (value, value)])
    np.testing.assert_array_equal(value.values, before)


def test_devices_that_share_memory_share_a_result_nobody_can_write(ops: CrossDeviceOps) -> None:
    value = values_of(np.dtype(np.float32), (5,))
    result = ops.reduce(ReduceOp.SUM, value, value)
    with pytest.raises(ValueError, match="read-only"):
        result.values[0][...] = 0


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_rows_are_concatenated_and_a_mean_divides(ops: CrossDeviceOps, op: str) -> None:
    slices = [
        rw.IndexedSlices(np.full((2, 2), i + 1.0, np.float32), np.array([i, 3]), (4, 2))
        for i in range(3)
    ]
    value = PerReplica(slices)
    scale = 3 if op == "MEAN" else 1
    for result in (
        ops.reduce(ReduceOp[op], value, value),
        *ops.batch_reduce(ReduceOp[op], [(value, value)]),
    ):
        for part in result.values:
            assert isinstance(part, rw.IndexedSlices)
            assert part.indices.tolist() == [0, 3, 1, 3, 2, 3]
            dense = np.sum([one.to_dense() for one in slices], axis=0) / scale
            np.testing.assert_allclose(part.to_dense(), dense, rtol=1e-6)


def test_values_of_different_shape_are_an_error_that_shows_them(ops: CrossDeviceOps) -> None:
    value = PerReplica([np.ones(2), np.ones(3), np.ones(2)])
    for reduce in (
        lambda: ops.reduce(ReduceOp.SUM, value, value),
        lambda: ops.batch_reduce(ReduceOp.SUM, [(value, value)]),
    ):
        with pytest.raises(
            ValueError, match=r"differ in shape \(replica 0: \(2,\), replica 1: \(3"
        ):
            reduce()


def test_rows_and_whole_arrays_do_not_mix(ops: CrossDeviceOps) -> None:
    rows = rw.IndexedSlices(np.ones((1, 1)), np.array([0]))
    value = PerReplica([rows, np.ones((2, 1)), rows])
    with pytest.raises(ValueError, match="some IndexedSlices and some whole arrays"):
        ops.reduce(ReduceOp.SUM, value, value)


# -- destinations ----------------------------------------------------------------------------


def test_a_destination_is_a_device_a_value_or_a_variable(ops: CrossDeviceOps) -> None:
    strategy = MirroredStrategy()
    with strategy.scope():
        variable = rw.Variable(np.zeros(2), name="v")
    assert isinstance(variable, DistributedVariable)
    value = PerReplica([np.ones(2)] * 3)
    for where in ("CPU:0", "/device:CPU:1", variable.values[1], np.zeros(2)):
        result = ops.reduce(ReduceOp.SUM, value, where)
        assert isinstance(result, np.ndarray), where
        np.testing.assert_array_equal(result, [3, 3])
    for places in (variable, value, Mirrored([1, 2, 3])):
        result = ops.reduce(ReduceOp.SUM, value, places)
        assert isinstance(result, Mirrored), places
        np.testing.assert_array_equal(result.values, np.full((3, 2), 3))


def test_there_may_be_more_or_fewer_devices_than_replicas(ops: CrossDeviceOps) -> None:
    two, three = PerReplica([np.ones(2)] * 2), PerReplica([np.ones(2)] * 3)
    assert len(ops.reduce(ReduceOp.SUM, two, three).values) == 3
    assert len(ops.reduce(ReduceOp.SUM, three, two).values) == 2
    [more, fewer] = ops.batch_reduce(ReduceOp.SUM, [(two, three), (three, two)])
    np.testing.assert_array_equal(more.values, np.full((3, 2), 2))
    np.testing.assert_array_equal(fewer.values, np.full((2, 2), 3))


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (["CPU:0"], "destinations must be"),
        (None, "destinations must be"),
        ("XPU:0", "is no device"),
    ],
    ids=["list", "none", "unknown"],
)
def test_what_names_no_device_is_no_destination(ops: CrossDeviceOps, where: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ops.reduce(ReduceOp.SUM, PerReplica([1.0, 2.0, 3.0]), where)


# -- broadcast and gather --------------------------------------------------------------------


def test_broadcast_puts_a_value_on_every_device(ops: CrossDeviceOps) -> None:
    value = np.arange(3.0)
    everywhere = ops.broadcast(value, PerReplica([0, 0, 0]))
    assert isinstance(everywhere, Mirrored)
    np.testing.assert_array_equal(everywhere.values, [value] * 3)
    assert ops.broadcast(value, "CPU:0") is value


def test_gather_puts_values_together_along_an_axis_uneven_or_not(ops: CrossDeviceOps) -> None:
    parts = [np.full((i, 2), i) for i in range(3)]
    result = ops.gather(PerReplica(parts), "CPU:0", axis=0)
    np.testing.assert_array_equal(result, np.concatenate(parts))
    turned = PerReplica([part.T for part in parts])
    everywhere = ops.gather(turned, turned, axis=-1)
    assert isinstance(everywhere, Mirrored)
    np.testing.assert_array_equal(everywhere.values[1], np.concatenate(parts).T)


@pytest.mark.parametrize(
    ("parts", "axis", "message"),
    [
        ([1.0, 2.0], 0, "replica 0 has a scalar"),
        ([np.ones(2), np.ones(2)], 1, "axis 1 is out of range"),
        ([np.ones((1, 2)), np.ones((1, 3))], 0, r"differ in more than axis 0 .*\(1, 2\).*\(1, 3\)"),
        ([np.ones(2), np.ones((2, 2))], 0, "differ in more than axis"),
    ],
    ids=["scalar", "past-the-rank", "other-axis", "other-rank"],
)
def test_what_cannot_be_put_together_is_an_error(
    ops: CrossDeviceOps, parts: list[Any], axis: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ops.gather(PerReplica(parts), "CPU:0", axis)


def test_rows_cannot_be_gathered(ops: CrossDeviceOps) -> None:
    rows = PerReplica([rw.IndexedSlices(np.ones((1, 1)), np.array([0]))] * 2)
    with pytest.raises(NotImplementedError, match="IndexedSlices"):
        ops.gather(rows, "CPU:0", 0)


# -- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1.0, np.ones(3), [1, 2, 3]], ids=["number", "array", "list"])
def test_what_is_not_distributed_is_refused(ops: CrossDeviceOps, value: Any) -> None:
    for use in (
        lambda: ops.reduce(ReduceOp.SUM, value, "CPU:0"),
        lambda: ops.batch_reduce(ReduceOp.SUM, [(value, "CPU:0")]),
        lambda: ops.gather(value, "CPU:0", 0),
    ):
        with pytest.raises(ValueError, match=f"distributed values .* got {type(value).__name__}"):
            use()


@pytest.mark.parametrize(
    "pairs", [PerReplica([1, 2]), [PerReplica([1, 2])], [(1, 2, 3)], {1: 2}.items()], ids=repr
)
def test_pairs_are_a_list_of_pairs(ops: CrossDeviceOps, pairs: Any) -> None:
    with pytest.raises(ValueError, match=r"list of \(value, destinations\)"):
        ops.batch_reduce(ReduceOp.SUM, pairs)


@pytest.mark.parametrize("op", ["MAX", "", None, "SUM"], ids=repr)
def test_what_is_no_op_is_refused(ops: CrossDeviceOps, op: Any) -> None:
    """A name, too, which a strategy's own methods take."""
    value = PerReplica([1, 2])
    for call in (
        lambda: ops.reduce(op, value, "CPU:0"),
        lambda: ops.batch_reduce(op, [(value, "CPU:0")]),
    ):
        with pytest.raises(ValueError, match=r"ReduceOp\.SUM or ReduceOp\.MEAN"):
            call()


@pytest.mark.parametrize("kind", [NcclAllReduce, HierarchicalCopyAllReduce], ids=["nccl", "copy"])
def test_a_negative_number_of_packs_is_refused(kind: Callable[..., CrossDeviceOps]) -> None:
    with pytest.raises(ValueError, match="num_packs must be >= 0, got -1"):
        kind(num_packs=-1)


# -- choices ---------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_an_accumulation_function_adds_up_the_arrays(op: str) -> None:
    seen: list[list[Array]] = []

    def accumulate(values: list[Array]) -> Array:
        seen.append(values)
        total: Array = np.maximum.reduce(values)
        return total

    ops = ReductionToOneDevice(accumulation_fn=accumulate)
    value = PerReplica([np.array([1.0, 8.0]), np.array([4.0, 2.0])])
    result = ops.reduce(ReduceOp[op], value, "CPU:0")
    np.testing.assert_array_equal(result, np.array([4.0, 8.0]) / (2 if op == "MEAN" else 1))
    assert len(seen) == 1
    np.testing.assert_array_equal(seen[0], value.values)


def test_an_accumulation_function_is_not_asked_for_rows() -> None:
    def accumulate(values: list[Any]) -> Any:
        raise AssertionError("rows are concatenated")

    ops = ReductionToOneDevice(accumulation_fn=accumulate)
    rows = PerReplica([rw.IndexedSlices(np.ones((1, 1)), np.array([i])) for i in range(2)])
    assert ops.reduce(ReduceOp.SUM, rows, "CPU:0").indices.tolist() == [0, 1]


class Recording(CrossDeviceOps):
    """A program's own: says what it was asked, and adds up."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def reduce_implementation(
        self,
        reduce_op: ReduceOp,
        per_replica_value: DistributedValues,
        devices: tuple[str, ...],
        options: CommunicationOptions | None,
    ) -> Any:
        self.asked.append((reduce_op, devices, options))
        return Mirrored([sum(per_replica_value.values)] * len(devices))


def test_a_subclass_needs_one_method_and_a_strategy_uses_it() -> None:
    mine = Recording()
    strategy = MirroredStrategy(cross_device_ops=mine)
    options = CommunicationOptions(bytes_per_pack=7)

    def step() -> Any:
        context = rw.distribute.get_replica_context()
        assert context is not None
        rank = np.array([context.replica_id_in_sync_group])
        return context.all_reduce("MEAN", [rank, rank + 1], options)

    first, second = strategy.experimental_local_results(strategy.run(step))[0]
    assert (first, second) == (3, 6), "what it says is what replicas get"
    devices = tuple(f"/device:CPU:{i}" for i in range(3))
    assert mine.asked == [(ReduceOp.MEAN, devices, options)] * 2


def test_a_subclass_with_no_method_says_which_one_is_missing() -> None:
    with pytest.raises(NotImplementedError, match=r"Lacking\.reduce_implementation"):
        type("Lacking", (CrossDeviceOps,), {})().reduce(ReduceOp.SUM, PerReplica([1, 2]), "CPU:0")


def test_every_op_gives_a_strategy_the_same_result(ops: CrossDeviceOps) -> None:
    strategy: Strategy = MirroredStrategy(cross_device_ops=ops)
    value = strategy.experimental_distribute_values_from_function(
        lambda context: np.full(5, context.replica_id_in_sync_group, np.float32)
    )
    np.testing.assert_array_equal(strategy.reduce("SUM", value), np.full(5, 3))
    np.testing.assert_array_equal(strategy.reduce("MEAN", value), np.ones(5))


# -- packing ---------------------------------------------------------------------------------


@settings(deadline=None)
@given(total=st.integers(0, 1000), num_packs=st.integers(1, 20))
def test_cuts_are_equal_but_for_the_last_which_takes_the_rest(total: int, num_packs: int) -> None:
    cuts = cuts_by_count(total, num_packs)
    assert len(cuts) == num_packs
    assert [i for a, b in cuts for i in range(a, b)] == list(range(total)), "all, once, in order"
    lengths = [b - a for a, b in cuts]
    assert lengths[:-1] == [total // num_packs] * (num_packs - 1)
    assert lengths[-1] >= total // num_packs


@settings(deadline=None)
@given(sizes=st.lists(st.integers(0, 100), max_size=30), limit=st.integers(1, 300))
def test_a_pack_is_closed_as_soon_as_it_exceeds_the_limit(sizes: list[int], limit: int) -> None:
    packs = packs_by_bytes(sizes, limit)
    walked = [number for pack in packs for number in reversed(pack)]
    assert walked == list(reversed(range(len(sizes)))), (
        "every array once, from the last to the first"
    )
    assert all(packs)
    for pack in packs[:-1]:
        size = sum(sizes[i] for i in pack)
        assert size > limit, "not closed before"
        assert size - sizes[pack[0]] <= limit, "and not after"
    if packs:
        last = packs[-1]
        assert sum(sizes[i] for i in last[1:]) <= limit


@settings(deadline=None)
@given(sizes=st.lists(st.integers(0, 100), min_size=1, max_size=30))
def test_without_a_limit_there_is_one_pack(sizes: list[int]) -> None:
    assert packs_by_bytes(sizes, 0) == [list(range(len(sizes)))]


def test_no_arrays_are_no_packs() -> None:
    assert packs_by_bytes([], 0) == packs_by_bytes([], 5) == []


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=1, max_size=8))
def test_what_is_joined_is_split_into_the_same(shapes: list[tuple[int, ...]]) -> None:
    arrays = [np.arange(math.prod(s)).reshape(s) + 100 * i for i, s in enumerate(shapes)]
    flat = join(arrays)
    assert flat.shape == (sum(array.size for array in arrays),)
    parts = split(flat, arrays)
    for part, array in zip(parts, arrays, strict=True):
        np.testing.assert_array_equal(part, array)
        assert part.shape == array.shape


def test_arrays_are_grouped_by_dtype_in_order() -> None:
    kinds = [np.float32, np.int32, np.float32, BFLOAT16, np.int32]
    assert by_dtype([np.zeros(1, kind) for kind in kinds]) == [[0, 2], [1, 4], [3]]
