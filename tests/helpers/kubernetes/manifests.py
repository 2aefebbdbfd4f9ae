"""Kubernetes manifests of the repository: built, and taken apart into what runs."""

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from ..processes import ROOT
from ..tools import kustomize

Manifest = dict[str, Any]
K8S = ROOT / "deploy" / "k8s"
BUILT = [
    "base",
    "rbac",
    "podmonitor",
    *(f"overlays/{path.name}" for path in sorted((K8S / "overlays").iterdir())),
]
_NEEDED = (5, 0)  # of kustomize: components, replacements and anchors


@cache
def build(name: str) -> tuple[Manifest, ...]:
    """The objects of a kustomization below ``deploy/k8s``; needs kubectl or kustomize."""
    command = [*kustomize(), str(K8S / name)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    return tuple(yaml.safe_load_all(result.stdout))


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """Equal pods.

    Attributes:
        owner: What makes them, for messages: ``Job digits-chief``.
        kind: Kind of the object that makes them: Job, StatefulSet or, for a TFJob, Pod.
        name: That object's name; the pods' names begin with it.
        count: How many.
        template: Metadata and spec.
        job: The Job's spec; empty if none makes them.
    """

    owner: str
    kind: str
    name: str
    count: int
    template: Manifest
    job: Manifest

    @property
    def spec(self) -> Manifest:
        """Of a pod."""
        spec: Manifest = self.template["spec"]
        return spec

    @property
    def labels(self) -> dict[str, str]:
        """Of a pod."""
        labels: dict[str, str] = self.template.get("metadata", {}).get("labels", {})
        return labels


def pod_templates(objects: tuple[Manifest, ...]) -> Iterator[PodTemplate]:
    """Every kind of pod that the objects make."""
    for each in objects:
        kind, name, spec = each["kind"], each["metadata"]["name"], each.get("spec", {})
        owner = f"{kind} {name}"
        if kind == "Job":
            yield PodTemplate(owner, kind, name, spec["completions"], spec["template"], spec)
        elif kind == "StatefulSet":
            yield PodTemplate(owner, kind, name, spec["replicas"], spec["template"], {})
        elif kind in ("JobSet", "TrainingRuntime"):
            jobs = spec if kind == "JobSet" else spec["template"]["spec"]
            for job in jobs["replicatedJobs"]:
                made = job["template"]["spec"]
                label = f"{owner}, {job['name']}"
                pods = f"{name}-{job['name']}-0"
                yield PodTemplate(label, "Job", pods, made["completions"], made["template"], made)
        elif kind == "TFJob":
            for role, made in spec["tfReplicaSpecs"].items():
                label, pods = f"{owner}, {role}", f"{name}-{role.lower()}"
                yield PodTemplate(label, "Pod", pods, made["replicas"], made["template"], {})


@dataclass(frozen=True, slots=True)
class Pod:
    """One container of one pod, as the kubelet would start it.

    Attributes:
        name: The pod's name, which is its host name.
        role: As its labels say.
        command: What is executed.
        environment: With fields of the pod and references to other variables filled in.
        domain: Below which its host name is found in DNS.
        spec: Of the pod.
    """

    name: str
    role: str
    command: tuple[str, ...]
    environment: dict[str, str]
    domain: str
    spec: Manifest


def pods(objects: tuple[Manifest, ...], namespace: str) -> Iterator[Pod]:
    """Every pod, with the name, the index and the variables that controllers and kubelet give."""
    services = {each["metadata"]["name"] for each in objects if each["kind"] == "Service"}
    made_by_a_controller = any(each["kind"] in ("JobSet", "TrainJob") for each in objects)
    for kind in pod_templates(objects):
        [container] = kind.spec["containers"]
        for index in range(kind.count):
            name = f"{kind.name}-{index}"
            given = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
            if kind.kind == "Job":
                given["JOB_COMPLETION_INDEX"] = str(index)
            role = kind.labels["app.kubernetes.io/component"]
            if kind.kind == "Pod":  # the operator of TFJobs
                given["TF_CONFIG"] = _tf_config(kind, objects, index, namespace)
            variables = environment_of(container, kind.labels, namespace, given)
            words = [*container["command"], *container.get("args", [])]
            command = tuple(expand(word, variables) for word in words)
            if kind.kind == "Pod":
                yield Pod(name, role, command, variables, f"{namespace}.svc", kind.spec)
                continue
            domain = kind.spec.get("subdomain") or _service_of(kind, objects)
            assert domain in services or made_by_a_controller, domain
            yield Pod(name, role, command, variables, f"{domain}.{namespace}.svc", kind.spec)


def _tf_config(kind: PodTemplate, objects: tuple[Manifest, ...], index: int, namespace: str) -> str:
    """What the operator of TFJobs tells a pod (kubeflow/trainer, pkg/controller.v1/tensorflow)."""
    cluster: dict[str, list[str]] = {}
    for each in pod_templates(objects):
        names = [f"{each.name}-{n}.{namespace}.svc:2222" for n in range(each.count)]
        cluster[each.labels["app.kubernetes.io/component"]] = names
    task = {"type": kind.labels["app.kubernetes.io/component"], "index": index}
    return json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})


def _service_of(kind: PodTemplate, objects: tuple[Manifest, ...]) -> str:
    [found] = [
        each
        for each in objects
        if f"{each['kind']} {each['metadata']['name']}" == kind.owner.partition(", ")[0]
    ]
    spec = found["spec"]["template"]["spec"] if "template" in found["spec"] else found["spec"]
    return str(found["spec"].get("serviceName") or spec["network"]["subdomain"])


def environment_of(
    container: Manifest, labels: dict[str, str], namespace: str, given: dict[str, str]
) -> dict[str, str]:
    """The variables of a container."""
    variables = dict(given)
    for each in container.get("env", []):
        if "valueFrom" not in each:
            variables[each["name"]] = expand(each["value"], variables)
            continue
        path = each["valueFrom"]["fieldRef"]["fieldPath"]
        label = re.fullmatch(r"metadata\.labels\['(.+)'\]", path)
        if path.startswith("metadata.annotations"):  # of controllers, for pods that replace others
            variables[each["name"]] = ""
            continue
        variables[each["name"]] = (
            labels[label[1]] if label else {"metadata.namespace": namespace}[path]
        )
    return variables


def expand(text: str, variables: dict[str, str]) -> str:
    """``$(NAME)`` filled in as the kubelet does; what is not known stays as it is."""
    return re.sub(r"\$\(([A-Z_a-z0-9]+)\)", lambda m: variables.get(m[1], m[0]), text)
