"""Reductions by which values of several replicas become one."""

from collections.abc import Sequence
from enum import Enum
from operator import index
from typing import Any

import numpy as np

from ...core.arrays.any_framework import as_array, beside, is_on_gpu, namespace_of
from ...core.arrays.dtypes import DType, is_float
from ...core.arrays.indexed_slices import IndexedSlices


class ReduceOp(Enum):
    """``tf.distribute.ReduceOp``."""

    SUM = "SUM"
    MEAN = "MEAN"

    @staticmethod
    def of(value: "ReduceOp | str") -> "ReduceOp":
        """Find the op that a name stands for, in any case.

        Raises:
            ValueError: It stands for none.
        """
        if isinstance(value, ReduceOp):
            return value
        try:
            return ReduceOp[str(value).upper()]
        except KeyError:
            raise ValueError(f"reduce_op must be SUM or MEAN, got {value!r}") from None

    @staticmethod
    def required(value: Any) -> "ReduceOp":
        """Check that it is an op, where its name will not do.

        Raises:
            ValueError: It is none.
        """
        if not isinstance(value, ReduceOp):
            raise ValueError(f"`reduce_op` must be ReduceOp.SUM or ReduceOp.MEAN, got {value!r}")
        return value

    @staticmethod
    def from_variable_aggregation(aggregation: "VariableAggregation") -> "ReduceOp":
        """Find the reduction that an aggregation asks for.

        Raises:
            ValueError: It asks for none.
        """
        if aggregation.name not in ReduceOp.__members__:
            raise ValueError(
                f"Could not convert from `tf.VariableAggregation` {aggregation.name} to "
                "`tf.distribute.ReduceOp` type: only SUM and MEAN are reductions"
            )
        return ReduceOp[aggregation.name]


class VariableSynchronization(Enum):
    """``tf.VariableSynchronization``: when copies of a variable are made equal."""

    AUTO = 0
    NONE = 1
    ON_WRITE = 2
    ON_READ = 3


class VariableAggregation(Enum):
    """``tf.VariableAggregation``: how values written by several replicas become one."""

    NONE = 0
    SUM = 1
    MEAN = 2
    ONLY_FIRST_REPLICA = 3


def combine(op: ReduceOp, values: Sequence[Any], *, count: int | None = None) -> Any:
    """Combine values of replicas element-wise.

    Args:
        op: SUM or MEAN. MEAN of integers is a float, see :func:`mean_dtype`.
        values: Values of the replicas, one each: arrays of one shape on one device, or all
            IndexedSlices (then concatenated).
        count: Divisor of MEAN; None: the number of values.

    Raises:
        ValueError: Shapes differ, rows and whole arrays are mixed, or a SUM is of booleans or text.
    """
    slices = [value for value in values if isinstance(value, IndexedSlices)]
    if slices:
        return _combine_slices(op, values, slices, count)
    arrays = [as_array(value) for value in values]
    check_shapes(arrays)
    if len(arrays) == 1 and count in (None, 1):
        return arrays[0]
    dtype = arrays[0].dtype
    with beside(arrays[0]):
        if op is ReduceOp.MEAN:
            arrays = [widened(array) for array in arrays]
        if (kind := _no_number(arrays)) is not None:
            raise ValueError(f"SUM of {kind} is not defined; {_INSTEAD}")
        total = arrays[0]
        if len(arrays) > 1:
            total = arrays[0] + arrays[1]
            for array in arrays[2:]:
                total += array
        if op is ReduceOp.SUM:
            return as_array(total)
        return divided(total, count or len(arrays), dtype)


def check_shapes(arrays: Sequence[Any]) -> None:
    """Raise ValueError unless all have one shape."""
    if len({array.shape for array in arrays}) > 1:
        shown = ", ".join(f"replica {i}: {array.shape}" for i, array in enumerate(arrays))
        raise ValueError(f"values of replicas differ in shape ({shown}); reduce over an axis first")


_INSTEAD = "convert it to the numbers that are meant, as with `.astype(np.int32)`"


def _no_number(arrays: Sequence[Any]) -> str | None:
    """Find the dtype of the first array that cannot be added up: NumPy would take an addition of
    booleans for "or", and join text.
    """
    return next((array.dtype.name for array in arrays if array.dtype.kind not in "iufcV"), None)


def widened(array: Any) -> Any:
    """Widen an array to the dtype in which a mean is summed: small integers would wrap, booleans
    saturate, halves overflow.
    """
    with beside(array):
        if not _has_fractions(array.dtype):
            return array.astype(np.float64)
        return array.astype(np.float32) if array.dtype.itemsize < 4 else array


def _has_fractions(dtype: DType) -> bool:
    return is_float(dtype) or dtype.kind == "c"


def mean_dtype(dtype: DType) -> DType:
    """Choose the dtype of a mean: float32 of integers of at most 16 bits and float64 of longer
    ones, as in TensorFlow; float64 of booleans, which TensorFlow refuses. Others keep their own.
    """
    if _has_fractions(dtype):
        return dtype
    return np.dtype(np.float32 if dtype.kind in "iu" and dtype.itemsize <= 2 else np.float64)


def divided(total: Any, count: int, dtype: DType) -> Any:
    """Compute the mean that a sum of values of ``dtype`` makes; see :func:`mean_dtype`."""
    array = as_array(total)
    with beside(array):
        mean = array / array.dtype.type(count) if is_float(array.dtype) else array / count
        return as_array(mean).astype(mean_dtype(dtype), copy=False)


def _combine_slices(
    op: ReduceOp, values: Sequence[Any], slices: list[IndexedSlices], count: int | None
) -> IndexedSlices:
    if len(slices) != len(values):
        raise ValueError("replicas gave some IndexedSlices and some whole arrays; give one kind")
    rows = np.concatenate([item.values for item in slices])
    indices = np.concatenate([item.indices for item in slices])
    if op is ReduceOp.MEAN:
        rows = divided(rows, count or len(slices), rows.dtype)
    return IndexedSlices(rows, indices, slices[0].dense_shape)


def axis_sums(
    values: Sequence[Any], axis: int | tuple[int, ...], *, wide: bool
) -> tuple[list[Any], int]:
    """Sum each replica's value over an axis; returns also the number of elements in one sum, over
    all of them.

    Args:
        values: Values of the replicas, one each.
        axis: Axis or axes to sum over.
        wide: Sum where a mean is computed: integers as float64, halves as float32.

    Raises:
        TypeError: ``axis`` is neither an integer nor a tuple of integers, or a SUM is of
            booleans or text.
        ValueError: It is past the rank.
    """
    axes = axis if isinstance(axis, tuple) else (axis,)
    if not all(isinstance(item, int | np.integer) and not isinstance(item, bool) for item in axes):
        raise TypeError(f"axis must be an integer or a tuple of integers, got {axis!r}")
    arrays = [as_array(value) for value in values]
    for array in arrays:
        for item in axes:
            if not -array.ndim <= item < array.ndim:
                raise ValueError(f"axis {item} is out of range for a value of shape {array.shape}")
    if wide:
        arrays = [widened(array) for array in arrays]
    if (kind := _no_number(arrays)) is not None:
        raise TypeError(f"a SUM of {kind} over an axis is not defined; {_INSTEAD}")
    sums = [as_array(array.sum(axis=axes, dtype=array.dtype)) for array in arrays]
    count = sum(int(np.prod([array.shape[item] for item in axes])) for array in arrays)
    return sums, count


def reduce_axis(op: ReduceOp, values: Sequence[Any], axis: int | tuple[int, ...]) -> Any:
    """Reduce over an axis of every replica's value, then over replicas.

    MEAN divides the total sum by the total count, so uneven batches weigh by their size; an empty
    replica counts for nothing. MEAN of integers is a float, see :func:`mean_dtype`.

    Raises:
        TypeError: ``axis`` is neither an integer nor a tuple of integers, or a SUM is of
            booleans or text.
        ValueError: It is past the rank.
    """
    sums, count = axis_sums(values, axis, wide=op is ReduceOp.MEAN)
    total = combine(ReduceOp.SUM, sums)
    return total if op is ReduceOp.SUM else divided(total, count, as_array(values[0]).dtype)


def concatenate(values: Sequence[Any], axis: int) -> Any:
    """Put the replicas' values together along an axis.

    Raises:
        ValueError: A scalar, an axis past the rank, or shapes that differ elsewhere.
        NotImplementedError: IndexedSlices, which have no order to put them together in.
    """
    if any(isinstance(value, IndexedSlices) for value in values):
        raise NotImplementedError("gather does not support IndexedSlices; reduce concatenates them")
    arrays = [as_array(value) for value in values]
    check_gatherable(arrays, axis)
    with beside(arrays[0]):
        return namespace_of(arrays[0]).concatenate(arrays, axis=axis)


def axis_number(axis: Any) -> int:
    """Check that an axis is an integer.

    Raises:
        TypeError: It is a float.
        ValueError: It is no number.
    """
    try:
        return index(axis)
    except TypeError:
        kind = TypeError if isinstance(axis, float) else ValueError
        raise kind(f"axis must be an integer, got {axis!r}") from None


def check_gatherable(arrays: Sequence[Any], axis: int) -> None:
    """Raise ValueError unless arrays can be put together along an axis."""
    for i, array in enumerate(arrays):
        if not array.ndim:
            raise ValueError(
                f"gather needs values with an axis, replica {i} has a scalar; reshape it to (1,)"
            )
        if not -array.ndim <= axis < array.ndim:
            raise ValueError(f"axis {axis} is out of range for a value of shape {array.shape}")
    rest = {tuple(np.delete(array.shape, axis).tolist()) for array in arrays}
    if len(rest) > 1:
        shown = ", ".join(f"replica {i}: {array.shape}" for i, array in enumerate(arrays))
        raise ValueError(f"values of replicas differ in more than axis {axis} ({shown})")


def clip_norm(gradient: Any, limit: float) -> Any:
    """Scale a gradient to a norm of at most ``limit``."""
    if is_on_gpu(gradient):
        return _clipped_on_gpu(gradient, limit)
    scale = clip_scale([gradient], limit)
    if scale == 1.0:
        return gradient
    if isinstance(gradient, IndexedSlices):
        return IndexedSlices(gradient.values * scale, gradient.indices, gradient.dense_shape)
    return gradient * scale


def _clipped_on_gpu(gradient: Any, limit: float) -> Any:
    """Scale a gradient on a GPU as :func:`clip_norm` does. The host does not wait for it."""
    xp = namespace_of(gradient)
    with beside(gradient):
        norm = xp.sqrt(_square_sum(gradient))
        scale = xp.where(norm > limit, limit / norm, 1.0)
        return gradient * scale.astype(gradient.dtype)


def clip_scale(gradients: Sequence[Any], limit: float) -> float:
    """Compute what scales all gradients of a step to a joint norm of at most ``limit``.

    Waits once for each GPU that has some of them.
    """
    totals: dict[int | None, Any] = {}  # by GPU
    for gradient in gradients:
        rows = isinstance(gradient, IndexedSlices)
        array: Any = gradient.combined().values if rows else gradient
        where = array.device.id if is_on_gpu(array) else None
        with beside(array):
            square = _square_sum(array)
            totals[where] = totals[where] + square if where in totals else square
    norm = float(np.sqrt(sum(float(total) for total in totals.values())))
    return limit / norm if norm > limit else 1.0


def _square_sum(array: Any) -> Any:
    flat = array.reshape(-1).astype(np.float64, copy=False)
    return namespace_of(flat).dot(flat, flat)
