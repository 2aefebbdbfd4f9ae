"""Which strategy is current, and on which side of it we are: the same as in TensorFlow."""

import threading
from typing import Any

import pytest

from helpers.parity import Both, Same, Side, alike, replica

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore"),  # TensorFlow's own are not ours to mend
]

STRATEGIES = [
    pytest.param("OneDevice", 1, id="OneDevice"),
    pytest.param("Mirrored", 1, id="Mirrored-1"),
    pytest.param("Mirrored", 3, id="Mirrored-3"),
    pytest.param("CentralStorage", 1, id="CentralStorage-1"),
    pytest.param("CentralStorage", 2, id="CentralStorage-2"),
]


def where(side: Side, strategy: Any) -> dict[str, Any]:
    """What the functions of the module say here."""
    distribute = side.distribute
    context = distribute.get_replica_context()
    return {
        "own": distribute.get_strategy() is strategy,
        "replica": None if context is None else str(int(context.replica_id_in_sync_group)),
        "cross": distribute.in_cross_replica_context(),
        "has": distribute.has_strategy(),
    }


def walk(side: Side, strategy: Any, seen: dict[str, Any]) -> None:
    """Note where we are in every context that run and merge_call open."""

    def note(name: str) -> None:
        seen[name] = where(side, strategy)

    def step(name: str) -> None:
        note(f"{name} {replica(side)}")

    def meet() -> None:
        context = side.distribute.get_replica_context()
        context.merge_call(lambda _: note("merge_call"))
        note(f"after merge_call {replica(side)}")

    note("outside")
    with strategy.scope():
        note("scope")
        strategy.run(step, args=("run in scope",))
        with strategy.scope():
            note("scope in scope")
        thread = threading.Thread(target=note, args=("thread",))
        thread.start()
        thread.join()
    strategy.run(step, args=("run",))
    strategy.run(meet)
    note("after all")


@pytest.mark.parametrize(("kind", "replicas"), [("default", 1), *STRATEGIES])
def test_contexts_are_the_same_everywhere(same: Same, kind: str, replicas: int) -> None:
    def program(side: Side) -> Any:
        seen: dict[str, Any] = {}
        walk(side, side.strategy(kind, replicas), seen)
        return seen

    assert len(same(program)) > 6


@pytest.mark.parametrize(("kind", "replicas"), STRATEGIES)
def test_contexts_of_update_are_the_same_everywhere(same: Same, kind: str, replicas: int) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy(kind, replicas)
        seen: list[Any] = []
        with strategy.scope():
            v = side.variable([1.0])

        def note(_: Any) -> None:
            seen.append(where(side, strategy))

        def update() -> None:
            strategy.extended.update(v, note)

        with strategy.scope():
            update()
        update()
        strategy.run(update)
        strategy.run(lambda: side.distribute.get_replica_context().merge_call(lambda _: update()))
        return seen

    assert len(same(program)) == 4 * (replicas if kind == "Mirrored" else 1)


def test_update_of_the_default_strategy_is_an_update_context_too(both: Both) -> None:
    """TensorFlow calls the function in the default replica context."""

    def program(side: Side) -> Any:
        strategy = side.strategy("default")
        return strategy.extended.update(side.variable([1.0]), lambda _: where(side, strategy))

    theirs, ours = both(program)
    assert theirs["value"]["replica"] == "0"
    assert ours["value"] == {"own": True, "replica": None, "cross": True, "has": False}


@pytest.mark.parametrize(("kind", "replicas"), STRATEGIES)
def test_a_strategy_set_for_good_is_current(same: Same, kind: str, replicas: int) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy(kind, replicas)
        side.distribute.experimental_set_strategy(strategy)
        try:
            seen = [where(side, strategy)]
            strategy.run(lambda: seen.append(where(side, strategy)) if not replica(side) else None)
        finally:
            side.distribute.experimental_set_strategy(None)
        return [*seen, where(side, strategy)]

    assert len(same(program)) == 3


@pytest.mark.parametrize(("kind", "replicas"), STRATEGIES)
@alike()
def test_strategies_describe_themselves_alike(side: Side, kind: str, replicas: int) -> Any:
    strategy = side.strategy(kind, replicas)
    extended = strategy.extended
    return [
        strategy.num_replicas_in_sync,
        strategy.cluster_resolver is None,
        extended.experimental_require_static_shapes,
        [device.upper()[-5:] for device in extended.worker_devices],
        [device.upper()[-5:] for device in extended.parameter_devices],
    ]
