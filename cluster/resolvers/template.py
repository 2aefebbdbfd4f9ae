"""A cluster computed from counts and a host name pattern, instead of TF_CONFIG.

For Indexed Jobs, StatefulSets, JobSet, Volcano, Slurm and plain shells: every pod gets the same
flags, and its index from its launcher.
"""

import re
from collections.abc import Mapping

from ...core.errors import ConfigurationError
from ...core.outside_text import parse_number
from ...core.task import MAX_TASK_INDEX
from ..roles import TASK_TYPES
from ..spec import ClusterSpec
from .resolver import ClusterResolver

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
