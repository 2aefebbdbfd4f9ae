"""Rows of a variable on parameter servers change as those of a variable in this process do."""

from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.rows import row
from ropewalk.cluster.resolvers.resolved import resolve
from ropewalk.core.arrays.dtypes import BFLOAT16
from ropewalk.core.rules.initializers import Initializer
from ropewalk.distribute import ParameterServerStrategy
from ropewalk.distribute.cluster_resolver import TFConfigClusterResolver
from ropewalk.distribute.experimental import partitioners
from ropewalk.distribute.runtime import local_runtime
from ropewalk.distribute.variables.scatter import Scatter

FIRST = np.array([[8, 4], [6, 3], [2, 12], [16, 1], [5, 32]])
ROWS = rw.IndexedSlices(np.array([[2, 2], [4, 8], [2, 4], [1, 16]]), np.array([3, 0, 3, 4]))


@pytest.fixture(params=[1, 2], ids=["one ps", "two ps"])
def strategy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    runtime = local_runtime(resolve(TFConfigClusterResolver()), num_ps=request.param)
    cut = partitioners.FixedShardsPartitioner(request.param)
    return ParameterServerStrategy(variable_partitioner=cut, runtime=runtime)


@pytest.mark.parametrize("kind", list(Scatter))
def test_scatter_on_a_ps_is_as_in_this_process(
    strategy: ParameterServerStrategy, kind: Scatter
) -> None:
    dtypes: list[Any] = ["f4", "f8", BFLOAT16, "i4"]
    for dtype in dtypes:
        with row(dtype):
            rows = rw.IndexedSlices(ROWS.values.astype(dtype), ROWS.indices)
            plain = rw.Variable(FIRST.astype(dtype), name="plain")
            with strategy.scope():
                served = rw.Variable(FIRST.astype(dtype), name="served")
            for variable in (plain, served):
                getattr(variable, f"scatter_{kind}")(rows)
            # Powers of two: products and quotients are exact.
            np.testing.assert_array_equal(served.numpy(), plain.numpy())


@pytest.mark.parametrize("kind", [Scatter.MUL, Scatter.MIN])
def test_no_rows_change_nothing(strategy: ParameterServerStrategy, kind: Scatter) -> None:
    with strategy.scope():
        v = rw.Variable(FIRST.astype(np.float32), name="v")
    getattr(v, f"scatter_{kind}")(rw.IndexedSlices(np.zeros((0, 2), np.float32), np.zeros(0, int)))
    np.testing.assert_array_equal(v.numpy(), FIRST)


def test_scatter_in_a_step_is_seen_by_its_next_read(strategy: ParameterServerStrategy) -> None:
    with strategy.scope():
        v = rw.Variable(initializer=Initializer("ones"), shape=(5, 2), name="v")

    def step() -> float:
        v.scatter_mul(rw.IndexedSlices(np.full((1, 2), 3.0, np.float32), np.array([4])))
        return float(v.read_value()[4, 1])

    assert [strategy.run(step) for _ in range(2)] == [3.0, 9.0]
