"""``train.Checkpoint`` and ``train.CheckpointManager`` keep what TensorFlow's keep."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from helpers.parity import Side, alike, copies, differ, outcomes, replica

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore"),  # TensorFlow's own are not ours to mend
]

Use = Callable[[Side, Any, Any, Path], Any]


def train(side: Side) -> Any:
    return side.root.train


def vector(side: Side, value: Any = (1.0, 2.0)) -> Any:
    return side.root.Variable(list(value))


def name(path: Any) -> Any:
    return None if path is None else Path(str(path)).name


# -- Checkpoint --------------------------------------------------------------------------------


def saved_and_restored(side: Side, save: Any, restore: Any, value: Any) -> Any:
    """A variable that is saved by one checkpoint, overwritten, and restored by another."""
    with TemporaryDirectory() as folder:
        path = save.save(f"{folder}/ck")
        value.assign([9.0, 9.0])
        restore.restore(path)
        return value.read_value()


KEEPERS: dict[str, Callable[[Any, Any], Any]] = {
    "by name": lambda train, v: train.Checkpoint(v=v),
    "in a list": lambda train, v: train.Checkpoint(parts=[v]),
    "in a dictionary": lambda train, v: train.Checkpoint(parts={"v": v}),
    "in another one": lambda train, v: train.Checkpoint(inner=train.Checkpoint(v=v)),
    "in another one at the root": lambda train, v: train.Checkpoint(train.Checkpoint(v=v)),
}


@pytest.mark.parametrize("kind", KEEPERS)
@alike(gives=[1.0, 2.0])
def test_what_a_checkpoint_leads_to_is_restored(side: Side, kind: str) -> Any:
    v, make = vector(side), KEEPERS[kind]
    return saved_and_restored(side, make(train(side), v), make(train(side), v), v)


@alike(gives=[1.0, 2.0])
def test_the_root_of_a_checkpoint_may_be_another_one(side: Side) -> Any:
    v = vector(side)
    outer = train(side).Checkpoint(train(side).Checkpoint(v=v))
    return saved_and_restored(side, outer, train(side).Checkpoint(v=v), v)


@alike(gives=[1.0, 2.0])
def test_an_object_that_is_assigned_is_saved(side: Side) -> Any:
    checkpoint = train(side).Checkpoint()
    checkpoint.w = vector(side)
    return saved_and_restored(side, checkpoint, checkpoint, checkpoint.w)


@alike(gives=["AttributeError", [1.0, 2.0]])
def test_objects_are_attributes(side: Side) -> Any:
    checkpoint = train(side).Checkpoint(v=vector(side))
    return outcomes(side, lambda: checkpoint.other, checkpoint.v.read_value)


@pytest.mark.parametrize("what", [3, 2.5, "text", True], ids=repr)
@alike(gives="ValueError")
def test_what_holds_no_variable_is_refused(side: Side, what: Any) -> Any:
    return train(side).Checkpoint(v=what)


@alike(gives=["ck-1", "ck-2", 2, "ck-2", 2])
def test_checkpoints_are_counted(side: Side) -> Any:
    with TemporaryDirectory() as folder:
        v = vector(side)
        first, second = train(side).Checkpoint(v=v), train(side).Checkpoint(v=v)
        paths = [first.save(f"{folder}/ck") for _ in range(2)]
        second.restore(paths[1])
        counts = [int(each.save_counter) for each in (first, second)]
        latest = train(side).latest_checkpoint(folder)
        return [*map(name, paths), counts[0], name(latest), counts[1]]


@alike(gives=[None, None, None])
def test_there_may_be_no_latest_checkpoint(side: Side) -> Any:
    with TemporaryDirectory() as folder:
        empty = train(side).latest_checkpoint(folder)
        train(side).Checkpoint(v=vector(side)).write(f"{folder}/alone")
        return [
            empty,
            train(side).latest_checkpoint(folder),
            train(side).latest_checkpoint(f"{folder}/nothing"),
        ]


@pytest.mark.parametrize("saves", [["a", "b"], ["a"]], ids=str)
@alike()
def test_a_status_knows_what_did_not_match(side: Side, saves: list[str]) -> Any:
    with TemporaryDirectory() as folder:
        objects = {each: vector(side) for each in ("a", "b")}
        given = {each: objects[each] for each in saves}
        path = train(side).Checkpoint(**given).save(f"{folder}/ck")
        restored = {"a": objects["a"]} if len(saves) > 1 else objects
        status = train(side).Checkpoint(**restored).restore(path)
        return outcomes(
            side,
            lambda: bool(status.assert_consumed()),
            lambda: bool(status.assert_existing_objects_matched()),
            lambda: bool(status.expect_partial() or True),
        )


@pytest.mark.parametrize("other", [[1.0, 2.0, 3.0], [[1.0], [2.0]]], ids=str)
@alike(gives="ValueError")
def test_another_shape_is_refused(side: Side, other: Any) -> Any:
    with TemporaryDirectory() as folder:
        path = train(side).Checkpoint(v=vector(side)).save(f"{folder}/ck")
        return train(side).Checkpoint(v=side.root.Variable(other)).restore(path)


@alike()
def test_copies_of_replicas_are_restored(side: Side) -> Any:
    strategy = side.strategy("Mirrored", 2)
    with strategy.scope(), TemporaryDirectory() as folder:
        both = side.variable([1.0, 2.0])
        own = side.variable(0.0, synchronization="ON_READ", aggregation="SUM")
        with_replicas = train(side).Checkpoint(both=both, own=own)
        strategy_run(strategy, lambda: own.assign_add(1.0 + replica(side)))
        path = with_replicas.save(f"{folder}/ck")
        both.assign([0.0, 0.0])
        strategy_run(strategy, lambda: own.assign(0.0))
        with_replicas.restore(path)
        return [copies(both), copies(own)]


def strategy_run(strategy: Any, change: Callable[[], Any]) -> None:
    def step() -> None:
        change()

    strategy.run(step)


@differ(theirs="value", ours="RuntimeError", words="merge_call")
def test_a_checkpoint_is_of_all_replicas(side: Side) -> Any:
    """TensorFlow's replicas each write the same file."""
    strategy = side.strategy("Mirrored", 2)
    with strategy.scope():
        v = side.variable(1.0)
    with TemporaryDirectory() as folder:
        strategy.run(lambda: train(side).Checkpoint(v=v).save(f"{folder}/ck") and None)


# -- CheckpointManager -------------------------------------------------------------------------


USES: dict[str, Use] = {
    "save": lambda side, v, m, f: [name(m.save()) for _ in range(3)],
    "keeps": lambda side, v, m, f: [m.save() for _ in range(4)] and list(map(name, m.checkpoints)),
    "no latest": lambda side, v, m, f: name(m.latest_checkpoint),
    "latest": lambda side, v, m, f: m.save() and name(m.latest_checkpoint),
    "numbered": lambda side, v, m, f: name(m.save(checkpoint_number=17)),
    "nothing to restore": lambda side, v, m, f: m.restore_or_initialize(),
    "restores": lambda side, v, m, f: (
        m.save(), v.assign([0.0, 0.0]), name(m.restore_or_initialize()), v.read_value()
    )[2:],
    "directory": lambda side, v, m, f: m.directory == str(f),
    "interval": lambda side, v, m, f: m.checkpoint_interval,
}  # fmt: skip


@pytest.mark.parametrize("keep", [1, 2, None], ids=str)
@pytest.mark.parametrize("use", USES)
@alike()
def test_a_manager_does_the_same(side: Side, use: str, keep: Any) -> Any:
    with TemporaryDirectory() as folder:
        v = vector(side)
        made = train(side).CheckpointManager(train(side).Checkpoint(v=v), folder, max_to_keep=keep)
        return USES[use](side, v, made, Path(folder))


@pytest.mark.parametrize(
    "options",
    [{"max_to_keep": 0}, {"max_to_keep": -1}, {"max_to_keep": 1, "checkpoint_interval": 3}],
    ids=str,
)
@alike(gives="ValueError")
def test_a_manager_refuses_the_same(side: Side, options: dict[str, Any]) -> Any:
    with TemporaryDirectory() as folder:
        return train(side).CheckpointManager(
            train(side).Checkpoint(v=vector(side)), folder, **options
        )


@pytest.mark.parametrize("check", [True, False])
@alike()
def test_a_manager_saves_at_intervals_of_its_counter(side: Side, check: bool) -> Any:
    with TemporaryDirectory() as folder:
        step = side.root.Variable(0)
        manager = train(side).CheckpointManager(
            train(side).Checkpoint(step=step),
            folder,
            max_to_keep=5,
            step_counter=step,
            checkpoint_interval=2,
        )
        paths = []
        for _ in range(5):
            step.assign_add(1)
            paths.append(name(manager.save(check_interval=check)))
        return paths


@pytest.mark.parametrize("keep", [1, 2])
@alike()
def test_a_second_manager_goes_on_with_the_first_ones(side: Side, keep: int) -> Any:
    with TemporaryDirectory() as folder:
        found = []
        for limit in (2, keep):
            checkpoint = train(side).Checkpoint(v=vector(side))
            manager = train(side).CheckpointManager(checkpoint, folder, max_to_keep=limit)
            found.append(list(map(name, manager.checkpoints)))
            manager.restore_or_initialize()
            found += [name(manager.save()), name(manager.save())]
        return [*found, list(map(name, manager.checkpoints))]


@alike(gives=[1])
def test_a_manager_initializes_once(side: Side) -> Any:
    called: list[int] = []
    with TemporaryDirectory() as folder:
        manager = train(side).CheckpointManager(
            train(side).Checkpoint(v=vector(side)),
            folder,
            max_to_keep=1,
            init_fn=lambda: called.append(1),
        )
        manager.restore_or_initialize()
        manager.save()
        manager.restore_or_initialize()
    return called


@differ(theirs="ckpt-2", ours="ckpt-18")
def test_a_manager_goes_on_from_a_number_that_it_was_given(side: Side) -> Any:
    """TensorFlow counts saves, so that a later checkpoint has a smaller number."""
    with TemporaryDirectory() as folder:
        manager = train(side).CheckpointManager(
            train(side).Checkpoint(v=vector(side)), folder, max_to_keep=3
        )
        manager.save(checkpoint_number=17)
        return name(manager.save())
