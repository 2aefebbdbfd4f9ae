"""Rows about NCCL: of one worker on one GPU, between the GPUs of a process, and between workers.

Two ranks are never on one GPU: NCCL may wait for itself there.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import ropewalk as rw
from ropewalk.core.arrays.any_framework import to_host
from ropewalk.core.process.accelerators import count_gpus, load_cupy, load_nccl
from ropewalk.distribute import NcclAllReduce, PerReplica, ReduceOp
from ropewalk.distribute.strategies.all_reduce import _communicators
from ropewalk.distribute.strategies.nccl_calls import NCCL_DTYPES, nccl_available

from ..programs import is_played, local, local_to_its_end, same
from ..rows import Skip, row

_PAGE = "docs/gpu.md"
_LEASE_S = 10.0


class _Alone:
    """A ring of one worker, as far as a link asks it."""

    size, rank, members = 1, 0, (None,)

    def broadcast(self, value: Any) -> Any:
        return value

    def all_gather(self, value: Any, timeout_s: float | None) -> Any:
        return [value]

    def watch(self, is_done: Callable[[], bool], what: str, timeout_s: float | None) -> None:
        until = time.monotonic() + 20
        while not is_done():
            assert time.monotonic() < until, f"{what} does not end"
            time.sleep(0.001)


def _link() -> Any:
    """A link of one worker."""
    if not nccl_available():
        raise Skip("CuPy has no NCCL")
    try:
        from ropewalk.annexes.ring.nccl import NcclLink
    except ImportError:
        raise Skip("the annex ring is not here") from None
    alone: Any = _Alone()
    return NcclLink(alone, 0)


@row(_PAGE, wanted="equal", needs=["cupy"])
def one_worker() -> str:
    """A link of one worker takes every dtype that it promises, and a step's arrays at once."""
    cupy = load_cupy()
    arrays = [cupy.arange(6).astype(dtype) for dtype in sorted(NCCL_DTYPES)]
    _link().all_reduce(arrays)
    for array in arrays:
        same(to_host(array).astype(int), np.arange(6), array.dtype)
    return ", ".join(sorted(NCCL_DTYPES))


@row(_PAGE, wanted="equal", needs=["cupy"], on_card=True)
def large() -> str:
    """An array of more than 2³¹ bytes is summed."""
    cupy, size = load_cupy(), (1 << 31) + 1
    array = cupy.ones(size, np.int8)
    _link().all_reduce([array])
    assert int(array[-1]) == 1, array[-1]
    return f"{size} bytes"


@row(_PAGE, wanted="an error within 10 s", needs=["cupy"], on_card=True)
def given_up() -> str:
    """A link that was given up is an error from then on, not a wait."""
    link, start = _link(), time.monotonic()
    link._communicator.abort()
    try:
        link.all_reduce([load_cupy().ones(4, np.float32)])
    except Exception as error:
        took_s = time.monotonic() - start
        assert took_s < 10, f"{type(error).__name__} after {took_s:.1f} s"
        return type(error).__name__
    raise AssertionError("it was used as if nothing had been")


@row(_PAGE, wanted="an error within 10 s", needs=["cupy"], on_card=True)
def failed_gpu() -> str:
    """A GPU that fails while NCCL waits is an error, not a wait without end."""
    cupy, link = load_cupy(), _link()
    array = cupy.ones(4, np.float32)
    bad = cupy.RawKernel('extern "C" __global__ void bad(int* p) { *p = 1; }', "bad")
    bad((1,), (1,), (np.intp(8),))  # an address that nobody has
    start = time.monotonic()
    try:
        link.all_reduce([array])
    except Exception as error:
        took_s = time.monotonic() - start
        assert took_s < 10, f"{type(error).__name__} after {took_s:.1f} s"
        return f"{type(error).__name__} after {took_s:.1f} s"
    raise AssertionError("no error came")


@row(_PAGE, wanted=f"less than half of the lease of {_LEASE_S:.0f} s", needs=["cupy"],
     on_card=True)  # fmt: skip
def heartbeats() -> str:
    """Threads of the interpreter run on while communicators are made."""
    longest, over = [0.0], threading.Event()

    def tick() -> None:
        last = time.monotonic()
        while not over.wait(0.01):
            now = time.monotonic()
            longest[0], last = max(longest[0], now - last), now

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        _link()
        _communicators(tuple(range(count_gpus())))
    finally:
        over.set()
        thread.join()
    assert longest[0] < _LEASE_S / 2, f"a pause of {longest[0]:.1f} s"
    return f"longest pause {longest[0]:.2f} s"


@row(_PAGE, wanted="as on the CPU", needs=["cupy"], gpus=2)
def between_gpus() -> str:
    """NCCL between the GPUs of a process sums and averages every dtype as the CPU does."""
    cupy, gpus = load_cupy(), count_gpus()
    if not load_nccl().available:
        raise Skip("CuPy has no NCCL")
    for name in sorted(NCCL_DTYPES - {"bfloat16"}):
        host = [np.array([30, gpu], name) for gpu in range(gpus)]
        parts = []
        for gpu, array in enumerate(host):
            with cupy.cuda.Device(gpu):
                parts.append(cupy.asarray(array))
        values = PerReplica(parts)
        for op, wanted in ((ReduceOp.SUM, sum), (ReduceOp.MEAN, _mean)):
            for part in NcclAllReduce().reduce(op, values, values).values:
                same(part, wanted(host), f"{op} of {name}", rtol=1e-3)
    return f"{gpus} GPUs"


def _mean(arrays: list[Any]) -> Any:
    return rw.distribute.ReductionToOneDevice().reduce(
        ReduceOp.MEAN, PerReplica(arrays), PerReplica(arrays)
    ).values[0]  # fmt: skip


_PROGRAM = """
import os, sys
import numpy as np
import ropewalk as rw

options = rw.distribute.experimental.CommunicationOptions(
    implementation=rw.distribute.experimental.CommunicationImplementation.{implementation}
)
strategy = rw.distribute.MultiWorkerMirroredStrategy(communication_options=options)
with strategy.scope():
    v = rw.Variable(np.arange(300_000, dtype=np.float32), name="v")
optimizer = rw.optimizers.SGD(0.5)
me = strategy.task_index

def step():
    optimizer.apply_gradients([(v.read_value() * np.float32((me + 1) / 8), v)])

for number in range(6):
    if number == 3 and me == 1 and {dies}:
        os._exit(7)
    strategy.run(step)
print("sum", float(v.numpy().astype(np.float64).sum()), flush=True)
"""


def _workers() -> list[str]:
    return ["--ps", "0", "--no-chief", "--workers", str(count_gpus())]


@row(_PAGE, wanted="as over the ring", needs=["cupy"], gpus=2, limit_s=150)
def between_workers() -> str:
    """Workers with a GPU each train over NCCL to the values that they have over the ring."""
    if is_played():
        raise Skip("the stand-in's NCCL is of one process")
    sums = []
    for implementation in ("NCCL", "RING"):
        output = local(_PROGRAM.format(implementation=implementation, dies=False), *_workers())
        sums.append([float(line.split()[-1]) for line in output.splitlines() if "sum " in line])
    assert len(sums[0]) == count_gpus(), f"{len(sums[0])} workers ended"
    same(np.array(sums[0]), np.array(sums[1]), "the sum of a variable", rtol=1e-4)
    return f"{count_gpus()} workers"


@row(_PAGE, wanted="all end", needs=["cupy"], gpus=2, limit_s=120)
def lost_worker() -> str:
    """A worker that is lost ends the call of the others over NCCL with an error."""
    if is_played():
        raise Skip("the stand-in's NCCL is of one process")
    start = time.monotonic()
    done = local_to_its_end(_PROGRAM.format(implementation="NCCL", dies=True), *_workers())
    assert done.code != 0, "a lost worker went unnoticed"
    return f"exit code {done.code} after {time.monotonic() - start:.0f} s"
