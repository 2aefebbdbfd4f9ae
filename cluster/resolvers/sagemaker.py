"""SageMakerClusterResolver: the hosts of a SageMaker training job as a cluster.

The training toolkit gives each container ``SM_HOSTS``, a JSON list of all hosts, and
``SM_CURRENT_HOST``. A host runs one task. The hosts are taken in the order of their names as
strings (``algo-1``, ``algo-10``, ``algo-2``), as SageMaker lists them and TensorFlow takes them.

Source: ENVIRONMENT_VARIABLES.md of the SageMaker training toolkit; TensorFlow's
sagemaker_cluster_resolver.py.
"""

from collections.abc import Mapping
from copy import copy
from typing import Any

from ...core.errors import ConfigurationError
from ...core.outside_text import read_json
from ...core.settings import environment_variables
from ..spec import ClusterSpec
from .resolver import ClusterResolver, divide, jobs_or_workers, task_of_rank

HOSTS = "SM_HOSTS"
CURRENT_HOST = "SM_CURRENT_HOST"


def read_hosts(variables: Mapping[str, str]) -> tuple[list[str], str]:
    """Read (all hosts, this one) from the environment of a container.

    Raises:
        ConfigurationError: A variable is missing or malformed, or this host is not listed.
    """
    for name in (HOSTS, CURRENT_HOST):
        if not variables.get(name, "").strip():
            raise ConfigurationError(
                f"{name} is not set: this is no container of a SageMaker training job, or its "
                "image does not use the SageMaker training toolkit. Give TF_CONFIG instead",
                variable=name,
            )
    text, current = variables[HOSTS], variables[CURRENT_HOST].strip()
    try:
        hosts = read_json(text)
    except ValueError as error:
        raise ConfigurationError(f"{HOSTS}={text[:200]!r} is not JSON: {error}") from error
    strings = isinstance(hosts, list) and all(isinstance(host, str) and host for host in hosts)
    if not strings or len(set(hosts)) != len(hosts):
        raise ConfigurationError(
            f"{HOSTS}={text[:200]!r} must be a JSON list of different host names, e.g. "
            '["algo-1","algo-2"]',
            variable=HOSTS,
        )
    if current not in hosts:
        raise ConfigurationError(
            f"{CURRENT_HOST} is {current!r}, which {HOSTS} does not list: {text[:200]}",
            variable=CURRENT_HOST,
        )
    return sorted(hosts), current


class SageMakerClusterResolver(ClusterResolver):
    """A resolver like TensorFlow's ``SageMakerClusterResolver``: every host is a worker.

    With ``jobs`` hosts have other roles, too: in their order they are given to the jobs in the
    order of their names, so that of ``{"chief": 1, "ps": 1, "worker": 2}`` algo-1 is the chief and
    algo-2 the ps. A host that ``SM_HOSTS`` does not list, or no such variable, is an error;
    TensorFlow takes it for an empty cluster, and fails with an AssertionError.

    Each call and property reads the variables anew, as TensorFlow's.

    Args:
        port: Port of every task.
        task_type: Used instead of the type in the variables.
        task_id: Used instead of the index in the variables.
        rpc_layer: Protocol in front of addresses.
        environment: Value of :attr:`environment`.
        jobs: Tasks of each job; None: all are workers.
        variables: Used instead of this process's environment.
    """

    _asks_nobody = True

    def __init__(
        self,
        port: int = 2223,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
        *,
        jobs: Mapping[str, int] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._port = port
        self._task_type = task_type
        self._task_id = task_id
        self._rpc_layer = rpc_layer
        self._environment = environment
        self._jobs = jobs
        self._variables = variables

    def cluster_spec(self) -> ClusterSpec:
        """Return the cluster.

        Raises:
            ConfigurationError: A variable is missing or malformed, or the jobs do not fit.
        """
        hosts, _ = self._hosts()
        addresses = [f"{host}:{self._port}" for host in hosts]
        return divide(addresses, self._jobs_of(hosts))

    def snapshot(self) -> "SageMakerClusterResolver":
        """Make a resolver of the variables as they are now."""
        fixed = copy(self)
        if fixed._variables is None:
            fixed._variables = environment_variables()
        return fixed

    def _hosts(self) -> tuple[list[str], str]:
        return read_hosts(environment_variables() if self._variables is None else self._variables)

    def _jobs_of(self, hosts: list[str]) -> dict[str, int]:
        return jobs_or_workers(self._jobs, len(hosts), "the SageMaker job")

    def _found(self, name: str) -> Any:
        if name == "rpc_layer":
            return None
        hosts, current = self._hosts()
        task = task_of_rank(hosts.index(current), self._jobs_of(hosts))
        return task.type if name == "task_type" else task.index

    def _master(self, kind: str | None, index: int | None, layer: str | None) -> str:
        """Find the address of a task, this one by default; ``""`` for a cluster of one task."""
        spec = self.cluster_spec()
        if sum(1 for _ in spec.tasks()) == 1:
            return ""
        return super()._master(kind, index, layer)

    @property
    def environment(self) -> str:
        """Environment that the constructor was given."""
        return self._environment or ""

    @property
    def source(self) -> str:
        """``"SageMaker"``."""
        return "SageMaker"

    @property
    def sources(self) -> dict[str, str]:
        """The variables."""
        cluster = HOSTS if self._jobs is None else f"{HOSTS}, the jobs"
        return {"cluster": cluster, "task": CURRENT_HOST}

    @property
    def from_launcher(self) -> bool:
        """Always."""
        return True
