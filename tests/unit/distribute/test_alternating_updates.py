"""Optimizers that correct a bias, whose steps update now one variable and now another.

PyTorch counts the updates of each variable, Keras and TensorFlow those of the optimizer.
"""

from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.embedding import a_table
from helpers.rules import Adam
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.task import TaskId
from ropewalk.engine.update_kernel import apply_formula

GRADIENTS = np.random.default_rng(0).normal(size=20)
NAMES = ["baa"[i % 3] for i in range(len(GRADIENTS))]
KINDS = ["Adam", "AdamW", "Adamax", "Nadam", "Lamb"]

pytestmark = pytest.mark.annex("embedding")


def expected(rule: Any, name: str, *, by_iterations: bool) -> float:
    """A variable that began as 1, in float64."""
    w, updates = np.ones(1), 0
    slots = {slot: np.full(1, first) for slot, first in rule.slot_start().items()}
    for i, (turn, gradient) in enumerate(zip(NAMES, GRADIENTS, strict=True)):
        if turn == name:
            updates += 1
            t = i + 1 if by_iterations else updates
            g = np.full(1, gradient)
            apply_formula(np, rule, w, slots, g, ..., rate=rule.rate(0), updates=t, scale=1.0)
    return float(w[0])


def trained(strategy: Any, optimizer: Any) -> dict[str, Array]:
    with strategy.scope():
        variables = {n: rw.Variable(np.ones(4, np.float64), name=n) for n in "ab"}
    for name, gradient in zip(NAMES, GRADIENTS, strict=True):
        pair = (np.full(4, gradient), variables[name])
        strategy.run(lambda pair=pair: optimizer.apply_gradients([pair]))
    return {name: variable.numpy() for name, variable in variables.items()}


@pytest.mark.parametrize("by_iterations", [False, True], ids=["variable", "iterations"])
@pytest.mark.parametrize("strategy", ["ParameterServerStrategy", "MirroredStrategy"])
@pytest.mark.parametrize("kind", KINDS)
def test_biases_are_corrected_by_the_updates_of_each_variable_or_by_iterations(
    kind: str, strategy: str, by_iterations: bool
) -> None:
    optimizer = getattr(rw.optimizers, kind)(0.1, by_iterations=by_iterations)
    found = trained(getattr(rw.distribute, strategy)(), optimizer)
    for name, values in found.items():
        # Alike in all elements, so Lamb's ratio of norms is that of one.
        wanted = expected(optimizer.rule, name, by_iterations=by_iterations)
        np.testing.assert_allclose(values, wanted, rtol=1e-9)


def test_iterations_are_the_optimizers_on_each_of_several_ps_and_for_each_shard() -> None:
    optimizer = rw.optimizers.Adam(0.1, by_iterations=True)

    def program() -> dict[str, Array]:
        parts = rw.distribute.partitioners.FixedShardsPartitioner(2)
        return trained(rw.distribute.ParameterServerStrategy(variable_partitioner=parts), optimizer)

    with rw.testing.LocalCluster(workers=0, ps=3) as cluster:
        found = cluster.run(program)[TaskId("chief", 0)]
    for name, values in found.items():
        wanted = expected(optimizer.rule, name, by_iterations=True)
        np.testing.assert_allclose(values, wanted, rtol=1e-9)


def test_rows_found_by_key_go_by_iterations_too() -> None:
    table = a_table(Adam(learning_rate=0.1, by_iterations=True))
    keys = np.array([3, 5])
    start = table.read(keys)
    rule: Any = Adam(learning_rate=0.1, by_iterations=True)
    wanted = start.astype(np.float64)
    slots = {slot: np.zeros_like(wanted) for slot in rule.slot_start()}
    for step in range(6):
        row = step % 2
        g = np.full((1, wanted.shape[1]), 0.5 + step)
        table.push(keys[row : row + 1], g.astype(np.float32), step)
        apply_formula(
            np, rule, wanted, slots, g, np.array([row]), rate=0.1, updates=step + 1, scale=1.0
        )
    np.testing.assert_allclose(table.read(keys), wanted, rtol=1e-5)
