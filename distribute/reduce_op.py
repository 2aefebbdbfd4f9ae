"""How values of several replicas become one."""

from enum import Enum

import numpy as np

from ..core.arrays import Array, DType, is_float
from ..core.indexed_slices import IndexedSlices


class ReduceOp(Enum):
    """``tf.distribute.ReduceOp``."""

    SUM = "SUM"
    MEAN = "MEAN"

    @staticmethod
    def of(value: "ReduceOp | str") -> "ReduceOp":
        """The op a name stands for, in any case.

        Raises:
            ValueError: It stands for none.
        """
        if isinstance(value, ReduceOp):
            return value
        try:
            return ReduceOp[str(value).upper()]
        except KeyError:
            raise ValueError(f"reduce_op must be SUM or MEAN, got {value!r}") from None


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


def combine(op: ReduceOp, values: list[object]) -> Array | IndexedSlices:
    """Element-wise over replicas.

    Args:
        op: SUM or MEAN. MEAN of integers is float64.
        values: One per replica: arrays of one shape, or all IndexedSlices (then concatenated).

    Raises:
        ValueError: Shapes differ, or rows and whole arrays are mixed.
    """
    slices = [value for value in values if isinstance(value, IndexedSlices)]
    if slices:
        return _combine_slices(op, values, slices)
    arrays = [np.asarray(value) for value in values]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        shown = ", ".join(f"replica {i}: {array.shape}" for i, array in enumerate(arrays))
        raise ValueError(f"values of replicas differ in shape ({shown}); reduce over an axis first")
    if len(arrays) == 1:
        return arrays[0]
    dtype = arrays[0].dtype
    if op is ReduceOp.MEAN:
        arrays = [_wide(array) for array in arrays]
    total = arrays[0] + arrays[1]
    for array in arrays[2:]:
        total += array
    return np.asarray(total) if op is ReduceOp.SUM else _divided(total, len(arrays), dtype)


def _wide(array: Array) -> Array:
    """Where a mean is summed: small integers would wrap, booleans saturate, halves overflow."""
    if not is_float(array.dtype):
        return array.astype(np.float64)
    return array.astype(np.float32) if array.dtype.itemsize < 4 else array


def _divided(total: Array, count: int, dtype: DType) -> Array:
    mean = np.asarray(total) / np.asarray(total).dtype.type(count)
    return np.asarray(mean, dtype if is_float(dtype) else np.float64)


def _combine_slices(
    op: ReduceOp, values: list[object], slices: list[IndexedSlices]
) -> IndexedSlices:
    if len(slices) != len(values):
        raise ValueError("replicas gave some IndexedSlices and some whole arrays; give one kind")
    rows = np.concatenate([item.values for item in slices])
    indices = np.concatenate([item.indices for item in slices])
    if op is ReduceOp.MEAN:
        rows = rows / rows.dtype.type(len(slices))
    return IndexedSlices(rows, indices, slices[0].dense_shape)


def reduce_axis(op: ReduceOp, values: list[object], axis: int | tuple[int, ...]) -> Array:
    """Over an axis of every replica's value, then over replicas.

    MEAN divides the total sum by the total count, so uneven batches weigh by their size; an empty
    replica counts for nothing. MEAN of integers is float64.

    Raises:
        TypeError: ``axis`` is neither an integer nor a tuple of integers.
        ValueError: It is past the rank.
    """
    axes = axis if isinstance(axis, tuple) else (axis,)
    if not all(isinstance(item, int | np.integer) and not isinstance(item, bool) for item in axes):
        raise TypeError(f"axis must be an integer or a tuple of integers, got {axis!r}")
    arrays = [np.asarray(value) for value in values]
    for array in arrays:
        for item in axes:
            if not -array.ndim <= item < array.ndim:
                raise ValueError(f"axis {item} is out of range for a value of shape {array.shape}")
    dtype = arrays[0].dtype
    if op is ReduceOp.MEAN:
        arrays = [_wide(array) for array in arrays]
    total = combine(ReduceOp.SUM, [array.sum(axis=axes, dtype=array.dtype) for array in arrays])
    total = np.asarray(total)
    if op is ReduceOp.SUM:
        return total
    count = sum(int(np.prod([array.shape[item] for item in axes])) for array in arrays)
    return _divided(total, count, dtype)


def clip_scale(gradients: list[Array | IndexedSlices], limit: float) -> float:
    """What scales all gradients of a step to a joint norm of at most ``limit``."""
    total = 0.0
    for gradient in gradients:
        array = gradient.combined().values if isinstance(gradient, IndexedSlices) else gradient
        flat = array.reshape(-1).astype(np.float64, copy=False)
        total += float(np.dot(flat, flat))
    norm = float(np.sqrt(total))
    return limit / norm if norm > limit else 1.0
