"""Which libraries see a real GPU here, for tests that are marked ``gpu``."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import pytest

from ropewalk.core.process.accelerators import count_gpus

_COUNTS: dict[str, Callable[[], int]] = {
    "cupy": count_gpus,
    "jax": lambda: len(_devices_of_jax()),
    "torch": lambda: int(import_module("torch").cuda.device_count()),
}


def _devices_of_jax() -> list[Any]:
    return [each for each in import_module("jax").devices() if each.platform == "gpu"]


@cache
def sees_gpu(library: str) -> bool:
    """Whether a library is installed and computes on a GPU."""
    try:
        return _COUNTS[library]() > 0
    except ImportError:
        return False


def skip_unless_seen(item: pytest.Item) -> None:
    """Skip a test whose libraries see no GPU."""
    named = [name for mark in item.iter_markers("gpu") for name in mark.args]
    if blind := [name for name in named if not sees_gpu(name)]:
        pytest.skip(f"{', '.join(blind)} sees no GPU")
