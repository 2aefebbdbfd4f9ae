"""Options of pods in a job file, as Kubernetes spells them. Pure.

Each function spells one subject, and gives nothing for what the file does not say.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from ..job.container import HEALTH_PORT
from ..job.pod_part import NodeRule, PodPart, PodRule, PodSecurity, ProbeTimes, Spread, Volume
from .names import REPLICATED

Json = dict[str, Any]

_STARTUP_PERIOD_S = 2
_LIVENESS_PERIOD_S = 10
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def variables(pod: PodPart) -> list[Json]:
    """Set variables whose values Secrets and ConfigMaps have."""
    found = []
    for each in pod.env:
        kind = "secretKeyRef" if each.secret else "configMapKeyRef"
        source: Json = {"name": each.secret or each.config_map, "key": each.key or each.name}
        if each.optional:
            source["optional"] = True
        found.append({"name": each.name, "valueFrom": {kind: source}})
    return found


def variable_sources(pod: PodPart) -> list[Json]:
    """Set the Secrets and ConfigMaps of which every entry is a variable; the others win over
    them.
    """
    found = []
    for each in pod.env_from:
        source: Json = {"name": each.secret or each.config_map}
        if each.optional:
            source["optional"] = True
        prefix = {"prefix": each.prefix} if each.prefix else {}
        found.append({**prefix, "secretRef" if each.secret else "configMapRef": source})
    return found


def volumes(pod: PodPart) -> list[Json]:
    """Set the volumes with data."""
    return [{"name": each.name, **_source(each)} for each in pod.volumes]


def _source(volume: Volume) -> Json:
    if volume.claim:
        read_only = {"readOnly": True} if volume.read_only else {}
        return {"persistentVolumeClaim": {"claimName": volume.claim, **read_only}}
    if volume.secret:
        # Root's, and readable by the pod's group.
        return {"secret": {"secretName": volume.secret, "defaultMode": 0o440}}
    if volume.config_map:
        return {"configMap": {"name": volume.config_map}}
    return {"emptyDir": {"sizeLimit": volume.empty}}


def mounts(pod: PodPart) -> list[Json]:
    """Set where the volumes are in the container."""
    return [
        {
            "name": each.name,
            "mountPath": each.path,
            **({"readOnly": True} if each.read_only else {}),
            **({"subPath": each.sub_path} if each.sub_path else {}),
        }
        for each in pod.volumes
    ]


def security_context(pod: PodPart) -> Json:
    """Set the identity of a pod's processes."""
    who = pod.security or PodSecurity()
    groups = {"supplementalGroups": who.supplemental_groups} if who.supplemental_groups else {}
    return {
        "runAsNonRoot": True,
        "runAsUser": who.user,
        "runAsGroup": who.group,
        "fsGroup": who.fs_group,
        **groups,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security(pod: PodPart) -> Json:
    """Set what the container may not do."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": (pod.security or PodSecurity()).read_only_root,
        "capabilities": {"drop": ["ALL"]},
    }


def probes(pod: PodPart, *, waits_for_replicas: bool = False) -> Json:
    """Set how the kubelet asks a task. Ready means that it answers, not that the others are there.

    Args:
        pod: Options of a role's pods in the job file.
        waits_for_replicas: Whether it is a ps, which is ready once each share has its replicas:
            only then the next one may be stopped, by a StatefulSet that rolls or by an eviction.
    """
    times = pod.probes or ProbeTimes()
    return {
        "startupProbe": {
            **_asks("startup"),
            "periodSeconds": _STARTUP_PERIOD_S,
            "failureThreshold": times.startup_s // _STARTUP_PERIOD_S,
        },
        "readinessProbe": {
            **_asks(REPLICATED if waits_for_replicas else "readiness"),
            "periodSeconds": times.readiness_s,
            "timeoutSeconds": 5,
        },
        # The kernel accepts it, so a task that computes for long is not killed for it.
        "livenessProbe": {
            "tcpSocket": {"port": "health"},
            "periodSeconds": _LIVENESS_PERIOD_S,
            "timeoutSeconds": 5,
            "failureThreshold": times.liveness_s // _LIVENESS_PERIOD_S,
        },
    }


def _asks(what: str) -> Json:
    return {"grpc": {"port": HEALTH_PORT, "service": what}}


def placement(pod: PodPart, own_labels: dict[str, str]) -> Json:
    """Set on which nodes pods run, and before whom.

    Args:
        pod: Options of a role's pods in the job file.
        own_labels: By which the pods of that role are selected.
    """
    found: Json = {}
    if pod.node_selector:
        found["nodeSelector"] = dict(pod.node_selector)
    if affinity := _affinity(pod, own_labels):
        found["affinity"] = affinity
    if pod.priority_class:
        found["priorityClassName"] = pod.priority_class
    if pod.service_account:
        found["serviceAccountName"] = pod.service_account
    return found


def spread(rules: Iterable[Spread], own_labels: dict[str, str]) -> list[Json]:
    """Set how the pods of a role are spread."""
    return [
        {
            "maxSkew": each.max_skew,
            "topologyKey": each.topology,
            "whenUnsatisfiable": "DoNotSchedule" if each.must else "ScheduleAnyway",
            "labelSelector": {"matchLabels": own_labels},
        }
        for each in rules
    ]


def _affinity(pod: PodPart, own_labels: dict[str, str]) -> Json:
    found = {
        "nodeAffinity": _of_nodes(pod.nodes),
        "podAffinity": _of_pods([each for each in pod.pods if not each.apart], own_labels),
        "podAntiAffinity": _of_pods([each for each in pod.pods if each.apart], own_labels),
    }
    return {name: value for name, value in found.items() if value}


def _of_nodes(rules: Sequence[NodeRule]) -> Json:
    def expression(rule: NodeRule) -> Json:
        values = {"values": rule.values} if rule.values else {}
        return {"key": rule.key, "operator": rule.operator, **values}

    required = [expression(each) for each in rules if not each.weight]
    preferred = [
        {"weight": each.weight, "preference": {"matchExpressions": [expression(each)]}}
        for each in rules
        if each.weight
    ]
    found: Json = {}
    if required:
        found[_REQUIRED] = {"nodeSelectorTerms": [{"matchExpressions": required}]}
    return {**found, **({_PREFERRED: preferred} if preferred else {})}


def _of_pods(rules: Sequence[PodRule], own_labels: dict[str, str]) -> Json:
    def term(rule: PodRule) -> Json:
        labels = dict(rule.labels) or own_labels
        return {"labelSelector": {"matchLabels": labels}, "topologyKey": rule.topology}

    required = [term(each) for each in rules if not each.weight]
    preferred = [
        {"weight": each.weight, "podAffinityTerm": term(each)} for each in rules if each.weight
    ]
    named = {_REQUIRED: required, _PREFERRED: preferred}
    return {name: value for name, value in named.items() if value}
