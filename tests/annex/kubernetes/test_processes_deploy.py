"""What the manifests and the compose file start: their commands and variables, as processes."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path

import pytest

from helpers.compose import services
from helpers.kubernetes.manifests import Pod, build, pods
from helpers.kubernetes.pods import Container, Running, serves
from helpers.processes import ROOT
from helpers.waiting import scaled
from ropewalk.core.checkpoint import CheckpointReader, latest_checkpoint
from ropewalk.telemetry.catalogue import CATALOGUE, REPORTED

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.needs("mounts and host names of its own"),
    pytest.mark.usefixtures("no_process_left"),
]
STEPS = 300
# Of a job without a coordinator, replicas, growing tables and readers.
SHOWN_BY = (
    "every task",
    "every task of a job",
    "chief, workers, evaluator",
    "ps",
    "ps, chief",
    "chief, or worker 0 in its place",
)
MOUNTS = ("/checkpoints", "/tmp")  # noqa: S108 - of the containers


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[list[Container]], Running]]:
    with ExitStack() as stack:

        def run(containers: list[Container]) -> Running:
            running = Running(containers, tmp_path)
            stack.callback(running.kill)
            return running

        yield run


def metrics_of(address: str) -> dict[str, float]:
    """Values by name and labels, as a scrape of this pod finds them; nothing without an answer."""
    connection = HTTPConnection(address, 2224, timeout=scaled(5))
    try:
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
    except OSError:
        return {}
    finally:
        connection.close()
    lines = [line.rpartition(" ") for line in page.splitlines() if line.startswith("ropewalk_")]
    return {name: float(value) for name, _, value in lines}


def in_place(pod: Pod, folder: Path) -> dict[str, str]:
    """The pod's variables, with a folder of this machine where volumes would be mounted."""

    def here(value: str) -> str:
        mount = next((path for path in MOUNTS if value.startswith(path)), "")
        return str(folder) + value.removeprefix(mount) if mount else value

    # As components/metrics does.
    return {
        "ROPEWALK_METRICS_PORT": "2224",
        **{name: here(value) for name, value in pod.environment.items()},
    }


def check_training(model_dir: Path) -> None:
    saved = latest_checkpoint(str(model_dir))
    assert saved is not None
    assert saved.global_step >= STEPS
    assert CheckpointReader(saved.path).manifest.final


@pytest.mark.annex("moments")
@pytest.mark.needs("kubectl or kustomize")
def test_the_pods_of_the_manifests_train(
    start: Callable[[list[Container]], Running],
    write_program: Callable[..., str],
    wait_until: Callable[..., None],
    tmp_path: Path,
) -> None:
    steps = {"int(sys.argv[1]), float(sys.argv[2])": f"{STEPS}, 0.01"}
    assert write_program(replace=steps) == str(tmp_path / "train.py")
    made = list(pods(build("overlays/dev"), "training"))
    roles = {pod.name: pod.role for pod in made}
    assert sorted(roles.values()) == ["chief", "evaluator", "ps", "ps", "worker", "worker"]
    running = start(
        [
            Container(pod.name, (f"{pod.name}.{pod.domain}",), pod.command, in_place(pod, tmp_path))
            for pod in made
        ]
    )
    for name, address in running.addresses.items():
        wait_until(lambda address=address: serves(address), 40, f"a probe of {name}")
    seen = {name: metrics_of(address) for name, address in running.addresses.items()}
    wait_until(
        lambda: metrics_of(running.addresses["digits-worker-0"]).get("ropewalk_steps_total", 0) > 0,
        60,
        "a step in the metrics",
    )
    chief = metrics_of(running.addresses["digits-chief-0"])
    ps = metrics_of(running.addresses["digits-ps-0"])
    ended = running.wait(90)
    assert {name: end.code for name, end in ended.items()} == dict.fromkeys(ended, 0), ended
    check_training(tmp_path / "digits")
    for name, role in roles.items():  # also before there was a cluster
        assert any(f'role="{role}"' in each for each in seen[name]), (name, seen[name])
    assert chief['ropewalk_job_phase{phase="running"}'] == 1
    assert chief['ropewalk_job_tasks{role="worker",state="alive"}'] == 2
    assert ps["ropewalk_ps_pushes_total"] > 0
    assert ps["ropewalk_ps_value_bytes"] > 0
    names = {each.partition("{")[0] for each in (*chief, *ps)}
    shown = {re.sub("_seconds_(bucket|count|sum)$", "_seconds", name) for name in names}
    assert shown | {REPORTED.name} == {
        metric.name for metric in CATALOGUE.values() if metric.shown_by in SHOWN_BY
    }
    for name, role in roles.items():
        took_part = "has done 5 steps" in ended[name].text
        assert took_part == (role in ("chief", "worker")), ended[name].text


@pytest.mark.annex("service")
@pytest.mark.needs("kubectl or kustomize")
def test_the_pods_of_a_standing_cluster_take_a_program(
    start: Callable[[list[Container]], Running],
    write_program: Callable[..., str],
    wait_until: Callable[..., None],
    run_cli: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    running = start(
        [
            Container(pod.name, (f"{pod.name}.{pod.domain}",), pod.command, in_place(pod, tmp_path))
            for pod in pods(build("overlays/standalone"), "training")
        ]
    )
    for name, address in running.addresses.items():
        wait_until(lambda address=address: serves(address), 40, f"a probe of {name}")

    def nodes() -> float:
        return metrics_of(running.addresses["desk-chief-0"]).get(
            'ropewalk_cluster_nodes{state="alive"}', 0
        )

    wait_until(lambda: nodes() >= 1, 20, "a node of the cluster")
    assert metrics_of(running.addresses["desk-chief-0"])["ropewalk_node_tasks"] == 0
    write_program()
    chief = f"{running.addresses['desk-chief-0']}:2222"
    asked = run_cli("status", chief, "--insecure")
    assert f"`ropewalk jobs --cluster {chief}` shows its jobs" in asked.stderr
    arguments = ["--cluster", chief, "--insecure", "--workers", "1", "--ps", "1"]
    submitted = run_cli("submit", "train.py", *arguments, "--", "60", "0")
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    assert "has done 5 steps" in submitted.stdout
    for process in running.processes.values():
        process.terminate()
    assert {end.code for end in running.wait(60).values()} <= {0, 143}


@pytest.mark.annex("certificates")
def test_the_services_of_docker_compose_train_the_digits(
    start: Callable[[list[Container]], Running], wait_until: Callable[..., None], tmp_path: Path
) -> None:
    shutil.copy(ROOT / "examples" / "digits" / "train.py", tmp_path)
    tasks = services()
    credentials = tasks.pop("credentials")
    assert sorted(tasks) == ["chief-0", "evaluator-0", "ps-0", "ps-1", "worker-0", "worker-1"]

    # What the first service does, into the volumes that the others mount.
    volumes = {
        f"secrets-{role}": tmp_path / role for role in ("chief", "ps", "worker", "evaluator")
    }
    volumes["checkpoints"] = tmp_path / "checkpoints"
    for folder in volumes.values():
        folder.mkdir(mode=0o700)
    shell, *words = credentials.in_place({**volumes, "./deploy": ROOT / "deploy"}).command
    made = subprocess.run(
        [
            shell,
            *(str(tmp_path) if word == "/credentials" else word for word in words),
        ],
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
    )
    assert made.returncode == 0, made.stderr

    running = start(
        [
            Container(name, (name,), task.command, task.environment)
            for name, service in tasks.items()
            for task in [service.in_place(volumes)]
        ]
    )
    probe = tasks["worker-1"].healthcheck
    wait_until(lambda: serves(running.addresses["worker-1"]), 60, "a worker's health port")
    assert probe[0] == "python"
    ended = running.wait(100)
    assert {name: end.code for name, end in ended.items()} == dict.fromkeys(ended, 0), ended
    assert "accuracy of the chief's last values" in ended["chief-0"].text
    check_training(tmp_path / "checkpoints" / "digits")
    assert "accuracy" in ended["evaluator-0"].text
