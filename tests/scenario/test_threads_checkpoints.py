"""Checkpoints of clusters in threads: written by one job, resumed by the next, on other ps."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.core.checkpoint import CheckpointReader, list_checkpoints
from ropewalk.core.errors import CheckpointError
from ropewalk.core.task import Phase, TaskId
from ropewalk.distribute import ParameterServerStrategy, partitioners
from ropewalk.testing import LocalCluster
from ropewalk.training import SidecarEvaluator
from ropewalk.worker.lead.status import read_status

Array = np.ndarray[Any, np.dtype[Any]]
CHIEF = TaskId("chief", 0)

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def no_cluster(plain_process: None) -> None:
    """No cluster around us, no GPU."""


def gradient(step: int) -> Array:
    return np.random.default_rng(step).standard_normal((7, 2)).astype(np.float32)


def training(steps: int, parts: int) -> Callable[[], tuple[Array, Array, int]]:
    """Adam and SGD on gradients that depend on the global step alone, so any cut gives the same."""

    def program() -> tuple[Array, Array, int]:
        strategy = ParameterServerStrategy(
            variable_partitioner=partitioners.FixedShardsPartitioner(parts)
        )
        with strategy.scope():
            w = rw.Variable(np.ones((7, 2), np.float32), name="w")
            b = rw.Variable(np.zeros((), np.float32), name="b")
            count = rw.Variable(0, name="count", trainable=False)
        adam, plain = rw.optimizers.Adam(0.1), rw.optimizers.SGD(0.5)
        first = strategy.global_step

        def step(number: int) -> None:
            adam.apply_gradients([(gradient(number), w)])
            plain.apply_gradients([(np.float32(1), b)])

        for number in range(first, first + steps):
            strategy.run(step, args=(number,))
            count.assign_add(1)
        assert count.read_value() == first + steps
        assert b.read_value() == -0.5 * (first + steps)
        return w.numpy(), b.numpy(), strategy.global_step

    return program


def run(model_dir: Path, steps: int, *, ps: int, parts: int, **settings: Any) -> Any:
    with LocalCluster(workers=0, ps=ps, model_dir=str(model_dir), **settings) as cluster:
        return cluster.run(training(steps, parts))[CHIEF]


def test_the_last_checkpoint_is_final_and_holds_every_variable_and_slot(tmp_path: Path) -> None:
    w, _, step = run(tmp_path, 5, ps=2, parts=2)
    assert step == 5
    [found] = list_checkpoints(str(tmp_path))
    assert found.global_step == 5
    reader = CheckpointReader(found.path)
    reader.verify()
    assert reader.manifest.final
    np.testing.assert_array_equal(reader.read("w"), w)
    assert reader.slots("w") == ["momentum", "velocity"]
    assert reader.manifest.variables["w"].updates == 5
    assert set(reader.manifest.variables) == {"w", "b", "count"}


@pytest.mark.parametrize(
    ("first", "second"),
    [((2, 2), (3, 3)), ((3, 3), (1, 1)), ((1, 1), (2, 2))],
    ids=["2-ps-to-3", "3-ps-to-1", "1-ps-to-2"],
)
def test_another_job_resumes_with_another_number_of_ps(
    tmp_path: Path, first: tuple[int, int], second: tuple[int, int]
) -> None:
    """Global step, values and Adam's state: the numbers are those of one long run, to the bit."""
    w, b, step = run(tmp_path / "long", 12, ps=1, parts=1)
    run(tmp_path / "cut", 7, ps=first[0], parts=first[1])
    w_cut, b_cut, step_cut = run(tmp_path / "cut", 5, ps=second[0], parts=second[1])
    assert step == step_cut == 12
    np.testing.assert_array_equal(w_cut, w)
    np.testing.assert_array_equal(b_cut, b)
    assert [found.global_step for found in list_checkpoints(str(tmp_path / "cut"))] == [7, 12]


def test_checkpoints_are_written_while_training_and_the_oldest_go(tmp_path: Path) -> None:
    def program() -> None:
        strategy = ParameterServerStrategy()
        with strategy.scope():
            w = rw.Variable(np.zeros(3, np.float32), name="w")
        optimizer = rw.optimizers.SGD(1.0)
        for _ in range(100_000):
            strategy.run(lambda: optimizer.apply_gradients([(np.ones(3, np.float32), w)]))
            if len(list_checkpoints(str(tmp_path))) == 2:
                return
        raise AssertionError("no checkpoints came")

    with LocalCluster(
        workers=0,
        ps=1,
        model_dir=str(tmp_path),
        save_every_steps=1,
        keep_checkpoints=2,
        heartbeat_s=0.02,
    ) as cluster:
        cluster.run(program)
        status = cluster.status()
    found = list_checkpoints(str(tmp_path))
    assert len(found) == 2
    reader = CheckpointReader(found[-1].path)
    assert reader.manifest.final
    np.testing.assert_array_equal(reader.read("w"), -float(reader.manifest.global_step))
    for info in found:
        CheckpointReader(info.path).verify()
    assert status is not None
    assert (status.last_checkpoint, status.last_checkpoint_step) == (
        found[-1].path,
        found[-1].global_step,
    )


def test_a_damaged_slot_is_an_error_when_its_optimizer_is_bound(tmp_path: Path) -> None:
    run(tmp_path, 3, ps=1, parts=1)
    [found] = list_checkpoints(str(tmp_path))
    file = Path(found.path) / "ps-0.safetensors"
    data = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    data[start + header["w:velocity"]["data_offsets"][0]] ^= 1
    file.write_bytes(data)
    with (
        LocalCluster(workers=0, ps=1, model_dir=str(tmp_path)) as cluster,
        pytest.raises(CheckpointError, match="'w:velocity' was altered"),
    ):
        cluster.run(training(1, 1))


def test_a_new_variable_begins_with_its_own_value_beside_restored_ones(tmp_path: Path) -> None:
    w, _, _ = run(tmp_path, 2, ps=1, parts=1)

    def program() -> tuple[Array, Array]:
        with ParameterServerStrategy().scope():
            old = rw.Variable(np.zeros((7, 2), np.float32), name="w")
            new = rw.Variable(np.full(2, 5, np.float32), name="new")
        return old.numpy(), new.numpy()

    with LocalCluster(workers=1, ps=2, model_dir=str(tmp_path)) as cluster:
        for old, new in cluster.run(program).values():
            np.testing.assert_array_equal(old, w)
            np.testing.assert_array_equal(new, 5)


def test_a_failed_job_leaves_a_checkpoint_that_is_not_final(tmp_path: Path) -> None:
    def program() -> None:
        training(4, 1)()
        raise ValueError("boom")

    with LocalCluster(workers=0, ps=1, model_dir=str(tmp_path)) as cluster:
        cluster.run_all(program)
        status = cluster.status()
    assert status is not None
    assert status.phase is Phase.FAILED
    [found] = list_checkpoints(str(tmp_path))
    assert found.global_step == 4
    assert not CheckpointReader(found.path).manifest.final
    assert run(tmp_path, 1, ps=1, parts=1)[2] == 5


def test_an_evaluator_beside_a_job_ends_with_its_final_checkpoint(tmp_path: Path) -> None:
    w, _, _ = run(tmp_path, 3, ps=2, parts=2)
    results = SidecarEvaluator(
        lambda values: {"sum": values["w"].sum()}, str(tmp_path), idle_timeout_s=3
    ).start()
    assert [(item.global_step, item.final) for item in results] == [(3, True)]
    assert results[0].metrics["sum"] == pytest.approx(float(w.sum()))


@pytest.mark.parametrize("loss", [np.nan, np.inf], ids=["nan", "inf"])
def test_the_last_status_of_a_job_can_be_read_though_its_loss_was_no_number(
    tmp_path: Path, loss: float
) -> None:
    def program() -> None:
        training(2, 1)()
        rw.training.report(loss=loss)

    with LocalCluster(workers=0, ps=1, model_dir=str(tmp_path)) as cluster:
        cluster.run(program)
    status = read_status(str(tmp_path))
    assert status is not None
    assert status.phase is Phase.DONE
    reports = {item.task: item.report for item in status.tasks}
    np.testing.assert_equal(reports[CHIEF].metrics["loss"], loss)
