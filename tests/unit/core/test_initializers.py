"""Initial values: of the seed and the place in the whole variable, never of the cut."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.rows import row
from ropewalk.core.arrays.dtypes import BFLOAT16, DTYPES, DType
from ropewalk.core.rules.definitions import VariableDefinition, cut
from ropewalk.core.rules.initializers import INITIALIZERS, Initializer

FLOAT32 = np.dtype(np.float32)
RANDOM = [name for name in INITIALIZERS if name not in ("zeros", "ones", "constant")]
# Rows that share a generator's block, rows that fill several, and rows larger than one.
SHAPES = [(), (1,), (10,), (70_000,), (9, 30_000), (3, 70_000), (5, 2, 3), (4, 0), (0, 3)]


@settings(deadline=None, max_examples=25)
@given(
    name=st.sampled_from(sorted(INITIALIZERS)),
    shape=st.sampled_from(SHAPES),
    seed=st.integers(0, 2**64 - 1),
    parts=st.integers(1, 7),
)
def test_values_do_not_depend_on_how_the_variable_is_cut(
    name: str, shape: tuple[int, ...], seed: int, parts: int
) -> None:
    initializer = Initializer(name, seed)
    shards = cut(VariableDefinition("v", shape, FLOAT32), parts)
    whole = initializer.rows(shape, FLOAT32, 0, shape[0] if shape else 1)
    assert whole.shape == shape
    for shard in shards:
        first, last = shard.row_offset, shard.row_offset + shard.rows
        piece = initializer.rows(shape, FLOAT32, first, last)
        assert piece.shape == shard.shape
        np.testing.assert_array_equal(piece, whole[first:last] if shape else whole)


@settings(deadline=None, max_examples=15)
@given(st.data())
def test_any_rows_are_the_same_rows_of_the_whole(data: st.DataObject) -> None:
    shape = (40, 5_000)  # 13 rows per block
    start = data.draw(st.integers(0, 40))
    stop = data.draw(st.integers(start, 40))
    whole = Initializer("truncated_normal", 7).rows(shape, FLOAT32, 0, 40)
    piece = Initializer("truncated_normal", 7).rows(shape, FLOAT32, start, stop)
    np.testing.assert_array_equal(piece, whole[start:stop])


@pytest.mark.parametrize("name", RANDOM)
def test_another_seed_gives_other_values(name: str) -> None:
    seeds = (0, 1, 2, 2**63, 2**63 + 1, 2**64 - 1)
    values = {seed: Initializer(name, seed).rows((4, 4), FLOAT32, 0, 4).tobytes() for seed in seeds}
    assert len(set(values.values())) == len(seeds)


@pytest.mark.parametrize("name", RANDOM)
def test_no_two_blocks_repeat_each_other(name: str) -> None:
    values = Initializer(name).rows((4, 70_000), FLOAT32, 0, 4)
    assert len({row.tobytes() for row in values}) == 4


@pytest.mark.parametrize("dtype", [np.dtype("float16"), BFLOAT16, np.dtype("float64")], ids=str)
def test_values_are_rounded_to_the_variables_dtype(dtype: DType) -> None:
    exact = Initializer("random_normal", 3).rows((50,), np.dtype(np.float64), 0, 50)
    found = Initializer("random_normal", 3).rows((50,), dtype, 0, 50)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, exact.astype(dtype))


@pytest.mark.parametrize(
    ("initializer", "value"),
    [
        pytest.param(Initializer("zeros"), 0, id="zeros"),
        pytest.param(Initializer("ones"), 1, id="ones"),
        pytest.param(Initializer("constant", 0, {"value": 1.0}), 1, id="constant"),
        pytest.param(Initializer("constant"), 0, id="constant, by default"),
    ],
)
def test_constants_are_what_they_say(initializer: Initializer, value: int) -> None:
    for dtype in DTYPES:
        with row(dtype):
            rows = initializer.rows((5, 2), dtype, 1, 4)
            assert rows.dtype == dtype
            np.testing.assert_array_equal(rows, np.full((3, 2), value, dtype))


@pytest.mark.parametrize(
    ("initializer", "mean", "deviation"),
    [
        pytest.param(Initializer("random_normal"), 0, 0.05, id="normal"),
        pytest.param(
            Initializer("random_normal", 0, {"mean": 2.0, "stddev": 3.0}), 2, 3, id="normal, moved"
        ),
        pytest.param(Initializer("random_uniform"), 0, 0.1 / np.sqrt(12), id="uniform"),
        pytest.param(
            Initializer("random_uniform", 0, {"minval": 1.0, "maxval": 4.0}),
            2.5,
            3 / np.sqrt(12),
            id="uniform, moved",
        ),
        # A normal cut at two deviations keeps 0.8796 of its own; the argument is the uncut one's.
        pytest.param(
            Initializer("truncated_normal"), 0, 0.05 * 0.87962566, id="truncated normal, as Keras"
        ),
        pytest.param(Initializer("glorot_uniform"), 0, np.sqrt(2 / 700), id="Glorot uniform"),
        pytest.param(Initializer("glorot_normal"), 0, np.sqrt(2 / 700), id="Glorot normal"),
        pytest.param(Initializer("he_uniform"), 0, np.sqrt(2 / 400), id="He uniform"),
        pytest.param(Initializer("he_normal"), 0, np.sqrt(2 / 400), id="He normal"),
    ],
)
def test_mean_and_deviation_are_those_of_the_formula(
    initializer: Initializer, mean: float, deviation: float
) -> None:
    # 120 000 samples: the mean is off by deviation/346 (1 sigma), the deviation by 0.2 %;
    # five sigmas of each are allowed. The seed is fixed, so this passes always or never.
    values = initializer.rows((400, 300), np.dtype(np.float64), 0, 400)
    assert values.mean() == pytest.approx(mean, abs=5 * deviation / 346)
    assert values.std() == pytest.approx(deviation, rel=0.01)


@pytest.mark.parametrize(
    ("shape", "fan_in", "fan_out"),
    [
        pytest.param((), 1, 1, id="scalar"),
        pytest.param((900,), 900, 900, id="vector"),
        pytest.param((900, 30), 900, 30, id="matrix"),
        pytest.param((3, 3, 16, 32), 9 * 16, 9 * 32, id="kernel of a convolution"),
    ],
)
def test_fans_are_those_of_keras(shape: tuple[int, ...], fan_in: int, fan_out: int) -> None:
    rows = shape[0] if shape else 1
    glorot = np.abs(Initializer("glorot_uniform").rows(shape, FLOAT32, 0, rows)).max()
    he = np.abs(Initializer("he_uniform").rows(shape, FLOAT32, 0, rows)).max()
    # The largest of 900 uniform values is within 2 % of the limit; a scalar is one value.
    near = 0.98 if shape else 0.0
    assert near < glorot / np.sqrt(6 / (fan_in + fan_out)) <= 1 + 1e-6
    assert near < he / np.sqrt(6 / fan_in) <= 1 + 1e-6


def test_a_truncated_normal_has_nothing_beyond_two_deviations() -> None:
    initializer = Initializer("truncated_normal", 1, {"mean": 5.0, "stddev": 2.0})
    values = initializer.rows((300, 300), np.dtype(np.float64), 0, 300)
    assert 1.0 <= values.min() < 1.01
    assert 8.99 < values.max() <= 9.0


@pytest.mark.parametrize(
    ("name", "seed", "arguments", "said"),
    [
        pytest.param("orthogonal", 0, {}, "no initializer 'orthogonal'; those are", id="name"),
        pytest.param(
            "zeros", 0, {"value": 1.0}, "zeros has no argument value; it has none", id="0"
        ),
        pytest.param("constant", 0, {"v": 1.0}, "no argument v; it has value", id="argument"),
        pytest.param("ones", -1, {}, r"seed must be in \[0, 2\*\*64\), got -1", id="negative seed"),
        pytest.param("ones", 2**64, {}, "seed must be in", id="seed too large"),
    ],
)
def test_what_is_no_initializer_is_refused(
    name: str, seed: int, arguments: dict[str, float], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        Initializer(name, seed, arguments)


def test_arguments_are_keyword_arguments_too() -> None:
    by_name = Initializer("random_uniform", minval=1, maxval=4.0)
    assert by_name == Initializer("random_uniform", 0, {"minval": 1, "maxval": 4.0})
    assert by_name.rows((1000,), FLOAT32, 0, 1000).min() >= 1
    assert Initializer("random_normal", 3, {"mean": 1.0}, stddev=2.0).arguments == {
        "mean": 1.0, "stddev": 2.0
    }  # fmt: skip


def test_a_keyword_that_is_no_argument_is_refused() -> None:
    with pytest.raises(ValueError, match="no argument min_val; it has minval, maxval"):
        Initializer("random_uniform", min_val=1.0)
    with pytest.raises(ValueError, match="random_normal was given mean twice"):
        Initializer("random_normal", 0, {"mean": 1.0}, mean=2.0)
    with pytest.raises(TypeError, match="stddev of random_normal must be a number, got '1'"):
        Initializer("random_normal", stddev="1")  # type: ignore[arg-type]
