"""A job as a compose file: a service per task, one network, one volume. Pure, but for the start.

Every service gets its TF_CONFIG, so the tasks find each other by their services' names.
"""

import subprocess
from pathlib import Path
from typing import Any

from ...cluster.resolvers.tf_config import TF_CONFIG, write_tf_config
from ...cluster.spec import EVALUATOR
from ...core.errors import ConfigurationError
from ...core.task import TaskId
from .model import JobFile
from .plan import COMPOSE, Place, plan_task
from .pod_part import CHECKPOINTS, HEALTH_PORT, IMAGE_USER, METRICS_PORT, PORT
from .yaml_text import dump_yaml

Json = dict[str, Any]

_FIRST_METRICS_PORT = 9400  # of this machine, for the first task
_CREDENTIALS = "/run/secrets"
_GRACE_S = 60
_IS_HEALTHY = (
    f"import os, socket; socket.create_connection((os.uname().nodename, {HEALTH_PORT}), 3).close()"
)


def compose_document(job: JobFile) -> Json:
    """Make the compose file of a job, as data. Pure.

    Raises:
        ConfigurationError: The job has no image.
    """
    job.require_image("compose", "the program")
    document: Json = {
        "name": job.name,
        "services": {_service_name(task): _service(job, task) for task in job.tasks},
    }
    if not job.storage.is_url:
        document["volumes"] = {"checkpoints": {}}
    return document


def _service_name(task: TaskId) -> str:
    return f"{task.type}-{task.index}"


def _service(job: JobFile, task: TaskId) -> Json:
    plan = plan_task(job, task.type, _place(job, task), COMPOSE)
    needs = plan.resources
    limits: Json = {"memory": str(needs.memory_bytes)}
    reservations: Json = {"cpus": f"{needs.millicpu / 1000:g}"}
    if needs.gpu:
        reservations["devices"] = [
            {"driver": "nvidia", "count": needs.gpu, "capabilities": ["gpu"]}
        ]
    service: Json = {
        "image": job.image,
        "hostname": _service_name(task),
        "command": [_literal(word) for word in plan.command],
        "working_dir": "/app",
        "environment": {name: _literal(text) for name, text in plan.environment.items()},
        "user": f"{IMAGE_USER}:{IMAGE_USER}",
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
        volumes.append(f"checkpoints:{job.storage.model_dir or CHECKPOINTS}")
    if plan.credentials:
        folder = job.security.folder
        if not folder.startswith(("/", "./", "../")):
            folder = f"./{folder}"
        volumes.append(f"{_literal(folder)}/{task.type}:{_CREDENTIALS}:ro")
    if volumes:
        service["volumes"] = volumes
    # For this machine alone: `ropewalk status`, and a Prometheus that runs here.
    ports = [f"127.0.0.1:{PORT}:{PORT}"] if task == job.leader else []
    if job.metrics:
        ports.append(f"127.0.0.1:{_FIRST_METRICS_PORT + job.tasks.index(task)}:{METRICS_PORT}")
    if ports:
        service["ports"] = ports
    return service


def _place(job: JobFile, task: TaskId) -> Place:
    cluster: dict[str, list[str]] = {}
    for other in job.tasks:
        if other.type != EVALUATOR:
            cluster.setdefault(other.type, []).append(f"{_service_name(other)}:{PORT}")
    return Place(
        checkpoints=CHECKPOINTS,
        tls=_CREDENTIALS,
        token=_CREDENTIALS,
        health_port=HEALTH_PORT,
        metrics_port=METRICS_PORT,
        grace_s=_GRACE_S,
        address={TF_CONFIG: write_tf_config(cluster, task)},
    )


def _literal(text: str) -> str:
    """Quote the user's text, so that it stays as it is: compose puts variables into ``$NAME``."""
    return text.replace("$", "$$")


class ComposeLauncher:
    """Docker's compose, or whatever else reads its files.

    Args:
        folder: Folder of the job file, to which the folder of credentials is relative.
        command: Command that reads a compose file.
    """

    def __init__(self, folder: Path, command: tuple[str, ...] = ("docker", "compose")) -> None:
        self._folder = folder
        self._command = command

    def render(self, job: JobFile) -> str:
        """Render the compose file."""
        return dump_yaml(compose_document(job))

    def start(self, job: JobFile) -> int:
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
                "what `ropewalk compose render` prints to another tool"
            ) from error
