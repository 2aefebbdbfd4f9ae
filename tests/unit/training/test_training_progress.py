"""What a program tells its job, and what it asks of it: report, task_type, is_evaluator."""

import json

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.cluster.resolvers.resolved import ResolvedTask
from ropewalk.core.errors import TFConfigError
from ropewalk.core.settings import Settings
from ropewalk.core.task import TaskId
from ropewalk.distribute.program_cluster import in_cluster, program_cluster
from ropewalk.distribute.runtime import ClusterRuntime
from ropewalk.training.progress import report_metrics


def runtime(task: TaskId) -> ClusterRuntime:
    return ClusterRuntime(ResolvedTask(task, rw.ClusterSpec({}), TaskId("chief", 0)), Settings())


def test_reported_numbers_are_in_the_tasks_report_and_the_last_ones_stay() -> None:
    mine = runtime(TaskId("worker", 1))
    with in_cluster(mine):
        rw.training.report(total_steps=100, loss=np.float32(0.5), accuracy=np.array(1))
        rw.training.report(loss=0.25)
    report = mine.progress.report(None)
    assert report.metrics == {"loss": 0.25, "accuracy": 1.0}
    assert report.total_steps == 100
    assert all(type(value) is float for value in report.metrics.values())


def test_a_loss_may_be_what_a_framework_computed_for_its_gradient() -> None:
    class Loss:
        """A tensor of PyTorch, which NumPy takes only when it is detached."""

        requires_grad = True

        def detach(self) -> object:
            return np.float32(0.5)

    mine = runtime(TaskId("worker", 1))
    with in_cluster(mine):
        rw.training.report(loss=Loss())
    assert mine.progress.report(None).metrics == {"loss": 0.5}


def test_numbers_that_others_have_named_are_numbers_whatever_they_are_called() -> None:
    """A metric of Keras or of an Estimator may be called as an argument of ours is."""
    mine = runtime(TaskId("worker", 1))
    with in_cluster(mine):
        report_metrics({"total_steps": 0.5, "loss": 1})
    assert mine.progress.report(None).metrics == {"total_steps": 0.5, "loss": 1.0}
    assert mine.progress.report(None).total_steps == 0


def test_numbers_of_another_model_take_the_place_of_those_of_the_one_before() -> None:
    """But not of what the program has named; the last ones of a model stay."""
    mine = runtime(TaskId("worker", 1))
    with in_cluster(mine):
        rw.training.report(rate=0.5)
        report_metrics({"loss": 3, "mae": 2}, "teacher")
        report_metrics({"loss": 1, "val_loss": 2}, "teacher")
        assert mine.progress.metrics == {"rate": 0.5, "loss": 1.0, "mae": 2.0, "val_loss": 2.0}
        report_metrics({"loss": 4, "accuracy": 0.5}, "student")
        assert mine.progress.metrics == {"rate": 0.5, "loss": 4.0, "accuracy": 0.5}
        report_metrics({"mae": 7}, "teacher")
    assert mine.progress.metrics == {"rate": 0.5, "mae": 7.0}


def test_reporting_in_a_process_of_its_own_does_nothing() -> None:
    assert program_cluster() is None
    rw.training.report(total_steps=3, loss=1.0)


@pytest.mark.parametrize("value", [np.ones(2), "high"], ids=["vector", "text"])
def test_what_is_no_number_cannot_be_reported(value: object) -> None:
    with in_cluster(runtime(TaskId("worker", 0))), pytest.raises((TypeError, ValueError)):
        rw.training.report(loss=value)


@pytest.mark.parametrize("role", ["chief", "worker", "evaluator"])
def test_a_task_of_a_cluster_knows_its_role(role: str) -> None:
    with in_cluster(runtime(TaskId(role, 0))):
        assert rw.training.task_type() == role
        assert rw.training.is_evaluator() is (role == "evaluator")


def test_without_a_cluster_a_process_is_its_chief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert rw.training.task_type() == "chief"
    assert not rw.training.is_evaluator()


def test_a_plain_process_reads_its_role_from_tf_config(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"chief": ["h:1"], "ps": ["h:2"]}
    config = {"cluster": cluster, "task": {"type": "evaluator", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    assert rw.training.is_evaluator()
    monkeypatch.setenv("TF_CONFIG", "{")
    with pytest.raises(TFConfigError):
        rw.training.is_evaluator()


def test_a_report_without_a_session_has_the_global_step_of_the_program() -> None:
    mine = runtime(TaskId("evaluator", 0))
    mine.progress.global_step = 5
    assert mine.progress.report(None).global_step == 5
    assert mine.progress.report(None).transports == ()
