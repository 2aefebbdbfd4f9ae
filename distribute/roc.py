"""Counts at thresholds, and the area under a curve of them. Pure.

Formulas and summation as ``keras.metrics.AUC``; the area under a precision-recall curve by Davis
and Goadrich, "The Relationship Between Precision-Recall and ROC Curves", ICML 2006.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.arrays.dtypes import Array

_EPSILON = 1e-7


def evenly_spaced(count: int, thresholds: Sequence[float] | None = None) -> Array:
    """Make thresholds: one just below 0, one just above 1, and between them given or even ones.

    Raises:
        ValueError: ``count`` < 2, or a threshold outside of [0, 1].
    """
    if thresholds is not None:
        inner = np.sort(np.asarray(thresholds, np.float64))
        if inner.size and not (inner[0] >= 0 and inner[-1] <= 1):
            raise ValueError(f"thresholds must be in [0, 1], got {list(thresholds)}")
        inner = inner[(inner > 0) & (inner < 1)]
    elif count < 2:
        raise ValueError(f"num_thresholds must be at least 2, got {count}")
    else:
        inner = np.arange(1, count - 1) / (count - 1)
    return np.concatenate(([-_EPSILON], inner, [1 + _EPSILON]))


def confusion_counts(true: Array, pred: Array, weights: Array, thresholds: Array) -> Array:
    """Count weighted true and false positives, true and false negatives, at each threshold.

    Args:
        true: Labels, 0 or 1.
        pred: Probabilities, of the same shape; positive if above the threshold.
        weights: Example weights, of the same shape.
        thresholds: shape ``(n,)``, ascending.

    Returns:
        array, shape ``(4, n)``: TP, FP, TN, FN.

    Raises:
        ValueError: A prediction is not in [0, 1].
    """
    flat, weight = pred.reshape(-1), weights.reshape(-1)
    if flat.size and not (flat.min() >= 0 and flat.max() <= 1):
        raise ValueError(
            f"predictions must be probabilities in [0, 1], got {flat.min()} to {flat.max()}; "
            "from_logits=True takes logits"
        )
    positive = true.reshape(-1).astype(bool)
    above = np.searchsorted(thresholds, flat)  # how many thresholds each is above
    rows = []
    for chosen in (positive, ~positive):
        histogram = np.bincount(above[chosen], weight[chosen], thresholds.size + 1)
        rows.append(histogram[::-1].cumsum()[::-1][1:])
    (tp, fp), totals = rows, (weight[positive].sum(), weight[~positive].sum())
    return np.stack([tp, fp, totals[1] - fp, totals[0] - tp])


def area_under_curve(counts: Array, curve: str, method: str) -> Any:
    """Compute the area under ``"ROC"`` or ``"PR"``.

    Args:
        counts: Result of :func:`confusion_counts`.
        curve: The curve: ``"ROC"`` or ``"PR"``.
        method: ``"interpolation"``, or the lower or higher end of each step: ``"minoring"``,
            ``"majoring"``.
    """
    tp, fp, tn, fn = counts
    if curve == "PR" and method == "interpolation":
        return _interpolated_precision(tp, fp, fn)
    recall = _ratio(tp, tp + fn)
    x, y = (_ratio(fp, fp + tn), recall) if curve == "ROC" else (recall, _ratio(tp, tp + fp))
    if method == "interpolation":
        heights = (y[:-1] + y[1:]) / 2
    else:
        heights = (np.minimum if method == "minoring" else np.maximum)(y[:-1], y[1:])
    return np.float64(((x[:-1] - x[1:]) * heights).sum())


def _interpolated_precision(tp: Array, fp: Array, fn: Array) -> Any:
    positives = tp + fp
    d_tp, d_positives = tp[:-1] - tp[1:], positives[:-1] - positives[1:]
    slope = _ratio(d_tp, np.maximum(d_positives, 0))
    intercept = tp[1:] - slope * positives[1:]
    has_both = (positives[:-1] > 0) & (positives[1:] > 0)
    growth = np.where(has_both, _ratio(positives[:-1], positives[1:]), 1.0)
    increments = _ratio(slope * (d_tp + intercept * np.log(growth)), tp[1:] + fn[1:])
    return np.float64(increments.sum())


def _ratio(numerator: Array, denominator: Array) -> Array:
    """Divide; 0 where the denominator is."""
    return np.divide(
        numerator, denominator, out=np.zeros(np.shape(numerator)), where=denominator != 0
    )
