"""The program's tree and the names of its arrays: neither loses what the other has."""

from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.late import Late
from ropewalk.annexes.jax_bridge.optax_worker import WorkerOptimizer
from ropewalk.annexes.jax_bridge.tree import ParameterTree, named_leaves

jax, jnp, optax = Late("jax"), Late("jax.numpy"), Late("optax")

# By name it is a, b/0, b/1, z; as a tree z/a comes last, and has a number that is not shared.
PARAMS = {
    "b": [np.full(2, 1, np.float32), np.full(3, 2, np.float32)],
    "a": np.full(1, 3, np.float32),
    "z": {"count": np.arange(2), "a": np.full(4, 4, np.float32)},
}


def test_optax_is_given_the_programs_tree_without_what_is_not_shared() -> None:
    tree = ParameterTree(PARAMS, prefix="m/")
    assert list(tree.first) == ["m/a", "m/b/0", "m/b/1", "m/z/a"]
    shared = tree.shared(tree.first)
    assert jax.tree.structure(shared) == jax.tree.structure(
        {**PARAMS, "z": {"count": None, "a": 0}}
    )
    for name, array in tree.by_name(shared).items():
        np.testing.assert_array_equal(array, tree.first[name])


def test_a_mask_and_a_function_of_paths_reach_their_parameters() -> None:
    def label(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, _: "sgd" if path[0].key == "b" else "frozen", params
        )

    optimizer = optax.chain(
        optax.masked(optax.scale(2), {"b": [True, False], "a": True, "z": True}),
        optax.multi_transform({"sgd": optax.scale(-1.0), "frozen": optax.set_to_zero()}, label),
    )
    tree = ParameterTree(PARAMS)
    worker = WorkerOptimizer(optimizer, tree, rw.distribute.get_strategy(), name="")
    worker.begin(tree.first)
    ones = {name: np.ones_like(value) for name, value in tree.first.items()}
    updates, _ = worker.update(ones, tree.first, {})
    assert {name: float(update[0]) for name, update in updates.items()} == {
        "a": 0,
        "b/0": -2,
        "b/1": -1,
        "z/a": 0,
    }


def test_two_paths_of_one_name_are_two_arrays() -> None:
    params = {"a/b": np.zeros(1, np.float32), "a": {"b": np.ones(1, np.float32)}}
    assert list(ParameterTree(params).first) == ["['a']['b']", "['a/b']"]
    assert [name for name, _ in named_leaves({"a": 1, "b": 2})] == ["a", "b"]


def test_gradients_are_found_by_name_in_a_tree_that_lacks_some() -> None:
    tree = ParameterTree(PARAMS)
    found = tree.named_gradients({"b": [None, jnp.ones(3)], "a": None})
    assert list(found) == ["b/1"]
    with pytest.raises(ValueError, match="'c' that params has not"):
        tree.named_gradients({"c": jnp.ones(3)})
