"""Variables: named state that a strategy places and updates.

``Variable(...)`` asks the current strategy to make one, so the same line makes a NumPy array here and shards
on parameter servers there.
"""

import threading
from abc import ABCMeta
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from ..core.arrays import Array, DType, as_dtype, is_float
from ..core.definitions import ShardDefinition, VariableDefinition
from ..core.errors import DefinitionMismatchError, ShapeMismatchError
from ..core.indexed_slices import IndexedSlices
from ..core.initializers import Initializer
from ..core.task import Incarnation, TaskId
from ..core.update_rules import UpdateRule
from .context import get_strategy
from .reduce_op import VariableAggregation, VariableSynchronization

if TYPE_CHECKING:
    from .strategy import Strategy


@dataclass(frozen=True, slots=True)
class VariableSpec:
    """What ``Variable(...)`` was asked for.

    Attributes:
        initial: The value; None if ``initializer`` makes it where the variable lives.
    """

    initial: Array | None
    name: str
    shape: tuple[int, ...]
    dtype: DType
    trainable: bool
    synchronization: VariableSynchronization
    aggregation: VariableAggregation
    initializer: Initializer | None

    def definition(self, name: str) -> VariableDefinition:
        """As the servers know it."""
        return VariableDefinition(name, self.shape, self.dtype, self.initializer, self.trainable)


class _DispatchingMeta(ABCMeta):
    """``Variable(...)`` makes what the current strategy makes; subclasses are made as usual."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is Variable:
            return get_strategy().extended.create_variable(_spec(*args, **kwargs))
        return super().__call__(*args, **kwargs)


class Variable(NDArrayOperatorsMixin, metaclass=_DispatchingMeta):
    """A variable. As ``tf.Variable``, for arrays.

    ::

        with strategy.scope():
            w = wl.Variable(np.zeros((64, 10), np.float32), name="w")
            table = wl.Variable(initializer=Initializer("random_normal"), shape=(10**8, 64), name="table")

    Args:
        initial_value: Array, or a function without arguments that returns one.
        trainable: Whether optimizers update it.
        name: Unique in the job; a repeated one gets a number, the same on every task that runs the program.
        dtype: The value is converted to it.
        shape: Needed with ``initializer``.
        synchronization: See ``VariableSynchronization``.
        aggregation: How replicas' writes become one; see ``VariableAggregation``.
        initializer: Makes the value on the servers, so that a large one never travels.

    Raises:
        ValueError: MEAN aggregation of integers, synchronization NONE, or neither value nor initializer.
    """

    def __init__(
        self,
        initial_value: Any = None,
        trainable: bool | None = None,
        name: str | None = None,
        dtype: Any = None,
        shape: tuple[int, ...] | None = None,
        synchronization: VariableSynchronization = VariableSynchronization.AUTO,
        aggregation: VariableAggregation = VariableAggregation.NONE,
        *,
        initializer: Initializer | None = None,
    ) -> None:
        # What `Variable(...)` takes; the metaclass hands it to the strategy, whose class it makes.
        given = (initial_value, trainable, name, dtype, shape, synchronization, aggregation)
        raise TypeError(f"a strategy makes variables: {given}, {initializer}")

    def _set_up(self, spec: VariableSpec, name: str, strategy: "Strategy") -> None:
        """What the constructors of the strategies' variables call."""
        self._spec = spec
        self._name = name
        self._strategy = strategy

    @property
    def name(self) -> str:
        """Unique in the job."""
        return self._name

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole variable."""
        return self._spec.shape

    @property
    def dtype(self) -> DType:
        """Of the elements."""
        return self._spec.dtype

    @property
    def trainable(self) -> bool:
        """Whether optimizers update it."""
        return self._spec.trainable

    @property
    def synchronization(self) -> VariableSynchronization:
        """As given."""
        return self._spec.synchronization

    @property
    def aggregation(self) -> VariableAggregation:
        """As given."""
        return self._spec.aggregation

    @property
    def strategy(self) -> "Strategy":
        """The strategy it was made under."""
        return self._strategy

    # Not abstract methods: to a type checker `Variable(...)` makes a Variable, and it could not.
    def read_value(self) -> Array:
        """The value: in ``run`` as of the step's pull, outside as it is now. Read-only."""
        raise TypeError(f"{type(self).__name__} must define read_value")

    def assign(self, value: Any) -> "Variable":
        """Overwrite the value."""
        raise TypeError(f"{type(self).__name__} must define assign({value!r})")

    def assign_add(self, delta: Any) -> "Variable":
        """Add to the value."""
        raise TypeError(f"{type(self).__name__} must define assign_add({delta!r})")

    def sparse_read(self, indices: Any) -> Array:
        """Rows by number, in the order asked for; only these are read."""
        raise TypeError(f"{type(self).__name__} must define sparse_read({indices!r})")

    def assign_sub(self, delta: Any) -> "Variable":
        """Subtract from the value."""
        return self.assign_add(np.negative(self._given(delta)))

    def _given(self, value: Any) -> Array:
        """A value to write. Python integers take an integer variable's dtype; arrays keep their own."""
        given = np.asarray(value)
        if not hasattr(value, "dtype") and given.dtype.kind in "iu" and self.dtype.kind in "iu":
            return given.astype(self.dtype)
        return given

    def numpy(self) -> Array:
        """A copy of the value that is the caller's own."""
        return np.array(self.read_value())

    def value(self) -> Array:
        """The value, as :meth:`read_value`."""
        return self.read_value()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        value = self.read_value()
        if dtype is not None and np.dtype(dtype) != value.dtype:
            return value.astype(dtype)
        return np.array(value) if copy else value

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if any(isinstance(target, Variable) for target in kwargs.get("out", ())):
            return NotImplemented  # a variable changes through assign only
        values = [item.read_value() if isinstance(item, Variable) else item for item in inputs]
        return getattr(ufunc, method)(*values, **kwargs)

    # NumPy would ask for elements one by one.
    def __getitem__(self, index: Any) -> Any:
        return self.read_value()[index]

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar variable has no length")
        return self.shape[0]

    # Defined by the operators mixin as element-wise, which would make variables unusable as keys.
    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"<Variable {self.name!r} shape={self.shape} dtype={self.dtype.name}>"


def _spec(
    initial_value: Array | Callable[[], Any] | Any = None,
    trainable: bool | None = None,
    name: str | None = None,
    dtype: Any = None,
    shape: tuple[int, ...] | None = None,
    synchronization: VariableSynchronization = VariableSynchronization.AUTO,
    aggregation: VariableAggregation = VariableAggregation.NONE,
    *,
    initializer: Initializer | None = None,
) -> VariableSpec:
    initial: Array | None = None
    if initializer is None:
        if initial_value is None:
            raise ValueError("a variable needs an initial_value, or an initializer and a shape")
        given = initial_value() if callable(initial_value) else initial_value
        initial = np.array(given, dtype=as_dtype(dtype) if dtype is not None else None)
        if initial.dtype == np.float64 and dtype is None and not hasattr(given, "dtype"):
            initial = initial.astype(np.float32)  # Python floats are float32, as in TensorFlow
        if shape is not None and tuple(shape) != initial.shape:
            raise ValueError(f"initial_value has shape {initial.shape}, not {tuple(shape)}")
    elif initial_value is not None or shape is None:
        raise ValueError("give a shape with an initializer, and no initial_value")
    kind = initial.dtype if initial is not None else as_dtype(dtype or np.float32)
    if synchronization is VariableSynchronization.NONE:
        raise ValueError("synchronization NONE is not supported for variables; use AUTO")
    if aggregation is VariableAggregation.MEAN and not is_float(kind):
        raise ValueError(
            f"aggregation MEAN needs a float dtype, variable {name or 'Variable'!r} is {kind.name}; use SUM "
            "or ONLY_FIRST_REPLICA"
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
    )


class LocalVariable(Variable):
    """A variable in this process, updated by the same kernels as on a ps."""

    def __init__(self, spec: VariableSpec, strategy: "Strategy") -> None:
        # A worker of a cluster has no use for the ps's half.
        from ..server.ps.block import Block

        self._set_up(spec, spec.name, strategy)
        definition = spec.definition(spec.name)
        self._block = Block([ShardDefinition(definition)])
        self._lock = threading.Lock()
        self._pushes = 0
        rows = definition.shape[0] if definition.shape else 1
        value = spec.initial
        if value is None and spec.initializer is not None:
            value = spec.initializer.rows(spec.shape, spec.dtype, 0, rows)
        self._block.view(0)[...] = value

    def read_value(self) -> Array:
        """A read-only copy of the value."""
        with self._lock:
            value = self._block.view(0).copy()
        value.flags.writeable = False
        return value

    def sparse_read(self, indices: Any) -> Array:
        """Rows by number."""
        numbers = row_numbers(indices, self.shape, self.name)
        with self._lock:
            return np.array(self._block.view(0)[numbers])

    def assign(self, value: Any) -> "LocalVariable":
        """Overwrite the value."""
        given = np.asarray(value, self.dtype)
        self._check_shape(given)
        with self._lock:
            self._block.view(0)[...] = given
        return self

    def assign_add(self, delta: Any) -> "LocalVariable":
        """Add to the value."""
        given = np.asarray(delta, self.dtype)
        self._check_shape(given)
        with self._lock:
            self._block.view(0)[...] += given
        return self

    def apply(
        self, gradient: Array | IndexedSlices, rule: UpdateRule, *, gradient_scale: float
    ) -> None:
        """Run an update rule."""
        from ..server.ps.block import Gradient, StepFacts

        with self._lock:
            bound = self._block.rules[0]
            if bound is None:
                self._block.bind(0, rule)
            elif bound != rule:
                # As on a ps: another rule would begin with empty slots, without a word.
                raise DefinitionMismatchError(
                    f"{self.name!r} is updated by {bound!r}; it cannot be updated by {rule!r} as well",
                    variable=self.name,
                )
            self._pushes += 1
            facts = StepFacts(
                Incarnation(TaskId("worker", 0), 1), self._pushes, self._pushes - 1, gradient_scale
            )
            if isinstance(gradient, IndexedSlices):
                rows = gradient.combined()
                values = np.ascontiguousarray(rows.values, self.dtype).reshape(-1)
                piece = Gradient(values, rows.indices)
            else:
                given = np.asarray(gradient)
                self._check_shape(given)
                piece = Gradient(np.ascontiguousarray(given, self.dtype).reshape(-1))
            self._block.apply(self._block.range_of(0), piece, rule, facts)

    def _check_shape(self, value: Array) -> None:
        if value.shape != self.shape:
            raise ValueError(f"{self.name!r} has shape {self.shape}, the value has {value.shape}")


def row_numbers(indices: Any, shape: tuple[int, ...], name: str) -> Array:
    """Row numbers as integers; an empty list is no rows.

    Raises:
        TypeError: They are no integers.
        ShapeMismatchError: One is out of range. NumPy would count negative ones from the end.
    """
    numbers = np.asarray(indices)
    if numbers.size == 0:
        return numbers.astype(np.int64)
    if numbers.dtype.kind not in "iu":
        raise TypeError(f"rows of {name!r} are named by integers, got {numbers.dtype.name}")
    rows = shape[0] if shape else 0
    low, high = int(numbers.min()), int(numbers.max())
    if low < 0 or high >= rows:
        raise ShapeMismatchError(
            f"row {low if low < 0 else high} of {name!r} is out of range: it has {rows} rows",
            variable=name,
        )
    return numbers
