"""Parts of a job file about pods on Kubernetes: under ``kubernetes`` of all, under a role of its
own.

Names are Kubernetes' own, as a job file writes them (``node_selector``). What is not here is a
matter for kustomize, which patches what ``ropewalk k8s render`` prints.
"""

from collections.abc import Hashable, Sequence
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, StringConstraints, model_validator

from .container import CHECKPOINTS, CODE_FOLDER, IMAGE_USER, PARTS_FOLDER, TLS_FOLDER, TOKEN_FOLDER
from .fields import DNS_LABEL, MisfitError, ObjectName, Part, Text, VariableName

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

AnyPart = TypeVar("AnyPart", bound=Part)

OWN_VOLUMES = (
    "tmp", "checkpoints", "shm", "tls", "token", "ropewalk-code", "ropewalk-packed",
)  # fmt: skip
_OWN_FOLDERS = (TLS_FOLDER, TOKEN_FOLDER, CODE_FOLDER, PARTS_FOLDER)
OWN_PATHS = ("/tmp", CHECKPOINTS, "/dev/shm", *_OWN_FOLDERS)  # noqa: S108
OWN_LABELS = tuple(f"app.kubernetes.io/{each}" for each in ("name", "instance", "component"))


class ReferredVariable(Part):
    """A variable whose value is in a Secret or a ConfigMap."""

    name: VariableName = Field(description="Of the variable.")
    secret: ObjectName = Field(default="", description="The Secret that has its value.")
    config_map: ObjectName = Field(default="", description="Or the ConfigMap.")
    key: Text = Field(default="", description="In it; empty: the variable's name.")
    optional: bool = Field(default=False, description="Whether a pod starts without it.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        return _with_one_of(self, "secret", "config_map")


class VariableSource(Part):
    """A Secret or a ConfigMap of which every entry is a variable."""

    secret: ObjectName = Field(default="", description="The Secret.")
    config_map: ObjectName = Field(default="", description="Or the ConfigMap.")
    prefix: Text = Field(default="", description="Before the names of its entries.")
    optional: bool = Field(default=False, description="Whether a pod starts without it.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        return _with_one_of(self, "secret", "config_map")


class Volume(Part):
    """A folder in the container: a claim for data, a Secret, a ConfigMap, or an empty one."""

    name: Annotated[str, StringConstraints(pattern=DNS_LABEL, max_length=63)] = Field(
        description=f"Of the volume; not {', '.join(OWN_VOLUMES)}, which a pod has already."
    )
    path: Annotated[str, StringConstraints(pattern=r"^/[^:]*$")] = Field(
        description="Where it is in the container, absolute."
    )
    claim: ObjectName = Field(default="", description="A PersistentVolumeClaim that is there.")
    secret: ObjectName = Field(default="", description="Or a Secret.")
    config_map: ObjectName = Field(default="", description="Or a ConfigMap.")
    empty: Annotated[str, StringConstraints(pattern=r"^([0-9]+(Mi|Gi|Ti))?$")] = Field(
        default="", description="Or an empty folder of at most this size, gone with the pod."
    )
    read_only: bool = Field(default=False, description="Whether nothing may be written there.")
    sub_path: Text = Field(
        default="",
        description="A folder or file in the volume instead of all of it. A Secret's file is then "
        "never renewed.",
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.name in OWN_VOLUMES:
            raise MisfitError(
                f"a pod has a volume {self.name} already; choose another name", "name"
            )
        if self.sub_path.startswith("/") or ".." in self.sub_path.split("/"):
            raise MisfitError(f"{self.sub_path} is not below the volume's own folder", "sub_path")
        return _with_one_of(self, "claim", "secret", "config_map", "empty")


class Toleration(Part):
    """A taint of nodes to accept, as Kubernetes has them."""

    key: str = Field(default="", description="Of the taint; empty: any.")
    operator: Literal["Exists", "Equal"] = Field(default="Equal", description="As Kubernetes'.")
    value: str = Field(default="", description="Of the taint.")
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = Field(
        default="", description="Of the taint; empty: any."
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.value and self.operator == "Exists":
            raise MisfitError("Exists takes no value; say `operator: Equal`, or none", "value")
        if not self.key and self.operator == "Equal":
            raise MisfitError("Equal needs a key; `operator: Exists` alone accepts all", "key")
        return self


class NodeRule(Part):
    """Nodes to use or to prefer, by a label."""

    key: LabelName = Field(description="Label of the nodes.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = Field(
        default="In", description="As Kubernetes'."
    )
    values: list[LabelValue] = Field(default=[], description="Of the label.")
    weight: int = Field(
        default=0,
        ge=0,
        le=100,
        description="How strongly they are preferred; 0: no others are used.",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if bool(self.values) == (self.operator in ("Exists", "DoesNotExist")):
            what = "takes no values" if self.values else "needs values"
            raise MisfitError(f"{self.operator} {what}", "values")
        is_number = len(self.values) == 1 and self.values[0].isdecimal()
        if self.operator in ("Gt", "Lt") and not is_number:
            raise MisfitError(f"{self.operator} takes one whole number", "values")
        return self


class PodRule(Part):
    """Pods to be near to, or apart from."""

    labels: dict[LabelName, LabelValue] = Field(
        default={}, description="Of those pods; empty: those of the same role of this job."
    )
    apart: bool = Field(default=False, description="Whether to be apart from them.")
    topology: LabelName = Field(
        default="kubernetes.io/hostname",
        description="Label of nodes that says what near means: the same node, or the same zone "
        "(topology.kubernetes.io/zone).",
    )
    weight: int = Field(
        default=0, ge=0, le=100, description="How strongly it is preferred; 0: it must be so."
    )


class Spread(Part):
    """Pods of a role evenly over nodes or zones."""

    topology: LabelName = Field(
        default="kubernetes.io/hostname",
        description="Label of nodes over whose values they spread.",
    )
    max_skew: int = Field(default=1, ge=1, description="Most pods that one has more than another.")
    must: bool = Field(
        default=False, description="Whether a pod waits rather than be placed unevenly."
    )


class PodSecurity(Part):
    """The identity of a pod's processes. What `restricted` demands is always so."""

    user: int = Field(
        default=IMAGE_USER,
        gt=0,
        description="Number of the user; not root. Another one than the image's takes none of its "
        "kernels, and compiles them.",
    )
    group: int = Field(default=IMAGE_USER, gt=0, description="Number of the group.")
    fs_group: int = Field(
        default=IMAGE_USER, gt=0, description="Group that may write the volumes that are mounted."
    )
    supplemental_groups: list[int] = Field(
        default=[], description="More groups, e.g. of a file server."
    )
    read_only_root: bool = Field(
        default=True, description="Whether only volumes and /tmp may be written."
    )


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

    env: list[ReferredVariable] = Field(
        default=[], description="Variables whose values are in Secrets and ConfigMaps."
    )
    env_from: list[VariableSource] = Field(
        default=[], description="Secrets and ConfigMaps all of whose entries are variables."
    )
    volumes: list[Volume] = Field(default=[], description="Folders with data, or for it.")
    service_account: ObjectName = Field(
        default="",
        description="Whose rights the pods have, for a cloud's storage for instance. Its token for "
        "Kubernetes itself is not mounted. Empty: the namespace's default.",
    )
    labels: dict[LabelName, LabelValue] = Field(default={}, description="More labels of the pods.")
    annotations: dict[LabelName, Text] = Field(default={}, description="Of the pods.")
    node_selector: dict[LabelName, Text] = Field(default={}, description="Labels of nodes to use.")
    nodes: list[NodeRule] = Field(
        default=[], description="Nodes to use or to prefer, where node_selector says too little."
    )
    pods: list[PodRule] = Field(default=[], description="Pods to be near to, or apart from.")
    spread: list[Spread] = Field(
        default=[],
        description="How the pods of a role are spread. Parameter servers are spread over nodes "
        "where that is possible if nothing is said.",
    )
    tolerations: list[Toleration] = Field(default=[], description="Taints of nodes to accept.")
    priority_class: ObjectName = Field(
        default="", description="PriorityClass of the pods; empty: the cluster's default."
    )
    security: PodSecurity | None = Field(
        default=None, description="Who the processes are; in a role in place of that of all."
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
        _once([each.name for each in self.env], "env", "name")
        _once([(each.topology, each.must) for each in self.spread], "spread", "topology")
        return self

    def and_of_role(self, own: "PodPart") -> "PodPart":
        """Add to these needs what one role adds or has in their place."""
        named = {each.name for each in own.env}
        return PodPart(
            env=[*(each for each in self.env if each.name not in named), *own.env],
            env_from=[*self.env_from, *own.env_from],
            volumes=[*self.volumes, *own.volumes],
            service_account=own.service_account or self.service_account,
            labels={**self.labels, **own.labels},
            annotations={**self.annotations, **own.annotations},
            node_selector={**self.node_selector, **own.node_selector},
            nodes=[*self.nodes, *own.nodes],
            pods=[*self.pods, *own.pods],
            spread=own.spread or self.spread,
            tolerations=[*self.tolerations, *own.tolerations],
            priority_class=own.priority_class or self.priority_class,
            security=own.security or self.security,
            probes=own.probes or self.probes,
        )


def _once(keys: Sequence[Hashable], name: str, field: str) -> None:
    """Refuse a list that says something twice: an API server takes none."""
    for number, key in enumerate(keys):
        if key in keys[:number]:
            raise MisfitError("it is there already; keep one of both", name, number, field)


def _with_one_of(part: AnyPart, *names: str) -> AnyPart:
    given = [name for name in names if getattr(part, name)]
    if len(given) != 1:
        what = f"it has {' and '.join(given)}" if given else "it has none"
        raise MisfitError(f"it needs one of {', '.join(names)}; {what}", *given[1:2])
    return part
