"""Rows of tables for compiled steps of JAX: looked up and passed in before a step runs.

A compiled step cannot wait for rows. So the model is traced twice. The first function gives the ids
that its embeddings are asked for, and the compiler drops all else of it; it works for ids that the
model computes, too. Their rows are read, and the second function, the step, is given them in place
of each embedding's small weight: so the framework's gradient for that weight is that of the rows.

A callback out of the step (``jax.pure_callback``) would need only one, but waits in a thread of the
device for arrays that the same thread may have to copy.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, Protocol

import numpy as np

from ...core.arrays.any_framework import to_host
from ...core.arrays.dtypes import Array
from ...core.arrays.indexed_slices import IndexedSlices
from ...core.errors import ConfigurationError
from ...distribute.variables.variable import Variable
from ...training.extras import require
from .frameworks import keras

jax: Any = require("jax", "keras")


class JaxRowReader:
    """Gives the calls of one embedding in a step their rows, one call after the other.

    Args:
        layer: The embedding.
        table: Table of the strategy.

    Attributes:
        layer: The embedding.
        ids: Ids that each call asks for in the first function, flat.
    """

    def __init__(self, layer: Any, table: Variable) -> None:
        self.layer, self._table = layer, table
        self.ids: list[Any] = []
        self._mode: Literal["ask", "given", ""] = ""
        self._next = 0
        self._gradient: IndexedSlices | None = None

    def read(self, ids: Any) -> Any:
        """Return the rows of the step; outside of one as they are now."""
        dim = self.layer.output_dim
        if self._mode == "given":
            start, self._next = self._next, self._next + ids.size
            return self.layer._rows.value[start : self._next].reshape(*ids.shape, dim)
        if self._mode == "ask":
            self.ids.append(ids.reshape(-1))
            return jax.numpy.zeros((*ids.shape, dim), self.layer.compute_dtype)
        if isinstance(ids, jax.core.Tracer):
            raise ConfigurationError(
                f"{self.layer.name!r} is called in a function that JAX compiles, which cannot wait "
                "for rows of its table; call the model outside, or use predict"
            )
        return jax.numpy.asarray(self.rows(np.asarray(ids)))

    @property
    def asks(self) -> bool:
        """Whether the first function is traced, which finds out ids."""
        return self._mode == "ask"

    def restart(self) -> None:
        """Begin anew with a replica's part of the rows."""
        self._next = 0

    def asked(self) -> Any:
        """Collect the ids of all calls in the first function."""
        return jax.numpy.concatenate([jax.numpy.zeros(0, "int32"), *self.ids])

    def rows(self, ids: Array) -> Array:
        """Read rows of the table now."""
        rows: Array = to_host(self._table.sparse_read(ids))
        return rows

    @contextmanager
    def mode(self, mode: Literal["ask", "given"]) -> Iterator[None]:
        """Set the mode while a function is traced."""
        self._mode, self._next, self.ids = mode, 0, []
        try:
            yield
        finally:
            self._mode = ""

    def note(self, gradient: Array, ids: Array) -> None:
        """Note the gradient that a step gave."""
        self._gradient = IndexedSlices(gradient, ids) if ids.size else None

    def take(self) -> IndexedSlices | None:
        """Take the row gradient of the last step, if there is one."""
        gradient, self._gradient = self._gradient, None
        return gradient


class FedReader(Protocol):
    """A reader whose layer has what it needs of a step passed in before the step runs.

    Attributes:
        layer: The layer; its weight ``_rows`` is what the step is given in place of.
    """

    layer: Any

    def mode(self, mode: Literal["ask", "given"]) -> AbstractContextManager[None]:
        """Set the mode while a function is traced."""

    def asked(self) -> Any:
        """Collect what the calls in the first function ask for: a tree of arrays of JAX."""

    def rows(self, asked: Any) -> Array:
        """Look up the rows that were asked for, of arrays of the host."""

    def note(self, gradient: Array, asked: Any) -> None:
        """Take the gradient of these rows."""


class RowFeed:
    """Gives functions of (state, data) the rows that the data needs.

    Args:
        model: The Keras model.
        readers: Readers of its embeddings' rows.
        wrap: ``jax.jit``, or nothing.
    """

    def __init__(self, model: Any, readers: Sequence[FedReader], wrap: Any) -> None:
        self._model, self._readers = model, readers
        self._ask = wrap(self._ids)
        self._asked: list[Any] = []  # by the last step, of each reader

    def _ids(self, trainable: Any, others: Any, x: Any) -> list[Any]:
        with _all(self._readers, "ask"):
            arguments = {"training": False} if self._model._call_has_training_arg else {}
            self._model.stateless_call(trainable, others, x, **arguments)
            return [reader.asked() for reader in self._readers]

    def _places(self) -> list[int]:
        places = {id(v): i for i, v in enumerate(self._model.trainable_variables)}
        return [places[id(reader.layer._rows)] for reader in self._readers]

    def traced(self, function: Any) -> Any:
        """Wrap a function to compile, in which embeddings have the rows of its state."""

        def run(state: Any, data: Any) -> Any:
            variables = [reader.layer._rows for reader in self._readers]
            shapes = [variable._shape for variable in variables]
            for variable, place in zip(variables, self._places(), strict=True):
                variable._shape = tuple(state[0][place].shape)
            try:
                with _all(self._readers, "given"):
                    return function(state, data)
            finally:
                for variable, shape in zip(variables, shapes, strict=True):
                    variable._shape = shape

        return run

    def fed(self, compiled: Any) -> Callable[[Any, Any], Any]:
        """Wrap what was compiled, so that it is called with rows in its state."""

        def call(state: Any, data: Any) -> Any:
            trainable, others = list(state[0]), state[1]
            x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
            self._asked = jax.tree.map(np.asarray, self._ask(trainable, others, x))
            places = self._places()
            for reader, asked, place in zip(self._readers, self._asked, places, strict=True):
                trainable[place] = jax.numpy.asarray(reader.rows(asked))
            return compiled((trainable, *state[1:]), data)

        return call

    def note(self, gradients: Sequence[Any]) -> None:
        """Keep the gradients of rows that a step gave."""
        places = self._places()
        for reader, asked, place in zip(self._readers, self._asked, places, strict=True):
            reader.note(np.asarray(gradients[place]), asked)


@contextmanager
def _all(readers: Sequence[FedReader], mode: Literal["ask", "given"]) -> Iterator[None]:
    if not readers:
        yield
        return
    with readers[0].mode(mode), _all(readers[1:], mode):
        yield
