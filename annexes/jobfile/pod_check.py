"""Fields of pods that Kubernetes does not have, found before an API server is asked.

By the schemas of the package ``kubernetes-validate``, where that is installed. What no schema says,
an API server says in the dry run of ``apply``.
"""

import importlib.util
import re
from collections.abc import Iterator
from typing import Any

from .model import JobFile
from .pod_part import PodPart
from .yaml_text import Path


def misfits_of_pods(job: JobFile) -> Iterator[tuple[Path, str]]:
    """Find the fields of a job that no pod can have so, and why; the first of each part."""
    parts: dict[Path, PodPart] = {("kubernetes",): job.kubernetes}
    parts |= {("roles", name, "kubernetes"): role.kubernetes for name, role in job.present}
    said = {path: part for path, part in parts.items() if part.pod or part.container}
    if not said or importlib.util.find_spec("kubernetes_validate") is None:
        return
    for path, part in said.items():
        for where, why in _misfit(part):
            yield (*path, *where), why


def _misfit(part: PodPart) -> Iterator[tuple[Path, str]]:
    import kubernetes_validate

    spec: dict[str, Any] = {**part.pod, "containers": [{"name": "task", **part.container}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "task"}, "spec": spec}
    try:
        kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)
    except kubernetes_validate.ValidationError as error:
        where, why = tuple(error.path)[1:], str(error.message)
        if error.validator == "additionalProperties" and (name := re.search(r"\('(\w+)'", why)):
            where, why = (*where, name[1]), "there is no such field in Kubernetes"
        in_container = where[:2] == ("containers", 0)
        yield (("container", *where[2:]) if in_container else ("pod", *where)), why
