"""Values that differ between replicas: made, taken apart, and never mistaken for arrays."""

from collections import namedtuple
from collections.abc import Iterator

import numpy as np
import pytest

import windlass as wl
from windlass.distribute import DistributedValues, Mirrored, PerReplica, Strategy
from windlass.distribute.values import leaves, map_structure, regroup, select_replica

Pair = namedtuple("Pair", ["first", "second"])


@pytest.fixture(autouse=True)
def plain_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No cluster, no GPU, one CPU device."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setattr("windlass.distribute.devices.count_gpus", lambda: 0)
    yield
    wl.config.set_logical_cpu_devices(1)


def two_replicas() -> Strategy:
    wl.config.set_logical_cpu_devices(2)
    return wl.distribute.ParameterServerStrategy()


@pytest.mark.parametrize(
    "use", [np.asarray, np.sum, lambda v: np.ones(2) + v], ids=["asarray", "sum", "operator"]
)
def test_a_per_replica_value_is_no_array_and_says_what_to_do(use: object) -> None:
    assert callable(use)
    with pytest.raises(ValueError, match=r"PerReplica of 2 values is no array.*reduce"):
        use(PerReplica([np.ones(2), np.ones(2)]))


def test_a_per_replica_value_has_no_operators_and_is_true_as_any_object() -> None:
    value = PerReplica([0, 0])
    with pytest.raises(TypeError):
        value + 1  # type: ignore[operator]
    assert bool(value)


def test_distributed_values_show_each_replicas_value() -> None:
    assert repr(PerReplica([1, "x"])) == "PerReplica:{\n  0: 1,\n  1: 'x'\n}"
    assert Mirrored([3, 3]).values == (3, 3)
    assert isinstance(Mirrored([3]), DistributedValues)


def test_one_replicas_result_stays_bare() -> None:
    result = {"a": [1, None]}
    assert regroup([result]) is result


def test_the_very_same_object_from_all_stays_bare_and_others_become_per_replica() -> None:
    shared = np.ones(2)
    grouped = regroup([(shared, None, 1.5), (shared, None, 2.5)])
    assert grouped[0] is shared
    assert grouped[1] is None
    assert grouped[2].values == (1.5, 2.5)


def test_equal_but_distinct_arrays_become_per_replica() -> None:
    grouped = regroup([np.zeros(2), np.zeros(2)])
    assert isinstance(grouped, PerReplica)


def test_results_regroup_leaf_by_leaf_through_nested_structures() -> None:
    def result(i: int) -> object:
        return {"loss": float(i), "more": [Pair(i, None), (str(i),)]}

    grouped = regroup([result(0), result(1), result(2)])
    assert grouped["loss"].values == (0.0, 1.0, 2.0)
    assert isinstance(grouped["more"][0], Pair)
    assert grouped["more"][0].first.values == (0, 1, 2)
    assert grouped["more"][0].second is None
    assert grouped["more"][1][0].values == ("0", "1", "2")


def test_none_on_one_replica_only_is_a_value_of_its_own() -> None:
    assert regroup([None, 1]).values == (None, 1)


@pytest.mark.parametrize(
    "results", [[(1,), (1, 2)], [{"a": 1}, {"b": 1}], [[1], 1]], ids=["length", "keys", "depth"]
)
def test_replicas_with_different_structures_are_an_error(results: list[object]) -> None:
    with pytest.raises(ValueError, match=r"(?i)expected|mismatch|structure"):
        regroup(results)


def test_selecting_a_replica_leaves_what_is_not_distributed() -> None:
    tree = {"x": PerReplica([1, 2]), "y": (None, [3, Mirrored([4, 4])])}
    assert select_replica(0, tree) == {"x": 1, "y": (None, [3, 4])}
    assert select_replica(1, tree) == {"x": 2, "y": (None, [3, 4])}


def test_none_is_a_leaf_everywhere() -> None:
    assert leaves((None, [1, None])) == [None, 1, None]
    assert map_structure(lambda leaf: leaf is None, {"a": None, "b": 0}) == {"a": True, "b": False}


def test_run_gives_each_replica_its_part_of_nested_arguments() -> None:
    strategy = two_replicas()

    def step(batch: dict[str, float], scale: float, *, flag: None) -> tuple[float, float, None]:
        return batch["x"], scale, flag

    batch = {"x": PerReplica([1.0, 2.0])}
    x, scale, flag = strategy.run(step, args=(batch, 10.0), kwargs={"flag": None})
    assert x.values == (1.0, 2.0)
    assert scale == 10.0
    assert flag is None


def test_local_results_are_one_per_replica() -> None:
    strategy = two_replicas()
    results = strategy.experimental_local_results
    assert results(PerReplica([1, 2])) == (1, 2)
    assert results(5) == (5,)
    assert results(None) == (None,)
    assert results({"a": 1}) == ({"a": 1},)
    nested = {"a": PerReplica([1, 2]), "b": [None, 7]}
    assert results(nested) == ({"a": 1, "b": [None, 7]}, {"a": 2, "b": [None, 7]})


def test_local_results_of_one_replica_are_a_1_tuple() -> None:
    assert wl.distribute.get_strategy().experimental_local_results((1, 2)) == ((1, 2),)
