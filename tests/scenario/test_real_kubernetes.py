"""A job file on a real Kubernetes: ``E2E_K8S=1 pytest tests/scenario/test_real_kubernetes.py``.

The current context of ``KUBECONFIG`` is used, in a namespace of the test's own, which it makes and
deletes with ``kubectl``. ``E2E_K8S_IMAGE`` names an image of the digits that the cluster has or can
pull, by default ``windlass-digits:0.1.0``; ``E2E_K8S_LOAD`` a command that brings one there without
a registry (``kind load image-archive digits.tar``), run once before the tests;
``E2E_K8S_ACCESS`` how the claim may be mounted, by default ``ReadWriteOnce``, which a cluster of
one node has. Where no StorageClass is the default one, the test makes a volume of a folder in
``/tmp`` of the node that it runs a first pod on.

The programs pause after each step, so that they last about as long on any cluster: long enough to
be scaled and disrupted, and some four minutes more.
"""

import json
import os
import shlex
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from helpers import processes
from helpers.waiting import scaled, wait_until

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.timeout(1800),
    pytest.mark.needs("a Kubernetes cluster"),
]

JOB = """\
name: digits
image: {image}
program: train.py
arguments: [--steps, {steps}, --pause-s, "0.02"]
roles:
  chief: {{resources: {{cpu: 100m, memory: 512Mi}}}}
  ps: {{count: 2, resources: {{cpu: 100m, memory: 512Mi}}}}
  worker: {{count: 2, resources: {{cpu: 100m, memory: 512Mi}}}}
storage: {{size: 1Gi, access: {access}}}
security: {{mode: insecure}}
kubernetes: {{namespace: {namespace}, image_pull_policy: IfNotPresent, grace_s: 30}}
"""


STEPS = 24_000  # of all workers and the chief, each of which makes fewer than 50 in a second


def kubectl(*arguments: str, check: bool = True, given: object = None, limit_s: float = 300) -> str:
    """What kubectl says.

    Args:
        arguments: Of kubectl.
        check: It has to succeed.
        given: An object for ``-f -``.
        limit_s: How long it may take.
    """
    done = subprocess.run(
        ["kubectl", *arguments],  # noqa: S607
        input=None if given is None else json.dumps(given),
        capture_output=True,
        text=True,
        timeout=scaled(limit_s),
        check=False,
    )
    assert done.returncode == 0 or not check, done.stderr
    return done.stdout + done.stderr


IMAGE = os.environ.get("E2E_K8S_IMAGE", "windlass-digits:0.1.0")


@pytest.fixture(scope="module", autouse=True)
def _image_is_there() -> None:
    if load := os.environ.get("E2E_K8S_LOAD"):
        subprocess.run(shlex.split(load), check=True, timeout=900)


@pytest.fixture
def namespace() -> Iterator[str]:
    name = f"windlass-test-{uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    classes = "{.items[*].metadata.annotations.storageclass\\.kubernetes\\.io/is-default-class}"
    has_volumes = "true" in kubectl("get", "storageclass", "-o", f"jsonpath={classes}")
    if not has_volumes:
        make_volume(name)
    restricted = "pod-security.kubernetes.io/enforce=restricted"
    kubectl("label", "namespace", name, restricted)
    yield name
    # A namespace that is deleted with Jobs in it hangs on the finalizers of their pods.
    kubectl("delete", "jobs,statefulsets", "--all", "-n", name, "--ignore-not-found", check=False)
    gone = ("wait", "--for=delete", "pods", "--all", "-n", name, "--timeout=180s")
    kubectl(*gone, check=False)
    kubectl("delete", "namespace", name, "--wait=false")
    if not has_volumes:
        kubectl("delete", "persistentvolume", name, "--wait=false")


def make_volume(namespace: str) -> None:
    """A volume for the job's claim: a folder of a node, which a pod makes writable for all."""
    folder = {"path": f"/tmp/{namespace}", "type": "DirectoryOrCreate"}  # noqa: S108 - of the node
    container = {
        "name": "folder",
        "image": IMAGE,
        "command": ["python", "-c", "import os; os.chmod('/folder', 0o777)"],
        "securityContext": {"runAsUser": 0},
        "volumeMounts": [{"name": "folder", "mountPath": "/folder"}],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "folder", "namespace": namespace},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "containers": [container],
            "volumes": [{"name": "folder", "hostPath": folder}],
        },
    }
    kubectl("create", "-f", "-", given=pod)
    phase = "jsonpath={.status.phase}=Succeeded"
    kubectl("wait", "-n", namespace, f"--for={phase}", "pod/folder", "--timeout=180s")
    node = kubectl("get", "-n", namespace, "pod/folder", "-o", "jsonpath={.spec.nodeName}")
    kubectl("delete", "-n", namespace, "pod/folder")
    label = r"jsonpath={.metadata.labels.kubernetes\.io/hostname}"
    host = kubectl("get", f"node/{node}", "-o", label)
    is_here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": namespace},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": namespace, "name": "digits-checkpoints"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [is_here]}]}},
            "hostPath": folder,
        },
    }
    kubectl("create", "-f", "-", given=volume)


def evict(namespace: str, pod: str) -> None:
    """Ask for a pod's end as a drained node does."""
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": namespace},
    }
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
    kubectl("create", "--raw", path, "-f", "-", given=eviction)


def dev_overlay(folder: Path) -> Path:
    """``overlays/dev`` with the image of this run and more steps, as kustomize takes it."""
    name, _, tag = IMAGE.rpartition(":")
    relative = "/".join([".."] * len(folder.parts[1:]))  # kustomize takes no absolute paths
    (folder / "kustomization.yaml").write_text(
        f"resources: [{relative}{processes.ROOT}/deploy/k8s/overlays/dev]\n"
        f"images: [{{name: windlass-digits, newName: '{name}', newTag: '{tag}'}}]\n"
        "patches:\n"
        "- target: {kind: Job, name: digits-(chief|worker)}\n"
        "  patch: |\n"
        "    - op: replace\n"
        "      path: /spec/template/spec/containers/0/args\n"
        f"      value: [train.py, --, --steps, '{STEPS}', --pause-s, '0.02']\n"
    )
    return folder


@pytest.fixture
def k8s(namespace: str, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``windlass k8s …`` with a job file of the namespace."""
    access = os.environ.get("E2E_K8S_ACCESS", "ReadWriteOnce")
    file = tmp_path / "windlass.yaml"
    text = JOB.format(image=IMAGE, access=access, namespace=namespace, steps=STEPS)
    file.write_text(text)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*processes.WINDLASS, "k8s", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=scaled(900),
            check=False,
        )

    return run


def test_a_job_is_applied_scaled_disrupted_followed_and_deleted(
    k8s: Callable[..., subprocess.CompletedProcess[str]], namespace: str
) -> None:
    def done(*arguments: str) -> str:
        result = k8s(*arguments)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def status() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(done("status", "--json"))
        return found

    def states() -> dict[str, str]:
        return {each["task"]: each["state"] for each in status()["tasks"]}

    done("apply", "--dry-run")
    done("apply")
    wait_until(lambda: status()["phase"] != "Pending", 300, str(status()))
    followed: list[str] = []
    follower = threading.Thread(target=lambda: followed.append(done("logs", "-f", "chief")))
    follower.start()
    wait_until(lambda: states().get("worker:1") == "Running", 300, "the second worker")
    assert "worker:3 runs" in done("scale", "4")
    assert "worker:1 has left" in done("scale", "1")
    wait_until(lambda: "worker:3" not in states(), 60, "the last of its pods")
    ended = k8s("status", "--watch")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    follower.join()
    (log,) = followed
    saved = [line for line in log.splitlines() if "| saved" in line or " saved " in line]
    assert len(saved) == len(set(saved))
    assert "accuracy of the chief's last values: 0.9" in log

    # A ps that is evicted comes back under its name.
    evict(namespace, "digits-ps-0")
    wait_until(lambda: states()["ps:0"] == "Running", 120)

    done("delete", "--checkpoints")
    wait_until(lambda: "No resources" in kubectl("get", "all,pvc", "-n", namespace), 180)


def test_a_change_that_is_refused_leaves_the_job_alone_and_a_namespace_goes_with_its_job(
    k8s: Callable[..., subprocess.CompletedProcess[str]], namespace: str, tmp_path: Path
) -> None:
    assert k8s("apply").returncode == 0
    wait_until(lambda: "digits: Running" in k8s("status").stdout, 300)

    def pods() -> str:
        uids = "jsonpath={.items[*].metadata.uid}"
        return kubectl("get", "pods", "-n", namespace, "-o", uids)

    before = pods()
    file = tmp_path / "windlass.yaml"
    file.write_text(file.read_text().replace(IMAGE, "registry.invalid/none:1"))
    refused = k8s("apply")
    assert refused.returncode == 2
    assert "nothing was changed" in refused.stderr
    assert "--replace" in refused.stderr
    assert len(refused.stderr) < 1000
    assert pods() == before
    deleted = k8s("delete", "--namespace-too")
    assert deleted.returncode == 0, deleted.stderr
    assert f"Namespace {namespace} deleted" in deleted.stdout
    assert k8s("status").returncode == 9


def test_what_cannot_start_says_why(
    k8s: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    file = tmp_path / "windlass.yaml"
    text = file.read_text()
    file.write_text(text.replace(IMAGE, "registry.invalid/none:1").replace("100m", "99999"))

    def reasons() -> str:
        return k8s("status").stdout

    assert k8s("apply").returncode == 0
    wait_until(lambda: "Insufficient cpu" in reasons(), 120)
    assert "lower resources" in reasons()
    assert k8s("delete").returncode == 0
    file.write_text(text.replace(IMAGE, "registry.invalid/none:1"))
    wait_until(lambda: k8s("apply").returncode == 0, 120)
    wait_until(lambda: "registry.invalid/none:1" in reasons(), 180)
    assert "check `image`" in reasons()


def test_the_dev_overlay_trains_is_scaled_and_outlives_an_eviction(
    namespace: str, tmp_path: Path
) -> None:
    overlay = str(dev_overlay(tmp_path))
    kubectl("apply", "-n", namespace, "-k", overlay)

    def field(of: str, path: str) -> str:
        return kubectl("get", "-n", namespace, of, "-o", f"jsonpath={{{path}}}", check=False)

    def scale(count: int) -> None:
        spec = {"parallelism": count, "completions": count}
        patch = json.dumps({"spec": spec})
        kubectl("patch", "-n", namespace, "job/digits-worker", "--type=merge", "-p", patch)

    def is_ready(job: str, count: int) -> bool:
        return field(f"job/digits-{job}", ".status.ready") == str(count)

    wait_until(lambda: is_ready("chief", 1) and is_ready("worker", 2), 300, "the first pods")
    with (tmp_path / "log").open("w") as output:
        command = [*processes.WINDLASS, "k8s", "logs", "-f", "chief"]
        follower = subprocess.Popen(
            [*command, "--name", "digits", "-n", namespace], stdout=output, stderr=subprocess.STDOUT
        )
        try:
            for count in (4, 1):
                scale(count)
                wait_until(partial(is_ready, "worker", count), 180, f"{count} workers")
            evict(namespace, "digits-ps-0")  # the chief saves, all start anew and go on
            # The chief waits a minute for the worker that has left, and as long at the end.
            complete = ("--for=condition=complete", "--timeout=900s", "job/digits-chief")
            kubectl("wait", "-n", namespace, *complete, limit_s=960)
            assert follower.wait(scaled(120)) == 0
        finally:
            follower.kill()
            follower.wait()
    log = (tmp_path / "log").read_text()  # before and after the eviction, of one pod
    assert log.count("accuracy of the chief's last values: 0.9") == 1, log[-4000:]
    assert log.count(" saved ") >= 2, log[-4000:]
    kubectl("delete", "-n", namespace, "-k", overlay)
    wait_until(lambda: "No resources" in kubectl("get", "all,pvc", "-n", namespace), 180)
