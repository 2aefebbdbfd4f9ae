"""Arrays of several GPUs, played on the host: CuPy computes, and copies, on the GPU that is
current.

The machine tests run on has one GPU at most. What is played here is the one rule that matters with
several: an operation on an array of a GPU that is not the current one is an error (or goes through
a slow mapping), and a copy of it would be on the current one.
"""

import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.core.arrays.any_framework import to_host
from ropewalk.core.rules.built_in.sgd import SGD
from ropewalk.distribute import (
    CentralStorageStrategy,
    HierarchicalCopyAllReduce,
    MirroredStrategy,
    NcclAllReduce,
    ParameterServerStrategy,
    ReductionToOneDevice,
)

GPUS = 3


@pytest.fixture(autouse=True)
def plain_process() -> None:
    """Here GPUs are counted."""


class Current(threading.local):
    gpu = 0


current = Current()


class Device:
    """``cupy.cuda.Device``."""

    def __init__(self, number: int) -> None:
        self.id = int(number)
        self._before: list[int] = []

    def __enter__(self) -> "Device":
        self._before.append(current.gpu)
        current.gpu = self.id
        return self

    def __exit__(self, *error: object) -> None:
        current.gpu = self._before.pop()


class Played:
    """``cupy.ndarray``: an array of a GPU."""

    __array_priority__ = 100

    def __init__(self, host: Any, gpu: int) -> None:
        self._host, self._gpu = host, gpu

    @property
    def device(self) -> Device:
        return Device(self._gpu)

    def host(self) -> Any:
        """The array, for an operation of the current GPU."""
        assert self._gpu == current.gpu, f"GPU {current.gpu} works on an array of GPU {self._gpu}"
        return self._host

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self)

    shape = property(lambda self: self._host.shape)
    ndim = property(lambda self: self._host.ndim)
    dtype = property(lambda self: self._host.dtype)
    size = property(lambda self: self._host.size)
    nbytes = property(lambda self: self._host.nbytes)

    def get(self, out: Any) -> None:
        assert out.flags.c_contiguous
        out[...] = self.host()

    def copy(self) -> "Played":
        return Played(self._host.copy(), current.gpu)  # sic: the current one

    def astype(self, dtype: Any, copy: bool = True) -> "Played":
        return Played(self.host().astype(dtype, copy=copy), self._gpu)

    def reshape(self, *shape: Any) -> "Played":
        return Played(self._host.reshape(*shape), self._gpu)

    def __getitem__(self, index: Any) -> "Played":
        return Played(self._host[index], self._gpu)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.host()[index] = unwrapped(value)

    def __add__(self, other: Any) -> "Played":
        return Played(self.host() + unwrapped(other), self._gpu)

    def __sub__(self, other: Any) -> "Played":
        return Played(self.host() - unwrapped(other), self._gpu)

    def __mul__(self, other: Any) -> "Played":
        return Played(self.host() * unwrapped(other), self._gpu)

    __rmul__ = __mul__

    def __neg__(self) -> "Played":
        return Played(-self.host(), self._gpu)

    def __truediv__(self, other: Any) -> "Played":
        return Played(self.host() / unwrapped(other), self._gpu)

    def __iadd__(self, other: Any) -> "Played":
        host = self.host()
        host += unwrapped(other)
        return self


pinned: list[int] = []  # addresses


def empty_pinned(shape: tuple[int, ...], dtype: Any) -> Any:
    """``cupyx.empty_pinned``: an array of memory that is not NumPy's own."""
    made = np.frombuffer(bytearray(int(np.prod(shape))), dtype).reshape(shape)
    pinned.append(made.ctypes.data)
    return made


def unwrapped(value: Any) -> Any:
    return value.host() if isinstance(value, Played) else value


def asarray(value: Any) -> Played:
    if isinstance(value, Played):  # between GPUs it is copied
        return value if value._gpu == current.gpu else Played(value._host.copy(), current.gpu)
    return Played(np.array(value), current.gpu)


class Communicator:
    """``cupy.cuda.nccl.NcclCommunicator``, of calls that come in order."""

    def __init__(self, gpu: int, group: list[tuple[Played, Played]]) -> None:
        self._gpu, self._group = gpu, group

    @staticmethod
    def initAll(gpus: list[int]) -> list["Communicator"]:
        assert len(set(gpus)) == len(gpus), f"NCCL takes each GPU once, got {gpus}"
        group: list[tuple[Played, Played]] = []
        return [Communicator(gpu, group) for gpu in gpus]

    def allReduce(self, source: Any, target: Any, *rest: Any) -> None:
        assert source._gpu == self._gpu == current.gpu
        self._group.append((source, target))
        if len(self._group) == len({played._gpu for played, _ in self._group}) == GPUS:
            total = np.sum([given._host for given, _ in self._group], axis=0)
            for _, into in self._group:
                into._host[...] = total
            self._group.clear()


def nccl() -> Any:
    """``cupy.cuda.nccl``, which is no attribute of ``cupy.cuda`` in CuPy 14."""

    def nothing(*args: Any) -> None:
        """Of no use here."""

    return SimpleNamespace(
        available=True, NcclCommunicator=Communicator, groupStart=nothing, groupEnd=nothing,
        NCCL_FLOAT32=7, NCCL_FLOAT64=8, NCCL_FLOAT16=6, NCCL_SUM=0,
    )  # fmt: skip


def cupy() -> Any:
    return SimpleNamespace(
        ndarray=Played,
        asarray=asarray,
        empty=lambda shape, dtype: Played(np.empty(shape, dtype), current.gpu),
        full=lambda shape, value, dtype: Played(np.full(shape, value, dtype), current.gpu),
        concatenate=lambda arrays, axis=0: Played(
            np.concatenate([array.host() for array in arrays], axis), current.gpu
        ),
        cuda=SimpleNamespace(
            Device=Device,
            get_current_stream=lambda: SimpleNamespace(ptr=0),
            runtime=SimpleNamespace(getDeviceCount=lambda: GPUS, CUDARuntimeError=RuntimeError),
        ),
    )


@pytest.fixture(autouse=True)
def three_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from ropewalk.distribute.strategies.all_reduce import _communicators

    monkeypatch.setitem(sys.modules, "cupy", cupy())
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", nccl())
    monkeypatch.setitem(sys.modules, "cupyx", SimpleNamespace(empty_pinned=empty_pinned))
    pinned.clear()
    _communicators.cache_clear()
    yield
    _communicators.cache_clear()


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
        given = [asarray(np.full(n, number + 1, dtype)) for n in (2, 3)]
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
    with Device(1):
        read = v.read_value()
        read += 1
    assert v.numpy().tolist() == [1, 1]


# -- to the host -----------------------------------------------------------------------------


def test_copies_to_the_host_go_into_pinned_memory_that_is_used_again() -> None:
    array = Played(np.arange(100_000, dtype=np.float32).reshape(100, 1000), 2)
    first = to_host(array)
    np.testing.assert_array_equal(first, array._host)
    assert first.ctypes.data == pinned[-1]
    count = len(pinned)
    held = to_host(array)
    assert not np.shares_memory(first, held), "the program still has the first one"
    address = first.ctypes.data
    del first
    again = to_host(array)
    assert again.ctypes.data == address
    assert len(pinned) == count + 1
    np.testing.assert_array_equal(held, array._host)


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_small_copies_have_their_shape(shape: tuple[int, ...]) -> None:
    array = Played(np.ones(shape, np.float16), 1)
    found = to_host(array)
    assert found.shape == shape
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, array._host)


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
        (MirroredStrategy, Played),
        (CentralStorageStrategy, Played),
        (ParameterServerStrategy, np.ndarray),
    ],
    ids=["mirrored", "central", "ps"],
)
def test_a_batch_is_where_the_values_are_that_a_step_reads(make: Any, kind: type) -> None:
    """NumPy and CuPy do not compute with each other; JAX and PyTorch take no CuPy arrays."""
    assert given_and_read(make()) == [(kind, kind)] * GPUS


def test_rows_of_a_gpu_come_to_the_host() -> None:
    values: Any = asarray(np.ones((2, 3), np.float32))
    indices: Any = asarray([1, 4])
    rows = rw.IndexedSlices(values, indices)
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
