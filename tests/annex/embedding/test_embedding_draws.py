"""What a row begins with follows from its table's seed and its key, with and without kernels."""

import numpy as np
import pytest

from helpers.embedding import without_numba
from ropewalk.annexes.embedding.keyed.admission import KNOWN, Draws, draws_of, philox, uniform_of
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.errors import ConfigurationError
from ropewalk.core.rules.initializers import Initializer

pytestmark = pytest.mark.usefixtures("way")

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)


def draws(name: str, seed: int = 1, table: str = "t", **arguments: float) -> Draws:
    return draws_of(table, Initializer(name, seed, arguments))


def some_keys(count: int) -> Array:
    keys = np.random.default_rng(4).integers(-(2**63), 2**63 - 1, count)
    keys[:6] = [0, -1, 1, 2**63 - 1, -(2**63), 2**32]
    return keys


def philox_of_the_paper(counter: list[int], key: list[int]) -> list[int]:
    for _ in range(10):
        p0, p1 = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = [
            (p1 >> 32) ^ counter[1] ^ key[0], p1 & 0xFFFFFFFF,
            (p0 >> 32) ^ counter[3] ^ key[1], p0 & 0xFFFFFFFF,
        ]  # fmt: skip
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return counter


def test_the_generator_is_philox4x32_10() -> None:
    # The known answers that come with Random123.
    assert philox_of_the_paper([0] * 4, [0] * 2) == [
        0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8,
    ]  # fmt: skip
    assert philox_of_the_paper([2**32 - 1] * 4, [2**32 - 1] * 2) == [
        0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD,
    ]  # fmt: skip
    keys, seed = some_keys(50), 0x0123456789ABCDEF
    for key, words in zip(keys.tolist(), philox(keys, seed, 7).tolist(), strict=True):
        counter = [key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF, 7, 0]
        assert words == philox_of_the_paper(counter, [seed & 0xFFFFFFFF, seed >> 32])


def test_an_element_is_a_word_of_the_generator() -> None:
    keys = some_keys(20)
    words = np.concatenate([philox(keys, 5, block) for block in (0, 1)], axis=1)
    drawn = uniform_of(5).of(keys, 7, F64)
    np.testing.assert_array_equal(drawn, (words[:, :7] + 0.5) * 2.0**-32)


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_both_ways_give_the_same_bits(
    name: str, dtype: np.dtype[np.generic], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, made = some_keys(3000), draws(name)
    first = made.of(keys, 5, dtype)
    without_numba(monkeypatch)
    assert made.of(keys, 5, dtype).tobytes() == first.tobytes()


@pytest.mark.parametrize("name", KNOWN)
def test_a_row_depends_on_its_key_and_not_on_what_is_drawn_beside_it(name: str) -> None:
    keys, made = some_keys(600), draws(name)
    whole = made.of(keys, 6, F32)
    np.testing.assert_array_equal(made.of(keys[::-1].copy(), 6, F32)[::-1], whole)
    np.testing.assert_array_equal(made.of(keys[17:18], 6, F32), whole[17:18])


def test_seed_table_and_key_each_give_other_rows() -> None:
    key = some_keys(6)[5:]
    first = draws("random_normal").of(key, 8, F32)
    assert (draws("random_normal", seed=2).of(key, 8, F32) != first).all()
    assert (draws("random_normal", table="u").of(key, 8, F32) != first).all()
    assert (draws("random_normal").of(key + 1, 8, F32) != first).all()


def test_a_version_before_drew_the_same() -> None:
    # Checkpoints of rows that were never trained hold none of them: this must not change.
    drawn = draws("random_normal", seed=7, table="clicks").of(np.array([42]), 3, F64)
    np.testing.assert_array_equal(drawn, [STATED])


STATED = [-0.06327047937568674, 0.04107265978700614, 0.02529512902012533]


# 400,000 draws: a mean lies within 5 deviations of itself, 0.008; a variance within 0.012.
@pytest.mark.parametrize(
    ("name", "arguments", "mean", "stddev"),
    [("random_uniform", {"minval": -1.0, "maxval": 3.0}, 1.0, 4 / 12**0.5),
     ("random_normal", {"mean": 2.0, "stddev": 3.0}, 2.0, 3.0),
     ("truncated_normal", {"mean": -1.0, "stddev": 2.0}, -1.0, 2 * 0.87962566)],
)  # fmt: skip
def test_draws_have_the_distribution(
    name: str, arguments: dict[str, float], mean: float, stddev: float
) -> None:
    drawn = draws_of("t", Initializer(name, 1, arguments)).of(np.arange(100_000), 4, F64)
    z = (drawn - mean) / stddev
    assert abs(z.mean()) < 0.008
    assert abs(z.var() - 1) < 0.012
    columns = np.corrcoef(drawn.T) - np.eye(4)
    assert np.abs(columns).max() < 0.02
    assert abs(np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1]) < 0.02


def test_the_tails_are_those_of_the_normal_distribution() -> None:
    drawn = draws("random_normal", stddev=1.0).of(np.arange(250_000), 4, F64).reshape(-1)
    for deviations, expected in ((1, 0.158655), (2, 0.022750), (3, 0.0013499)):
        for part in ((drawn > deviations).mean(), (drawn < -deviations).mean()):
            assert abs(part - expected) < 5 * (expected / drawn.size) ** 0.5
    cut = draws("truncated_normal", stddev=1.0).of(np.arange(100_000), 4, F64)
    assert np.abs(cut).max() <= 2.000001


@pytest.mark.parametrize("name", ["glorot_uniform", "he_normal"])
def test_an_initializer_that_needs_the_number_of_rows_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"table 't': the initializer {name} depends on"):
        draws(name)
