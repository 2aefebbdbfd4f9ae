"""Helpers of rows: where they compute, programs that they start, and what has to be equal."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

import numpy as np

import ropewalk as rw
from ropewalk.core.arrays.any_framework import to_host
from ropewalk.core.process.accelerators import count_gpus

from .rows import STAND_IN, Skip


class Ended(NamedTuple):
    """A command that has ended.

    Attributes:
        code: Exit code.
        output: Lines that it wrote, errors too.
    """

    code: int
    output: str


def ropewalk(*arguments: str, timeout_s: float, **environment: str) -> Ended:
    """Run the ``ropewalk`` command to its end, in a new folder.

    Raises:
        TimeoutExpired: It took longer.
    """
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "ropewalk", *arguments],
            cwd=folder,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    return Ended(done.returncode, done.stdout)


def local(program: str, *flags: str, timeout_s: float = 90.0, **environment: str) -> str:
    """Run a program by ``ropewalk local``, which has to succeed, and return its output.

    Args:
        program: Text of the program.
        flags: Flags of ``ropewalk local``.
        timeout_s: Time for all of it.
        environment: Variables beside those of this process.
    """
    done = local_to_its_end(program, *flags, timeout_s=timeout_s, **environment)
    assert done.code == 0, f"exit code {done.code}: {done.output[-300:]}"
    return done.output


def local_to_its_end(
    program: str, *flags: str, timeout_s: float = 90.0, **environment: str
) -> Ended:
    """Run a program by ``ropewalk local`` to whatever end."""
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        path = Path(folder) / "train.py"
        path.write_text(dedent(program))
        return ropewalk("local", "--plain", *flags, str(path), timeout_s=timeout_s, **environment)


def is_played() -> bool:
    """Return whether the GPUs are the stand-in's."""
    return bool(os.environ.get(STAND_IN))


def torch_device() -> str:
    """Choose where PyTorch computes: a GPU, and beside the stand-in the CPU.

    Raises:
        Skip: It sees no GPU.
    """
    import torch

    if is_played():
        return "cpu"
    if not torch.cuda.is_available():
        raise Skip("PyTorch sees no GPU")
    return "cuda"


def need_jax() -> Any:
    """Load JAX, computing on a GPU, and beside the stand-in on the CPU.

    Raises:
        Skip: It sees no GPU.
    """
    import jax

    if not is_played() and jax.default_backend() != "gpu":
        raise Skip("JAX sees no GPU")
    return jax


def last_gpu() -> str:
    """Name the device that is most rarely the current one."""
    return f"gpu:{count_gpus() - 1}"


def same(found: Any, wanted: Any, what: object, rtol: float = 0.0) -> None:
    """Raise AssertionError unless arrays are equal, up to a relative difference."""
    ours, theirs = (np.asarray(to_host(each), np.float64) for each in (found, wanted))
    assert ours.shape == theirs.shape, f"{what}: shape {ours.shape}, not {theirs.shape}"
    close = np.isclose(ours, theirs, rtol=rtol, atol=rtol, equal_nan=True)
    assert close.all(), f"{what}: {ours[~close][:4]}, not {theirs[~close][:4]}"


@contextmanager
def logical_gpus(count: int) -> Iterator[None]:
    """Split the GPUs into so many logical devices."""
    rw.config.set_logical_gpu_devices(count)
    try:
        yield
    finally:
        rw.config.set_logical_gpu_devices(None)


Strategies = Mapping[str, Callable[[], rw.distribute.Strategy]]
IN_A_PROCESS: Strategies = {
    "OneDevice": lambda: rw.distribute.OneDeviceStrategy(last_gpu()),
    "Mirrored": rw.distribute.MirroredStrategy,
    "Central": rw.distribute.CentralStorageStrategy,
    "MultiWorkerMirrored": rw.distribute.MultiWorkerMirroredStrategy,
}
"""Strategies that have variables on GPUs."""
