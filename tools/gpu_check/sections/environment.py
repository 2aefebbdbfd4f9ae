"""Rows about the machine: what is installed, and whether its parts fit each other."""

import importlib
import importlib.metadata
import importlib.util
import sys

import numpy as np

from ropewalk.core.process.accelerators import count_gpus, load_cupy, load_nccl
from ropewalk.distribute.strategies.nccl_calls import nccl_available
from ropewalk.launch.local.gpus import machines_gpus

from ..programs import ropewalk
from ..rows import Skip, row

_LIBRARIES = ("cupy", "torch", "jax", "jaxlib", "keras", "optax", "numpy")


@row("docs/gpu.md", wanted="a driver and a card", on_card=True)
def versions() -> str:
    """The machine has GPUs, and what is installed is named."""
    from ..__main__ import cards

    found = {package.metadata["Name"]: package.version for package in _packages("cupy")}
    for name in _LIBRARIES:
        if importlib.util.find_spec(name) is not None:
            found[name] = str(getattr(importlib.import_module(name), "__version__", "?"))
    libraries = ", ".join(f"{name} {version}" for name, version in found.items())
    return f"{'; '.join(cards())}; Python {sys.version.split()[0]}, {libraries}"


@row("core/process/accelerators.py", wanted="one number")
def counts() -> str:
    """CuPy, PyTorch and JAX see the GPUs that nvidia-smi lists."""
    found = {"nvidia-smi": len(machines_gpus())}
    if importlib.util.find_spec("cupy") is not None:
        found["CuPy"] = count_gpus()
    if importlib.util.find_spec("torch") is not None:
        found["PyTorch"] = importlib.import_module("torch").cuda.device_count()
    if importlib.util.find_spec("jax") is not None:
        jax = importlib.import_module("jax")
        found["JAX"] = jax.device_count() * (jax.default_backend() == "gpu")
    said = ", ".join(f"{name} {count}" for name, count in found.items())
    assert len(set(found.values())) == 1, said
    return said


@row("docs/gpu.md", wanted="NCCL 2", needs=["cupy"], on_card=True)
def nccl_found() -> str:
    """CuPy finds NCCL."""
    assert nccl_available(), "CuPy has no NCCL, so gradients are added up on one GPU"
    return f"NCCL {load_nccl().get_version()}"


@row("docs/gpu.md", wanted="[1 4 9]", needs=["cupy"], on_card=True)
def compiles() -> str:
    """CuPy has the libraries that compile a kernel."""
    cupy = load_cupy()
    square = cupy.ElementwiseKernel("float32 x", "float32 y", "y = x * x", "squared_by_gpu_check")
    found = square(cupy.asarray([1, 2, 3], np.float32)).get()
    assert found.tolist() == [1, 4, 9], found
    return str(found.astype(int))


@row("docs/gpu.md", wanted="one CuPy, of the CUDA of PyTorch", needs=["cupy"], on_card=True)
def one_cuda() -> str:
    """One CuPy is installed, and it is of the CUDA that PyTorch brings."""
    names = [each.metadata["Name"] for each in _packages("cupy")]
    assert len(names) == 1, f"several CuPy packages: {', '.join(names)}"
    ours = load_cupy().cuda.runtime.runtimeGetVersion() // 1000
    if importlib.util.find_spec("torch") is None:
        return f"{names[0]}, CUDA {ours}"
    theirs = importlib.import_module("torch").version.cuda
    assert theirs is not None, "PyTorch is a build for CPUs"
    assert theirs.partition(".")[0] == str(ours), f"CUDA {ours} of CuPy, {theirs} of PyTorch"
    return f"{names[0]}, CUDA {ours}; PyTorch's {theirs}"


@row("docs/cluster.md", wanted="exit code 0", limit_s=240)
def kernels() -> str:
    """The kernels of the servers are compiled once for all later rows."""
    done = ropewalk("warm-kernels", timeout_s=230)
    if "No such command" in done.output:
        raise Skip("there is no warm-kernels")
    assert done.code == 0, done.output[-300:]
    return done.output.strip().splitlines()[-1][:100]


def _packages(prefix: str) -> list[importlib.metadata.Distribution]:
    return [
        each
        for each in importlib.metadata.distributions()
        if (each.metadata["Name"] or "").startswith(prefix)
    ]
