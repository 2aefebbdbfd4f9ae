"""Moving averages that several workers change, each from a copy of its own age."""

import numpy as np
import pytest

from ropewalk.core.arrays.dtypes import Array
from ropewalk.distribute.base.moved_average import MovedAverage


def shared_after(shared: Array, moved: MovedAverage) -> Array:
    """As a parameter server does it."""
    return (1 - moved.decay) * shared + moved.added()


@pytest.mark.parametrize("decay", [0.01, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("lag", [0, 1, 40])
def test_the_age_of_copies_does_not_count(lag: int, decay: float) -> None:
    """With 40 workers that push one after another differences would diverge, or go below zero."""
    batches = np.random.default_rng(0).uniform(0.001, 0.002, size=200)
    alone, history = np.ones(1), [np.ones(1)]
    for x in batches:
        alone = (1 - decay) * alone + decay * x
        before = history[max(0, len(history) - 1 - lag)]
        after = (1 - decay) * before + decay * x
        history.append(shared_after(history[-1], MovedAverage(before, after, decay)))
        np.testing.assert_allclose(history[-1], alone, rtol=1e-9)
        assert history[-1] > 0


def test_a_decay_that_is_too_large_stays_between_what_there_is() -> None:
    shared, before, x = np.array([5.0]), np.array([2.0]), 9.0
    moved = MovedAverage(before, 0.9 * before + 0.1 * x, 0.4)
    np.testing.assert_allclose(shared_after(shared, moved), 0.6 * 5 + 0.3 * 2 + 0.1 * 9)


def test_counters_add_up() -> None:
    moved = MovedAverage(np.asarray(3), np.asarray(5), 0.0)
    assert shared_after(np.asarray(10), moved) == 12
    assert isinstance(moved.added(), np.ndarray)
    assert moved.added().dtype == np.int64
