"""The cluster of the current context, by kubectl: namespaces, pods, and jobs of a job file there.

``E2E_K8S_IMAGE`` names an image of the digits that the cluster has or can pull, by default
``ropewalk-digits:0.1.0``; ``E2E_K8S_ACCESS`` how the claim may be mounted, by default
``ReadWriteOnce``, which a cluster of one node has.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from helpers import processes
from helpers.waiting import scaled, wait_until

Json = dict[str, Any]
IMAGE = os.environ.get("E2E_K8S_IMAGE", "ropewalk-digits:0.1.0")

# Programs pause after each step, so that they last about as long on any cluster: long enough to be
# scaled and disrupted, and some four minutes more.
STEPS = 24_000  # of all workers and the chief, each of which makes fewer than 50 in a second
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
kubernetes: {{namespace: {namespace}, image_pull_policy: IfNotPresent, grace_s: 30{more}}}
"""


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


# -- namespaces and volumes ------------------------------------------------------------------------


@contextmanager
def own_namespace() -> Iterator[str]:
    """A namespace that allows what is ``restricted``, and a volume for a claim in it."""
    name = f"ropewalk-test-{uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    classes = "{.items[*].metadata.annotations.storageclass\\.kubernetes\\.io/is-default-class}"
    has_volumes = "true" in kubectl("get", "storageclass", "-o", f"jsonpath={classes}")
    if not has_volumes:
        _make_volume(name)
    restricted = "pod-security.kubernetes.io/enforce=restricted"
    kubectl("label", "namespace", name, restricted)
    yield name
    # A namespace that is deleted with Jobs in it hangs on the finalizers of their pods.
    kubectl("delete", "jobs,statefulsets", "--all", "-n", name, "--ignore-not-found", check=False)
    gone = ("wait", "--for=delete", "pods", "--all", "-n", name, "--timeout=180s")
    kubectl(*gone, check=False)
    kubectl("delete", "namespace", name, "--wait=false", check=False)
    if not has_volumes:
        kubectl("delete", "persistentvolume", name, "--wait=false")


def _make_volume(namespace: str) -> None:
    """A volume for the job's claim: a folder of a node, which a pod makes writable for all."""
    folder = {"path": f"/tmp/{namespace}", "type": "DirectoryOrCreate"}  # noqa: S108 - of the node
    container = {
        "name": "folder",
        "image": IMAGE,
        "command": ["python", "-c", "import os; os.chmod('/folder', 0o777)"],
        "securityContext": {"runAsUser": 0},
        "volumeMounts": [{"name": "folder", "mountPath": "/folder"}],
    }
    volumes = [{"name": "folder", "hostPath": folder}]
    kubectl("create", "-f", "-", given=_pod("folder", namespace, container, volumes=volumes))
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


def _pod(name: str, namespace: str, container: Json, **spec: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "containers": [container],
            **spec,
        },
    }


def output_of(namespace: str, *command: str) -> str:
    """What a command says in a pod of the image, as ``restricted`` allows it."""
    container = {
        "name": "command",
        "image": IMAGE,
        "command": list(command),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    kubectl("create", "-f", "-", given=_pod("command", namespace, container))
    phase = "jsonpath={.status.phase}=Succeeded"
    kubectl("wait", "-n", namespace, f"--for={phase}", "pod/command", "--timeout=180s")
    said = kubectl("logs", "-n", namespace, "pod/command")
    kubectl("delete", "-n", namespace, "pod/command")
    return said


# -- what happens to pods --------------------------------------------------------------------------


def evict(namespace: str, pod: str) -> None:
    """Ask for a pod's end as a drained node does."""
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": namespace},
    }
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
    kubectl("create", "--raw", path, "-f", "-", given=eviction)


def kill(namespace: str, pod: str) -> None:
    """Have a pod be gone at once, as with its node."""
    kubectl("delete", "-n", namespace, f"pod/{pod}", "--grace-period=0", "--force", "--wait=false")


def delete(namespace: str, pod: str) -> None:
    """Delete a pod, which gets SIGTERM."""
    kubectl("delete", "-n", namespace, f"pod/{pod}", "--wait=false")


def terminate(namespace: str, pod: str) -> None:
    """Send SIGTERM to a container, which is started again in its pod."""
    ask = "import os, signal; os.kill(1, signal.SIGTERM)"
    kubectl("exec", "-n", namespace, pod, "--", "python", "-c", ask)


# -- jobs ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RealJob:
    """The job ``digits`` in a namespace, and ``ropewalk k8s`` with its job file.

    Attributes:
        folder: Where the job file is.
        namespace: The namespace.
    """

    folder: Path
    namespace: str

    def write(self, more: str = "", changes: Mapping[str, str] | None = None) -> None:
        """Write the job file.

        Args:
            more: Further fields of ``kubernetes``, each behind a comma.
            changes: Texts to replace, and what with.
        """
        access = os.environ.get("E2E_K8S_ACCESS", "ReadWriteOnce")
        text = JOB.format(
            image=IMAGE, access=access, namespace=self.namespace, steps=STEPS, more=more
        )
        for old, new in (changes or {}).items():
            assert old in text, old
            text = text.replace(old, new)
        (self.folder / "ropewalk.yaml").write_text(text)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """``ropewalk k8s …``."""
        return subprocess.run(
            [*processes.ROPEWALK, "k8s", *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=scaled(900),
            check=False,
        )

    def done(self, *arguments: str) -> str:
        """What ``ropewalk k8s …`` prints; it has to succeed."""
        result = self.run(*arguments)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def status(self) -> Json:
        """The job's status, also if it has failed."""
        found: Json = json.loads(self.run("status", "--json").stdout)
        return found

    def states(self) -> dict[str, str]:
        """State by task."""
        return {each["task"]: each["state"] for each in self.status()["tasks"]}

    def step(self) -> int:
        """The global step, as the chief has written it last."""
        return int(self.status()["progress"]["step"] or 0)

    def pods(self) -> dict[str, str]:
        """Name of the pod by task."""
        return {each["task"]: each["pod"] for each in self.status()["tasks"]}

    def uids(self) -> dict[str, str]:
        """Unique id by name of a pod."""
        listed = json.loads(kubectl("get", "pods", "-n", self.namespace, "-o", "json"))
        return {each["metadata"]["name"]: each["metadata"]["uid"] for each in listed["items"]}

    def until_running(self, limit_s: float = 300) -> None:
        """Wait until every task runs."""

        def all_run() -> bool:
            states = self.states()
            return bool(states) and set(states.values()) == {"Running"}

        wait_until(all_run, limit_s, "every task runs")
