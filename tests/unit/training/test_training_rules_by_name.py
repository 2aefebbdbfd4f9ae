"""Which optimizer applies which gradients, and in which order."""

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.core.errors import ConfigurationError
from ropewalk.training.rules_by_name import RulesByName

NAMES = ("a", "b", "c")
GRADIENT = np.ones(2, np.float32)


def make_variables() -> dict[str, rw.Variable]:
    return {name: rw.Variable(np.zeros(2, np.float32), name=name) for name in NAMES}


def test_each_optimizer_gets_its_pairs_in_the_order_of_the_store() -> None:
    variables, one, other = make_variables(), rw.optimizers.SGD(0.1), rw.optimizers.Adam(0.1)
    rules = RulesByName(variables, {"a": one, "b": other, "c": one})
    found = rules.updates(dict.fromkeys(reversed(NAMES), GRADIENT), 0.5)
    assert [optimizer for optimizer, _ in found] == [one, other]
    applied = [[variable for _, variable in pairs] for _, pairs in found]
    assert applied == [[variables["a"], variables["c"]], [variables["b"]]]
    assert found[0][1][0][0].tolist() == [0.5, 0.5]


def test_what_has_no_gradient_needs_no_optimizer_and_anything_else_does() -> None:
    rules = RulesByName(make_variables(), {"a": rw.optimizers.SGD(0.1)})
    [(_, pairs)] = rules.updates({"b": None, "a": GRADIENT}, None)
    assert [gradient is GRADIENT for gradient, _ in pairs] == [True]
    with pytest.raises(ConfigurationError, match="'b' has no optimizer in this store"):
        rules.updates({"b": GRADIENT}, None)
