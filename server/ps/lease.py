"""The chief's lease on a ps, and the end of the job."""

import threading

from ...core.clock import Clock
from ...core.errors import FencedError
from ...core.states import Phase
from ...core.task import Incarnation


class ChiefLease:
    """The chief's lease on a ps. Thread-safe.

    Attributes:
        ended: Set when the job is over, or has had no chief for too long.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._chief: Incarnation | None = None
        self._until = clock.now()
        self._heard = clock.now()
        self._address = ""
        self.ended = threading.Event()
        self.phase: Phase | None = None
        self.reason = ""
        self.draining = False

    def renew(self, chief: Incarnation, address: str, lease_s: float) -> None:
        """Extend the chief's lease by ``lease_s``.

        Raises:
            FencedError: Another chief's lease has not expired.
        """
        now = self._clock.now()
        with self._lock:
            holder = self._chief
            if holder is not None and holder != chief:
                same = holder.task == chief.task
                newer = same and chief.generation > holder.generation
                if not newer and (same or now < self._until):
                    raise FencedError(
                        f"this ps serves the job of {holder} at {self._address}, which was here "
                        f"{now - self._heard:.0f} s ago; {chief} at {address} cannot lead it as "
                        "well. Stop the other job, or give this one ps of its own",
                        holder=holder,
                        chief=chief,
                    )
            self._chief, self._address = chief, address
            self._heard, self._until = now, now + lease_s

    @property
    def chief_address(self) -> str:
        """Where the chief serves; empty without a chief."""
        with self._lock:
            return self._address

    @property
    def silent_s(self) -> float:
        """Time since the last renewal. Unit: seconds."""
        with self._lock:
            return self._clock.now() - self._heard

    def end(self, phase: Phase, reason: str) -> None:
        """The job is over. Only the first call has an effect."""
        with self._lock:
            if self.phase is None:
                self.phase, self.reason = phase, reason
        self.ended.set()
