"""What every connection with a ps promises: definitions, and the end."""

from collections.abc import Callable

import numpy as np
import pytest

from helpers.ps_peers import (
    ADD,
    APPLY,
    ASSIGN,
    F32,
    PS,
    Ps,
    put,
    vector,
)
from ropewalk.core.errors import (
    DefinitionMismatchError,
    PeerLostError,
)
from ropewalk.core.rules.built_in.adam import Adam
from ropewalk.core.rules.built_in.sgd import SGD
from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition, cut
from ropewalk.core.rules.initializers import Initializer


def test_a_transport_says_whom_it_reaches_and_how(ps: Ps) -> None:
    transport = ps.worker().peer
    assert transport.task == PS
    assert transport.description.split()[0] == ps.kind


def test_defining_creates_and_a_value_makes_it_initialized(ps: Ps) -> None:
    worker, w = ps.worker(), vector()
    ones = VariableDefinition("ones", (2,), F32, Initializer("ones"))
    held = worker.define(w, ones)
    assert [item.initialized for item in held] == [False, True]
    assert not any(item.restored for item in held)
    assert held[0].shard == ShardDefinition(w)
    worker.push(put(w, ASSIGN, [1, 2, 3]))
    assert [item.initialized for item in worker.define(w, ones)] == [True, True]
    np.testing.assert_array_equal(worker.value(ones), 1)


def test_defining_again_is_a_no_op_for_anybody(ps: Ps) -> None:
    first, second, w = ps.worker(0), ps.worker(1), vector()
    first.define(w)
    first.push(put(w, ASSIGN, [1, 2, 3]))
    for worker in (first, second):
        [held] = worker.define(w)
        assert held.initialized
    np.testing.assert_array_equal(second.value(w), [1, 2, 3])
    assert ps.store.counters().shards == 1


def test_looking_up_finds_whatever_parts_are_held_and_leaves_out_the_rest(ps: Ps) -> None:
    first, second = ps.worker(0), ps.worker(1)
    table = vector("table", 5, 2)
    parts = cut(table, 3)[1:]
    first.peer.define(parts, create=True)
    held = second.define(table, vector("nowhere"), create=False)
    assert [item.shard for item in held] == parts
    assert ps.store.counters().shards == 2


def test_held_bytes_are_those_of_the_last_definition(local: Ps) -> None:
    worker = local.worker()
    worker.define(vector("a", 10), vector("b", 5, dtype=np.dtype(np.float64)))
    assert worker.peer.held_bytes() == 80


@pytest.mark.parametrize("create", [True, False], ids=["create", "look-up"])
def test_a_different_definition_is_an_error_naming_both_tasks(ps: Ps, create: bool) -> None:
    first, second = ps.worker(0), ps.worker(1)
    first.define(vector())
    others = {"float32[4]": vector("w", 4), "float64": vector(dtype=np.dtype(np.float64))}
    for shown, other in others.items():
        with pytest.raises(DefinitionMismatchError) as caught:
            second.define(other, create=create)
        for part in ("/job:worker/task:0", "/job:worker/task:1", "'w'", "float32[3]", shown):
            assert part in caught.value.message
    [held] = second.define(vector())
    assert held.shard.variable == vector()


def test_thousands_of_definitions_go_in_one_call(ps: Ps) -> None:
    worker = ps.worker()
    variables = [vector(f"v{i}", 1) for i in range(2500)]
    assert len(worker.define(*variables)) == 2500
    assert ps.store.counters().variables == 2500
    worker.peer.bind([item.name for item in variables], SGD())


def test_binding_is_idempotent_and_another_rule_names_both_tasks(ps: Ps) -> None:
    first, second, w = ps.worker(0), ps.worker(1), vector()
    first.define(w)
    for worker in (first, first, second):
        worker.peer.bind(["w"], SGD(learning_rate=0.5))
    for other in (Adam(), SGD(learning_rate=0.25)):
        with pytest.raises(DefinitionMismatchError) as caught:
            second.peer.bind(["w"], other)
        for part in ("/job:worker/task:0", "/job:worker/task:1", "'w'", repr(other), "SGD("):
            assert part in caught.value.message
    with pytest.raises(DefinitionMismatchError, match="a variable keeps its first optimizer"):
        first.peer.bind(["w"], Adam())
    first.push(put(w, ASSIGN, 0))
    first.push(put(w, APPLY, [2, 2, 2]))
    np.testing.assert_array_equal(first.value(w), -1)


# -- the end -----------------------------------------------------------------------------------


def test_after_abort_every_call_raises_its_error(ps: Ps) -> None:
    worker, w = ps.worker(), vector()
    worker.create(w)
    error = PeerLostError("the job failed")
    worker.peer.abort(error)
    calls: dict[str, Callable[[], object]] = {
        "step": lambda: worker.push(put(w, ADD, 1)),
        "define": lambda: worker.define(w),
        "bind": lambda: worker.peer.bind(["w"], SGD()),
        "connect": lambda: worker.peer.connect(1.0),
    }
    for name, call in calls.items():
        with pytest.raises(PeerLostError) as caught:
            call()
        assert caught.value is error, name
    assert ps.worker(1).value(w).sum() == 0


def test_an_abort_between_send_and_receive_is_heard(ps: Ps) -> None:
    worker, w = ps.worker(), vector()
    worker.create(w)
    error = PeerLostError("the job failed")
    exchange = worker.peer.step(worker.request([put(w, ADD, 1)]))
    next(exchange)
    next(exchange)
    worker.peer.abort(error)
    with pytest.raises(PeerLostError) as caught:
        next(exchange)
    assert caught.value is error


def test_closing_twice_is_fine(ps: Ps) -> None:
    worker = ps.worker()
    worker.peer.close()
    worker.peer.close()
