"""Who is told that its assignments take back what other workers have written."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ropewalk.client.ps.step import Write
from ropewalk.cluster.spec import ClusterSpec
from ropewalk.core.arrays.indexed_slices import IndexedSlices
from ropewalk.core.rules.definitions import VariableDefinition
from ropewalk.core.task import TaskId
from ropewalk.core.wire.steps import Operation
from ropewalk.distribute.strategies.step_writes import LostWrites

DEFINED = {
    name: VariableDefinition(name, shape, np.dtype(dtype), None, trainable=False)
    for name, shape, dtype in [
        ("mean", (2,), np.float32),
        ("variance", (2,), np.float32),
        ("rate", (), np.float32),
        ("place", (2,), np.int64),
    ]
}
ROWS = IndexedSlices(np.ones((1,), np.float32), np.array([0]), (2,))


def of_task(task: str = "worker", *, workers: int = 2, closures: bool = False) -> LostWrites:
    spec = ClusterSpec({"chief": ["c:1"], "worker": [f"w:{n}" for n in range(workers)]})
    session = SimpleNamespace(
        pushes_for_closure=closures, variables=SimpleNamespace(definition=DEFINED.__getitem__)
    )
    resolved = SimpleNamespace(task=TaskId(task, 0), spec=spec, is_chief=task == "chief")
    runtime: Any = SimpleNamespace(task=resolved, session=session)
    return LostWrites(runtime)


def assigned(*names: str) -> list[Write]:
    """Whole values, as they travel."""
    return [Write(Operation.ASSIGN, {name: bytes(8) for name in names})]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Any:
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_worker_is_told_once_of_what_it_assigns_in_two_steps_in_turn(said: Any) -> None:
    lost = of_task()
    lost.note(assigned("mean"))
    assert said() == []
    lost.note([Write(Operation.ASSIGN, {"mean": np.ones(2, np.float32)})])
    lost.note(assigned("mean"))
    assert len(said()) == 1
    assert "worker:0 assigns 'mean' as a whole" in said()[0]


def test_what_each_worker_has_for_itself_is_no_loss(said: Any) -> None:
    lost = of_task()
    lost.expect(["mean"])
    for _ in range(3):
        lost.note(assigned("mean"))
    assert said() == []
    for _ in range(2):
        lost.note(assigned("mean", "variance"))
    assert "worker:0 assigns 'variance' as a whole" in said()[0]


def test_what_is_not_assigned_in_turn_is_no_habit(said: Any) -> None:
    lost = of_task()
    for names in (["mean"], ["variance"], [], ["mean"], []):
        lost.note(assigned(*names))
    assert said() == []


@pytest.mark.parametrize(
    "write",
    [
        Write(Operation.ASSIGN_ADD, {"mean": np.ones(2, np.float32)}),
        Write(Operation.ASSIGN, {"mean": ROWS}),
        Write(Operation.ASSIGN, {"rate": np.ones((), np.float32)}),
        Write(Operation.ASSIGN, {"place": np.ones(2, np.int64)}),
    ],
    ids=["added", "rows", "scalar", "integers"],
)
def test_what_loses_nothing_or_is_alike_on_all_is_not_told(write: Write, said: Any) -> None:
    lost = of_task()
    for _ in range(3):
        lost.note([write])
    assert said() == []


@pytest.mark.parametrize(
    ("task", "workers", "closures", "told"),
    [
        ("chief", 2, False, False),
        ("worker", 1, False, True),
        ("worker", 1, True, False),
        ("worker", 2, True, True),
    ],
    ids=["the chief", "a worker beside the chief", "the only one of a coordinator", "one of two"],
)
def test_one_of_several_that_train_is_told(
    task: str, workers: int, closures: bool, told: bool, said: Any
) -> None:
    lost = of_task(task, workers=workers, closures=closures)
    for _ in range(3):
        lost.note(assigned("mean"))
    assert len(said()) == told
