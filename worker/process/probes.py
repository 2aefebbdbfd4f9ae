"""The health port of a task that listens nowhere from its start: workers, nodes, the evaluator.

The others have theirs beside what they serve (``net/host.py``). A worker that runs closures serves
them once it has joined its job, and must answer probes before that: ready never means that the
cluster has formed.
"""

from typing import TYPE_CHECKING

from ...cluster.resolvers.resolved import ResolvedTask
from ...core.errors import AddressInUseError
from ...core.settings import Settings

if TYPE_CHECKING:
    from ...net.host import ProbePort
    from ...net.unary import Health


class Probes:
    """Serves the health service at ``health_port``, if the settings name one.

    Args:
        task: The task of this process.
        settings: The port, and the address to bind.
    """

    def __init__(self, task: ResolvedTask, settings: Settings) -> None:
        self._task = task
        self._settings = settings
        self._health: Health | None = None
        self._port: ProbePort | None = None

    def start(self) -> None:
        """Answer that the task serves.

        Raises:
            AddressInUseError: The port is taken.
        """
        if not self._settings.health_port:
            return
        from ...net.host import ProbePort
        from ...net.unary import Health

        task, where = self._task, probe_address(self._task, self._settings)
        self._health = Health()
        self._port = ProbePort(self._health)
        try:
            self._port.start(where)
        except OSError as error:
            self.stop()
            raise AddressInUseError(
                f"{task.task} cannot listen at {where} for health probes "
                f"({error.strerror or error}): the port is taken by another process. Stop it, or "
                "give another --health-port",
                task=task.task,
                address=where,
            ) from error
        self._health.set(serving=True)

    def drain(self) -> None:
        """Answer that the task is about to end."""
        if self._health is not None:
            self._health.set(serving=False)

    def stop(self) -> None:
        """Stop answering. Idempotent."""
        if self._port is not None:
            self._port.stop()
            self._port = None


def probe_address(task: ResolvedTask, settings: Settings) -> str:
    """Choose where a task listens for probes: host:port."""
    from ...net.auth.credentials import bind_address

    host = bind_address(task.known_address or ":0", settings).rpartition(":")[0]
    return f"{host}:{settings.health_port}"
