"""Rows about arrays and variables: each write, read and update rule is as on the CPU."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import ropewalk as rw
from ropewalk.core.arrays.any_framework import as_array, is_on_gpu, to_host
from ropewalk.core.arrays.dtypes import FLOATS, INTEGERS
from ropewalk.core.process.accelerators import load_cupy
from ropewalk.distribute import MirroredStrategy, OneDeviceStrategy, Strategy
from ropewalk.distribute.base.devices import place
from ropewalk.distribute.variables.scatter import Scatter

from ..programs import last_gpu, need_jax, same, torch_device
from ..rows import row
from ..running import ROOT

_PAGE = "docs/gpu.md"
_DTYPES = (*FLOATS, *INTEGERS)
_FIRST = rw.VariableAggregation.ONLY_FIRST_REPLICA
_MEAN = rw.VariableAggregation.MEAN
_ON_READ = rw.VariableSynchronization.ON_READ


def _variable(strategy: Strategy, value: Any, **options: Any) -> Any:
    with strategy.scope():
        return rw.Variable(value, name="v", **options)


def _places() -> dict[str, Strategy]:
    return {"the last GPU": OneDeviceStrategy(last_gpu()), "every GPU": MirroredStrategy()}


@row(_PAGE, wanted="as on the CPU", needs=["cupy"])
def writes() -> str:
    """Whole values are written in every dtype as on the CPU."""
    for where, strategy in _places().items():
        for dtype in _DTYPES:
            start, given = np.full(3, 50, dtype), np.array([3, 2, 7], dtype)
            for method in ("assign", "assign_add", "assign_sub"):
                ours = _variable(strategy, start, aggregation=_FIRST)
                wanted = rw.Variable(start)
                for variable in (ours, wanted):
                    getattr(variable, method)(given)
                same(ours.numpy(), wanted.numpy(), f"{method} of {dtype} on {where}")
    return f"{len(_DTYPES)} dtypes"


@row(_PAGE, wanted="as on the CPU", needs=["cupy"])
def rows_of_variables() -> str:
    """Changes of rows are those of the CPU, in every dtype, of rows that repeat too."""
    values, rows = [[3, 1], [2, 5], [1, 2]], np.array([4, 0, 4])
    for where, strategy in _places().items():
        for dtype in _DTYPES:
            start = np.arange(1, 11).reshape(5, 2).astype(dtype)
            delta = rw.IndexedSlices(np.array(values, dtype), rows)
            for kind in Scatter:
                ours = _variable(strategy, start, aggregation=_FIRST)
                wanted = rw.Variable(start)
                for variable in (ours, wanted):
                    getattr(variable, f"scatter_{kind}")(delta)
                same(ours.numpy(), wanted.numpy(), f"scatter_{kind} of {dtype} on {where}")
    return f"{len(_DTYPES)} dtypes, {len(Scatter)} changes"


_READS: dict[str, Callable[[Any], Any]] = {
    "v + 1": lambda v: v + 1,
    "10 - v": lambda v: 10 - v,
    "v * array": lambda v: v * np.full((3, 2), 2.0),
    "v + v": lambda v: v + v,
    "sqrt": np.sqrt,
    "v[1]": lambda v: v[1],
    "sparse_read": lambda v: v.sparse_read([2, 0, 2]),
    "gather_nd": lambda v: v.gather_nd([[2, 1], [0, 0]]),
}


@row(_PAGE, wanted="as on the CPU", needs=["cupy"])
def reads() -> str:
    """Variables are computed with outside of steps, those synchronized on reading too."""
    start = np.arange(6, dtype=np.float32).reshape(3, 2)
    on_read: dict[str, Any] = {"synchronization": _ON_READ, "aggregation": _MEAN}
    for where, strategy in _places().items():
        for options in ({}, on_read):
            variable = _variable(strategy, start, **options)
            for name, read in _READS.items():
                what = f"{name} on {where} {options}"
                same(read(variable), read(rw.Variable(start)), what, rtol=1e-6)
    return f"{len(_READS)} reads"


@row(_PAGE, wanted="equal", needs=["cupy"])
def shapes() -> str:
    """Arrays in any order, strided, without axes and empty go to a GPU and come back."""
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    arrays = {
        "Fortran": np.asfortranarray(whole),
        "strided": whole[::2, 1::3],
        "backward": whole[::-1],
        "no axes": np.float32(3),
        "empty": np.zeros((0, 3), np.float32),
    }
    for name, array in arrays.items():
        there = place(np.asarray(array), f"/device:GPU:{last_gpu().partition(':')[2]}")
        assert is_on_gpu(there), name
        same(there, np.asarray(array), name)
    return ", ".join(arrays)


@row(_PAGE, wanted="within 1e-4 of the CPU", needs=["cupy"], limit_s=120)
def update_rules() -> str:
    """Update rules compute what they compute on the CPU, for whole gradients and for rows."""
    names = ("SGD", "Adagrad", "Adadelta", "RMSprop", "Adam", "AdamW", "Adamax", "Nadam", "Ftrl")
    for name in names:
        wanted = _trained(OneDeviceStrategy("cpu:0"), name)
        for where, strategy in _places().items():
            for found, value in zip(_trained(strategy, name), wanted, strict=True):
                same(found, value, f"{name} on {where}", rtol=1e-4)
    return ", ".join(names)


def _trained(strategy: Strategy, rule: str) -> list[Any]:
    rng = np.random.default_rng(2)
    optimizer = getattr(rw.optimizers, rule)(0.1)
    with strategy.scope():
        w = rw.Variable(rng.normal(size=(4, 3)).astype(np.float32), name="w")
        table = rw.Variable(rng.normal(size=(5, 2)).astype(np.float32), name="table")
    for _ in range(4):
        whole, rows = (rng.normal(size=shape).astype(np.float32) for shape in ((4, 3), (3, 2)))
        sparse = rw.IndexedSlices(rows, np.array([0, 3, 3]), (5, 2))
        optimizer.apply_gradients([(whole, w), (sparse, table)])
    return [w.numpy(), table.numpy()]


@row("core/arrays/any_framework.py", wanted="shared", needs=["cupy", "torch"],
     on_card=True)  # fmt: skip
def from_torch() -> str:
    """Tensors of a GPU are taken without a copy, of bfloat16 too, and go back."""
    import torch

    device = torch_device()
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64):
        tensor = torch.arange(6, device=device).to(dtype)
        array = as_array(tensor)
        assert array.data.ptr == tensor.data_ptr(), f"{dtype} was copied"
        same(array, tensor.float().cpu().numpy(), dtype)
        assert torch.equal(torch.from_dlpack(array), tensor), f"{dtype} does not go back"
    return "float32, bfloat16, float16, int64"


@row("core/arrays/any_framework.py", wanted="equal", needs=["cupy", "jax"],
     on_card=True)  # fmt: skip
def from_jax() -> str:
    """Arrays of JAX on a GPU are taken, of bfloat16 too, and those on all devices."""
    jax = need_jax()
    for dtype in ("float32", "bfloat16", "int32"):
        array = jax.numpy.arange(6).astype(dtype)
        assert is_on_gpu(as_array(array)), f"{dtype} was copied to the host"
        same(as_array(array), np.arange(6), dtype)
    mesh = jax.sharding.Mesh(jax.devices(), ("all",))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    same(as_array(jax.device_put(np.arange(6), everywhere)), np.arange(6), "replicated")
    return "float32, bfloat16, int32; replicated"


@row(_PAGE, wanted="equal", needs=["cupy"], on_card=True, limit_s=90)
def large() -> str:
    """An array of more than 2³¹ elements is written, read and summed."""
    cupy, size = load_cupy(), 3 << 30
    variable = _variable(OneDeviceStrategy("gpu:0"), np.zeros(size, np.int8))
    ones = cupy.ones(size, np.int8)
    variable.assign_add(ones)
    found = to_host(variable.read_value())
    assert int(found[-1]) == int(found[0]) == 1, (found[0], found[-1])
    total = int(cupy.sum(variable.read_value(), dtype=np.int64))
    assert total == size, total
    return f"{size >> 30} GiB of int8"


def _tests(*arguments: str) -> str:
    """Run tests that need a GPU, which all have to pass."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    last = done.stdout.strip().splitlines()[-1:] or [done.stderr[-200:]]
    assert done.returncode == 0, f"{done.stdout[-600:]} {done.stderr[-200:]}"
    return last[0].strip("= ")


@row("tests/unit/distribute/test_gpu_strategies.py", wanted="all pass", on_card=True,
     needs=["cupy", "hypothesis", "pytest", "pytest_timeout"], limit_s=150)  # fmt: skip
def tests_of_strategies() -> str:
    """The tests of strategies that are marked `gpu` pass."""
    return _tests("tests/unit/distribute/test_gpu_strategies.py")


@row("tests/bridges/test_bridges_gpu.py", wanted="all pass", on_card=True,
     needs=["hypothesis", "pytest", "pytest_timeout", "torch"], limit_s=150)  # fmt: skip
def tests_of_bridges() -> str:
    """The tests of PyTorch's and JAX's bridges that are marked `gpu` pass."""
    return _tests("tests/bridges/test_bridges_gpu.py", "tests/bridges/test_bridges_own_state.py")
