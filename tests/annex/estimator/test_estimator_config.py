"""RunConfig: the cluster of TF_CONFIG as tf.estimator shows it."""

import json
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.annexes.estimator.run_config import RunConfig
from ropewalk.annexes.estimator.training_target import choose_model_dir, same_place
from ropewalk.core.errors import ConfigurationError

CLUSTER = {
    "chief": ["host0:2222"],
    "ps": ["host1:2222", "host2:2222"],
    "worker": ["host3:2222", "host4:2222"],
}


def set_tf_config(monkeypatch: pytest.MonkeyPatch, kind: str, index: int, **more: Any) -> None:
    config = {"cluster": CLUSTER, "task": {"type": kind, "index": index}} | more
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))


def test_defaults_are_tensorflows() -> None:
    config = RunConfig()
    assert repr(config.save_checkpoints_secs) == "600"  # a whole number, as programs print it
    assert config.save_checkpoints_steps is None
    assert config.keep_checkpoint_max == 5
    assert config.save_summary_steps == config.log_step_count_steps == 100
    assert (config.task_type, config.task_id, config.is_chief) == ("worker", 0, True)
    assert (config.num_worker_replicas, config.num_ps_replicas, config.master) == (1, 0, "")
    assert not config.cluster_spec


def test_steps_take_the_place_of_seconds() -> None:
    assert RunConfig(save_checkpoints_steps=5).save_checkpoints_secs is None
    assert RunConfig().replace(save_checkpoints_steps=5).save_checkpoints_secs is None
    assert RunConfig(save_checkpoints_steps=5).replace(model_dir="a").save_checkpoints_steps == 5


def test_the_last_interval_that_is_said_counts_and_zero_is_none() -> None:
    by_seconds = RunConfig(save_checkpoints_steps=5).replace(save_checkpoints_secs=7)
    assert (by_seconds.save_checkpoints_steps, by_seconds.save_checkpoints_secs) == (None, 7)
    assert RunConfig(save_checkpoints_steps=0).save_checkpoints_secs is None
    assert RunConfig(save_checkpoints_secs=0).save_checkpoints_secs == 0


def test_a_config_is_equal_to_itself_alone() -> None:
    config = RunConfig()
    assert config == config
    assert config != RunConfig()
    assert RunConfig(device_fn=lambda op: "/cpu:0").device_fn is not None


@pytest.mark.parametrize(
    ("kind", "index", "master", "number", "is_chief"),
    [
        ("chief", 0, "grpc://host0:2222", 0, True),
        ("worker", 1, "grpc://host4:2222", 2, False),
        ("ps", 0, "grpc://host1:2222", 3, False),
    ],
)
def test_every_task_has_its_place(
    kind: str, index: int, master: str, number: int, is_chief: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    set_tf_config(monkeypatch, kind, index)
    config = RunConfig()
    assert (config.task_type, config.task_id, config.master) == (kind, index, master)
    assert (config.global_id_in_cluster, config.is_chief) == (number, is_chief)
    assert (config.num_worker_replicas, config.num_ps_replicas) == (3, 2)
    assert config.cluster_spec.as_dict() == CLUSTER


@pytest.mark.parametrize("listed", [True, False])
def test_an_evaluator_is_outside_listed_or_not(
    listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"cluster": {**CLUSTER, "evaluator": ["host5:2222"]}} if listed else {}
    set_tf_config(monkeypatch, "evaluator", 0, **more)
    config = RunConfig()
    assert (config.task_type, config.is_chief, config.global_id_in_cluster) == (
        "evaluator", False, None,
    )  # fmt: skip
    assert (config.num_worker_replicas, config.num_ps_replicas) == (0, 0)
    assert not config.cluster_spec


def test_a_second_evaluator_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {**CLUSTER, "evaluator": ["host5:2222", "host6:2222"]}
    set_tf_config(monkeypatch, "evaluator", 1, cluster=cluster)
    with pytest.raises(ConfigurationError, match="2 tasks of job 'evaluator'"):
        RunConfig()


def test_a_cluster_without_chief_needs_a_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = {"worker": CLUSTER["worker"], "ps": CLUSTER["ps"]}
    set_tf_config(monkeypatch, "worker", 0, cluster=workers)
    with pytest.raises(ConfigurationError, match='must have one "chief" node'):
        RunConfig()
    RunConfig(train_distribute=rw.distribute.ParameterServerStrategy).check_cluster()


def test_an_evaluator_of_a_cluster_without_chief_says_what_its_workers_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = {"worker": CLUSTER["worker"], "ps": CLUSTER["ps"]}
    set_tf_config(monkeypatch, "evaluator", 0, cluster=workers)
    with pytest.raises(ConfigurationError, match='must have one "chief" node'):
        RunConfig()


def test_a_remote_cluster_and_one_of_tf_config_contradict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_tf_config(monkeypatch, "chief", 0)
    with pytest.raises(ConfigurationError, match="and a cluster in TF_CONFIG"):
        RunConfig(experimental_distribute=rw.estimator.DistributeConfig(remote_cluster="a:1"))


def test_the_strategies_of_experimental_distribute_are_those_of_the_config() -> None:
    strategy = rw.distribute.MirroredStrategy
    config = RunConfig(
        experimental_distribute=rw.estimator.DistributeConfig(strategy, eval_distribute=strategy)
    )
    assert config.train_distribute is config.eval_distribute is strategy
    with pytest.raises(ConfigurationError, match="give it once"):
        RunConfig(
            train_distribute=rw.distribute.ParameterServerStrategy,
            experimental_distribute=rw.estimator.DistributeConfig(strategy),
        )
    with pytest.raises(TypeError, match="train_distribute is a strategy"):
        RunConfig(train_distribute=3)  # type: ignore[arg-type]


def test_the_model_directory_comes_from_who_says_it_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROPEWALK_MODEL_DIR", "/settings")
    assert choose_model_dir(None, RunConfig()) == "/settings"
    assert choose_model_dir(None, RunConfig(model_dir="/config")) == "/config"
    assert choose_model_dir("memory://models", RunConfig()) == "memory://models"
    set_tf_config(monkeypatch, "chief", 0, model_dir="/tf_config")
    assert RunConfig().model_dir == RunConfig(model_dir="/tf_config").model_dir == "/tf_config"
    assert choose_model_dir(None, RunConfig()) == "/tf_config"


def test_model_directories_that_contradict_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    set_tf_config(monkeypatch, "chief", 0, model_dir="/tf_config")
    with pytest.raises(ValueError, match="must have the same value as the model_dir in TF_CONFIG"):
        RunConfig(model_dir="/config")
    with pytest.raises(ValueError, match="with different values: '/mine' in constructor"):
        choose_model_dir("/mine", RunConfig())
    for config, given in (({"model_dir": ""}, None), ({}, "")):
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        with pytest.raises(ValueError, match=r"model_dir .*is empty"):
            RunConfig(model_dir=given)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        pytest.param(
            {"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "worker", "index": 0}},
            'it must have one "chief" node',
            id="no chief",
        ),
        pytest.param({"cluster": CLUSTER}, "has a cluster but no task", id="no task"),
        pytest.param({"cluster": CLUSTER, "task": {"type": "chief"}}, "index must be", id="index"),
        pytest.param({"cluster": CLUSTER, "task": {"type": "worker"}}, "which worker", id="worker"),
        pytest.param(
            {"cluster": CLUSTER, "task": {"type": "evaluator", "index": 1}},
            "only be one `evaluator`",
            id="evaluator",
        ),
        pytest.param({"task": {"type": "chief", "index": 0}}, "has no cluster", id="no cluster"),
        pytest.param({"task": {"type": "worker", "index": 1}}, "has no cluster", id="worker 1"),
    ],
)
def test_a_tf_config_that_cannot_train_is_an_error_at_once(
    config: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    with pytest.raises(ValueError, match=message):
        RunConfig()


def test_masters_are_tensorflows(monkeypatch: pytest.MonkeyPatch) -> None:
    def masters(config: dict[str, Any]) -> tuple[str, str]:
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        run_config = RunConfig()
        return run_config.master, run_config.evaluation_master

    given = {"session_master": "local", "eval_session_master": "elsewhere"}
    assert masters({}) == ("", "")
    assert masters(given) == ("local", "elsewhere")
    for kind, address in (("chief", "grpc://host0:2222"), ("ps", "grpc://host1:2222")):
        task = {"cluster": CLUSTER, "task": {"type": kind, "index": 0}}
        assert masters(task) == (address, "")
        assert masters(task | given) == ("local", "")
    evaluator = {"cluster": CLUSTER, "task": {"type": "evaluator", "index": 0}}
    assert masters(evaluator) == ("", "")
    assert masters(evaluator | given) == ("", "elsewhere")
    one = {"cluster": {"chief": ["host0:2222"]}, "task": {"type": "chief", "index": 0}}
    assert masters(one) == ("", "")


def test_the_tasks_of_a_cluster_have_to_share_a_model_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_tf_config(monkeypatch, "chief", 0)
    with pytest.raises(ConfigurationError, match="have to share one"):
        choose_model_dir(None, RunConfig())


def test_model_directories_are_compared_by_what_they_are() -> None:
    assert same_place("/mnt/../mnt/a", "/mnt/a/")
    assert same_place("s3://bucket/a/", "s3://bucket/a")
    assert not same_place("/mnt/a", "s3://mnt/a")
