"""Tables of several features: one exchange for all, trained as a dictionary of rows would be."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.local_strategies import ALL
from ropewalk.annexes.embedding.features.config import FeatureConfig, RowwiseAdagrad, TableConfig
from ropewalk.annexes.embedding.features.inputs import Ragged
from ropewalk.annexes.embedding.features.tables import Embeddings, WaitingGradients
from ropewalk.annexes.embedding.keyed.admission import draws_of
from ropewalk.core.errors import ConfigurationError, ShapeMismatchError
from ropewalk.distribute import ParameterServerStrategy

emb = rw.embedding
SGD = rw.optimizers.SGD
BIG = np.array([2**63 - 1, -(2**63), 0, -1, 2**63 - 1], np.int64)


def on_servers(*features: FeatureConfig, **options: Any) -> tuple[Any, Embeddings]:
    strategy = ParameterServerStrategy()
    with strategy.scope():
        embeddings = Embeddings(features, **{"optimizer": SGD(1.0)} | options)
    return strategy, embeddings


def counters(strategy: Any) -> Any:
    in_process = strategy.extended.runtime.session.peers[0]
    return in_process.store.counters()


def ones(rows: Any) -> dict[str, Any]:
    return {name: np.ones_like(value) for name, value in rows.items()}


def test_a_growing_table_trains_as_a_dictionary_of_rows() -> None:
    table = TableConfig("t", 4, combiner="sum")
    strategy, embeddings = on_servers(FeatureConfig("f", table))
    first = draws_of("t", table.first_values)
    rows: dict[int, Any] = {}
    rng = np.random.default_rng(0)

    def row(key: int) -> Any:
        return rows.get(key, first.of(np.array([key]), 4, np.dtype(np.float32))[0])

    def step(ids: Ragged, gradient: Any) -> Any:
        found = embeddings.lookup({"f": ids})
        found.apply_gradients({"f": gradient})
        return found["f"]

    for _ in range(4):
        lengths = rng.integers(0, 4, 6)
        keys = rng.choice(BIG, int(lengths.sum()))
        gradient = rng.standard_normal((6, 4)).astype(np.float32)
        parts = np.split(keys, np.cumsum(lengths)[:-1])
        wanted = [sum((row(key) for key in part.tolist()), np.zeros(4)) for part in parts]
        found = strategy.run(step, args=(Ragged(keys, lengths), gradient))
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        for part, each in zip(parts, gradient, strict=True):
            for key in part.tolist():
                rows[key] = row(key) - each
    assert counters(strategy).tables[0].rows == len(rows)


def test_all_features_travel_in_one_pull_and_one_push_and_equal_keys_once() -> None:
    users, items = TableConfig("users", 4), TableConfig("items", 8, vocabulary_size=1000)
    strategy, embeddings = on_servers(
        FeatureConfig("u", users), FeatureConfig("friend", users), FeatureConfig("i", items)
    )
    with strategy.scope():
        dense = rw.Variable(np.zeros(3, np.float32), name="dense")
    optimizer = SGD(1.0)

    def step() -> None:
        rows = embeddings.lookup({"u": BIG, "friend": BIG[::-1], "i": [1, 1, 2, 2, 1]})
        rows.apply_gradients(ones(rows))
        optimizer.apply_gradients([(np.ones(3, np.float32), dense)])

    strategy.run(step)
    before = counters(strategy)
    strategy.run(step)
    after = counters(strategy)
    assert after.pushes - before.pushes == 1
    # Four keys and two rows, for the lookup and for the push.
    assert after.pulls - before.pulls == 1
    assert after.bytes_out - before.bytes_out == 4 * 4 * 4 + 2 * 8 * 4
    assert after.bytes_in - before.bytes_in == 2 * 6 * 8 + 4 * 4 * 4 + 2 * 8 * 4 + 3 * 4
    np.testing.assert_array_equal(dense.numpy(), [-2, -2, -2])
    assert strategy.global_step == 2


def test_features_of_one_table_share_its_rows() -> None:
    table = TableConfig("t", 2)
    strategy, embeddings = on_servers(FeatureConfig("a", table), FeatureConfig("b", table))
    before = embeddings.lookup({"a": [7]})["a"]
    rows = embeddings.lookup({"a": [7, 8], "b": [7]})
    rows.apply_gradients(ones(rows))
    np.testing.assert_allclose(embeddings.lookup({"b": [7]})["b"], before - 2, rtol=1e-6)
    assert strategy.global_step == 1


def test_features_without_a_gradient_train_nothing() -> None:
    table = TableConfig("t", 2)
    strategy, embeddings = on_servers(FeatureConfig("a", table), FeatureConfig("b", table))
    rows = embeddings.lookup({"a": [1, 2], "b": [3]})
    rows.apply_gradients({"a": np.ones((2, 2), np.float32), "b": None})
    assert counters(strategy).tables[0].rows == 2
    rows.apply_gradients({})
    assert counters(strategy).pushes == 1


def test_a_step_that_fails_or_has_nan_makes_no_row() -> None:
    strategy, embeddings = on_servers(FeatureConfig("a", TableConfig("t", 2)))

    def step(value: float, *, fails: bool) -> None:
        rows = embeddings.lookup({"a": [1]})
        rows.apply_gradients({"a": np.zeros((1, 2), np.float32)})
        rows.apply_gradients({"a": np.full((1, 2), value, np.float32)})
        if fails:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        strategy.run(step, args=(1.0,), kwargs={"fails": True})
    strategy.run(step, args=(float("nan"),), kwargs={"fails": False})
    assert counters(strategy).tables[0].rows == 0
    strategy.run(step, args=(1.0,), kwargs={"fails": False})
    assert counters(strategy).tables[0].rows == 1


def test_replicas_are_summed_and_applied_once() -> None:
    rw.config.set_logical_cpu_devices(2)
    rule = rw.optimizers.Adagrad(1.0, initial_accumulator_value=0.0, epsilon=0.0)
    strategy, embeddings = on_servers(FeatureConfig("a", TableConfig("t", 2)), optimizer=rule)
    before = embeddings.lookup({"a": [5]})["a"]

    def step() -> None:
        rows = embeddings.lookup({"a": [5]})
        rows.apply_gradients(ones(rows))

    strategy.run(step)
    # One update by a gradient of 2, and not two by 1, which would be 1 + 1 / sqrt(2).
    np.testing.assert_allclose(embeddings.lookup({"a": [5]})["a"], before - 1, rtol=1e-5)
    assert counters(strategy).pushes == 1


@pytest.fixture(params=ALL.values(), ids=list(ALL))
def strategy(request: pytest.FixtureRequest, plain_process: None) -> rw.distribute.Strategy:
    """Every strategy of one machine in turn."""
    rw.config.set_logical_cpu_devices(4)
    made: rw.distribute.Strategy = request.param()
    return made


def test_with_a_vocabulary_size_tables_are_variables_of_every_strategy(
    strategy: rw.distribute.Strategy,
) -> None:
    replicas = strategy.num_replicas_in_sync
    first = rw.Initializer("ones")
    table = TableConfig("t", 2, vocabulary_size=10, initializer=first, combiner="sum")
    with strategy.scope():
        embeddings = Embeddings([FeatureConfig("a", table)], SGD(0.5))

    def step() -> Any:
        rows = embeddings.lookup({"a": [[1, 1], [1, 9]]})
        rows.apply_gradients(ones(rows))
        return rows["a"]

    strategy.run(step)
    [variable] = embeddings.variables.values()
    wanted = np.ones((10, 2), np.float32)
    wanted[1] -= 0.5 * 3 * replicas
    wanted[9] -= 0.5 * replicas
    np.testing.assert_allclose(variable.numpy(), wanted)
    with pytest.raises(ShapeMismatchError, match="10"):
        embeddings.lookup({"a": [10]})


def test_a_programs_own_checkpoint_has_the_variables_and_refuses_what_grows(tmp_path: Path) -> None:
    fixed = FeatureConfig("a", TableConfig("fixed", 2, vocabulary_size=3))
    _, embeddings = on_servers(fixed)
    path = rw.train.Checkpoint(embeddings=embeddings).save(str(tmp_path / "ckpt"))
    assert rw.train.list_variables(path) == [("embeddings/fixed", (3, 2))]
    _, embeddings = on_servers(fixed, FeatureConfig("b", TableConfig("t", 2)))
    with pytest.raises(ConfigurationError, match=r"'t'.*model_dir"):
        rw.train.Checkpoint(embeddings=embeddings).save(str(tmp_path / "other"))


def test_tables_grow_on_parameter_servers_alone(strategy: rw.distribute.Strategy) -> None:
    if isinstance(strategy, ParameterServerStrategy):
        return
    with strategy.scope(), pytest.raises(ConfigurationError, match="vocabulary_size"):
        Embeddings([FeatureConfig("a", TableConfig("t", 2))], SGD(0.5))


# -- configurations --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dim": 0}, "dim=0"),
        ({"dim": 2.5}, r"'t' has dim=2\.5; it must be an int, at least 1"),
        ({"name": 3}, "table 3 has name=3"),
        ({"max_rows": 2.5}, r"max_rows=2\.5.*an int"),
        ({"vocabulary_size": True}, "vocabulary_size=True"),
        ({"staleness_reads": 1.5}, r"staleness_reads=1\.5"),
        ({"admission": 3}, "'t' has admission=3; it must be Sightings"),
        ({"initializer": 3}, "'t' has initializer=3"),
        ({"optimizer": "adagrad"}, r"'t' has the optimizer 'adagrad'.*rw\.optimizers"),
        ({"max_bytes": 80}, "'t' has max_bytes=80; it must be at least 82: .* one row"),
        ({"max_bytes": 32 << 20, "admission": emb.Sightings(2)}, "at least 52428882: .* max_cand"),
        ({"combiner": "max"}, "mean, sqrtn, sum"),
        ({"evicts": "random"}, "least_recent"),
        ({"unknown": "one"}, '"initial" or "zeros"'),
        ({"max_rows": 5, "max_bytes": 6}, "write one of them"),
        ({"vocabulary_size": 5, "max_rows": 6}, "vocabulary_size and max_rows"),
        ({"vocabulary_size": 0}, "vocabulary_size=0"),
        ({"row_norm": -1.0}, r"'t' has row_norm=-1\.0"),
        ({"optimizer": SGD(0.1, clipnorm=1.0)}, "row_norm and table_norm"),
        ({"optimizer": SGD(lambda: 0.1)}, "schedule"),
        ({"optimizer": rw.optimizers.Lamb()}, "Lamb"),
        ({"optimizer": RowwiseAdagrad(0.1), "vocabulary_size": 5}, "'t' has a vocab.* growing"),
        ({"initializer": rw.Initializer("he_normal")}, "he_normal"),
        ({"max_bytes": 2**39}, "max_ps_bytes"),
        ({"memory_bytes": 0}, "memory_bytes=0"),
        ({"vocabulary_size": 5, "memory_bytes": 1 << 20}, "vocabulary_size and memory_bytes"),
        ({"memory_bytes": 1 << 20}, "ROPEWALK_TABLE_FOLDER"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_a_table_that_cannot_be_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"name": "t", "dim": 2}
    with pytest.raises((ConfigurationError, rw.errors.LimitExceededError), match=said):
        on_servers(FeatureConfig("a", TableConfig(**given | changes)))


def test_names_are_unique_and_every_table_has_an_optimizer() -> None:
    feature = FeatureConfig("a", TableConfig("t", 2))
    with pytest.raises(ConfigurationError, match="two features"):
        on_servers(feature, feature)
    with pytest.raises(ConfigurationError, match=r"two tables.*'t'"):
        on_servers(feature, FeatureConfig("b", TableConfig("t", 2)))
    with pytest.raises(ConfigurationError, match="no optimizer"):
        on_servers(feature, optimizer=None)
    with pytest.raises(ConfigurationError, match="'a' is no feature; write a FeatureConfig"):
        on_servers("a")  # type: ignore[arg-type]


def test_an_initializer_may_be_named() -> None:
    tables = [TableConfig("t", 2, initializer="ones"),
              TableConfig("v", 2, vocabulary_size=9, initializer="ones")]  # fmt: skip
    _, embeddings = on_servers(*(FeatureConfig(each.name, each) for each in tables))
    rows = embeddings.lookup({"t": [1], "v": [1]})
    assert rows["t"].tolist() == rows["v"].tolist() == [[1, 1]]


def test_a_budget_in_bytes_is_one_of_rows() -> None:
    table = TableConfig("t", 16, max_bytes=1_000_000, optimizer=RowwiseAdagrad(0.1))
    assert table.definition(None).shape == (1_000_000 // (16 * 4 + 4 + 24 + 50), 16)


def test_unknown_features_and_other_shapes_are_named() -> None:
    _, embeddings = on_servers(FeatureConfig("a", TableConfig("t", 2)))
    with pytest.raises(KeyError, match="no feature 'b'; those are a"):
        embeddings.lookup({"b": [1]})
    with pytest.raises(KeyError, match="'a' has weights and no ids"):
        embeddings.lookup({}, {"a": [1.0]})
    rows = embeddings.lookup({"a": [1]})
    with pytest.raises(KeyError, match="'b' was not looked up"):
        rows.apply_gradients({"b": np.zeros((1, 2))})
    with pytest.raises(ShapeMismatchError, match=r"'a'.*\(2, 2\)"):
        rows.apply_gradients({"a": np.zeros((2, 2))})
    assert len(embeddings.lookup({})) == 0


# -- gradients that wait -----------------------------------------------------------------------


def test_waiting_gradients_are_one_update_scaled() -> None:
    rule = rw.optimizers.Adagrad(1.0, initial_accumulator_value=0.0, epsilon=0.0)
    table = TableConfig("t", 2, initializer=rw.Initializer("zeros"))
    strategy, embeddings = on_servers(
        FeatureConfig("a", table), FeatureConfig("b", table), optimizer=rule
    )
    waiting = WaitingGradients("apply them")
    for ids in ([5], [5, 6]):
        rows = embeddings.lookup({"a": ids, "b": [7]})
        for name in ("a", "b"):
            waiting.add(rows, {name: np.full_like(rows[name], 3.0)})
    assert len(waiting) == 2
    strategy.run(waiting.apply, args=(-0.5,))
    assert len(waiting) == 0
    # Adagrad's first step is 1 wherever there is a gradient, however large; two would be 1.7.
    np.testing.assert_allclose(embeddings.lookup({"a": [5, 6, 7]})["a"], np.ones((3, 2)), rtol=1e-6)
    waiting.apply()
    assert counters(strategy).pushes == 1


def test_a_tiny_table_comes_whole_with_the_step_and_costs_no_lookup() -> None:
    ones_first = rw.Initializer("ones")
    tiny = TableConfig("tiny", 4, vocabulary_size=1024, initializer=ones_first)  # 16 KiB
    larger = TableConfig("larger", 4, vocabulary_size=1025, initializer=ones_first)
    strategy, embeddings = on_servers(FeatureConfig("t", tiny), FeatureConfig("l", larger))
    session = strategy.extended.runtime.session
    asked: list[list[str]] = []
    look_up = session.rows.lookup_states

    def note(wanted: dict[str, Any], states: dict[str, Any]) -> Any:
        asked.append([*wanted])
        return look_up(wanted, states)

    session.rows.lookup_states = note

    def step(ids: dict[str, Any]) -> Any:
        rows = embeddings.lookup(ids)
        rows.apply_gradients(ones(rows))
        return rows

    ids = np.array([3, 1023, 3])
    for number in range(3):
        rows = strategy.run(step, args=({"t": ids, "l": ids},))
        np.testing.assert_array_equal(rows["t"], rows["l"])
        assert rows["t"][:, 0].tolist() == [1 - 2 * number, 1 - number, 1 - 2 * number]
    assert asked == [["larger"]] * 3
    rows = strategy.run(step, args=({"t": ids},))
    assert asked == [["larger"]] * 3  # nothing to ask for
    assert embeddings.lookup({"t": ids})["t"][1, 0] == -3  # outside of steps as it is now
    assert asked[3:] == [["tiny"]]
    with pytest.raises(ShapeMismatchError, match="row 1024 of 'tiny' is out of range"):
        strategy.run(step, args=({"t": np.array([1024])},))
    with pytest.raises(ShapeMismatchError, match="row -1 of 'tiny' is out of range"):
        strategy.run(step, args=({"t": np.array([-1])},))


@pytest.mark.parametrize("wrong", ["int4", "int16", "float32", np.float64, "nothing"], ids=str)
def test_a_dtype_in_which_rows_cannot_travel_is_named(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"'t' has wire_dtype=.*; it must be \"int8\", "):
        TableConfig("t", 4, wire_dtype=wrong)


def test_tables_say_how_their_rows_travel() -> None:
    tables = [
        TableConfig("grows", 4, wire_dtype="int8"),
        TableConfig("fixed", 4, vocabulary_size=9, wire_dtype="bfloat16", dtype=np.float64),
        TableConfig("plain", 4),
    ]
    strategy, embeddings = on_servers(*(FeatureConfig(each.name, each) for each in tables))
    stated = strategy.extended.runtime.session._plans._row_dtypes
    assert {name: dtype.name for name, dtype in stated.items()} == {
        "grows": "int8", "fixed": "bfloat16",
    }  # fmt: skip
    assert embeddings.lookup({"grows": [1], "fixed": [2]})["grows"].dtype == np.float32
