"""Keras on JAX outside of ``fit``: gradients leave a compiled function by a callback.

``optimizer.stateless_apply`` is called in a function that ``jax.jit`` compiles. In its place stands
a callback to the host, which pushes the gradients and returns the values that come back. The
optimizer's state goes round through the program, as ever; of one that runs on the servers only the
number of iterations counts.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.arrays.dtypes import Array, same_values
from ...core.errors import ConfigurationError
from ...core.process.tracebacks import noting_errors
from ...distribute.base.contexts import is_running
from ...distribute.variables.variable import Variable
from ...training.extras import require
from ..embedding.features.tables import Embeddings
from ..jax_bridge.arrays import on_device
from .eager_steps import EagerSteps
from .jax_features import FedFeatureReader
from .jax_rows import FedReader, JaxRowReader
from .loop_state import plainly
from .optimizer import position_of

if TYPE_CHECKING:
    from .loops import Loop
    from .weights import SharedWeights

jax: Any = require("jax", "keras")
io_callback: Any = require("jax.experimental", "keras").io_callback

log = logging.getLogger(__name__)

_COPIED_AT_ONCE = 100_000  # bytes; what is larger JAX copies in a thread of its own


class LoopSteps(EagerSteps):
    """Steps whose gradients are given to an optimizer of Keras on JAX, compiled or not."""

    def __init__(self, weights: "SharedWeights") -> None:
        super().__init__(weights)
        self._arrays = weights.shared.marks  # of which variables were given these
        self._has_given = False
        self._has_told = False

    # -- values ------------------------------------------------------------------------------

    def array(self, variable: Any) -> Array:
        """Read a variable's value, of the same memory on the CPU."""
        return np.asarray(variable.value)

    def assign(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        """Assign arrays of JAX, of the same memory where they are large."""
        for variable, array in zip(variables, on_device(list(values)), strict=True):
            variable.assign(array)

    def load(self, names: Mapping[str, Any], values: Mapping[str, Array]) -> None:
        """Load values into the variables, and note them."""
        self.assign(list(names.values()), [values[name] for name in names])
        self._arrays.update((name, variable.value) for name, variable in names.items())
        self._weights.shared.given.update((name, values[name]) for name in names)

    def _other_values(self, variables: Mapping[str, Any]) -> Mapping[str, Array]:
        # Of those that were assigned: what a loop goes on with is not in variables.
        noted = self._arrays
        assigned = {n: v for n, v in variables.items() if v.value is not noted.get(n, v.value)}
        return super()._other_values(assigned)

    def follow(self) -> None:
        """Take up what the program has assigned."""
        changed = self._other_values(self._trainable)
        self._weights.changes.give_before_step(changed)
        if changed:
            self._weights.load(self._weights.pull())

    def _give_assigned_in_step(self) -> None:
        """Do nothing: a layer's call was over before :meth:`follow`, which has given it."""

    def mark(self, variable: Any) -> object:
        """Return the value of the rate as its mark."""
        return float(variable.value)

    def gradient(self, tensor: Any) -> Array:
        """Read a gradient, of the same memory on the CPU."""
        return np.asarray(tensor)

    def tensor(self, gradient: Array, variable: Any) -> Any:  # noqa: ARG002
        """Make an array of JAX."""
        return jax.numpy.asarray(gradient)

    def apply_here(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Keras' own."""
        optimizer = self._weights.optimizer
        with plainly():
            type(optimizer).apply(optimizer, gradients, variables)

    def make_train_function(self) -> None:
        """Do nothing: there is no train function."""

    def new_reader(self, layer: Any, table: Variable) -> JaxRowReader:
        """Make a reader of rows where the model is called outside of a compiled function."""
        return JaxRowReader(layer, table)

    def new_feature_reader(self, layer: Any, embeddings: Embeddings) -> FedFeatureReader:
        """Make a reader of features where the model is called outside of a compiled function."""
        return FedFeatureReader(layer, embeddings)

    def use_reader(self, reader: FedReader) -> None:
        """Do nothing: the reader reads by itself."""

    # -- steps -------------------------------------------------------------------------------

    def stateless_apply(
        self, state: Sequence[Any], gradients: Sequence[Any], values: Sequence[Any], loop: "Loop"
    ) -> tuple[list[Any], list[Any]]:
        """Compute new values and a new state, as Keras' method does.

        Raises:
            ConfigurationError: Where it cannot be done; says what to write instead.
        """
        self._tell_of_averages()
        weights, optimizer = self._weights, self._weights.optimizer
        names = [str(weights.name_of(v)) for v in optimizer._trainable_variables]
        named = {name: g for name, g in zip(names, gradients, strict=True) if g is not None}
        if weights.worker_reason is None:
            return self._on_servers(state, named, names, values, loop)
        if loop.strategy.extended.num_replicas_in_sync > 1:
            raise ConfigurationError(
                f"{type(optimizer).__name__} {weights.worker_reason}, so it runs on this worker, "
                "and workers in sync have to agree on gradients first, which a function that JAX "
                "compiles cannot wait for. Use compile and fit, or an optimizer that has a rule "
                "(docs/bridges.md)"
            )
        with plainly():
            new, new_state = type(optimizer).stateless_apply(optimizer, state, gradients, values)
        pairs = zip(names, new, map(array_of, values), strict=True)
        deltas = {name: after - before for name, after, before in pairs if name in named}
        in_run = is_running(loop.strategy)

        def push(deltas: Any, new_state: Any, now: Any) -> list[Array]:
            self._follow_values(names, now)
            arrays_of_deltas = {name: np.asarray(delta) for name, delta in deltas.items()}
            arrays = [np.asarray(array) for array in new_state]
            is_new = np.array(False)
            with loop.step(in_run=in_run):
                arrived = weights.exchange(
                    {},
                    update=lambda _: arrays_of_deltas,
                    state=lambda: arrays,
                    counts=lambda: is_new.fill(True),
                )
            return [*self._given(names, arrived), is_new]

        now = list(map(array_of, values))
        *new, is_new = self._out(push, [*values, np.array(False)], deltas, new_state, now)
        states = zip(new_state, map(array_of, state), strict=True)
        return new, [jax.numpy.where(is_new, after, before) for after, before in states]

    def _tell_of_averages(self) -> None:
        """Log that averages are in the state that goes round through the program, where none is
        pushed.
        """
        averages = self._weights.averages
        if averages and not self._has_told:
            log.warning(
                "%r and %d more moving averages stay in the state of this program's loop, of this "
                "worker's batches alone; checkpoints have their first values until the "
                "program assigns them to the model's variables. With compile and fit they are "
                "shared: of the batches of all workers",
                next(iter(averages)),
                len(averages) - 1,
            )
        self._has_told = True

    def _on_servers(
        self,
        state: Sequence[Any],
        by_name: Mapping[str, Any],
        names: Sequence[Any],
        values: Sequence[Any],
        loop: "Loop",
    ) -> tuple[list[Any], list[Any]]:
        weights, optimizer = self._weights, self._weights.optimizer
        rate_at = position_of(optimizer, "_learning_rate")
        steps_at = position_of(optimizer, "_iterations")
        rate = None if rate_at is None else state[rate_at]
        assert steps_at is not None  # noqa: S101 - every optimizer of Keras counts
        in_run = is_running(loop.strategy)

        def push(named: Any, rate: Any, steps: Any, now: Any) -> list[Array]:
            self._follow_values(names, now)
            if rate is not None:
                weights.set_rate(float(rate))
            with loop.step(in_run=in_run):
                arrived = weights.exchange({n: np.asarray(g) for n, g in named.items()})
            iterations = max(weights.iterations, int(steps) + 1)
            return [*self._given(names, arrived), np.asarray(iterations, steps.dtype)]

        now = list(map(array_of, values))
        *new, steps = self._out(
            push, [*values, state[steps_at]], by_name, rate, state[steps_at], now
        )
        new_state = list(state)
        new_state[steps_at] = steps
        return new, new_state

    def _follow_values(self, names: Sequence[str], now: Sequence[Any]) -> None:
        """Take up what the program has made of the values that it was given by the last step.

        The values of the first step are the program's own: they may be older than the job's.
        """
        if self._has_given:
            last_values = self._weights.shared.given
            arrays = zip(names, map(np.asarray, now), strict=True)
            changed = {name: a for name, a in arrays if not same_values(a, last_values[name])}
            self._weights.changes.give_before_step(changed)
        self._has_given = True

    def _given(self, names: Sequence[str], arrived: Mapping[str, Array]) -> list[Array]:
        """List the values that the program goes on with."""
        self._weights.shared.given.update((name, arrived[name]) for name in names)
        return [np.asarray(arrived[name]) for name in names]

    def _out(self, function: Any, like: Sequence[Any], *args: Any) -> list[Any]:
        """Call a function on the host, whose results are of these shapes and dtypes."""
        like = [array_of(array) for array in like]
        leaves = jax.tree.leaves((args, like))
        if not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return on_device(function(*args))
        large = max(leaf.size * leaf.dtype.itemsize for leaf in leaves)
        if large > _COPIED_AT_ONCE and len(os.sched_getaffinity(0)) == 1:
            raise ConfigurationError(
                "optimizer.stateless_apply in a function that JAX compiles needs two processors "
                "for arrays of this size: JAX waits for itself on one. Use compile and fit, or "
                "give this process another processor"
            )
        shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in like]
        noted = noting_errors()(function)
        return list(io_callback(noted, shapes, *args, ordered=True))


def require_arrays(optimizer: Any, gradients: Sequence[Any]) -> None:
    """Refuse ``optimizer.apply`` in a compiled function.

    Raises:
        ConfigurationError: It is in one.
    """
    if any(isinstance(gradient, jax.core.Tracer) for gradient in gradients):
        raise ConfigurationError(
            f"{type(optimizer).__name__}.apply is called in a function that JAX compiles; call "
            "optimizer.stateless_apply there, and return what it gives"
        )


def array_of(each: Any) -> Any:
    """Find the array of what may be a variable of Keras: programs give a compiled function
    those.
    """
    return getattr(each, "value", each)
