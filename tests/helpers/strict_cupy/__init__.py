"""A strict CuPy over NumPy, for tests of several GPUs on a machine that has none.

It computes on the host, and refuses what CuPy 14 refuses: an array of a GPU that is not the
thread's current one (CuPy computes it on the wrong GPU's stream, or not at all), operands of NumPy,
conversions that are not asked for, dtypes its kernels lack, and NCCL calls that would wait forever.
It knows nothing of streams, lifetimes, speed, or what a kernel does.

:func:`played_gpus` puts it in CuPy's place; for a child process
``PYTHONPATH=tests/helpers/strict_cupy FAKE_GPUS=2`` does.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ropewalk.distribute.strategies.all_reduce import _communicators

from . import cupy, cupyx
from .cupy.cuda import nccl
from .cupy.devices import machine

FOLDER = str(Path(__file__).parent)
"""What a child process needs in its ``PYTHONPATH``."""


@contextmanager
def played_gpus(count: int) -> Iterator[None]:
    """Have this process see a CuPy of so many GPUs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "gpus", count)
        patch.setitem(sys.modules, "cupy", cupy)
        patch.setitem(sys.modules, "cupy.cuda.nccl", nccl)
        patch.setitem(sys.modules, "cupyx", cupyx)
        _communicators.cache_clear()
        try:
            yield
        finally:
            _communicators.cache_clear()
