"""The resolver of a process without an explicit cluster: TF_CONFIG's, or its launcher's.

TF_CONFIG goes first, even if it is ``{}``, which says "this process alone". Without it the
environment of a task of a Slurm step, of a SageMaker job or of a Volcano Job counts, if that has
several tasks: one process alone needs no cluster, and a shell inside an allocation is no task.

Manifests that set ``ROPEWALK_HOST_TEMPLATE`` have said everything, and go before those. What other
launchers do not say comes from ``ROPEWALK_REPLICAS`` (roles, where a launcher starts equal
processes) and ``ROPEWALK_PORT``, or from flags.
"""

from collections.abc import Callable, Mapping

from ...core.errors import ConfigurationError
from ...core.outside_text import parse_number, read_json
from ...core.settings import environment_variables
from ..spec import TASK_TYPES
from . import sagemaker, slurm
from .resolver import ClusterResolver
from .sagemaker import SageMakerClusterResolver
from .slurm import SlurmClusterResolver
from .template import HOST_TEMPLATE, REPLICAS, VariablesClusterResolver, parse_replicas
from .tf_config import TF_CONFIG, TFConfigClusterResolver
from .volcano import INDICES, VolcanoClusterResolver, hosts_variable

PORT = "ROPEWALK_PORT"


def environment_resolver(
    *, task_type: str | None = None, task_id: int | None = None
) -> ClusterResolver:
    """Make the resolver of TF_CONFIG or of the launcher; without either TF_CONFIG's, which is
    empty.

    Args:
        task_type: Instead of TF_CONFIG's.
        task_id: Instead of TF_CONFIG's.

    Raises:
        ConfigurationError: What the launcher says does not fit, or two launchers say something.
    """
    return launcher_resolver() or TFConfigClusterResolver(task_type, task_id)


def launcher_resolver(
    variables: Mapping[str, str] | None = None,
    *,
    replicas: Mapping[str, int] | None = None,
    port: int | None = None,
    hostname: str | None = None,
) -> ClusterResolver | None:
    """Make the resolver of the launcher that started this process; None without, or with TF_CONFIG.

    Args:
        variables: Used instead of this process's environment; then no GPUs are set either.
        replicas: Tasks per role; None: ``ROPEWALK_REPLICAS``, or all are workers.
        port: First port of a host; None: ``ROPEWALK_PORT``, or the resolver's default.
        hostname: Host name of the machine or pod; None: this one's.

    Raises:
        ConfigurationError: The launcher's variables do not fit, or those of two launchers are set.
    """
    environment = environment_variables() if variables is None else variables
    if environment.get(TF_CONFIG, "").strip():
        return None
    if environment.get(HOST_TEMPLATE, "").strip():
        return VariablesClusterResolver(environment, replicas=replicas, hostname=hostname)
    launchers = launchers_of(environment)
    if not launchers:
        return None
    if len(launchers) > 1:
        raise ConfigurationError(
            f"the environment is that of a task under {' and under '.join(launchers)}; say which "
            "cluster this is by TF_CONFIG or flags, or by TF_CONFIG={} that there is none"
        )
    if replicas is None and environment.get(REPLICAS, "").strip():
        replicas = parse_replicas(environment[REPLICAS], REPLICAS)
    if port is None:
        port = read_port(environment)

    def of_slurm() -> ClusterResolver:
        return SlurmClusterResolver(replicas, port or 8888, variables=variables)

    def of_sagemaker() -> ClusterResolver:
        return SageMakerClusterResolver(port or 2223, jobs=replicas, variables=variables)

    def of_volcano() -> ClusterResolver:
        if replicas is not None:
            raise ConfigurationError(
                "--replicas: the tasks of a Volcano Job are named and counted in its file; take "
                f"it away ({REPLICAS}, too)"
            )
        return VolcanoClusterResolver(None, port or 2222, variables=variables, hostname=hostname)

    make: dict[str, Callable[[], ClusterResolver]] = {
        "Slurm": of_slurm, "SageMaker": of_sagemaker, "Volcano": of_volcano
    }  # fmt: skip
    return make[launchers[0]]()


def launchers_of(variables: Mapping[str, str]) -> list[str]:
    """List the launchers by which this environment is that of one task among several."""
    launchers = []
    of_step = (slurm.RANK, slurm.HOSTS, slurm.TASKS_PER_NODE, slurm.NUM_TASKS)
    values = [variables.get(name, "").strip() for name in of_step]
    if all(values) and values[-1] != "1":
        launchers.append("Slurm")
    if variables.get(sagemaker.CURRENT_HOST, "").strip() and _several_hosts(variables):
        launchers.append("SageMaker")
    if any(variables.get(name, "").strip() for name in INDICES):
        lists = [variables.get(hosts_variable(role), "") for role in (*TASK_TYPES, "master")]
        if sum(len(hosts.split(",")) for hosts in lists if hosts.strip()) > 1:
            launchers.append("Volcano")
    return launchers


def _several_hosts(variables: Mapping[str, str]) -> bool:
    text = variables.get(sagemaker.HOSTS, "").strip()
    try:
        hosts = read_json(text or "[]")
    except ValueError:
        return True  # the resolver says what is wrong
    return not isinstance(hosts, list) or len(hosts) > 1


def read_port(variables: Mapping[str, str]) -> int | None:
    """Read ``ROPEWALK_PORT``, if it is set.

    Raises:
        ConfigurationError: It is no port.
    """
    text = variables.get(PORT, "").strip()
    if not text:
        return None
    port = parse_number(text, 65535)
    if not port:
        raise ConfigurationError(f"{PORT}={text!r:.200} is no port: 1 to 65535", variable=PORT)
    return port
