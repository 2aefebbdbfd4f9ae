"""Counting GPUs: through CuPy, and without it there are none."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from ropewalk.core.arrays.buffers import host_memory
from ropewalk.core.process import accelerators
from ropewalk.core.process.accelerators import count_gpus, pin_memory_with


class NoDriverError(Exception):
    pass


def _cupy(answer: int | Exception) -> SimpleNamespace:
    def count() -> int:
        if isinstance(answer, Exception):
            raise answer
        return answer

    runtime = SimpleNamespace(getDeviceCount=count, CUDARuntimeError=NoDriverError)
    return SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))


@pytest.mark.parametrize(
    ("cupy", "gpus"),
    [
        pytest.param(None, 0, id="no CuPy"),
        pytest.param(_cupy(NoDriverError("insufficient driver")), 0, id="no driver"),
        pytest.param(_cupy(0), 0, id="no device"),
        pytest.param(_cupy(3), 3, id="three devices"),
    ],
)
def test_gpus_are_those_cupy_can_use(
    cupy: SimpleNamespace | None, gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", cupy)  # None: importing it fails
    assert count_gpus() == gpus


def test_values_are_in_memory_that_a_framework_has_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators._Pinning, "allocate", None)  # put back afterwards
    assert host_memory(1000).ctypes.data % 64 == 0
    pinned = []

    def allocate(num_bytes: int) -> object:
        pinned.append(np.empty(num_bytes, np.uint8))
        return pinned[-1]

    pin_memory_with(allocate)
    assert host_memory(1000) is pinned[0]
    assert pinned[0].nbytes == 1000
