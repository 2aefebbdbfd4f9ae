"""Several GPUs, played on the host: work of each is done on it, and gives what the CPU gives."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.calls import Calls
from helpers.rows import row
from helpers.strict_cupy import cupy, cupyx, nccl, played_gpus
from ropewalk.core.arrays.any_framework import to_host
from ropewalk.core.arrays.dtypes import FLOATS, INTEGERS
from ropewalk.core.rules.built_in.sgd import SGD
from ropewalk.distribute import (
    CentralStorageStrategy,
    HierarchicalCopyAllReduce,
    MirroredStrategy,
    NcclAllReduce,
    ParameterServerStrategy,
    PerReplica,
    ReductionToOneDevice,
)
from ropewalk.distribute.strategies.all_reduce import _tell_of_nccl, choose_cross_device_ops

GPUS = 3


@pytest.fixture(autouse=True)
def plain_process() -> None:
    """Here GPUs are counted."""


@pytest.fixture(autouse=True)
def gpus() -> Iterator[None]:
    """As many as tests here speak of."""
    with played_gpus(GPUS):
        yield


def on_gpu(values: Any, gpu: int) -> Any:
    """An array of a GPU."""
    with cupy.cuda.Device(gpu):
        return cupy.asarray(values)


OPS = [NcclAllReduce, HierarchicalCopyAllReduce, ReductionToOneDevice]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32], ids=lambda d: d.__name__)
@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("ops", OPS, ids=lambda kind: kind.__name__)
def test_what_is_reduced_is_on_every_gpu(ops: Any, op: str, dtype: Any) -> None:
    strategy = MirroredStrategy(cross_device_ops=ops())
    assert strategy.num_replicas_in_sync == GPUS

    def step() -> Any:
        context = rw.distribute.get_replica_context()
        assert context is not None
        number = context.replica_id_in_sync_group
        given = [on_gpu(np.full(n, number + 1, dtype), number) for n in (2, 3)]
        return context.all_reduce(op, given)

    expected = 6 if op == "sum" else 2
    for reduced in strategy.run(step):
        for gpu, part in enumerate(reduced.values):
            assert part.device.id == gpu
            assert to_host(part).tolist() == [expected] * part.size


def test_copies_of_a_variable_are_read_and_written_on_their_gpus() -> None:
    strategy = MirroredStrategy()
    with strategy.scope():
        v: Any = rw.Variable(
            np.ones(2, np.float32), name="v", aggregation=rw.VariableAggregation.SUM
        )
    strategy.run(lambda: v.assign_add(np.ones(2, np.float32)))
    v.assign_sub(np.ones(2, np.float32))
    for gpu, component in enumerate(v.values):
        assert component.read_value().device.id == gpu
        assert component.numpy().tolist() == [3, 3]
        component.apply(np.ones(2, np.float32), SGD(learning_rate=1.0))
        assert component.sparse_read([1]).device.id == gpu
        assert component.numpy().tolist() == [2, 2]


def test_nothing_that_is_read_is_a_way_into_the_variable() -> None:
    """CuPy has no arrays that cannot be written to."""
    with rw.distribute.OneDeviceStrategy("gpu:1").scope():
        v: Any = rw.Variable(np.ones(2, np.float32), name="v")
    with cupy.cuda.Device(1):
        read = v.read_value()
        read += 1
    assert v.numpy().tolist() == [1, 1]


# -- to the host -----------------------------------------------------------------------------


def test_copies_to_the_host_go_into_pinned_memory_that_is_used_again(
    calls: Calls,
) -> None:
    pinned: list[int] = []  # addresses

    calls.after(cupyx, "empty_pinned", lambda made, *_: pinned.append(made.ctypes.data))
    values = np.arange(111_000, dtype=np.float32).reshape(111, 1000)  # of a size of its own
    array = on_gpu(values, 2)
    first = to_host(array)
    np.testing.assert_array_equal(first, values)
    assert first.ctypes.data == pinned[-1]
    count = len(pinned)
    held = to_host(array)
    assert not np.shares_memory(first, held), "the program still has the first one"
    address = first.ctypes.data
    del first
    again = to_host(array)
    assert again.ctypes.data == address
    assert len(pinned) == count + 1
    np.testing.assert_array_equal(held, values)


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_small_copies_have_their_shape(shape: tuple[int, ...]) -> None:
    found = to_host(on_gpu(np.ones(shape, np.float16), 1))
    assert found.shape == shape
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, np.ones(shape))


# -- where a step has its values -------------------------------------------------------------


def given_and_read(strategy: rw.distribute.Strategy) -> list[tuple[type, type]]:
    """Of each replica the kinds of its batch and of a variable that it reads."""
    with strategy.scope():
        v = rw.Variable(np.ones(2, np.float32), name="v")
    data = rw.data.from_arrays(np.ones((6, 2), np.float32), batch_size=6)
    found: list[tuple[type, type]] = []
    for batch in strategy.experimental_distribute_dataset(data):
        strategy.run(lambda part: found.append((type(part), type(v.read_value()))), args=(batch,))
    return found


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (MirroredStrategy, cupy.ndarray),
        (CentralStorageStrategy, cupy.ndarray),
        (ParameterServerStrategy, np.ndarray),
    ],
    ids=["mirrored", "central", "ps"],
)
def test_a_batch_is_where_the_values_are_that_a_step_reads(make: Any, kind: type) -> None:
    """NumPy and CuPy do not compute with each other; JAX and PyTorch take no CuPy arrays."""
    assert given_and_read(make()) == [(kind, kind)] * GPUS


def test_rows_of_a_gpu_come_to_the_host() -> None:
    rows = rw.IndexedSlices(on_gpu(np.ones((2, 3), np.float32), 2), on_gpu([1, 4], 2))
    assert type(rows.values) is type(rows.indices) is np.ndarray
    assert rows.indices.tolist() == [1, 4]


def test_a_store_gives_frameworks_what_they_take() -> None:
    """Variables of a strategy in sync are CuPy's, which JAX does not take."""
    strategy = MirroredStrategy(["gpu:1"])
    store = rw.training.ArrayStore({"w": np.ones(2, np.float32)}, rw.optimizers.SGD(0.5), strategy)
    assert type(store.pull()["w"]) is type(store.pull(["w"])["w"]) is np.ndarray
    after = store.exchange({"w": np.ones(2, np.float32)})
    assert type(after["w"]) is np.ndarray
    assert after["w"].tolist() == [0.5, 0.5]


# -- NCCL ------------------------------------------------------------------------------------


def test_a_call_that_nccl_refuses_begins_none_and_the_next_ones_work(
    calls: Calls,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of a group would wait forever for the other half."""
    aborted: list[int] = []
    calls.before(nccl.NcclCommunicator, "abort", lambda each: aborted.append(each.rank))
    monkeypatch.setattr(nccl, "refused", {1})
    values = PerReplica([on_gpu(np.full(2, gpu, np.float32), gpu) for gpu in range(GPUS)])
    with pytest.raises(nccl.NcclError, match="unhandled"):
        NcclAllReduce().reduce(rw.distribute.ReduceOp.SUM, values, values)
    assert aborted == list(range(GPUS))
    nccl.refused.clear()
    total = NcclAllReduce().reduce(rw.distribute.ReduceOp.SUM, values, values)
    assert [to_host(part).tolist() for part in total.values] == [[3, 3]] * GPUS


def test_without_nccl_several_gpus_add_up_on_one_of_them_with_a_word(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _tell_of_nccl.cache_clear()
    monkeypatch.setattr(nccl, "available", False)
    for _ in range(2):
        ops = choose_cross_device_ops([f"/device:GPU:{gpu}" for gpu in range(GPUS)])
        assert isinstance(ops, ReductionToOneDevice)
    assert caplog.text.count("CuPy finds no NCCL, so the gradients of 3 GPUs are added up") == 1


@pytest.mark.parametrize("op", rw.distribute.ReduceOp)
def test_nccl_gives_what_the_host_gives(op: Any) -> None:
    """Means of halves and of small integers are summed where they do not overflow."""
    for dtype in [*FLOATS, *INTEGERS]:
        with row(dtype):
            mean = op is rw.distribute.ReduceOp.MEAN
            large = (
                {"float16": 30_000, "int8": 100, "uint8": 200}.get(dtype.name, 30) if mean else 30
            )
            host = [np.array([large, number], dtype) for number in range(GPUS)]
            values = PerReplica([on_gpu(array, gpu) for gpu, array in enumerate(host)])
            on_host = PerReplica(host)
            found = NcclAllReduce().reduce(op, values, values)
            expected = ReductionToOneDevice().reduce(op, on_host, on_host)
            for part in found.values:
                np.testing.assert_array_equal(to_host(part), to_host(expected.values[0]))
                assert part.dtype == expected.values[0].dtype
