"""Warnings before a job is applied: what its pods name and the namespace lacks, quotas, and what
admission says to a pod.

Nothing here stops an apply. What is missing may come later, and pods wait for it; what the caller
may not look at is left out.
"""

import contextlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...core.errors import AccessError, RopewalkError
from .api import KubernetesApi, kind_of
from .manifests import VOLCANO_GROUP
from .refusals import account_of

Json = dict[str, Any]

_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_QUOTA = "exceeded quota"
# Provisioners that make file systems which one node mounts: of kind and k3s, and of block devices.
_OF_ONE_NODE = frozenset(
    {
        "rancher.io/local-path",
        "ebs.csi.aws.com",
        "kubernetes.io/aws-ebs",
        "pd.csi.storage.gke.io",
        "kubernetes.io/gce-pd",
        "disk.csi.azure.com",
        "kubernetes.io/azure-disk",
    }
)


def warnings(api: KubernetesApi, documents: Sequence[Json]) -> list[str]:
    """List what will keep pods of these objects from starting, one sentence each.

    Raises:
        NotFoundError: There is no such namespace.
    """
    api.check_namespace()
    found = [*_missing(api, documents), *_storage(api, documents), *_quotas(api, documents)]
    return list(dict.fromkeys([*found, *_refused_pods(api, documents)]))


def _missing(api: KubernetesApi, documents: Sequence[Json]) -> Iterator[str]:
    made = {(each["kind"], each["metadata"]["name"]) for each in documents}
    for (kind, name), components in sorted(needed(documents).items()):
        if (kind, name) in made or _exists(api, kind, name):
            continue
        roles = ", ".join(sorted(components))
        yield (
            f"there is no {kind} {name} in namespace {api.namespace}: pods of {roles} do not start "
            "before it is there"
        )


def needed(documents: Iterable[Json]) -> dict[tuple[str, str], set[str]]:
    """Collect the Secrets, ConfigMaps, claims and service accounts that pod templates name, by kind
    and name; and which components need them.
    """
    wanted: dict[tuple[str, str], set[str]] = {}
    for made in (each for document in documents for each in made_pods(document)):
        spec = made.spec
        for key in (*_of_volumes(spec), *_of_environments(spec), *_of_accounts(spec)):
            wanted.setdefault(key, set()).add(made.owner)
    return wanted


def _of_volumes(spec: Json) -> Iterator[tuple[str, str]]:
    for volume in spec.get("volumes") or []:
        sources = [volume, *((volume.get("projected") or {}).get("sources") or [])]
        for source in sources:
            secret, config = source.get("secret") or {}, source.get("configMap") or {}
            if name := secret.get("secretName") or secret.get("name"):
                yield from [] if secret.get("optional") else [("Secret", name)]
            if name := config.get("name"):
                yield from [] if config.get("optional") else [("ConfigMap", name)]
        if claim := volume.get("persistentVolumeClaim"):
            yield "PersistentVolumeClaim", claim["claimName"]


def _of_environments(spec: Json) -> Iterator[tuple[str, str]]:
    for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
        places = [each.get("valueFrom") or {} for each in container.get("env") or []]
        places += container.get("envFrom") or []
        for place in places:
            for kind, keys in (
                ("Secret", ("secretKeyRef", "secretRef")),
                ("ConfigMap", ("configMapKeyRef", "configMapRef")),
            ):
                for source in (place.get(key) or {} for key in keys):
                    if source.get("name") and not source.get("optional"):
                        yield kind, source["name"]


def _of_accounts(spec: Json) -> Iterator[tuple[str, str]]:
    if account := spec.get("serviceAccountName"):
        yield "ServiceAccount", account
    for each in spec.get("imagePullSecrets") or []:
        yield "Secret", each["name"]


def _storage(api: KubernetesApi, documents: Sequence[Json]) -> Iterator[str]:
    for document in documents:
        if document["kind"] != "PersistentVolumeClaim":
            continue
        name = document["metadata"]["name"]
        if _exists(api, "PersistentVolumeClaim", name):
            continue  # it has its volume, or waits for one already
        wanted = document["spec"].get("storageClassName")
        if wanted == "":
            continue  # a volume that was made by hand
        classes = _allowed(lambda: api.list_all("StorageClass").items, None)
        if classes is None:
            continue
        names = [each["metadata"]["name"] for each in classes]
        yield from _of_one_node(document, classes)
        if wanted and wanted not in names:
            known = ", ".join(names) or "none"
            yield (
                f"there is no StorageClass {wanted} for PersistentVolumeClaim {name} (there is "
                f"{known}): change storage.storage_class"
            )
        if not wanted and not any(map(_is_default, classes)):
            known = f": {', '.join(names)}" if names else ""
            yield (
                f"no StorageClass is the cluster's default one: name one as storage.storage_class"
                f"{known}, or make a volume for PersistentVolumeClaim {name}"
            )


def _of_one_node(claim: Json, classes: Sequence[Json]) -> Iterator[str]:
    """Yield why a claim for several nodes will wait for ever, if its StorageClass is known for
    that.
    """
    spec, name = claim["spec"], claim["metadata"]["name"]
    wanted = spec.get("storageClassName")
    for each in classes:
        is_meant = each["metadata"]["name"] == wanted if wanted else _is_default(each)
        provisioner = str(each.get("provisioner", ""))
        if is_meant and "ReadWriteMany" in spec["accessModes"] and provisioner in _OF_ONE_NODE:
            yield (
                f"StorageClass {each['metadata']['name']} ({provisioner}) has volumes for one node "
                f"alone, and PersistentVolumeClaim {name} asks for ReadWriteMany and waits; "
                "take storage.access ReadWriteOnce where one node is enough, another "
                "storage.storage_class, or a URL as storage.model_dir"
            )


def _is_default(item: Json) -> bool:
    return (item["metadata"].get("annotations") or {}).get(_DEFAULT_CLASS) == "true"


def _refused_pods(api: KubernetesApi, documents: Sequence[Json]) -> Iterator[str]:
    """Yield what admission says to a pod of each role, tried in a dry run: a PriorityClass or a
    RuntimeClass that is not there, limits of the namespace, policies. Jobs and StatefulSets are
    accepted all the same, and then have no pods.
    """
    for made in (each for document in documents for each in made_pods(document)):
        if VOLCANO_GROUP in (made.metadata.get("annotations") or {}):
            continue  # refused before its PodGroup is there
        # An account may be among what is applied; whether one is missing is said above.
        spec = {key: value for key, value in made.spec.items() if key != "serviceAccountName"}
        metadata = {**made.metadata, "name": f"{made.owner}-check"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        try:
            refusal = api.try_apply(pod)
        except RopewalkError:  # a webhook that fails, for instance
            return
        if refusal is None or refusal.status != 403 or account_of(refusal.message):
            continue
        if _QUOTA not in refusal.message:  # which counts pods that are there already
            words = refusal.words.partition(" is forbidden: ")[2] or refusal.words
            yield f"pods of {made.owner} will not be admitted: {words}"


def _quotas(api: KubernetesApi, documents: Sequence[Json]) -> Iterator[str]:
    quotas = _allowed(lambda: api.list_all("ResourceQuota").items, [])
    if not quotas:
        return
    # What is there already is counted as used.
    fresh = [
        each for each in documents if not _exists(api, kind_of(each), each["metadata"]["name"])
    ]
    total = total_of(fresh)
    for quota in quotas:
        yield from over_quota(quota, total)


def _exists(api: KubernetesApi, kind: str, name: str) -> bool:
    """Return whether an object is there, as far as the caller may know: else it is believed to
    be.
    """
    return bool(_allowed(lambda: api.exists(kind, name), True))


def _allowed(ask: Callable[[], Any], otherwise: Any) -> Any:
    """Ask; returns ``otherwise`` where the caller may not have the answer."""
    with contextlib.suppress(AccessError):
        return ask()
    return otherwise


_SUFFIXES = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0,
    "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip
_FORM = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)$")
_PLURALS = {
    "Job": "count/jobs.batch",
    "StatefulSet": "count/statefulsets.apps",
    "Service": "services",
    "PersistentVolumeClaim": "persistentvolumeclaims",
}


def amount(text: object) -> float:
    """Read a quantity as a number, in its base unit: processors, bytes or pieces. 0: it is none."""
    match = _FORM.match(str(text).strip())
    if match is None or match[2] not in _SUFFIXES:
        return 0.0
    return float(match[1]) * _SUFFIXES[match[2]]


def amounts_of(document: Json) -> dict[str, float]:
    """Compute what an object takes of a quota: itself, and the pods that are made for it.

    The keys are those of a ResourceQuota: ``pods``, ``requests.cpu``, ``limits.memory``, ….
    """
    spec = document.get("spec") or {}
    kind = document["kind"]
    total: dict[str, float] = defaultdict(float)
    if kind in _PLURALS:
        total[_PLURALS[kind]] += 1
    if kind == "PersistentVolumeClaim":
        requests = (spec.get("resources") or {}).get("requests") or {}
        total["requests.storage"] += amount(requests.get("storage", 0))
    for made in made_pods(document):
        total["pods"] += made.count
        for container in made.spec["containers"]:
            for key, number in _of_container(container).items():
                total[key] += made.count * number
    return dict(total)


def total_of(documents: Iterable[Json]) -> dict[str, float]:
    """Add up what several objects take."""
    total: dict[str, float] = defaultdict(float)
    for document in documents:
        for key, number in amounts_of(document).items():
            total[key] += number
    return dict(total)


def _of_container(container: Json) -> dict[str, float]:
    resources = container.get("resources") or {}
    limits = resources.get("limits") or {}
    requests = {**limits, **(resources.get("requests") or {})}  # a limit alone is a request too
    found = {f"requests.{name}": amount(text) for name, text in requests.items()}
    return {**found, **{f"limits.{name}": amount(text) for name, text in limits.items()}}


def over_quota(quota: Json, total: Mapping[str, float]) -> Iterator[str]:
    """Yield why a quota will refuse some of what is asked for; nothing for one of certain pods
    only.
    """
    spec, status = quota.get("spec") or {}, quota.get("status") or {}
    if spec.get("scopes") or spec.get("scopeSelector"):
        return
    name = quota["metadata"]["name"]
    hard, used = status.get("hard") or spec.get("hard") or {}, status.get("used") or {}
    for key, limit in hard.items():
        full = f"requests.{key}" if key in ("cpu", "memory") else key
        asked = total.get(full, 0.0)
        if not asked and total.get("pods") and full in ("limits.cpu", "limits.memory"):
            yield (
                f"quota {name} counts {key}, which the job's containers do not have: their pods "
                "are refused unless a LimitRange gives them one"
            )
        elif asked and asked > amount(limit) - amount(used.get(key, 0)) + 1e-9:
            yield (
                f"quota {name} has room for {_left(limit, used.get(key, 0))} more of {key}, and "
                f"the job asks for {_written(asked, full)}: some of its pods wait"
            )


def _left(limit: object, used: object) -> str:
    return _written(max(0.0, amount(limit) - amount(used)), str(limit))


def _written(number: float, like: str) -> str:
    """Write a number as people do: in Mi where it is memory or storage."""
    if "memory" in like or "storage" in like or like[-1:] == "i":
        return f"{number / 2**20:g}Mi"
    return f"{number:g}"


@dataclass(frozen=True, slots=True)
class MadePods:
    """Equal pods.

    Attributes:
        owner: Name of what makes them.
        count: Number of pods.
        spec: Spec of a pod.
        metadata: Labels and annotations of a pod.
    """

    owner: str
    count: int
    spec: Json
    metadata: Json = field(default_factory=dict)


def made_pods(document: Json) -> Iterator[MadePods]:
    """List the pods of a Job, a StatefulSet, a JobSet or a runtime of Trainer; none of other
    objects.
    """
    name, spec = document["metadata"]["name"], document.get("spec") or {}
    if document["kind"] == "TrainingRuntime":
        spec = spec["template"]["spec"]
    for job in spec.get("replicatedJobs") or []:
        yield from _of(f"{name}-{job['name']}", job["template"]["spec"])
    yield from _of(name, spec)


def _of(owner: str, spec: Json) -> Iterator[MadePods]:
    template = spec.get("template") or {}
    made = template.get("spec") or {}
    if "containers" in made:
        count = spec.get("replicas", spec.get("parallelism", 1))
        yield MadePods(owner, int(count or 0), made, template.get("metadata") or {})
