"""``ropewalk.nn``: losses of replicas, scaled so that summing them gives the mean over the global
batch.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.late import Late
from ropewalk.distribute import MirroredStrategy, get_replica_context

jax, jnp = Late("jax"), Late("jax.numpy")

LOSSES = np.asarray([1, 2, 3], np.float32)


@pytest.fixture
def strategy() -> Iterator[MirroredStrategy]:
    rw.config.set_logical_cpu_devices(2)
    yield MirroredStrategy()
    rw.config.set_logical_cpu_devices(1)


def test_losses_of_replicas_sum_to_the_mean_over_the_global_batch(
    strategy: MirroredStrategy,
) -> None:
    parts = [LOSSES, np.asarray([10], np.float32)]  # an uneven last batch

    def step() -> Any:
        context = get_replica_context()
        assert context is not None
        mine = parts[context.replica_id_in_sync_group]
        return rw.nn.compute_average_loss(mine, global_batch_size=4)

    assert strategy.reduce("SUM", strategy.run(step), axis=None) == 4


def test_without_a_size_every_replica_is_taken_to_have_as_many_examples(
    strategy: MirroredStrategy,
) -> None:
    assert rw.nn.compute_average_loss(LOSSES) == 2
    (loss, _) = strategy.experimental_local_results(
        strategy.run(lambda: rw.nn.compute_average_loss(LOSSES))
    )
    assert loss == 1
    assert loss.dtype == np.float32


@pytest.mark.parametrize(
    ("losses", "weights", "total"),
    [
        pytest.param([1.0, 2.0], 0.5, 1.5, id="a-number"),
        pytest.param([1.0, 2.0], [3.0, 4.0], 11.0, id="per-example"),
        pytest.param([1.0, 2.0], [[3.0], [4.0]], 11.0, id="one-more-axis"),
        pytest.param([[1.0, 2.0], [3.0, 4.0]], [1.0, 10.0], 73.0, id="per-row"),
        pytest.param([[1.0, 2.0], [3.0, 4.0]], [[1.0, 0.0], [0.0, 2.0]], 9.0, id="per-element"),
    ],
)
def test_weights_are_of_examples(losses: Any, weights: Any, total: float) -> None:
    given = np.asarray(losses, np.float32)
    loss = rw.nn.compute_average_loss(given, np.asarray(weights), 4)
    assert loss == total / 4
    assert loss.dtype == np.float32, "float64 weights do not widen the loss"


def test_an_empty_global_batch_has_no_loss() -> None:
    assert rw.nn.compute_average_loss(np.zeros(0, np.float32), global_batch_size=0) == 0
    assert rw.nn.compute_average_loss(LOSSES, global_batch_size=0) == 0


def test_what_cannot_be_averaged_is_refused(strategy: MirroredStrategy) -> None:
    with pytest.raises(ValueError, match="one loss per example"):
        rw.nn.compute_average_loss(np.float32(1.0), global_batch_size=1)
    with pytest.raises(ValueError, match="-1"):
        rw.nn.compute_average_loss(LOSSES, global_batch_size=-1)
    with pytest.raises(TypeError, match="integer"):
        rw.nn.compute_average_loss(LOSSES, global_batch_size=2.0)  # type: ignore[arg-type]
    with strategy.scope():
        assert rw.nn.compute_average_loss(LOSSES, global_batch_size=6) == 1
        with pytest.raises(RuntimeError, match="compute_average_loss in cross-replica context"):
            rw.nn.compute_average_loss(LOSSES)
        with pytest.raises(RuntimeError, match="scale_regularization_loss in cross-replica"):
            rw.nn.scale_regularization_loss(LOSSES)


def test_regularization_counts_once_for_all_replicas(strategy: MirroredStrategy) -> None:
    assert rw.nn.scale_regularization_loss(LOSSES) == 6
    (loss, _) = strategy.experimental_local_results(
        strategy.run(lambda: rw.nn.scale_regularization_loss(LOSSES))
    )
    assert loss == 3


def test_it_can_be_differentiated_by_jax() -> None:
    gradient = jax.grad(
        lambda x: (
            rw.nn.compute_average_loss(x * x, jnp.asarray([1.0, 2.0]), 4)
            + rw.nn.scale_regularization_loss(x)
        )
    )(jnp.asarray([1.0, 3.0]))
    # Of (x0² + 2 x1²) / 4 + x0 + x1.
    np.testing.assert_allclose(gradient, [1.5, 4.0], rtol=1e-6)
