"""The parts of a job file below ``roles``, ``storage``, ``security`` and the launchers."""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from .pod_part import MisfitError, ObjectName, Part, PodPart, Text, VariableName

# -- Admission of a job's pods together, as a job file says it ---------------------------------


_TAKES = {
    "kueue": ("queue",),
    "coscheduling": ("scheduler", "wait_s"),
    "volcano": ("queue", "scheduler"),
    "chief": ("wait_s",),
}
_WHY_NOT = {
    "queue": "has no queues",
    "scheduler": "leaves pods to the cluster's own scheduler",
    "wait_s": "holds nothing while a job waits",
}
_WAIT_S = 600


class Gang(Part):
    """All pods of the job at once, or none."""

    by: Literal["kueue", "coscheduling", "volcano", "chief"] = Field(
        description="`kueue`: Kueue admits them as one; `coscheduling`: the plugin of that name, "
        "by a PodGroup; `volcano`: its scheduler, by its own PodGroup; `chief`: the cluster has "
        "none of these, and the chief frees what the job holds if tasks do not come."
    )
    queue: ObjectName = Field(
        default="", description="Kueue: the LocalQueue, needed. Volcano: the Queue; empty: default."
    )
    scheduler: ObjectName = Field(
        default="",
        description="Name of the scheduler. Empty: as it is installed, scheduler-plugins-scheduler "
        "or volcano.",
    )
    wait_s: int = Field(
        default=0,
        ge=0,
        le=86_400,
        description="How long those that have room wait for the others before it is freed: by "
        "coscheduling for a new try, by the chief for good. 0: 600.",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for name, why in _WHY_NOT.items():
            if getattr(self, name) and name not in _TAKES[self.by]:
                raise MisfitError(f"{self.by} {why}; take {name} away", name)
        if self.by == "kueue" and not self.queue:
            raise MisfitError(
                "kueue needs a queue: the name of a LocalQueue of the namespace (`kubectl get "
                "localqueues`)",
                "by",
            )
        return self

    @property
    def patience_s(self) -> int:
        """Time that tasks that have room wait for the others."""
        return self.wait_s or _WAIT_S

    @property
    def scheduler_name(self) -> str:
        """The scheduler of the pods; empty: the cluster's own."""
        own = {"coscheduling": "scheduler-plugins-scheduler", "volcano": "volcano"}
        return self.scheduler or own.get(self.by, "")


_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
          "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}  # fmt: skip


class Resources(Part):
    """The needs of one task."""

    cpu: Annotated[str, StringConstraints(pattern=r"^([0-9]+(\.[0-9]+)?|[0-9]+m)$")] = Field(
        default="1",
        description="Processors, e.g. 2, 0.5 or 500m. What a task may count on; it may use more "
        "where there is more, since a limit on processors slows every step.",
    )
    memory: Annotated[str, StringConstraints(pattern=r"^[0-9]+(k|M|G|T|Ki|Mi|Gi|Ti)?$")] = Field(
        default="1Gi",
        description="Memory, e.g. 512Mi or 4Gi; also the limit, beyond which a task is killed. A "
        "ps refuses variables that would take more than four fifths.",
    )
    gpu: int = Field(
        default=0, ge=0, le=64, description="Whole GPUs; Kubernetes knows no parts of one."
    )

    ephemeral_storage: Annotated[
        str, StringConstraints(pattern=r"^([0-9]+(k|M|G|T|Ki|Mi|Gi|Ti)?)?$")
    ] = Field(
        default="",
        description="Kubernetes: of the node's disk, for /tmp, logs and empty volumes; also the "
        "limit, beyond which a pod is evicted. Empty: nothing is said.",
    )

    @property
    def millicpu(self) -> int:
        """Processors, in thousandths."""
        return int(self.cpu[:-1]) if self.cpu.endswith("m") else round(float(self.cpu) * 1000)

    @property
    def memory_bytes(self) -> int:
        """Memory, in bytes."""
        match = re.match(r"([0-9]+)(.*)", self.memory)
        assert match is not None  # noqa: S101 - the field's pattern
        return int(match[1]) * _UNITS[match[2]]


class Role(Part):
    """The tasks of one role."""

    count: int = Field(default=1, ge=0, le=10_000, description="How many tasks.")

    @field_validator("count", mode="before")
    @classmethod
    def _refuse_auto(cls, value: object) -> object:
        if value == "auto":
            raise ValueError(
                "a job file says how many tasks there are, e.g. 2; on one machine `ropewalk local "
                "--job FILE --workers auto` starts as many workers as there are GPUs for"
            )
        return value

    resources: Resources = Field(default=Resources(), description="What each of them needs.")
    arguments: list[Text] = Field(
        default=[], description="Of the program in this role, behind those of the job."
    )
    environment: dict[VariableName, Text] = Field(
        default={}, description="Variables of this role alone; they win over those of the job."
    )
    kubernetes: PodPart = Field(
        default=PodPart(), description="What its pods need beside what `kubernetes` says of all."
    )


class SingleRole(Role):
    """A role with at most one task."""

    count: int = Field(default=1, ge=0, le=1, description="One, or none.")


class Storage(Part):
    """Storage of checkpoints: a folder that all tasks see, or a URL."""

    model_dir: str = Field(
        default="",
        description="A URL (s3://…, gs://…), or an absolute folder that every task sees. Empty: in "
        "containers a folder of the volume, on this machine a new folder in runs/, under Slurm "
        "runs/ beside the job file.",
    )
    claim: ObjectName = Field(
        default="",
        description="Kubernetes: the name of a PersistentVolumeClaim that is there. Empty: one "
        "named after the job is made, of `size`.",
    )
    size: Annotated[str, StringConstraints(pattern=r"^[0-9]+(Mi|Gi|Ti)$")] = Field(
        default="10Gi", description="Kubernetes: of the claim that is made, e.g. 10Gi."
    )
    storage_class: ObjectName = Field(
        default="", description="Kubernetes: of the claim that is made; empty: the cluster's own."
    )
    access: Literal["ReadWriteOnce", "ReadWriteMany"] = Field(
        default="ReadWriteMany",
        description="Kubernetes: of the claim that is made. The chief, every ps and the evaluator "
        "use it, so ReadWriteOnce works only where they run on one node.",
    )

    @property
    def is_url(self) -> bool:
        """Whether no volume is needed."""
        return "://" in self.model_dir

    @model_validator(mode="after")
    def _folder(self) -> "Storage":
        if self.is_url and self.claim:
            raise MisfitError(
                f"model_dir is the URL {self.model_dir}, so the claim {self.claim} would hold "
                "nothing; keep one of them",
                "claim",
            )
        if self.model_dir and not self.is_url and not self.model_dir.startswith("/"):
            raise MisfitError(
                f"{self.model_dir} is relative; give a URL, or an absolute folder", "model_dir"
            )
        return self


class Security(Part):
    """The way in which tasks show who they are."""

    mode: Literal["mtls", "token", "insecure"] = Field(
        default="mtls",
        description="`mtls`: certificates on both sides; `token`: signed tokens over TLS; "
        "`insecure`: not at all, for a network of one's own. On this machine (`ropewalk local`) "
        "tasks always prove a key that only this user can read.",
    )
    secret: ObjectName = Field(
        default="",
        description="Kubernetes: what the names of the Secrets begin with, before -ROLE-tls and "
        "-ROLE-token. Empty: the job's name.",
    )
    folder: str = Field(
        default="credentials",
        description="Compose and Slurm: the folder with a folder for each role, relative to the "
        "job file or absolute. A role's holds tls.crt, tls.key and ca.crt, for tokens also token "
        "and token.pub.",
    )


class KubernetesPart(PodPart):
    """The part that only Kubernetes needs to know."""

    namespace: Annotated[str, StringConstraints(pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$")] = (
        Field(default="", max_length=63, description="Where; empty: that of the current context.")
    )
    image_pull_policy: Literal["", "Always", "IfNotPresent", "Never"] = Field(
        default="", description="Empty: Kubernetes' own, Always for the tag latest."
    )
    image_pull_secrets: list[ObjectName] = Field(
        default=[], description="Secrets for a private registry."
    )
    grace_s: int = Field(
        default=60,
        ge=10,
        le=3600,
        description="How long a task has to save and leave after it is asked to stop. Longer than "
        "a checkpoint takes.",
    )
    retries: int = Field(
        default=10,
        ge=0,
        description="How often each chief, worker and evaluator gets a new pod after it has ended "
        "with 128 or above by itself. What peers or the cluster did to it does not count.",
    )
    deadline_s: int = Field(
        default=0,
        ge=0,
        description="How long the Jobs of chief, workers and evaluator may take, waiting for room "
        "included; then they have failed. 0: as long as it takes.",
    )
    keep_s: int = Field(
        default=-1,
        ge=-1,
        description="How long Jobs that have ended stay, with their logs, until Kubernetes deletes "
        "them. -1: until you do.",
    )
    lost_pods: Literal["wait", "at-once"] = Field(
        default="wait",
        description="When a pod of the chief or of a worker that was lost is replaced. `wait`: its "
        "Job waits 10 s, and twice as long each time. `at-once`: a StatefulSet does not wait, for "
        "workers in sync and programs with a coordinator. Then the ConfigMap NAME-status has the "
        "job's result, and the chief, with a service account, ends all pods with the job.",
    )
    gang: Gang | None = Field(
        default=None, description="Have all pods admitted at once, or none. Empty: one by one."
    )
    status: bool = Field(
        default=False,
        description="The chief writes the job's phase, step, rate and checkpoints to the ConfigMap "
        "NAME-status, and Events; it gets a service account that may do this and nothing else.",
    )
    end_job: bool = Field(
        default=False,
        description="When the job is over for good, its chief ends what is left of it: the ps, and "
        "after a failure all pods. It gets a service account that may do this and see whether a ps "
        "or the workers cannot start, which fails the job.",
    )

    @property
    def at_once(self) -> bool:
        """Whether StatefulSets make the pods of chief and workers."""
        return self.lost_pods == "at-once"

    @model_validator(mode="after")
    def _has_times(self) -> "KubernetesPart":
        for name, is_said in (("deadline_s", self.deadline_s > 0), ("keep_s", self.keep_s >= 0)):
            if self.at_once and is_said:
                raise MisfitError(
                    "only Jobs have it, and with lost_pods: at-once the chief has none; keep one",
                    name,
                )
        return self


class SlurmPart(Part):
    """The part that only Slurm needs to know."""

    partition: str = Field(default="", description="Empty: the cluster's default.")
    account: str = Field(default="", description="Who pays; empty: the user's default.")
    time: Annotated[str, StringConstraints(pattern=r"^([0-9]+(-[0-9]+)?(:[0-9]+){0,2})?$")] = Field(
        default="", description="Limit, as sbatch --time; e.g. 30, 1:00:00 or 2-00:00:00."
    )
    nodes: int = Field(default=0, ge=0, description="Nodes to divide the tasks over; 0: Slurm's.")
    port: int = Field(
        default=8888, gt=0, le=65_000, description="Of the first task of a node; two jobs differ."
    )
    grace_s: int = Field(
        default=60, ge=1, description="SIGTERM comes this long before the time limit."
    )
    setup: list[Text] = Field(
        default=[],
        description="Lines of shell before the tasks start, e.g. `module load python`.",
    )
    options: list[Annotated[str, StringConstraints(pattern=r"^--[a-z][-a-z0-9]*(=\S+)?$")]] = Field(
        default=[], description="More options of sbatch, e.g. --qos=high."
    )
