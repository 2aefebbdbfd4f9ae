"""Moments of all ps, of which a checkpoint has the values, as an annex takes them.

Without that annex the ps save what they have, one after the other.
"""

from collections.abc import Callable
from typing import Protocol

from ...core import annexes
from ...core.checkpoint.manifest import CutRecord
from ...core.errors import RopewalkError
from ...core.settings import Settings
from ...core.task import Incarnation
from ...core.wire.cut_marks import Marks
from ...server.chief.servicer import LockedJob
from .leadership import Led


class TakenMoment(Protocol):
    """A moment that all ps have.

    Attributes:
        number: Number of the moment.
        global_step: The global step then.
        led: The shares that it is of, and who has their values.
    """

    number: int
    global_step: int
    led: Led

    @property
    def pushes(self) -> Marks:
        """Each worker's mark on the first share; its pushes are the same on all."""

    def record(self) -> CutRecord:
        """Make the record of it for a manifest."""


class Moments(Protocol):
    """Takes moments of all ps. Used by one thread at a time."""

    def take(self, *, with_slots: bool, may_be_base: bool = False) -> TakenMoment:
        """Take a moment.

        Raises:
            CutVoidError: It could not be taken.
        """

    def release(self, cut: TakenMoment) -> None:
        """Have the ps keep nothing of a moment any more."""

    def warn(self, error: RopewalkError) -> None:
        """Log why there is none."""


def moments_of(
    locked_job: LockedJob, who: Incarnation, leaders: Callable[[], Led], settings: Settings
) -> Moments | None:
    """Make what takes moments; None: no annex does.

    Args:
        locked_job: The job.
        who: The task that leads it.
        leaders: Returns each share with the ps that leads it.
        settings: Settings of the chief.
    """
    makers = [module.moments for module in annexes.at("taking_moments")]
    taken: Moments | None = makers[0](locked_job, who, leaders, settings) if makers else None
    return taken
