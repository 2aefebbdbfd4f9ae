"""Moments of a ps, as the annex that takes them serves them, and what a ps without it does.

The annex has a module ``ps_part`` with ``moments``, which makes its part of a ps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...core import annexes
from ...core.arrays.dtypes import Array
from ...core.checkpoint.folder import Folder
from ...core.checkpoint.saved_part import SavedPart
from ...core.errors import CutVoidError
from ...core.task import Incarnation, TaskId
from ...proto.v1 import ps_pb2
from .lease import ChiefLease
from .saving import save_shards
from .shares import ServedShares
from .store import Store

RowsOf = Callable[[Store, Incarnation | None], Sequence[Array]]
"""Copies the rows that a reader has named."""


@dataclass(frozen=True, slots=True)
class ServedPs:
    """A ps, for what takes its moments.

    Attributes:
        task: Task of the ps.
        shares: The variables.
        lease: Lease of the job's chief.
        rows_of: Copies the rows that a reader has named.
    """

    task: TaskId
    shares: ServedShares
    lease: ChiefLease
    rows_of: RowsOf


class PsMoments(Protocol):
    """Moments of a ps; it has a method for each call that it serves, too. Thread-safe."""

    def save(self, store: Store, folder: Folder, request: ps_pb2.SaveShardsRequest) -> SavedPart:
        """Write a store's part of a checkpoint: of a moment, if it names one, or what changed.

        Raises:
            CutVoidError: The moment is not there any more.
        """

    def rows(self, store: Store, number: int, who: Incarnation | None) -> Sequence[Array]:
        """Take the rows that a moment has for a reader.

        Raises:
            CutVoidError: The moment is not there any more.
        """


class NoMoments:
    """A ps that takes no moments: it saves what it has."""

    def save(self, store: Store, folder: Folder, request: ps_pb2.SaveShardsRequest) -> SavedPart:
        """Write a store's part of a checkpoint, whole."""
        if request.cut:
            raise _refusal(request.cut)
        return save_shards(store, folder)

    def rows(self, store: Store, number: int, who: Incarnation | None) -> Sequence[Array]:  # noqa: ARG002
        """Refuse: there is no moment."""
        raise _refusal(number)


def _refusal(number: int) -> CutVoidError:
    return CutVoidError(
        f"this ps has no moment {number}: the annex moments was taken out of its installation"
    )


def moments_of(served: ServedPs) -> PsMoments:
    """Make what takes moments of a ps.

    Args:
        served: The ps.
    """
    makers = [module.moments for module in annexes.at("ps_part")]
    made: PsMoments = makers[0](served) if makers else NoMoments()
    return made
