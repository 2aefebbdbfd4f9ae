"""Parts of a job file about pods on Kubernetes: under ``kubernetes`` of all, under a role of its
own.

Fields of a pod's spec and of its container are Kubernetes' own, in its own words, and are handed on
as they are. What they may be the API server says; with the package ``kubernetes-validate`` a file
is checked before. Here stands what the launcher sets itself.
"""

from collections.abc import Mapping
from posixpath import normpath
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

# -- The container of a task, whoever starts it: ports, folders, and the image's user -----------

PORT = 2222
HEALTH_PORT = 2223
METRICS_PORT = 2224
CHECKPOINTS = "/checkpoints"
TLS_FOLDER = "/run/ropewalk/tls"
TOKEN_FOLDER = "/run/ropewalk/token"  # noqa: S105 - a folder
CODE_FOLDER = "/run/ropewalk/code"
PARTS_FOLDER = "/run/ropewalk/packed"
IMAGE_USER = 10001
"""Number of the user, and of its group; deploy/docker/Dockerfile makes them."""


# -- Building blocks of a job file's parts: their base class, their error and kinds of text ----

DNS_LABEL = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"

Text = Annotated[str, StringConstraints(max_length=32_768)]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
ObjectName = Annotated[str, StringConstraints(pattern=r"^([a-z0-9]([-.a-z0-9]*[a-z0-9])?)?$")]


class MisfitError(ValueError):
    """The values of two fields do not fit each other.

    Attributes:
        path: Path of the field to look at, from the model that is validated.
    """

    def __init__(self, message: str, *path: str | int) -> None:
        super().__init__(message)
        self.path = path


class Part(BaseModel):
    """A part of a job file: frozen, and a field that it does not have is an error."""

    # Strict: `count: true` is no number. Validate JSON, or give models, not dictionaries.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


Json = dict[str, Any]

LabelName = Annotated[
    str,
    StringConstraints(
        pattern=r"^([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$",
        max_length=316,
    ),
]
LabelValue = Annotated[
    str, StringConstraints(pattern=r"^([A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?)?$", max_length=63)
]

OWN_VOLUMES = (
    "tmp", "checkpoints", "shm", "tls", "token", "ropewalk-code", "ropewalk-packed",
)  # fmt: skip
_OWN_FOLDERS = (TLS_FOLDER, TOKEN_FOLDER, CODE_FOLDER, PARTS_FOLDER)
OWN_PATHS = ("/tmp", CHECKPOINTS, "/dev/shm", *_OWN_FOLDERS)  # noqa: S108
OWN_LABELS = tuple(f"app.kubernetes.io/{each}" for each in ("name", "instance", "component"))

_BY_LAUNCHER = {
    "pod": {
        "containers": "`container` has the fields of the task's",
        "terminationGracePeriodSeconds": "say it by kubernetes.grace_s",
        "imagePullSecrets": "say it by kubernetes.image_pull_secrets",
        **dict.fromkeys(
            ("automountServiceAccountToken", "enableServiceLinks", "hostname", "restartPolicy",
             "subdomain"), "",
        ),
    },
    "container": {
        "image": "say it by image",
        "imagePullPolicy": "say it by kubernetes.image_pull_policy",
        **dict.fromkeys(("command", "args"), "say it by program and arguments"),
        **dict.fromkeys(("startupProbe", "readinessProbe", "livenessProbe"), "say it by probes"),
        **dict.fromkeys(("name", "workingDir", "ports", "lifecycle"), ""),
    },
}  # fmt: skip
"""Fields that a job file does not say: where it says them instead; empty: the launcher does."""

_RESTRICTED = {
    "pod": ("runAsNonRoot", "seccompProfile"),
    "container": ("allowPrivilegeEscalation", "capabilities", "privileged"),
}
"""Fields of a securityContext that are always as the standard ``restricted`` demands."""

_KEYS = {"volumeMounts": "mountPath", "topologySpreadConstraints": "topologyKey"}


class ProbeTimes(Part):
    """The times that the kubelet waits for a task."""

    startup_s: int = Field(
        default=300, ge=10, le=86_400, description="Until it answers for the first time."
    )
    readiness_s: int = Field(
        default=10, ge=1, le=600, description="Between questions whether it serves."
    )
    liveness_s: int = Field(
        default=60, ge=60, le=86_400, description="Without a sign of life until it is restarted."
    )


class PodPart(Part):
    """The needs of pods beside their program: of all roles, or of one, which adds to that."""

    labels: dict[LabelName, LabelValue] = Field(default={}, description="More labels of the pods.")
    annotations: dict[LabelName, Text] = Field(default={}, description="Of the pods.")
    pod: dict[str, Any] = Field(
        default={},
        description="Fields of a pod's spec, as Kubernetes has them: nodeSelector, affinity, "
        "tolerations, volumes, securityContext, …",
    )
    container: dict[str, Any] = Field(
        default={},
        description="Fields of its container, as Kubernetes has them: env, envFrom, volumeMounts, "
        "securityContext, resources.",
    )
    probes: ProbeTimes | None = Field(
        default=None, description="Times of probes; in a role in place of those of all."
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for name in self.labels:
            if name in OWN_LABELS:
                raise MisfitError(
                    f"the launcher sets {name}, by which pods are found", "labels", name
                )
        _check_fields("pod", self.pod)
        _check_fields("container", self.container)
        for number, name in _said(self.pod, "volumes", "name"):
            if name in OWN_VOLUMES:
                text = f"a pod has a volume {name} already; choose another name"
                raise MisfitError(text, "pod", "volumes", number, "name")
        for number, path in _said(self.container, "volumeMounts", "mountPath"):
            if normpath(path) in OWN_PATHS:
                text = f"a pod has a volume at {normpath(path)} already; choose another place"
                raise MisfitError(text, "container", "volumeMounts", number, "mountPath")
        return self

    @property
    def variables(self) -> list[tuple[int, str]]:
        """Numbers and names of variables of the container."""
        return _said(self.container, "env", "name")

    def and_of_role(self, own: "PodPart") -> "PodPart":
        """Add to these needs what one role adds or has in their place."""
        return PodPart(
            labels={**self.labels, **own.labels},
            annotations={**self.annotations, **own.annotations},
            pod=merged(self.pod, own.pod),
            container=merged(self.container, own.container),
            probes=own.probes or self.probes,
        )


def merged(fields: Mapping[str, Any], more: Mapping[str, Any]) -> Json:
    """Merge fields of Kubernetes with more of them: mappings field by field, lists one behind the
    other but for items of one name, of which the last counts.
    """
    result = dict(fields)
    for name, value in more.items():
        before = result.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            result[name] = merged(before, value)
        elif isinstance(before, list) and isinstance(value, list):
            result[name] = _joined(before, value, _KEYS.get(name, "name"))
        else:
            result[name] = value
    return result


def _joined(before: list[Any], more: list[Any], key: str) -> list[Any]:
    named = {each[key] for each in more if isinstance(each, dict) and key in each}
    return [e for e in before if not (isinstance(e, dict) and e.get(key) in named)] + more


def _check_fields(part: str, fields: Json) -> None:
    for name in fields:
        if name in _BY_LAUNCHER[part]:
            remedy = _BY_LAUNCHER[part][name] or "take it away"
            raise MisfitError(f"the launcher sets {name} of the {part}: {remedy}", part, name)
    who = fields.get("securityContext") or {}
    for name in _RESTRICTED[part] if isinstance(who, dict) else ():
        if name in who:
            text = f"{name} is always as `restricted` demands; take it away"
            raise MisfitError(text, part, "securityContext", name)
    if isinstance(who, dict) and who.get("runAsUser") == 0:
        text = "a task does not run as root; name another user"
        raise MisfitError(text, part, "securityContext", "runAsUser")


def _said(fields: Json, name: str, key: str) -> list[tuple[int, str]]:
    """List numbers and keys of the items of a list."""
    items = fields.get(name)
    return [
        (number, each[key])
        for number, each in enumerate(items if isinstance(items, list) else ())
        if isinstance(each, dict) and isinstance(each.get(key), str)
    ]
