"""What every connection with a ps promises of a step: once, whole or not at all, and counted."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from helpers.ps_peers import (
    ADD,
    APPLY,
    ASSIGN,
    F32,
    Ps,
    Put,
    Worker,
    get,
    put,
    vector,
)
from ropewalk.client.ps.step import answered
from ropewalk.core.arrays.gather_buffer import GatherBuffer
from ropewalk.core.errors import (
    FencedError,
    LimitExceededError,
    RefusedError,
    SequenceError,
    ShapeMismatchError,
    UnknownVariableError,
)
from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition
from ropewalk.core.wire.steps import PushResult, StepRequest


def test_a_repeated_push_is_answered_and_not_applied_again(ps: Ps) -> None:
    worker, w = ps.worker(), vector()
    worker.define(w)
    worker.push(put(w, ASSIGN, 0), step_increment=1)
    request = worker.request([put(w, ADD, [1, 2, 3])], [get(w)], step_increment=1)
    for duplicate in (False, True, True):
        value = get(w).room()
        worker.exchange(request, [value])
        np.testing.assert_array_equal(value, [1, 2, 3])
        assert worker.result.duplicate is duplicate
        assert worker.result.global_step == 2
    counters = ps.store.counters()
    assert (counters.pushes, counters.duplicates) == (2, 2)


def test_a_push_that_would_leave_a_gap_is_refused_and_may_come_in_turn(ps: Ps) -> None:
    worker, w = ps.worker(), vector()
    worker.create(w)
    with pytest.raises(SequenceError, match=r"push 3 of .* came before push 2"):
        worker.push(put(w, ADD, 1), sequence=3)
    assert worker.value(w).sum() == 0
    worker.push(put(w, ADD, 1), sequence=2)
    assert worker.value(w).sum() == 3


def test_each_worker_counts_its_own_pushes(local: Ps) -> None:
    workers, w = [local.worker(i) for i in range(3)], vector()
    workers[0].create(w)
    for _ in range(4):
        for worker in workers:
            assert not worker.push(put(w, ADD, 1)).duplicate
    np.testing.assert_array_equal(workers[1].value(w), 12)


def test_a_new_generation_of_a_worker_counts_anew_and_fences_the_old_one_at_once(ps: Ps) -> None:
    old, w = ps.worker(0, generation=1), vector()
    old.create(w)
    new = ps.worker(0, generation=2)
    with pytest.raises(FencedError, match="superseded by generation 2"):
        old.push(put(w, ADD, [5, 5, 5]))
    assert not new.push(put(w, ADD, 1)).duplicate
    np.testing.assert_array_equal(new.value(w), 1)


def test_an_old_generation_cannot_open_a_session(ps: Ps) -> None:
    ps.worker(0, generation=2)
    with pytest.raises(FencedError, match="superseded by generation 2"):
        ps.worker(0, generation=1)


def test_pulls_are_not_pushes(ps: Ps) -> None:
    worker, w = ps.worker(), vector()
    worker.create(w)
    for _ in range(3):
        assert not worker.result.duplicate
        worker.pull(get(w))
    counters = ps.store.counters()
    assert (counters.pushes, counters.duplicates) == (1, 0)


# -- refusals ----------------------------------------------------------------------------------


Build = Callable[[Worker, VariableDefinition, VariableDefinition], StepRequest]


def unknown_push(worker: Worker, w: VariableDefinition, x: VariableDefinition) -> StepRequest:
    return worker.request([put(w, ADD, 1), put(vector("nowhere"), ADD, [1, 1, 1])])


def unknown_pull(worker: Worker, w: VariableDefinition, x: VariableDefinition) -> StepRequest:
    return worker.request([put(w, ADD, 1)], [get(vector("nowhere"))])


def unknown_part(worker: Worker, w: VariableDefinition, x: VariableDefinition) -> StepRequest:
    other = replace(ShardDefinition(w), part=4, num_parts=5)
    return worker.request([put(x, ADD, 1), Put(other, ADD, np.ones(3, F32))])


def without_rule(worker: Worker, w: VariableDefinition, x: VariableDefinition) -> StepRequest:
    return worker.request([put(w, ADD, 1), put(x, APPLY, [1, 1, 1])])


def too_short(worker: Worker, w: VariableDefinition, x: VariableDefinition) -> StepRequest:
    request = worker.request([put(w, ADD, 1), put(x, ADD, 1)])
    short = GatherBuffer([np.ones(2, np.float32)], F32, 8)
    return replace(request, values=[request.values[0], short])


def too_long(worker: Worker, w: VariableDefinition, x: VariableDefinition) -> StepRequest:
    request = worker.request([put(w, ADD, 1), put(x, ADD, 1)])
    return replace(request, values=[*request.values, request.values[0]])


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (unknown_push, UnknownVariableError, "a variable 'nowhere'"),
        (unknown_pull, UnknownVariableError, "a variable 'nowhere'"),
        (unknown_part, UnknownVariableError, "no part 4 of a variable 'w'"),
        (without_rule, RefusedError, "'x' has no update rule"),
        (too_short, ShapeMismatchError, "of 3[26]"),
        (too_long, ShapeMismatchError, "of 3[26]"),
    ],
    ids=["unknown-push", "unknown-pull", "unknown-part", "no-rule", "too-short", "too-long"],
)
def test_a_refused_step_applies_nothing_and_the_session_goes_on(
    ps: Ps, build: Build, error: type[RefusedError], message: str
) -> None:
    worker, w, x = ps.worker(), vector("w"), vector("x", dtype=np.dtype(np.float64))
    worker.create(w, x)
    for attempt in range(2):
        request = build(worker, w, x)
        with pytest.raises(error, match=message):
            answered(worker.peer.step(request))
        assert ps.store.counters().refused == attempt + 1
        assert worker.value(w).sum() == worker.value(x).sum() == 0
    # The number of the refused push was not used up.
    assert not worker.push(put(w, ADD, 1)).duplicate
    np.testing.assert_array_equal(worker.value(w), 1)


def test_a_step_over_the_limit_names_both_numbers_and_is_not_sent(ps: Ps) -> None:
    limit = ps.settings.max_step_bytes
    worker, w = ps.worker(), vector("w", limit + 1, dtype=np.dtype(np.uint8))
    small = vector("small")
    worker.create(small)
    worker.define(w)
    with pytest.raises(LimitExceededError) as caught:
        worker.push(put(w, ASSIGN, np.ones(limit + 1)))
    assert str(limit + 1) in caught.value.message
    assert f"max_step_bytes={limit}" in caught.value.message
    assert caught.value.fields["limit"] == "max_step_bytes"
    assert not worker.push(put(small, ADD, [1, 1, 1])).duplicate
    np.testing.assert_array_equal(worker.value(small), 1)


# -- the global step ---------------------------------------------------------------------------


def test_the_global_step_counts_what_pushes_say_and_staleness_what_came_between(ps: Ps) -> None:
    first, second, w = ps.worker(0), ps.worker(1), vector()
    first.create(w)
    add = put(w, ADD, 1)
    assert first.push(add, step_increment=1) == PushResult(1, 0, duplicate=False)
    for expected in (2, 3):
        result = second.push(add, step_increment=1, global_step=1)
        assert result == PushResult(expected, expected - 2, duplicate=False)
    assert first.push(add, step_increment=1, global_step=1) == PushResult(4, 2, duplicate=False)
    assert first.push(add, global_step=4) == PushResult(4, 0, duplicate=False)
    second.pull(get(w))
    assert second.result.global_step == 4


def test_a_step_of_nothing_asks_for_the_global_step(ps: Ps) -> None:
    worker, w = ps.worker(), vector()
    worker.define(w)
    worker.push(put(w, ASSIGN, 0), step_increment=5)
    assert answered(worker.peer.step(StepRequest())).global_step == 5


def test_a_push_of_nothing_may_count_a_step(ps: Ps) -> None:
    """The ps of the global step hears of every step, also of those that touch others alone."""
    worker = ps.worker()
    request = StepRequest(sequence=1, step_increment=1)
    assert answered(worker.peer.step(request)) == PushResult(1, 0, duplicate=False)
    again = answered(worker.peer.step(request))
    assert (again.global_step, again.duplicate) == (1, True)
