"""Programs of this folder need TensorFlow, which nothing else of the suite does: ``make parity``
installs it and runs them. Elsewhere they are left out.
"""

import os
import warnings
from importlib.util import find_spec
from typing import Any

import pytest

import ropewalk as rw
from helpers.parity import DEVICES, Both, Program, Ropewalk, Same, TensorFlow, assert_same, outcome

collect_ignore_glob = [] if find_spec("tensorflow") else ["test_*.py"]


@pytest.fixture(scope="session")
def tf() -> Any:
    """TensorFlow with several CPU devices, and without a word on standard error."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow
    cpu = tensorflow.config.list_physical_devices("CPU")[0]
    parts = [tensorflow.config.LogicalDeviceConfiguration() for _ in range(DEVICES)]
    tensorflow.config.set_logical_device_configuration(cpu, parts)
    tensorflow.get_logger().setLevel("ERROR")
    return tensorflow


@pytest.fixture
def both(tf: Any, plain_process: None) -> Both:
    """``theirs, ours = both(program)``: what it gave under TensorFlow and here, for what
    differs.
    """
    rw.config.set_logical_cpu_devices(DEVICES)
    return lambda program: (outcome(TensorFlow(tf), program), outcome(Ropewalk(), program))


@pytest.fixture
def same(both: Both) -> Same:
    """``same(program)``: run it under both, compare, return its result or the name of its error."""

    def compare(program: Program) -> Any:
        theirs, ours = both(program)
        message = f"TensorFlow: {theirs}, Ropewalk: {ours}"
        assert ours.keys() == theirs.keys(), message
        if "error" in theirs:
            assert ours["error"] == theirs["error"], message
            return ours["error"]
        assert_same(ours["value"], theirs["value"])
        return ours["value"]

    return compare
