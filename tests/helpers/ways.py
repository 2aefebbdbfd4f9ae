"""Ways in which the engine does the same: by kernels or by NumPy, by one core or several."""

import pytest

from ropewalk.core.arrays import gather_buffer
from ropewalk.engine.library import library


def without_row_kernels(patch: pytest.MonkeyPatch) -> None:
    """Rows are gathered, found and summed by NumPy, as before the kernels are loaded."""
    patch.setattr(library, "row_kernel_if_ready", lambda *_: None)


def on_four_cores(patch: pytest.MonkeyPatch) -> None:
    """What can be done by several cores is, however small."""
    patch.setattr(gather_buffer, "_PARALLEL_BYTES", 0)
    patch.setattr("os.sched_getaffinity", lambda _: range(4))
