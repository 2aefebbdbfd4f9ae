"""The sidecar evaluator follows checkpoints to the last one; evaluations are kept beside them."""

import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.calls import Calls
from helpers.pushes import push_of
from ropewalk.cluster.resolvers.resolved import ResolvedTask
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.checkpoint import (
    Manifest,
    VariableRecord,
    checkpoint_path,
    manifest_bytes,
    prune,
)
from ropewalk.core.checkpoint.job_record import JobRecord, write_job_record
from ropewalk.core.checkpoint.storage import open_model_dir
from ropewalk.core.errors import (
    CheckpointError,
    ConfigurationError,
    JobStoppedError,
    PeerLostError,
)
from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, Phase, TaskId
from ropewalk.core.wire.steps import LayoutEntry, Operation
from ropewalk.distribute.program_cluster import in_cluster
from ropewalk.distribute.runtime import ClusterRuntime, JobLink
from ropewalk.engine.push_target import StepInfo
from ropewalk.server.ps.layout import compile_layout
from ropewalk.server.ps.saving import save_shards
from ropewalk.server.ps.store import Store
from ropewalk.training import SidecarEvaluator, read_evaluations
from ropewalk.training.evaluations import Evaluation, write_evaluation

WHO = Incarnation(TaskId("chief", 0), 1)
F32 = np.dtype(np.float32)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings from outside."""
    monkeypatch.delenv("ROPEWALK_MODEL_DIR", raising=False)


def write_checkpoint(model_dir: Path, step: int, *, final: bool = False) -> Path:
    """A checkpoint of two variables, all of whose elements are ``step``; the manifest
    comes last.
    """
    store = Store(TaskId("ps", 0), Settings())
    variables = [VariableDefinition("w", (4, 2), F32), VariableDefinition("b", (), F32)]
    store.table.define([ShardDefinition(item) for item in variables], WHO)
    entries = [LayoutEntry(item.name, 0, Operation.ASSIGN) for item in variables]
    layout = compile_layout(store.table, entries)
    payload = np.full(9, step, np.float32).tobytes()
    position = 0

    def fetch(count: int) -> memoryview:
        nonlocal position
        position += count
        return memoryview(payload)[position - count : position]

    store.push(push_of(layout, (), StepInfo(WHO, 1, 0), step), fetch)
    path = Path(checkpoint_path(str(model_dir), step))
    part = save_shards(store, str(path))
    manifest = Manifest(
        global_step=step,
        final=final,
        variables={
            item.name: VariableRecord(shape=item.shape, dtype=item.dtype.name) for item in variables
        },
        tensors=part.tensors,
        files=part.files,
    )
    temporary = path / "manifest.tmp"
    temporary.write_bytes(manifest_bytes(manifest))
    temporary.rename(path / "manifest.json")
    return path


def evaluate(values: Mapping[str, Array]) -> dict[str, Any]:
    return {"mean": values["w"].mean(), "b": values["b"]}


def evaluator(
    model_dir: Path, function: Callable[..., Any] = evaluate, **options: Any
) -> SidecarEvaluator:
    given: dict[str, Any] = {"poll_s": 0.005, "idle_timeout_s": 3.0}
    return SidecarEvaluator(function, str(model_dir), **(given | options))


def test_the_final_checkpoint_is_the_last_one_evaluated(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, 30, final=True)
    [result] = evaluator(tmp_path).start()
    assert result.global_step == 30
    assert result.final
    assert result.metrics == {"mean": 30.0, "b": 30.0}
    assert result.checkpoint == str(path)
    assert 0 <= result.seconds < 5


def test_new_checkpoints_are_followed_as_they_come(tmp_path: Path) -> None:
    """Each is written when the one before was evaluated."""
    steps = iter([20, 30])

    def evaluate_and_go_on(values: Mapping[str, Array]) -> dict[str, Any]:
        step = next(steps, None)
        if step is not None:
            write_checkpoint(tmp_path, step, final=step == 30)
        return evaluate(values)

    write_checkpoint(tmp_path, 10)
    results = evaluator(tmp_path, evaluate_and_go_on).start()
    assert [result.global_step for result in results] == [10, 20, 30]
    assert [result.metrics["mean"] for result in results] == [10, 20, 30]
    assert [result.final for result in results] == [False, False, True]


def test_it_waits_for_the_first_checkpoint(tmp_path: Path) -> None:
    results: list[Evaluation] = []
    model_dir = tmp_path / "not-yet"
    thread = threading.Thread(target=lambda: results.extend(evaluator(model_dir).start()))
    thread.start()
    write_checkpoint(model_dir, 5, final=True)
    thread.join(5)
    assert [result.global_step for result in results] == [5]


def test_only_the_newest_checkpoint_is_evaluated(tmp_path: Path) -> None:
    for step in (10, 20):
        write_checkpoint(tmp_path, step)
    write_checkpoint(tmp_path, 30, final=True)
    assert [result.global_step for result in evaluator(tmp_path).start()] == [30]


def test_a_checkpoint_without_a_manifest_does_not_exist(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 10)
    (write_checkpoint(tmp_path, 20) / "manifest.json").unlink()
    results = evaluator(tmp_path, max_evaluations=1).start()
    assert [result.global_step for result in results] == [10]


def test_it_ends_after_so_many_evaluations(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 10)
    assert len(evaluator(tmp_path, max_evaluations=1).start()) == 1
    assert evaluator(tmp_path, max_evaluations=0).start() == []


@pytest.mark.parametrize("damage", ["altered", "truncated", "missing"])
def test_a_damaged_checkpoint_is_an_error_that_names_the_file(tmp_path: Path, damage: str) -> None:
    path = write_checkpoint(tmp_path, 10, final=True)
    file = path / "ps-0.safetensors"
    data = bytearray(file.read_bytes())
    if damage == "altered":
        data[-1] ^= 1
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(data[:-5] if damage == "truncated" else data)
    with pytest.raises(CheckpointError, match=r"ckpt-0000000010/ps-0\.safetensors"):
        evaluator(tmp_path).start()
    assert read_evaluations(str(tmp_path)) == []


def test_a_checkpoint_that_is_pruned_while_it_is_read_is_passed_over(
    tmp_path: Path, calls: Calls
) -> None:
    from ropewalk.training import evaluator as module

    write_checkpoint(tmp_path, 10)

    def go_on(_: object, path: str) -> None:
        if path.endswith("10"):
            write_checkpoint(tmp_path, 20, final=True)
            prune(str(tmp_path), 1)

    calls.after(module, "CheckpointReader", go_on)
    assert [result.global_step for result in evaluator(tmp_path).start()] == [20]


def test_a_job_that_writes_nothing_for_too_long_is_taken_for_gone(tmp_path: Path) -> None:
    with pytest.raises(PeerLostError, match=r"no new checkpoint in .* for 0\.05 s") as caught:
        evaluator(tmp_path, idle_timeout_s=0.05).start()
    assert caught.value.fields["model_dir"] == str(tmp_path)
    write_checkpoint(tmp_path, 10)
    with pytest.raises(PeerLostError, match="is the job still running, with the same model_dir"):
        evaluator(tmp_path, idle_timeout_s=0.05).start()
    assert [result.global_step for result in read_evaluations(str(tmp_path))] == [10]


def test_an_error_of_the_program_is_its_own(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 10)

    def broken(values: Mapping[str, Array]) -> dict[str, Any]:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        evaluator(tmp_path, broken).start()


def test_it_needs_to_know_where_checkpoints_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match="needs checkpoint_dir, or model_dir"):
        SidecarEvaluator(evaluate)
    monkeypatch.setenv("ROPEWALK_MODEL_DIR", str(tmp_path))
    write_checkpoint(tmp_path, 3, final=True)
    assert len(SidecarEvaluator(evaluate, poll_s=0.005).start()) == 1


def runtime_of_evaluator(model_dir: Path, **settings: Any) -> ClusterRuntime:
    task = ResolvedTask(TaskId("evaluator", 0), rw.ClusterSpec({}), TaskId("chief", 0))
    return ClusterRuntime(task, Settings(model_dir=str(model_dir), **settings))


def record(model_dir: Path, job: str, phase: Phase) -> None:
    write_job_record(open_model_dir(str(model_dir)), JobRecord(job=job, phase=phase))


def test_beside_a_job_that_goes_on_it_does_not_leave_with_the_earlier_runs_end(
    tmp_path: Path,
) -> None:
    write_checkpoint(tmp_path, 30, final=True)
    record(tmp_path, "first", Phase.DONE)

    def evaluate_and_go_on(values: Mapping[str, Array]) -> dict[str, Any]:
        if values["b"] == 30:  # the chief of the second run begins only now
            record(tmp_path, "second", Phase.RUNNING)
            write_checkpoint(tmp_path, 40)
        elif values["b"] == 40:
            write_checkpoint(tmp_path, 50, final=True)
        return evaluate(values)

    with in_cluster(runtime_of_evaluator(tmp_path, job_id="second")):
        results = evaluator(tmp_path, evaluate_and_go_on).start()
    assert [result.global_step for result in results] == [30, 40, 50]


def test_an_evaluator_that_comes_when_its_job_is_over_waits_for_nothing(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 30, final=True)
    record(tmp_path, "mine", Phase.DONE)
    with in_cluster(runtime_of_evaluator(tmp_path, job_id="mine", join_timeout_s=3600)):
        [result] = evaluator(tmp_path).start()
    assert result.final


def test_a_job_that_does_not_go_on_is_waited_for_no_longer_than_its_tasks_wait(
    tmp_path: Path,
) -> None:
    write_checkpoint(tmp_path, 30, final=True)
    record(tmp_path, "first", Phase.DONE)
    with in_cluster(runtime_of_evaluator(tmp_path, job_id="second", join_timeout_s=0.05)):
        assert len(evaluator(tmp_path).start()) == 1


def test_in_a_cluster_it_reports_and_takes_the_jobs_model_dir(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 40, final=True)
    mine = runtime_of_evaluator(tmp_path, join_timeout_s=0.05)
    with in_cluster(mine):
        rw.training.SidecarEvaluator(evaluate).start()
    assert mine.progress.report(None).metrics == {"mean": 40.0, "b": 40.0}
    assert mine.progress.report(None).steps == 40


def test_in_a_cluster_it_ends_when_the_job_is_stopped(tmp_path: Path) -> None:
    class Stopping(JobLink):
        def check(self) -> None:
            raise JobStoppedError("stopping")

    mine = replace(runtime_of_evaluator(tmp_path), job=Stopping())
    with in_cluster(mine), pytest.raises(JobStoppedError):
        SidecarEvaluator(evaluate).start()


# -- evaluations on disk -----------------------------------------------------------------------


def evaluation(step: int, *, final: bool = False) -> Evaluation:
    return Evaluation(
        global_step=step,
        checkpoint=f"ckpt-{step}",
        final=final,
        metrics={"loss": step / 7, "zero": 0.0},
        seconds=0.5,
    )


def test_evaluations_are_read_back_by_step(tmp_path: Path) -> None:
    assert read_evaluations(str(tmp_path / "nowhere")) == []
    written = [evaluation(step, final=step == 200) for step in (9, 10, 200)]
    for item in reversed(written):
        write_evaluation(str(tmp_path), item)
    assert read_evaluations(str(tmp_path)) == written
    assert sorted(path.name for path in (tmp_path / "eval").iterdir()) == [
        "step-0000000009.json",
        "step-0000000010.json",
        "step-0000000200-final.json",
    ]


def test_evaluating_a_step_again_replaces_its_result(tmp_path: Path) -> None:
    write_evaluation(str(tmp_path), evaluation(5))
    again = evaluation(5).model_copy(update={"metrics": {"loss": 9.0}})
    write_evaluation(str(tmp_path), again)
    assert read_evaluations(str(tmp_path)) == [again]


def test_two_that_evaluate_at_a_time_take_nothing_from_each_other(
    calls: Calls, tmp_path: Path
) -> None:
    """A chief evaluates at its end, beside the evaluator; each removes what killed ones left."""
    others = [evaluation(7)]

    def write_another(*_: object, **__: object) -> None:
        if others:
            write_evaluation(str(tmp_path), others.pop())

    calls.before(os, "rename", write_another)
    write_evaluation(str(tmp_path), evaluation(5))
    assert [each.global_step for each in read_evaluations(str(tmp_path))] == [5, 7]


def test_evaluations_are_plain_json(tmp_path: Path) -> None:
    write_evaluation(str(tmp_path), evaluation(7, final=True))
    [path] = (tmp_path / "eval").iterdir()
    assert json.loads(path.read_text()) == {
        "global_step": 7,
        "checkpoint": "ckpt-7",
        "final": True,
        "metrics": {"loss": 1.0, "zero": 0.0},
        "seconds": 0.5,
    }


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=["nan", "inf", "-inf"])
def test_a_metric_that_is_not_finite_is_read_back(tmp_path: Path, value: float) -> None:
    """A model that diverged has such a loss; its evaluation must not be unreadable."""
    item = evaluation(5).model_copy(update={"metrics": {"loss": value}})
    write_evaluation(str(tmp_path), item)
    [found] = read_evaluations(str(tmp_path))
    np.testing.assert_equal(found.metrics["loss"], value)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"global_step": "x"}', "[" * 100_000, "\xff"], ids=range(6)
)
def test_a_damaged_evaluation_is_named_and_the_others_are_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    for step in (5, 6):
        write_evaluation(str(tmp_path), evaluation(step))
    damaged = tmp_path / "eval" / "step-0000000005.json"
    damaged.write_text(text, encoding="latin-1")
    assert read_evaluations(str(tmp_path)) == [evaluation(6)]
    assert f"{damaged} is no result of an evaluation" in caplog.text


def test_other_files_beside_evaluations_are_left_alone(tmp_path: Path) -> None:
    write_evaluation(str(tmp_path), evaluation(5))
    (tmp_path / "eval" / "notes.txt").write_text("mine")
    assert len(read_evaluations(str(tmp_path))) == 1
