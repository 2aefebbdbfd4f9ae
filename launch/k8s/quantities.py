"""Quantities of Kubernetes (``100m``, ``1Gi``), what an object asks for, and quotas. Pure."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .made_pods import made_pods

Json = dict[str, Any]

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
