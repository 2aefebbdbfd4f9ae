"""Pushes of tests to a store."""

from ropewalk.core.arrays.dtypes import Array
from ropewalk.engine.push_target import StepInfo
from ropewalk.server.ps.change_stream import Push
from ropewalk.server.ps.layout import Layout


def push_of(
    layout: Layout, rows: tuple[Array, ...], info: StepInfo, step_increment: int = 0
) -> Push:
    """Make a push to a layout by a step.

    Args:
        layout: What of the ps it changes.
        rows: Rows or elements of each numbered range; or keys.
        info: The step.
        step_increment: Added to the global step.
    """
    return Push(
        info.who,
        info.sequence,
        info.global_step,
        info.gradient_scale,
        info.closure,
        layout,
        rows,
        step_increment,
    )
