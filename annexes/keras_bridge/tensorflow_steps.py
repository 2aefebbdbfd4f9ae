"""Keras on TensorFlow: the model's ``train_step`` is one graph, which gives its gradients.

Its optimizer hands the gradients out instead of applying them. They are pushed between two calls of
the graph, by eager code, so nothing of a graph waits for the network, and the graph may be compiled
by XLA. What comes back is loaded into the same ``tf.Variable`` objects.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from ...core.arrays.any_framework import to_host
from ...core.arrays.dtypes import Array
from ...core.arrays.indexed_slices import IndexedSlices
from ...core.errors import ConfigurationError
from ...core.process.tracebacks import noting_errors
from ...core.step_times import timed
from ...core.terminal import counted
from ...distribute.variables.variable import Variable
from ...training.extras import require
from ...training.in_sync import workers_in_sync
from ..embedding.features.tables import Embeddings
from .eager_steps import EagerSteps, joined
from .loop_state import plainly
from .tensorflow_features import GraphFeatureReader

if TYPE_CHECKING:
    from .weights import SharedWeights

tf: Any = require("tensorflow", "keras,tensorflow")

log = logging.getLogger(__name__)

_CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")
_told_of_rows: WeakSet[Any] = WeakSet()  # optimizers

COMPILES_ROWS = False
"""XLA refuses what a graph asks Python for."""


class TensorFlowRowReader:
    """Rows of a table, for which a graph asks Python.

    Its gradient goes towards a small weight, which gets none: without one there would be no way
    back from the loss to the rows.

    Args:
        table: Table of the strategy.
        way: The small weight, a variable of Keras.
    """

    def __init__(self, table: Variable, way: Any) -> None:
        self._table, self._way = table, way
        self._reads: list[tuple[Array, Array]] = []

    def read(self, ids: Any) -> Any:
        """Read rows, in a graph or at once."""
        table = self._table

        @noting_errors()
        def read_noted(asked: Array) -> Array:
            return np.asarray(to_host(table.sparse_read(asked)))

        def rows_of(way: Any, ids: Any) -> Any:
            rows = tf.numpy_function(read_noted, [ids], table.dtype)
            rows.set_shape((*ids.shape, *table.shape[1:]))

            def back(gradient: Any) -> Any:
                noted = tf.numpy_function(self._note, [ids, gradient], tf.int32)
                with tf.control_dependencies([noted]):
                    return tf.zeros_like(way), None

            return rows, back

        return tf.custom_gradient(rows_of)(tf.convert_to_tensor(self._way.value), ids)

    def _note(self, ids: Array, gradient: Array) -> Array:
        self._reads.append((np.array(ids), np.array(gradient)))  # the graph's memory goes
        return np.zeros((), np.int32)

    def take(self) -> IndexedSlices | None:
        """Take the gradient of all reads that the loss depends on."""
        reads, self._reads = self._reads, []
        return joined(reads)


class TensorFlowSteps(EagerSteps):
    """Steps of Keras on TensorFlow."""

    def __init__(self, weights: "SharedWeights") -> None:
        super().__init__(weights)
        self._assigned = weights.shared.assignments
        self._apply: Any = self._apply_gradients
        for variable in weights.variables.values():
            self._watch(variable)

    def _watch(self, variable: Any) -> None:
        """Count what is assigned to a variable of Keras; TensorFlow does not."""
        if id(variable) in self._assigned:
            return
        key, counts = id(variable), self._assigned
        counts[key] = 0
        assign = variable._direct_assign

        def counted(value: Any) -> None:
            counts[key] += 1
            assign(value)

        object.__setattr__(variable, "_direct_assign", counted)

    def array(self, variable: Any) -> Array:
        """Read a variable's value, of the same memory on the CPU."""
        return np.asarray(variable._value.read_value())

    def assign(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        """Assign values to the same variables."""
        for variable, value in zip(variables, values, strict=True):
            tf.raw_ops.AssignVariableOp(resource=variable._value.handle, value=value)

    def mark(self, variable: Any) -> object:
        """Return the number of times that a variable was assigned by others."""
        return self._assigned.get(id(variable), 0)

    assigns_unmarked = True  # in a graph

    def on_host(self, variable: Any) -> bool:
        """Return whether a variable is not on a GPU."""
        return "CPU" in variable._value.device

    def gradient(self, tensor: Any) -> Array:
        """Read a gradient, of the same memory on the CPU; rows added up."""
        return np.asarray(tf.convert_to_tensor(tensor))

    def has_rows(self, gradient: Any) -> bool:
        """Return whether a gradient has rows: that of an embedding has, some of them twice."""
        return isinstance(gradient, tf.IndexedSlices)

    def push(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Push gradients, and say once if rows are not taken as Keras alone takes them."""
        if not self._takes_rows:
            tell_of_rows(self._weights.optimizer, gradients, variables)
        super().push(gradients, variables)

    @property
    def _takes_rows(self) -> bool:
        """Whether Keras' optimizer is given rows as they are: of no other worker."""
        alone = workers_in_sync(self._weights.store.strategy) == 1
        return alone and self._weights.worker_reason is not None

    def tensor(self, gradient: Array, variable: Any) -> Any:  # noqa: ARG002
        """Make a tensor."""
        return tf.convert_to_tensor(gradient)

    def apply_here(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Keras' own, as one graph."""
        self._apply(gradients, variables)

    def make_train_function(self) -> None:
        """Make the graph of ``train_step``, and eager code around it."""
        model, optimizer = self._model, self._weights.optimizer
        self.begin()
        if not optimizer.built:
            with plainly():
                optimizer.build(model.trainable_variables)  # a graph makes none; files want them
        if isinstance(optimizer._learning_rate, type(optimizer._iterations)):
            self._watch(optimizer._learning_rate)
        compute: Any = self._compute
        if model.run_eagerly:
            self._apply = self._apply_gradients
        else:
            # As Keras does: what a train_step writes in Python runs while it is traced.
            compute = tf.function(
                compute, autograph=False, reduce_retracing=True, jit_compile=model.jit_compile
            )
            self._apply = self._compiled_apply()
        compute = model._autoconvert_optionals(compute)

        def step(data: Any) -> Any:
            if not self._compares_what_it_pushes:
                self.follow()
            logs, gradients = compute(data)
            self.push(gradients, list(self._trainable.values()))
            return logs

        def function(iterator: Any) -> Any:
            batches = timed(iterator)
            logs = step(next(batches))
            for _ in range(model.steps_per_execution - 1):
                try:
                    data = next(batches)
                except StopIteration:
                    break
                logs = step(data)
            return logs

        model.train_function = function

    @property
    def _compares_what_it_pushes(self) -> bool:
        """Whether the push gives all that was assigned, be it in the step or before it."""
        return self._weights.worker_reason is None and self._weights.can_assign

    def new_reader(self, layer: Any, table: Variable) -> TensorFlowRowReader:
        """Make a reader by the table, and the layer's weight."""
        return TensorFlowRowReader(table, layer._rows)

    def new_feature_reader(self, layer: Any, embeddings: Embeddings) -> GraphFeatureReader:
        """Make a reader by the tables, and the layer's weight."""
        return GraphFeatureReader(layer._rows, embeddings)

    def use_reader(self, reader: Any) -> None:
        """Do nothing: the reader asks by itself."""

    def _compute(self, data: Any) -> Any:
        """Run the model's ``train_step``; returns its logs, and a gradient or None for each
        weight.
        """
        handed: list[Any] = []
        optimizer = self._weights.optimizer

        def hand_out(gradients: Any, trainable_variables: Any = None) -> None:
            trained = trainable_variables or self._trainable.values()
            handed.append(dict(zip(map(id, trained), gradients, strict=True)))

        object.__setattr__(optimizer, "apply", hand_out)
        try:
            logs = self._model.train_step(data)
        finally:
            object.__delattr__(optimizer, "apply")
        if len(handed) != 1:
            raise ConfigurationError(
                f"train_step of {type(self._model).__name__} has to call self.optimizer.apply or "
                f"apply_gradients once; it called it {counted(len(handed), 'time')}"
            )
        variables = list(self._trainable.values())
        weight_gradients = [handed[0].get(id(variable)) for variable in variables]
        if self._takes_rows:
            return logs, weight_gradients
        tell_of_rows(optimizer, weight_gradients, variables)
        return logs, [
            None if gradient is None else tf.convert_to_tensor(gradient)
            for gradient in weight_gradients
        ]

    def _apply_gradients(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        optimizer = self._weights.optimizer
        with plainly():
            type(optimizer).apply(optimizer, gradients, variables)

    def _compiled_apply(self) -> Any:
        variables = list(self._trainable.values())
        compiled = tf.function(
            lambda gradients: self._apply_gradients(gradients, variables),
            autograph=False,
            reduce_retracing=True,
        )
        return lambda gradients, _: compiled(gradients)


def is_tracing() -> bool:
    """Return whether a graph is made, in which variables may have no values yet."""
    return not tf.executing_eagerly()


def tell_of_rows(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Say once of an optimizer that Keras alone would take the rows of an embedding otherwise.

    Only a step that is linear in the gradient is the same: that of SGD without clipping.

    Args:
        optimizer: The Keras optimizer.
        gradients: Gradients that it is given, as TensorFlow has made them.
        variables: Variables of Keras, in this order.
    """
    names = [
        variable.path
        for gradient, variable in zip(gradients, variables, strict=True)
        if isinstance(gradient, tf.IndexedSlices)
    ]
    if not names or optimizer in _told_of_rows:
        return
    kind = type(optimizer).__name__
    if kind == "SGD" and not any(getattr(optimizer, name) for name in _CLIPPING):
        return
    _told_of_rows.add(optimizer)
    log.warning(
        "%s of Keras on TensorFlow takes each occurrence of an id in a batch by itself in %s; here "
        "their gradients are added up first, as Keras does on JAX and PyTorch, and the curve is "
        "theirs. For that of Keras alone on TensorFlow give rw.training.keras.distribute "
        'deltas="always", without workers in sync',
        kind,
        ", ".join(map(repr, names)),
    )


def apply_in_graph(
    optimizer: Any,
    push: Callable[[Sequence[Array]], Sequence[Array]],
    gradients: Sequence[Any],
    variables: Sequence[Any],
) -> None:
    """Have a graph call a function of Python with gradients, and assign the values it returns.

    They are assigned in the graph so that what comes after in the program reads them.
    """
    tell_of_rows(optimizer, gradients, variables)
    dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
    arrived = tf.numpy_function(
        noting_errors()(lambda *arrays: push(arrays)),
        dense,
        [variable.dtype for variable in variables],
    )
    for variable, value in zip(variables, arrived, strict=True):
        value.set_shape(variable.shape)
        variable._value.assign(value)


STEPS = TensorFlowSteps
