"""Values that differ between replicas: made, taken apart, and never mistaken for arrays."""

from collections import namedtuple

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.distribute import (
    DistributedValues,
    DistributedVariable,
    Mirrored,
    MirroredStrategy,
    PerReplica,
    Strategy,
)
from ropewalk.distribute.base.values import (
    container_of,
    flatten,
    on_every_replica,
    regroup,
    select_component,
    select_replica,
)

Pair = namedtuple("Pair", ["first", "second"])


def two_replicas() -> Strategy:
    rw.config.set_logical_cpu_devices(2)
    return MirroredStrategy()


def two_copies() -> DistributedVariable:
    with two_replicas().scope():
        variable = rw.Variable([1.0, 2.0], name="v")
    assert isinstance(variable, DistributedVariable)
    return variable


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


def test_a_mirrored_value_is_the_array_all_have() -> None:
    value = Mirrored([np.array([1.5, 2.5])] * 2)
    np.testing.assert_array_equal(value, [1.5, 2.5])
    assert np.asarray(value, np.float32).dtype == np.float32
    assert np.array(value, copy=True) is not value.values[0]
    assert np.asarray(value) is value.values[0], "not copied"


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


def test_what_is_one_object_or_of_one_replica_can_be_wrapped_as_well() -> None:
    assert regroup([5, 5], always_wrap=True).values == (5, 5)
    assert regroup([{"a": 5}], always_wrap=True)["a"].values == (5,)


def test_results_that_are_the_same_everywhere_become_mirrored() -> None:
    grouped = regroup([[1.5], [2.5]], mirrored=True)
    assert isinstance(grouped[0], Mirrored)


def test_components_become_their_variable_and_others_do_not() -> None:
    variable = two_copies()
    first, second = variable.values
    assert regroup([{"v": first}, {"v": second}])["v"] is variable
    assert regroup([variable, variable]) is variable
    mixed = regroup([first, np.ones(2)])
    assert isinstance(mixed, PerReplica)
    assert container_of(first) is variable
    assert container_of(variable) is None
    assert container_of(np.ones(2)) is None
    alone = rw.Variable([1.0], name="alone")
    assert container_of(alone) is None


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


@pytest.mark.parametrize(
    "tree",
    [(), {}, None, 0, np.zeros(3), np.zeros(0), np.ones((2, 2))],
    ids=["tuple", "dict", "none", "zero", "zeros", "empty", "ones"],
)
def test_what_is_not_distributed_goes_to_every_replica_as_it_is(tree: object) -> None:
    """Its truth is not asked, which an array has not."""
    selected = select_replica(1, tree)
    assert selected is tree or selected == tree


def test_a_variable_goes_to_every_replica_whole_and_to_an_update_by_component() -> None:
    variable = two_copies()
    assert select_replica(1, (variable,)) == (variable,)
    assert select_component(1, {"v": variable, "x": PerReplica([1, 2]), "y": 3}) == {
        "v": variable.values[1],
        "x": 2,
        "y": 3,
    }


def test_what_is_not_distributed_every_replica_has() -> None:
    value = PerReplica([1, 2])
    assert on_every_replica(value, 2) is value
    assert on_every_replica("x", 3).values == ("x", "x", "x")


def test_a_flattened_structure_is_built_again_out_of_others() -> None:
    found, rebuild = flatten({"a": [1, None], "b": Pair(2, ())})
    assert found == [1, None, 2]
    assert rebuild([4, 5, 6]) == {"a": [4, 5], "b": Pair(6, ())}
