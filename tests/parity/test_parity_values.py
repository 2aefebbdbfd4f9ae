"""Values of replicas are taken apart and put together as in TensorFlow."""

from typing import Any

import pytest

from helpers.parity import Same, Side, alike, copies, differ, distributed, replica

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore"),  # TensorFlow's own are not ours to mend
]


def test_results_of_run_are_regrouped_alike(same: Same) -> None:
    def program(side: Side) -> Any:
        strategy, shared = side.strategy("Mirrored", 2), side.array([1.0])

        def step() -> Any:
            mine = side.array(float(replica(side)))
            return {"same": shared, "none": None, "word": "a", "list": [mine, shared], "1": (mine,)}

        return strategy.run(step)

    assert same(program)["word"] == "a"


@alike()
def test_arguments_of_run_are_taken_apart_alike(side: Side) -> Any:
    strategy = side.strategy("Mirrored", 2)
    value, plain = distributed(side, strategy, [1.0], [2.0]), side.array([7.0])

    def step(a: Any, b: Any, c: Any = None, d: Any = None) -> Any:
        return [a, b["x"][0] + plain, c, d]

    return strategy.run(step, args=(value, {"x": [value]}), kwargs={"c": value, "d": "word"})


@alike()
def test_merge_call_gets_and_gives_the_same(side: Side) -> Any:
    strategy, shared = side.strategy("Mirrored", 2), side.array([7.0])
    seen: dict[str, Any] = {}

    def merge(current: Any, a: Any, b: Any, c: Any, *, d: Any, e: str) -> Any:
        seen["strategy"] = current is strategy
        seen["arguments"] = side.plain([a, b, c, d, e])
        return {"mine": a, "number": 3, "list": [shared, a], "none": None}

    def step(x: Any) -> Any:
        context = side.distribute.get_replica_context()
        answer = context.merge_call(
            merge, args=(x, shared, [x, {"k": x}]), kwargs={"d": x, "e": "word"}
        )
        return [answer[key] for key in sorted(answer)]

    value = distributed(side, strategy, [1.0], [2.0])
    return [strategy.run(step, args=(value,)), seen]


def test_merge_call_that_answers_mirrored_gives_each_replica_its_part(same: Same) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 2)
        value = distributed(side, strategy, [1.0], [2.0])
        op = side.distribute.ReduceOp.SUM

        def step(x: Any) -> Any:
            context = side.distribute.get_replica_context()
            return context.merge_call(lambda s, y: s.extended.reduce_to(op, y, y), args=(x,))

        return strategy.run(step, args=(value,))

    assert list(same(program)) == ["PerReplica"]


@alike(gives=[True, True, [True]])
def test_a_variable_goes_through_run_and_merge_call_as_itself(side: Side) -> Any:
    strategy = side.strategy("Mirrored", 2)
    with strategy.scope():
        v = side.variable([1.0, 2.0])
    seen: list[bool] = []

    def step(x: Any) -> Any:
        context = side.distribute.get_replica_context()
        context.merge_call(lambda _, y: seen.append(y is v), args=(x,))
        return x

    return [strategy.run(step, args=(v,)) is v, strategy.run(lambda: v) is v, seen]


@alike()
def test_local_results_are_the_same(side: Side) -> Any:
    strategy = side.strategy("Mirrored", 2)
    value = distributed(side, strategy, [1.0], [2.0])
    with strategy.scope():
        v = side.variable([1.0])
    local = strategy.experimental_local_results
    return [
        local(value),
        local(side.array([1.0])),
        local({"a": value, "b": 1}),
        local((value, [value])),
        local(None),
        len(local(v)),
    ]


@differ(theirs=2, ours=1)
def test_a_structure_without_distributed_values_is_one_local_result(side: Side) -> Any:
    """TensorFlow repeats a list or dictionary for every replica, and nothing else."""
    return len(side.strategy("Mirrored", 2).experimental_local_results([1, 2]))


@alike()
def test_values_from_a_function_are_the_same(side: Side) -> Any:
    strategy, shared = side.strategy("Mirrored", 3), side.array([1.0])
    make = strategy.experimental_distribute_values_from_function
    return [
        make(
            lambda context: side.array(
                [context.replica_id_in_sync_group, context.num_replicas_in_sync]
            )
        ),
        make(lambda _: shared),
        make(lambda context: {"a": side.array(context.replica_id_in_sync_group), "b": [shared]}),
    ]


@pytest.mark.parametrize("group", [True, False], ids=["grouped", "not-grouped"])
@alike()
def test_update_splits_arguments_and_groups_results_alike(side: Side, group: bool) -> Any:
    strategy = side.strategy("Mirrored", 2)
    with strategy.scope():
        v = side.variable([1.0, 2.0])
    value = distributed(side, strategy, [1.0, 1.0], [2.0, 2.0])

    def change(component: Any, x: Any, k: Any = None) -> Any:
        component.assign_add(x)
        return x + k

    with strategy.scope():
        result = strategy.extended.update(
            v, change, args=(value,), kwargs={"k": side.array(10.0)}, group=group
        )
    return [result, copies(v)]
