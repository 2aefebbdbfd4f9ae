"""Reading ``ropewalk.yaml``: every mistake at once, each with its place and what to do."""

import difflib
import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from ...core.errors import ConfigurationError
from ...core.outside_text import read_plain
from .model import SAID_ELSEWHERE, JobFile, JobSettings
from .pod_part import MisfitError, PodPart
from .yaml_text import MOST_BYTES, Document, Path, read_yaml

# -- Fields of pods that Kubernetes does not have, found before an API server is asked ---------
# By the schemas of the package ``kubernetes-validate``, where that is installed. What no schema
# says, an API server says in the dry run of ``apply``.


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


DEFAULT_NAME = "ropewalk.yaml"
_SHOWN = 8
_OF_TEXTS = (
    "arguments", "environment", "labels", "annotations", "setup",
    "nodeSelector", "matchLabels", "values", "limits", "requests",
)  # fmt: skip
_TEXTS = ("cpu", "memory", "ephemeral_storage", "size", "time", "value", "sizeLimit")
_MOVED = {
    "env": "container.env",
    "env_from": "container.envFrom",
    "volumes": "pod.volumes, and where they are by container.volumeMounts",
    "service_account": "pod.serviceAccountName",
    "node_selector": "pod.nodeSelector",
    "nodes": "pod.affinity.nodeAffinity",
    "pods": "pod.affinity.podAffinity and podAntiAffinity",
    "spread": "pod.topologySpreadConstraints",
    "tolerations": "pod.tolerations",
    "priority_class": "pod.priorityClassName",
    "security": "pod.securityContext and container.securityContext",
}
"""Fields of pods that had words of our own: where Kubernetes' own ones are."""


def read_job(path: str | FilePath) -> JobFile:
    """Read the job of a file.

    Raises:
        ConfigurationError: It cannot be read, or says something that a job cannot be; each mistake
            with file, line and column.
    """
    file = FilePath(path)
    try:
        text = read_plain(file, MOST_BYTES).decode()
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"{path} does not exist (looked in {FilePath.cwd()}); `ropewalk job example` prints a "
            "job file to begin with",
            file=path,
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"{path} cannot be read: {why}", file=path) from error
    return parse_job(text, str(path))


def parse_job(text: str, name: str = DEFAULT_NAME) -> JobFile:
    """Parse the job of a text; ``name`` is that of the file, for messages. Pure.

    Raises:
        ConfigurationError: As :func:`read_job`.
    """
    document = read_yaml(text, name, _is_text)
    if not isinstance(document.data, dict):
        what = "is empty" if document.data is None else "is no mapping of fields to values"
        raise ConfigurationError(
            f"{name}:1:1: a job file {what}; it begins with `name: my-job`, and `ropewalk job "
            "example` prints a whole one"
        )
    try:
        job = JobFile.model_validate_json(json.dumps(_without_nulls(document.data)))
    except ValidationError as error:
        problems = sorted(_problems(document, error))
        shown = [text for _, text in problems[:_SHOWN]]
        if len(problems) > _SHOWN:
            shown.append(f"… and {len(problems) - _SHOWN} more")
        raise ConfigurationError("\n".join(shown), file=name) from error
    if misfits := [_told(document, path, said, of_key=True) for path, said in misfits_of_pods(job)]:
        raise ConfigurationError("\n".join(text for _, text in sorted(misfits)), file=name)
    job.set_places({path: f"{name}:{at.line}:{at.column}" for path, at in document.keys.items()})
    return job


def _is_text(path: Path) -> bool:
    """Return whether a value is text even where it looks like a number: ``cpu: 2``, ``- 1e-3``."""
    in_texts = len(path) > 1 and path[-2] in _OF_TEXTS
    return in_texts or (bool(path) and path[-1] in _TEXTS)


def _without_nulls(value: Any) -> Any:
    """Drop empty values: ``ps:`` with nothing behind it says nothing, as if it were not there."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _problems(document: Document, error: ValidationError) -> Iterator[tuple[tuple[int, int], str]]:
    """Yield ((line, column), message) of every mistake."""
    for problem in error.errors(include_url=False):
        path = tuple(problem["loc"])
        cause = problem.get("ctx", {}).get("error")
        is_key = path[-1:] == ("[key]",)
        if is_key:
            path = path[:-1]
        if isinstance(cause, MisfitError):
            path = (*path, *cause.path)
        is_key = is_key or problem["type"] == "extra_forbidden" or isinstance(cause, MisfitError)
        yield _told(document, path, _words(path, dict(problem)), of_key=is_key)


def _told(
    document: Document, path: Path, words: str, *, of_key: bool
) -> tuple[tuple[int, int], str]:
    place = document.place(path, of_key=of_key)
    return (place.line, place.column), document.problem(place, f"{_dotted(path)}: {words}")


def _dotted(path: Path) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.lstrip(".") or "the job"


def _words(path: Path, problem: dict[str, Any]) -> str:
    """Say what is wrong and what to do."""
    kind, value = problem["type"], problem["input"]
    if isinstance(problem.get("ctx", {}).get("error"), MisfitError):
        return str(problem["ctx"]["error"])
    if kind == "extra_forbidden":
        return _unknown(path)
    about = _description(path)
    if kind == "missing":
        return f"it is missing. {about}"
    if kind == "string_pattern_mismatch":
        return f"{value!r} does not read as this field does. {about}"
    shown = repr(value) if not isinstance(value, dict | list) else "something else"
    expectation = str(problem["msg"]).replace("Input should be", "it should be").rstrip(".")
    return f"{expectation}, got {shown}. {about}".rstrip()


def _unknown(path: Path) -> str:
    model, name = _model_at(path[:-1]), str(path[-1])
    if name in _MOVED and model is not None and issubclass(model, PodPart):
        return f"pods are described in Kubernetes' own words; say it by {_MOVED[name]}"
    fields = list(model.model_fields) if model is not None else []
    if model is JobSettings:
        fields = [field for field in fields if field not in SAID_ELSEWHERE]
    near = difflib.get_close_matches(name, fields, n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    few = f" Fields here: {', '.join(fields)}." if fields and len(fields) <= 20 else ""
    return f"there is no such field{meant or '.'}{few if not near else ''}"


def _description(path: Path) -> str:
    model = _model_at(path[:-1])
    if model is None or not path or str(path[-1]) not in model.model_fields:
        return ""
    return model.model_fields[str(path[-1])].description or ""


def _model_at(path: Path) -> type[BaseModel] | None:
    """Find the model whose fields are at a path of the job."""
    model: type[BaseModel] | None = JobFile
    for part in path:
        if isinstance(part, int):
            continue  # of a list: its items
        field = model.model_fields.get(part) if model is not None else None
        model = _model_of(field.annotation) if field is not None else None
    return model


def _model_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for item in get_args(annotation) if (model := _model_of(item))), None)
