"""The network between tasks that run on hosts of their own: what is held back is lost on its way.

It has the face of :class:`helpers.links.Links`, but for delays. TCP sends again what was lost, so
after a partition it comes late, and a connection ends only where one of its ends gives it up.
"""

import subprocess
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress

from ..network import Network


class HostLinks:
    """Links of a network. Thread-safe.

    Args:
        network: The network.
        hosts: The host of each task.
    """

    can_delay = False

    def __init__(self, network: Network, hosts: Mapping[str, str]) -> None:
        self._network = network
        self._hosts = hosts
        self._lock = threading.Lock()
        self._held: set[tuple[str, str]] = set()

    def hold(self, source: str, target: str) -> None:
        """Let nothing that one task sends reach another one, until :meth:`heal`."""
        with self._lock:
            if (source, target) not in self._held:
                self._network.drop(self._hosts[source], self._hosts[target])
                self._held.add((source, target))

    def cut(self, one: str, other: str) -> None:
        """Break all connections between two tasks."""
        self._network.break_connections(self._hosts[one], self._hosts[other])

    def delay(self, source: str, target: str, seconds: float) -> None:
        """Not possible: kernels without ``sch_netem`` are common."""
        raise NotImplementedError

    def heal(self, pairs: Iterable[tuple[str, str]] | None = None, *, loses: bool = False) -> None:
        """Let everything through again.

        Args:
            pairs: Of whom: (who sends, to whom); None: of all.
            loses: Connections on which something was held back break.
        """
        with self._lock:
            healed = self._held & set(self._held if pairs is None else pairs)
            self._held -= healed
            for source, target in healed:
                self._network.drop(self._hosts[source], self._hosts[target], drops=False)
                if loses:
                    self.cut(source, target)

    def close(self) -> None:
        """End all of it."""
        with suppress(subprocess.CalledProcessError):  # the network may be away already
            self.heal()
