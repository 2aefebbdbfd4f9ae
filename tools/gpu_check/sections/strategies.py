"""Rows about strategies: replicas on GPUs train as one on the CPU does."""

from typing import Any

import numpy as np

import ropewalk as rw
from ropewalk.core.arrays.any_framework import is_on_gpu, to_host
from ropewalk.core.process.accelerators import count_gpus, load_cupy
from ropewalk.distribute import MirroredStrategy, OneDeviceStrategy, ReduceOp, Strategy

from ..programs import IN_A_PROCESS, logical_gpus, same
from ..rows import row

_PAGE = "docs/training.md"
_X = np.random.default_rng(0).normal(size=(48, 4)).astype(np.float32)
_Y = _X @ np.arange(4, dtype=np.float32) + 1


def _replica() -> int:
    context = rw.distribute.get_replica_context()
    assert context is not None
    return int(context.replica_id_in_sync_group)


def _trained(strategy: Strategy, steps: int = 8) -> list[Any]:
    """Least squares, each replica on its part of a batch."""
    with strategy.scope():
        w = rw.Variable(np.zeros(4, np.float32), name="w")
        b = rw.Variable(np.zeros((), np.float32), name="b")
    optimizer = rw.optimizers.Adam(0.1)
    data = rw.data.from_arrays((_X, _Y), batch_size=len(_X))

    def step(x: Any, y: Any) -> None:
        rest = x @ w.read_value() + b.read_value() - y
        share = 2 / len(_X)  # of the whole batch: gradients add up
        optimizer.apply_gradients([(x.T @ rest * share, w), (rest.sum() * share, b)])

    for _ in range(steps):
        for x, y in strategy.experimental_distribute_dataset(data):
            strategy.run(step, args=(x, y))
    return [w.numpy(), b.numpy()]


@row(_PAGE, wanted="within 1e-4 of the CPU", needs=["cupy"], limit_s=90)
def programs() -> str:
    """A program trains to the CPU's values under every strategy, on each number of devices."""
    wanted = _trained(OneDeviceStrategy("cpu:0"))
    counts = [count_gpus(), 2 * count_gpus()]
    for count in counts:
        with logical_gpus(count):
            for name, make in IN_A_PROCESS.items():
                for found, value in zip(_trained(make()), wanted, strict=True):
                    same(found, value, f"{name} on {count} devices", rtol=1e-4)
    return f"{', '.join(IN_A_PROCESS)} on {', '.join(map(str, counts))} devices"


@row(_PAGE, wanted="arrays of CuPy", needs=["cupy"])
def values_stay() -> str:
    """Values of a step are on the GPU of its replica."""
    strategy = MirroredStrategy()
    with strategy.scope():
        v = rw.Variable(np.ones(2, np.float32), name="v", aggregation=rw.VariableAggregation.SUM)

    def step() -> Any:
        value = v.read_value()
        assert is_on_gpu(value), type(value)
        v.assign_add(value * (_replica() + 1))
        return value * 1

    parts = strategy.experimental_local_results(strategy.run(step))
    gpus = [part.device.id for part in parts]
    assert gpus == list(range(count_gpus())), gpus
    same(v.numpy(), np.full(2, 1 + sum(range(1, len(parts) + 1))), "a sum over replicas")
    return f"GPUs {', '.join(map(str, gpus))}"


@row("docs/training.md#what-is-promised", wanted="nothing changes", needs=["cupy"])
def nan() -> str:
    """A gradient that is not finite changes nothing in sync, and the next step trains."""
    strategy = rw.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        good, v = (rw.Variable(np.ones(3, np.float32), name=name) for name in ("good", "v"))
    optimizer = rw.optimizers.SGD(0.5)
    replicas = strategy.num_replicas_in_sync

    def step(factor: float) -> None:
        last = _replica() == replicas - 1
        given = v.read_value() * 0 + np.float32(factor if last else 1)
        optimizer.apply_gradients([(np.ones(3, np.float32), good), (given, v)])

    try:
        for bad in (np.nan, np.inf):
            strategy.run(step, args=(bad,))
            for variable in (good, v):
                same(variable.numpy(), np.ones(3), f"{variable.name} after {bad}")
        strategy.run(step, args=(1.0,))
        same(v.numpy(), np.full(3, 1 - 0.5 * replicas), "after a step that is finite")
    finally:
        strategy.close()
    return "NaN and infinity left out"


@row(_PAGE, wanted="equal", needs=["cupy"])
def all_reduce() -> str:
    """A sum and a mean over replicas are those of the CPU, by each kind of cross-device ops."""
    cupy = load_cupy()
    kinds = {
        "ReductionToOneDevice": rw.distribute.ReductionToOneDevice,
        "HierarchicalCopyAllReduce": rw.distribute.HierarchicalCopyAllReduce,
        "NcclAllReduce": rw.distribute.NcclAllReduce,
    }
    for name, make in kinds.items():
        strategy = MirroredStrategy(cross_device_ops=make())
        replicas = strategy.num_replicas_in_sync

        def step(op: ReduceOp) -> Any:
            context = rw.distribute.get_replica_context()
            assert context is not None
            return context.all_reduce(op, [cupy.full(n, _replica() + 1.0) for n in (2, 3)])

        total = replicas * (replicas + 1) / 2
        for op, wanted in ((ReduceOp.SUM, total), (ReduceOp.MEAN, total / replicas)):
            for size, part in zip((2, 3), strategy.run(step, args=(op,)), strict=True):
                for value in strategy.experimental_local_results(part):
                    same(value, np.full(size, wanted), f"{op} by {name}")
    return ", ".join(kinds)


@row(_PAGE, wanted="within 1e-5 of the CPU", needs=["cupy"])
def clipping() -> str:
    """Gradients that are clipped by their norm, or by that of all, are clipped as on the CPU."""
    gradients = [np.full(4, size, np.float32) for size in (3, 4, 1e-3)]
    kinds: list[dict[str, Any]] = [{"clipnorm": 2.0}, {"global_clipnorm": 2.0}]

    def trained(strategy: Strategy, clip: dict[str, Any]) -> list[Any]:
        optimizer = rw.optimizers.SGD(1.0, **clip)
        with strategy.scope():
            variables = [rw.Variable(np.zeros(4, np.float32), name=f"v{i}") for i in range(3)]
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return [variable.numpy() for variable in variables]

    for clip in kinds:
        wanted = trained(OneDeviceStrategy("cpu:0"), clip)
        for name in ("OneDevice", "Mirrored", "Central"):
            for found, value in zip(trained(IN_A_PROCESS[name](), clip), wanted, strict=True):
                same(found, value, f"{clip} under {name}", rtol=1e-5)
    return "by norm, and by the norm of all"


@row("docs/gpu.md", wanted="as on the CPU", needs=["cupy"], gpus=2)
def each_on_its_gpu() -> str:
    """With several GPUs each copy of a variable is written on its own, in a step and outside."""
    strategy = MirroredStrategy()
    total = rw.VariableAggregation.SUM
    with strategy.scope():
        v: Any = rw.Variable(np.full((3, 2), 9, np.float32), name="v", aggregation=total)
    strategy.run(lambda: v.assign_sub(v.read_value() * 0 + np.float32(1)))
    v.scatter_update(rw.IndexedSlices(np.ones((1, 2), np.float32), np.array([1])))
    wanted = np.full((3, 2), 9.0 - strategy.num_replicas_in_sync)
    wanted[1] = 1
    for gpu, copy in enumerate(v.values):
        assert copy.read_value().device.id == gpu, f"copy {gpu} is on {copy.read_value().device}"
        same(to_host(copy.read_value()), wanted, f"the copy of GPU {gpu}")
    return f"{len(v.values)} copies"
