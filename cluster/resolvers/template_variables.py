"""The cluster of a pod whose launcher counts tasks and names hosts by a pattern, in variables.

Manifests (``deploy/k8s``) give every pod of a job the same environment, so that any command can be
the container's, ``python train.py`` too:

- ``ROPEWALK_REPLICAS``: tasks per role, as ``--replicas``.
- ``ROPEWALK_HOST_TEMPLATE``: addresses, as ``--host-template``.
- ``ROPEWALK_ROLE``: of this task.

The index is found as for the flags. Workers may be added while a job with parameter servers runs,
by a launcher that cannot change the environment of pods (an Indexed Job's template is fixed): so a
worker beyond those that are counted is one more. So is a ps, in a job whose shares move.
"""

import socket
from collections.abc import Mapping

from ...core.errors import ConfigurationError
from ..roles import PS, TASK_TYPES, WORKER, canonical_type
from ..spec import ClusterSpec
from .template import INDEX_VARIABLES, TemplateClusterResolver, find_index, parse_replicas

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
