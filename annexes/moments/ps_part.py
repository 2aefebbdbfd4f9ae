"""Moments of a ps: the calls about cuts, and what is saved of one."""

from ...server.ps.parts import PsMoments, ServedPs
from .server.servicer import CutCalls


def moments(served: ServedPs) -> PsMoments:
    """Make what takes moments of a ps.

    Args:
        served: The ps.
    """
    return CutCalls(served)
