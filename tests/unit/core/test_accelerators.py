"""Counting GPUs: through CuPy, and without it there are none."""

import sys
from types import SimpleNamespace

import pytest

from windlass.core.process.accelerators import count_gpus


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
