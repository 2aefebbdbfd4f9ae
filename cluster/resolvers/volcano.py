"""VolcanoClusterResolver: the tasks of a Volcano Job as a cluster.

Volcano's ``svc`` plugin gives every container, for each task of the Job (a group of equal pods),
``VC_<TASK>_HOSTS``, its pods' host names, and ``VC_<TASK>_NUM``; dashes of the name become
underscores and letters upper-case. The ``env`` plugin adds ``VC_TASK_INDEX`` (long ago
``VK_TASK_INDEX``). No variable says which task a pod belongs to: it is the one whose hosts have the
pod's own name. A ``TF_CONFIG`` of the ``tensorflow`` plugin says all of that, and goes first.

Source: how_to_use_svc_plugin.md and how_to_use_env_plugin.md of Volcano, and its svc plugin.
"""

import os
from collections.abc import Mapping
from typing import Any

from ...core.errors import ConfigurationError
from ...core.outside_text import parse_number
from ...core.settings import environment_variables
from ...core.task import MAX_TASK_INDEX
from ...core.terminal import counted
from ..spec import TASK_TYPES, ClusterSpec
from .resolver import ClusterResolver

INDICES = ("VC_TASK_INDEX", "VK_TASK_INDEX")
_ROLES = (*TASK_TYPES, "master")


def hosts_variable(task: str) -> str:
    """Name the variable with the hosts of a Volcano task, e.g. ``VC_PS_HOSTS``."""
    return f"VC_{task.replace('-', '_').upper()}_HOSTS"


def read_hosts(
    variables: Mapping[str, str], tasks: Mapping[str, str] | None = None
) -> dict[str, list[str]]:
    """Read the hosts by job.

    Args:
        variables: Environment variables of a container.
        tasks: Job → name of the Volcano task; None: Volcano tasks with the name of a job;
            others (a TensorBoard, say) are not part of the cluster.

    Raises:
        ConfigurationError: There are no hosts, or not as many as Volcano says.
    """
    names = {role: role for role in _ROLES} if tasks is None else dict(tasks)
    jobs: dict[str, list[str]] = {}
    for job, task in names.items():
        variable = hosts_variable(task)
        hosts = [host.strip() for host in variables.get(variable, "").split(",") if host.strip()]
        if not hosts:
            if tasks is not None:
                raise ConfigurationError(
                    f"{variable} is not set: the Volcano Job has no task {task!r}, or no svc "
                    f"plugin; {_there(variables)}",
                    variable=variable,
                )
            continue
        number = variables.get(variable.removesuffix("HOSTS") + "NUM", "")
        if parse_number(number, MAX_TASK_INDEX) not in (None, len(hosts)):
            raise ConfigurationError(
                f"{variable} has {counted(len(hosts), 'host')}, but "
                f"{variable.removesuffix('HOSTS')}NUM is {number}: the Job is being changed, or a "
                "template sets a hostname of its own",
                variable=variable,
            )
        jobs[job] = hosts
    if not jobs:
        raise ConfigurationError(
            f"no VC_<TASK>_HOSTS of a task that is named as a job ({', '.join(_ROLES)}): this is "
            f"no pod of a Volcano Job with the svc plugin, or its tasks have other names "
            f"({_there(variables)}); then say which is which: tasks={{'worker': 'trainer'}}"
        )
    return jobs


def _there(variables: Mapping[str, str]) -> str:
    names = [name for name in sorted(variables) if name.startswith("VC_") and "_HOSTS" in name]
    return f"there are {', '.join(names)}" if names else "there are no VC_…_HOSTS"


def find_task(
    variables: Mapping[str, str], jobs: Mapping[str, list[str]], hostname: str
) -> tuple[str, int] | None:
    """Find (job, index) of the pod with this host name; None if no job has it.

    Raises:
        ConfigurationError: ``VC_TASK_INDEX`` says another index.
    """
    own = hostname.split(".", 1)[0]
    for job, hosts in jobs.items():
        for index, host in enumerate(hosts):
            if host.split(".", 1)[0] != own:
                continue
            name = next((name for name in INDICES if variables.get(name)), "")
            if name and variables[name] != str(index):
                raise ConfigurationError(
                    f"{name} is {variables[name]!r}, but {hostname!r} is number {index} of the "
                    f"hosts of job {job!r}: {', '.join(hosts[:8])}",
                    variable=name,
                )
            return job, index
    return None


class VolcanoClusterResolver(ClusterResolver):
    """The tasks of a Volcano Job. TensorFlow has none.

    ::

        VolcanoClusterResolver(tasks={"ps": "servers", "worker": "trainers"}, port=2222)

    Args:
        tasks: Job → name of the Volcano task; None: Volcano tasks with the name of a job.
        port: Port of every task.
        task_type: Used instead of the type in the host name.
        task_id: Used instead of the index in the variables.
        rpc_layer: Protocol in front of addresses.
        variables: Used instead of this process's environment, which is read now.
        hostname: Host name of the pod; None: this machine's.

    Raises:
        ConfigurationError: The variables are missing or contradict each other.
    """

    _asks_nobody = True

    def __init__(
        self,
        tasks: Mapping[str, str] | None = None,
        port: int = 2222,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        *,
        variables: Mapping[str, str] | None = None,
        hostname: str | None = None,
    ) -> None:
        environment = environment_variables() if variables is None else variables
        jobs = read_hosts(environment, tasks)
        self._own = find_task(
            environment, jobs, os.uname().nodename if hostname is None else hostname
        )
        self._spec = ClusterSpec(
            {job: [f"{host}:{port}" for host in hosts] for job, hosts in jobs.items()}
        )
        self._tasks = tasks or {}
        self._task_type = task_type
        self._task_id = task_id
        self._rpc_layer = rpc_layer

    def cluster_spec(self) -> ClusterSpec:
        """Return the cluster."""
        return self._spec

    def _found(self, name: str) -> Any:
        if name == "rpc_layer" or self._own is None:
            return None
        return self._own[0 if name == "task_type" else 1]

    @property
    def source(self) -> str:
        """``"Volcano"``."""
        return "Volcano"

    @property
    def sources(self) -> dict[str, str]:
        """The variables."""
        names = [hosts_variable(self._tasks.get(job, job)) for job in self._spec.jobs]
        return {"cluster": ", ".join(names), "task": f"the host name, in {' or '.join(names)}"}

    @property
    def from_launcher(self) -> bool:
        """Always."""
        return True
