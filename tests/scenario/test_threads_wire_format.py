"""Training over sockets with less on the way: narrow gradients and values, and the largest elements
alone.
"""

from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.wire.steps import WireFormat
from ropewalk.testing import LocalCluster

FEATURES, STEPS = 2000, 60


def problem() -> tuple[Array, Array]:
    """A linear model's data: 64 examples, and what the answer should be."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, FEATURES)).astype(np.float32) / np.float32(np.sqrt(FEATURES))
    return x, x @ rng.standard_normal(FEATURES).astype(np.float32)


def train(wire_format: WireFormat, **options: Any) -> tuple[float, float]:
    """The loss before and after."""

    def program() -> tuple[float, float]:
        strategy = rw.distribute.ParameterServerStrategy(
            variable_partitioner=rw.distribute.partitioners.FixedShardsPartitioner(2),
            wire_format=wire_format,
            **options,
        )
        with strategy.scope():
            w = rw.Variable(np.zeros(FEATURES, np.float32), name="w")
        optimizer = rw.optimizers.SGD(0.5)
        x, y = problem()

        def step() -> float:
            rest = x @ w.read_value() - y
            optimizer.apply_gradients([(x.T @ rest, w)])
            return float(rest @ rest)

        first = strategy.run(step)
        for _ in range(STEPS):
            strategy.run(step)
        rest = x @ w.read_value() - y
        return first, float(rest @ rest)

    with LocalCluster(workers=0, ps=2, shared_memory=False) as cluster:
        [result] = cluster.run(program).values()
        return result


def test_everything_as_it_is_is_the_reference() -> None:
    first, last = train(WireFormat())
    assert last < 1e-9 * first


@pytest.mark.parametrize(
    ("wire_format", "options", "share"),
    [
        # Rounding is relative, 2**-9 of each element, and shrinks with the gradient: the descent
        # goes on by nearly the same factor each step. The reference ends at 1e-15, these at 1e-14.
        pytest.param(WireFormat(gradients="bfloat16"), {}, 1e-9, id="bfloat16"),
        pytest.param(WireFormat(gradients="float16"), {}, 1e-9, id="float16"),
        # A tenth of the elements travels, so an element waits about ten steps, and is applied late:
        # fewer and staler updates in the same 60 steps. They end at 1e-11 here.
        pytest.param(WireFormat(top_k=0.1), {}, 1e-6, id="top-k"),
        pytest.param(WireFormat(gradients="bfloat16", top_k=0.1), {}, 1e-6, id="top-k-bfloat16"),
        # Each value is off by up to 2**-9 of itself, and so are the answers: at most 2**-18 = 4e-6
        # of their square, which the loss is.
        pytest.param(WireFormat(values="bfloat16"), {}, 4e-6, id="values"),
        # One step later still.
        pytest.param(
            WireFormat(gradients="bfloat16", top_k=0.1), {"prefetch": True}, 1e-6, id="prefetch"
        ),
    ],
)  # fmt: skip
def test_with_less_on_the_way_the_loss_comes_down_alike(
    wire_format: WireFormat, options: dict[str, Any], share: float
) -> None:
    first, last = train(wire_format, **options)
    assert last < share * first
