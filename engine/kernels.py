"""Update kernels: fused, in place, vectorised, without the GIL.

Every kernel has one signature and serves dense gradients and rows alike::

    kernel(w, s0, s1, s2, g, rows, width, h)

``w``, ``s0`` …: 1-D float arrays, the variable and its slots; unused slots are empty. ``g``: 1-D, the
gradient of ``rows.size`` rows of ``width`` elements. ``rows``: int64 row numbers, ascending; a dense gradient
is one row, number 0, as wide as the variable. ``h``: scalars in the arrays' dtype: ``h[0]`` the gradient
scale, ``h[1]`` the clip value (infinity: none), ``h[2]`` the learning rate, then what the rule needs.

Scalars come in an array of the compute dtype because one float64 among float32 operands would turn the
loop into a float64 one, three times slower; ``error_model="numpy"`` because Python's checks for division
by zero keep LLVM from vectorising. Neither reassociation nor contraction is allowed, so SGD equals the same
NumPy expression to the bit.

Source of each formula: ``core/update_rules.py``.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from ..core.arrays import Array

Kernel = Callable[[Array, Array, Array, Array, Array, Array, int, Array], None]


def _kernel(function: Any) -> Kernel:
    compiled: Any
    try:
        compiled = numba.njit(function, cache=True, nogil=True, error_model="numpy")
    except RuntimeError:
        # No folder to cache in can be written (a read-only container without NUMBA_CACHE_DIR).
        compiled = numba.njit(function, nogil=True, error_model="numpy")
    kernel: Kernel = compiled
    return kernel


@numba.njit(nogil=True, error_model="numpy", inline="always")
def _clip(x, limit):  # type: ignore[no-untyped-def]
    # Comparisons are false for NaN, which passes through, as np.clip.
    if x > limit:
        return limit
    if x < -limit:
        return -limit
    return x


@_kernel
def sgd(w, s0, s1, s2, g, rows, width, h):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """``w -= lr * g``."""
    scale, limit, lr = h[0], h[1], h[2]
    for r in range(rows.size):
        lo = rows[r] * width
        wr = w[lo : lo + width]
        gr = g[r * width : (r + 1) * width]
        for i in range(width):
            wr[i] -= lr * _clip(gr[i] * scale, limit)


@_kernel
def momentum(w, s0, s1, s2, g, rows, width, h):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """``m = mu*m - lr*g; w += m``, or ``w += mu*m - lr*g`` if ``h[4]`` (Nesterov). h[3]: mu."""
    scale, limit, lr, mu, nesterov = h[0], h[1], h[2], h[3], h[4]
    for r in range(rows.size):
        lo = rows[r] * width
        wr, mr = w[lo : lo + width], s0[lo : lo + width]
        gr = g[r * width : (r + 1) * width]
        if nesterov > 0:
            for i in range(width):
                step = lr * _clip(gr[i] * scale, limit)
                mr[i] = mu * mr[i] - step
                wr[i] += mu * mr[i] - step
        else:
            for i in range(width):
                mr[i] = mu * mr[i] - lr * _clip(gr[i] * scale, limit)
                wr[i] += mr[i]


@_kernel
def adagrad(w, s0, s1, s2, g, rows, width, h):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """``a += g*g; w -= lr * g / sqrt(a + eps)``. h[3]: eps."""
    scale, limit, lr, eps = h[0], h[1], h[2], h[3]
    for r in range(rows.size):
        lo = rows[r] * width
        wr, ar = w[lo : lo + width], s0[lo : lo + width]
        gr = g[r * width : (r + 1) * width]
        for i in range(width):
            x = _clip(gr[i] * scale, limit)
            ar[i] += x * x
            wr[i] -= lr * x / np.sqrt(ar[i] + eps)


@_kernel
def rmsprop(w, s0, s1, s2, g, rows, width, h):  # type: ignore[no-untyped-def]
    """Velocity s0, momentum s1 (if h[6] > 0), average gradient s2 (if h[7] > 0).

    h[3]: rho, h[4]: 1 - rho, h[5]: eps, h[6]: momentum, h[7]: centred.
    """
    scale, limit, lr = h[0], h[1], h[2]
    rho, rest, eps, mu, centred = h[3], h[4], h[5], h[6], h[7]
    for r in range(rows.size):
        lo = rows[r] * width
        wr, vr = w[lo : lo + width], s0[lo : lo + width]
        gr = g[r * width : (r + 1) * width]
        for i in range(width):
            x = _clip(gr[i] * scale, limit)
            vr[i] = rho * vr[i] + rest * x * x
            spread = vr[i]
            if centred > 0:
                s2[lo + i] = rho * s2[lo + i] + rest * x
                spread -= s2[lo + i] * s2[lo + i]
            step = lr * x / np.sqrt(spread + eps)
            if mu > 0:
                s1[lo + i] = mu * s1[lo + i] + step
                step = s1[lo + i]
            wr[i] -= step


@_kernel
def adam(w, s0, s1, s2, g, rows, width, h):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """``w -= decay*w`` first (AdamW), then ``w -= alpha * m / (sqrt(v) + eps)``.

    h[2]: alpha, the rate with both bias corrections. h[3], h[4]: b1, 1 - b1. h[5], h[6]: b2, 1 - b2.
    h[7]: eps. h[8]: rate times weight decay.
    """
    scale, limit, alpha = h[0], h[1], h[2]
    b1, c1, b2, c2, eps, decay = h[3], h[4], h[5], h[6], h[7], h[8]
    for r in range(rows.size):
        lo = rows[r] * width
        wr, mr, vr = w[lo : lo + width], s0[lo : lo + width], s1[lo : lo + width]
        gr = g[r * width : (r + 1) * width]
        for i in range(width):
            x = _clip(gr[i] * scale, limit)
            mr[i] = b1 * mr[i] + c1 * x
            vr[i] = b2 * vr[i] + c2 * x * x
            wr[i] -= decay * wr[i]
            wr[i] -= alpha * mr[i] / (np.sqrt(vr[i]) + eps)


@_kernel
def ftrl(w, s0, s1, s2, g, rows, width, h):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """Accumulator s0, linear s1. h[3]: -learning_rate_power, h[4]: l1, h[5]: 2*(l2 + beta/(2*lr)).

    h[6]: 2 * l2_shrinkage. h[7]: 1 if the power is one half, the common case, where a root is exact.
    """
    scale, limit, lr = h[0], h[1], h[2]
    power, l1, l2, shrinkage, is_root = h[3], h[4], h[5], h[6], h[7]
    for r in range(rows.size):
        lo = rows[r] * width
        wr, nr, zr = w[lo : lo + width], s0[lo : lo + width], s1[lo : lo + width]
        gr = g[r * width : (r + 1) * width]
        for i in range(width):
            x = _clip(gr[i] * scale, limit)
            new = nr[i] + x * x
            if is_root > 0:
                after, before = np.sqrt(new), np.sqrt(nr[i])
            else:
                after, before = new**power, nr[i] ** power
            zr[i] += x + shrinkage * wr[i] - (after - before) / lr * wr[i]
            nr[i] = new
            wr[i] = (_clip(zr[i], l1) - zr[i]) / (after / lr + l2)
