"""Plan of what a task gets from its launcher: its command, its environment, its credentials. Pure.

Which variables tasks get is decided here, for every launcher. Each decision is a function, a
*part*; a launcher has a tuple of parts, in the order in which their variables are written. It
brings the addresses, folders and ports of its place, and only spells what comes out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...cluster.spec import CHIEF, EVALUATOR, PS, WORKER

if TYPE_CHECKING:
    from .model import JobFile
    from .parts import Resources

ANY_ROLE = ""
"""Stand-in for a role: what the tasks of all roles share."""

_TLS_FILES = {"CERT": "tls.crt", "KEY": "tls.key", "CA": "ca.crt"}
_TOKEN = "token"  # noqa: S105 - the name of a file
_TOKEN_KEYS = "token.pub"  # noqa: S105


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a launcher's tasks.

    Attributes:
        checkpoints: Folder of the models, where the job file names no model directory.
        tls: Folder of the certificate, its key and the CA.
        token: Folder of the token and of the keys of all tokens.
        health_port: Port for probes.
        metrics_port: Port for Prometheus.
        grace_s: Time from a request to stop to SIGKILL. Unit: seconds.
        join_timeout_s: Longest time that tasks wait for each other. Unit: seconds.
        orphan_s: Longest time that they go on without a chief that is to return. Unit: seconds.
        address: Variables by which a task finds itself and the others.
    """

    checkpoints: str = ""
    tls: str = ""
    token: str = ""
    health_port: int = 0
    metrics_port: int = 0
    grace_s: int = 0
    join_timeout_s: int = 0
    orphan_s: int = 0
    address: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """The plan of a task: what it gets from its launcher.

    Attributes:
        command: ``ropewalk run`` and what it runs.
        environment: Variables of the task, in the order in which they are written.
        credentials: Kinds of files by which it shows who it is: ``tls``, ``token``.
        resources: Resources that it needs.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    credentials: tuple[str, ...]
    resources: "Resources"


Part = Callable[["JobFile", str, Place], dict[str, str]]
"""A decision about variables: from a job, a role and a place."""


def plan_task(job: "JobFile", role: str, place: Place, parts: tuple[Part, ...]) -> TaskPlan:
    """Plan what the tasks of a role get.

    Args:
        job: The job.
        role: The role.
        place: Place of its tasks.
        parts: Decisions about variables that apply there. The later ones win.
    """
    return TaskPlan(
        tuple(job.command(role)),
        variables(job, role, place, parts),
        {"insecure": (), "mtls": ("tls",), "token": ("tls", "token")}[job.security.mode],
        job.role(role).resources,
    )


def variables(job: "JobFile", role: str, place: Place, parts: tuple[Part, ...]) -> dict[str, str]:
    """Collect the variables that the tasks of a role get, or for :data:`ANY_ROLE` those of all
    roles.
    """
    chosen: dict[str, str] = {}
    for part in parts:
        chosen |= part(job, role, place)
    return chosen


def saves(job: "JobFile", role: str) -> bool:
    """Return whether tasks of a role read or write checkpoints: without a chief, worker 0 does."""
    return role in (CHIEF, PS, EVALUATOR) or not job.count(CHIEF)


# -- decisions -------------------------------------------------------------------------------


def address(job: "JobFile", role: str, place: Place) -> dict[str, str]:  # noqa: ARG001
    """Set the variables by which a task finds itself and the others."""
    return dict(place.address)


def ports(job: "JobFile", role: str, place: Place) -> dict[str, str]:  # noqa: ARG001
    """Set the ports beside that of the task's address."""
    metrics = {"ROPEWALK_METRICS_PORT": str(place.metrics_port)} if job.metrics else {}
    return {"ROPEWALK_HEALTH_PORT": str(place.health_port), **metrics}


def join_timeout(job: "JobFile", role: str, place: Place) -> dict[str, str]:  # noqa: ARG001
    """Set how long tasks wait for each other."""
    return {"ROPEWALK_JOIN_TIMEOUT_S": str(place.join_timeout_s)}


def leave_grace(job: "JobFile", role: str, place: Place) -> dict[str, str]:  # noqa: ARG001
    """Let a ps that is asked to end wait for the checkpoint, for less than the grace period."""
    return {"ROPEWALK_LEAVE_GRACE_S": str(place.grace_s * 3 // 4)}


def wait_for_workers(job: "JobFile", role: str, place: Place) -> dict[str, str]:  # noqa: ARG001
    """Let the chief's program begin when all have joined: a short job is not over before that."""
    waits = job.count(CHIEF) and job.count(WORKER) and role in (CHIEF, ANY_ROLE)
    return {"ROPEWALK_WAIT_FOR_WORKERS": str(job.count(WORKER))} if waits else {}


def stay_without_chief(job: "JobFile", role: str, place: Place) -> dict[str, str]:  # noqa: ARG001
    """Let a ps that is started again when the job is over wait until it is deleted."""
    return {"ROPEWALK_STAY_WITHOUT_CHIEF": "true"} if role == PS else {}


def supervise(job: "JobFile", role: str, place: Place) -> dict[str, str]:  # noqa: ARG001
    """Let the container's process start its task again when only a peer was lost."""
    return {"ROPEWALK_SUPERVISE": "true"}


def holds(job: "JobFile", role: str, place: Place) -> dict[str, str]:  # noqa: ARG001
    """Let a container stay until it is deleted if it would be started again when its part is
    over.
    """
    return {"ROPEWALK_HOLDS": "true"} if job.kubernetes.at_once and role in (CHIEF, WORKER) else {}


def chief_returns(job: "JobFile", role: str, place: Place) -> dict[str, str]:  # noqa: ARG001
    """Let the others go on while the chief's pod is replaced."""
    returns = {"ROPEWALK_CHIEF_RETURNS": "true", "ROPEWALK_ORPHAN_TIMEOUT_S": str(place.orphan_s)}
    return returns if job.count(PS) else {}


def model_dir(job: "JobFile", role: str, place: Place) -> dict[str, str]:  # noqa: ARG001
    """Set where checkpoints go."""
    return {"ROPEWALK_MODEL_DIR": job.storage.model_dir or f"{place.checkpoints}/{job.name}"}


def model_dir_of_savers(job: "JobFile", role: str, place: Place) -> dict[str, str]:
    """Set where checkpoints go, for the tasks that can reach it."""
    return model_dir(job, role, place) if saves(job, role) else {}


def home(job: "JobFile", role: str, place: Place) -> dict[str, str]:  # noqa: ARG001
    """Set a home that a container may write, of its own."""
    return {"HOME": "/tmp"}  # noqa: S108


def job_id(job: "JobFile", role: str, place: Place) -> dict[str, str]:  # noqa: ARG001
    """Set the job's id, which is its name."""
    return {"ROPEWALK_JOB_ID": job.name}


def credentials(job: "JobFile", role: str, place: Place) -> dict[str, str]:  # noqa: ARG001
    """Set the files that show who a task is; they imply the mode."""
    if job.security.mode == "insecure":
        return {"ROPEWALK_INSECURE": "true"}
    values = {f"ROPEWALK_TLS_{name}": f"{place.tls}/{file}" for name, file in _TLS_FILES.items()}
    if job.security.mode == "token":
        values["ROPEWALK_TOKEN_FILE"] = f"{place.token}/{_TOKEN}"
        values["ROPEWALK_TOKEN_KEYS"] = f"{place.token}/{_TOKEN_KEYS}"
    return values


def gpu_cache(job: "JobFile", role: str, place: Place) -> dict[str, str]:  # noqa: ARG001
    """Set where CuPy keeps its kernels, if the home cannot be relied on."""
    return {"CUPY_CACHE_DIR": "/tmp/cupy"} if job.role(role).resources.gpu else {}  # noqa: S108


def of_user(job: "JobFile", role: str, place: Place) -> dict[str, str]:  # noqa: ARG001
    """Set the user's variables, and those of the job's settings."""
    return job.environment_of(role)


def of_user_for_all(job: "JobFile", role: str, place: Place) -> dict[str, str]:  # noqa: ARG001
    """Set the settings of the job, and the user's variables for all roles."""
    return {**job.settings.environment(), **job.environment}


def of_user_for_role(job: "JobFile", role: str, place: Place) -> dict[str, str]:  # noqa: ARG001
    """Set the user's variables for one role."""
    return dict(job.role(role).environment)


def insecure(job: "JobFile", role: str, place: Place) -> dict[str, str]:
    """Say that tasks show no credentials, where all tasks may share that."""
    return credentials(job, role, place) if job.security.mode == "insecure" else {}


def own_credentials(job: "JobFile", role: str, place: Place) -> dict[str, str]:
    """Set the credentials in the other case of :func:`insecure`: each role has files of its own."""
    return credentials(job, role, place) if job.security.mode != "insecure" else {}


# -- launchers -------------------------------------------------------------------------------

KUBERNETES: tuple[Part, ...] = (
    address, ports, join_timeout, leave_grace, wait_for_workers, stay_without_chief,
    supervise, holds, chief_returns, model_dir_of_savers, home, credentials, gpu_cache, of_user,
)  # fmt: skip
COMPOSE: tuple[Part, ...] = (
    address, wait_for_workers, ports, leave_grace, home, job_id, model_dir, credentials, of_user,
)  # fmt: skip
SLURM_SHARED: tuple[Part, ...] = (address, model_dir, wait_for_workers, insecure, of_user_for_all)
SLURM: tuple[Part, ...] = (of_user_for_role, own_credentials)
