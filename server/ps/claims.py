"""Variables that a thread works on without holding the lock that guards them all.

Reading values from a file server may take long, or never end. Whoever reads claims the variables
first and lets go of the lock: definitions of others go on, and one of the same variables waits.
"""

import threading
import time
from collections.abc import Iterator, Set
from contextlib import contextmanager

from ...core.errors import PeerLostError

_WAIT_S = 3600.0  # restoring a large table takes as long as it takes; a hung disk does not end


class Claims:
    """Claimed names of variables.

    Args:
        lock: Guards them.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._released = threading.Condition(lock)
        self._names: set[str] = set()

    def wait(self, names: Set[str]) -> None:
        """Wait until no thread works on any of these. The caller holds the lock, once.

        Raises:
            PeerLostError: A thread has for an hour.
        """
        deadline = time.monotonic() + _WAIT_S
        while taken := self._names & names:
            if not self._released.wait(deadline - time.monotonic()):
                raise PeerLostError(
                    f"{min(taken)!r} is being defined for {_WAIT_S:.0f} s by another call; does "
                    "the file system of the model directory hang?",
                    variable=min(taken),
                )

    @contextmanager
    def taken(self, names: Set[str]) -> Iterator[None]:
        """Claim names; begun under the lock, and let go of within: see :class:`ShardTable`."""
        self._names |= names
        lock = self._released
        lock.release()
        try:
            yield
        finally:
            lock.acquire()
            self._names -= names
            lock.notify_all()
