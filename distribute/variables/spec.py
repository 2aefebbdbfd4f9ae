"""The checked arguments of ``Variable(...)``."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from ...core.arguments import ArgumentTypeError
from ...core.arrays.any_framework import to_host
from ...core.arrays.dtypes import Array, DType, as_dtype, is_float
from ...core.rules.definitions import VariableDefinition, cut
from ...core.rules.initializers import Initializer
from ..base.reductions import VariableAggregation, VariableSynchronization


@dataclass(frozen=True, slots=True)
class VariableSpec:
    """The specification of a variable that ``Variable(...)`` was asked for.

    Attributes:
        initial: The value; None if ``initializer`` makes it where the variable lives, or
            ``by_parts`` here.
        by_parts: Function of ``partition_shape`` and ``partition_offset`` that returns one part.
    """

    initial: Array | None
    name: str
    shape: tuple[int, ...]
    dtype: DType
    trainable: bool
    synchronization: VariableSynchronization
    aggregation: VariableAggregation
    initializer: Initializer | None
    by_parts: Callable[..., Any] | None = None

    def definition(self, name: str) -> VariableDefinition:
        """Define the variable for the servers."""
        return VariableDefinition(name, self.shape, self.dtype, self.initializer, self.trainable)

    def first_value(self) -> Any:
        """Make the first value: the given one, or what the initializer makes, an array of the whole
        shape.
        """
        if self.by_parts is not None:
            return self.with_parts(1).initial
        if self.initial is not None or self.initializer is None:
            return self.initial
        rows = self.shape[0] if self.shape else 1
        value = self.initializer.rows(self.shape, self.dtype, 0, rows)
        return to_host(value).reshape(self.shape)

    def with_parts(self, parts: int) -> "VariableSpec":
        """Take the value that ``by_parts`` makes of so many parts along axis 0, if it is given.

        Raises:
            ValueError: A part has neither its own shape nor the whole's.
        """
        if self.by_parts is None:
            return self
        whole = np.empty(self.shape, self.dtype)
        for shard in cut(self.definition(self.name), parts):
            rest = (0,) * (len(self.shape) - 1)
            offset = (shard.row_offset, *rest) if self.shape else ()
            part = np.asarray(self.by_parts(partition_shape=shard.shape, partition_offset=offset))
            where = slice(shard.row_offset, shard.row_offset + shard.rows) if self.shape else ...
            if part.shape == shard.shape:
                whole[where] = part
            elif part.shape == self.shape:
                whole[where] = part[where]  # it took no notice of the arguments
            else:
                raise ValueError(
                    f"the initial_value of {self.name!r} made a part of shape {part.shape}; asked "
                    f"for were partition_shape={shard.shape}, partition_offset={offset}"
                )
        return replace(self, initial=whole, by_parts=None)


def _takes_parts(function: Callable[..., Any]) -> bool:
    """Return whether a function has the arguments of a part, be it among ``**kwargs``."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin
        return False
    named = {"partition_shape", "partition_offset"} <= parameters.keys()
    return named or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


_Kind = TypeVar("_Kind", VariableAggregation, VariableSynchronization)


def _member(kind: type[_Kind], choice: Any, argument: str) -> _Kind:
    """Find a member of an enumeration of ours; None stands for its first one, the default."""
    if choice is None:
        return next(iter(kind))
    if not isinstance(choice, kind):
        names = ", ".join(member.name for member in kind)
        raise ValueError(
            f"Invalid variable {argument}: {choice!r}; give a rw.{kind.__name__}, one of {names}"
        )
    return choice


def _initial(first_value: Any, dtype: DType | None, name: str | None) -> Array:
    """Copy the first value.

    Raises:
        ArgumentTypeError: ``dtype`` is one of integers, and would cut off the value's fractions.
    """
    first_value = to_host(first_value)
    value = np.array(first_value, dtype)
    if dtype is not None and dtype.kind in "iu" and np.any(first_value != value):
        raise ArgumentTypeError(
            f"the initial_value of {name or 'Variable'!r} has fractions, which "
            f"dtype={dtype.name} cannot hold; round it, or leave out the dtype"
        )
    return value


def make_spec(
    initial_value: Array | Callable[[], Any] | Any = None,
    trainable: bool | None = None,
    name: str | None = None,
    dtype: Any = None,
    shape: tuple[int, ...] | None = None,
    synchronization: VariableSynchronization = VariableSynchronization.AUTO,
    aggregation: VariableAggregation = VariableAggregation.NONE,
    *,
    initializer: Initializer | str | None = None,
) -> VariableSpec:
    """Make the spec of the arguments of ``Variable(...)``; see there.

    Raises:
        ValueError: They contradict each other, or one is not supported.
        TypeError: The initializer is something else.
    """
    initial: Array | None = None
    by_parts = None
    if isinstance(initializer, str):
        initializer = Initializer(initializer)
    elif not isinstance(initializer, Initializer | None):
        raise TypeError(
            f"initializer={initializer!r} of {name or 'Variable'!r}: give a rw.Initializer or the "
            "name of one; a function or an array is an initial_value"
        )
    if initializer is None:
        if initial_value is None:
            raise ValueError("a variable needs an initial_value, or an initializer and a shape")
        if shape is not None and callable(initial_value) and _takes_parts(initial_value):
            by_parts = initial_value
    elif initial_value is not None or shape is None:
        raise ValueError("give a shape with an initializer, and no initial_value")
    if initializer is None and by_parts is None:
        first_value = initial_value() if callable(initial_value) else initial_value
        initial = _initial(first_value, as_dtype(dtype) if dtype is not None else None, name)
        if initial.dtype == np.float64 and dtype is None and not hasattr(first_value, "dtype"):
            initial = initial.astype(np.float32)  # Python floats are float32, as in TensorFlow
        if shape is not None and tuple(shape) != initial.shape:
            raise ValueError(f"initial_value has shape {initial.shape}, not {tuple(shape)}")
    kind = initial.dtype if initial is not None else as_dtype(dtype or np.float32)
    synchronization = _member(VariableSynchronization, synchronization, "synchronization")
    aggregation = _member(VariableAggregation, aggregation, "aggregation")
    if synchronization is VariableSynchronization.NONE:
        raise ValueError("synchronization NONE is not supported for variables; use AUTO")
    if aggregation is VariableAggregation.MEAN and not is_float(kind):
        raise ValueError(
            f"aggregation MEAN needs a float dtype, variable {name or 'Variable'!r} is "
            f"{kind.name}; use SUM or ONLY_FIRST_REPLICA"
        )
    return VariableSpec(
        initial=initial,
        name=name or "Variable",
        shape=initial.shape if initial is not None else tuple(shape or ()),
        dtype=as_dtype(kind),
        trainable=synchronization is not VariableSynchronization.ON_READ
        if trainable is None
        else trainable,
        synchronization=synchronization,
        aggregation=aggregation,
        initializer=initializer,
        by_parts=by_parts,
    )
