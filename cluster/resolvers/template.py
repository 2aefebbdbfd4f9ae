"""A cluster computed from counts and a host name pattern: in flags, or in variables of a pod."""

import re
import socket
from collections.abc import Mapping

from ...core.errors import ConfigurationError
from ...core.outside_text import parse_number
from ...core.task import MAX_TASK_INDEX
from ..spec import PS, TASK_TYPES, WORKER, ClusterSpec, canonical_type
from .resolver import ClusterResolver

# -- A cluster computed from counts and a host name pattern, instead of TF_CONFIG --------------
# For Indexed Jobs, StatefulSets, JobSet, Volcano, Slurm and plain shells: every pod gets the same
# flags, and its index from its launcher.


# Variables in which launchers put a task's index; the first that is set is used.
INDEX_VARIABLES = ("JOB_COMPLETION_INDEX", "VC_TASK_INDEX", "SLURM_PROCID")


def parse_replicas(text: str, name: str = "--replicas") -> dict[str, int]:
    """Parse ``"chief=1,ps=2,worker=3"`` as a dictionary.

    Args:
        text: Roles and counts.
        name: Name of the flag or variable that they come from, for the error.

    Raises:
        ConfigurationError: The text is malformed.
    """
    counts: dict[str, int] = {}
    for item in text.split(","):
        role, _, count = item.strip().partition("=")
        number = parse_number(count, MAX_TASK_INDEX)
        if role not in TASK_TYPES or number is None or role in counts:
            raise ConfigurationError(
                f"{name} {text!r:.200}: {item.strip()!r:.100} does not read as ROLE=COUNT; "
                f"e.g. chief=1,ps=2,worker=3 (roles: {', '.join(TASK_TYPES)}, each once)"
            )
        counts[role] = number
    return counts


def find_index(
    flag: int | None, environment: Mapping[str, str], hostname: str
) -> tuple[int, str] | None:
    """Find this task's index and its source; None if there is none.

    Order: the flag, ``JOB_COMPLETION_INDEX``, ``VC_TASK_INDEX``, ``SLURM_PROCID``, the ordinal at
    the end of the host name (``ps-1``).
    """
    if flag is not None:
        return flag, "--index"
    for name in INDEX_VARIABLES:
        number = parse_number(environment.get(name, ""), MAX_TASK_INDEX)
        if number is not None:
            return number, name
    ordinal = hostname.split(".", 1)[0].rpartition("-")
    number = parse_number(ordinal[2], MAX_TASK_INDEX) if ordinal[1] else None
    return None if number is None else (number, f"host name {hostname}")


class TemplateClusterResolver(ClusterResolver):
    """Addresses from a pattern with ``{role}`` and ``{index}``.

    ::

        TemplateClusterResolver("worker", 1, {"ps": 2, "worker": 3}, "{role}-{index}.train:2222")
    """

    _asks_nobody = True

    def __init__(
        self,
        task_type: str,
        task_id: int,
        replicas: Mapping[str, int],
        host_template: str,
        rpc_layer: str | None = None,
    ) -> None:
        """Keep a pattern.

        Raises:
            ConfigurationError: The pattern has other fields, or gives two tasks one address.
        """
        fields = set(re.findall(r"\{([^}]*)\}", host_template))
        if not fields <= {"role", "index"}:
            wrong = ", ".join("{" + name + "}" for name in sorted(fields - {"role", "index"}))
            raise ConfigurationError(
                f"--host-template {host_template!r}: unknown field {wrong}; "
                "there are {role} and {index}"
            )
        try:
            jobs = {
                role: [host_template.format(role=role, index=index) for index in range(count)]
                for role, count in replicas.items()
                if count
            }
        except ValueError as error:
            raise ConfigurationError(f"--host-template {host_template!r}: {error}") from error
        owner: dict[str, str] = {}
        for role, addresses in jobs.items():
            for index, address in enumerate(addresses):
                task = f"{role} {index}"
                if owner.setdefault(address, task) != task:
                    raise ConfigurationError(
                        f"--host-template {host_template!r}: {owner[address]} and {task} have the "
                        f"same address {address!r}; use {{role}} and {{index}}"
                    )
        self._task_type = task_type
        self._task_id = task_id
        self._rpc_layer = rpc_layer
        self._spec = ClusterSpec(jobs)

    def cluster_spec(self) -> ClusterSpec:
        """Return the cluster."""
        return self._spec

    def _master(self, kind: str | None, index: int | None, layer: str | None) -> str:
        """Find the address of a task, this one by default."""
        address = super()._master(kind, index, layer)
        if not address:
            raise ValueError("type and index of the task are not known")
        return address


# -- The cluster of a pod whose launcher counts tasks and names hosts by a pattern, in variables --
# Manifests (``deploy/k8s``) give every pod of a job the same environment, so that any command can
# be the container's, ``python train.py`` too:
#
# - ``ROPEWALK_REPLICAS``: tasks per role, as ``--replicas``.
# - ``ROPEWALK_HOST_TEMPLATE``: addresses, as ``--host-template``.
# - ``ROPEWALK_ROLE``: of this task.
#
# The index is found as for the flags. Workers may be added while a job with parameter servers
# runs, by a launcher that cannot change the environment of pods (an Indexed Job's template is
# fixed): so a worker beyond those that are counted is one more. So is a ps, in a job whose shares
# move.

ROLE = "ROPEWALK_ROLE"
REPLICAS = "ROPEWALK_REPLICAS"
HOST_TEMPLATE = "ROPEWALK_HOST_TEMPLATE"
PS_SHARES = "ROPEWALK_PS_SHARES"  # a setting of the task


class VariablesClusterResolver(TemplateClusterResolver):
    """The cluster of ``ROPEWALK_REPLICAS`` and ``ROPEWALK_HOST_TEMPLATE``.

    Args:
        variables: The environment, in which the pattern is set.
        replicas: Used instead of ``ROPEWALK_REPLICAS``.
        hostname: Host name of the pod; None: this machine's.

    Raises:
        ConfigurationError: A variable is missing or malformed, or nothing tells the index.
    """

    def __init__(
        self,
        variables: Mapping[str, str],
        *,
        replicas: Mapping[str, int] | None = None,
        hostname: str | None = None,
    ) -> None:
        pattern = variables[HOST_TEMPLATE].strip()
        roles = variables.get(REPLICAS, "").strip()
        if replicas is None and not roles:
            raise ConfigurationError(
                f"{HOST_TEMPLATE} is set, and {REPLICAS} is not: how many tasks has each role? "
                f"E.g. {REPLICAS}=chief=1,ps=2,worker=3",
                variable=REPLICAS,
            )
        counts = parse_replicas(roles, REPLICAS) if replicas is None else dict(replicas)
        role = canonical_type(variables.get(ROLE, "").strip())
        if role not in TASK_TYPES:
            raise ConfigurationError(
                f"{ROLE}={variables.get(ROLE, '')!r} is no role; it is one of "
                f"{', '.join(TASK_TYPES)}",
                variable=ROLE,
            )
        found_index = find_index(
            None, variables, socket.gethostname() if hostname is None else hostname
        )
        if found_index is None and counts.get(role, 1) == 1:
            found_index = (0, f"{REPLICAS}: there is one {role}")
        if found_index is None:
            raise ConfigurationError(
                f"which {role} is this? Set one of {', '.join(INDEX_VARIABLES)}, or give the pod a "
                "host name that ends in a number",
                variable=INDEX_VARIABLES[0],
            )
        index, self._index_from = found_index
        super().__init__(role, index, counts, pattern)
        may_be_more = role == WORKER or (role == PS and variables.get(PS_SHARES, "0") != "0")
        if may_be_more and counts.get(PS) and index >= counts.get(role, 0):
            self._spec = _with(self._spec, role, index, pattern)

    @property
    def source(self) -> str:
        """The variable that decided."""
        return HOST_TEMPLATE

    @property
    def sources(self) -> dict[str, str]:
        """The variables."""
        return {
            "cluster": f"{REPLICAS} and {HOST_TEMPLATE}",
            "task.type": ROLE,
            "task.index": self._index_from,
        }

    @property
    def from_launcher(self) -> bool:
        """Always."""
        return True


def _with(spec: ClusterSpec, role: str, index: int, pattern: str) -> ClusterSpec:
    """Add a worker or ps to the cluster."""
    indices = spec.task_indices(role) if role in spec.jobs else []
    tasks = {index: spec.task_address(role, index) for index in indices}
    tasks[index] = pattern.format(role=role, index=index)
    return ClusterSpec({**spec.as_dict(), role: tasks})
