"""Combined rows of several features, for which a graph of TensorFlow asks Python."""

from collections import OrderedDict
from collections.abc import Mapping
from itertools import count
from typing import Any

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.process.tracebacks import noting_errors
from ...training.extras import require
from ..embedding.features.tables import Embeddings, Lookup, WaitingGradients
from .feature_shapes import NEVER_APPLIED, rows_shape

tf: Any = require("tensorflow", "keras,tensorflow")

_MAX_LOOKUPS = 64
"""Lookups whose gradient may come: those of evaluation have none, and are forgotten in turn."""


class GraphFeatureReader:
    """Reads the features of one ``DistributedEmbedding``.

    Args:
        way: The layer's small weight, towards which the gradient goes; it gets none.
        embeddings: The tables.

    Attributes:
        waiting: Gradients for the end of the step.
    """

    def __init__(self, way: Any, embeddings: Embeddings) -> None:
        self._way, self._embeddings = way, embeddings
        self._features = {feature.name: feature for feature in embeddings.features}
        self.waiting = WaitingGradients(NEVER_APPLIED)
        self._lookups: OrderedDict[int, Lookup] = OrderedDict()
        self._numbers = count()

    def read(self, ids: Mapping[str, Any], weights: Mapping[str, Any]) -> Mapping[str, Any]:
        """Read combined rows, in a graph or at once."""
        names, weighted = list(ids), list(weights)

        @noting_errors()
        def look_up(*arrays: Array) -> list[Array]:
            own = dict(zip(names, arrays, strict=False))
            rows = self._embeddings.lookup(
                own, dict(zip(weighted, arrays[len(names) :], strict=True))
            )
            number = next(self._numbers)
            self._lookups[number] = rows
            if len(self._lookups) > _MAX_LOOKUPS:
                self._lookups.popitem(last=False)
            return [np.array(number), *(rows[name] for name in names)]

        def rows_of(way: Any, *arrays: Any) -> Any:
            dtypes = [tf.as_dtype(self._features[name].table.dtype) for name in names]
            number, *rows = tf.numpy_function(look_up, arrays, [tf.int64, *dtypes])
            for name, tensor, own in zip(names, rows, arrays, strict=False):
                tensor.set_shape(rows_shape(self._features[name], own.shape[0]))

            def back(*gradients: Any) -> Any:
                noted = tf.numpy_function(self._note(names), [number, *gradients], tf.int32)
                with tf.control_dependencies([noted]):
                    return tf.zeros_like(way), *[None] * len(arrays)

            return rows, back

        way = tf.convert_to_tensor(self._way.value)
        rows = tf.custom_gradient(rows_of)(way, *ids.values(), *weights.values())
        return dict(zip(names, rows, strict=True))

    def _note(self, names: list[str]) -> Any:
        @noting_errors()
        def note(number: Array, *gradients: Array) -> Array:
            lookup = self._lookups.pop(int(number))
            # The graph's memory goes.
            kept = {
                name: np.array(gradient) for name, gradient in zip(names, gradients, strict=True)
            }
            self.waiting.add(lookup, kept)
            return np.zeros((), np.int32)

        return note
