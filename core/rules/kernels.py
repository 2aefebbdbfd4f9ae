"""Functions with which the kernel of an update rule is written.

A kernel is a plain Python function: any process may import it, and tests run it as it is.
``engine/jit.py`` compiles it, and says what the functions below become there. All kernels have one
signature, for dense gradients and for rows::

    kernel(w, s0, s1, s2, g, rows, width, h)

``w``, ``s0`` …: 1-D float arrays, the variable and its slots; unused slots are empty. ``g``: 1-D,
the gradient of ``rows.size`` rows of ``width`` elements. ``rows``: int64 row numbers, ascending; a
dense gradient is one row, number 0, as wide as the variable. ``h``: scalars in the arrays' dtype:
``h[0]`` the gradient scale, ``h[1]`` the clip value (infinity: none), ``h[2]`` the learning rate,
then what the rule needs.

Kernels check no bounds: they are called through ``engine/update_kernel.py``, which checks every
argument.

Scalars come in an array of the compute dtype because one float64 among float32 operands would turn
the loop into a float64 one, three times slower. Rows that come later are prefetched: a table is
larger than the caches, and each of its rows would be waited for. ``width`` is an argument: known to
the compiler, it made Adagrad four times slower.

Every kernel has its own loop over rows: with the prefetching in a function that all share, inlined
as it is, rows took 1.3 to 1.7 times as long.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

AHEAD = 12
"""Rows between the one that is updated and the one whose memory is asked for."""


@dataclass(frozen=True, slots=True)
class UpdateFunction:
    """A kernel before it is compiled, and what the check of its arguments needs.

    Attributes:
        function: Plain Python.
        num_scalars: Elements of ``h``.
        num_slots: Slots that it always reads, the first ones.
        optional_slots: Slot -> index in ``h`` of the scalar that is positive if the slot is read.
    """

    function: Callable[..., None]
    num_scalars: int
    num_slots: int
    optional_slots: Mapping[int, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The function's name, which no other kernel has."""
        return self.function.__name__


def kernel(
    *, scalars: int, slots: int, optional: Mapping[int, int] | None = None
) -> Callable[[Callable[..., None]], UpdateFunction]:
    """Decorate a kernel; the arguments are the fields of :class:`UpdateFunction`."""
    return lambda function: UpdateFunction(function, scalars, slots, optional or {})


def clip(x: Any, limit: Any) -> Any:
    """Limit ``x`` to ``[-limit, limit]``; NaN stays, as with ``np.clip``."""
    if x > limit:
        return limit
    if x < -limit:
        return -limit
    return x


def prefetch_row(array: Any, start: Any, width: Any) -> None:
    """Begin to load a row of ``width`` elements. Compiled code does; Python does nothing."""
