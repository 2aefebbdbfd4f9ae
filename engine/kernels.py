"""Update kernels: fused, in place, vectorised, without the GIL.

Every kernel has one signature and serves dense gradients and rows alike::

    kernel(w, s0, s1, s2, g, rows, width, h)

``w``, ``s0`` …: 1-D float arrays, the variable and its slots; unused slots are empty. ``g``: 1-D,
the gradient of ``rows.size`` rows of ``width`` elements. ``rows``: int64 row numbers, ascending; a
dense gradient is one row, number 0, as wide as the variable. ``h``: scalars in the arrays' dtype:
``h[0]`` the gradient scale, ``h[1]`` the clip value (infinity: none), ``h[2]`` the learning rate,
then what the rule needs.

Kernels check no bounds: they are called through ``update_kernel.py``, which checks every argument.

Scalars come in an array of the compute dtype because one float64 among float32 operands would turn
the loop into a float64 one, three times slower. Rows that come later are prefetched: a table is
larger than the caches, and each of its rows would be waited for. ``width`` is an argument: known to
the compiler, it made Adagrad four times slower.

Every kernel has its own loop over rows: with the prefetching in a function that all share, inlined
as it is, rows took 1.3 to 1.7 times as long.

Source of each formula: ``core/rules/update_rules.py``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..core.arrays.dtypes import DType
from .jit import INT64, changed, inlined, prefetch, read

DTYPES: tuple[DType, ...] = (np.dtype(np.float32), np.dtype(np.float64))
_AHEAD = 12  # rows between the one that is updated and the one whose memory is asked for
_PREFETCHED = 512  # elements of a row; what follows is found by the processor's own prefetching
_LINE = 16  # elements of float32 in a cache line


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
    optional_slots: dict[int, int] = field(default_factory=dict)


UPDATE_FUNCTIONS: dict[str, UpdateFunction] = {}


def argument_types(dtype: DType) -> tuple[Any, ...]:
    """Argument types of every update kernel."""
    slots = [changed(dtype)] * 3
    return (changed(dtype), *slots, read(dtype), read(np.int64), INT64, read(dtype))


def _kernel(
    *, scalars: int, slots: int, optional: dict[int, int] | None = None
) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:
        UPDATE_FUNCTIONS[function.__name__] = UpdateFunction(
            function, scalars, slots, optional or {}
        )
        return function

    return register


@inlined
def _clip(x, limit):  # type: ignore[no-untyped-def]
    # Comparisons are false for NaN, which passes through, as np.clip.
    if x > limit:
        return limit
    if x < -limit:
        return -limit
    return x


@inlined
def _prefetch_row(array, start, width):  # type: ignore[no-untyped-def]
    for i in range(0, min(width, _PREFETCHED), _LINE):
        prefetch(array, start + i)


@_kernel(scalars=3, slots=0)
def sgd(w, s0, s1, s2, g, rows, width, h):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """``w -= lr * g``."""
    scale, limit, lr = h[0], h[1], h[2]
    for r in range(rows.size):
        if r + _AHEAD < rows.size:
            ahead = rows[r + _AHEAD] * width
            _prefetch_row(w, ahead, width)
        lo = rows[r] * width
        wr, gr = w[lo : lo + width], g[r * width : (r + 1) * width]
        for i in range(width):
            wr[i] -= lr * _clip(gr[i] * scale, limit)


@_kernel(scalars=6, slots=1)
def momentum(w, s0, s1, s2, g, rows, width, h):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """``m = mu*m - lr*g; w += out*m``, or ``w += out * (mu*m - lr*g)`` if ``h[4]`` (Nesterov).

    h[3]: mu. h[5]: out; one of ``lr`` and ``out`` is 1.
    """
    scale, limit, lr, mu, nesterov, out = h[0], h[1], h[2], h[3], h[4], h[5]
    for r in range(rows.size):
        if r + _AHEAD < rows.size:
            ahead = rows[r + _AHEAD] * width
            _prefetch_row(w, ahead, width)
            _prefetch_row(s0, ahead, width)
        lo, at = np.uint64(rows[r] * width), np.uint64(r * width)
        if nesterov > 0:
            for i in range(np.uint64(width)):
                step = lr * _clip(g[at + i] * scale, limit)
                m = mu * s0[lo + i] - step
                s0[lo + i] = m
                w[lo + i] += out * (mu * m - step)
        else:
            for i in range(np.uint64(width)):
                m = mu * s0[lo + i] - lr * _clip(g[at + i] * scale, limit)
                s0[lo + i] = m
                w[lo + i] += out * m


@_kernel(scalars=4, slots=1)
def adagrad(w, s0, s1, s2, g, rows, width, h):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """``a += g*g; w -= lr * g / sqrt(a + eps)``. h[3]: eps."""
    scale, limit, lr, eps = h[0], h[1], h[2], h[3]
    for r in range(rows.size):
        if r + _AHEAD < rows.size:
            ahead = rows[r + _AHEAD] * width
            _prefetch_row(w, ahead, width)
            _prefetch_row(s0, ahead, width)
        lo, at = np.uint64(rows[r] * width), np.uint64(r * width)
        for i in range(np.uint64(width)):
            x = _clip(g[at + i] * scale, limit)
            a = s0[lo + i] + x * x
            s0[lo + i] = a
            w[lo + i] -= lr * x / np.sqrt(a + eps)


@_kernel(scalars=8, slots=1, optional={1: 6, 2: 7})
def rmsprop(w, s0, s1, s2, g, rows, width, h):  # type: ignore[no-untyped-def]
    """Velocity s0, momentum s1 (if h[6] > 0), average gradient s2 (if h[7] > 0).

    h[3]: rho, h[4]: 1 - rho, h[5]: eps, h[6]: momentum, h[7]: centred.
    """
    scale, limit, lr = h[0], h[1], h[2]
    rho, rest, eps, mu, centred = h[3], h[4], h[5], h[6], h[7]
    for r in range(rows.size):
        if r + _AHEAD < rows.size:
            ahead = rows[r + _AHEAD] * width
            _prefetch_row(w, ahead, width)
            _prefetch_row(s0, ahead, width)
            if mu > 0:
                _prefetch_row(s1, ahead, width)
            if centred > 0:
                _prefetch_row(s2, ahead, width)
        lo, at = np.uint64(rows[r] * width), np.uint64(r * width)
        for i in range(np.uint64(width)):
            x = _clip(g[at + i] * scale, limit)
            spread = rho * s0[lo + i] + rest * x * x
            s0[lo + i] = spread
            if centred > 0:
                average = rho * s2[lo + i] + rest * x
                s2[lo + i] = average
                spread -= average * average
            step = lr * x / np.sqrt(spread + eps)
            if mu > 0:
                step += mu * s1[lo + i]
                s1[lo + i] = step
            w[lo + i] -= step


@_kernel(scalars=9, slots=2)
def adam(w, s0, s1, s2, g, rows, width, h):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """``w -= decay*w`` first (AdamW), then ``w -= alpha * m / (sqrt(v) + eps)``.

    h[2]: alpha, the rate with both bias corrections. h[3], h[4]: b1, 1 - b1. h[5], h[6]: b2, 1 -
    b2. h[7]: eps. h[8]: rate times weight decay.
    """
    scale, limit, alpha = h[0], h[1], h[2]
    b1, c1, b2, c2, eps, decay = h[3], h[4], h[5], h[6], h[7], h[8]
    for r in range(rows.size):
        if r + _AHEAD < rows.size:
            ahead = rows[r + _AHEAD] * width
            _prefetch_row(w, ahead, width)
            _prefetch_row(s0, ahead, width)
            _prefetch_row(s1, ahead, width)
        lo, at = np.uint64(rows[r] * width), np.uint64(r * width)
        for i in range(np.uint64(width)):
            x = _clip(g[at + i] * scale, limit)
            m = b1 * s0[lo + i] + c1 * x
            v = b2 * s1[lo + i] + c2 * x * x
            s0[lo + i] = m
            s1[lo + i] = v
            old = w[lo + i]
            w[lo + i] = old - decay * old - alpha * m / (np.sqrt(v) + eps)


@_kernel(scalars=8, slots=2)
def ftrl(w, s0, s1, s2, g, rows, width, h):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """Accumulator s0, linear s1. h[3]: -learning_rate_power, h[4]: l1, h[5]: 2*(l2 + beta/(2*lr)).

    h[6]: 2 * l2_shrinkage. h[7]: 1 if the power is one half, the common case, where a root is
    exact.
    """
    scale, limit, lr = h[0], h[1], h[2]
    power, l1, l2, shrinkage, is_root = h[3], h[4], h[5], h[6], h[7]
    for r in range(rows.size):
        if r + _AHEAD < rows.size:
            ahead = rows[r + _AHEAD] * width
            _prefetch_row(w, ahead, width)
            _prefetch_row(s0, ahead, width)
            _prefetch_row(s1, ahead, width)
        lo, at = np.uint64(rows[r] * width), np.uint64(r * width)
        for i in range(np.uint64(width)):
            x = _clip(g[at + i] * scale, limit)
            n, old = s0[lo + i], w[lo + i]
            new = n + x * x
            if is_root > 0:
                after, before = np.sqrt(new), np.sqrt(n)
            else:
                after, before = new**power, n**power
            z = s1[lo + i] + (x + shrinkage * old - (after - before) / lr * old)
            s0[lo + i] = new
            s1[lo + i] = z
            w[lo + i] = (_clip(z, l1) - z) / (after / lr + l2)


@_kernel(scalars=7, slots=2)
def adamax(w, s0, s1, s2, g, rows, width, h):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """h[2]: the rate with its bias correction. h[3], h[4]: b1, 1 - b1. h[5]: b2. h[6]: eps."""
    scale, limit, alpha = h[0], h[1], h[2]
    b1, c1, b2, eps = h[3], h[4], h[5], h[6]
    for r in range(rows.size):
        if r + _AHEAD < rows.size:
            ahead = rows[r + _AHEAD] * width
            _prefetch_row(w, ahead, width)
            _prefetch_row(s0, ahead, width)
            _prefetch_row(s1, ahead, width)
        lo, at = np.uint64(rows[r] * width), np.uint64(r * width)
        for i in range(np.uint64(width)):
            x = _clip(g[at + i] * scale, limit)
            m = b1 * s0[lo + i] + c1 * x
            u = max(b2 * s1[lo + i], abs(x))
            s0[lo + i] = m
            s1[lo + i] = u
            w[lo + i] -= alpha * m / (u + eps)


@_kernel(scalars=11, slots=2)
def nadam(w, s0, s1, s2, g, rows, width, h):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """``w -= lr * (p*m + q*g) / (sqrt(c*v) + eps)``.

    h[3], h[4]: b1, 1 - b1. h[5], h[6]: b2, 1 - b2. h[7]: eps. h[8], h[9], h[10]: p, q, c.
    """
    scale, limit, lr = h[0], h[1], h[2]
    b1, c1, b2, c2, eps, p, q, c = h[3], h[4], h[5], h[6], h[7], h[8], h[9], h[10]
    for r in range(rows.size):
        if r + _AHEAD < rows.size:
            ahead = rows[r + _AHEAD] * width
            _prefetch_row(w, ahead, width)
            _prefetch_row(s0, ahead, width)
            _prefetch_row(s1, ahead, width)
        lo, at = np.uint64(rows[r] * width), np.uint64(r * width)
        for i in range(np.uint64(width)):
            x = _clip(g[at + i] * scale, limit)
            m = b1 * s0[lo + i] + c1 * x
            v = b2 * s1[lo + i] + c2 * x * x
            s0[lo + i] = m
            s1[lo + i] = v
            w[lo + i] -= lr * (p * m + q * x) / (np.sqrt(c * v) + eps)


@_kernel(scalars=6, slots=2)
def adadelta(w, s0, s1, s2, g, rows, width, h):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """Accumulated gradient s0 and step s1. h[3], h[4]: rho, 1 - rho. h[5]: eps."""
    scale, limit, lr = h[0], h[1], h[2]
    rho, rest, eps = h[3], h[4], h[5]
    for r in range(rows.size):
        if r + _AHEAD < rows.size:
            ahead = rows[r + _AHEAD] * width
            _prefetch_row(w, ahead, width)
            _prefetch_row(s0, ahead, width)
            _prefetch_row(s1, ahead, width)
        lo, at = np.uint64(rows[r] * width), np.uint64(r * width)
        for i in range(np.uint64(width)):
            x = _clip(g[at + i] * scale, limit)
            a = rho * s0[lo + i] + rest * x * x
            d = x * np.sqrt(s1[lo + i] + eps) / np.sqrt(a + eps)
            s0[lo + i] = a
            s1[lo + i] = rho * s1[lo + i] + rest * d * d
            w[lo + i] -= lr * d


@_kernel(scalars=8, slots=1)
def lion(w, s0, s1, s2, g, rows, width, h):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """h[3], h[4]: b1, 1 - b1. h[5], h[6]: b2, 1 - b2. h[7]: rate times weight decay."""
    scale, limit, lr = h[0], h[1], h[2]
    b1, c1, b2, c2, decay = h[3], h[4], h[5], h[6], h[7]
    for r in range(rows.size):
        if r + _AHEAD < rows.size:
            ahead = rows[r + _AHEAD] * width
            _prefetch_row(w, ahead, width)
            _prefetch_row(s0, ahead, width)
        lo, at = np.uint64(rows[r] * width), np.uint64(r * width)
        for i in range(np.uint64(width)):
            x = _clip(g[at + i] * scale, limit)
            m, old = s0[lo + i], w[lo + i]
            s0[lo + i] = b2 * m + c2 * x
            w[lo + i] = old - decay * old - lr * np.sign(b1 * m + c1 * x)
