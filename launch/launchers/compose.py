"""A job as a compose file: a service per task, one network, one volume. Pure, but for the start.

Every service gets its TF_CONFIG, so the tasks find each other by their services' names.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

from ...cluster.roles import CHIEF, EVALUATOR, WORKER
from ...core.errors import ConfigurationError
from ...core.task import TaskId
from ..job.credentials import credential_variables
from ..job.model import Job
from ..job.yaml_output import dump_yaml

Json = dict[str, Any]

PORT = 2222
HEALTH_PORT = 2223
METRICS_PORT = 2224
_FIRST_METRICS_PORT = 9400  # of this machine, for the first task
_CHECKPOINTS = "/checkpoints"
_CREDENTIALS = "/run/secrets"
_GRACE_S = 60
_IS_HEALTHY = (
    f"import os, socket; socket.create_connection((os.uname().nodename, {HEALTH_PORT}), 3).close()"
)


def compose_document(job: Job) -> Json:
    """The compose file of a job, as data. Pure.

    Raises:
        ConfigurationError: The job has no image.
    """
    if not job.image:
        raise ConfigurationError(
            "the job file has no `image`: compose starts containers; name the image that holds "
            "Windlass and the program",
            field="image",
        )
    document: Json = {
        "name": job.name,
        "services": {_service_name(task): _service(job, task) for task in job.tasks},
    }
    if not job.storage.is_url:
        document["volumes"] = {"checkpoints": {}}
    return document


def _service_name(task: TaskId) -> str:
    return f"{task.type}-{task.index}"


def _service(job: Job, task: TaskId) -> Json:
    needs = job.role(task.type).resources
    limits: Json = {"memory": str(needs.memory_bytes)}
    reservations: Json = {"cpus": f"{needs.millicpu / 1000:g}"}
    if needs.gpu:
        reservations["devices"] = [
            {"driver": "nvidia", "count": needs.gpu, "capabilities": ["gpu"]}
        ]
    service: Json = {
        "image": job.image,
        "hostname": _service_name(task),
        "command": [_literal(word) for word in job.command(task.type)],
        "working_dir": "/app",
        "environment": _environment(job, task),
        "user": "10001:10001",
        "read_only": True,
        "tmpfs": ["/tmp"],  # noqa: S108 - of the container
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        # From an exit code of 128 on a restart helps; compose cannot tell, so a few times for any.
        "restart": "on-failure:3",
        "stop_grace_period": f"{_GRACE_S}s",
        "healthcheck": {
            "test": ["CMD", "python", "-c", _IS_HEALTHY],
            "interval": "10s",
            "timeout": "5s",
            "retries": 6,
            "start_period": "60s",
        },
        "deploy": {"resources": {"limits": limits, "reservations": reservations}},
    }
    volumes = []
    if not job.storage.is_url:
        volumes.append(f"checkpoints:{job.storage.model_dir or _CHECKPOINTS}")
    if job.security.mode != "insecure":
        folder = job.security.folder
        if not folder.startswith(("/", "./", "../")):
            folder = f"./{folder}"
        volumes.append(f"{_literal(folder)}/{task.type}:{_CREDENTIALS}:ro")
    if volumes:
        service["volumes"] = volumes
    # For this machine alone: `windlass status`, and a Prometheus that runs here.
    ports = [f"127.0.0.1:{PORT}:{PORT}"] if task == job.leader else []
    if job.metrics:
        ports.append(f"127.0.0.1:{_FIRST_METRICS_PORT + job.tasks.index(task)}:{METRICS_PORT}")
    if ports:
        service["ports"] = ports
    return service


def _environment(job: Job, task: TaskId) -> dict[str, str]:
    waits = {"WINDLASS_WAIT_FOR_WORKERS": str(job.count(WORKER))} if task.type == CHIEF else {}
    values = {
        "TF_CONFIG": _tf_config(job, task),
        **waits,  # a short job is not over before they start
        "WINDLASS_HEALTH_PORT": str(HEALTH_PORT),
        **({"WINDLASS_METRICS_PORT": str(METRICS_PORT)} if job.metrics else {}),
        "WINDLASS_LEAVE_GRACE_S": str(_GRACE_S * 3 // 4),
        "HOME": "/tmp",  # noqa: S108 - of the container
        "WINDLASS_JOB_ID": job.name,
        "WINDLASS_MODEL_DIR": job.storage.model_dir or f"{_CHECKPOINTS}/{job.name}",
        **credential_variables(job, _CREDENTIALS, _CREDENTIALS),
        **job.environment_of(task.type),
    }
    return {name: _literal(text) for name, text in values.items()}


def _tf_config(job: Job, task: TaskId) -> str:
    cluster: dict[str, list[str]] = {}
    for other in job.tasks:
        if other.type != EVALUATOR:
            cluster.setdefault(other.type, []).append(f"{_service_name(other)}:{PORT}")
    return json.dumps({"cluster": cluster, "task": {"type": task.type, "index": task.index}})


def _literal(text: str) -> str:
    """The user's text as it is: compose puts variables into ``$NAME``."""
    return text.replace("$", "$$")


class ComposeLauncher:
    """Docker's compose, or whatever else reads its files.

    Args:
        folder: Of the job file, to which the folder of credentials is relative.
        command: That reads a compose file.
    """

    def __init__(self, folder: Path, command: tuple[str, ...] = ("docker", "compose")) -> None:
        self._folder = folder
        self._command = command

    def render(self, job: Job) -> str:
        """The compose file."""
        return dump_yaml(compose_document(job))

    def start(self, job: Job) -> int:
        """Start the services and show their output to the end; the leader's exit code."""
        text = self.render(job)
        code = self._run(["up"], text)
        if code:
            return code
        leader = _service_name(job.leader)
        # `up` ends with 0 whatever the tasks ended with.
        return self._run(["wait", leader], text)

    def _run(self, arguments: list[str], text: str) -> int:
        command = [*self._command, "-f", "-", "--project-directory", str(self._folder), *arguments]
        try:
            return subprocess.run(command, input=text, text=True, check=False).returncode
        except FileNotFoundError as error:
            raise ConfigurationError(
                f"{command[0]} is not in the path; install Docker with its compose plugin, or give "
                "what `windlass compose render` prints to another tool"
            ) from error
