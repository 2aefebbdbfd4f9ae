"""A job: its program, its tasks and what they need, for every launcher.

Pure data, validated by pydantic. ``reading.py`` reads it from ``ropewalk.yaml`` and says where a
mistake is; the launchers render it.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, Field, PrivateAttr, StringConstraints, model_validator

from ...cluster.spec import CHIEF, EVALUATOR, PS, WORKER
from ...core.errors import ConfigurationError
from ...core.settings import Settings
from ...core.task import TaskId
from .parts import KubernetesPart, Role, Security, SingleRole, SlurmPart, Storage
from .pod_part import DNS_LABEL, MisfitError, Part, PodPart, Text, VariableName

FieldPath = tuple[str | int, ...]

SAID_ELSEWHERE = {
    "model_dir": "storage.model_dir",
    "security": "security.mode",
    "insecure": "security.mode: insecure",
    **dict.fromkeys(("tls_cert", "tls_key", "tls_ca", "token_file", "token_keys"), "security"),
    "metrics_port": "metrics",
    **dict.fromkeys(("host", "health_port", "log_format", "job_id", "key_file", "standalone"), ""),
    "stay_without_chief": "",
    "supervise": "",
    "chief_returns": "",
}
"""Settings that a job file does not have: where it says them instead; empty: the launcher does."""

# What Ropewalk's own variables begin with, and those by which a launcher tells a task who it is;
# where a job file says what they are for.
_OWN_VARIABLES = {
    "ROPEWALK_": "under `settings`",
    "TF_CONFIG": "by `roles`",
    "JOB_COMPLETION_INDEX": "by `roles`",
    "POD_NAMESPACE": "by `kubernetes.namespace`",
}


class JobSettings(Settings):
    """The settings of every task that a job file may say."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _not_elsewhere(cls, said: Any) -> Any:
        for name in said if isinstance(said, dict) else ():
            if name in SAID_ELSEWHERE:
                where = SAID_ELSEWHERE[name]
                remedy = f"say it by {where}" if where else "the launcher decides it; take it away"
                raise MisfitError(f"{name} is no setting of a job file: {remedy}", name)
        return said


class Roles(Part):
    """The roles of a job: how many tasks each has, and what they need."""

    chief: SingleRole = Field(
        default=SingleRole(),
        description="Leads the job and trains with it. Without one worker 0 leads.",
    )
    ps: Role = Field(default=Role(), description="Parameter servers. 0: the workers train in sync.")
    worker: Role = Field(default=Role(), description="Workers.")
    evaluator: SingleRole = Field(
        default=SingleRole(count=0),
        description="Evaluates each new checkpoint, if the program has a part for it.",
    )


class _Places(dict[FieldPath, str]):
    """Places of fields in the file, which are no part of what a job is: all are equal."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Places)

    __hash__ = None


class JobFile(Part):
    """A job, as ``ropewalk.yaml`` says it."""

    name: Annotated[str, StringConstraints(pattern=DNS_LABEL, max_length=40)] = Field(
        description="Of the job and of everything made for it: small letters, digits and dashes, "
        "at most 40 characters, since names of pods are made from it."
    )
    image: str = Field(
        default="",
        max_length=512,
        pattern=r"^\S*$",
        description="Container image with Ropewalk and the program. Kubernetes and compose need "
        "it; name it by digest where you can.",
    )
    program: str = Field(
        default="",
        max_length=4096,
        description="Python file that every task runs: in the image, or on this machine relative "
        "to the folder of the job file.",
    )
    module: str = Field(
        default="",
        pattern=r"^([A-Za-z_]\w*(\.[A-Za-z_]\w*)*)?$",
        description="Instead of `program`: a module, as in `python -m`.",
    )
    arguments: list[Text] = Field(default=[], description="Of the program.")
    environment: dict[VariableName, Text] = Field(
        default={}, description="Variables of every task. For secrets use files."
    )
    coordinator: bool = Field(
        default=False,
        description="The chief alone runs the program; workers run what its ClusterCoordinator "
        "schedules.",
    )
    roles: Roles = Field(default=Roles(), description="The tasks.")
    storage: Storage = Field(default=Storage(), description="Where checkpoints go.")
    security: Security = Field(
        default=Security(), description="How tasks show who they are, and where their files are."
    )
    settings: JobSettings = Field(
        default=JobSettings(), description="Settings of every task, as `ropewalk run --help`."
    )
    metrics: bool = Field(
        default=False,
        description="Every task serves metrics for Prometheus, in plaintext: on Kubernetes at port "
        "2224 of its pod, with annotations, under compose at 127.0.0.1:9400, 9401, …; elsewhere "
        "tasks share hosts, and it says nothing.",
    )
    kubernetes: KubernetesPart = Field(
        default=KubernetesPart(), description="For Kubernetes alone."
    )
    slurm: SlurmPart = Field(default=SlurmPart(), description="For Slurm alone.")
    _places: _Places = PrivateAttr(default_factory=_Places)

    def set_places(self, places: Mapping[FieldPath, str]) -> None:
        """Remember where a file says what: by the path of a field, as ``ropewalk.yaml:7:5``."""
        self._places.update(places)

    def place_of(self, roles: Sequence[str], text: str) -> str:
        """Find where the file says what an API server complains of; empty: it does not.

        Args:
            roles: Roles whose pods may be meant.
            text: Words of the server, with ``spec.template.spec.tolerations[0].key`` in them.
        """
        found = re.search(r".*template\.spec\.(containers\[0\]\.)?(\w+)", text)
        if found is None:
            return ""
        field = ("container" if found[1] else "pod", found[2])
        paths = [*(("roles", role, "kubernetes", *field) for role in roles), ("kubernetes", *field)]
        return next((self._places[path] for path in paths if path in self._places), "")

    @model_validator(mode="after")
    def _fits(self) -> "JobFile":
        _check_job(self)
        return self

    def with_counts(self, counts: Mapping[str, int]) -> "JobFile":
        """Change the numbers of tasks.

        Raises:
            ConfigurationError: A job cannot be so.
        """
        if not counts:
            return self
        roles = {
            name: self.role(name).model_copy(update={"count": count})
            for name, count in counts.items()
        }
        changed = self.model_copy(update={"roles": self.roles.model_copy(update=roles)})
        try:
            _check_job(changed)
        except MisfitError as error:
            raise ConfigurationError(str(error)) from error
        return changed

    def require_image(self, starter: str, program: str) -> None:
        """Check that there is an image.

        Args:
            starter: Launcher that starts containers of the image.
            program: Contents of the image beside Ropewalk.

        Raises:
            ConfigurationError: There is none.
        """
        if not self.image:
            raise ConfigurationError(
                f"the job file has no `image`: {starter} starts containers; name the image that "
                f"holds Ropewalk and {program}",
                field="image",
            )

    def role(self, name: str) -> Role:
        """Find the role of that name."""
        found: Role = getattr(self.roles, name)
        return found

    def pod(self, name: str) -> PodPart:
        """Return the needs of a role's pods on Kubernetes."""
        return self.kubernetes.and_of_role(self.role(name).kubernetes)

    def count(self, name: str) -> int:
        """Count the tasks of a role."""
        return self.role(name).count

    @property
    def present(self) -> list[tuple[str, Role]]:
        """The roles with tasks, in the order in which launchers start them."""
        named = [(name, self.role(name)) for name in (PS, CHIEF, WORKER, EVALUATOR)]
        return [(name, role) for name, role in named if role.count]

    @property
    def tasks(self) -> list[TaskId]:
        """Every task."""
        return [TaskId(name, i) for name, role in self.present for i in range(role.count)]

    @property
    def leader(self) -> TaskId:
        """The chief, or worker 0 in its place."""
        return TaskId(CHIEF, 0) if self.count(CHIEF) else TaskId(WORKER, 0)

    @property
    def synchronous(self) -> bool:
        """There is no ps: no worker can do without another."""
        return not self.count(PS)

    def replicas(self, roles: Sequence[str]) -> str:
        """Write the tasks per role as ``--replicas`` takes them: ``chief=1,ps=2,worker=2``."""
        counted = [(role, self.count(role)) for role in roles]
        return ",".join(f"{role}={count}" for role, count in counted if count)

    def command(self, role: str) -> list[str]:
        """Write the command of a role's tasks: ``ropewalk run`` and the program.

        The same in every role, since a ps that is given a program does not start it; but workers
        that serve a coordinator are given none.
        """
        if self.coordinator and role == WORKER:
            return ["ropewalk", "run"]
        program = ["-m", self.module] if self.module else [self.program]
        arguments = [*self.arguments, *self.role(role).arguments]
        return ["ropewalk", "run", *program, *(["--", *arguments] if arguments else [])]

    def environment_of(self, role: str) -> dict[str, str]:
        """Collect the user's variables and those of the settings for a task of a role."""
        return {
            **self.environment,
            **self.role(role).environment,
            **self.settings.environment(),
        }


def _check_job(job: JobFile) -> None:
    """Check that the parts of a job fit each other.

    Raises:
        MisfitError: They do not; with the field to look at.
    """
    if bool(job.program) == bool(job.module):
        both = "both are given" if job.program else "neither is given"
        raise MisfitError(f"a job has one of program and module; {both}", "module")
    chiefs, workers, ps = (job.count(role) for role in (CHIEF, WORKER, PS))
    if not chiefs and not workers:
        raise MisfitError(
            "nobody trains: give roles.chief or roles.worker a count of 1 or more", "roles"
        )
    if job.coordinator and not (chiefs and workers and ps):
        raise MisfitError(
            "a coordinator needs a chief, at least one worker to run closures, and at least "
            f"one ps to hold the variables; this has {chiefs} chief, {workers} workers and "
            f"{ps} ps",
            "coordinator",
        )
    shares = job.settings.ps_shares
    if 0 < shares < ps:
        raise MisfitError(
            f"{shares} shares leave a ps without one: this has {ps} ps", "settings", "ps_shares"
        )
    gang = job.kubernetes.gang
    if gang and gang.by == "chief" and "join_timeout_s" in job.settings.model_fields_set:
        raise MisfitError(
            "with kubernetes.gang by the chief, its wait_s says how long tasks wait for each "
            "other; take join_timeout_s away",
            "settings", "join_timeout_s",
        )  # fmt: skip
    _check_variables(job.environment, "environment")
    for name, role in job.present:
        _check_variables(role.environment, "roles", name, "environment")
        plain = {**job.environment, **role.environment}
        _check_pod(job, job.kubernetes, plain, "kubernetes")
        _check_pod(job, role.kubernetes, plain, "roles", name, "kubernetes")


def _check_pod(job: JobFile, pod: PodPart, plain: Mapping[str, str], *path: str) -> None:
    """Check that a pod's own variables and volumes are none that the job has already."""
    for number, name in pod.variables:
        where: tuple[str | int, ...] = (*path, "container", "env", number, "name")
        _check_variable(name, *where)
        if name in plain:
            raise MisfitError(f"environment has {name}, too; keep one", *where)
    for number, mount in enumerate(pod.container.get("volumeMounts") or ()):
        if job.storage.model_dir and mount.get("mountPath") == job.storage.model_dir:
            raise MisfitError(
                "storage.model_dir is there; choose another place",
                *path, "container", "volumeMounts", number, "mountPath",
            )  # fmt: skip


def _check_variables(environment: Mapping[str, str], *path: str) -> None:
    for name in environment:
        _check_variable(name, *path, name)


def _check_variable(name: str, *path: str | int) -> None:
    for own, where in _OWN_VARIABLES.items():
        if name.startswith(own):
            raise MisfitError(f"the launcher sets {name}; say what it is for {where}", *path)
