"""What tasks get from their launchers."""

from typing import Any

import pytest

from ropewalk.annexes.jobfile.model import JobFile
from ropewalk.annexes.jobfile.plan import (
    ANY_ROLE,
    COMPOSE,
    KUBERNETES,
    SLURM,
    SLURM_SHARED,
    Part,
    Place,
    plan_task,
    variables,
)
from ropewalk.cluster.resolvers.tf_config import TFConfigClusterResolver, write_tf_config
from ropewalk.core.settings import Settings
from ropewalk.core.task import TaskId
from ropewalk.launch.processes.process import process_environment, process_settings

PLACE = Place(
    checkpoints="/checkpoints", tls="/tls", token="/tokens", health_port=1,  # noqa: S106
    metrics_port=2,
    grace_s=60, join_timeout_s=600, address={"TF_CONFIG": "{}"},
)  # fmt: skip


def job(workers: int = 2, **fields: Any) -> JobFile:
    roles = {"chief": {"count": 1}, "ps": {"count": 1}, "worker": {"count": workers}}
    return JobFile(name="digits", program="train.py", **{"roles": roles, **fields})


def environment(role: str, parts: tuple[Part, ...], of: JobFile | None = None) -> dict[str, str]:
    return dict(plan_task(of or job(), role, PLACE, parts).environment)


@pytest.mark.parametrize("parts", [KUBERNETES, COMPOSE], ids=["kubernetes", "compose"])
def test_a_container_gets_the_same_on_kubernetes_and_under_compose(
    parts: tuple[Part, ...],
) -> None:
    chief = environment("chief", parts)
    assert chief["TF_CONFIG"] == "{}"
    assert chief["ROPEWALK_WAIT_FOR_WORKERS"] == "2"
    assert chief["ROPEWALK_LEAVE_GRACE_S"] == "45", "three quarters of the grace period"
    assert chief["ROPEWALK_MODEL_DIR"] == "/checkpoints/digits"
    assert chief["ROPEWALK_TLS_KEY"] == "/tls/tls.key"
    assert chief["HOME"] == "/tmp"  # noqa: S108
    assert "ROPEWALK_METRICS_PORT" not in chief
    assert environment("chief", parts, job(metrics=True))["ROPEWALK_METRICS_PORT"] == "2"
    assert "ROPEWALK_WAIT_FOR_WORKERS" not in environment("worker", parts)


@pytest.mark.parametrize("parts", [KUBERNETES, COMPOSE, SLURM_SHARED])
def test_a_chief_without_workers_waits_for_none(parts: tuple[Part, ...]) -> None:
    assert "ROPEWALK_WAIT_FOR_WORKERS" not in environment("chief", parts, job(workers=0))


def test_on_kubernetes_who_saves_nothing_gets_no_model_directory_and_a_ps_stays() -> None:
    assert "ROPEWALK_MODEL_DIR" not in environment("worker", KUBERNETES)
    assert environment("ps", KUBERNETES)["ROPEWALK_STAY_WITHOUT_CHIEF"] == "true"
    in_sync = job(roles={"chief": {"count": 0}, "ps": {"count": 0}, "worker": {"count": 2}})
    assert "ROPEWALK_MODEL_DIR" in environment("worker", KUBERNETES, in_sync)


@pytest.mark.parametrize("parts", [KUBERNETES, COMPOSE], ids=["kubernetes", "compose"])
def test_what_the_user_says_wins(parts: tuple[Part, ...]) -> None:
    said = job(settings={"leave_grace_s": 7}, environment={"HOME": "/home/me"})
    chief = environment("chief", parts, said)
    assert chief["ROPEWALK_LEAVE_GRACE_S"] == "7.0"
    assert chief["HOME"] == "/home/me"


@pytest.mark.parametrize("mode", ["mtls", "insecure"])
def test_under_slurm_roles_share_all_but_their_own_files_and_variables(mode: str) -> None:
    said = job(security={"mode": mode}, environment={"A": "all"})
    shared = variables(said, ANY_ROLE, PLACE, SLURM_SHARED)
    own = environment("worker", SLURM, said)
    assert shared["A"] == "all"
    assert shared["ROPEWALK_WAIT_FOR_WORKERS"] == "2"
    assert not shared.keys() & own.keys()
    insecure = {name for name in {**shared, **own} if "INSECURE" in name}
    assert insecure == ({"ROPEWALK_INSECURE"} if mode == "insecure" else set())


@pytest.mark.parametrize(
    ("mode", "kinds"), [("insecure", ()), ("mtls", ("tls",)), ("token", ("tls", "token"))]
)
def test_a_plan_names_the_files_that_the_mode_needs(mode: str, kinds: tuple[str, ...]) -> None:
    assert plan_task(job(security={"mode": mode}), "ps", PLACE, COMPOSE).credentials == kinds


def test_a_process_has_no_port_of_its_launcher_and_the_settings_win_over_the_users() -> None:
    launcher = Settings(health_port=7, metrics_port=8, stay_without_chief=True, model_dir="/m")
    settings = process_settings(launcher, job_id="j")
    assert (settings.health_port, settings.metrics_port, settings.job_id) == (0, 0, "j")
    user = {"ROPEWALK_MODEL_DIR": "/other", "A": "1"}
    chosen = process_environment(settings, "{}", own={"ROPEWALK_JOB_ID": "k"}, user=user)
    assert chosen["ROPEWALK_MODEL_DIR"] == "/m"
    assert (chosen["A"], chosen["ROPEWALK_JOB_ID"], chosen["TF_CONFIG"]) == ("1", "k", "{}")


def test_tf_config_is_read_as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"chief": ["a:1"], "worker": ["b:2", "c:3"]}
    monkeypatch.setenv("TF_CONFIG", write_tf_config(cluster, TaskId("worker", 1)))
    read = TFConfigClusterResolver()
    assert read.cluster_spec().as_dict() == cluster
    assert (read.task_type, read.task_id) == ("worker", 1)
