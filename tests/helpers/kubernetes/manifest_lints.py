"""What a schema does not say about manifests, and an API server or a cluster refuses.

Pure: objects in, sentences out. Measured on a real API server: strict validation by schema passes a
Job with ``restartPolicy: Always``, an upper-case container name, a port 99999 and half a GPU.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ropewalk.cluster.resolvers.template import parse_replicas
from ropewalk.core.exit_codes import ExitCode
from ropewalk.core.settings import Settings

from .manifests import Manifest, PodTemplate, pod_templates

Objects = tuple[Manifest, ...]
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_PERMANENT = set(range(1, 128))
_OURS = {f"ROPEWALK_{name.upper()}" for name in Settings.model_fields} | {
    "ROPEWALK_ROLE", "ROPEWALK_REPLICAS", "ROPEWALK_HOST_TEMPLATE", "ROPEWALK_ENDS_JOB",
    "ROPEWALK_HOLDS",
    "ROPEWALK_POD_FAILURES", "ROPEWALK_STATUS_OBJECT", "ROPEWALK_STATUS_JOB",
    "ROPEWALK_STATUS_JOB_UID",
    "ROPEWALK_CODE_DIGEST", "ROPEWALK_CODE_PARTS",
}  # fmt: skip


def problems(objects: Objects) -> list[str]:
    """All that is wrong with these objects."""
    return [said for lint in LINTS for said in lint(objects)]


def _containers(kind: PodTemplate) -> Iterator[Manifest]:
    yield from kind.spec.get("initContainers", [])
    yield from kind.spec["containers"]


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    wanted = selector.get("matchLabels", selector)
    return bool(wanted) and wanted.items() <= labels.items()


def names(objects: Objects) -> Iterator[str]:
    """Names are DNS labels, and those of pods are short enough for their ordinal."""
    for each in objects:
        name = each["metadata"]["name"]
        if not _SUBDOMAIN.fullmatch(name):
            yield f"{each['kind']} {name}: not a name in DNS"
        if each["kind"] in ("Service", "StatefulSet", "Job") and not _LABEL.fullmatch(name):
            yield f"{each['kind']} {name}: not a label of at most 63 characters"
    for kind in pod_templates(objects):
        if len(f"{kind.name}-{kind.count}") > 63:
            yield f"{kind.owner}: its pods' host names have more than 63 characters"
        for container in _containers(kind):
            if not _LABEL.fullmatch(container["name"]):
                yield f"{kind.owner}: container {container['name']!r} is no DNS label"


def selectors(objects: Objects) -> Iterator[str]:
    """What selects pods selects some, and a controller its own."""
    kinds = list(pod_templates(objects))
    for each in objects:
        what = f"{each['kind']} {each['metadata']['name']}"
        spec = each.get("spec", {})
        if each["kind"] == "StatefulSet":
            if not _selects(spec["selector"], spec["template"]["metadata"]["labels"]):
                yield f"{what}: its selector does not select its own pods"
        elif each["kind"] == "Service":
            if not any(_selects(spec["selector"], kind.labels) for kind in kinds):
                yield f"{what}: its selector selects no pod"
        elif each["kind"] in ("PodDisruptionBudget", "NetworkPolicy"):
            selector = spec.get("selector") or spec.get("podSelector")
            if not any(_selects(selector, kind.labels) for kind in kinds):
                yield f"{what}: its selector selects no pod"
    for kind in kinds:
        for spread in kind.spec.get("topologySpreadConstraints", []):
            if not _selects(spread["labelSelector"], kind.labels):
                yield f"{kind.owner}: pods are spread over others than themselves"


def ports(objects: Objects) -> Iterator[str]:
    """Ports are ports, and those that are named exist."""
    kinds = list(pod_templates(objects))
    for kind in kinds:
        for container in _containers(kind):
            known: dict[str, int] = {
                port["name"]: port["containerPort"] for port in container.get("ports", [])
            }
            used = list(known.values())
            for name in ("startupProbe", "readinessProbe", "livenessProbe"):
                probe = container.get(name, {})
                asked = probe.get("grpc") or probe.get("tcpSocket") or probe.get("httpGet") or {}
                port = asked.get("port")
                if isinstance(port, str) and port not in known:
                    yield f"{kind.owner}: {name} asks port {port!r}, which the container has not"
                elif port is not None:
                    used.append(known.get(port, port))
            yield from (f"{kind.owner}: {port} is no port" for port in used if not 0 < port < 65536)
    for each in objects:
        if each["kind"] != "Service":
            continue
        selected = [kind for kind in kinds if _selects(each["spec"]["selector"], kind.labels)]
        for port in each["spec"]["ports"]:
            target = port.get("targetPort", port["port"])
            for kind in selected:
                there = {p["name"] for c in _containers(kind) for p in c.get("ports", [])}
                if isinstance(target, str) and target not in there:
                    yield f"Service {each['metadata']['name']}: {kind.owner} has no port {target!r}"


def references(objects: Objects) -> Iterator[str]:
    """What is named is there: volumes, claims, Services, containers, variables."""
    made = {(each["kind"], each["metadata"]["name"]) for each in objects}
    for each in objects:
        if each["kind"] == "StatefulSet" and ("Service", each["spec"]["serviceName"]) not in made:
            yield f"StatefulSet {each['metadata']['name']}: no Service has its serviceName"
    for kind in pod_templates(objects):
        subdomain = kind.spec.get("subdomain")
        if subdomain and ("Service", subdomain) not in made:
            yield f"{kind.owner}: no Service is called {subdomain}, its subdomain"
        volumes = {volume["name"]: volume for volume in kind.spec.get("volumes", [])}
        for volume in volumes.values():
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            if claim and ("PersistentVolumeClaim", claim) not in made:
                yield f"{kind.owner}: nobody makes the claim {claim}"
        for container in _containers(kind):
            for mount in container.get("volumeMounts", []):
                if mount["name"] not in volumes:
                    yield f"{kind.owner}: no volume is called {mount['name']}"
                if "subPath" in mount and "secret" in volumes.get(mount["name"], {}):
                    yield f"{kind.owner}: a Secret mounted by subPath never changes"
            yield from _variables(kind, container)
        for rule in kind.job.get("podFailurePolicy", {}).get("rules", []):
            named = rule.get("onExitCodes", {}).get("containerName")
            if named and named not in {each["name"] for each in _containers(kind)}:
                yield f"{kind.owner}: podFailurePolicy speaks of a container {named!r}"


def _variables(kind: PodTemplate, container: Manifest) -> Iterator[str]:
    known: set[str] = set()
    for variable in container.get("env", []):
        name, value = variable["name"], variable.get("value", "")
        if not isinstance(value, str):
            yield f"{kind.owner}: {name} is {value!r}, which is not text: quote it"
            continue
        missing = set(re.findall(r"\$\(([A-Za-z_0-9]+)\)", value)) - known
        if missing:
            yield f"{kind.owner}: {name} refers to {', '.join(missing)}, which comes later or never"
        if name in known:
            yield f"{kind.owner}: {name} is set twice"
        if name.startswith("ROPEWALK_") and name not in _OURS:
            yield f"{kind.owner}: Ropewalk reads no {name}"
        known.add(name)


def restarts(objects: Objects) -> Iterator[str]:
    """Who restarts what, by which exit codes."""
    for kind in pod_templates(objects):
        policy = kind.spec.get("restartPolicy")
        if kind.kind == "Job" and policy not in ("Never", "OnFailure"):
            yield f"{kind.owner}: restartPolicy {policy} is not for Jobs"
        if kind.job.get("podFailurePolicy"):
            if policy != "Never":
                yield f"{kind.owner}: podFailurePolicy needs restartPolicy Never"
            rules = kind.job["podFailurePolicy"]["rules"]
            codes = {
                r["action"][:4]: set(r["onExitCodes"]["values"])
                for r in rules
                if "onExitCodes" in r
            }
            if codes.get("Fail") not in (_PERMANENT, _PERMANENT | {ExitCode.JOIN_TIMEOUT}):
                yield f"{kind.owner}: the exit codes that fail it are not 1 to 127"
            if codes.get("Igno") != {ExitCode.DRAINED}:
                yield f"{kind.owner}: a task that was asked to stop counts as a failure"
            if rules[0].get("onPodConditions", [{}])[0].get("type") != "DisruptionTarget":
                yield f"{kind.owner}: a disruption counts as a failure"
        if kind.job.get("completionMode", "Indexed") != "Indexed":
            yield f"{kind.owner}: its pods have no index"
        if kind.job and kind.job["completions"] != kind.job["parallelism"]:
            yield f"{kind.owner}: parallelism is not completions, and cannot be changed with it"
        if kind.job.get("backoffLimitPerIndex") is None and "maxFailedIndexes" in kind.job:
            yield f"{kind.owner}: maxFailedIndexes needs backoffLimitPerIndex"


def resources(objects: Objects) -> Iterator[str]:
    """GPUs are whole and only limited; what is asked for is within the limit's kinds."""
    for kind in pod_templates(objects):
        for container in _containers(kind):
            asked = container.get("resources", {})
            for limits in asked.values():
                for name, value in limits.items():
                    if "gpu" in name and not re.fullmatch(r"\d+", str(value)):
                        yield f"{kind.owner}: {value} of {name}: devices come whole"
            if "memory" not in asked.get("limits", {}):
                yield f"{kind.owner}: a ps takes four fifths of the node without a memory limit"


def security(objects: Objects) -> Iterator[str]:
    """Pod security ``restricted``, and no more rights than a task needs."""
    for kind in pod_templates(objects):
        spec, pod = kind.spec, kind.spec.get("securityContext", {})
        wanted = {
            "runAsNonRoot": pod.get("runAsNonRoot") is True,
            "a numeric user above 0": pod.get("runAsUser", 0) > 0,
            "fsGroup": isinstance(pod.get("fsGroup"), int),
            "seccompProfile RuntimeDefault": pod.get("seccompProfile", {}).get("type")
            == "RuntimeDefault",
            "automountServiceAccountToken false, or an account of its own": spec.get(
                "automountServiceAccountToken"
            )
            is False
            or bool(spec.get("serviceAccountName")),
            "enableServiceLinks false": spec.get("enableServiceLinks") is False,
            "no host namespaces": not any(
                spec.get(f"host{what}") for what in ("Network", "PID", "IPC")
            ),
            "no hostPath": not any("hostPath" in volume for volume in spec.get("volumes", [])),
        }
        for container in _containers(kind):
            own = container.get("securityContext", {})
            mounts = {mount["mountPath"] for mount in container.get("volumeMounts", [])}
            wanted |= {
                "allowPrivilegeEscalation false": own.get("allowPrivilegeEscalation") is False,
                "a root file system that is read-only": own.get("readOnlyRootFilesystem") is True,
                "no capabilities": own.get("capabilities", {}).get("drop") == ["ALL"],
                "a /tmp to write to": "/tmp" in mounts,  # noqa: S108 - of the pod
                "no host ports": not any("hostPort" in port for port in container.get("ports", [])),
            }
        yield from (f"{kind.owner}: wants {what}" for what, is_so in wanted.items() if not is_so)


def probes(objects: Objects) -> Iterator[str]:
    """Probes ask the task itself, and patiently; the time to end is enough for a checkpoint."""
    for kind in pod_templates(objects):
        for container in _containers(kind):
            variables = {each["name"]: each.get("value", "") for each in container.get("env", [])}
            health = int(variables.get("ROPEWALK_HEALTH_PORT", "0"))
            known = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
            for name in ("startupProbe", "readinessProbe"):
                if container.get(name, {}).get("grpc", {}).get("port") != health:
                    yield f"{kind.owner}: {name} is no gRPC probe of the health port"
            alive = container.get("livenessProbe", {})
            if known.get(alive.get("tcpSocket", {}).get("port")) != health:
                yield f"{kind.owner}: livenessProbe does not open a connection to the health port"
            if alive.get("periodSeconds", 0) < 10 or alive.get("failureThreshold", 0) < 6:
                yield f"{kind.owner}: livenessProbe gives up within a minute"
            if variables.get("ROPEWALK_SUPERVISE") != "true":
                yield f"{kind.owner}: a task that has lost a peer costs the pod"
            if container.get("terminationMessagePolicy") != "FallbackToLogsOnError":
                yield f"{kind.owner}: nothing says in the pod's status why a task has ended"
            leave_s = float(variables.get("ROPEWALK_LEAVE_GRACE_S", "5"))
            stop = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {})
            if not stop.get("seconds"):
                yield f"{kind.owner}: has no preStop"
            if kind.spec.get("terminationGracePeriodSeconds", 30) < leave_s + 10:
                yield f"{kind.owner}: is killed before ROPEWALK_LEAVE_GRACE_S is over"


def connections(objects: Objects) -> Iterator[str]:
    """Network policies, where enforced, leave open what a job needs: each other, DNS, the API.

    A pod that a policy selects for a direction has the ways that its policies name, and no other.
    """
    kinds = list(pod_templates(objects))
    for kind in kinds:
        ways_in, ways_out = (_ways(objects, kind, each) for each in ("Ingress", "Egress"))
        for other in kinds:
            if ways_in is not None and not _lets(ways_in, "from", other, ("grpc", 2222)):
                yield f"{kind.owner}: network policies keep {other.owner} out"
            if ways_out is not None and not _lets(ways_out, "to", other, (2222,)):
                yield f"{kind.owner}: network policies close the way to {other.owner}"
        if ways_out is None:
            continue
        opened = {port["port"] for way in ways_out for port in way["ports"]}
        if 53 not in opened:
            yield f"{kind.owner}: network policies close the way to DNS"
        if kind.spec.get("serviceAccountName") and 443 not in opened:
            yield f"{kind.owner}: network policies close the way to the API server"


def _ways(objects: Objects, kind: PodTemplate, direction: str) -> list[Manifest] | None:
    """The rules of all policies of these pods; None: no policy is about them."""
    specs = [
        each["spec"]
        for each in objects
        if each["kind"] == "NetworkPolicy"
        and direction in each["spec"]["policyTypes"]
        and _selects(each["spec"]["podSelector"], kind.labels)
    ]
    return [way for spec in specs for way in spec.get(direction.lower(), [])] if specs else None


def _lets(ways: list[Manifest], side: str, other: PodTemplate, ports: tuple[Any, ...]) -> bool:
    return any(
        port["port"] in ports
        and any(_selects(peer.get("podSelector", {}), other.labels) for peer in way.get(side, []))
        for way in ways
        for port in way["ports"]
    )


def labels(objects: Objects) -> Iterator[str]:
    """Pods are found by the labels that Kubernetes recommends."""
    for kind in pod_templates(objects):
        wanted = {f"app.kubernetes.io/{each}" for each in ("name", "instance", "component")}
        for missing in sorted(wanted - kind.labels.keys()):
            yield f"{kind.owner}: its pods have no label {missing}"


def counts(objects: Objects) -> Iterator[str]:
    """Pods know how many there are of each role."""
    found: dict[str, int] = {}
    for kind in pod_templates(objects):
        role = kind.labels.get("app.kubernetes.io/component", "")
        found[role] = found.get(role, 0) + kind.count
    for kind in pod_templates(objects):
        for container in _containers(kind):
            variables = {each["name"]: each.get("value", "") for each in container.get("env", [])}
            if said := variables.get("ROPEWALK_REPLICAS"):
                for role, count in parse_replicas(said).items():
                    if found.get(role) != count:
                        yield f"{kind.owner}: ROPEWALK_REPLICAS says {role}={count}, but {found}"


Lint = Callable[[Objects], Iterator[str]]
LINTS: tuple[Lint, ...] = (
    names, selectors, ports, references, restarts, resources, security, probes, connections, labels,
    counts,
)  # fmt: skip


# Fields of custom resources, whose schemas are not in the package that knows Kubernetes' own.
FIELDS: dict[str, Any] = {
    "TFJob": {
        "runPolicy": {
            "cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit",
            "schedulingPolicy", "suspend", "managedBy",
        },
        "tfReplicaSpecs": {"Chief", "PS", "Worker", "Evaluator", "Master"},
        "successPolicy": None,
        "enableDynamicWorker": None,
    },
    "JobSet": {
        "network": {"enableDNSHostnames", "subdomain", "publishNotReadyAddresses"},
        "successPolicy": {"operator", "targetReplicatedJobs"},
        "failurePolicy": {"maxRestarts", "restartStrategy", "rules"},
        "replicatedJobs": None,
        "suspend": None,
        "ttlSecondsAfterFinished": None,
        "managedBy": None,
    },
    "PodGroup": {"minMember": None, "scheduleTimeoutSeconds": None, "queue": None},
    "Certificate": {
        "commonName": None,
        "dnsNames": None,
        "ipAddresses": None,
        "duration": None,
        "isCA": None,
        "issuerRef": {"name", "kind", "group"},
        "privateKey": {"algorithm", "encoding", "rotationPolicy", "size"},
        "renewBefore": None,
        "secretName": None,
        "uris": None,
        "usages": None,
    },
    "Issuer": {"selfSigned": {"crlDistributionPoints"}, "ca": {"secretName"}},
    "PodMonitor": {
        "selector": {"matchLabels", "matchExpressions"},
        "namespaceSelector": None,
        "podTargetLabels": None,
        "jobLabel": None,
        "podMetricsEndpoints": None,
    },
    "TrainingRuntime": {"mlPolicy": {"numNodes"}, "podGroupPolicy": None, "template": {"spec"}},
    "TrainJob": {
        "runtimeRef": {"apiGroup", "kind", "name"},
        "trainer": {"image", "command", "args", "env", "numNodes", "resourcesPerNode"},
        "initializer": None,
        "labels": None,
        "annotations": None,
        "suspend": None,
        "managedBy": None,
    },
}  # fmt: skip


def unknown_fields(each: Manifest) -> list[str]:
    """Fields of a custom resource that its kind has not."""
    fields, spec = FIELDS[each["kind"]], each["spec"]
    wrong = [name for name in spec if name not in fields]
    for name, inner in fields.items():
        if inner is not None and name in spec:
            wrong += [f"{name}.{key}" for key in spec[name] if key not in inner]
    for role, made in spec.get("tfReplicaSpecs", {}).items():
        wrong += [f"{role}.{key}" for key in made if key not in _OF_A_REPLICA]
    return wrong


_OF_A_REPLICA = {"replicas", "restartPolicy", "template"}
