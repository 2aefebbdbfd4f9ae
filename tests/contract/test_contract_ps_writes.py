"""What travels with a push is applied once and in order, whatever breaks, over every connection."""

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from helpers.ps_peers import REMOTE, Ps, faults_on, open_session, vector
from ropewalk.client.ps.step import Step, Write
from ropewalk.core.rules.built_in.sgd import SGD
from ropewalk.core.wire.steps import Operation

VARIABLES = [vector("w", 4), vector("large", 300_000)]
NAMES = [each.name for each in VARIABLES]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closed at the end, in reverse order."""
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("direction", ["send", "receive"])
@pytest.mark.parametrize("kind", REMOTE)
def test_gradients_writes_and_hyperparameters_of_a_push_survive_a_cut(
    kind: str, direction: str, stack: ExitStack
) -> None:
    servers, faults = [Ps(kind, 0), Ps(kind, 1)], faults_on(kind)
    for ps in servers:
        stack.callback(ps.close)
    session = open_session(*servers, faults=faults)
    stack.callback(session.close)
    start = {each.name: np.zeros(each.shape, np.float32) for each in VARIABLES}
    session.define(VARIABLES, start, create=True)
    session.bind(NAMES, SGD(learning_rate=100.0))
    ones = {each.name: np.ones(each.shape, np.float32) for each in VARIABLES}
    expected = 0.0
    for step, place in enumerate([None, 0, 13, 40, 200, None], 1):
        if place is not None:
            faults.stream.cut(place, direction)  # type: ignore[arg-type]
        writes = [Write(Operation.ASSIGN_ADD, {name: ones[name] * 5}) for name in NAMES]
        changes = {"learning_rate": float(step)}
        result = session.begin(
            Step(
                [Write(Operation.APPLY, ones, hyperparameters=changes), *writes], NAMES, increment=1
            )
        ).result()
        expected += 5 - step
        assert result.global_step == step
        for name in NAMES:
            np.testing.assert_array_equal(result.values[name], expected, err_msg=name)
