"""Pods start on volumes as a kubelet makes them: as a user of their own, with a root that is
read-only and an emptyDir that anybody may write to."""

import base64
import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers import processes, tls_files
from helpers.jobfile import digits
from helpers.kubernetes.kubelet import Files
from helpers.kubernetes.manifests import K8S, Manifest, Pod, build, pods
from helpers.kubernetes.pods import Running, in_pod, serves
from helpers.processes import ROOT
from helpers.waiting import wait_until
from ropewalk.annexes.kubernetes.code import pack_code
from ropewalk.annexes.kubernetes.manifests import manifests
from ropewalk.annexes.kubernetes.names import Form
from ropewalk.core.settings import Settings
from ropewalk.engine.kernel_cache import candidates, choose_folder

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.needs("mounts and host names of its own", "kubectl or kustomize"),
    pytest.mark.real_start,
]
IMAGE_USER = 10001
OVERLAYS = [path.name for path in sorted((K8S / "overlays").iterdir())]
RENDERED = [*(form.value for form in Form), "code"]
OFTEN = ("prod", "tfjob", "code")  # of `make test`: the others have no volume that these lack


@pytest.fixture
def kernels(tmp_path: Path) -> str:
    """This machine's compiled kernels, which the image's user can read; empty: there are none."""
    found = choose_folder(candidates(Settings().kernel_cache)).path
    if found is None:
        return ""
    folder = tmp_path / "kernels"
    shutil.copytree(found, folder / found.name)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, IMAGE_USER, IMAGE_USER)
        path.chmod(0o700 if path.is_dir() else 0o600)
    return str(folder)


@pytest.fixture
def start(tmp_path: Path, kernels: str, no_process_left: str) -> Iterator[Callable[..., Running]]:
    """Starts pods; all end with the test, and their containers' tasks after them."""
    started = []

    def run(
        made: list[Pod], files: dict[str, Files] | None = None, folder: Path = tmp_path
    ) -> Running:
        started.append(Running([in_pod(pod) for pod in made], folder, files, kernels))
        return started[-1]

    yield run
    for running in started:
        running.kill()
    wait_until(lambda: not processes.marked(no_process_left), 20, "the tasks to end")


def rendered(form: str) -> tuple[Manifest, ...]:
    """The objects of a job file, in one of its forms."""
    job = digits()
    if form == "code":
        return tuple(manifests(job, code=pack_code(ROOT / "examples" / "digits", job)))
    return tuple(manifests(job, Form(form)))


def files_of(objects: tuple[Manifest, ...], made: list[Pod]) -> dict[str, Files]:
    """Content of the ConfigMaps, and of Secrets with certificates as cert-manager makes them."""
    content: dict[str, Files] = {
        each["metadata"]["name"]: {
            name: base64.b64decode(part) for name, part in each.get("binaryData", {}).items()
        }
        for each in objects
        if each["kind"] == "ConfigMap"
    }
    for role in {pod.role for pod in made}:
        hosts = tuple(f"*.{pod.domain}" for pod in made if pod.role == role)
        issued = tls_files.issued(role, None, hosts=hosts, job="digits")
        content[f"digits-{role}-tls"] = {
            "tls.crt": issued.certificate,
            "tls.key": issued.key,
            "ca.crt": tls_files.authority("test CA").pem,
        }
    return content


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in OFTEN else pytest.mark.soak)
        for name in (*OVERLAYS, *RENDERED)
    ],
)
def test_pods_of_every_role_start_on_volumes_as_a_kubelet_makes_them(
    name: str,
    start: Callable[..., Running],
    tmp_path: Path,
) -> None:
    shutil.copy(ROOT / "examples" / "digits" / "train.py", tmp_path)
    objects = build(f"overlays/{name}") if name in OVERLAYS else rendered(name)
    made = list({pod.role: pod for pod in pods(objects, "training")}.values())
    assert {"chief", "ps", "worker"} <= {pod.role for pod in made}
    wait_for_probes(start(made, files_of(objects, made)))


def wait_for_probes(running: Running) -> None:
    """Wait until each pod is ready."""
    for name, address in running.addresses.items():

        def answers_or_has_ended(name: str = name, address: str = address) -> bool:
            return serves(address) or running.processes[name].poll() is not None

        wait_until(answers_or_has_ended, 60, f"a probe of {name}")
        assert serves(address), running.said(name)


_DRIVER = """
import sys

import numpy as np
import ropewalk as rw

with rw.connect(sys.argv[1], insecure=True, workers=1, ps=1) as cluster:
    strategy = rw.distribute.ParameterServerStrategy(cluster.resolver)
    with strategy.scope():
        value = rw.Variable(np.ones(6, np.float32), name="value")
    print("the sum is", float(value.numpy().sum()))
"""


@pytest.mark.annex("service")
def test_a_program_in_a_pod_connects_to_a_standing_cluster(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    made = list({pod.role: pod for pod in pods(build("overlays/standalone"), "training")}.values())
    cluster = start(made)
    wait_for_probes(cluster)
    chief = made[[pod.role for pod in made].index("chief")]
    variables = chief.environment.items()
    driver = dataclasses.replace(
        chief,
        command=("python", "drive.py", f"{cluster.addresses[chief.name]}:2222"),
        environment={name: text for name, text in variables if not name.startswith("ROPEWALK_")},
    )
    folder = tmp_path / "driver"
    folder.mkdir()
    (folder / "drive.py").write_text(_DRIVER)
    running = start([driver], folder=folder)
    [ended] = running.wait(90).values()
    assert ended.code == 0, ended.text
    assert "the sum is 6.0" in ended.text
