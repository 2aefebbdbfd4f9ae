"""The ps that come to a running job, and how many it is to have."""

from collections.abc import Callable

from ...core.errors import ConfigurationError, PeerLostError, RefusedError
from ...core.task import TaskId

JoinPs = Callable[[TaskId, str], None]
"""Takes a ps and its address."""


def _not_yet(task: TaskId, address: str) -> None:
    raise PeerLostError(f"{task} at {address}: the chief does not lead the ps yet", task=task)


class Servers:
    """Requests to the chief about the number of ps. Thread-safe.

    Attributes:
        join: Takes a ps into the job; set by what leads the ps.
        wanted: Number of ps that the job is to have; 0: as many as it began with.
        shares: Number of shares; 0: not known yet.
    """

    def __init__(self) -> None:
        self.join: JoinPs = _not_yet
        self.wanted = 0
        self.shares = 0

    def check(self, ps: TaskId) -> None:
        """Check that a ps of this index may come: the chief asks all of them, again and again.

        Raises:
            RefusedError: There is no share for it, nor may it replace one that has.
        """
        most = 2 * self.shares
        if self.shares and ps.index >= most:
            raise RefusedError(
                f"{ps} cannot come as a ps: ps:0 to ps:{most - 1} can, as there are {self.shares} "
                "shares (ps_shares)",
                task=ps,
            )

    def scale(self, count: int, *, replicas: int, shares: int) -> None:
        """Say how many ps there are to be.

        Args:
            count: The number.
            replicas: Number of ps that are to have each share.
            shares: Number of shares; 0: they do not move.

        Raises:
            ConfigurationError: No ps can come or leave in this job.
            RefusedError: It cannot have so many, or so few.
        """
        if not shares:
            raise ConfigurationError(
                "the ps of this job cannot become more or fewer, since its shares do not move; "
                "start it with ROPEWALK_PS_SHARES on the chief and all ps, at least as many as the "
                "most ps that it is to have"
            )
        if not replicas <= count <= shares:
            raise RefusedError(
                f"this job can have {replicas} to {shares} ps, not {count}: each of its {shares} "
                f"shares (ps_shares) is led by one, and on {replicas} of them (ps_replicas)",
                value=count,
                limit="ps_shares" if count > shares else "ps_replicas",
            )
        self.wanted = count
