"""Strategies on a GPU, through CuPy; the CPU is the reference.

They run on the machine's GPU, where there is one, and on GPUs that are played, see
``helpers.strict_cupy``.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.replicas import SUM, replica
from helpers.rows import row
from helpers.strict_cupy import played_gpus
from ropewalk.core.arrays.any_framework import as_array, is_on_gpu, to_host
from ropewalk.core.process.accelerators import load_cupy
from ropewalk.distribute import (
    CentralStorageStrategy,
    HierarchicalCopyAllReduce,
    MirroredStrategy,
    NcclAllReduce,
    OneDeviceStrategy,
    PerReplica,
    ReductionToOneDevice,
    Strategy,
)
from ropewalk.distribute.base.devices import place
from ropewalk.distribute.strategies.nccl_calls import NCCL_DTYPES, nccl_available

pytestmark = pytest.mark.timeout(120)

_REAL = "real"


@pytest.fixture(autouse=True)
def plain_process() -> None:
    """Here GPUs are counted."""


@pytest.fixture(
    params=[pytest.param(_REAL, marks=pytest.mark.gpu("cupy")), 1, 2, 3], ids=str, autouse=True
)
def machine(request: pytest.FixtureRequest) -> Iterator[None]:
    """The machine's GPUs, and one, two and three that are played."""
    with nullcontext() if request.param == _REAL else played_gpus(request.param):
        yield


@pytest.fixture
def two_gpus(machine: None) -> Iterator[tuple[str, str]]:
    """Two logical GPU devices, on one GPU or two."""
    rw.config.set_logical_gpu_devices(2)
    yield "/device:GPU:0", "/device:GPU:1"
    rw.config.set_logical_gpu_devices(None)
    rw.config.set_logical_cpu_devices(1)


def test_mirrored_takes_the_gpus_and_values_of_a_step_stay_there(
    two_gpus: tuple[str, str],
) -> None:
    strategy = MirroredStrategy()
    assert strategy.extended.replica_devices == two_gpus
    with strategy.scope():
        v = rw.Variable(np.array([1.0, 2.0], np.float32), name="v", aggregation=SUM)

    def step() -> Any:
        value = v.read_value()
        assert is_on_gpu(value)
        v.assign_add(value * (replica() + 1))
        context = rw.distribute.get_replica_context()
        assert context is not None
        return context.all_reduce("MEAN", value + replica())

    result = strategy.run(step)
    for part in strategy.experimental_local_results(result):
        assert is_on_gpu(part)
        np.testing.assert_allclose(to_host(part), [1.5, 2.5])
    np.testing.assert_allclose(v.numpy(), [4, 8])
    total = strategy.reduce("SUM", strategy.run(lambda: v.read_value() * 1))
    assert isinstance(total, np.ndarray), "reduce is to the host"
    np.testing.assert_allclose(total, [8, 16])


@pytest.mark.parametrize(
    "make",
    [ReductionToOneDevice, HierarchicalCopyAllReduce, NcclAllReduce],
    ids=["one-device", "hierarchical", "nccl"],
)
def test_cross_device_ops_agree_with_numpy(
    two_gpus: tuple[str, str], make: Callable[[], Any]
) -> None:
    for dtype, op in product([np.float32, np.float64, np.float16, np.int32], ["SUM", "MEAN"]):
        with row(dtype, op):
            if make is NcclAllReduce and not nccl_available():
                pytest.skip("CuPy has no NCCL here")
            rng = np.random.default_rng(5)
            host = [
                [rng.integers(0, 50, shape).astype(dtype) for shape in ((4, 3), (), (7,))]
                for _ in "ab"
            ]
            placed = [
                [place(a, device) for a in arrays]
                for arrays, device in zip(host, two_gpus, strict=True)
            ]
            values = [PerReplica(pair) for pair in zip(*placed, strict=True)]
            pairs = [(value, value) for value in values]
            results = make().batch_reduce(rw.distribute.ReduceOp[op], pairs)
            for result, ours in zip(results, zip(*host, strict=True), strict=True):
                wanted = np.add(*ours).astype(np.float64) / (2 if op == "MEAN" else 1)
                for part in result.values:
                    assert is_on_gpu(part)
                    # Small integers: sums are exact, halves of them too.
                    np.testing.assert_array_equal(to_host(part).astype(np.float64), wanted)
            for array, before in zip(placed[0], host[0], strict=True):
                np.testing.assert_array_equal(
                    to_host(array), before, "the replicas' own stay as they are"
                )


OPTIMIZERS: dict[str, Callable[[], rw.optimizers.Optimizer]] = {
    "sgd": lambda: rw.optimizers.SGD(0.1),
    "nesterov": lambda: rw.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adagrad": lambda: rw.optimizers.Adagrad(0.1),
    "rmsprop": lambda: rw.optimizers.RMSprop(0.1, momentum=0.5, centered=True),
    "adam-clipped": lambda: rw.optimizers.Adam(0.1, global_clipnorm=1.0),
    "adamw": lambda: rw.optimizers.AdamW(0.1, weight_decay=0.1),
    "ftrl": lambda: rw.optimizers.Ftrl(0.1, l1_regularization_strength=0.01),
}


def train(strategy: Strategy, optimizer: rw.optimizers.Optimizer) -> list[Any]:
    """Six steps, of one whole gradient and one of rows."""
    rng = np.random.default_rng(2)
    with strategy.scope():
        w = rw.Variable(rng.normal(size=(4, 3)).astype(np.float32), name="w")
        table = rw.Variable(rng.normal(size=(5, 2)).astype(np.float32), name="table")
    gradients = rng.normal(size=(6, 2, 4, 3)).astype(np.float32)
    rows = rng.normal(size=(6, 2, 3, 2)).astype(np.float32)
    count = strategy.num_replicas_in_sync

    def step(number: int) -> None:
        # Two replicas take one half each, one replica both.
        mine = slice(replica(), replica() + 1) if count == 2 else slice(None)
        picked = np.tile([0, 3, 3], len(range(2)[mine]))
        sparse = rw.IndexedSlices(rows[number, mine].reshape(-1, 2), picked, (5, 2))
        optimizer.apply_gradients([(gradients[number, mine].sum(axis=0), w), (sparse, table)])

    for number in range(6):
        strategy.run(step, args=(number,))
    return [w.numpy(), table.numpy()]


@cache
def trained_on_the_cpu(make: Callable[[], rw.optimizers.Optimizer]) -> list[Any]:
    """What every case is compared with; kernels are compiled for it."""
    return train(OneDeviceStrategy("cpu:0"), make())


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=list(OPTIMIZERS))
@pytest.mark.parametrize("kind", ["one", "mirrored", "central"])
def test_update_rules_on_a_gpu_are_those_of_the_cpu(
    two_gpus: tuple[str, str], kind: str, make: Callable[[], rw.optimizers.Optimizer]
) -> None:
    strategies: dict[str, Callable[[], Strategy]] = {
        "one": lambda: OneDeviceStrategy("gpu:0"),
        "mirrored": MirroredStrategy,
        "central": lambda: CentralStorageStrategy(parameter_device="gpu:0"),
    }
    trained = train(strategies[kind](), make())
    for ours, wanted in zip(trained, trained_on_the_cpu(make), strict=True):
        # float32, summed in another order and divided by small numbers.
        np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-5)


def test_an_array_on_a_gpu_is_taken_without_a_copy() -> None:
    cupy = load_cupy()
    array = cupy.arange(6, dtype=np.float32)

    class OnlyDLPack:
        def __dlpack__(self, **options: Any) -> Any:
            return array.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return array.__dlpack_device__()

    taken = as_array(OnlyDLPack())
    assert taken.data.ptr == array.data.ptr
    assert place(array, "/device:GPU:0") is array


@pytest.mark.annex("ring")
def test_nccl_adds_up_what_a_gpu_has() -> None:
    """Of one GPU; that CuPy's NCCL is found and takes the calls is the point."""
    if not nccl_available():
        pytest.skip("CuPy has no NCCL here")
    from ropewalk.annexes.ring.nccl import NcclLink
    from ropewalk.distribute.strategies.all_reduce import _nccl_sum_in_place

    cupy = load_cupy()
    array = cupy.arange(6, dtype=np.float32)
    _nccl_sum_in_place([array])
    np.testing.assert_array_equal(to_host(array), np.arange(6))

    class Alone:
        """A ring of one worker."""

        size, rank, members = 1, 0, (None,)

        def broadcast(self, value: Any) -> Any:
            return value

        def all_gather(self, value: Any, timeout_s: float | None) -> Any:
            return [value]

        def watch(self, is_done: Callable[[], bool], what: str, timeout_s: float | None) -> None:
            cupy.cuda.get_current_stream().synchronize()
            assert is_done(), what

    alone: Any = Alone()
    link = NcclLink(alone, 0)
    arrays = [cupy.arange(6).astype(dtype) for dtype in NCCL_DTYPES]
    link.all_reduce(arrays)
    for array in arrays:
        np.testing.assert_array_equal(to_host(array).astype(int), np.arange(6))


def test_rows_are_named_by_arrays_of_a_gpu(two_gpus: tuple[str, str]) -> None:
    cupy = load_cupy()
    with MirroredStrategy().scope():
        table = rw.Variable(np.zeros((5, 2), np.float32), name="table", aggregation=SUM)
    rows = rw.IndexedSlices(cupy.ones((2, 2), np.float32), cupy.asarray([1, 4]))
    table.scatter_add(rows)
    np.testing.assert_array_equal(table.numpy()[[1, 4]], 1)
    np.testing.assert_array_equal(
        to_host(table.sparse_read(cupy.asarray([4, 0]))), [[1, 1], [0, 0]]
    )
