"""Gradients that were clipped before they are averaged have one norm, step after step."""

import logging
from collections.abc import Sequence

import numpy as np
import pytest

from helpers.late import Late

bridge = Late("ropewalk.annexes.jax_bridge.norms")


@pytest.mark.parametrize(
    ("norms", "warned"),
    [
        pytest.param([1.0] * 12, 1, id="clipped"),
        pytest.param([1.0] * 4 + [0.9] + [1.0] * 4, 0, id="now and then"),
        pytest.param([1.0, 1.1, 1.2, 1.3, 1.4, 1.5], 0, id="of batches"),
        pytest.param([0.0] * 12, 0, id="zero"),
        pytest.param([np.nan] * 12, 0, id="nan"),
    ],
)
def test_one_norm_in_five_steps_in_a_row_is_warned_of_once(
    norms: Sequence[float], warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    rng, seen = np.random.default_rng(0), bridge.SameNorms()
    with caplog.at_level(logging.WARNING):
        for norm in norms:
            drawn = rng.normal(size=7).astype(np.float32)
            scaled = drawn * (norm / np.linalg.norm(drawn))
            seen.note({"a": scaled[:3].reshape(3, 1), "b": scaled[3:], "ids": np.arange(3)})
    assert caplog.text.count("in 5 steps in a row") == warned
