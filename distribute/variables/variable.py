"""Variables: named state that a strategy places and updates.

``Variable(...)`` asks the current strategy to make one, so the same line makes a NumPy array here
and shards on parameter servers there.
"""

import sys
from abc import ABCMeta
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from inspect import signature
from types import FrameType
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from ...core.arrays.any_framework import as_array, beside, to_host, together
from ...core.arrays.dtypes import Array, DType
from ...core.arrays.indexed_slices import IndexedSlices
from ...core.rules.initializers import Initializer
from ..base.contexts import ReplicaContext, get_replica_context, get_strategy, top_frame
from ..base.devices import HOST, in_task
from ..base.interface import StrategyInterface
from ..base.reductions import VariableAggregation, VariableSynchronization
from ..base.values import PerReplica
from ..base.worker_index import current_worker
from .conversions import in_dtype
from .scatter import Scatter
from .spec import VariableSpec, make_spec


class _DispatchingMeta(ABCMeta):
    """``Variable(...)`` makes what the current strategy makes; subclasses are made as usual."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is Variable:
            return create(args, kwargs)
        return super().__call__(*args, **kwargs)


class Variable(NDArrayOperatorsMixin, metaclass=_DispatchingMeta):
    """A variable. As ``tf.Variable``, for arrays.

    ::

        with strategy.scope():
            w = rw.Variable(np.zeros((64, 10), np.float32), name="w")
            table = rw.Variable(
                initializer=Initializer("random_normal"), shape=(10**8, 64), name="table"
            )

    Args:
        initial_value: Array, or a function without arguments that returns one. With a ``shape`` it
            may take ``partition_shape`` and ``partition_offset``, and is called once per shard.
        trainable: Whether optimizers update it.
        name: Unique in the job; a repeated one gets a number, the same on every task that runs the
            program.
        dtype: The value is converted to it.
        shape: Needed with ``initializer``.
        synchronization: See ``VariableSynchronization``.
        aggregation: Aggregation by which replicas' writes become one; see ``VariableAggregation``.
        initializer: Makes the value on the servers, so that a large one never travels; or its
            name.

    Raises:
        ValueError: MEAN aggregation of integers, synchronization NONE, or neither value nor
            initializer.
        TypeError: The initializer is neither a :class:`Initializer` nor a name.
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
        initializer: Initializer | str | None = None,
    ) -> None:
        # What `Variable(...)` takes; the metaclass hands it to the strategy, whose class it makes.
        arguments = (initial_value, trainable, name, dtype, shape, synchronization, aggregation)
        raise TypeError(f"a strategy makes variables: {arguments}, {initializer}")

    def _set_up(self, spec: VariableSpec, name: str, strategy: StrategyInterface) -> None:
        """Set up what all strategies' variables have; their constructors call this."""
        # Without the first value: it would stay in memory as long as the variable.
        self._spec = replace(spec, initial=None)
        self._name = name
        self._strategy = strategy

    @property
    def name(self) -> str:
        """Unique in the job."""
        return self._name

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole variable."""
        return self._spec.shape

    @property
    def dtype(self) -> DType:
        """Dtype of the elements."""
        return self._spec.dtype

    @property
    def trainable(self) -> bool:
        """Whether optimizers update it."""
        return self._spec.trainable

    @property
    def synchronization(self) -> VariableSynchronization:
        """Synchronization that the constructor was given."""
        return self._spec.synchronization

    @property
    def aggregation(self) -> VariableAggregation:
        """Aggregation that the constructor was given."""
        return self._spec.aggregation

    @property
    def strategy(self) -> Any:
        """The :class:`Strategy` it was made under."""
        return self._strategy

    @property
    def device(self) -> str:
        """Device of its value, or of the first copy of it; named with its task, as in
        TensorFlow.
        """
        return in_task(self._strategy.extended.task_name, HOST)

    def _own_replica(self) -> ReplicaContext | None:
        """Find the context of the replica this thread runs for the variable's strategy, if it
        does.
        """
        context = get_replica_context()
        return context if context is not None and context.strategy is self._strategy else None

    # Not abstract methods: to a type checker `Variable(...)` makes a Variable, and it could not.
    def read_value(self) -> Any:
        """Read the value, read-only: a NumPy array on the host, a CuPy array on a GPU."""
        raise TypeError(f"{type(self).__name__} must define read_value")

    def assign(self, value: Any) -> "Variable":
        """Overwrite the value."""
        raise TypeError(f"{type(self).__name__} must define assign({value!r})")

    def assign_add(self, delta: Any) -> "Variable":
        """Add to the value."""
        raise TypeError(f"{type(self).__name__} must define assign_add({delta!r})")

    def sparse_read(self, indices: Any) -> Any:
        """Read rows by number, in the order asked for; only these are read."""
        raise TypeError(f"{type(self).__name__} must define sparse_read({indices!r})")

    def assign_sub(self, delta: Any) -> "Variable":
        """Subtract from the value."""
        array = in_dtype(self._given(self._not_rows(delta)), self.dtype, self.name)
        with beside(array):
            # Negated in the variable's dtype: an unsigned number has no negative.
            negated = -array
        return self.assign_add(negated)

    def scatter(self, kind: Scatter, delta: IndexedSlices) -> "Variable":
        """Change rows; what the ``scatter_`` methods call."""
        raise TypeError(f"{type(self).__name__} must define scatter({kind}, {delta!r})")

    def scatter_add(self, sparse_delta: IndexedSlices) -> "Variable":
        """Add to rows; repeated ones add up."""
        return self.scatter(Scatter.ADD, sparse_delta)

    def scatter_sub(self, sparse_delta: IndexedSlices) -> "Variable":
        """Subtract from rows; repeated ones add up."""
        return self.scatter(Scatter.SUB, sparse_delta)

    def scatter_mul(self, sparse_delta: IndexedSlices) -> "Variable":
        """Multiply rows; repeated ones multiply."""
        return self.scatter(Scatter.MUL, sparse_delta)

    def scatter_div(self, sparse_delta: IndexedSlices) -> "Variable":
        """Divide rows; repeated ones divide again."""
        return self.scatter(Scatter.DIV, sparse_delta)

    def scatter_min(self, sparse_delta: IndexedSlices) -> "Variable":
        """Keep the smaller of old and given elements, in rows."""
        return self.scatter(Scatter.MIN, sparse_delta)

    def scatter_max(self, sparse_delta: IndexedSlices) -> "Variable":
        """Keep the larger of old and given elements, in rows."""
        return self.scatter(Scatter.MAX, sparse_delta)

    def scatter_update(self, sparse_delta: IndexedSlices) -> "Variable":
        """Overwrite rows; of repeated ones the last counts."""
        return self.scatter(Scatter.UPDATE, sparse_delta)

    def batch_scatter_update(self, sparse_delta: IndexedSlices) -> "Variable":
        """Overwrite rows as :meth:`scatter_update` does; rows are of axis 0 alone."""
        return self.scatter(Scatter.UPDATE, sparse_delta)

    def gather_nd(self, indices: Any) -> Any:
        """Read elements or slices at ``indices`` of shape ``(..., k)``, along the first ``k``
        axes.
        """
        where = to_host(indices)
        return self[tuple(np.moveaxis(where, -1, 0))]

    def _not_rows(self, value: Any) -> Any:
        """Refuse rows: those are for the ``scatter_`` methods."""
        if isinstance(value, IndexedSlices):
            raise TypeError(
                f"{self.name!r} is assigned as a whole, got IndexedSlices; use scatter_update, "
                "scatter_add or scatter_sub for rows"
            )
        return value

    def _require_shape(self, value: Any) -> None:
        if value.shape != self.shape:
            raise ValueError(f"{self.name!r} has shape {self.shape}, the value has {value.shape}")

    def _given(self, value: Any) -> Any:
        """Convert a value to write; Python integers take an integer variable's dtype, arrays keep
        theirs.
        """
        array = as_array(value)
        if not hasattr(value, "dtype") and array.dtype.kind in "iu" and self.dtype.kind in "iu":
            return in_dtype(array, self.dtype, self.name)
        return array

    def numpy(self) -> Any:
        """Copy the value to the host, for the caller alone; a number of NumPy's if it has no
        axes.
        """
        return np.array(to_host(self.read_value()))[()]

    def value(self) -> Any:
        """Read the value, as :meth:`read_value`."""
        return self.read_value()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        value = to_host(self.read_value())
        if dtype is not None and np.dtype(dtype) != value.dtype:
            return value.astype(dtype)
        return np.array(value) if copy else value

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        for target in kwargs.get("out", ()):
            if isinstance(target, Variable):
                raise TypeError(
                    f"{target.name!r} is a variable and changes through assign, assign_add and "
                    "assign_sub alone, not through `+=` or `out=`"
                )
        device, values = together(
            item.read_value() if isinstance(item, Variable) else item for item in inputs
        )
        with device:
            return getattr(ufunc, method)(*values, **kwargs)

    # NumPy would ask for elements one by one.
    def __getitem__(self, index: Any) -> Any:
        value = self.read_value()
        with beside(value):
            return value[index]

    def __bool__(self) -> bool:
        return bool(to_host(self.read_value()))

    def __int__(self) -> int:
        return int(to_host(self.read_value()))

    def __float__(self) -> float:
        return float(to_host(self.read_value()))

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

    def __reduce_ex__(self, protocol: Any) -> Any:
        # What copy.copy, copy.deepcopy and pickle ask: a copy would share memory, and know nothing
        # of it.
        raise TypeError(
            f"variable {self.name!r} belongs to its strategy and cannot be copied or pickled; copy "
            "its value (`Variable(v.numpy())`), or save it with rw.Checkpoint"
        )

    def _shown_value(self) -> str:
        """Format the value for :meth:`__repr__`; empty where a server has it, which is not
        asked.
        """
        return ""

    def __repr__(self) -> str:
        value = f" value={text}" if (text := self._shown_value()) else ""
        return f"<Variable {self.name!r} shape={self.shape} dtype={self.dtype.name}{value}>"


_creators: ContextVar[tuple[Callable[..., Any], ...]] = ContextVar("creators", default=())


def has_creators() -> bool:
    """Return whether a :func:`variable_creator_scope` is around the caller."""
    return bool(_creators.get())


@contextmanager
def variable_creator_scope(variable_creator: Callable[..., Any]) -> Iterator[None]:
    """Make variables of this block by ``variable_creator(next_creator, **kwargs)``.

    As ``tf.variable_creator_scope``: the creator entered last is called first; ``next_creator``
    leads to the one before it, and at last to the strategy. ``kwargs`` are all arguments of
    ``Variable``.

    ::

        def on_first_replica(next_creator, **kwargs):
            kwargs["aggregation"] = rw.VariableAggregation.ONLY_FIRST_REPLICA
            return next_creator(**kwargs)
    """
    token = _creators.set((*_creators.get(), variable_creator))
    try:
        yield
    finally:
        _creators.reset(token)


def create(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Create what ``Variable(*args, **kwargs)`` is: of the creators in scope, or of the
    strategy.
    """
    kwargs = _offered(kwargs)
    creators = _creators.get()
    if not creators:
        return _create(**_SIGNATURE.bind(*args, **kwargs).arguments)
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    creator: Callable[..., Any] = _create
    for outer in creators:
        creator = partial(outer, creator)
    return creator(**bound.arguments)


_SIGNATURE = signature(make_spec)
_SERVERS = "variables live on the servers, or in this process: leave it out"
_GRAPHS = "there are no graphs: leave it out"
_ELSEWHERE = {
    "caching_device": _SERVERS,
    "constraint": "assign the constrained value after apply_gradients",
    "experimental_enable_variable_lifting": _GRAPHS,
    "import_scope": _GRAPHS,
    "use_resource": _GRAPHS,
    "validate_shape": "a variable keeps the shape that it is made with: make it as large as needed",
    "variable_def": _GRAPHS,
}
"""Arguments that TensorFlow's variables take beside: what to do instead."""
_OF_NO_EFFECT = {"experimental_enable_variable_lifting", "use_resource"}


def _offered(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Drop TensorFlow's other arguments, where these change nothing.

    Raises:
        TypeError: One would change something; says what to write instead.
    """
    beside = kwargs.keys() & _ELSEWHERE.keys()
    for name in sorted(beside - _OF_NO_EFFECT):
        if kwargs[name] is not (True if name == "validate_shape" else None):
            raise TypeError(f"Variable takes no {name!r}: {_ELSEWHERE[name]}")
    return {name: value for name, value in kwargs.items() if name not in beside}


def _create(**kwargs: Any) -> Variable:
    """Create the current strategy's variable; in ``run`` the replicas get one variable together.

    Raises:
        ValueError: A closure creates it, in a scope or not.
    """
    spec = make_spec(**kwargs)
    if current_worker.get() is not None:
        raise ValueError(
            f"a closure creates variable {spec.name!r}: each worker would have one of its own, "
            "and another in every call. Create it in the coordinator's program, in "
            "`with strategy.scope():`, before the closure is scheduled"
        )
    frame = top_frame()
    if frame is None or frame.replica is None:
        variable: Variable = get_strategy().extended.create_variable(spec)
        return variable
    asked = (spec, _line_of_program())
    if len(frame.strategy.extended.replica_devices) > 1:
        variable = frame.replica.merge_call(_create_once, asked)
    else:
        variable = _create_in_run(frame.strategy, *asked)
    return variable


def _line_of_program() -> str:
    """Find file and line of the innermost call that is not our own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("ropewalk."):
        frame = frame.f_back
    return (
        f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "an unknown line"
    )


def _create_in_run(strategy: StrategyInterface, spec: VariableSpec, where: str) -> Variable:
    """Create a variable of the first step, as of a layer that is built when it is called.

    Raises:
        ValueError: The step before made one here, too, and no reference to it is left.
    """
    strategy.extended.creations.check(spec.name, where)
    variable: Variable = strategy.extended.create_variable(spec)
    strategy.extended.creations.note(spec.name, where, variable)
    return variable


def _create_once(
    strategy: StrategyInterface, asked: PerReplica, where: PerReplica | str
) -> Variable:
    specs: tuple[VariableSpec, ...] = asked.values
    wanted = [f"{spec.name!r} of shape {spec.shape} and {spec.dtype.name}" for spec in specs]
    if len(set(wanted)) > 1:
        shown = "; ".join(f"replica {i}: {one}" for i, one in enumerate(wanted))
        raise RuntimeError(
            f"replicas disagree: they create different variables ({shown}); every replica must "
            "make the same calls in the same order"
        )
    line = where if isinstance(where, str) else where.values[0]
    return _create_in_run(strategy, specs[0], line)
